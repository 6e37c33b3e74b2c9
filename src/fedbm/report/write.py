"""Write a report to a file. The ending of its name decides the format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

from fedbm.engine.run_folder import find_runs
from fedbm.errors import FedBMError, join_words
from fedbm.experiments.outcomes import read_outcome, read_outcomes
from fedbm.experiments.reproduction import Reproduction
from fedbm.report.document import Report
from fedbm.report.experiments_report import experiments_report
from fedbm.report.figures.svg import save_svg
from fedbm.report.render.csv import render_csv
from fedbm.report.render.html import render_html
from fedbm.report.render.latex import render_latex
from fedbm.report.render.markdown import Pictures, render_markdown
from fedbm.report.runs_report import runs_report
from fedbm.runs.method_comparison import Comparison
from fedbm.runs.run_view import RunView, read_runs
from fedbm.utils.io import write_text

RENDERERS: dict[str, Callable[[Report], str]] = {
    ".html": render_html,
    ".md": render_markdown,
    ".tex": render_latex,
    ".csv": render_csv,
}


def write_report(
    runs: Comparison | Reproduction | RunView | str | Path | Iterable[RunView | str | Path],
    path: str | Path = "report.html",
    title: str = "",
) -> Path:
    """Write a report of runs or experiments.

    Args:
        runs: the result of `compare()`, `reproduce()`, `simulate()` or `read_run()`, a run's folder, a folder of runs,
            the id of a run in runs/, a folder of records of experiments, or a list of these.
        path: the file to write; .html, .md, .tex or .csv. In a folder, the file is report.html. The pictures of
            report.md are in the folder report-figures next to it.
        title: the title of the page; by default it names the data.

    Returns:
        The path of the file.

    Raises:
        FedBMError: if a run is missing or damaged, or the file's ending is not one of these.

    Example:
        >>> import fedbm
        >>> run = fedbm.simulate("digits", method="fedavg", clients=5, rounds=1, size=16, width=8, batch=32)
        >>> fedbm.write_report(run, "report.html").name
        'report.html'
    """
    if isinstance(runs, Reproduction):
        return save_report(experiments_report(runs.outcomes, title), report_path(Path(path)))
    found = runs.runs if isinstance(runs, Comparison) else [runs] if isinstance(runs, RunView | str | Path) else runs
    return save_report(make_report(list(found), title=title), report_path(Path(path)))


def make_report(runs: Sequence[RunView | str | Path], out: Path = Path("runs"), title: str = "") -> Report:
    """Return the report of runs, whose ids are searched in *out*, or of records of experiments."""
    names = [Path(run) for run in runs if not isinstance(run, RunView)]
    records = [path for path in names if is_records(path)]
    if records and len(records) < len(runs):
        raise FedBMError("runs and records cannot be in one report. Give one kind at a time.")
    if of_run := next((path for path in records if (path.parent / "rounds.jsonl").exists()), None):
        raise FedBMError(f"{of_run} is a file of a run: give its folder, {of_run.parent}")
    if records:
        outcomes = [o for path in records for o in (read_outcomes(path) if path.is_dir() else [read_outcome(path)])]
        whole = [path for path in records if path.is_dir()]
        below = {file.stem for folder in whole for file in folder.glob("*/*.json")}  # they have a report of their own
        return experiments_report(outcomes, title, below if whole else None)
    found = ([run.path] if isinstance(run, RunView) else find_runs(out, [str(run)]) for run in runs)
    return runs_report(read_runs(list(chain(*found))), title)


def is_records(path: Path) -> bool:
    """Return whether a path is a folder of records, or the record of one experiment."""
    if path.is_dir():
        return not (path / "config.toml").exists() and any(path.glob("*.json"))
    return path.suffix == ".json" and path.is_file()


def report_path(out: Path) -> Path:
    """Return the file to write; raise FedBMError if its ending is not a known format."""
    path = out / "report.html" if out.is_dir() else out
    if path.suffix not in RENDERERS:
        raise FedBMError(f"the format of {out} is unknown. Use a file name that ends in {join_words(RENDERERS)}.")
    return path


def save_report(report: Report, path: Path) -> Path:
    """Write the report in the format of the file's ending, for Markdown with pictures next to it; return the path."""
    if path.suffix == ".md":
        pictures: Pictures = {}
        text = render_markdown(report, f"{path.stem}-figures", pictures)
        for name, figure in pictures.items():
            save_svg(path.parent / name, figure.draw())
        for old in (path.parent / f"{path.stem}-figures").glob("*.svg"):  # of an earlier, longer report
            if old.stem.isdecimal() and f"{old.parent.name}/{old.name}" not in pictures:
                old.unlink()
        write_text(path, text)
    else:
        write_text(path, RENDERERS[path.suffix](report))
    return path
