"""The content of a report, independent of its format: text, tables of typed cells, figures and notes.

`runs_report` and `experiments_report` build a Report; `render/` turns it into HTML, Markdown, LaTeX, CSV or terminal
output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

Kind = Literal["text", "count", "percent", "points", "printed", "probability", "effect", "score", "bytes", "seconds"]


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a number and how to write it, or words."""

    value: float | str | None  # with all digits; None if there is no value
    kind: Kind = "text"
    std: float | None = None
    best: bool = False  # the highest of its column
    missing: bool = False  # the text is the reason why there is no number


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    group: str = ""  # a heading over adjacent columns
    flat: str = ""  # the heading for formats without groups; "": the title
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
    folded: str = ""  # the line that opens it; "" if it is open
    detail: bool = False  # only in the HTML page


@dataclass(frozen=True)
class Text:
    """Paragraphs; *role* decides their style."""

    sentences: tuple[str, ...]
    role: Literal["lead", "verdict", "more", "list", "facts", "absent"] = "list"
    code: str = ""  # a command, after the last sentence
    detail: bool = False


@dataclass(frozen=True)
class Finding:
    """A checked statement: it is true, or it is a warning. *items* are listed below it."""

    holds: bool
    sentence: str
    items: tuple[str, ...] = ()
    code: str = ""

    @property
    def text(self) -> str:
        """The sentence with its items, for formats without folding."""
        return f"{self.sentence} {'; '.join(self.items)}." if self.items else self.sentence


@dataclass(frozen=True)
class Findings:
    items: tuple[Finding, ...]


@dataclass(frozen=True)
class Figure:
    """A drawing, made only when a renderer asks for it."""

    draw: Callable[[], str] = field(compare=False)  # → SVG
    caption: str = ""


@dataclass(frozen=True)
class Figures:
    """Named panels of figures; several panels become a switch. A *wide* figure takes the whole width."""

    panels: Mapping[str, Sequence[Figure]]
    wide: bool = True


@dataclass(frozen=True)
class Gallery:
    """Images by class, as data URIs; with *rounds*, how they changed over training."""

    caption: str
    images: tuple[tuple[str, str], ...]
    large: bool
    smooth: bool
    rounds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Section:
    """A heading with its blocks. *detail*: only in the HTML page."""

    heading: str
    note: str = ""
    blocks: tuple[Block, ...] = ()
    whole: bool = False  # takes the whole width
    detail: bool = False


@dataclass(frozen=True)
class Fold:
    """Blocks behind a line that opens them, only in the HTML page."""

    summary: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Part:
    """A chapter: one experiment, or one group of runs."""

    title: str
    blocks: tuple[Block, ...]
    count: str = ""  # "62 of 63 runs"
    summary: tuple[str, ...] = ()  # sentences for the contents
    notes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Note:
    number: int
    title: str
    text: str


@dataclass(frozen=True)
class Provenance:
    """The command, environment and settings of one run."""

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
    reading: tuple[tuple[str, str], ...] = ()  # (term, how to read it)
    provenance: tuple[Provenance, ...] = ()
    data: tuple[Mapping[str, Any], ...] = ()  # every number with all digits, for programs
    fields: tuple[str, ...] = ()  # the columns of *data*; by default, all keys of its lines
    contents: bool = True  # whether the opening lists the parts, and each has a title

    def needs_heading(self, part: Part) -> bool:
        """Return whether a part has a heading, which must not repeat the page's title directly below it."""
        return self.contents and (bool(self.opening) or part.title != self.title)


Block = Text | Table | Findings | Figures | Gallery | Section | Fold


def drop_details(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks that are not limited to the HTML page, without empty texts."""
    filled = (block for block in blocks if not isinstance(block, Text) or block.sentences)
    return (block for block in filled if not isinstance(block, Fold) and not getattr(block, "detail", False))


def group_adjacent(items: Sequence[Any], attribute: str) -> list[tuple[str, list[Any]]]:
    """Return (value, items) for every stretch of adjacent items with one value of *attribute*."""
    return [(value, list(some)) for value, some in groupby(items, key=lambda item: getattr(item, attribute))]
