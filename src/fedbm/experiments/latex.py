"""Outcomes as LaTeX: booktabs tables, the text that belongs to them, and as comments what is not finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedbm.experiments.analysis import Column, columns
from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.paper_numbers import Deviation
from fedbm.experiments.remaining import count_remaining, list_unrecorded
from fedbm.experiments.tables import fillable, grid, in_words, numbered, search_heads, searched, signs
from fedbm.experiments.wording import verdicts
from fedbm.report.render.escaping import code, tex
from fedbm.report.render.latex import NEEDS, floating, label, prose

WHOLE, SCORES, LAST = "whole", "scores", "last rounds"  # the parts a table may have
NOT_PRINTED = ("p", "unlike")  # p after correction alone; what is unlike has numbers
LEFT_OUT = {  # of the keys of HEADS
    WHOLE: NOT_PRINTED,
    SCORES: (
        *(*NOT_PRINTED, "last_f1", "last_quarter_f1", "averaged_accuracy", "averaged_f1"),
        *("lead_minus_row_f1", "p_holm", "effect_size"),
    ),
    LAST: (
        *(*NOT_PRINTED, "accuracy", "paper_accuracy", "accuracy_minus_paper"),
        *("f1", "paper_f1", "f1_minus_paper"),
    ),
}
WIDEST = 7  # columns, in a line of an article


def latex(outcomes: Sequence[Outcome], whole: bool = False) -> str:
    """booktabs tables no wider than the line, in ASCII; after each experiment's what is found, missing and unlike.

    What is not finished would make no sense in print: it is a comment, with its reason and its command.
    """
    out = [NEEDS]
    for outcome in outcomes:
        found = columns(outcome)
        finished = [column for column in found if column.lead]
        out += _printed(outcome, finished) if finished else []
        if outcome.search and finished:
            lines = [[*map(tex, cells)] for cells in (search_heads(outcome), *searched(outcome))]
            out += floating(f"{outcome.title}: chosen on validation.", label(f"{outcome.name} chosen"), lines)
        for column in (column for column in found if not column.lead):
            why = "; ".join(column.missing)
            out += [f"% {tex(f'{outcome.title}, {column.title}: {why}.')}"]
        remaining = count_remaining(outcome)
        out += [f"% {tex(f'{outcome.title}, remaining runs: {remaining}.')} {code(outcome.command)}"] * bool(remaining)
        out += [""]
    others = list_unrecorded(outcomes) if whole else []
    out += [f"% {tex(f'{one.title}. {one.sentence}')} {code(one.command)}" for one in others]
    return "\n".join(out).rstrip() + "\n"


def _printed(outcome: Outcome, found: Sequence[Column]) -> list[str]:
    """The tables of *found*, and one text after them, in which what is not like the paper is listed once."""
    numbers = numbered(found)
    tables = [line for column in found for part in _parts(column) for line in _table(outcome, column, part, numbers)]
    notes = [
        *(_said(outcome, column) for column in found),
        *map(tex, outcome.notes),
        *(tex(f"({number}) Not like the paper, {in_words(one)}.") for one, number in numbers.items()),
    ]
    return [*tables, *prose(outcome.title, notes)]


def _said(outcome: Outcome, column: Column) -> str:
    """What is found in this column's tables and missing from them."""
    tables = " and ".join(f"Table~\\ref{{{_label(outcome, column, part)}}}" for part in _parts(column))
    missing = [f"{words[0].upper()}{words[1:]}." for words in column.missing]
    sentences = [verdict.sentence for verdict in verdicts(column)] + missing
    return " ".join([f"{tex(column.title)} ({tables}).", *map(tex, sentences)])


def _parts(column: Column) -> Sequence[str]:
    """One table; two where it has more columns than a line holds: the scores, then the last rounds and the tests."""
    return [WHOLE] if len(grid(column, LEFT_OUT[WHOLE])[0]) <= WIDEST else [SCORES, LAST]


def _label(outcome: Outcome, column: Column, part: str) -> str:
    """The first table of a column keeps its label when a second becomes necessary."""
    return label(f"{outcome.name} {column.title} {'last' * (part == LAST)}")


def _table(outcome: Outcome, column: Column, part: str, numbers: Mapping[Deviation, int]) -> list[str]:
    """The leading row's name is bold; raised behind a name are the numbers of what is not like the paper in its row."""
    heads, *rows = ([*map(tex, cells)] for cells in grid(column, LEFT_OUT[part]))
    for line, row in zip(column.lines, rows, strict=True):
        name = f"\\textbf{{{row[0]}}}" if line.name == column.lead else row[0]
        marks = tex(signs(line, numbers, ","))  # in brackets, for a name may end in a number
        row[0] = f"{name}\\textsuperscript{{({marks})}}" if marks else name
    note = "Scores in percent, mean ± std over n seeds"
    note += "." if part == LAST else ", at the round chosen on validation where no other is named."
    if part != SCORES and "lead_minus_row_f1" in fillable(column):
        note += f" Lead: {column.lead}; lead − row: macro-F1 at the round chosen on validation."
    caption = f"{outcome.title}: {column.title}{f', {LAST}' if part == LAST else ''}."
    return floating(caption, _label(outcome, column, part), [heads, *rows], [note])
