"""time = Σ rounds left × seconds a round ÷ overlap, all three measured: by the run itself, or by runs like it.

A run is like another if all that a round's work depends on is the same: data, image size, clients, model, the method
with its options, local epochs, batch, share of clients, optimiser, evaluation, precision, and the device. Strengths,
such as λ, only matter in whether they are 0. Where nothing like it was ever measured there is no number: the first
rounds will tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fedbm.engine.checkpoint import rounds_behind
from fedbm.errors import FedBMError
from fedbm.experiments.trials import Standing
from fedbm.runs.config import Config, make_config, method_values
from fedbm.runs.reader import RunView, read_run
from fedbm.runs.record import read_record
from fedbm.runs.timing_log import read_portions, speed

LEAST_ROUNDS = 2  # measured, before they stand for others: the first has the start-up in it

Rates = Mapping[tuple[Any, ...], float]


@dataclass(frozen=True)
class Estimate:
    each: Mapping[Path, float]  # seconds of the clock by run, of those that something is known of
    unknown: int
    overlap: float
    device: str

    @property
    def seconds(self) -> float:
        return sum(self.each.values())


def rates(out: Path, records: Path, device: str) -> Rates:
    """Median seconds a round of every kind of run in *out* and *records* that was computed on *device*."""
    return rates_of(_readable(out, records), device)


def rates_of(runs: Iterable[RunView], device: str) -> Rates:
    """Median seconds a round of every kind of these runs that was computed on *device*; an id counts once.

    Not the mean: a run that shared its device with more others than the rest would count for them all.
    """
    found: dict[tuple[Any, ...], list[float]] = {}
    seen: set[str] = set()
    for run in runs:
        rounds = run.planned if run.finished else len(run.rounds)
        if run.id not in seen and (run.environment or {}).get("device") == device and rounds >= LEAST_ROUNDS:
            with suppress(FedBMError):  # of a method or with settings that this version does not know
                found.setdefault(kind_of(make_config(_settings(run))), []).append(_seconds_a_round(run))
            seen.add(run.id)
    return {kind: median(values) for kind, values in found.items()}


def _readable(out: Path, records: Path) -> Iterator[RunView]:
    for path in sorted(out.glob("*/config.toml")):
        with suppress(FedBMError):  # said where runs are listed; an estimate can do without
            yield read_run(path.parent)
    for path in sorted(records.glob("runs/*.json")):
        with suppress(FedBMError):
            yield read_record(path)


def estimate(standings: Sequence[Standing], out: Path, records: Path, device: str, at_once: int) -> Estimate:
    """For the runs that are neither finished nor absent. *at_once*: runs side by side, where no portion tells."""
    measured = rates(out, records, device)
    left = list({s.folder: s for s in standings if s.state not in ("finished", "absent")}.values())  # each run once
    overlap = min(
        speed(read_portions(out), device) or float(at_once), float(max(1, len(left)))
    )  # none waits for itself
    each = {
        standing.folder: seconds / overlap
        for standing in left
        if standing.folder is not None and (seconds := _left(standing, measured, device)) is not None
    }
    return Estimate(each, len(left) - len(each), overlap, device)


def rounds_left(folder: Path, config: Config) -> int:
    """What a run has yet to play: all that its checkpoint has not behind it, also where a line tells of them."""
    return config.train.rounds - rounds_behind(folder)


def _left(standing: Standing, measured: Rates, device: str) -> float | None:
    """By the pace of the run itself where it was played on *device*, else by that of runs like it."""
    assert standing.config is not None
    assert standing.folder is not None
    config = standing.config
    rate = None
    if standing.state != "not run" and (standing.folder / "config.toml").exists():
        run = read_run(standing.folder)
        here = (run.environment or {}).get("device") == device
        rate = _seconds_a_round(run) if here and len(run.rounds) >= LEAST_ROUNDS else None
    if rate is None:
        rate = measured.get(kind_of(config))
    return None if rate is None else rate * rounds_left(standing.folder, config)


def _settings(run: RunView) -> dict[str, Mapping[str, Any]]:
    return {name: run.config[name] for name in ("data", "model", "method", "train") if name in run.config}


def kind_of(config: Config) -> tuple[Any, ...]:
    data, model, train = config.data, config.model, config.train
    options = ((key, bool(v) if isinstance(v, float) else v) for key, v in method_values(config.method).items())
    return (
        *(Path(data.name).stem, data.size, data.channels, data.clients),
        *(model.stem, model.width, model.norm),
        *(train.epochs, train.batch, train.participation, train.optimizer, train.evaluate_every, train.precision),
        json.dumps(dict(options), sort_keys=True),
    )


def _seconds_a_round(run: RunView) -> float:
    """Without the first round of the run, unless there is no other; of a finished run, over all."""
    if run.summary is not None:
        return float(run.summary["seconds"]) / run.planned
    counted = [float(record["seconds"]["total"]) for record in run.rounds[1:] or run.rounds]
    return sum(counted) / len(counted)
