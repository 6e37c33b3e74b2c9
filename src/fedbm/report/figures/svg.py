"""Render drawings as SVG that takes its colours and its font from the page around it.

Figures are drawn in placeholder colours. Each becomes `currentColor` or `var(--name, #light)`, so that one drawing
works on light pages, dark pages and paper. Equal input gives equal bytes: no date, no random id, no global state.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbm.utils.io import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, PAPER = "#010203", "#010204", "#010205"

# Okabe–Ito without yellow and with the three palest colours darkened: each has a contrast of 3:1 on white.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b8659a", "#b98300", "#3c96c8", "#5c5c5c")

MIN_SCALE = 0.7  # on a small screen, a figure shrinks to this share of its width; below it, the figure scrolls

_XLINK = "{http://www.w3.org/1999/xlink}href"
_ID_USE = re.compile(r"#([\w.-]+)")
_PREFIX = "fedbm-figure-"  # of a drawing's ids


def series(number: int) -> str:
    """Return the placeholder of series colour *number*; numbers beyond the palette repeat it."""
    return f"#0103{number % len(SERIES):02x}"


def render(width: float, height: float, title: str, draw: Callable[[Figure], None]) -> str:
    """Return the SVG that *draw* makes on a figure of width × height pixels; *title* is for screen readers."""
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
        # the page's fonts draw the text, so a missing glyph in matplotlib's font does not matter
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        draw(figure)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    return _adapt_to_page(written.getvalue(), width, height, title)


def number_ids(svg: str, number: int) -> str:
    """Return a drawing with ids that no drawing with another *number* has, for several drawings on one page."""
    return svg.replace(_PREFIX, f"f{number}-")


def save_svg(path: Path, svg: str) -> None:
    """Write *svg* to a file, black on white, with the light palette and a sans-serif font."""
    root = ET.fromstring(svg)
    for element in root.iter():
        if style := element.get("style"):
            light = re.sub(r"var\(--[\w-]+, (#\w+)\)", r"\1", style)
            element.set("style", light.replace("currentColor", "#000000"))
    del root.attrib["class"], root.attrib["style"]
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "font-family": "sans-serif"}
    root.insert(0, ET.Element("rect", {"width": "100%", "height": "100%", "fill": "#ffffff"}))
    write_text(path, ET.tostring(root, encoding="unicode") + "\n")


def _adapt_to_page(raw: str, width: float, height: float, title: str) -> str:
    root = ET.fromstring(raw)
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
        _tidy(element, used, theme)
    root.attrib = {
        "class": "figure",
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": f"{width:g}",
        "height": f"{height:g}",
        "role": "img",
        "aria-label": title,
        "stroke-linejoin": "round",
        "style": f"min-width: {MIN_SCALE * width:.0f}px",
    }
    return ET.tostring(root, encoding="unicode")


def _tidy(element: ET.Element, used: set[str], theme: dict[str, str]) -> None:
    """Set the theme's colours, remove fonts and unused ids, and round coordinates to a hundredth."""
    if _XLINK in element.attrib:
        element.set("href", element.attrib.pop(_XLINK).replace("\n", ""))
    if element.attrib.get("id") not in used:
        element.attrib.pop("id", None)
    for name, value in element.attrib.items():
        if name == "id":
            value = _PREFIX + value
        elif name == "style":
            value = re.sub(r"\s*font-family:[^;]*;?", "", value)
            value = re.sub(r"#01\w{4}", lambda found: theme[found[0]], value)
        elif not value.startswith("data:"):
            value = _ID_USE.sub(rf"#{_PREFIX}\1", value)
            value = re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", value)
            value = re.sub(r"\s+", " ", value).strip()
        element.set(name, value)
