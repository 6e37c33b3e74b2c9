"""Fill a README's results from the records of a complete confirmatory experiment: a picture, the verdict and a table.

    python tools/fill_readme.py results README.md

The results go between two marks in the page:

    <!-- fedbm:results NAME -->
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
from fedbm.experiments.paper_numbers import find_published
from fedbm.methods import Central
from fedbm.report.comparison import compare_outcome, data_title
from fedbm.report.document import Cell, Column, Row, Table
from fedbm.report.experiment_figures import contrast_figure
from fedbm.report.figures.svg import save_svg
from fedbm.report.format import format_numbers
from fedbm.report.group import HEADLINE_METRIC
from fedbm.report.render.markdown import escape, render_table
from fedbm.report.tables import score_cell
from fedbm.report.verdicts import planned_verdict
from fedbm.utils.io import write_text
from fedbm.utils.statistics import spread_or_none

MARKED = re.compile(r"(<!-- fedbm:results (?P<name>[\w-]+) -->\n).*?(<!-- /fedbm:results -->)", re.DOTALL)
PICTURE = "docs/images/results.svg"
LINK = "results/README.md"
CENTRAL = Central.title


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
    by_name, name = {outcome.name: outcome for outcome in outcomes}, found["name"]
    if name not in by_name:
        raise FedBMError(f'{page} names the experiment "{name}", which has no record{did_you_mean(name, by_name)}')
    outcome = by_name[name]
    if not outcome.confirmatory or outcome.withheld:
        raise FedBMError(f"{page}: {outcome.withheld or f'{name} is not confirmatory'}")
    picture = page.parent / PICTURE
    save_svg(picture, contrast_figure(compare_outcome(outcome))[0].draw())
    inside = [
        f"![Difference in macro-F1 at every seed, with its mean]({PICTURE})",
        "",
        *results_lines(outcome, outcomes),
    ]
    write_text(page, text[: found.end(1)] + "\n".join(inside) + "\n" + text[found.start(3) :])
    return [page, picture]


def results_lines(outcome: Outcome, outcomes: Sequence[Outcome]) -> list[str]:
    """Return the verdict of the experiment, its table and a link, as Markdown.

    Central training is not part of it; its row has the runs of the same data set from other experiments.
    """
    found = compare_outcome(outcome)
    others = [c for one in outcomes if one is not outcome for c in compare_outcome(one)]
    cells: dict[str, dict[str, Cell]] = {row.name: {} for row in found[0].rows if row.name != found[0].lead}
    cells |= {found[0].lead: {}, CENTRAL: {}}
    columns, central_seeds = [], set[int]()
    for place, comparison in enumerate(found):
        name = data_title(comparison.data)
        averaged, raw, paper = (f"{key}{place}" for key in ("averaged", "raw", "paper"))
        columns += [Column(averaged, f"{name}, averaged"), Column(raw, f"{name}, raw"), Column(paper, f"{name}, paper")]
        for row in comparison.rows:
            cells[row.name][averaged] = score_cell(spread_or_none([*row.at_endpoint(comparison.moment).values()]))
            cells[row.name][raw] = score_cell(spread_or_none([*row.at_endpoint("best").values()]))
        central = next((r for c in others if c.data == comparison.data for r in c.rows if r.central and r.runs), None)
        cells[CENTRAL][averaged] = score_cell(None)
        cells[CENTRAL][raw] = score_cell(central.score("best", HEADLINE_METRIC) if central else None)
        central_seeds |= {run.seed for run in central.runs} if central else set()
        beta = comparison.at.get("beta", outcome.shared.get("beta"))
        for row_name, row_cells in cells.items():
            known = find_published("comparison", comparison.data, beta, row_name)
            row_cells[paper] = (
                Cell(known.mean[HEADLINE_METRIC], "percent", known.std[HEADLINE_METRIC]) if known else score_cell(None)
            )
    rows = tuple(Row(name, some, lead=name == found[0].lead) for name, some in cells.items())
    seeds = outcome.analysis.seeds if outcome.analysis else ()
    about = (
        f"Macro-F1 on test images in percent, mean ± std over {len(seeds)} new seeds ({format_numbers(seeds)}). "
        "Averaged: the mean of the server’s models over rounds, after the last round. Raw: the model of the round that "
        "validation chose. "
        "Paper: its mean ± std over three trials, to compare with the raw model."
    )
    if central_seeds:
        about += f" Central has all images in one place; its seeds are {format_numbers(sorted(central_seeds))}."
    table = render_table(Table("readme", tuple(columns), rows))
    verdict = escape(" ".join(planned_verdict(found)))
    more = f"[All results]({LINK}), with tests, commands and deviations from the paper."
    return [verdict, "", about, "", *table, "", more, ""]


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
