"""Render a report as Markdown: its text and tables, and links to pictures of its wide figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from urllib.parse import quote

from fedbm.report.document import (
    Block,
    Cell,
    Figure,
    Figures,
    Findings,
    Report,
    Section,
    Table,
    Text,
    drop_details,
    group_adjacent,
)
from fedbm.report.format import format_cell, format_numbers

MARKUP = re.compile(r"[\\|*`$~]|\[(?=[^]]*\][(\[])|(?<!\w)_|_(?!\w)|<(?=[\w/!?])")


def escape(text: str) -> str:
    r"""Escape what would begin emphasis, code, a formula, a link, a tag or a cell, and join lines.

    >>> print(escape("a|b *c* _d_ λ_dis <b> p < 0.1 [e](f) `g` fedbm[text]"))
    a\|b \*c\* \_d\_ λ_dis &lt;b> p < 0.1 \[e](f) \`g\` fedbm[text]
    """
    return MARKUP.sub(lambda found: "&lt;" if found[0] == "<" else f"\\{found[0]}", " ".join(text.splitlines()))


Pictures = dict[str, Figure]  # path → figure


def render_markdown(report: Report, folder: str = "", pictures: Pictures | None = None) -> str:
    """Return the report as Markdown.

    *pictures* gets the figures that the page shows, by their path in *folder*; None means a page without figures.
    """
    show = partial(_blocks, folder=folder, pictures=pictures)
    out = [f"# {escape(report.title)}", "", *show(report.opening, 2)]
    for part in report.parts:
        headed = report.needs_heading(part)
        out += [f"## {escape(part.title)}", ""] if headed else []
        out += show(part.blocks, 3 if headed else 2)
        out += [f"Notes on this experiment: {format_numbers(part.notes)}.", ""] if part.notes else []
    out += show(report.closing, 2)
    if report.notes:
        out += ["## Notes", ""]
        for note in report.notes:
            title = f"**{escape(note.title)}.** " if note.title else ""
            out.append(f"{note.number}. {title}{escape(note.text)}")
    return "\n".join(out).rstrip() + "\n"


def _blocks(blocks: Iterable[Block], level: int, folder: str, pictures: Pictures | None) -> list[str]:
    out: list[str] = []
    for block in drop_details(blocks):
        if isinstance(block, Section):
            inner = _blocks(block.blocks, level + 1, folder, pictures)
            out += [f"{'#' * level} {escape(block.heading)}", "", *inner] if inner else []
        elif isinstance(block, Text) and block.role in ("list", "verdict"):
            out += [*(f"- {escape(sentence)}" for sentence in block.sentences), ""]
        elif isinstance(block, Text):
            out += [" ".join(map(escape, block.sentences)) + _code(block.code), ""]
        elif isinstance(block, Findings):
            out += [*(f"- {escape(one.text)}{_code(one.code)}" for one in block.items), ""]
        elif isinstance(block, Figures) and block.wide and pictures is not None:
            words, figures = next(iter(block.panels.items()))
            for figure in figures:
                path = f"{folder}/{len(pictures) + 1}.svg"
                pictures[path] = figure
                out += [f"![{escape(figure.caption or words)}]({quote(path)})", ""]
        elif isinstance(block, Table):
            lines = render_table(block)
            if block.folded:
                lines = [f"<details><summary>{escape(block.folded)}</summary>", "", *lines, "", "</details>"]
            out += [*lines, ""]
    return out


def render_table(table: Table) -> list[str]:
    """Return the lines of a table; the leading row's name is bold."""
    noted = any(row.notes for row in table.rows)
    aligned = ["---", *("---" if column.text else "---:" for column in table.columns), *["---:"] * noted]
    heads = [table.head, *(column.heading for column in table.columns), *["Notes"] * noted]
    out = [_line([escape(head) for head in heads]), _line(aligned)]
    for block, rows in group_adjacent(table.rows, "block"):
        if block:
            out.append(_line([f"*{escape(block)}*", *[""] * (len(aligned) - 1)]))
        for row in rows:
            name = f"**{escape(row.name)}**" if row.lead else escape(row.name)
            cells = [_cell(row.cells[column.key]) for column in table.columns]
            out.append(_line([name, *cells, *[format_numbers(row.notes)] * noted]))
    return out


def _cell(cell: Cell) -> str:
    text = escape(format_cell(cell))
    return f"**{text}**" if cell.best else text


def _code(text: str) -> str:
    return f" `{text}`" if text else ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
