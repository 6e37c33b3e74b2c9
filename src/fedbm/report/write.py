"""Write a report to a file. The ending of its name decides the format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedbm.errors import FedBMError, join_words
from fedbm.report.document import Report
from fedbm.report.render.csv import render_csv
from fedbm.report.render.html import render_html
from fedbm.report.render.latex import render_latex
from fedbm.report.render.markdown import render_markdown
from fedbm.report.runs_report import runs_report
from fedbm.runs.run_view import read_runs
from fedbm.utils.io import write_text

RENDERERS: dict[str, Callable[[Report], str]] = {
    ".html": render_html,
    ".md": render_markdown,
    ".tex": render_latex,
    ".csv": render_csv,
}


def write_report(run_dirs: Sequence[str | Path], out: str | Path, title: str | None = None) -> Path:
    """Write the report that compares runs.

    Args:
        run_dirs: Run folders.
        out: A file that ends in .html, .md, .tex or .csv, or a folder, which gets report.html.
        title: The report's title; by default the name of the comparison.

    Returns:
        The file that was written.

    Raises:
        FedBMError: If a folder is not a run, or if the ending of *out* is unknown.
    """
    path = report_path(Path(out))
    return save_report(runs_report(read_runs([Path(folder) for folder in run_dirs]), title or ""), path)


def report_path(out: Path) -> Path:
    """Return the file to write; raise FedBMError if its ending is not a known format."""
    path = out / "report.html" if out.is_dir() else out
    if path.suffix not in RENDERERS:
        raise FedBMError(f"the format of {out} is unknown. Use a file name that ends in {join_words(RENDERERS)}.")
    return path


def save_report(report: Report, path: Path) -> Path:
    """Write the report in the format of the file's ending and return the path."""
    write_text(path, RENDERERS[path.suffix](report))
    return path
