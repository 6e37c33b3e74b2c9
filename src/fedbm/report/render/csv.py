"""Render a report's numbers as comma-separated values, with all digits."""

from __future__ import annotations

import csv
import io

from fedbm.report.document import Report


def render_csv(report: Report) -> str:
    """Return one line per row of the report's data; missing values are empty."""
    written = io.StringIO()
    fields = report.fields or tuple(dict.fromkeys(key for line in report.data for key in line))
    writer = csv.DictWriter(written, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(report.data)
    return written.getvalue()
