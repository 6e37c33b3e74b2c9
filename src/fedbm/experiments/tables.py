"""Outcomes as Markdown, LaTeX and CSV. A cell without a result says why, in words that cannot be taken for a number."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from fedbm.experiments.analysis import Column, Line, columns
from fedbm.experiments.escaping import tex
from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.published import Deviation
from fedbm.experiments.search import search
from fedbm.experiments.wording import effect, verdicts
from fedbm.results.statistics import Spread
from fedbm.results.wording import percent, points, probability

SHOWN = {"accuracy": "Accuracy", "f1": "Macro-F1"}
MOMENTS = ("best", "last")
HEADS = (
    "Method",
    "n",
    "Accuracy",
    "paper",
    "Δ",
    "Macro-F1",
    "paper",
    "Δ",
    "F1, last round",
    "lead − row",
    "p",
    "p Holm",
    "d",
    "unlike",
)

FIELDS = (
    *("experiment", "cell", "row", "round", "n", "accuracy", "accuracy_std", "f1", "f1_std"),
    *("paper_accuracy", "paper_accuracy_std", "paper_f1", "paper_f1_std", "accuracy_minus_paper", "f1_minus_paper"),
    *("lead", "lead_minus_row_f1", "p", "p_holm", "effect_size", "unlike", "unlike_in_words", "missing"),
)


def cells_of(line: Line) -> list[str]:
    """One line of a table as texts, in the order of HEADS."""
    row = line.row
    shown: list[str] = []
    for metric in SHOWN:
        shown.append(plus_minus(row.score("best", metric)) if row else line.why)
        shown += [printed(line, metric), difference(line, metric)]
    shown.append(plus_minus(row.score("last", "f1")) if row else line.why)
    return [line.name, str(len(row.runs)) if row else "0", *shown, *test_of(line), _marks(line)]


def plus_minus(score: Spread | None) -> str:
    if score is None:
        return "–"
    return percent(score.mean) + (f" ± {percent(score.std)}" if score.std is not None else "")


def printed(line: Line, metric: str) -> str:
    """The paper's number with the digits it prints."""
    return line.published.shown(metric) if line.published else "–"


def difference(line: Line, metric: str) -> str:
    """Ours − the paper's, in points; only where both are and mean the same."""
    found = _apart(line, metric)
    return "–" if found is None else points(found)


def _apart(line: Line, metric: str) -> float | None:
    score = line.row.score("best", metric) if line.row else None
    if score is None or line.published is None or not line.comparable:
        return None
    return score.mean - line.published.mean[metric] / 100


def test_of(line: Line) -> list[str]:
    """Difference, p, p after Holm, effect size; dashes where there is nothing to test."""
    found = line.against
    if found is None:
        return ["–"] * 4
    p = "–" if found.p is None else probability(found.p)
    corrected = "–" if line.corrected is None else probability(line.corrected)
    return [points(found.mean), p, corrected, "–" if found.size is None else effect(found.size)]


def markdown(outcomes: Sequence[Outcome]) -> str:
    out: list[str] = []
    for outcome in outcomes:
        out += [f"## {outcome.title}", "", f"{outcome.shows}. `{outcome.command}`".removeprefix(". "), ""]
        out += [f"- {note}" for note in outcome.notes] + [""] * bool(outcome.notes)
        found = columns(outcome)
        for column in found:
            out += [f"**{column.title}**", ""]
            said = [f"- {verdict.sentence}" for verdict in verdicts(column)]
            out += [*said, *[""] * bool(said), _bar(HEADS), _bar(["---", *["---:"] * (len(HEADS) - 1)])]
            out += [_bar(_bold(column, line)) for line in column.lines]
            out += ["", *(f"- {words}." for words in column.missing), ""]
        out += [*(f"- Not like the paper, {_in_words(one)}." for one in _unlike(found)), "", *_searched(outcome)]
    return "\n".join(out).rstrip() + "\n"


def _bold(column: Column, line: Line) -> list[str]:
    shown = [cell.replace("|", "\\|") for cell in cells_of(line)]
    return [f"**{cell}**" if place == 0 and line.name == column.lead else cell for place, cell in enumerate(shown)]


def _unlike(found: Sequence[Column]) -> list[Deviation]:
    return list(dict.fromkeys(one for column in found for line in column.lines for one in line.unlike))


def _marks(line: Line) -> str:
    return ", ".join(dict.fromkeys(one.mark for one in line.unlike))


def _in_words(one: Deviation) -> str:
    return f"{one.mark}: {one.ours}; the paper: {one.paper}; {one.why}"


def _searched(outcome: Outcome) -> list[str]:
    """What was tried and what validation chose."""
    if not outcome.search:
        return []
    heads = _search_heads(outcome)
    return ["**Chosen on validation**", "", _bar(heads), _bar(["---"] * len(heads)), *map(_bar, searched(outcome)), ""]


