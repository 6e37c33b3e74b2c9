"""Start a run at the server, follow it to its end, and give nodes their data for a rehearsal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedbm.errors import FedBMError
from fedbm.federation.deploy import flower
from fedbm.federation.deploy.settings_files import (
    NodeSettings,
    ServerSettings,
    read_policy,
    read_settings,
    to_text,
)
from fedbm.federation.deploy.supervisor import check_up, running
from fedbm.federation.federation_options import read_run_file
from fedbm.federation.node.node_data import write_share
from fedbm.federation.server.run_status import RunStatus, read_status
from fedbm.runs.plan import load_dataset, make_partition
from fedbm.runs.run_config import recommend
from fedbm.utils.io import write_text

REASONS = {"finished:stopped": "it was stopped", "finished:failed": "its server app ended early"}


def start_run(folder: Path, file: Path) -> str:
    """Start the run that *file* describes at the server in *folder*, and return its Flower id."""
    _, options = read_run_file(file)
    server = read_settings(folder, ServerSettings)
    if options.nodes > (known := max(server.places, default=-1) + 1):
        raise FedBMError(f"{file} asks for {options.nodes} nodes, but server.toml has {known}")
    check_up(folder)
    if flower.active_runs(folder):
        raise FedBMError(
            "another run is active; 'fedbm federation status' shows it, 'fedbm federation stop --run' ends it"
        )
    app = folder.resolve() / "app"
    write_text(app / "pyproject.toml", flower.APP)
    values = flower.to_pairs({"config": str(file.resolve()), "folder": str(folder.resolve())})
    return str(flower.call_flwr(folder, "run", str(app), flower.LINK, "-c", values)["run-id"])


class Follower:
    """Show the status of a run at each call; the call returns False once the run is over."""

    WAIT_S = 3.0  # between questions to the SuperLink, which are asked only while no server app is running

    def __init__(self, folder: Path, run: str, show: Callable[[RunStatus | None], None]) -> None:
        self._folder, self._run, self._show = folder, run, show
        self._asked = time.monotonic()
        self.outcome = ("running", "")

    def __call__(self) -> bool:
        if time.monotonic() - self._asked > self.WAIT_S and flower.SERVER_APP not in running(self._folder):
            try:
                self.outcome = flower.run_state(self._folder, self._run)
            except FedBMError:
                check_up(self._folder)  # if the server is up, it is only busy; ask again later
            self._asked = time.monotonic()
        self._show(read_status(self._folder))  # after the question, so that the end of a run is shown
        return self.outcome[0] not in flower.FINISHED

    def check_completed(self) -> None:
        """Raise FedBMError unless the run was completed."""
        state, details = self.outcome
        if state != "finished:completed":
            known = details not in ("", "N/A")
            why = details.removeprefix("ServerApp failed with exception: ") if known else REASONS.get(state, state)
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
        raise FedBMError(
            f"{file} has {len(shares)} clients, but there are {len(sites)} nodes; change clients in [data]"
        )
    given = []
    for client, (site, own) in enumerate(zip(sites, shares, strict=True)):
        scored = [dataset.indices(side)[client :: len(sites)] for side in ("val", "test")]
        write_share(site / "data", dataset, np.sort(np.concatenate([own, *scored])))
        node = read_settings(site, NodeSettings)
        write_text(site / "node.toml", to_text(replace(node, data="data"), read_policy(site)))
        given.append((node.name, len(own)))
    return given
