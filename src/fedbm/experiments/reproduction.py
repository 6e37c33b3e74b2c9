"""Run experiments of the paper, or a grid of your own, within a budget, and write their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from fedbm.config.options import BY_BETA
from fedbm.engine.checkpoint import rounds_behind
from fedbm.engine.device import find_device
from fedbm.engine.round_loop import Event
from fedbm.errors import FedBMError, join_words
from fedbm.experiments.outcomes import Outcome, outcome_of, read_outcome, with_results
from fedbm.experiments.record_store import kept_results, write_outcome
from fedbm.experiments.spec import Experiment, find_experiment, paper_experiments, read_experiment
from fedbm.experiments.trials import DONE, PlannedTrial, choose_trials, find_state, finished_run, locate, trials
from fedbm.runs.batch import BatchRun, find_deadline, run_jobs
from fedbm.runs.callbacks import Callback, check_callbacks
from fedbm.runs.failure import Failure
from fedbm.runs.progress_display import print_notes, progress_console, show_decoding
from fedbm.runs.run_config import find_key, make_config, to_sections
from fedbm.runs.run_record import record_of
from fedbm.runs.run_view import METRICS, RunView, check_resumable, describe_run, make_frame, mean_scores
from fedbm.runs.seed_list import parse_seeds
from fedbm.utils.io import make_folder
from fedbm.utils.text import make_html

SPENT = (
    "The budget is spent. Run the same command again to continue from the last checkpoints, with a longer budget if no "
    "round was finished."
)


@dataclass(frozen=True)
class ExperimentPlan:
    """Experiments with the folder of every run, and the runs that were chosen among them."""

    experiments: Mapping[str, Experiment]
    trials: tuple[PlannedTrial, ...]
    chosen: tuple[PlannedTrial, ...]
    records: Path

    def states(self) -> list[PlannedTrial]:
        """Return the present state of every chosen run, once for cells that share a run."""
        found = [find_state(trial, self.records) for trial in self.chosen]
        return list({s.folder or repr(s.config): s for s in found}.values())

    def states_of(self, name: str) -> list[PlannedTrial]:
        """Return the present state of every run of an experiment."""
        return [find_state(trial, self.records) for trial in self.trials if trial.experiment == name]

    def remaining_rounds(self) -> list[int]:
        """Return the remaining rounds of every chosen run that is not done and can be computed here."""
        runs = [(s.folder, s.config.train.rounds) for s in self.states() if s.state not in DONE]
        return [rounds - rounds_behind(folder) for folder, rounds in runs if folder is not None]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON data: every chosen run with its state, and the runs and rounds that remain."""
        rounds = self.remaining_rounds()
        return {
            "runs": [
                {
                    "experiment": s.experiment,
                    "row": s.row,
                    "at": dict(s.at),
                    "seed": s.seed,
                    "state": s.state,
                    "reason": s.why or None,
                    "path": s.folder and str(s.folder),
                }
                for s in self.states()
            ],
            "remaining": len(rounds),
            "rounds": sum(rounds),
            "notes": self.notes(),
            "refusals": self.refusals(),
        }

    def notes(self) -> list[str]:
        """Return a sentence for each data set with an axis β and a partition that does not use β."""
        found = [p.config.data for p in self.chosen if p.folder is not None and "beta" in p.at]
        names = dict.fromkeys(data.name for data in found if data.partition not in BY_BETA)
        return [f"the partition of {name} does not depend on β, so its cells share their runs" for name in names]

    def refusals(self) -> list[str]:
        """Return a sentence for each experiment with a record that is damaged or would lose finished runs."""
        sentences = []
        for name, experiment in self.experiments.items():
            try:
                kept_results(with_results(experiment, self.states_of(name)), self.records)
            except FedBMError as error:
                sentences.append(str(error))
        return sentences

    def check(self) -> None:
        """Raise FedBMError if a record could not be read or written after the runs."""
        for sentence in self.refusals():
            raise FedBMError(sentence)
        for state in (find_state(trial, self.records) for trial in self.trials):
            run = finished_run(state)
            if run is not None and state.state == "finished":
                record_of(run)
            elif run is None and state.folder is not None:
                check_resumable(state.folder)

    def jobs(self) -> list[BatchRun]:
        """Return the chosen runs that have no record yet."""
        runs = [(s.folder, s) for s in self.states() if s.state != "on record"]
        return [BatchRun(folder, s.words, s.config) for folder, s in runs if folder is not None]

    def write_records(self, folder: Path | None = None) -> list[Path]:
        """Write the records of every experiment and return their files.

        With *folder*, write only those of experiments that have the run in this folder.
        """
        names = dict.fromkeys(trial.experiment for trial in self.trials if folder in (None, trial.folder))
        outcomes = [outcome_of(self.experiments[name], self.states_of(name)) for name in names]
        return [write_outcome(outcome, self.records) for outcome in outcomes]


