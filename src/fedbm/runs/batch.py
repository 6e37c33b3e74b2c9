"""Run several runs in parallel, within a budget. A run that fails does not stop the others."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedbm.config.options import BY_BETA
from fedbm.data.dataset import Dataset
from fedbm.engine.round_loop import Event
from fedbm.engine.run_folder import RunFolder
from fedbm.errors import FedBMError
from fedbm.runs.callbacks import Callback, Notifier, RunInfo
from fedbm.runs.custom_method import for_processes
from fedbm.runs.failure import Failure, keep_failure
from fedbm.runs.plan import Plan, make_plan
from fedbm.runs.progress_display import show_runs
from fedbm.runs.run_config import Config, to_values
from fedbm.runs.run_view import check_resumable
from fedbm.runs.runner import run, run_path
from fedbm.runs.scheduler import run_all

SPENT = "The budget is spent. Run the same command again to continue from the last checkpoints."
TOO_SHORT = "The budget ended before any round was finished, and nothing was saved. Set a longer budget."
MAX_RESERVE = 0.1  # share of the budget kept for finishing the current round


class Budget:
    """Time that several runs share, in seconds; None means no limit.

    Near the end of the budget each run finishes its current round and writes a checkpoint. A run stops when its
    next round would end too late if it took as long as the latest. At most 10 % of the budget is reserved for that.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.rounds = 0  # finished within the budget
        self._began = time.monotonic()
        self._latest: dict[Hashable, float] = {}  # seconds of each run's latest round
        self._stopped = False

    def stop(self) -> None:
        """Let every run stop after its current round."""
        self._stopped = True

    def add_round(self, run: Hashable, seconds: float) -> None:
        """Record how many seconds a finished round of this run took."""
        self.rounds += 1
        self._latest[run] = seconds

    def is_last_round(self, run: Hashable) -> bool:
        """Return whether the run must stop after its current round."""
        if self.seconds is None or self._stopped:
            return self._stopped
        elapsed = time.monotonic() - self._began
        return elapsed > self.seconds - min(self._latest.get(run, 0.0), MAX_RESERVE * self.seconds)

    def remaining(self) -> float | None:
        """Return the remaining seconds, or None if there is no limit."""
        return None if self.seconds is None else self.seconds + self._began - time.monotonic()


def parse_duration(text: str) -> float:
    """Return the seconds in a text such as "25m".

    >>> parse_duration("25m"), parse_duration("1h30m"), parse_duration("90s"), parse_duration("45")
    (1500.0, 5400.0, 90.0, 45.0)
    """
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip())
    if not found or not any(found.groups()):
        raise FedBMError(f'a budget must be a time such as 25m, 90s or 1h30m, not "{text}"')
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(3600 * hours + 60 * minutes + seconds)


@dataclass(frozen=True)
class BatchRun:
    """One run of a batch."""

    folder: Path
    title: str
    config: Config
    plan: Plan | None = None  # set if only this process can compute the run
    note: str = ""  # why only this process can compute it
    notes: tuple[str, ...] = ()  # about the data

    @property
    def is_finished(self) -> bool:
        return RunFolder(self.folder).done


@dataclass(frozen=True)
class BatchResult:
    failures: tuple[str, ...] = ()  # a sentence for each run that failed
    stopped: str = ""  # why other runs are not finished; "" if they all are


OnNews = Callable[[BatchRun, Event | Failure], None]  # called with each event of a run, or why the run failed


def plan_jobs(
    configs: Sequence[Config], dataset: Dataset | None = None, progress: Callable[[int, int], None] | None = None
) -> list[BatchRun]:
    """Plan every run; equal configurations become one job. Raise FedBMError if one cannot be planned or resumed.

    If a *dataset* was loaded already, its runs are computed in this process. *progress* is called with (images
    decoded, images in all).
    """
    jobs: dict[Path, BatchRun] = {}
    for config in configs:
        plan = make_plan(config, dataset=dataset, progress=progress)
        config, only_here, why = plan.config, dataset is not None, ""
        if not only_here:
            try:
                config = dataclasses.replace(config, method=for_processes(config.method))
            except FedBMError as reason:
                only_here, why = True, f"these runs are computed one after the other, because {reason}"
        folder, own = run_path(plan), plan if only_here else None
        jobs[folder] = BatchRun(folder, title_of(config), config, own, why, plan.notes)
    for folder in jobs:
        check_resumable(folder)
    return list(jobs.values())


