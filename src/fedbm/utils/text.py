"""Format quantities and tables for messages, reports and notebooks."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import Any


def format_bytes(count: float) -> str:
    """Return a size with a decimal unit.

    >>> format_bytes(512), format_bytes(44_700_000)
    ('512 B', '44.7 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.95:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_seconds(seconds: float) -> str:
    """Return a duration with its two largest units.

    >>> format_seconds(0.84), format_seconds(75), format_seconds(7380)
    ('0.84 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> format_count(1, "run"), format_count(2000, "run")
    ('1 run', '2,000 runs')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def format_range(numbers: Collection[int]) -> str:
    """Return '4' or '4–7': the lowest and the highest number."""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}–{high}"


def format_option(value: Any) -> str:
    """Return the value of an option as a user would type it."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def format_value(value: Any) -> str:
    """Return a value as it appears in a message: text in quotes, on one line, shortened to 60 characters."""
    try:
        text = json.dumps(value, ensure_ascii=not value.isprintable()) if isinstance(value, str) else str(value)
    except ValueError:  # Python does not print whole numbers of more than 4,300 digits
        return "a number that long"
    return text if len(text) <= 60 else f"{text[:57]}…"


def make_html(title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]], notes: Iterable[str] = ()) -> str:
    """Return an HTML table for a notebook, with a caption above it and notes below it."""

    def cells(tag: str, values: Sequence[Any]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(value))}</{tag}>" for value in values) + "</tr>"

    body = "".join(cells("td", row) for row in rows)
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    head = cells("th", heads)
    return f"<table><caption>{escape(title)}</caption><thead>{head}</thead><tbody>{body}</tbody></table>{below}"