@dataclass(frozen=True, repr=False)
class Reproduction:
    """The outcome of experiments.

    A notebook shows it as a table of means over seeds; `to_pandas()` returns one row per run of every cell. Scores of
    a confirmatory experiment are withheld until all its runs are on record.

    Attributes:
        outcomes: the outcome of each experiment.
        failures: a sentence for each run that failed.
        stopped: why runs remain, if the budget ended.

    Example:
        >>> import fedbm
        >>> fedbm.reproduce("modules", "data", budget="25m").to_pandas()  # doctest: +SKIP
    """

    outcomes: tuple[Outcome, ...]
    failures: tuple[str, ...] = ()
    stopped: str = ""

    @property
    def runs(self) -> tuple[RunView, ...]:
        """The finished runs, each once."""
        found = [result.run for outcome in self.outcomes for result in outcome.results if result.run is not None]
        return tuple({run.id: run for run in found}.values())

    def __repr__(self) -> str:
        names = join_words([outcome.name for outcome in self.outcomes], "and")
        results = [result for outcome in self.outcomes for result in outcome.results]
        done = sum(result.run is not None for result in results)
        return f"Reproduction({names}: {done} of {len(results)} results)"

    def to_pandas(self) -> Any:
        """Return a data frame with one row per run of every cell; raise FedBMError if pandas is not installed."""
        return make_frame(
            [
                {
                    "experiment": outcome.name,
                    "row": result.row,
                    **result.at,
                    "seed": result.seed,
                    "status": result.state,
                    "reason": result.why,
                    **({key: describe_run(result.run)[key] for key in ("run", *METRICS)} if result.run else {}),
                }
                for outcome in self.outcomes
                for result in outcome.results
            ]
        )

    def _repr_html_(self) -> str:
        notes = [*self.failures, *([self.stopped] if self.stopped else [])]
        return "".join(map(_html, self.outcomes)) + "".join(f"<p>{escape(note)}</p>" for note in notes)


def reproduce(
    name: str | Path | Sequence[str],
    data_dir: str | Path | None = None,
    *,
    seeds: int | str | Iterable[int] | None = None,
    budget: float | str | None = None,
    only: Sequence[str] = (),
    records: str | Path = "results",
    on_event: Callable[[str, Event], None] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    **engine: Any,
) -> Reproduction:
    """Run experiments of the paper, or a grid of your own, and write their records.

    Runs that are finished or on record are not computed again; the same call continues after an interruption.

    Args:
        name: an experiment of the paper, several of them, or a TOML file of your own.
        data_dir: the folder in which data sets are found by name.
        seeds: how many seeds, from 0; or which, such as [0, 1, 5] or "3-12"; by default the experiment's own.
        budget: stop after this time, in seconds or as text such as "25m"; by default run to the end.
        only: conditions such as "FedAvg,FedBM" (rows) or "beta=0.1" that choose runs.
        records: the folder for records.
        on_event: called with a run's title and each of its events.
        callbacks: objects of subclasses of `fedbm.Callback`, called in this process for the rounds of all runs.
        progress: whether to print notes and progress. Default: in a terminal or a notebook only.
        engine: keys of `[engine]`, such as device="cuda" or out="runs".

    Returns:
        The outcome of every experiment.

    Raises:
        FedBMError: if a setting is wrong, or if no run can be computed here.

    Example:
        >>> import fedbm
        >>> found = fedbm.reproduce("modules", "data", budget="25m", only=["beta=0.1"])  # doctest: +SKIP
    """
    if isinstance(name, Path) or (isinstance(name, str) and name.endswith(".toml")):
        experiments = [read_experiment(Path(name))]
    else:
        experiments = find_experiments([name] if isinstance(name, str) else name)
    if not experiments:
        raise FedBMError("no experiment is given: name an experiment or a file")
    for flag in engine:
        if find_key(flag).section != "engine":
            raise FedBMError(f"{flag} is not a key of [engine], and the experiment decides it. Remove {flag}.")
    deadline = find_deadline(budget)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in engine.items()}
    chosen, console = None if seeds is None else parse_seeds(seeds), progress_console(progress)
    check_callbacks(callbacks)
    plan = plan_experiments(experiments, chosen, engine_settings(settings, data_dir), only, Path(records), console)
    return run_experiments(plan, console, deadline, on_event, callbacks)


