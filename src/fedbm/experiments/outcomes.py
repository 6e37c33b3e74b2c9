"""Read the outcome of an experiment: the finished runs of every cell, and the reason for each missing run.

results/<experiment>.json lists the trials; results/runs/<id>.json are the records of finished runs. Reports are made
from these small files alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from fedbm.engine.round_record import Score
from fedbm.engine.run_folder import read_rounds
from fedbm.errors import FedBMError, prefix_errors
from fedbm.experiments.spec import (
    Experiment,
    ExperimentInfo,
    Seed,
    Settings,
    cells,
    find_experiment,
    paper_experiments,
    shipped_experiments,
)
from fedbm.experiments.trials import DONE, PlannedTrial, Trial, finished_run, trials
from fedbm.runs.failure import failure_of
from fedbm.runs.run_record import SCORES, read_record
from fedbm.utils.io import read_json, read_object
from fedbm.utils.json_records import Keys, Length, decode

FORMAT = 2


@dataclass(frozen=True)
class _TrialRecord:
    row: str
    cell: Settings
    seed: Seed
    status: str
    reason: str
    run: str | None
    id: str | None
    last: Annotated[Mapping[str, Score], Keys(dict.fromkeys(SCORES, Score))] | None = None


@dataclass(frozen=True, kw_only=True)
class _Record(ExperimentInfo):
    experiment: str
    rows: Annotated[tuple[str, ...], Length(least=1)]
    trials: tuple[_TrialRecord, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome(ExperimentInfo):
    """An experiment with its results, run or read from its record."""

    name: str
    rows: tuple[str, ...]
    results: tuple[Trial, ...]

    @property
    def command(self) -> str:
        """The command that runs the experiment."""
        if self.name not in shipped_experiments():
            return f"fedbm sweep {self.name}.toml"
        return f"fedbm reproduce {self.name}" + " --data-dir DIR" * (self.shared.get("data") != "digits")

    @property
    def withheld(self) -> str:
        """Why no score of this experiment may be shown yet; "" if all may be shown."""
        if self.analysis is None or not self.confirmatory:
            return ""
        planned = len(cells(self.axes)) * len(self.rows) * len(self.analysis.seeds)
        there = [r for r in self.results if r.seed in self.analysis.seeds]
        done = len({r.key for r in there if r.state in ("finished", "withheld") or r.last is not None})
        if done == planned:
            return ""
        return f"{done} of {planned} runs of {self.name} are on record; scores are withheld until all are there"

    def cell(self, row: str, at: Mapping[str, Any]) -> list[Trial]:
        return [result for result in self.results if result.row == row and result.at == at]


def hide_withheld(outcome: Outcome, elsewhere: Mapping[str, str] | None = None) -> Outcome:
    """Return *outcome* without withheld runs; each is missing, with the reason.

    *elsewhere* has the runs that other experiments withhold, as run id → reason.
    """
    results, own = [], outcome.withheld
    for result in outcome.results:
        why = own or (elsewhere or {}).get(result.id, "")
        if why and (result.run is not None or result.last is not None):
            result = replace(result, state="withheld", why=why, run=None, last=None)
        results.append(result)
    return replace(outcome, results=tuple(results))


def outcome_of(experiment: Experiment, states: Sequence[PlannedTrial]) -> Outcome:
    """Read an experiment's outcome from run folders and records."""
    plan = experiment.analysis
    results = (replace(s, run=finished_run(s), last=_last_scores(s) if plan else None) for s in states)
    return with_results(experiment, results)


def with_results(experiment: Experiment, results: Iterable[Trial]) -> Outcome:
    """Return an experiment with these results."""
    return Outcome(
        **experiment.info(),
        name=experiment.name,
        rows=tuple(experiment.rows),
        results=tuple(replace(result, state="finished") if result.state in DONE else result for result in results),
    )


def _last_scores(trial: PlannedTrial) -> dict[str, float] | None:
    """Return the last averaged scores of a run that diverged, zeros if there are none.

    Return None for every other run: a lost machine or a full memory shows nothing about the method.
    """
    failure = failure_of(trial.folder) if trial.state == "failed" and trial.folder else None
    if failure is None or trial.folder is None or not failure.diverged:
        return None
    rounds = read_rounds(trial.folder / "rounds.jsonl")
    found = [record.averaged.test for record in rounds if record.averaged]
    return {name: (found[-1][name] or 0.0) if found else 0.0 for name in SCORES}


def read_outcomes(folder: Path) -> list[Outcome]:
    """Read every experiment in a folder of records, shipped experiments first and in their order."""
    order = {name: place for place, name in enumerate(shipped_experiments())}
    found = sorted(folder.glob("*.json"), key=lambda path: (order.get(path.stem, len(order)), path.stem))
    if not found:
        raise FedBMError(f"{folder} has no records of experiments; 'fedbm reproduce' and 'fedbm sweep' write them")
    return [read_outcome(path) for path in found]


def _withheld_runs(folder: Path) -> dict[str, str]:
    """Return run id → why for the runs of incomplete confirmatory experiments on record in *folder*."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.json")):
        value = read_json(path)
        if isinstance(value, dict) and "analysis" in value:
            outcome = read_outcome(path, with_runs=False)
            found |= {result.id: outcome.withheld for result in outcome.results if outcome.withheld and result.id}
    return found


def read_outcome(path: Path, with_runs: bool = True) -> Outcome:
    """Read an experiment's record and those of its runs, without runs that an experiment in that folder withholds.

    Without *with_runs*, only the trials are read.
    """
    record = decode(_Record, read_object(path, FORMAT), path)
    with prefix_errors(str(path)):
        record.check_references(record.rows)
    results, there = [], cells(record.axes)
    for place, t in enumerate(record.trials):
        if t.row not in record.rows or t.cell not in there:
            raise FedBMError(f"{path}: trials[{place}] has a row or cell that the experiment does not have")
        run = read_record(path.parent / "runs" / f"{t.run}.json") if t.run and with_runs else None
        results.append(Trial(t.row, t.cell, t.seed, t.status, t.reason, run, t.id or "", t.last))
    outcome = Outcome(**record.info(), name=record.experiment, rows=record.rows, results=tuple(results))
    return hide_withheld(outcome, _withheld_runs(path.parent)) if with_runs else outcome


def list_unrecorded(outcomes: Sequence[Outcome], elsewhere: Collection[str] = ()) -> list[Outcome]:
    """Return the shipped experiments that are neither among *outcomes* nor *elsewhere*, without a run.

    Return [] if none of the paper's is among *outcomes*.
    """
    recorded = {outcome.name for outcome in outcomes}
    if not recorded & set(paper_experiments()):
        return []
    missing = [find_experiment(name) for name in shipped_experiments() if name not in {*recorded, *elsewhere}]
    return [with_results(experiment, trials(experiment, experiment.seeds, {})) for experiment in missing]
