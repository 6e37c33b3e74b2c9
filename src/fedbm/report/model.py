"""What a report contains, independent of how it is shown: text, tables of typed cells, figures and notes.

The builders (`runs_report`, `experiments_report`) make a Report from runs or experiments; the renderers in `render/`
turn it into HTML, Markdown, LaTeX, CSV or terminal output. A cell keeps its number with all digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["text", "count", "percent", "points", "printed", "probability", "effect", "score", "bytes", "seconds"]


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a number and how to write it, or words."""

    value: float | str | None  # None: there is no value
    kind: Kind = "text"
    std: float | None = None
    low: float | None = None  # shown as a range below the value, if it differs in print
    high: float | None = None
    best: bool = False  # the highest of its column
    missing: bool = False  # the words say why there is no number


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    group: str = ""  # a heading over adjacent columns
    flat: str = ""  # the heading where there are no groups; "": the title
    text: bool = False  # aligned to the left

    @property
    def heading(self) -> str:
        """Return the heading for formats without column groups."""
        return self.flat or self.title


@dataclass(frozen=True)
class Row:
    """One line of a table. *block* is a heading over adjacent rows; *notes* are numbers of the report's notes."""

    name: str
    cells: Mapping[str, Cell]
    block: str = ""
    colour: int | None = None
    lead: bool = False
    notes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    name: str  # unique in the report
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    head: str = "Method"
    small: bool = False
    folded: str = ""  # the words that open it; "": it is open
    detail: bool = False  # part of the HTML page only


@dataclass(frozen=True)
class Text:
    """Paragraphs. *role*: how much weight they have on a page."""

    sentences: tuple[str, ...]
    role: Literal["lead", "verdict", "more", "note", "list", "facts", "titles", "absent"] = "list"
    code: str = ""  # a command, after the last sentence
    detail: bool = False


@dataclass(frozen=True)
class Finding:
    """A checked statement: it holds, or the reader should take care. *items* are listed below it."""

    holds: bool
    sentence: str
    items: tuple[str, ...] = ()
    summary: str = ""  # the words that open the items
    code: str = ""


@dataclass(frozen=True)
class Findings:
    items: tuple[Finding, ...]
    detail: bool = False


@dataclass(frozen=True)
class Figure:
    """A drawing, made only when a renderer asks for it."""

    draw: Callable[[], str] = field(compare=False)  # → SVG
    caption: str = ""


@dataclass(frozen=True)
class Figures:
    """Named panels of figures; several panels become a switch. *wide*: a figure takes the whole width."""

    panels: Mapping[str, Sequence[Figure]]
    wide: bool = True
    label: str = ""


@dataclass(frozen=True)
class Gallery:
    """Images by class, as data URIs; with *rounds*, how they changed over training."""

    caption: str
    images: tuple[tuple[str, str], ...]
    large: bool
    smooth: bool
    rounds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pairs:
    """Terms and their meaning."""

    pairs: tuple[tuple[str, str], ...]
    summary: str = ""  # the words that open it; "": it is open
    reading: bool = False  # set as text


@dataclass(frozen=True)
class Section:
    """A heading with what there is to see. *detail*: part of the HTML page only."""

    heading: str
    note: str = ""
    blocks: tuple[Block, ...] = ()
    whole: bool = False  # takes the whole width
    detail: bool = False


@dataclass(frozen=True)
class Fold:
    """Sections behind a line that opens them."""

    summary: str
    blocks: tuple[Block, ...]
    detail: bool = True


@dataclass(frozen=True)
class Part:
    """A chapter: one experiment, or one group of runs."""

    title: str
    blocks: tuple[Block, ...]
    count: str = ""  # "62 of 63 runs"
    summary: tuple[str, ...] = ()  # sentences for the contents
    notes: tuple[int, ...] = ()
    titled: bool = True


@dataclass(frozen=True)
class Note:
    number: int
    title: str
    text: str


@dataclass(frozen=True)
class Provenance:
    """Where the numbers of one run come from."""

    summary: str
    command: str
    environment: Mapping[str, Any]
    config: str


@dataclass(frozen=True)
class Report:
    title: str
    opening: tuple[Block, ...]
    parts: tuple[Part, ...]
    closing: tuple[Section, ...] = ()
    notes: tuple[Note, ...] = ()
    reading: tuple[tuple[str, str], ...] = ()  # term → how to read it
    provenance: tuple[Provenance, ...] = ()
    data: Table | None = None  # every number with all digits, for programs
    contents: bool = True  # whether the opening lists the parts


Block = Text | Table | Findings | Figures | Gallery | Pairs | Section | Fold


def figure_section(heading: str, note: str, figures: Figures, why: str, more: tuple[Block, ...] = ()) -> Section:
    """Return a section of figures, or the reason why there are none."""
    first: Block = figures if figures.panels else Text((why,), "absent")
    return Section(heading, note, (first, *more), detail=True)
