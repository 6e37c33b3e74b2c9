"""Start and end runs at the server, and give nodes their data for a rehearsal."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbm.errors import FedBMError
from fedbm.federation.deploy.flower import APP, SERVER_APP, call_control
from fedbm.federation.deploy.settings_files import NodeSettings, ServerSettings, read_settings, to_text
from fedbm.federation.deploy.supervisor import check_up, running
from fedbm.federation.federation_options import read_run_file
from fedbm.federation.node.node_data import write_share
from fedbm.runs.plan import load_dataset, make_partition
from fedbm.runs.run_config import recommend
from fedbm.utils.io import write_text

ENDED = "finished"  # Flower's status of a run that was completed or stopped, or has failed


def start_run(folder: Path, file: Path) -> int:
    """Start the run that *file* describes at the server in *folder*, and return its Flower id."""
    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import user_config_to_proto
    from flwr.proto.fab_pb2 import Fab

    _, options = read_run_file(file)
    server = read_settings(folder, ServerSettings)
    if options.nodes > (known := max(server.places, default=-1) + 1):
        raise FedBMError(f"{file} asks for {options.nodes} nodes, but server.toml has {known}")
    check_up(folder)
    if active_runs(folder):
        raise FedBMError("another run is active; 'fedbm federation stop --run' ends it")
    bundle, _ = build_fab_from_files({"pyproject.toml": APP.encode()})
    app = Fab(hash_str=hashlib.sha256(bundle).hexdigest(), content=bundle)
    config = user_config_to_proto({"config": str(file.resolve()), "folder": str(folder.resolve())})
    return int(call_control(folder, "start-run", fab=app, override_config=config).run_id)


def active_runs(folder: Path) -> list[int]:
    """Return the Flower ids of the runs that have not ended."""
    runs = call_control(folder, "list-runs").run_dict
    return [number for number, run in runs.items() if run.status.status != ENDED]


def end_active_runs(folder: Path) -> int:
    """End the runs that have not ended, and return their number."""
    active = active_runs(folder)
    for run in active:
        call_control(folder, "stop-run", run_id=run)
    return len(active)


def find_end(folder: Path, run: int) -> Any:
    """Return Flower's status of a run that has ended, or None if it has not, or the SuperLink is too busy to answer."""
    if SERVER_APP in running(folder):
        return None
    try:
        status = call_control(folder, "list-runs").run_dict[run].status
    except FedBMError:
        check_up(folder)
        return None
    return status if status.status == ENDED else None


def give_shares(folder: Path, file: Path, data: str = "") -> list[tuple[str, int]]:
    """Partition the run's data set, or the one at *data*, among the nodes of *folder* for a rehearsal.

    Training images follow the run's own partition. Validation and test images go to the nodes in turn.

    Returns:
        Each node's name and its number of training images.
    """
    config, _ = read_run_file(file)
    if data:
        config = config.with_values("data", name=data)
    sites = [folder / name for name in read_settings(folder / "server", ServerSettings).names]
    dataset = load_dataset(config)
    shares = make_partition(recommend(config, dataset.recommends), dataset).clients
    if len(shares) != len(sites):
        raise FedBMError(f"{file} has {len(shares)} clients, but {folder} has {len(sites)} nodes; change [data]")
    given = []
    for client, (site, own) in enumerate(zip(sites, shares, strict=True)):
        scored = [dataset.indices(side)[client :: len(sites)] for side in ("val", "test")]
        write_share(site / "data", dataset, np.sort(np.concatenate([own, *scored])))
        node = read_settings(site, NodeSettings)
        write_text(site / "node.toml", to_text(replace(node, data="data")))
        given.append((node.name, len(own)))
    return given
