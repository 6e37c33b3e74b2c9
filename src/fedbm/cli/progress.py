"""Show the progress of runs, decoding and downloads: live bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedbm.engine.records import RoundRecord
from fedbm.engine.round_loop import Event
from fedbm.runs.batch import Job

Count = Callable[[int, int], None]  # (done, in all)

PHASES = {"train": "training", "aggregate": "averaging", "evaluate": "evaluating", "done": ""}


class Show(Protocol):
    def __call__(self, event: Event) -> None: ...


@contextmanager
def showing(console: Console, title: str, rounds: int) -> Iterator[Show]:
    """Yield a function to call with each event of a run."""
    if console.is_terminal:
        with live_bars(console) as bars:
            yield Bar(bars, title, rounds)
    else:
        yield Lines(console, title, rounds)


@contextmanager
def showing_batch(console: Console, jobs: Sequence[Job]) -> Iterator[Callable[[Job, Event | str], None]]:
    """Yield a function to call with each event of several runs, or with the reason why a run failed."""
    pending = [job for job in jobs if not job.is_finished]
    with ExitStack() as stack:
        bars = stack.enter_context(live_bars(console)) if console.is_terminal and pending else None
        shows: dict[Path, Show] = {}
        for job in pending:
            rounds = job.config.train.rounds
            shows[job.folder] = Lines(console, job.title, rounds) if bars is None else Bar(bars, job.title, rounds)

        def show(job: Job, news: Event | str) -> None:
            if isinstance(news, str):
                console.print(f"failed: {job.title}: {news}", soft_wrap=True)
            else:
                shows[job.folder](news)

        yield show


def live_bars(console: Console) -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[news]}"),
        TimeElapsedColumn(),
        TextColumn("[dim]left"),
        TimeRemainingColumn(),
        console=console,
    )


class Bar:
    """One run among live bars: round, phase, losses, accuracy, remaining time."""

    def __init__(self, bars: Progress, title: str, rounds: int) -> None:
        self._bars = bars
        self._task: TaskID = bars.add_task(title, total=rounds, news="starting")
        self._scores = ""

    def __call__(self, event: Event) -> None:
        if event.note:
            self._bars.console.print(f"round {event.round}: {event.note}")
            return
        if event.record is not None:
            self._scores = scores_of(event.record) or self._scores
            self._bars.update(self._task, completed=event.round, news=f"{loss_of(event.record.loss)} {self._scores}")
            for gone in event.record.dropped:
                self._bars.console.print(f"round {event.round}: left out client {gone.client}: {gone.reason}")
            return
        done = f"{event.done}/{event.total} " if event.total else ""
        loss = f"loss {sum(event.losses.values()):.3f} " if event.losses else ""
        news = f"{PHASES[event.phase]} {done}{loss}{self._scores}"
        self._bars.update(self._task, completed=event.round - 1, news=news)


class Lines:
    """One line per round, for logs."""

    def __init__(self, console: Console, title: str, rounds: int) -> None:
        self._console, self._title, self._rounds = console, title, rounds
        self._seconds: list[float] = []
        self._begun = False

    def __call__(self, event: Event) -> None:
        if not self._begun and event.round > 1:
            self._console.print(f"{self._title}: continuing after round {event.round - 1}")
        self._begun = True
        if event.note:
            self._console.print(f"{self._title}: {event.note}", soft_wrap=True)
        if event.record is None:
            return
        self._seconds = [*self._seconds, event.record.seconds["total"]][-10:]
        left = (self._rounds - event.round) * sum(self._seconds) / len(self._seconds)
        parts = [
            f"{self._title} round {event.round}/{self._rounds}",
            loss_of(event.record.loss),
            scores_of(event.record),
        ]
        parts += [f"{self._seconds[-1]:.1f} s", f"left {int(left) // 60}:{int(left) % 60:02d}"]
        parts += [f"left out client {d.client}: {d.reason}" for d in event.record.dropped]
        self._console.print("  ".join(part for part in parts if part), soft_wrap=True)


def decoding(console: Console) -> AbstractContextManager[Count]:
    """Return a context with a function to call for each image decoded; without a terminal, print every 5,000th."""
    return counting(
        console, "decoding", MofNCompleteColumn(), 5000, lambda done, total: f"{done:,} of {total:,} images"
    )


def fetching(console: Console) -> AbstractContextManager[Count]:
    """Return a context with a function to call with the bytes received; without a terminal, print every 100 MB."""
    return counting(
        console,
        "getting",
        DownloadColumn(),
        100_000_000,
        lambda done, total: f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB" if total else f"{done / 1e6:,.0f} MB",
    )


@contextmanager
def counting(
    console: Console, title: str, column: ProgressColumn, every: int, words: Callable[[int, int], str]
) -> Iterator[Count]:
    """Yield a function (done, total) that shows a bar, or without a terminal prints a line for *every* so many."""
    if console.is_terminal:
        bars = [TextColumn("[bold]{task.description}"), BarColumn(bar_width=24), column, TimeRemainingColumn()]
        with Progress(*bars, console=console, transient=True) as live:

            def show(done: int, total: int) -> None:
                task = live.tasks[0].id if live.tasks else live.add_task(title)
                live.update(task, completed=done, total=total or None)

            yield show
        return
    said = 0

    def say(done: int, total: int) -> None:
        nonlocal said
        if done // every > said:
            said = done // every
            console.print(f"{title}: {words(done, total)}")

    yield say


def loss_of(terms: Mapping[str, float | None]) -> str:
    """
    >>> loss_of({"cross_entropy": 1.0, "variance": 0.5}), loss_of({})
    ('loss 1.500 (cross entropy 1.000 + variance 0.500)', 'no update was used')
    """
    if not terms:
        return "no update was used"
    known = {name: math.nan if value is None else value for name, value in terms.items()}
    parts = " + ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in known.items())
    return f"loss {sum(known.values()):.3f}" + (f" ({parts})" if len(known) > 1 else "")


def scores_of(record: RoundRecord) -> str:
    if record.val is None:
        return ""
    return f"val {100 * (record.val['accuracy'] or 0):.1f} %, F1 {100 * (record.val['f1'] or 0):.1f} %"
