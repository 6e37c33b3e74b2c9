"""Fill a README's results from records: one picture, and a verdict and a short table per experiment.

    python tools/fill_readme.py results README.md

The results go between two marks in the page:

    <!-- fedbm:results NAME … -->   the experiments to show, each with its first cell that has a result
    <!-- /fedbm:results -->
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fedbm.errors import FedBMError, did_you_mean
from fedbm.experiments.outcomes import Outcome, read_outcomes
from fedbm.report.comparison import HEADLINE_METRIC, ComparedGroup, compare_outcome
from fedbm.report.experiment_figures import draw_scores
from fedbm.report.figures.drawing import WIDE
from fedbm.report.figures.palette import assign_colours
from fedbm.report.figures.svg import save_svg
from fedbm.report.render.markdown import escape, render_table
from fedbm.report.tables import summary_table
from fedbm.report.verdicts import plain_verdict
from fedbm.utils.io import write_text

MARKED = re.compile(r"(<!-- fedbm:results (?P<names>[\w\- ]+?) -->\n).*?(<!-- /fedbm:results -->)", re.DOTALL)
PICTURE = "docs/images/results.svg"


def fill_readme(outcomes: Sequence[Outcome], page: Path) -> list[Path]:
    """Replace the marked part of *page* and the picture it shows; return the files written."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FedBMError(f"cannot read {page}: {error}") from error
    found = MARKED.search(text)
    if not found:
        raise FedBMError(
            f"{page} has no place for results: write <!-- fedbm:results NAME --> and <!-- /fedbm:results -->, each on "
            "a line of its own"
        )
    by_name = {outcome.name: outcome for outcome in outcomes}
    shown = []
    for name in found["names"].split():
        if name not in by_name:
            raise FedBMError(f'{page} names the experiment "{name}", which has no record{did_you_mean(name, by_name)}')
        shown += [comparison for comparison in compare_outcome(by_name[name]) if comparison.lead][:1]
    if not shown:
        raise FedBMError(f"the experiments that {page} names have no finished run yet")
    picture = page.parent / PICTURE
    colours = assign_colours(row.name for row in shown[0].rows)
    save_svg(picture, draw_scores(shown[0], colours, HEADLINE_METRIC, WIDE))
    inside = [
        *(f"![Macro-F1 of every seed, {shown[0].title}]({PICTURE})", ""),
        *(line for comparison in shown for line in results_lines(comparison)),
    ]
    write_text(page, text[: found.end(1)] + "\n".join(inside) + "\n" + text[found.start(3) :])
    return [page, picture]


def results_lines(comparison: ComparedGroup) -> list[str]:
    """Return the comparison's verdict and its short table, as Markdown."""
    colours = assign_colours(row.name for row in comparison.rows)
    table = summary_table([("", comparison)], "readme", colours)
    verdict = " ".join(plain_verdict([("", comparison)]))
    return [f"**{escape(comparison.title)}.** {escape(verdict)}", "", *render_table(table), ""]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script and return its exit status."""
    parser = argparse.ArgumentParser(description="Fill a README's results from records.")
    parser.add_argument("records", type=Path, help="folder of records, such as results")
    parser.add_argument("page", type=Path, help="the page to fill, such as README.md")
    found = parser.parse_args(arguments)
    try:
        for written in fill_readme(read_outcomes(found.records), found.page):
            print(f"wrote {written}")
    except FedBMError as error:
        print(f"fill_readme: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
