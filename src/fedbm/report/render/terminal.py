"""Render a report's tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from fedbm.report.document import Block, Report, Section, Table, drop_details, group_adjacent
from fedbm.report.format import format_cell


def report_tables(report: Report) -> list[RichTable]:
    """Return the tables of the report's parts as rich tables."""
    return [_rich(table) for part in report.parts for table in _tables(part.blocks)]


def _tables(blocks: Iterable[Block]) -> Iterator[Table]:
    for block in drop_details(blocks):
        if isinstance(block, Table) and not block.folded:
            yield block
        elif isinstance(block, Section):
            yield from _tables(block.blocks)


def _rich(table: Table) -> RichTable:
    lines: list[Sequence[str]] = []
    for block, rows in group_adjacent(table.rows, "block"):
        lines += [[f"{block}:"]] if block else []
        lines += [[row.name, *(format_cell(row.cells[column.key]) for column in table.columns)] for row in rows]
    left = [True, *(column.text for column in table.columns)]
    return rich_table(table.name, [table.head, *(column.heading for column in table.columns)], lines, left)


def rich_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]], left: Sequence[bool]) -> RichTable:
    """Return a table for the terminal; *left* says which columns are aligned to the left."""
    made = RichTable(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for head, is_left in zip(heads, left, strict=True):
        made.add_column(head, justify="left" if is_left else "right", overflow="fold")
    for row in rows:  # half a number on the next line would look like another number
        cells = zip(map(str, row), left, strict=False)
        made.add_row(*(cell if is_left else Text(cell, overflow="ellipsis") for cell, is_left in cells))
    return made
