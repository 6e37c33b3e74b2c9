"""A report's tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table as RichTable

from fedbm.report.format import format_cell
from fedbm.report.model import Block, Report, Table


def report_tables(report: Report, without: Sequence[str] = ()) -> list[RichTable]:
    """Return the tables of the parts as rich tables, without the columns of these keys."""
    tables = [table for part in report.parts for table in _tables(part.blocks)]
    return [_rich(table, without) for table in tables]


def _tables(blocks: Sequence[Block]) -> Iterator[Table]:
    for block in blocks:
        if isinstance(block, Table) and not block.detail and not block.folded:
            yield block
        elif not getattr(block, "detail", False):
            yield from _tables(getattr(block, "blocks", ()))


def _rich(table: Table, without: Sequence[str]) -> RichTable:
    columns = [column for column in table.columns if column.key not in without]
    made = RichTable(title=table.name, title_justify="left", header_style="bold", box=None, pad_edge=False)
    made.add_column(table.head, overflow="fold")
    for column in columns:
        made.add_column(column.heading, justify="left" if column.text else "right", overflow="fold")
    block = ""
    for row in table.rows:
        if row.block != block:
            block = row.block
            made.add_row(f"{block}:")
        made.add_row(row.name, *(format_cell(row.cells[column.key]) for column in columns))
    return made
