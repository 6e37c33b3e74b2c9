"""A run of a federation, seen from the server's machine: begun, followed, told how it ended; and its data dealt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedbm.errors import FedBMError
from fedbm.federation.deploy import flower
from fedbm.federation.deploy.flower_app import write_app
from fedbm.federation.deploy.processes import check_up
from fedbm.federation.deploy.site_files import Node, Server, Whole, read, to_text
from fedbm.federation.node.node_data import write_share
from fedbm.federation.options import read_run_file
from fedbm.federation.server.run_status import Standing, read_standing
from fedbm.runs.config import recommend
from fedbm.runs.plan import load_dataset, make_partition
from fedbm.utils.io import write_text

ENDS = {
    "finished:stopped": "it was stopped",
    "finished:failed": "its server app ended early",
}  # Flower's word for it → ours
Show = Callable[[Standing | None], None]


def begin(folder: Path, file: Path) -> str:
    """Start the run that *file* describes at the server in *folder*; Flower's id of it."""
    _, options = read_run_file(file)
    server: Server = read(folder, Server)
    if options.nodes > (known := max(server.places, default=-1) + 1):
        raise FedBMError(f"{file} asks for {options.nodes} nodes, but server.toml knows {known}")
    check_up(folder)
    for run in flower.runs(folder):
        if run["status"] not in flower.OVER:
            raise FedBMError(
                "a run is going on already; 'fedbm federation status' shows it, 'fedbm federation stop --run' ends it"
            )
    app = folder.resolve() / "app"
    write_app(app)
    values = {"config": str(file.resolve()), "folder": str(folder.resolve())}
    return flower.begin_run(folder, app, values)


class Follower:
    """Call it now and then: it shows where the run stands, and returns False once the run is over."""

    ASK, LONGEST = 3.0, 30.0  # seconds between questions to the SuperLink: when the server app is gone, and else
    PATIENCE = 120.0  # seconds without an answer: a SuperLink that died is being started again

    def __init__(self, folder: Path, run: str, show: Show) -> None:
        self._folder, self._run, self._show = folder, run, show
        self._asked = self._answered = time.monotonic()
        self.outcome = ("running", "")

    def __call__(self) -> bool:
        since = time.monotonic() - self._asked
        if since > self.LONGEST or (since > self.ASK and not flower.is_alive(self._folder)):
            self._ask()
        self._show(read_standing(self._folder))  # after the question: what an ended run came to is shown
        return self.outcome[0] not in flower.OVER

    def _ask(self) -> None:
        try:
            self.outcome = flower.run_state(self._folder, self._run)
            self._answered = time.monotonic()
        except FedBMError:
            if time.monotonic() - self._answered > self.PATIENCE:
                raise
        self._asked = time.monotonic()

    def must_be_done(self) -> None:
        """FedBMError unless the run came to its end."""
        state, details = self.outcome
        if state != "finished:completed":
            told = details.removeprefix("ServerApp failed with exception: ")
            why = ENDS.get(state, state) if details in ("", "N/A") else told
            raise FedBMError(f"the run did not come to its end: {why}; the same command resumes from its last round")


@contextmanager
def end_run(folder: Path, run: str) -> Iterator[None]:
    """Within it the run continues; if it is left early, the SuperLink is told, so that no node works on in vain."""
    try:
        yield
    except BaseException:
        flower.end_run(folder, run)
        raise


def deal(folder: Path, file: Path, data: str = "") -> list[tuple[str, int]]:
    """Deal the run's data set, or that at *data*, to the nodes of *folder* for a rehearsal: (name, training images).

    Training images go as the run's own partition says, in its order; validation and test images in turn.
    """
    config, _ = read_run_file(file)
    if data:
        config = replace(config, data=replace(config.data, name=data))
    sites = read(folder, Whole).folders(folder)
    dataset = load_dataset(config)
    config = recommend(config, dataset.recommends)
    shares = make_partition(config, dataset).clients
    if len(shares) != len(sites):
        raise FedBMError(
            f"{file} deals to {len(shares)} clients, but there are {len(sites)} nodes; set clients in [data]"
        )
    dealt = []
    for client, (site, own) in enumerate(zip(sites, shares, strict=True)):
        scored = [dataset.indices(side)[client :: len(sites)] for side in ("val", "test")]
        write_share(site / "data", dataset, np.sort(np.concatenate([own, *scored])))
        node: Node = read(site, Node)
        write_text(site / "node.toml", to_text(replace(node, data="data")))
        dealt.append((node.name, len(own)))
    return dealt
