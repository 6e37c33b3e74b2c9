"""Fill a README's results from records: one picture, and one table per experiment.

    python tools/fill_readme.py results README.md

The results go between two marks in the page:

    <!-- fedbm:results NAME … -->   the experiments to show, each with its first cell that has a result
    <!-- /fedbm:results -->

For the paper's other experiments the page lists differences.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fedbm.errors import FedBMError, did_you_mean
from fedbm.experiments.analysis import Column, columns
from fedbm.experiments.outcomes import Outcome, read_outcomes
from fedbm.experiments.pictures import scores
from fedbm.experiments.remaining import list_unrecorded
from fedbm.experiments.tables import bars, differences
from fedbm.experiments.wording import verdicts
from fedbm.report.figures.curves import WIDE
from fedbm.report.figures.palette import numbers_of
from fedbm.report.figures.svg import save_svg
from fedbm.report.render.escaping import md
from fedbm.report.text import HEADLINE_METRIC
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
            raise FedBMError(
                f'{page} wants the experiment "{name}", of which there is no record{did_you_mean(name, by_name)}'
            )
        shown += [column for column in columns(by_name[name]) if column.lead][:1]
    if not shown:
        raise FedBMError(f"the experiments {page} wants have no finished run yet")
    picture = page.parent / PICTURE
    colours = numbers_of([line.name for line in shown[0].lines])
    save_svg(picture, scores(shown[0], colours, HEADLINE_METRIC, WIDE))
    inside = [
        *(f"![Macro-F1 of every seed, {shown[0].title}]({PICTURE})", ""),
        *(part for column in shown for part in block(column)),
        *_besides(outcomes, shown),
        *_not_run(outcomes),
    ]
    write_text(page, text[: found.end(1)] + "\n".join(inside) + "\n" + text[found.start(3) :])
    return [page, picture]


def block(column: Column) -> list[str]:
    """The column's table, ours, the paper's, p; its sentences; and what is not like the paper."""
    sentences = [f"- {md(verdict.sentence)}" for verdict in verdicts(column)]
    return [
        f"**{md(column.title)}**",
        "",
        *bars(column, without=("last_f1", "lead_minus_row_f1", "p", "effect_size", "unlike")),
        "",
        *sentences,
        *_unlike(column),
        "",
    ]


def _besides(outcomes: Sequence[Outcome], shown: Sequence[Column]) -> list[str]:
    """Differences in the paper's other cells, where there are any; their tables are in the report."""
    found = [column for outcome in outcomes if outcome.paper for column in columns(outcome)]
    found = [one for one in found if one not in shown and any(line.against for line in one.lines)]
    return ["Differences in what else is on record, beside the paper’s:", "", *differences(found), ""] if found else []


def _not_run(outcomes: Sequence[Outcome]) -> list[str]:
    """Say how many of the paper's tables and figures have no record."""
    found = [one.printed for one in list_unrecorded(outcomes) if one.printed]
    if not found:
        return []
    have = "has" if len(found) == 1 else "have"
    count = f"{len(found)} of the paper’s tables and figures {have} no run on record"
    return [f"{count}: the report lists them with their commands.", ""]


def _unlike(column: Column) -> list[str]:
    """Each mark once, with its rows where it is not that of all."""
    done = [line for line in column.lines if line.row is not None]
    marked: dict[str, list[str]] = {}
    for line in done:
        for mark in dict.fromkeys(one.mark for one in line.unlike):
            marked.setdefault(mark, []).append(line.name)
    words = [mark if len(names) == len(done) else f"{mark} ({', '.join(names)})" for mark, names in marked.items()]
    return [f"- Not like the paper: {md(', '.join(words))}; the report says what each means."] if words else []


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
