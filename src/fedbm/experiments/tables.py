"""Outcomes as Markdown and CSV. A cell without a result says why, in words that cannot be taken for a number."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedbm.experiments.analysis import Column, Line, columns
from fedbm.experiments.contrasts import Contrast
from fedbm.experiments.outcomes import Outcome, title_of
from fedbm.experiments.paper_numbers import Deviation
from fedbm.experiments.remaining import count_remaining, list_unrecorded
from fedbm.experiments.search import search
from fedbm.experiments.wording import effect, verdicts
from fedbm.report.render.escaping import md
from fedbm.report.statistics import Paired, Spread
from fedbm.report.text import percent, points, probability

SHOWN = {"accuracy": "Accuracy", "f1": "Macro-F1"}
MOMENTS = ("best", "last", "last_quarter")
AVERAGED = ("averaged", "averaged_last_quarter")  # the same of the averaged model, where an experiment has one
HEADS = {
    "row": "Method",
    "n": "n",
    "accuracy": "Accuracy",
    "paper_accuracy": "paper",
    "accuracy_minus_paper": "Δ",
    "f1": "Macro-F1",
    "paper_f1": "paper",
    "f1_minus_paper": "Δ",
    "last_f1": "F1, last round",
    "last_quarter_f1": "F1, last quarter",
    "averaged_accuracy": "Accuracy, averaged",
    "averaged_f1": "F1, averaged",
    "lead_minus_row_f1": "lead − row",
    "p": "p",
    "p_holm": "p (Holm)",
    "effect_size": "d",
    "unlike": "unlike",
}

FIELDS = (
    *("experiment", "cell", "row", "round", "n", "accuracy", "accuracy_std", "f1", "f1_std"),
    *("paper_accuracy", "paper_accuracy_std", "paper_f1", "paper_f1_std", "accuracy_minus_paper", "f1_minus_paper"),
    *("lead", "lead_minus_row_f1", "low", "high", "p", "p_holm", "p_sign_flip", "effect_size"),
    *("unlike", "unlike_in_words", "missing", "missing_in_words", "command"),
)


def grid(column: Column, without: Sequence[str] = ()) -> list[list[str]]:
    """The table as texts, its heads first: all of HEADS but those *without* and those that no line can fill."""
    kept = [key for key in fillable(column) if key not in without]
    return [[shown[key] for key in kept] for shown in (HEADS, *map(cells_of, column.lines))]


def fillable(column: Column) -> list[str]:
    """The keys of HEADS under which some line has a value, or will have one when its runs are finished."""
    paper = any(line.published for line in column.lines)
    apart = any(line.published and line.comparable for line in column.lines)
    rivals = [line for line in column.lines if line.rival]
    tested = any(line.seeds > 1 for line in rivals)
    can = {
        **dict.fromkeys(("paper_accuracy", "paper_f1"), paper),
        **dict.fromkeys(("accuracy_minus_paper", "f1_minus_paper"), apart),
        **dict.fromkeys(("averaged_accuracy", "averaged_f1"), has_average(column)),
        "lead_minus_row_f1": bool(rivals),
        **dict.fromkeys(("p", "p_holm", "effect_size"), tested),
        "unlike": column.lists_unlike,
    }
    return [key for key in HEADS if can.get(key, True)]


def has_average(column: Column) -> bool:
    """Return whether any run of the column has an averaged model."""
    return any(run.scores("averaged") for line in column.lines if line.row for run in line.row.runs)


def cells_of(line: Line) -> dict[str, str]:
    """One line of a table as texts, by the keys of HEADS; a dash where there is no value."""
    row, test = line.row, line.against
    return {
        "row": line.name,
        "n": str(len(row.runs)) if row else "0",
        **{metric: _plus_minus(row.score("best", metric)) if row else line.why for metric in SHOWN},
        **{f"paper_{metric}": line.published.shown(metric) if line.published else "–" for metric in SHOWN},
        **{f"{metric}_minus_paper": _text(line.minus_paper(metric), points) for metric in SHOWN},
        **{f"{at}_f1": _plus_minus(row.score(at, "f1")) if row else line.why for at in ("last", "last_quarter")},
        **{f"averaged_{metric}": _plus_minus(row.score("averaged", metric)) if row else line.why for metric in SHOWN},
        "lead_minus_row_f1": _text(test.mean if test else None, points),
        "p": _text(test.p if test else None, probability),
        "p_holm": _text(line.corrected, probability),
        "effect_size": _text(test.size if test else None, effect),
        "unlike": _marks(line),
    }


def _plus_minus(score: Spread | None) -> str:
    if score is None:
        return "–"
    return percent(score.mean) + (f" ± {percent(score.std)}" if score.std is not None else "")


def _text(value: float | None, words: Callable[[float], str]) -> str:
    return "–" if value is None else words(value)


def markdown(outcomes: Sequence[Outcome], whole: bool = False) -> str:
    """*whole*: these are all records there are, so that the paper's other experiments are listed as not run."""
    out = [f"# {md(title_of(outcomes))}", ""] if whole else []
    for outcome in outcomes:
        out += [f"## {md(outcome.title)}", "", f"{md(outcome.shows)}. `{outcome.command}`".removeprefix(". "), ""]
        out += [f"- {md(note)}" for note in outcome.notes] + [""] * bool(outcome.notes)
        found = columns(outcome)
        for column in found:
            if column.empty:
                out += [f"**{md(column.title)}**: {md('; '.join(column.missing))}.", ""]
                continue
            out += [f"**{md(column.title)}**", ""]
            said = [f"- {md(verdict.sentence)}" for verdict in verdicts(column)]
            out += [*said, *[""] * bool(said), *(bars(column) if column.lead else _folded(bars(column))), ""]
            out += [*(f"- {md(words)}." for words in column.missing), *[""] * bool(column.missing)]
        remaining = count_remaining(outcome)
        out += [f"- Remaining runs: {remaining}."] if remaining else []
        out += [*(f"- Not like the paper, {md(in_words(one))}." for one in numbered(found)), "", *_searched(outcome)]
    others = list_unrecorded(outcomes) if whole else []
    out += ["## Not run", ""] * bool(others)
    out += [f"- **{md(one.title)}.** {md(one.sentence)} `{one.command}`" for one in others]
    return "\n".join(out).rstrip() + "\n"


