"""Render a report as one HTML page: self-contained, offline, the same bytes for the same report."""

from __future__ import annotations

import re
from functools import cache
from itertools import count
from typing import TYPE_CHECKING

from fedbm.report.document import Report, group_adjacent
from fedbm.report.figures.palette import mark_shape
from fedbm.report.figures.svg import SERIES
from fedbm.report.format import format_numbers, format_std, format_value
from fedbm.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment


def render_html(report: Report) -> str:
    """Return the page. Every text is escaped; an undefined name in the template is an error."""
    sections = count(1)
    template = _environment().get_template("report.html.j2")
    return template.render(report=report, version=__version__, new_id=lambda: f"s{next(sections)}")


@cache
def _environment() -> Environment:
    """Return the templates, which are compiled once in a process."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    def keep_flags(text: str) -> Markup:
        """Keep flags such as --server-average in one line: browsers may break a line after a hyphen."""
        return Markup(re.sub(r"--[a-z-]+", r'<span class="flag">\g<0></span>', str(escape(text))))

    made = Environment(
        loader=PackageLoader("fedbm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["palette"] = len(SERIES)
    made.filters |= {
        "flags": keep_flags,
        "kind": lambda block: type(block).__name__,
        "mark": mark_shape,
        "value": format_value,
        "std": format_std,
        "numbers": format_numbers,
        "groups": lambda columns: group_adjacent(columns, "group"),
        "blocks": lambda rows: group_adjacent(rows, "block"),
    }
    return made
