"""Render a report as LaTeX in UTF-8: booktabs tables no wider than the line, with their text."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

from fedbm.report.document import (
    Block,
    Cell,
    Findings,
    Report,
    Row,
    Section,
    Table,
    Text,
    drop_details,
    group_adjacent,
)
from fedbm.report.format import format_cell, format_numbers

NEEDS = "% needs \\usepackage{booktabs,graphicx}; with pdflatex also \\usepackage{textalpha}, for Greek letters"
SPECIAL = {sign: f"\\{sign}" for sign in "&%$#_{}"}
SPECIAL |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
SPECIAL |= {"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"}  # LaTeX's default fonts print ¡, ¿ and —
SPECIAL |= {"ⁿ": "\\textsuperscript{n}"}  # pdflatex knows neither this nor the next three
SPECIAL |= {"−": "\\ensuremath{-}", "≤": "\\ensuremath{\\leq}", "≥": "\\ensuremath{\\geq}"}
CODE = re.compile(r"(?<![^\s(])'([^'\n]+)'(?!\w)")  # 'fedbm features RUN'
FITTED = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"  # shrink only wide tables
MAX_COLUMNS = 8  # without the row's name; a table with more is printed in parts


def escape(text: str) -> str:
    r"""Escape special characters, join lines, keep two hyphens apart, and set code in a typewriter font.

    >>> print(escape("τ, λ_dis & 50 %; 'fedbm data' takes --to"))
    τ, λ\_dis \& 50 \%; \texttt{fedbm data} takes -{}-to
    """
    escaped = "".join(SPECIAL.get(sign, sign) for sign in " ".join(text.splitlines()))
    return CODE.sub(r"\\texttt{\1}", re.sub("-(?=-)", "-{}", escaped))


def render_latex(report: Report) -> str:
    """Return tables with captions and labels, each followed by its text; the notes once, at the end."""
    out = [NEEDS, "", *_blocks(report.opening, report.title)]
    for part in report.parts:
        out += [f"\\subsection*{{{escape(part.title)}}}", *_blocks(part.blocks, part.title)]
        out += [_paragraph(f"Notes on this experiment: {format_numbers(part.notes)}.")] if part.notes else []
    out += _blocks(report.closing, report.title)
    if report.notes:
        out += ["\\subsection*{Notes}", "{\\footnotesize\\raggedright"]
        for note in report.notes:
            title = f"\\textbf{{{escape(note.title)}.}} " if note.title else ""
            out.append(f"\\par\\noindent ({note.number}) {title}{escape(note.text)}")
        out.append("\\par}")
    return "\n".join(out).rstrip() + "\n"


def _blocks(blocks: Iterable[Block], title: str) -> list[str]:
    """Return the lines of all blocks except tables without a result."""
    out: list[str] = []
    for block in drop_details(blocks):
        if isinstance(block, Section):
            inner = _blocks(block.blocks, f"{title}: {block.heading}")
            out += [f"\\paragraph{{{escape(block.heading)}.}}", *inner] if inner else []
        elif isinstance(block, Text):
            out.append(_paragraph(" ".join(block.sentences), block.code))
        elif isinstance(block, Findings):
            out += [_paragraph(one.text, one.code) for one in block.items]
        elif isinstance(block, Table) and any(not any(c.missing for c in row.cells.values()) for row in block.rows):
            out += [line for start in range(0, len(block.columns), MAX_COLUMNS) for line in _table(block, start)]
    return out


def _paragraph(text: str, command: str = "") -> str:
    return f"\\par\\noindent {escape(text)}" + (f" \\texttt{{{escape(command)}}}" if command else "")


def label(text: str) -> str:
    """Return the same label for the same text, so that references survive a new report.

    A label has ASCII letters alone. Where other letters are left out, it ends with a checksum of the text.

    >>> label("digits, Dirichlet β = 0.05"), label("皮肤")
    ('tab:digits-Dirichlet-beta-0.05', 'tab:f37ec73e')
    """
    words = text.replace("β", "beta")
    checksum = "" if all(one.isascii() for one in words if one.isalnum()) else f" {zlib.crc32(text.encode()):08x}"
    return "tab:" + re.sub(r"[^A-Za-z0-9.]+", "-", words + checksum).strip("-")


def _table(table: Table, start: int) -> list[str]:
    """Return a float across all columns of a page, with the table's columns from *start* on.

    The numbers of notes are raised behind a row's name.
    """
    columns = table.columns[start : start + MAX_COLUMNS]
    name = f"{table.name}, part {start // MAX_COLUMNS + 1}" if start else table.name
    titles = [column.heading for column in columns]
    lines = [" & ".join(map(escape, [table.head, *titles])) + " \\\\", "\\midrule"]
    for block, rows in group_adjacent(table.rows, "block"):
        if block:
            lines.append(f"\\multicolumn{{{len(columns) + 1}}}{{l}}{{\\emph{{{escape(block)}}}}} \\\\")
        lines += [
            " & ".join([_name(row), *(_cell(row.cells[column.key]) for column in columns)]) + " \\\\" for row in rows
        ]
    return [
        *("\\begin{table*}", "\\centering", "\\footnotesize", "\\setlength{\\tabcolsep}{3pt}"),
        *(f"\\caption{{{escape(name)}.}}", f"\\label{{{label(name)}}}", "\\medskip"),
        *(FITTED, f"\\begin{{tabular}}{{l{''.join('l' if column.text else 'r' for column in columns)}}}", "\\toprule"),
        *(*lines, "\\bottomrule", "\\end{tabular}}"),
        *([f"\\par\\smallskip\\raggedright {escape(table.caption)}"] if table.caption else []),
        *("\\end{table*}", ""),
    ]


def _name(row: Row) -> str:
    """Return a row's name, bold if it leads; in braces, because \\\\ followed by a bracket takes an argument."""
    name = f"\\textbf{{{escape(row.name)}}}" if row.lead else f"{{{escape(row.name)}}}"
    return f"{name}\\textsuperscript{{({format_numbers(row.notes)})}}" if row.notes else name


def _cell(cell: Cell) -> str:
    text = escape(format_cell(cell))
    return f"\\textbf{{{text}}}" if cell.best else text
