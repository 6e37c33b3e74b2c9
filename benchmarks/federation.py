"""Show where the seconds of a deployed round go, from the audits and the records of a study on this machine.

    fedbm federation init study --nodes 3
    fedbm federation partition study benchmarks/federation.toml
    fedbm federation up study benchmarks/federation.toml
    python benchmarks/federation.py study

Overhead is the time of a round without the longest local training and without the training of the generator. Its parts
are those of the client that answered last: from the request to the start of its training, and from its end to the
receipt of the upload. Scoring at the nodes and everything else at the server follow.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from fedbm.federation.audit import verify

COLUMNS = ("round", "total", "training", "generator", "overhead", "to the nodes", "from the nodes", "scoring", "server")


def read_events(folder: Path, event: str) -> Iterable[dict[str, Any]]:
    path = folder / "state" / "audit.jsonl"
    return [line for line in verify(path).lines if line["event"] == event]


def seconds_of(line: dict[str, Any]) -> float:
    return datetime.fromisoformat(line["time"]).timestamp()


def measure(study: Path) -> list[tuple[float, ...]]:
    """Return a row for each round of the study's only run; the last attempt of a repeated round counts."""
    server = study / "server"
    nodes = [path.parent for path in sorted(study.glob("*/node.toml"))]
    [records] = (server / "state" / "runs").glob("*/rounds.jsonl")
    sent = {(e["client"], e["round"]): seconds_of(e) for e in read_events(server, "sent") if e["request"] == "train"}
    received = {(e["client"], e["round"]): seconds_of(e) for e in read_events(server, "received")}
    trained = {(n, e["round"]): seconds_of(e) for n, node in enumerate(nodes) for e in read_events(node, "trained")}
    rows = []
    for record in map(json.loads, records.read_text(encoding="utf-8").splitlines()):
        spent, number = record["seconds"], record["round"]
        training = {client["client"]: client["seconds"] for client in record["clients"]}
        last = max(training, key=lambda client: received[client, number])
        down = trained[last, number] - training[last] - sent[last, number]
        up = received[last, number] - trained[last, number]
        overhead = spent["total"] - max(training.values()) - spent["generator"]
        server_side = overhead - down - up - spent["evaluate"]
        row = (spent["total"], max(training.values()), spent["generator"], overhead, down, up, spent["evaluate"])
        rows.append((number, *row, server_side))
    return rows


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    rows = measure(Path(sys.argv[1]))
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + " ---: |" * len(COLUMNS))
    for row in rows:
        print(f"| {row[0]:.0f} | " + " | ".join(f"{value:.1f}" for value in row[1:]) + " |")
    if later := rows[1:]:  # at the first round, nodes load the run
        medians = (statistics.median(column) for column in list(zip(*later, strict=True))[1:])
        print("| median from 2 on | " + " | ".join(f"{value:.1f}" for value in medians) + " |")


if __name__ == "__main__":
    main()
