"""An experiment with what came of it: every cell's runs, and for a run that is not there the reason.

results/<experiment>.json names the trials; results/runs/<id>.json are the records of their finished runs. Both are
small enough to be kept with the code, and a report needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbm.engine.run_folder import read_rounds
from fedbm.errors import FedBMError
from fedbm.experiments.analysis_plan import MOMENTS, AnalysisPlan
from fedbm.experiments.spec import Experiment, cells, find_experiment, shipped
from fedbm.experiments.trials import DONE, TrialState, finished_run, key_of
from fedbm.runs.failure import diverged
from fedbm.runs.reader import RunView, read_run
from fedbm.runs.record import SCORES, record_named
from fedbm.runs.seed_list import MAX_SEED
from fedbm.utils.io import read_json
from fedbm.utils.schema import SCALAR, TEXT, check, each, keys, number, or_null, whole
from fedbm.utils.text import format_value

FORMAT = 2
SETTINGS = keys({"beta?": number(0)}, SCALAR)
EXPERIMENT = keys(
    {
        **dict.fromkeys(("experiment", "title", "shows", "paper", "figure", "command", "lead"), TEXT),
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

TITLE = "FedBM: the paper’s tables and figures, measured again"


@dataclass(frozen=True)
class Result:
    """One trial: its run where it is finished, else its state and the reason in words."""

    row: str
    at: Mapping[str, Any]
    seed: int
    state: str
    why: str
    run: RunView | None
    id: str = ""  # of its run, finished or not; "" where that is not known
    last: Mapping[str, float] | None = None  # of a run that diverged: the scores with which it counts

    @property
    def key(self) -> tuple[str, str, int]:
        return key_of(self.row, self.at, self.seed)


@dataclass(frozen=True)
class Outcome:
    """What a report shows of one experiment."""

    name: str
    title: str
    shows: str
    paper: str
    figure: str
    lead: str  # the row its file names; "": none
    notes: tuple[str, ...]
    search: tuple[str, ...]
    shared: Mapping[str, Any]
    axes: Mapping[str, Sequence[Any]]
    rows: tuple[str, ...]
    command: str
    results: tuple[Result, ...]
    analysis: AnalysisPlan | None = None
    hidden: Mapping[str, str] = field(default_factory=dict)  # id → why, of runs whose scores other experiments withhold

    @property
    def withheld(self) -> str:
        """Why no score of this experiment may be shown yet; "" where all may."""
        if self.analysis is None or not self.analysis.confirmatory:
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
    """What runs an experiment: the paper's by its name, one's own by its file."""
    return f"fedbm reproduce {name} --data-dir DIR" if name in shipped() else f"fedbm sweep {name}.toml"


def title_of(outcomes: Sequence[Outcome]) -> str:
    """The paper's share a title; an experiment of one's own has its own."""
    own = [outcome.title for outcome in outcomes if outcome.name not in shipped() or len(outcomes) == 1]
    return "; ".join([TITLE] * (len(own) < len(outcomes)) + own)


def outcome_of(experiment: Experiment, states: Sequence[TrialState]) -> Outcome:
    """Read an experiment's outcome from run folders and records."""
    unread = unread_outcome(experiment, states)
    results = [
        replace(
            result,
            why=s.why or _words(s),
            run=finished_run(s) if s.state in DONE else None,
            last=_last_scores(s) if experiment.analysis else None,
        )
        for result, s in zip(unread.results, states, strict=True)
    ]
    return replace(unread, results=tuple(results))


def unread_outcome(experiment: Experiment, states: Sequence[TrialState]) -> Outcome:
    """Which runs there are, by their ids, and in which state; none is read."""
    return with_results(
        experiment,
        [
            Result(
                s.trial.row,
                s.trial.at,
                s.trial.seed,
                "finished" if s.state in DONE else s.state,
                s.why,
                None,
                id=s.folder.name if s.folder else "",
            )
            for s in states
        ],
    )


def with_results(experiment: Experiment, results: Sequence[Result]) -> Outcome:
    return Outcome(
        name=experiment.name,
        title=experiment.title,
        shows=experiment.shows,
        paper=experiment.paper,
        figure=experiment.figure,
        lead=experiment.lead,
        notes=experiment.notes,
        search=experiment.search,
        shared=experiment.shared,
        axes=experiment.axes,
        rows=tuple(row.name for row in experiment.rows),
        command=command_of(experiment.name),
        results=tuple(results),
        analysis=experiment.analysis,
    )


