"""Show the run of a federation: a line per round and per change of a node, or a table of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from fedbm.cli.console_tables import percent, table
from fedbm.federation.server.run_status import RunStatus, format_age, format_duration

HEALTHY = ("ready", "asked", "answered")  # states of a node that need no line


class StatusLog:
    """Print a line per round, and a line for each node that is silent, refused, rejected or back.

    It ignores the status that an earlier run left.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._first: str | None = None  # when the first status was written
        self._rounds = -1
        self._troubles: dict[str, str] = {}
        self._rejections: dict[str, str] = {}

    def __call__(self, run: RunStatus | None) -> None:
        updated = run.status["updated"] if run else ""
        self._first = updated if self._first is None else self._first
        if run is None or updated == self._first:
            return
        for node in run.status["nodes"]:
            name, trouble = node["name"], "" if node["state"] in HEALTHY else node["state"]
            if trouble != self._troubles.get(name, ""):
                self._console.print(f"{name}: {trouble or 'back'}", soft_wrap=True)
            self._troubles[name] = trouble
            if node["rejected"] and node["rejected"] != self._rejections.get(name):
                self._console.print(describe_rejection(node), soft_wrap=True)
                self._rejections[name] = node["rejected"]
        if len(run.rounds) != self._rounds:
            self._rounds = len(run.rounds)
            self._console.print(summarise(run), soft_wrap=True)


def summarise(run: RunStatus) -> str:
    """Return round, phase, scores and times in one line."""
    scores = "  ".join(f"{side} {percent(run.status[side], 'accuracy')}" for side in ("val", "test"))
    times = f"{format_duration(run.seconds_per_round)} per round  remaining {format_duration(run.seconds_remaining)}"
    return f"round {len(run.rounds)}/{run.status['rounds']} done  {run.phase}  {scores}  {times}"


def describe_rejection(node: Mapping[str, Any]) -> str:
    """Return a line about a node's latest rejected answer: the round and the reason."""
    return f"{node['name']}: answer rejected in {node['rejected']}"


def draw_status(run: RunStatus) -> Group:
    """Return the run's name, its summary, a table of the nodes, and the latest rejected answer of each node."""
    nodes = run.status["nodes"]
    rows = []
    for node in nodes:
        client = "–" if node["client"] is None else node["client"]
        rows.append((client, node["name"], node["state"], node["missed_deadlines"], format_age(node["last_seen"])))
    heads = ("client", "node", "state", "missed deadlines", "last answer")
    rejections = [Text(describe_rejection(node)) for node in nodes if node["rejected"]]
    title = Text(str(run.status["run"]), style="bold")
    return Group(title, Text(summarise(run)), table("", heads, rows, text_columns=3), *rejections)