def bars(column: Column, without: Sequence[str] = ()) -> list[str]:
    """The table in Markdown, the leading row's name bold."""
    heads, *rows = grid(column, without)
    out = [_bar(heads), _bar(["---", *["---:"] * (len(heads) - 1)])]
    for name, *cells in rows:
        shown = f"**{md(name)}**" if name == column.lead else md(name)
        out.append(_bar([shown, *map(md, cells)]))
    return out


def _folded(table: Sequence[str]) -> list[str]:
    """As a reader of Markdown opens it by a click: the table of a cell in which nothing is finished."""
    return ["<details><summary>The table says why, row by row</summary>", "", *table, "", "</details>"]


def differences(found: Sequence[Column]) -> list[str]:
    """One Markdown table of all columns: leading row − every row tested against it, and the paper's difference."""
    out = [_bar(["", "macro-F1 of", "points", "paper", "n", "p", "p (Holm)"]), _bar(["---", "---", *["---:"] * 5])]
    for column in found:
        for line in column.lines:
            if line.against is not None:
                what, cells = md(f"{column.lead} − {line.name}"), cells_of(line)
                points_of = [cells["lead_minus_row_f1"], _text(column.printed_against(line), points)]
                out.append(_bar([md(column.title), what, *points_of, str(line.against.n), cells["p"], cells["p_holm"]]))
    return out


def numbered(found: Sequence[Column]) -> dict[Deviation, int]:
    """What is not like the paper in these columns, counted from 1 in the order of their rows."""
    unlike = dict.fromkeys(one for column in found for line in column.lines for one in line.unlike)
    return {one: number for number, one in enumerate(unlike, 1)}


def signs(line: Line, numbers: Mapping[Deviation, int], between: str) -> str:
    """The numbers of what is not like the paper in this line, ascending, three or more in a row as first–last."""
    return between.join(_ranges(sorted(numbers[one] for one in line.unlike)))


def _ranges(numbers: Sequence[int]) -> list[str]:
    """
    >>> _ranges([1, 2, 3, 5, 6, 9])
    ['1–3', '5', '6', '9']
    """
    stretches: list[list[int]] = []
    for number in numbers:
        if stretches and number == stretches[-1][-1] + 1:
            stretches[-1].append(number)
        else:
            stretches.append([number])
    return [words for some in stretches for words in ([f"{some[0]}–{some[-1]}"] if len(some) > 2 else map(str, some))]


