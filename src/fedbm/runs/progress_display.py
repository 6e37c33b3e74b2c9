"""Show the progress of runs, decoding and downloads.

A terminal has live bars, a notebook has one line per run that changes in place, and a log has one line per round.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedbm.engine.round_loop import Event
from fedbm.engine.round_record import RoundRecord
from fedbm.runs.failure import Failure
from fedbm.utils.text import format_seconds

ShowCount = Callable[[int, int], None]  # (done, total)
PHASES = {"train": "training", "aggregate": "averaging", "evaluate": "evaluating", "done": ""}
RECENT_ROUNDS = 20  # of all runs; the remaining time is estimated from these


def progress_console(shown: bool | None) -> Console:
    """Return a console that prints if *shown*; if it is None, in a terminal or a notebook only."""
    console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)  # names may look like markup
    if shown is None:
        shown = console.is_terminal or console.is_jupyter
    return console if shown else Console(quiet=True, force_terminal=False)


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """Print each note once."""
    for note in dict.fromkeys(notes):
        console.print(f"note: {note}")


def replace_line(console: Console) -> Callable[[str], None]:
    """Return a function that prints a line. In a notebook, each line replaces the one before."""
    if not console.is_jupyter:
        return console.print
    handle: Any = None

    def show(line: str) -> None:
        nonlocal handle
        if handle is None:
            handle = import_module("IPython.display").display({"text/plain": line}, raw=True, display_id=True)
        else:
            handle.update({"text/plain": line}, raw=True)

    return show


@contextmanager
def show_runs(
    console: Console, runs: Mapping[Any, tuple[str, int]]
) -> Iterator[Callable[[Any, Event | Failure], None]]:
    """Yield a function to call with a run and each of its events, or with the run and the reason why it failed.

    *runs* are the runs to compute, with their titles and rounds.
    """
    estimate = RemainingTime({run: rounds for run, (_, rounds) in runs.items()})
    total = estimate.rounds
    columns = ("{task.completed:.0f}/{task.total:.0f}", "{task.fields[news]}", TimeElapsedColumn())
    with make_bars(console, *columns) if console.is_terminal and runs else nullcontext() as bars:
        kind = partial(RunLog, console) if bars is None else partial(RunBar, bars)
        shows = {run: kind(title, rounds) for run, (title, rounds) in runs.items()}
        whole = bars.add_task("all rounds", total=total, news="") if bars and len(runs) > 1 else None

        def show(run: Any, news: Event | Failure) -> None:
            words = estimate.update(run, news)
            if isinstance(news, Failure):
                console.print(f"failed: {runs[run][0]}: {news.reason}")
            else:
                shows[run](news, words if whole is None else "")
            if bars is not None and whole is not None:
                bars.update(whole, completed=total - estimate.rounds, news=words)

        yield show


class RemainingTime:
    """Estimate the time of all remaining rounds of one or several runs.

    It is their number times the mean duration of the latest rounds, divided by the number of parallel runs.
    """

    def __init__(self, rounds: Mapping[Hashable, int]) -> None:
        self._planned = rounds
        self._remaining = dict(rounds)
        self._seconds: deque[float] = deque(maxlen=RECENT_ROUNDS)  # of the latest rounds
        self._active: set[Hashable] = set()
        self._parallel = 1  # the most runs that were active at the same time

    @property
    def rounds(self) -> int:
        """The remaining rounds of all runs."""
        return sum(self._remaining.values())

    def update(self, run: Hashable, news: Event | Failure) -> str:
        """Add news of a run. Return the remaining time in words, or "" if it is not known or no round remains."""
        if isinstance(news, Failure) or news.last:
            self._remaining[run] = 0
            self._active.discard(run)
        else:
            self._remaining[run] = self._planned[run] - max(0, news.round - (news.record is None))
            self._active.add(run)
        if isinstance(news, Event) and news.record is not None:
            self._seconds.append(news.record.seconds["total"])
        if not self._seconds or not self.rounds:
            return ""
        self._parallel = max(self._parallel, len(self._active))
        parallel = min(self._parallel, sum(remaining > 0 for remaining in self._remaining.values()))
        words = format_seconds(self.rounds * fmean(self._seconds) / parallel)
        return f"remaining {words}{' for all runs' if len(self._planned) > 1 else ''}"


def make_bars(console: Console, *columns: str | ProgressColumn, transient: bool = False) -> Progress:
    """Return live bars with a title and these columns."""
    title = TextColumn("{task.description}", style="bold", markup=False)  # the console has no markup
    return Progress(title, BarColumn(bar_width=24), *columns, console=console, transient=transient)


class RunBar:
    """Show one run as a live bar: round, phase, losses, accuracy, remaining time."""

    def __init__(self, bars: Progress, title: str, rounds: int) -> None:
        self._bars = bars
        self._task = bars.add_task(title, total=rounds, news="starting")
        self._scores = ""

    def __call__(self, event: Event, remaining: str) -> None:
        if event.note:
            self._bars.console.print(f"round {event.round}: {event.note}")
        elif event.record is not None:
            self._scores = format_scores(event.record) or self._scores
            news = f"{format_loss(event.record.loss)} {self._scores} {remaining}"
            self._bars.update(self._task, completed=event.round, news=news)
            for sentence in describe_dropped(event.record):
                self._bars.console.print(f"round {event.round}: {sentence}")
        else:
            done = f"{event.done}/{event.total} " if event.total else ""
            loss = f"loss {sum(event.losses.values()):.3f} " if event.losses else ""
            news = f"{PHASES[event.phase]} {done}{loss}{self._scores} {remaining}"
            self._bars.update(self._task, completed=event.round - 1, news=news)


class RunLog:
    """Print one line per round of a run. A notebook shows only the latest line."""

    def __init__(self, console: Console, title: str, rounds: int) -> None:
        self._console, self._title, self._rounds = console, title, rounds
        self._show_round = replace_line(console)
        self._started = False

    def __call__(self, event: Event, remaining: str) -> None:
        if not self._started and event.round > 1:
            self._console.print(f"{self._title}: continuing after round {event.round - 1}")
        self._started = event.round > 0
        if event.note:
            self._console.print(f"{self._title}: {event.note}")
        if event.record is None:
            return
        parts = [
            f"{self._title} round {event.round}/{self._rounds}",
            format_loss(event.record.loss),
            format_scores(event.record),
            f"{event.record.seconds['total']:.1f} s",
            remaining,
            *describe_dropped(event.record),
        ]
        self._show_round("  ".join(filter(None, parts)))


def show_decoding(console: Console) -> AbstractContextManager[ShowCount]:
    """Return a context with a function to call for each decoded image."""
    return _show_count(console, "decoding", 5000, lambda done, total: f"{done:,} of {total:,} images")


def show_download(console: Console) -> AbstractContextManager[ShowCount]:
    """Return a context with a function to call with the number of bytes received; the total may be unknown (0)."""

    def describe(done: int, total: int) -> str:
        return f"{done / 1e6:,.0f}{f' of {total / 1e6:,.0f}' if total else ''} MB"

    return _show_count(console, "getting", 100_000_000, describe)


@contextmanager
def _show_count(console: Console, title: str, step: int, describe: Callable[[int, int], str]) -> Iterator[ShowCount]:
    """Yield a function (done, total) that moves a bar or, without a terminal, prints a line every *step* units."""
    printed = 0
    live = make_bars(console, "{task.fields[news]}", TimeRemainingColumn(), transient=True)
    with live if console.is_terminal else nullcontext():

        def show(done: int, total: int) -> None:
            nonlocal printed
            if console.is_terminal:
                task = live.tasks[0].id if live.tasks else live.add_task(title, news="")
                live.update(task, completed=done, total=total or None, news=describe(done, total))
            elif done // step > printed:
                printed = done // step
                console.print(f"{title}: {describe(done, total)}")

        yield show


def describe_dropped(record: RoundRecord) -> Iterator[str]:
    """Yield a phrase for each client that was left out of a round."""
    for client in record.dropped:
        yield f"left out client {client.client}: {client.reason}"


def format_loss(terms: Mapping[str, float | None]) -> str:
    """Return the loss of a round and its terms.

    >>> format_loss({"cross_entropy": 1.0, "variance": 0.5}), format_loss({})
    ('loss 1.500 (cross entropy 1.000 + variance 0.500)', 'no update was used')
    """
    if not terms:
        return "no update was used"
    known = {name: math.nan if value is None else value for name, value in terms.items()}
    parts = " + ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in known.items())
    return f"loss {sum(known.values()):.3f}" + (f" ({parts})" if len(known) > 1 else "")


def format_scores(record: RoundRecord) -> str:
    """Return the validation scores of a round; "" if it was not evaluated."""
    if record.val is None:
        return ""
    return f"val {100 * (record.val['accuracy'] or 0):.1f} %, F1 {100 * (record.val['f1'] or 0):.1f} %"
