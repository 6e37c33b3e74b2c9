"""Show a table in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def make_html(title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]], notes: Iterable[str] = ()) -> str:
    """Return an HTML table with a caption above and notes below."""

    def cells(tag: str, values: Sequence[Any]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(value))}</{tag}>" for value in values) + "</tr>"

    body = "".join(cells("td", row) for row in rows)
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    head = cells("th", heads)
    return f"<table><caption>{escape(title)}</caption><thead>{head}</thead><tbody>{body}</tbody></table>{below}"
