"""Start a run at the server, follow it to its end, and give nodes their data for a rehearsal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbm.errors import FedBMError
from fedbm.federation.deploy import flower
from fedbm.federation.deploy.settings_files import NodeSettings, ServerSettings, read_settings, to_text
from fedbm.federation.deploy.supervisor import check_up, running
from fedbm.federation.federation_options import read_run_file
from fedbm.federation.node.node_data import write_share
from fedbm.federation.server.run_status import RunStatus, read_status
from fedbm.runs.plan import load_dataset, make_partition
from fedbm.runs.run_config import recommend
from fedbm.utils.io import write_text


def start_run(folder: Path, file: Path) -> int:
    """Start the run that *file* describes at the server in *folder*, and return its Flower id."""
    _, options = read_run_file(file)
    server = read_settings(folder, ServerSettings)
    if options.nodes > (known := max(server.places, default=-1) + 1):
        raise FedBMError(f"{file} asks for {options.nodes} nodes, but server.toml has {known}")
    check_up(folder)
    if flower.active_runs(folder):
        raise FedBMError("another run is active; 'fedbm federation stop --run' ends it")
    return flower.start_run(folder, {"config": str(file.resolve()), "folder": str(folder.resolve())})


class Follower:
    """Show the status of a run at each call; the call returns False once the run is over."""

    def __init__(self, folder: Path, run: int, show: Callable[[RunStatus | None], None]) -> None:
        self._folder, self._run, self._show = folder, run, show
        self._status: Any = None  # Flower's, as of the last question

    def __call__(self) -> bool:
        if flower.SERVER_APP not in running(self._folder):
            try:
                self._status = flower.list_runs(self._folder).get(self._run)
            except FedBMError:
                check_up(self._folder)  # if the server is up, it is only busy; ask again later
        self._show(read_status(self._folder))  # after the question, so that the end of a run is shown
        return self._status is None or self._status.status != "finished"

    def check_completed(self) -> None:
        """Raise FedBMError unless the run was completed."""
        if self._status.sub_status != "completed":
            why = self._status.details or self._status.sub_status
            raise FedBMError(f"the run was not completed: {why}; the same command resumes it from its last checkpoint")


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