def _last_scores(trial: TrialState) -> dict[str, float] | None:
    """Return the last evaluated scores of the averaged model of a run that diverged, zeros if there are none.

    None for every other run: a machine or a full memory that stopped it says nothing about the method.
    """
    if trial.state != "failed" or trial.folder is None or not diverged(trial.why):
        return None
    rounds = read_rounds(trial.folder / "rounds.jsonl")
    found = [record.averaged.test for record in rounds if record.averaged]
    return {name: (found[-1][name] or 0.0) if found else 0.0 for name in SCORES}


def _words(trial: TrialState) -> str:
    if trial.state == "unfinished" and trial.folder and (trial.folder / "config.toml").exists():
        run = read_run(trial.folder)
        return f"{len(run.rounds)} of {run.planned} rounds done"
    return ""


def read_outcome(path: Path, read: Callable[[Path], RunView | None] = record_named) -> Outcome:
    """Read an experiment's record, and which of its runs other experiments in that folder withhold."""
    return replace(_read_outcome(path, read), hidden=_hidden_runs(path.parent))


def _hidden_runs(folder: Path) -> dict[str, str]:
    """Return why, by id, for the runs of confirmatory experiments in *folder* that are not complete."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.json")):
        value = read_json(path)
        if isinstance(value, dict) and _analysis(value):
            outcome = _read_outcome(path, lambda record: None)
            found |= {result.id: outcome.withheld for result in outcome.results if outcome.withheld and result.id}
    return found


def _read_outcome(path: Path, read: Callable[[Path], RunView | None]) -> Outcome:
    value = read_json(path)
    if not isinstance(value, dict) or value.get("format") != FORMAT or "trials" not in value:
        raise FedBMError(
            f"{path} is not a record that this FedBM reads; 'fedbm reproduce' and 'fedbm sweep' write records"
        )
    check(value, EXPERIMENT, path)
    if unknown := _unknown(value):
        raise FedBMError(f"{path}: {unknown}")
    runs = path.parent / "runs"
    return Outcome(
        name=value["experiment"],
        **{key: value[key] for key in ("title", "shows", "paper", "figure", "shared", "axes", "command")},
        lead=value["lead"],
        notes=tuple(value["notes"]),
        search=tuple(value["search"]),
        rows=tuple(value["rows"]),
        results=tuple(
            Result(
                t["row"],
                t["cell"],
                t["seed"],
                t["status"],
                t["reason"],
                read(runs / f"{t['run']}.json") if t["run"] else None,
                t["id"] or "",
                t.get("last"),
            )
            for t in value["trials"]
        ),
        analysis=_analysis(value),
    )


def _analysis(value: Mapping[str, Any]) -> AnalysisPlan | None:
    """Return the plan that the record or, for a shipped experiment, its file states.

    A record may be older than the plan. Its scores must be withheld all the same.
    """
    if plan := value.get("analysis"):
        contrasts = tuple((first, second) for first, second in plan["contrasts"])
        return AnalysisPlan(contrasts, plan["endpoint"], bool(plan["confirmatory"]), tuple(plan["seeds"]))
    name = value.get("experiment")
    return find_experiment(name).analysis if name in shipped() else None


def _unknown(value: Mapping[str, Any]) -> str:
    """What is named in an experiment's file and is not in it: an axis, a row, a cell; "": nothing."""
    rows, axes = value["rows"], value["axes"]
    for key, names, known in (
        ("lead", [value["lead"] or rows[0]], rows),
        ("figure", [value["figure"]] if value["figure"] else [], axes),
        ("search", value["search"], axes),
        ("endpoint", [value["analysis"]["endpoint"]] if "analysis" in value else [], MOMENTS),
        ("contrasts", [name for pair in value.get("analysis", {}).get("contrasts", []) for name in pair], rows),
    ):
        if (other := next((name for name in names if name not in known), None)) is not None:
            return f"{key} names {format_value(other)}, which is none of {', '.join(map(str, known))}"
    there = list(cells(axes))
    for place, trial in enumerate(value["trials"]):
        if trial["row"] not in rows or trial["cell"] not in there:
            return f"trials[{place}] is of a row or cell that the experiment does not have"
    return ""


def read_outcomes(folder: Path) -> list[Outcome]:
    """Every experiment in a folder of records, the paper's in their own order."""
    order = {name: place for place, name in enumerate(shipped())}
    found = sorted(folder.glob("*.json"), key=lambda path: (order.get(path.stem, len(order)), path.stem))
    if not found:
        raise FedBMError(f"{folder} holds no records of experiments; 'fedbm reproduce' and 'fedbm sweep' write them")
    return [read_outcome(path) for path in found]
