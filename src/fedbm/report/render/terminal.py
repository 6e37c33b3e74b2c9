"""Render a report's tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.table import Table as RichTable

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
    made = RichTable(title=table.name, title_justify="left", header_style="bold", box=None, pad_edge=False)
    made.add_column(table.head, overflow="fold")
    for column in table.columns:
        made.add_column(column.heading, justify="left" if column.text else "right", overflow="fold")
    for block, rows in group_adjacent(table.rows, "block"):
        if block:
            made.add_row(f"{block}:")
        for row in rows:
            made.add_row(row.name, *(format_cell(row.cells[column.key]) for column in table.columns))
    return made
