"""Read the outcome of an experiment: the finished runs of every cell, and the reason for each missing run.

results/<experiment>.json lists the trials; results/runs/<id>.json are the records of finished runs. Reports are made
from these small files alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbm.config.options import MAX_SEED
from fedbm.engine.run_folder import read_rounds
from fedbm.errors import FedBMError, join_words, prefix_errors
from fedbm.experiments.spec import (
    ENDPOINTS,
    AnalysisPlan,
    Experiment,
    cells,
    check_names,
    check_references,
    find_experiment,
    shipped_experiments,
)
from fedbm.experiments.trials import DONE, Trial, finished_run, key_of, trials
from fedbm.language.bundled import ENCODER
from fedbm.runs.failure import is_divergence
from fedbm.runs.run_record import SCORES, read_checked_record
from fedbm.runs.run_view import RunView, read_run
from fedbm.utils.io import read_json, read_object
from fedbm.utils.schema import SCALAR, TEXT, check, each, keys, number, or_null, whole

FORMAT = 2
TEXTS = ("title", "shows", "paper", "figure", "lead")  # keys that an experiment, its record and its outcome share
SETTINGS = keys({"beta?": number(0)}, SCALAR)
EXPERIMENT = keys(
    {
        **dict.fromkeys((*TEXTS, "experiment", "command"), TEXT),
        **dict.fromkeys(("notes", "search"), each(TEXT)),
        "shared": SETTINGS,
        "axes": keys({"beta?": each(number(0), least=1)}, each(SCALAR, least=1)),
        "rows": each(TEXT, least=1),
        "trials": each(
            keys(
                {
                    **dict.fromkeys(("row", "status", "reason"), TEXT),
                    "cell": SETTINGS,
                    "seed": whole(0, MAX_SEED),
                    **dict.fromkeys(("run", "id"), or_null(TEXT)),
                    "last?": keys(dict.fromkeys(SCORES, number(0, 1))),
                }
            )
        ),
        "analysis?": keys(
            {
                "contrasts": each(each(TEXT, 2), least=1),
                "endpoint": TEXT,
                "confirmatory": SCALAR,
                "seeds": each(whole(0, MAX_SEED), least=1),
            }
        ),
    }
)


@dataclass(frozen=True)
class Result:
    """One trial: its run if it is finished, else its state and the reason."""

    row: str
    at: Mapping[str, Any]
    seed: int
    state: str
    why: str
    run: RunView | None
    id: str = ""  # of its run, finished or not; "" if it is not known
    last: Mapping[str, float] | None = None  # the scores with which a diverged run counts

    @property
    def key(self) -> tuple[str, str, int]:
        return key_of(self.row, self.at, self.seed)


@dataclass(frozen=True)
class Outcome(Experiment):
    """An experiment with its results. A record has neither the settings of rows nor the seeds."""

    command: str = ""
    results: tuple[Result, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict)  # run id → why another experiment withholds its scores

    @property
    def withheld(self) -> str:
        """Why no score of this experiment may be shown yet; "" if all may be shown."""
        if self.analysis is None or not self.confirmatory:
            return ""
        planned = len(cells(self.axes)) * len(self.rows) * len(self.analysis.seeds)
        there = [r for r in self.results if r.seed in self.analysis.seeds]
        done = len({r.key for r in there if r.state == "finished" or r.last is not None})
        if done == planned:
            return ""
        return f"{done} of {planned} runs of {self.name} are on record; scores are withheld until all are there"

    def cell(self, row: str, at: Mapping[str, Any]) -> list[Result]:
        return [result for result in self.results if result.row == row and result.at == at]


def command_of(name: str) -> str:
    """Return the command that runs an experiment."""
    return f"fedbm reproduce {name} --data-dir DIR" if name in shipped_experiments() else f"fedbm sweep {name}.toml"


def outcome_of(experiment: Experiment, states: Sequence[Trial]) -> Outcome:
    """Read an experiment's outcome from run folders and records."""
    unread = unread_outcome(experiment, states)
    results = [
        replace(
            result,
            why=s.why or _progress(s),
            run=finished_run(s) if s.state in DONE else None,
            last=_last_scores(s) if experiment.analysis else None,
        )
        for result, s in zip(unread.results, states, strict=True)
    ]
    return replace(unread, results=tuple(results))


def unread_outcome(experiment: Experiment, states: Sequence[Trial]) -> Outcome:
    """Return the outcome with the ids and states of the runs, without reading them."""
    results = []
    for s in states:
        state, run_id = "finished" if s.state in DONE else s.state, s.folder.name if s.folder else ""
        results.append(Result(s.row, s.at, s.seed, state, s.why, None, run_id))
    return with_results(experiment, results)


def with_results(experiment: Experiment, results: Sequence[Result]) -> Outcome:
    """Return an experiment with these results."""
    return Outcome(**vars(experiment), command=command_of(experiment.name), results=tuple(results))


def _last_scores(trial: Trial) -> dict[str, float] | None:
    """Return the last averaged scores of a run that diverged, zeros if there are none.

    Return None for every other run: a lost machine or a full memory shows nothing about the method.
    """
    if trial.state != "failed" or trial.folder is None or not is_divergence(trial.why):
        return None
    rounds = read_rounds(trial.folder / "rounds.jsonl")
    found = [record.averaged.test for record in rounds if record.averaged]
    return {name: (found[-1][name] or 0.0) if found else 0.0 for name in SCORES}


