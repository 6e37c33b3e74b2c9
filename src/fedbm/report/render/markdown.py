"""A report as Markdown: its text and tables, without figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fedbm.report.format import format_cell, format_numbers
from fedbm.report.model import Block, Cell, Findings, Fold, Report, Section, Table, Text
from fedbm.report.render.html import adjacent

MARKUP = re.compile(r"[\\|*`]|\[(?=[^]]*\][(\[])|(?<!\w)_|_(?!\w)|<(?=[\w/!?])")


def escape(text: str) -> str:
    r"""Escape what would begin emphasis, code, a link, a tag or a cell, and nothing else.

    >>> print(escape("a|b *c* _d_ λ_dis <b> p < 0.1 [e](f) `g` fedbm[text]"))
    a\|b \*c\* \_d\_ λ_dis &lt;b> p < 0.1 \[e](f) \`g\` fedbm[text]
    """
    return MARKUP.sub(lambda found: "&lt;" if found[0] == "<" else f"\\{found[0]}", text)


def render_markdown(report: Report) -> str:
    out = [f"# {escape(report.title)}", "", *_blocks(report.opening, 2)]
    for part in report.parts:
        out += [f"## {escape(part.title)}", ""] if part.titled else []
        out += _blocks(part.blocks, 3)
        out += [f"Notes on this experiment: {format_numbers(part.notes)}.", ""] if part.notes else []
    out += _blocks(report.closing, 2)
    if report.notes:
        out += ["## Notes", ""]
        for note in report.notes:
            title = f"**{escape(note.title)}.** " if note.title else ""
            out.append(f"{note.number}. {title}{escape(note.text)}")
    return "\n".join(out).rstrip() + "\n"


def _blocks(blocks: Iterable[Block], level: int) -> list[str]:
    """Return lines; what is part of the HTML page only is left out."""
    out: list[str] = []
    for block in blocks:
        if getattr(block, "detail", False):
            continue
        if isinstance(block, Section):
            inner = _blocks(block.blocks, level + 1)
            out += [f"{'#' * level} {escape(block.heading)}", "", *inner] if inner else []
        elif isinstance(block, Fold):
            out += _blocks(block.blocks, level)
        elif isinstance(block, Text):
            out += _text(block)
        elif isinstance(block, Findings):
            for one in block.items:
                code = f" `{one.code}`" if one.code else ""
                items = f" {escape('; '.join(one.items))}." if one.items else ""
                out.append(f"- {escape(one.sentence)}{items}{code}")
            out.append("")
        elif isinstance(block, Table):
            lines = render_table(block)
            if block.folded:
                lines = [f"<details><summary>{escape(block.folded)}</summary>", "", *lines, "", "</details>"]
            out += [*lines, ""]
    return out


def _text(block: Text) -> list[str]:
    code = f" `{block.code}`" if block.code else ""
    if block.role in ("list", "verdict", "titles"):
        return [*(f"- {escape(sentence)}" for sentence in block.sentences), ""]
    return [" ".join(map(escape, block.sentences)) + code, ""]


def render_table(table: Table, without: Sequence[str] = ()) -> list[str]:
    """Return the lines of a table, without the columns of these keys; the leading row's name is bold."""
    columns = [column for column in table.columns if column.key not in without]
    noted = any(row.notes for row in table.rows) and "notes" not in without
    aligned = ["---", *("---" if column.text else "---:" for column in columns), *["---:"] * noted]
    out = [
        _line([escape(table.head), *(escape(column.heading) for column in columns), *["Notes"] * noted]),
        _line(aligned),
    ]
    for block, rows in adjacent(table.rows, "block"):
        if block:
            out.append(_line([f"*{escape(block)}*", *[""] * (len(aligned) - 1)]))
        for row in rows:
            name = f"**{escape(row.name)}**" if row.lead else escape(row.name)
            cells = [_cell(row.cells[column.key]) for column in columns]
            out.append(_line([name, *cells, *[format_numbers(row.notes)] * noted]))
    return out


def _cell(cell: Cell) -> str:
    text = escape(format_cell(cell))
    return f"**{text}**" if cell.best else text


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
