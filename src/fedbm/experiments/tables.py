"""Outcomes as Markdown, LaTeX and CSV. A cell without a result says why, in words that cannot be taken for a number."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from fedbm.experiments.analysis import Column, Line, columns
from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.search import search
from fedbm.experiments.wording import verdicts
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
    *("paper_accuracy", "paper_f1", "lead_minus_row_f1", "p", "p_holm", "effect_size", "missing"),
)


def cells_of(line: Line) -> list[str]:
    """One line of a table as texts, in the order of HEADS."""
    row = line.row
    shown: list[str] = []
    for metric in SHOWN:
        shown.append(plus_minus(row.score("best", metric)) if row else line.why)
        paper = line.published
        shown.append(f"{paper.mean[metric]:.1f} ± {paper.std[metric]:.1f}" if paper else "–")
        shown.append(difference(line, metric))
    shown.append(plus_minus(row.score("last", "f1")) if row else line.why)
    unlike = ", ".join(dict.fromkeys(one.mark for one in line.unlike))
    return [line.name, str(len(row.runs)) if row else "0", *shown, *test_of(line), unlike]


def plus_minus(score: Spread | None) -> str:
    if score is None:
        return "–"
    return percent(score.mean) + (f" ± {percent(score.std)}" if score.std is not None else "")


def difference(line: Line, metric: str) -> str:
    """Ours − the paper's, in points; only where both are and mean the same."""
    score = line.row.score("best", metric) if line.row else None
    if score is None or line.published is None or not line.comparable:
        return "–"
    return points(score.mean - line.published.mean[metric] / 100)


def test_of(line: Line) -> list[str]:
    """Difference, p, p after Holm, effect size; dashes where there is nothing to test."""
    found = line.against
    if found is None:
        return ["–"] * 4
    p = "–" if found.p is None else probability(found.p)
    corrected = "–" if line.corrected is None else probability(line.corrected)
    return [points(found.mean), p, corrected, "–" if found.size is None else f"{found.size:.1f}".replace("-", "−")]


def markdown(outcomes: Sequence[Outcome]) -> str:
    out: list[str] = []
    for outcome in outcomes:
        out += [f"## {outcome.title}", "", f"{outcome.shows}. `{outcome.command}`".removeprefix(". "), ""]
        out += [f"- {note}" for note in outcome.notes] + [""] * bool(outcome.notes)
        found = columns(outcome)
        for column in found:
            out += [
                f"**{column.title}**",
                "",
                *(f"- {verdict.sentence}" for verdict in verdicts(column)),
                "",
                _bar(HEADS),
                _bar(["---", *["---:"] * (len(HEADS) - 1)]),
            ]
            out += [_bar(_bold(column, line)) for line in column.lines]
            out += ["", *_missing(column), ""]
        out += [*_unlike(found), "", *_searched(outcome)]
    return "\n".join(out).rstrip() + "\n"


def _bold(column: Column, line: Line) -> list[str]:
    shown = [cell.replace("|", "\\|") for cell in cells_of(line)]
    return [f"**{cell}**" if place == 0 and line.name == column.lead else cell for place, cell in enumerate(shown)]


def _missing(column: Column) -> list[str]:
    """Why cells are empty or have fewer seeds, each reason once."""
    reasons: dict[str, list[str]] = {}
    for line in column.lines:
        for result in line.missing:
            reasons.setdefault(f"{result.state}: {result.why}" if result.why else result.state, []).append(
                f"{line.name} (seed {result.seed})"
            )
    return [f"- {why}: {', '.join(who)}." for why, who in reasons.items()]


def _unlike(found: Sequence[Column]) -> list[str]:
    unlike = dict.fromkeys(one for column in found for line in column.lines for one in line.unlike)
    return [f"- Not like the paper, {one.mark}: {one.ours}; the paper: {one.paper}; {one.why}." for one in unlike]


def _searched(outcome: Outcome) -> list[str]:
    """What was tried and what validation chose."""
    if not outcome.search:
        return []
    heads = ["Row", *outcome.axes, "n", "validation accuracy + macro-F1", ""]
    return ["**Chosen on validation**", "", _bar(heads), _bar(["---"] * len(heads)), *map(_bar, searched(outcome)), ""]


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
    """booktabs tables: ours, the paper's, the difference; p after Holm."""
    out = ["% needs \\usepackage{booktabs}"]
    heads = ["Method", "$n$", "Accuracy", "paper", "$\\Delta$", "Macro-F1", "paper", "$\\Delta$", "$p$ (Holm)"]
    for outcome in outcomes:
        for column in columns(outcome):
            out += ["\\begin{table}", f"\\caption{{{_tex(outcome.title)}: {_tex(column.title)}.}}"]
            out += ["\\begin{tabular}{lrrrrrrrr}", "\\toprule", " & ".join(heads) + " \\\\", "\\midrule"]
            for line in column.lines:
                shown = cells_of(line)
                kept = [*shown[:8], shown[11]]
                out.append(" & ".join(_tex(cell) for cell in kept) + " \\\\")
            out += ["\\bottomrule", "\\end{tabular}", "\\end{table}", ""]
    return "\n".join(out)


def _tex(text: str) -> str:
    for sign, written in (("\\", "\\textbackslash{}"), ("&", "\\&"), ("%", "\\%"), ("_", "\\_"), ("#", "\\#")):
        text = text.replace(sign, written)
    signs = {
        "±": "$\\pm$",
        "−": "$-$",
        "–": "--",
        "λ": "$\\lambda$",
        "β": "$\\beta$",
        "<": "$<$",
        "\N{NO-BREAK SPACE}": "~",
    }
    for sign, written in signs.items():
        text = text.replace(sign, written)
    return text


def comma_separated(outcomes: Sequence[Outcome]) -> str:
    """One line per experiment, cell, row and moment, with all digits; what is missing has its state and no numbers."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(FIELDS)
    for outcome in outcomes:
        for column in columns(outcome):
            for line in column.lines:
                for moment in MOMENTS:
                    writer.writerow(_values(outcome, column, line, moment))
    return written.getvalue()


def _values(outcome: Outcome, column: Column, line: Line, moment: str) -> list[object]:
    scores = [line.row.score(moment, metric) if line.row else None for metric in SHOWN]
    numbers = [value for score in scores for value in ((score.mean, score.std) if score else (None, None))]
    paper = [line.published.mean[metric] / 100 if line.published else None for metric in SHOWN]
    found = line.against if moment == "best" else None
    test = [found.mean, found.p, line.corrected, found.size] if found else [None] * 4
    n = len(line.row.runs) if line.row else 0
    return [outcome.name, column.title, line.name, moment, n, *numbers, *paper, *test, line.why]
