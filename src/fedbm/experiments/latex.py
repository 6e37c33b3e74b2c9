"""Outcomes as LaTeX: booktabs tables, and what stands in the notes below them."""

from __future__ import annotations

from collections.abc import Sequence

from fedbm.experiments.analysis import Column, columns
from fedbm.experiments.left import left_of, measured_in, unrecorded
from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.tables import fillable, grid, in_words, numbered, search_heads, searched, signs
from fedbm.experiments.wording import verdicts
from fedbm.results.escaping import code, tex
from fedbm.results.latex import NEEDS, floating


def latex(outcomes: Sequence[Outcome], whole: bool = False) -> str:
    """booktabs tables as wide as a page, in ASCII; below each what is found, missing and not like the paper.

    An experiment's notes, such as how its second look was chosen, stand below the first of its tables.
    """
    out, measured = [NEEDS], measured_in(outcomes)
    for outcome in outcomes:
        found = columns(outcome)
        for number, column in enumerate(column for column in found if not column.empty):
            out += _table(outcome, column, () if number else outcome.notes)
        for column in (column for column in found if column.empty):
            why = "; ".join(column.missing)
            out += [f"\\par {tex(f'{outcome.title}, {column.title}: {why}.')}", ""]
        if outcome.search:
            lines = [search_heads(outcome), *searched(outcome)]
            out += floating(f"{outcome.title}: chosen on validation.", lines, [])
        left = left_of(outcome, measured)
        out += [f"\\par {tex(f'{outcome.title}, left: {left.words}')} {code(outcome.command)}", ""] if left else []
    others = unrecorded(outcomes, measured) if whole else []
    out += [f"\\par {tex(f'{one.title}. {one.sentence}')} {code(one.command)}" for one in others]
    return "\n".join(out).rstrip() + "\n"


def _table(outcome: Outcome, column: Column, more: Sequence[str]) -> list[str]:
    """*more*: what is to be known of the whole experiment, in sentences."""
    numbers = numbered([column])
    lines = grid(column, without=("p", "unlike"))  # p after correction alone
    marked = [signs(line, numbers, ",") for line in column.lines]
    notes = ["Scores in percent, mean ± std over n seeds."]
    if "lead_minus_row_f1" in fillable(column):
        notes[0] += f" Lead: {column.lead or 'none, nothing is finished'}."
    notes += [verdict.sentence for verdict in verdicts(column)]
    notes += more
    notes += [f"{words}." for words in column.missing]
    notes += [f"({number}) Not like the paper, {in_words(one)}." for one, number in numbers.items()]
    return floating(f"{outcome.title}: {column.title}.", lines, notes, ["", *marked])
