"""time = Σ rounds left × seconds a round ÷ overlap, all three measured: by the run itself, or by runs like it.

A run is like another if data, method, local epochs, batch, share of clients, precision and device are the same. Where
nothing like it was ever measured there is no number: the first rounds will tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.experiments.trials import Standing
from fedbm.results.portions import read_portions, speed
from fedbm.results.runs import RunView, read_run

LEAST_ROUNDS = 2  # measured, before they stand for others: the first has the start-up in it

Rates = Mapping[tuple[Any, ...], float]


@dataclass(frozen=True)
class Estimate:
    seconds: float  # of the runs that something is known of
    known: int
    unknown: int
    overlap: float


def rates(out: Path, device: str) -> Rates:
    """Mean seconds a round of every kind of run in *out* that was computed on *device*."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for path in sorted(p.parent for p in out.glob("*/config.toml")):
        try:
            run = read_run(path)
        except FedBMError:  # said where runs are listed; an estimate can do without
            continue
        if (run.environment or {}).get("device") == device and len(run.rounds) >= LEAST_ROUNDS:
            found.setdefault(_kind_of(run), []).append(_seconds_a_round(run))
    return {kind: sum(values) / len(values) for kind, values in found.items()}


def estimate(standings: Sequence[Standing], out: Path, device: str, at_once: int) -> Estimate:
    """For the runs that are neither finished nor absent. *at_once*: runs side by side, where no portion tells."""
    measured, left = rates(out, device), [s for s in standings if s.state not in ("finished", "absent")]
    work: list[float | None] = [_left(standing, measured) for standing in left]
    known = [seconds for seconds in work if seconds is not None]
    overlap = speed(read_portions(out), device) or float(max(1, min(at_once, len(left))))
    return Estimate(sum(known) / overlap, len(known), len(left) - len(known), overlap)


def _left(standing: Standing, measured: Rates) -> float | None:
    assert standing.config is not None
    assert standing.folder is not None
    config = standing.config
    played, rate = 0, None
    if standing.state != "not run" and (standing.folder / "config.toml").exists():
        run = read_run(standing.folder)
        played = len(run.rounds)
        rate = _seconds_a_round(run) if played >= LEAST_ROUNDS else None
    if rate is None:
        train = config.train
        name = Path(config.data.name).stem
        rate = measured.get((name, config.method.name, train.epochs, train.batch, train.ratio, train.precision))
    return None if rate is None else rate * (config.train.rounds - played)


def _kind_of(run: RunView) -> tuple[Any, ...]:
    train = run.config["train"]
    return (run.data, run.method, *(train.get(key) for key in ("epochs", "batch", "ratio", "precision")))


def _seconds_a_round(run: RunView) -> float:
    """Without the first round of the run, unless there is no other."""
    counted = [float(record["seconds"]["total"]) for record in run.rounds[1:] or run.rounds]
    return sum(counted) / len(counted)
