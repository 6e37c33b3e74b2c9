"""Render a report's numbers as comma-separated values, with all digits."""

from __future__ import annotations

import csv
import io

from fedbm.report.document import Report


def render_csv(report: Report) -> str:
    """Return one line per row of the report's data; missing values are empty."""
    written = io.StringIO()
    writer = csv.DictWriter(written, report.fields, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(report.data)
    return written.getvalue()