def _search_heads(outcome: Outcome) -> list[str]:
    return ["Row", *outcome.axes, "n", "validation accuracy + macro-F1", ""]


def searched(outcome: Outcome) -> list[list[str]]:
    """A line per combination: row, the axes' values, n, the validation score, and whether it is chosen."""
    lines = []
    for one in search(outcome):
        at = {**one.at, **one.tried}
        score = one.score
        shown = "not complete" if score is None else f"{score.mean:.3f}" + (f" ± {score.std:.3f}" if score.std else "")
        values = [str(at[axis]) for axis in outcome.axes]
        lines.append([one.row, *values, str(score.n if score else 0), shown, "chosen" if one.chosen else ""])
    return lines


def _bar(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def latex(outcomes: Sequence[Outcome]) -> str:
    """booktabs tables as wide as a page, in ASCII; below each what is missing and what is not like the paper."""
    out = ["% needs \\usepackage{booktabs}"]
    for outcome in outcomes:
        for column in columns(outcome):
            out += _table(outcome, column)
        if outcome.search:
            lines = [_search_heads(outcome), *searched(outcome)]
            out += _floating(f"{outcome.title}: chosen on validation.", lines, [])
    return "\n".join(out)


def _table(outcome: Outcome, column: Column) -> list[str]:
    numbers = {one: place for place, one in enumerate(_unlike([column]), 1)}
    heads = [*HEADS[:10], *HEADS[11:13]]  # p after correction alone
    lines = [heads]
    for line in column.lines:
        shown = cells_of(line)
        lines.append([*shown[:10], *shown[11:13]])
    signs = [",".join(map(str, sorted(numbers[one] for one in line.unlike))) for line in column.lines]
    notes = [f"Scores in percent, mean ± std over n seeds. Lead: {column.lead or 'none, nothing is finished'}."]
    notes += [f"{words}." for words in column.missing]
    notes += [f"({number}) Not like the paper, {_in_words(one)}." for one, number in numbers.items()]
    return _floating(f"{outcome.title}: {column.title}.", lines, notes, ["", *signs])


def _floating(
    caption: str, lines: Sequence[Sequence[str]], notes: Sequence[str], signs: Sequence[str] = ()
) -> list[str]:
    """*lines*, the heads first; *signs* are set above the first cell of each."""
    made = []
    for place, cells in enumerate(lines):
        sign = f"\\textsuperscript{{{signs[place]}}}" if signs and signs[place] else ""
        first, *rest = map(tex, cells)
        made.append(" & ".join([first + sign, *rest]) + " \\\\")
    return [
        *("\\begin{table*}", "\\centering", "\\footnotesize", "\\setlength{\\tabcolsep}{3pt}"),
        *(f"\\caption{{{tex(caption)}}}", f"\\begin{{tabular}}{{l{'r' * (len(lines[0]) - 1)}}}", "\\toprule"),
        *(made[0], "\\midrule", *made[1:], "\\bottomrule", "\\end{tabular}"),
        *(f"\\par\\raggedright {tex(note)}" for note in notes),
        *("\\end{table*}", ""),
    ]


def comma_separated(outcomes: Sequence[Outcome]) -> str:
    """One line per experiment, cell, row and moment, with all digits; what is missing has its state and no numbers.

    Scores are shares of 1. A difference to the paper stands with the round that the paper's numbers are of.
    """
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(FIELDS)
    for outcome in outcomes:
        for both in zip(*(columns(outcome, moment) for moment in MOMENTS), strict=True):
            for lines in zip(*(column.lines for column in both), strict=True):
                for moment, column, line in zip(MOMENTS, both, lines, strict=True):
                    writer.writerow(_values(outcome, column, line, moment))
    return written.getvalue()


def _values(outcome: Outcome, column: Column, line: Line, moment: str) -> list[object]:
    scores = [line.row.score(moment, metric) if line.row else None for metric in SHOWN]
    numbers = [value for score in scores for value in ((score.mean, score.std) if score else (None, None))]
    theirs = line.published
    both = (theirs.mean, theirs.std) if theirs else ({}, {})
    paper = [round(part[metric] / 100, 6) if metric in part else None for metric in SHOWN for part in both]
    apart = [_apart(line, metric) if moment == "best" else None for metric in SHOWN]
    found = line.against
    test = [found.mean, found.p, line.corrected, found.size] if found else [None] * 4
    n = len(line.row.runs) if line.row else 0
    unlike = [_marks(line), " | ".join(map(_in_words, line.unlike))]
    kept = [outcome.name, column.title, line.name, moment, n, *numbers, *paper, *apart]
    return [*kept, column.lead, *test, *unlike, line.why]
