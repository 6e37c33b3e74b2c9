"""Render a report's numbers as comma-separated values, with all digits."""

from __future__ import annotations

import csv
import io

from fedbm.report.model import Report


def render_csv(report: Report) -> str:
    """Return one line per row of the report's data; missing values are empty."""
    assert report.data is not None
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    keys = [column.key for column in report.data.columns]
    writer.writerow(keys)
    for row in report.data.rows:
        writer.writerow([row.cells[key].value if key in row.cells else None for key in keys])
    return written.getvalue()
