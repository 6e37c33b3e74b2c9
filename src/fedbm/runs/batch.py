"""Run several runs in parallel, within a budget. A run that fails does not stop the others."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedbm.config.options import BY_BETA
from fedbm.data.dataset import Dataset
from fedbm.engine.round_loop import Event
from fedbm.engine.run_folder import RunFolder
from fedbm.errors import FedBMError
from fedbm.runs.callbacks import Callback, Notifier
from fedbm.runs.custom_method import is_importable
from fedbm.runs.failure import Failure, keep_failure
from fedbm.runs.plan import Plan, make_plan
from fedbm.runs.progress_display import show_runs
from fedbm.runs.run_config import Config
from fedbm.runs.run_view import check_resumable
from fedbm.runs.runner import run, run_path
from fedbm.runs.scheduler import run_all, stop_in_time


def find_deadline(budget: float | str | None) -> float | None:
    """Return when a budget that begins now ends, as a time of time.time(); None if there is no budget."""
    seconds = parse_duration(budget) if isinstance(budget, str) else budget
    return None if seconds is None else time.time() + seconds


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
    notes: tuple[str, ...] = ()

    @property
    def is_finished(self) -> bool:
        return RunFolder(self.folder).done


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
        folder, method, notes = run_path(plan), plan.config.method, plan.notes
        if dataset is None and not is_importable(method):
            notes += (f"{method.name} has one run at a time. Import it from a file of its own to have several.",)
        own = plan if dataset is not None or not is_importable(method) else None
        beta = f"β {plan.config.data.beta:g}, " if plan.config.data.partition in BY_BETA else ""
        jobs[folder] = BatchRun(folder, f"{method.name}, {beta}seed {plan.config.train.seed}", plan.config, own, notes)
    for folder in jobs:
        check_resumable(folder)
    return list(jobs.values())


def run_jobs(
    jobs: Sequence[BatchRun],
    console: Console,
    deadline: float | None = None,
    on_news: Callable[[BatchRun, Event | Failure], None] | None = None,
    on_event: Callable[[str, Event], None] | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[Path, str]:
    """Run the jobs that are not finished, show their progress, and return why runs failed, as folder → sentence.

    A run that fails does not stop the others. The reason is written to its folder, and removed when it resumes.
    *callbacks* are called in this process. If one fails, its FedBMError stops all runs. However the runs end, on_end is
    called for each that has begun.
    """
    pending = [job for job in jobs if not job.is_finished]
    titles = {job.folder: (job.title, job.config.train.rounds) for job in pending}
    notifiers: dict[Path, Notifier] = {}
    failures: dict[Path, str] = {}
    with ExitStack() as ends, show_runs(console, titles) as show, closing(_events(pending, deadline)) as events:
        for job, news in events:
            if isinstance(news, Failure):
                keep_failure(job.folder, news)
                failures[job.folder] = f"{job.title}: {news.reason}"
            show(job.folder, news)
            if on_news is not None:
                on_news(job, news)
            if isinstance(news, Failure):
                continue
            if on_event is not None:
                on_event(job.title, news)
            if job.folder not in notifiers:
                notifiers[job.folder] = ends.enter_context(Notifier(callbacks, job.folder, job.config))
            notifiers[job.folder](news)
    return failures


def _events(
    jobs: Sequence[BatchRun], deadline: float | None
) -> Generator[tuple[BatchRun, Event | Failure], None, None]:
    """Yield the events of the jobs in parallel processes, then of the jobs that only this process can compute."""
    parallel = [job for job in jobs if job.plan is None]
    if parallel:
        configs, ids = [job.config for job in parallel], [job.folder.name for job in parallel]
        with closing(run_all(configs, ids=ids, deadline=deadline)) as events:
            for number, news in events:
                yield parallel[number], news
    for job in jobs:
        if job.plan is None or (deadline is not None and time.time() > deadline):
            continue
        try:
            with closing(stop_in_time(run(job.plan), deadline)) as rounds:
                for event in rounds:
                    if event is not None:
                        yield job, event
        except Exception as error:
            yield job, Failure.of(error)
