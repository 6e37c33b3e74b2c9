"""Tables in LaTeX, by booktabs and in ASCII, none wider than the line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedbm.report.grouping import Group, compare
from fedbm.report.render.escaping import tex
from fedbm.report.tables import METRICS, Cell, grid, shown, without_result
from fedbm.runs.reader import read_runs

NEEDS = "% needs \\usepackage{booktabs,graphicx}"
FITTED = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"  # smaller, only where it must be


def latex_table(run_dirs: Sequence[Path]) -> str:
    """Two tables per group: at the round chosen on validation and at the last; the best of each column are bold."""
    out = [NEEDS]
    for group in compare(read_runs(run_dirs)):
        out += _tables(group) if group.rows else []
        out += prose(group.title, map(tex, without_result(group))) if group.unfinished else []
    return "\n".join(out).rstrip() + "\n"


def _tables(group: Group) -> list[str]:
    heads, *rows = grid(group, _bold)
    lines = [[*map(tex, heads)], *([tex(name), *cells] for name, *cells in rows)]
    split = 2 + len(METRICS)  # after the method, its seeds and the scores of the chosen round
    notes = ["Scores in percent, mean ± std over seeds."]
    return [
        *floating(f"{group.title}.", label(group.title), [line[:split] for line in lines], notes),
        *floating(
            *(f"{group.title}, last round.", label(f"{group.title} last")),
            *([[*line[:2], *line[split:]] for line in lines], notes),
        ),
    ]


def _bold(cell: Cell) -> str:
    return f"\\textbf{{{tex(shown(cell))}}}" if cell.best else tex(shown(cell))


def label(text: str) -> str:
    r"""The same for the same text, so that a document's references outlast a new report.

    >>> label("digits, Dirichlet β = 0.05")
    'tab:digits-Dirichlet-beta-0.05'
    """
    return "tab:" + re.sub(r"[^A-Za-z0-9.]+", "-", tex(text)).strip("-")


def floating(caption: str, name: str, lines: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> list[str]:
    """A table across all columns of a page, labelled *name*: *lines*, the heads first, are LaTeX; *notes* are short."""
    heads, *rows = (" & ".join(cells) + " \\\\" for cells in lines)
    return [
        *("\\begin{table*}", "\\centering", "\\footnotesize", "\\setlength{\\tabcolsep}{3pt}"),
        *(f"\\caption{{{tex(caption)}}}", f"\\label{{{name}}}", "\\medskip"),
        *(FITTED, f"\\begin{{tabular}}{{l{'r' * (len(lines[0]) - 1)}}}", "\\toprule"),
        *(heads, "\\midrule", *rows, "\\bottomrule", "\\end{tabular}}"),
        *(f"\\par\\smallskip\\raggedright {tex(note)}" for note in notes),
        *("\\end{table*}", ""),
    ]


def prose(title: str, paragraphs: Iterable[str]) -> list[str]:
    """Small text that may run over pages, which a table may not; *paragraphs* are LaTeX."""
    opened = f"{{\\par\\medskip\\footnotesize\\raggedright\\noindent\\textbf{{{tex(title)}.}}"
    return [opened, *(f"\\par\\noindent {words}" for words in paragraphs), "\\par}", ""]