def _marks(line: Line) -> str:
    return ", ".join(dict.fromkeys(one.mark for one in line.unlike))


def in_words(one: Deviation) -> str:
    return f"{one.mark}: {one.ours}; the paper: {one.paper}; {one.why}"


def _searched(outcome: Outcome) -> list[str]:
    """What was tried and what validation chose."""
    if not outcome.search:
        return []
    heads, *rows = ([*map(md, cells)] for cells in (search_heads(outcome), *searched(outcome)))
    return ["**Chosen on validation**", "", _bar(heads), _bar(["---"] * len(heads)), *map(_bar, rows), ""]


def search_heads(outcome: Outcome) -> list[str]:
    return ["Row", *outcome.axes, "n", "validation accuracy + macro-F1", ""]


def searched(outcome: Outcome) -> list[list[str]]:
    """A line per combination: row, the axes' values, n, the validation score, and whether it is chosen."""
    lines = []
    for one in search(outcome):
        at = {**one.at, **one.tried}
        score = one.score
        shown = "not complete" if score is None else f"{score.mean:.3f}" + (f" ± {score.std:.3f}" if score.std else "")
        values = [str(at[axis]) for axis in outcome.axes]
        lines.append([one.row, *values, str(score.n if score else 0), shown, one.words])
    return lines


def _bar(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def comma_separated(outcomes: Sequence[Outcome], whole: bool = False) -> str:
    """One line per experiment, cell, row and moment, with all digits; what is missing has its state and no numbers.

    Scores are shares of 1. A difference to the paper stands with the round that the paper's numbers are of. Of what is
    missing there is the reason with its seeds.
    """
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(FIELDS)
    for outcome in outcomes:
        moments = (*MOMENTS, *AVERAGED) if any(map(has_average, columns(outcome))) else MOMENTS
        for both in zip(*(columns(outcome, moment) for moment in moments), strict=True):
            for lines in zip(*(column.lines for column in both), strict=True):
                for moment, column, line in zip(moments, both, lines, strict=True):
                    writer.writerow(_values(outcome, column, line, moment))
            writer.writerows(_contrast_values(outcome, both[0], contrast) for contrast in both[0].contrasts)
    for one in list_unrecorded(outcomes) if whole else []:
        said = ["not run", one.needs, one.command]
        writer.writerow([one.name, *[""] * (len(FIELDS) - 1 - len(said)), *said])
    return written.getvalue()


def _values(outcome: Outcome, column: Column, line: Line, moment: str) -> list[object]:
    scores = [line.row.score(moment, metric) if line.row else None for metric in SHOWN]
    numbers = [value for score in scores for value in ((score.mean, score.std) if score else (None, None))]
    theirs = line.published
    both = (theirs.mean, theirs.std) if theirs else ({}, {})
    paper = [round(part[metric] / 100, 6) if metric in part else None for metric in SHOWN for part in both]
    apart = [line.minus_paper(metric) if moment == "best" else None for metric in SHOWN]
    found = line.against
    test = [*_interval(found), found.p, line.corrected, None, found.size] if found else [None] * 7
    n = len(line.row.runs) if line.row else 0
    unlike = [_marks(line), " | ".join(map(in_words, line.unlike))]
    kept = [outcome.name, column.title, line.name, moment, n, *numbers, *paper, *apart]
    why = " | ".join(replace(column, lines=(line,)).missing)
    return [*kept, column.lead, *test, *unlike, line.why, why, outcome.command]


def _contrast_values(outcome: Outcome, column: Column, contrast: Contrast) -> list[object]:
    """A line of CSV for first − second: *lead* is the first row, *row* the second; p only where it is tested."""
    found = contrast.found
    head = {"experiment": outcome.name, "cell": column.title, "row": contrast.second, "round": contrast.endpoint}
    value: dict[str, object] = {**head, "lead": contrast.first, "command": outcome.command}
    if found is not None:
        value |= zip(("lead_minus_row_f1", "low", "high"), _interval(found), strict=True)
        value |= {"n": found.n, "effect_size": found.size, "p": found.p if contrast.tested else None}
        value |= {"p_holm": contrast.corrected, "p_sign_flip": contrast.sign_flip}
    return [value.get(key) for key in FIELDS]


def _interval(found: Paired) -> list[float | None]:
    """Mean and 95 % interval, which one pair does not have."""
    return [found.mean, *((found.low, found.high) if found.n > 1 else (None, None))]
