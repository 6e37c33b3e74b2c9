"""A drawing → SVG text that takes its colours and its font from the page around it.

Figures are drawn in placeholder colours. Each becomes `currentColor` or `var(--name, #light)`, so that one
drawing serves light pages, dark pages and print; save_svg() writes the light one for use outside a page.
Equal input gives equal bytes: no date, no random id, no global state.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbm.utils.io import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, PAPER = "#010203", "#010204", "#010205"

# Okabe–Ito without yellow, the three palest deepened: each line keeps 3:1 against a white page.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b8659a", "#b98300", "#3c96c8", "#5c5c5c")

LEGIBLE = 0.7  # of its size: a figure shrinks to this on a small screen, then it scrolls

_XLINK = "{http://www.w3.org/1999/xlink}href"
_ID_USE = re.compile(r"#([\w.-]+)")
_PREFIX = re.compile(r' id="(f[0-9a-f]{8}-)')  # of a drawing's ids: what _for_the_page() makes of all it holds


def series(number: int) -> str:
    """The placeholder of the page's series colour *number*; numbers beyond the palette start it again."""
    return f"#0103{number % len(SERIES):02x}"


def render(width: float, height: float, title: str, draw: Callable[[Figure], None]) -> str:
    """What *draw* puts on an empty figure of width × height pixels; *title* is for screen readers."""
    import matplotlib
    from matplotlib.figure import Figure

    options: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "fedbm",
        "text.parse_math": False,
        "path.simplify": False,
    }
    written = io.StringIO()
    with matplotlib.rc_context(options), warnings.catch_warnings():
        # The page's fonts draw the text, so it does not matter that matplotlib's own lacks a glyph.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        draw(figure)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    return _for_the_page(written.getvalue(), width, height, title)


def for_one_page() -> Callable[[str], str]:
    """A function that every drawing of one page goes through: of equal ones, each after the first gets other ids."""
    shown: Counter[str] = Counter()

    def placed(svg: str) -> str:
        shown[svg] += 1
        prefix = _PREFIX.search(svg)
        return svg.replace(prefix[1], f"{prefix[1]}{shown[svg]}-") if prefix and shown[svg] > 1 else svg

    return placed


def save_svg(path: Path, svg: str) -> None:
    """*svg* as a file of its own: black on white, the light palette, any sans-serif font."""
    root = ET.fromstring(svg)
    for element in root.iter():
        if style := element.get("style"):
            light = re.sub(r"var\(--[\w-]+, (#\w+)\)", r"\1", style)
            element.set("style", light.replace("currentColor", "#000000"))
    del root.attrib["class"], root.attrib["style"]
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "font-family": "sans-serif"}
    root.insert(0, ET.Element("rect", {"width": "100%", "height": "100%", "fill": "#ffffff"}))
    write_text(path, ET.tostring(root, encoding="unicode") + "\n")


def _for_the_page(raw: str, width: float, height: float, title: str) -> str:
    root = ET.fromstring(raw)
    prefix = "f" + hashlib.sha256((title + raw).encode()).hexdigest()[:8] + "-"
    theme = {INK: "currentColor", MUTED: "var(--muted, #5c5c5c)", PAPER: "var(--paper, #ffffff)"}
    theme |= {series(number): f"var(--s{number}, {colour})" for number, colour in enumerate(SERIES)}
    used = {name for element in root.iter() for value in element.attrib.values() for name in _ID_USE.findall(value)}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}style", "}metadata")):  # a style here would reach the whole page
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.text, element.tail = (element.text if element.tag == "text" else None), None
        _tidy(element, used, prefix, theme)
    root.attrib = {
        "class": "figure",
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": f"{width:g}",
        "height": f"{height:g}",
        "role": "img",
        "aria-label": title,
        "stroke-linejoin": "round",
        "style": f"min-width: {LEGIBLE * width:.0f}px",
    }
    return ET.tostring(root, encoding="unicode")


def _tidy(element: ET.Element, used: set[str], prefix: str, theme: dict[str, str]) -> None:
    """Colours from the theme, the page's font, only the ids that are used, coordinates to a hundredth."""
    if _XLINK in element.attrib:
        element.set("href", element.attrib.pop(_XLINK).replace("\n", ""))
    if element.attrib.get("id") not in used:
        element.attrib.pop("id", None)
    for name, value in element.attrib.items():
        if name == "id":
            value = prefix + value
        elif name == "style":
            value = re.sub(r"\s*font-family:[^;]*;?", "", value)
            value = re.sub(r"#01\w{4}", lambda found: theme[found[0]], value)
        elif not value.startswith("data:"):
            value = _ID_USE.sub(rf"#{prefix}\1", value)
            value = re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", value)
            value = re.sub(r"\s+", " ", value).strip()
        element.set(name, value)
