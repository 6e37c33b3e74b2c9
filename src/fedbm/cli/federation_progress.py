"""Show a federation's run: a panel in a terminal, elsewhere a line for each round and each change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fedbm.cli.tables import percent, table
from fedbm.federation.server.run_status import RunStatus, format_age, format_duration

Show = Callable[[RunStatus | None], None]

WELL = ("ready", "asked", "answered")  # states of a node that need no mention


@contextmanager
def following(console: Console) -> Iterator[Show]:
    """A function to call with each look at the run."""
    if not console.is_terminal:
        yield Lines(console)
        return
    with Live(console=console, refresh_per_second=4) as live:
        begin = None

        def show(standing: RunStatus | None) -> None:
            nonlocal begin
            moment = standing.status["updated"] if standing else ""
            begin = moment if begin is None else begin
            if standing and moment != begin:
                live.update(drawn(standing))

        yield show


class Lines:
    """One line a round, and one for each node that falls silent, is refused, is rejected or comes back."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begin: str | None = None
        self._done = -1
        self._troubles: dict[str, str] = {}
        self._rejections: dict[str, str] = {}

    def __call__(self, standing: RunStatus | None) -> None:
        moment = standing.status["updated"] if standing else ""
        self._begin = moment if self._begin is None else self._begin
        if standing is None or moment == self._begin:  # left by an earlier run
            return
        for node in standing.status["nodes"]:
            before, now = self._troubles.get(node["name"], ""), "" if node["state"] in WELL else node["state"]
            if now != before:
                self._console.print(f"{node['name']}: {now or 'back'}")
            self._troubles[node["name"]] = now
            if node["rejected"] and node["rejected"] != self._rejections.get(node["name"]):
                self._console.print(rejection(node), soft_wrap=True)
                self._rejections[node["name"]] = node["rejected"]
        if len(standing.rounds) != self._done:
            self._done = len(standing.rounds)
            self._console.print(headline(standing), soft_wrap=True)


def headline(standing: RunStatus) -> str:
    status = standing.status
    parts = [f"round {len(standing.rounds)}/{status['rounds']} done", standing.phase]
    parts += [f"val {percent(status['val'], 'accuracy')}", f"test {percent(status['test'], 'accuracy')}"]
    parts += [
        f"{format_duration(standing.seconds_per_round)} a round",
        f"remaining {format_duration(standing.seconds_remaining)}",
    ]
    return "  ".join(parts)


def rejection(node: Mapping[str, Any]) -> str:
    """Say which node's answer was left out, in which round and why."""
    return f"{node['name']}: answer rejected in {node['rejected']}"


def drawn(standing: RunStatus) -> Group:
    """Round, accuracy and time left in a line; below it every node, and the latest rejected answer of each."""
    rows = [
        (
            "–" if n["client"] is None else n["client"],
            n["name"],
            n["state"],
            n["missed_deadlines"],
            format_age(n["last_seen"]),
        )
        for n in standing.status["nodes"]
    ]
    nodes = table("", ("client", "node", "state", "missed deadlines", "last answer"), rows, text_columns=3)
    rejected = [Text(rejection(node)) for node in standing.status["nodes"] if node["rejected"]]
    return Group(Text(str(standing.status["run"]), style="bold"), Text(headline(standing)), nodes, *rejected)