def find_experiments(names: Iterable[str]) -> list[Experiment]:
    """Return the shipped experiments of these names; ["all"] means every one of the paper."""
    names = list(dict.fromkeys(names))
    return [find_experiment(name) for name in (paper_experiments() if names == ["all"] else names)]


def engine_settings(settings: Mapping[str, Any], data_dir: str | Path | None) -> dict[str, Any]:
    """Return the engine's settings with the folder of data sets; raise FedBMError if there is no such folder."""
    if not data_dir:
        return dict(settings)
    if not Path(data_dir).expanduser().is_dir():
        raise FedBMError(f"data_dir must be a folder that contains data sets, but {data_dir} is not a folder")
    return {**settings, "data_dir": str(data_dir)}


def plan_experiments(
    experiments: Sequence[Experiment],
    seeds: Sequence[int] | None,
    engine: Mapping[str, Any],
    only: Sequence[str],
    records: Path,
    console: Console,
) -> ExperimentPlan:
    """Find the folder of every run, and print notes. Loads the data, because a run's id depends on them.

    *seeds* are by default those of each experiment. *engine* has settings of `[engine]`, and *only* has conditions that
    choose runs.
    """
    find_device(make_config(to_sections(engine)).engine.device)
    planned = [trial for e in experiments for trial in trials(e, e.chosen_seeds(seeds), engine)]
    wanted = {(trial.experiment, trial.key) for trial in choose_trials(only, planned)}
    if not wanted:
        raise FedBMError(f"no run matches only = {' and '.join(only)}")
    with show_decoding(console) as progress:
        located = tuple(locate(trial, progress) for trial in planned)
    chosen = tuple(trial for trial in located if (trial.experiment, trial.key) in wanted)
    plan = ExperimentPlan({e.name: e for e in experiments}, located, chosen, records)
    print_notes(console, plan.notes())
    return plan


def run_experiments(
    plan: ExperimentPlan,
    console: Console,
    deadline: float | None,
    on_event: Callable[[str, Event], None] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Reproduction:
    """Run what is not finished. Each finished run gets its record when the next news of any run arrives.

    Records of finished runs are also written after Ctrl-C or a failed callback. Raise FedBMError if a record cannot be
    written, or if no chosen run can be computed here.
    """
    plan.check()  # before hours of computing
    jobs = plan.jobs()
    make_folder(plan.records)
    ending: list[Path] = []  # folders of runs whose last round is done

    def record_finished(job: BatchRun, news: Event | Failure) -> None:
        for folder in [folder for folder in ending if (folder / "summary.json").exists()]:
            ending.remove(folder)
            with suppress(FedBMError):  # at the end, all records are written again, and an error is reported
                plan.write_records(folder)
        if isinstance(news, Event) and news.last:
            ending.append(job.folder)

    def write_records() -> list[Path]:
        written = plan.write_records()
        for path in written:
            console.print(f"records: {path}")
        return written

    try:
        failures = run_jobs(jobs, console, deadline, record_finished, on_event, callbacks)
    except (FedBMError, KeyboardInterrupt):
        with suppress(FedBMError):  # what stopped the runs is reported
            write_records()
        raise
    written = write_records()
    is_complete = all(job.is_finished or job.folder in failures for job in jobs)
    stopped = "" if is_complete else SPENT
    if stopped:
        console.print(stopped)
    outcomes = tuple(map(read_outcome, written))
    if all(place.folder is None for place in plan.chosen):
        raise FedBMError(f"no run can be computed here: {plan.chosen[0].why}")
    return Reproduction(outcomes, tuple(failures.values()), stopped)


def _html(outcome: Outcome) -> str:
    rows = []
    for row, at in dict.fromkeys((result.row, tuple(result.at.items())) for result in outcome.results):
        results = outcome.cell(row, dict(at))
        runs = [result.run for result in results if result.run is not None]
        rows.append((row, *(value for _, value in at), f"{len(runs)} of {len(results)}", *mean_scores(runs)))
    heads = ("row", *outcome.axes, "seeds", *METRICS)
    return make_html(f"{outcome.title}: test scores in %, mean ± std over seeds", heads, rows)
