"""Format numbers and cells as text, in the same way for every output format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedbm.report.document import Cell
from fedbm.utils.statistics import Paired, Spread
from fedbm.utils.text import format_bytes, format_seconds

NO_BREAK = "\N{NO-BREAK SPACE}"
NO_VALUE = "–"


def percent(value: float) -> str:
    """Return a share in percent.

    >>> percent(0.91249), percent(-0.0002), percent(-0.05)
    ('91.2', '0.0', '−5.0')
    """
    return f"{round(100 * value, 1) + 0.0:.1f}".replace("-", "−")  # + 0.0 turns −0.0 into 0.0


def points(value: float) -> str:
    """Return a difference of two shares in percentage points, with its sign.

    >>> points(0.172), points(-0.03), points(-0.0002)
    ('+17.2', '−3.0', '0.0')
    """
    rounded = round(100 * value, 1)
    return f"{rounded:+.1f}".replace("-", "−") if rounded else "0.0"


def probability(p: float) -> str:
    """Return a p value with two or three decimals.

    >>> probability(0.00004), probability(0.0312), probability(0.7)
    ('< 0.001', '0.031', '0.70')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def p_value(p: float) -> str:
    """Return 'p = 0.031' or 'p < 0.001' with no-break spaces."""
    shown = probability(p)
    return f"p {shown if shown.startswith('<') else f'= {shown}'}".replace(" ", NO_BREAK)


def effect(size: float) -> str:
    """Return an effect size with one decimal.

    >>> effect(-0.44), effect(-0.01)
    ('−0.4', '0.0')
    """
    return f"{round(size, 1) + 0.0:.1f}".replace("-", "−")


def mean_and_std(value: Spread) -> str:
    """Return '91.2 ± 0.8 %' with no-break spaces; without ± for one seed."""
    plus_minus = f" ± {percent(value.std)}" if value.std is not None else ""
    return f"{percent(value.mean)}{plus_minus} %".replace(" ", NO_BREAK)


def format_interval(found: Paired, write: Callable[[float], str]) -> str:
    """Return '+3.1 to +7.0', or a dash for a single seed."""
    return f"{write(found.low)} to {write(found.high)}" if found.n > 1 else NO_VALUE


FORMATS: dict[str, Callable[[float], str]] = {
    "count": lambda value: f"{value:g}",
    "percent": percent,
    "points": points,
    "printed": lambda value: f"{100 * value:.2f}",
    "probability": probability,
    "effect": effect,
    "score": lambda value: f"{value:.3f}",
    "bytes": format_bytes,
    "seconds": format_seconds,
}


def format_value(cell: Cell) -> str:
    """Return the cell's value without its standard deviation; a dash if there is none."""
    if cell.value is None:
        return NO_VALUE
    return cell.value if isinstance(cell.value, str) else FORMATS[cell.kind](cell.value)


def format_std(cell: Cell) -> str:
    """Return ' ± 0.8', or '' for a single value."""
    return "" if cell.std is None else f" ± {FORMATS[cell.kind](cell.std)}"


def format_cell(cell: Cell) -> str:
    """Return the value and its standard deviation."""
    return format_value(cell) + format_std(cell)


def format_numbers(numbers: Sequence[int]) -> str:
    """Return ascending numbers with runs of three or more as first–last.

    >>> format_numbers([9, 1, 2, 3, 5, 6])
    '1–3, 5, 6, 9'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
