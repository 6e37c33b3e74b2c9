"""Show the run of a federation: a line per round and per change of a node, or a table of its nodes."""

from __future__ import annotations

from rich.console import Console, Group
from rich.text import Text

from fedbm.cli.console_tables import percent, table
from fedbm.federation.server.run_status import RunStatus, format_age, format_duration

HEALTHY = ("ready", "asked", "answered")  # states of a node that are shown as one


class StatusLog:
    """Print a line per round, and a line for each change of a node. It ignores the status that an earlier run left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._first: str | None = None  # when the first status was written
        self._shown: set[str] = set()
        self._rounds = -1

    def __call__(self, run: RunStatus | None) -> None:
        updated = run.status["updated"] if run else ""
        self._first = updated if self._first is None else self._first
        if run is None or updated == self._first:
            return
        states = [
            f"{node['name']}: {'ready' if node['state'] in HEALTHY else node['state']}" for node in run.status["nodes"]
        ]
        lines = [*states, *describe_rejections(run)]
        if len(run.rounds) != self._rounds:
            self._rounds = len(run.rounds)
            lines.append(summarise(run))
        for line in lines:
            if line not in self._shown:
                self._console.print(line, soft_wrap=True)
        self._shown = set(lines)


def summarise(run: RunStatus) -> str:
    """Return round, phase, scores and times in one line."""
    scores = "  ".join(f"{side} {percent(run.status[side], 'accuracy')}" for side in ("val", "test"))
    times = f"{format_duration(run.seconds_per_round)} per round  remaining {format_duration(run.seconds_remaining)}"
    return f"round {len(run.rounds)}/{run.status['rounds']} done  {run.phase}  {scores}  {times}"


def describe_rejections(run: RunStatus) -> list[str]:
    """Return a line about each node's latest rejected answer: the round and the reason."""
    return [
        f"{node['name']}: answer rejected in {node['rejected']}" for node in run.status["nodes"] if node["rejected"]
    ]


def draw_status(run: RunStatus) -> Group:
    """Return the run's name, its summary, a table of the nodes, and the latest rejected answer of each node."""
    rows = []
    for node in run.status["nodes"]:
        client = "–" if node["client"] is None else node["client"]
        rows.append((client, node["name"], node["state"], node["missed_deadlines"], format_age(node["last_seen"])))
    heads = ("client", "node", "state", "missed deadlines", "last answer")
    title, rejections = Text(str(run.status["run"]), style="bold"), map(Text, describe_rejections(run))
    return Group(title, Text(summarise(run)), table("", heads, rows, text_columns=3), *rejections)
