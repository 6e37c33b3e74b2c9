"""Read back what a figure shows: its texts, and the points of its strokes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET


def paths(drawing: str, colour: str, width: str) -> list[list[tuple[float, float]]]:
    """Return the points of every stroke of this colour and width."""
    return [
        [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path.get("d") or "")]
        for path in ET.fromstring(drawing).iter("path")
        if colour in (path.get("stroke") or "") and path.get("stroke-width") == width
    ]


def texts(drawing: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(drawing).iter("text")]
