"""A report as one HTML page: self-contained, offline, the same bytes for the same report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, groupby
from typing import Any

from fedbm.report.figures.svg import SERIES, for_one_page
from fedbm.report.format import format_between, format_numbers, format_std, format_value
from fedbm.report.model import Report
from fedbm.version import __version__


def render_html(report: Report) -> str:
    """Return the page. Every text is escaped; a name that the template does not know is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("fedbm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = count(1)
    made.globals |= {"palette": len(SERIES), "new_id": lambda: f"s{next(numbers)}"}
    made.filters |= {
        "kind": lambda block: type(block).__name__,
        "placed": for_one_page(),
        "value": format_value,
        "std": format_std,
        "between": format_between,
        "numbers": format_numbers,
        "groups": lambda columns: adjacent(columns, "group"),
        "blocks": lambda rows: adjacent(rows, "block"),
    }
    return made.get_template("report.html.j2").render(report=report, version=__version__)


def adjacent(items: Sequence[Any], attribute: str) -> list[tuple[str, list[Any]]]:
    """Return (value, items) for every stretch of adjacent items with one value of *attribute*."""
    return [(value, list(some)) for value, some in groupby(items, key=lambda item: getattr(item, attribute))]
