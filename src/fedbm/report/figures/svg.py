"""Draw SVG that takes its colours and its font from the page around it. Coordinates are pixels from the top left.

Colours are `currentColor` or `var(--name, #light)`, so that one drawing works on light pages, dark pages and paper.
Equal input gives equal bytes. No element has an id, so that a page can show any number of drawings.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from xml.sax.saxutils import escape, quoteattr

from fedbm.utils.io import write_text

if TYPE_CHECKING:
    from PIL.Image import Image

Point = tuple[float, float]

INK, MUTED, PAPER = "currentColor", "var(--muted, #5c5c5c)", "var(--paper, #ffffff)"

# Okabe–Ito without yellow and with the three palest colours darkened: each has a contrast of 3:1 on white.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b8659a", "#b98300", "#3c96c8", "#5c5c5c")

MIN_SCALE = 0.7  # on a small screen, a figure shrinks to this share of its width; below it, the figure scrolls
SIZE = 13.0  # of text, in pixels
WIDE = 880.0  # pixels of a figure next to a column of notes

CROSS = ((-1, -3), (1, -3), (1, -1), (3, -1), (3, 1), (1, 1), (1, 3), (-1, 3), (-1, 1), (-3, 1), (-3, -1), (-1, -1))
STAR = [(math.pi * k / 5, 0.382 if k % 2 else 1.0) for k in range(10)]
CORNERS: dict[str, Sequence[Point]] = {  # of the marks that are not circles, in units of half their size
    "s": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "D": ((0, -1.41), (1.41, 0), (0, 1.41), (-1.41, 0)),
    "^": ((0, -1), (1, 1), (-1, 1)),
    "v": ((0, 1), (1, -1), (-1, -1)),
    "P": [(x / 3, y / 3) for x, y in CROSS],
    "X": [((x - y) / 4, (x + y) / 4) for x, y in CROSS],
    "*": [(radius * math.sin(angle), -radius * math.cos(angle)) for angle, radius in STAR],
}


def series(number: int) -> str:
    """Return series colour *number*; numbers beyond the palette repeat it."""
    return f"var(--s{number % len(SERIES)}, {SERIES[number % len(SERIES)]})"


class Drawing:
    """Shapes in the order in which they are drawn. The title is for screen readers."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._shapes: list[str] = []

    def line(
        self, points: Iterable[Point], colour: str, width: float = 1, dashes: Sequence[float] = (), alpha: float = 1
    ) -> None:
        """Draw a line; *dashes* are in units of its width."""
        style = {"stroke": colour, "stroke_dasharray": " ".join(_round(width * dash) for dash in dashes)}
        self._add("path", d=_path(points), fill="none", stroke_width=width, opacity=alpha, **style)

    def area(self, points: Iterable[Point], colour: str, alpha: float = 1) -> None:
        self._add("path", d=_path(points) + "Z", fill=colour, opacity=alpha)

    def box(self, x: float, y: float, width: float, height: float, colour: str, alpha: float = 1) -> None:
        self._add("rect", x=x, y=y, width=max(0.0, width), height=height, fill=colour, opacity=alpha)

    def marks(
        self,
        points: Iterable[Point],
        shape: str,
        size: float,
        fill: str,
        edge: str = "",
        thick: float = 1,
        alpha: float = 1,
    ) -> None:
        """Draw a mark at each point: a circle "o" with diameter *size*, or a shape of CORNERS."""
        half, opacity = size / 2, "" if alpha == 1 else f' opacity="{_round(alpha)}"'
        if shape == "o":
            drawn = [f'<circle cx="{_round(x)}" cy="{_round(y)}" r="{_round(half)}"{opacity}/>' for x, y in points]
        else:
            outlines = [[(x + half * right, y + half * down) for right, down in CORNERS[shape]] for x, y in points]
            drawn = [f'<path d="{_path(outline)}Z"{opacity}/>' for outline in outlines]
        if drawn:
            self._add("g", "".join(drawn), fill=fill, stroke=edge, stroke_width=thick if edge else "")

    def picture(self, x: float, y: float, width: float, height: float, picture: Image) -> None:
        """Draw a picture with hard edges between its pixels."""
        pixels = {"preserveAspectRatio": "none", "image_rendering": "pixelated", "href": data_uri(picture, "PNG")}
        self._add("image", x=x, y=y, width=width, height=height, **pixels)

    def write(
        self,
        x: float,
        y: float,
        text: str,
        align: Literal["start", "middle", "end"] = "start",
        size: float = SIZE,
        colour: str = INK,
        turn: float = 0,
        halo: bool = False,
    ) -> None:
        """Write *text* with the middle of its small letters at height y.

        Turned text starts at (x, y). A halo in the page's colour keeps text readable in front of marks.
        """
        y += 0 if turn else 0.35 * size
        rotation = f"rotate({_round(-turn)} {_round(x)} {_round(y)})" if turn else ""
        style = {"transform": rotation, "text_anchor": "" if align == "start" else align, "fill": colour}
        style |= {"stroke": PAPER, "stroke_width": "3", "paint_order": "stroke"} if halo else {}
        self._add("text", escape(text), x=x, y=y, font_size=size, **style)

    def svg(self) -> str:
        size = f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" height="{self.height:g}"'
        style = f'stroke-linejoin="round" style="min-width: {MIN_SCALE * self.width:.0f}px"'
        head = f'<svg class="figure" {size} role="img" aria-label={quoteattr(self.title)} {style}>'
        return head + "".join(self._shapes) + "</svg>"

    def _add(self, tag: str, content: str = "", **attributes: str | float) -> None:
        self._shapes.append(f"<{tag}{_attributes(**attributes)}" + (f">{content}</{tag}>" if content else "/>"))


def data_uri(picture: Image, kind: Literal["PNG", "JPEG"]) -> str:
    written = io.BytesIO()
    picture.save(written, format=kind, optimize=True, **({"quality": 90} if kind == "JPEG" else {}))
    return f"data:image/{kind.lower()};base64," + base64.b64encode(written.getvalue()).decode("ascii")


def save_svg(path: Path, svg: str) -> None:
    """Write *svg* to a file, black on white, with the light palette and a sans-serif font."""
    head, _, shapes = svg.partition(">")
    head = re.sub(' (class|style)="[^"]*"', "", head) + ' xmlns="http://www.w3.org/2000/svg" font-family="sans-serif">'
    shapes = re.sub(r'"var\(--\w+, (#\w+)\)"', r'"\1"', shapes).replace('"currentColor"', '"#000000"')
    write_text(path, f'{head}<rect width="100%" height="100%" fill="#ffffff"/>{shapes}\n')


def _path(points: Iterable[Point]) -> str:
    return "M" + "L".join(f"{_round(x)} {_round(y)}" for x, y in points)


def _attributes(**values: str | float) -> str:
    """Return attributes without empty ones; full opacity is the default."""
    shown = {name: value if isinstance(value, str) else _round(value) for name, value in values.items()}
    return "".join(f' {n.replace("_", "-")}="{v}"' for n, v in shown.items() if v and (n, v) != ("opacity", "1"))


def _round(value: float) -> str:
    return f"{round(value, 2) + 0.0:g}"
