"""Show the progress of runs, decoding and downloads.

A terminal has live bars, a notebook has one line per run that changes in place, and a log has one line per round.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
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
    handle = import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)
    return lambda line: handle.update({"text/plain": line}, raw=True)


@contextmanager
def show_runs(
    console: Console, runs: Mapping[Any, tuple[str, int]]
) -> Iterator[Callable[[Any, Event | Failure], None]]:
    """Yield a function to call with a run and each of its events, or with the run and the reason why it failed.

    *runs* are the runs to compute, with their titles and rounds.
    """
    is_live = console.is_terminal and bool(runs)
    remaining = RemainingTime({run: rounds for run, (_, rounds) in runs.items()})
    total = remaining.rounds
    columns = ("{task.completed:.0f}/{task.total:.0f}", "{task.fields[news]}", TimeElapsedColumn())
    bars = make_bars(console, *columns)
    tasks = {run: bars.add_task(title, total=rounds, news="starting") for run, (title, rounds) in runs.items()}
    whole = bars.add_task("all rounds", total=total, news="", visible=len(runs) > 1)
    print_line: dict[Any, Callable[[str], None]] = {}  # of the runs that have begun
    scores = dict.fromkeys(runs, "")

    def show(run: Any, news: Event | Failure) -> None:
        title, rounds = runs[run]
        time_left = remaining.update(run, news)
        bars.update(whole, completed=total - remaining.rounds, news=time_left)
        if isinstance(news, Failure):
            console.print(f"failed: {title}: {news.reason}")
            return
        if run not in print_line:
            print_line[run] = replace_line(console)
            if news.round > 1 and not is_live:
                console.print(f"{title}: continuing after round {news.round - 1}")
        dropped = news.record.dropped if news.record else ()
        for note in (news.note, *(f"left out client {client.client}: {client.reason}" for client in dropped)):
            if note:
                console.print(f"{title} round {news.round}: {note}")
        if news.record is not None:
            scores[run] = format_scores(news.record) or scores[run]
            words = [format_loss(news.record.loss), scores[run], f"{news.record.seconds['total']:.1f} s", time_left]
            if not is_live:
                print_line[run]("  ".join(filter(None, (f"{title} round {news.round}/{rounds}", *words))))
        else:
            done = f"{news.done}/{news.total}" if news.total else ""
            loss = f"loss {sum(news.losses.values()):.3f}" if news.losses else ""
            words = [PHASES[news.phase], done, loss, scores[run], time_left]
        completed = news.round - (news.record is None)
        bars.update(tasks[run], completed=completed, news=" ".join(filter(None, words)))

    with bars if is_live else nullcontext():
        yield show


class RemainingTime:
    """Estimate the time of all remaining rounds of one or several runs from the pace of the latest rounds."""

    def __init__(self, rounds: Mapping[Hashable, int]) -> None:
        self._planned = rounds
        self._remaining = dict(rounds)
        self._moments: deque[float] = deque(maxlen=RECENT_ROUNDS + 1)  # the first event, then the ends of rounds

    @property
    def rounds(self) -> int:
        """The remaining rounds of all runs."""
        return sum(self._remaining.values())

    def update(self, run: Hashable, news: Event | Failure) -> str:
        """Add news of a run. Return the remaining time in words, or "" if it is not known or no round remains."""
        if isinstance(news, Failure) or news.last:
            self._remaining[run] = 0
        else:
            self._remaining[run] = self._planned[run] - news.round + (news.record is None)
        if not self._moments or (isinstance(news, Event) and news.record is not None):
            self._moments.append(time.monotonic())
        if len(self._moments) < 2 or not self.rounds:
            return ""
        seconds = (self._moments[-1] - self._moments[0]) / (len(self._moments) - 1)
        return f"remaining {format_seconds(self.rounds * seconds)}{' for all runs' if len(self._planned) > 1 else ''}"


def make_bars(console: Console, *columns: str | ProgressColumn, transient: bool = False) -> Progress:
    """Return live bars with a title and these columns."""
    title = TextColumn("{task.description}", style="bold", markup=False)  # the console has no markup
    return Progress(title, BarColumn(bar_width=24), *columns, console=console, transient=transient)


def show_decoding(console: Console) -> AbstractContextManager[ShowCount]:
    """Return a context with a function to call for each decoded image."""
    return _show_count(console, "decoding", "images", unit=1, step=5000)


def show_download(console: Console) -> AbstractContextManager[ShowCount]:
    """Return a context with a function to call with the number of bytes received; the total may be unknown (0)."""
    return _show_count(console, "getting", "MB", unit=1_000_000, step=100_000_000)


@contextmanager
def _show_count(console: Console, title: str, noun: str, unit: int, step: int) -> Iterator[ShowCount]:
    """Yield a function (done, total) that moves a bar or, without a terminal, prints a line every *step*."""
    bars = make_bars(console, "{task.fields[news]}", TimeRemainingColumn(), transient=True)
    bar = bars.add_task(title, total=None, news="", visible=False)
    printed = 0

    def show(done: int, total: int) -> None:
        nonlocal printed
        of = f" of {total / unit:,.0f}" if total else ""
        words = f"{done / unit:,.0f}{of} {noun}"
        bars.update(bar, completed=done, total=total or None, news=words, visible=True)
        if not console.is_terminal and done // step > printed:
            printed = done // step
            console.print(f"{title}: {words}")

    with bars if console.is_terminal else nullcontext():
        yield show


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