def _progress(trial: Trial) -> str:
    if trial.state == "unfinished" and trial.folder and (trial.folder / "config.toml").exists():
        run = read_run(trial.folder)
        return f"{len(run.rounds)} of {run.planned} rounds done"
    return ""


def read_outcomes(folder: Path) -> list[Outcome]:
    """Read every experiment in a folder of records, shipped experiments first and in their order."""
    order = {name: place for place, name in enumerate(shipped_experiments())}
    found = sorted(folder.glob("*.json"), key=lambda path: (order.get(path.stem, len(order)), path.stem))
    if not found:
        raise FedBMError(f"{folder} has no records of experiments; 'fedbm reproduce' and 'fedbm sweep' write them")
    outcomes = [_read_outcome(path, read_checked_record) for path in found]
    hidden = _hidden_runs(folder)
    return [replace(outcome, hidden=hidden) for outcome in outcomes]


def read_outcome(path: Path, read: Callable[[Path], RunView | None] = read_checked_record) -> Outcome:
    """Read an experiment's record, and which of its runs other experiments in that folder withhold."""
    return replace(_read_outcome(path, read), hidden=_hidden_runs(path.parent))


def _hidden_runs(folder: Path) -> dict[str, str]:
    """Return run id → why for the runs of incomplete confirmatory experiments in *folder*."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.json")):
        value = read_json(path)
        if isinstance(value, dict) and _analysis(value):
            outcome = _read_outcome(path, lambda record: None)
            found |= {result.id: outcome.withheld for result in outcome.results if outcome.withheld and result.id}
    return found


def _read_outcome(path: Path, read: Callable[[Path], RunView | None]) -> Outcome:
    value = read_object(path, FORMAT)
    check(value, EXPERIMENT, path)
    _check_consistent(value, str(path))
    runs = path.parent / "runs"
    results = []
    for t in value["trials"]:
        run = read(runs / f"{t['run']}.json") if t["run"] else None
        where = (t["row"], t["cell"], t["seed"], t["status"], t["reason"])
        results.append(Result(*where, run, t["id"] or "", t.get("last")))
    return Outcome(
        name=value["experiment"],
        **{key: value[key] for key in (*TEXTS, "shared", "axes", "command")},
        notes=tuple(value["notes"]),
        search=tuple(value["search"]),
        rows={row: {} for row in value["rows"]},
        results=tuple(results),
        analysis=_analysis(value),
    )


def _analysis(value: Mapping[str, Any]) -> AnalysisPlan | None:
    """Return the plan in the record or, for a shipped experiment, in its file.

    A record may be older than the plan, but its scores must be withheld too.
    """
    if plan := value.get("analysis"):
        contrasts = tuple((first, second) for first, second in plan["contrasts"])
        return AnalysisPlan(contrasts, plan["endpoint"], bool(plan["confirmatory"]), tuple(plan["seeds"]))
    name = value.get("experiment")
    return find_experiment(name).analysis if name in shipped_experiments() else None


def _check_consistent(value: Mapping[str, Any], where: str) -> None:
    """Raise FedBMError if a record refers to a row, axis, cell or endpoint that does not exist."""
    rows, axes, plan = value["rows"], value["axes"], value.get("analysis", {"contrasts": [], "endpoint": "chosen"})
    with prefix_errors(where):
        check_references(value["lead"], plan["contrasts"], rows, value["figure"], value["search"], axes)
        check_names([plan["endpoint"]], list(ENDPOINTS), "an endpoint")
        there = cells(axes)
        for place, trial in enumerate(value["trials"]):
            if trial["row"] not in rows or trial["cell"] not in there:
                raise FedBMError(f"trials[{place}] has a row or cell that the experiment does not have")


# --- shipped experiments --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unrecorded:
    """A shipped experiment that has no record."""

    name: str
    needs: str  # "It needs the images of kvasir."
    sentence: str  # what it shows, how many runs it has, and what it needs
    command: str


def list_unrecorded(outcomes: Sequence[Outcome]) -> list[Unrecorded]:
    """Return the shipped experiments that are not among *outcomes*, if at least one is."""
    names, shipped = {outcome.name for outcome in outcomes}, shipped_experiments()
    return [_unrecorded(name) for name in shipped if name not in names] if names & set(shipped) else []


def trials_of(outcome: Outcome) -> list[Trial]:
    """Return the trials of a shipped experiment; [] for others, because records do not contain their settings."""
    if outcome.name not in shipped_experiments() or not outcome.results:
        return []
    return trials(find_experiment(outcome.name), sorted({result.seed for result in outcome.results}), {})


def _unrecorded(name: str) -> Unrecorded:
    experiment = find_experiment(name)
    configs = [trial.config for trial in trials(experiment, experiment.seeds, {})]
    data = join_words(dict.fromkeys(config.data.name for config in configs), "and")
    models = [name for name in dict.fromkeys(config.language.encoder for config in configs) if name != ENCODER]
    weights = f", and the weights of {join_words(models, 'and')}, which are not part of the package" if models else ""
    needs = f"It needs the images of {data}{weights}."
    runs = len(set(map(repr, configs)))  # equal settings are one run
    sentence = f"{experiment.title.rstrip('?')}: {experiment.shows}. Not run: {runs} runs. {needs}"
    return Unrecorded(name, needs, sentence, command_of(name))