def title_of(config: Config) -> str:
    """Return a run's short title, such as "fedbm, β 0.05, seed 0"."""
    beta = f"β {config.data.beta:g}, " if config.data.partition in BY_BETA else ""
    return f"{config.method.name}, {beta}seed {config.train.seed}"


def run_batch(
    jobs: Sequence[BatchRun], on_news: OnNews = lambda job, news: None, budget: Budget | None = None
) -> BatchResult:
    """Run every job that is not finished. A run that fails does not stop the others.

    The reason of a failure is written to the run's folder, and removed when the run resumes.
    """
    pending = [job for job in jobs if not job.is_finished]
    budget = budget or Budget(None)
    failures: dict[Path, str] = {}
    with closing(_events(pending, budget)) as events:  # closing it stops the runs
        for job, news in events:
            if isinstance(news, Failure):
                keep_failure(job.folder, news)
                failures[job.folder] = f"{job.title}: {news.reason}"
            elif news.record is not None:
                budget.add_round(job.folder, news.record.seconds["total"])
            on_news(job, news)
    is_complete = all(job.is_finished or job.folder in failures for job in pending)
    return BatchResult(tuple(failures.values()), "" if is_complete else SPENT if budget.rounds else TOO_SHORT)


def run_jobs(
    jobs: Sequence[BatchRun],
    console: Console,
    budget: Budget | None = None,
    on_news: OnNews | None = None,
    on_event: Callable[[str, Event], None] | None = None,
    callbacks: Sequence[Callback] = (),
) -> BatchResult:
    """Run the jobs that are not finished, show their progress, and call *callbacks* in this process.

    If a callback fails, all runs stop after their current round, and its FedBMError is raised. However the runs end,
    on_end is called for each that has begun.
    """
    budget, notifiers, failures = budget or Budget(None), dict[Path, Notifier](), list[FedBMError]()
    pending = {job.folder: (job.title, job.config.train.rounds) for job in jobs if not job.is_finished}
    try:
        with show_runs(console, pending) as show:

            def report(job: BatchRun, news: Event | Failure) -> None:
                show(job.folder, news)
                if on_news is not None:
                    on_news(job, news)
                if isinstance(news, Failure):
                    return
                if on_event is not None:
                    on_event(job.title, news)
                info = RunInfo(job.folder.name, job.folder, to_values(job.config))
                try:
                    notifiers.setdefault(job.folder, Notifier(callbacks, info))(news)
                except FedBMError as error:
                    failures.append(error)
                    budget.stop()

            result = run_batch(jobs, report, budget)
    finally:
        for folder, notifier in notifiers.items():
            try:
                notifier.end(RunFolder(folder).done)
            except FedBMError as error:
                failures.append(error)
    if failures:
        raise failures[0]
    return result


def _events(jobs: Sequence[BatchRun], budget: Budget) -> Generator[tuple[BatchRun, Event | Failure], None, None]:
    """Yield the events of the jobs in parallel processes, then of the jobs that only this process can compute."""
    in_processes = [job for job in jobs if job.plan is None]
    if in_processes:
        events = run_all(
            [job.config for job in in_processes],
            ids=[job.folder.name for job in in_processes],
            is_last_round=lambda number: budget.is_last_round(in_processes[number].folder),
            remaining=budget.remaining,
        )
        with closing(events):
            for number, news in events:
                yield in_processes[number], news
    for job in jobs:
        if job.plan is None or budget.is_last_round(job.folder):
            continue
        if job.note:
            yield job, Event(0, "train", note=job.note)
        try:
            with closing(run(job.plan)) as rounds:
                for event in rounds:
                    yield job, event
                    if event.record is not None and not event.last and budget.is_last_round(job.folder):
                        return  # closing it writes a checkpoint
        except Exception as error:
            yield job, Failure.of(error)
