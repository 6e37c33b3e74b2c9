"""Tables in LaTeX, by booktabs and in ASCII."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbm.results.compare import compare
from fedbm.results.escaping import tex
from fedbm.results.runs import read_runs
from fedbm.results.tables import grid, without_result

NEEDS = "% needs \\usepackage{booktabs}"


def latex_table(run_dirs: Sequence[Path]) -> str:
    """A table per group, as markdown_table() has them."""
    out = [NEEDS]
    for group in compare(read_runs(run_dirs)):
        notes = ["Scores in percent, mean ± std over seeds.", *without_result(group)]
        out += floating(f"{group.title}.", grid(group), notes)
    return "\n".join(out).rstrip() + "\n"


def floating(
    caption: str, lines: Sequence[Sequence[str]], notes: Sequence[str], marks: Sequence[str] = ()
) -> list[str]:
    """A table as wide as a page: *lines*, the heads first, with *marks* above the first cell of each; *notes* below."""
    made = []
    for place, cells in enumerate(lines):
        mark = f"\\textsuperscript{{{tex(marks[place])}}}" if marks and marks[place] else ""
        first, *rest = map(tex, cells)
        made.append(" & ".join([first + mark, *rest]) + " \\\\")
    return [
        *("\\begin{table*}", "\\centering", "\\footnotesize", "\\setlength{\\tabcolsep}{3pt}"),
        *(f"\\caption{{{tex(caption)}}}", f"\\begin{{tabular}}{{l{'r' * (len(lines[0]) - 1)}}}", "\\toprule"),
        *(made[0], "\\midrule", *made[1:], "\\bottomrule", "\\end{tabular}"),
        *(f"\\par\\raggedright {tex(note)}" for note in notes),
        *("\\end{table*}", ""),
    ]
