"""Labels: their estimated widths are those of real fonts, and no word of a figure is cut or lies on another."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbm.report.figures.curves import Curve, axis_plot, shared_plot, small_plots
from fedbm.report.figures.dot_plot import DotRow, dot_plot
from fedbm.report.figures.labels import shorten_to_width, spread_labels, text_width
from fedbm.report.figures.matrices import confusion, partition_bubbles

LONG = [
    "FedBM · generator=no · temperature=0.5 · lambda_dis=0.25",
    "WWWWWW MMMMMM mmmmmmmmmmmm wwwwwwwwwwww WWWWWWW",
    "核心数据集核心数据集核心数据集核心数据集核心数据集核心数据集核心数据集",
    "illicit filling of jilted little lilies in a tiny file",
]


def curves(scale: float) -> list[Curve]:
    return [Curve(name, k, (((1, scale), (1500, scale * (k + 2))),), ((1500, scale),)) for k, name in enumerate(LONG)]


FIGURES: dict[str, Callable[[], str]] = {
    "curves": lambda: shared_plot(curves(0.1), "t", "y"),
    "tiny values": lambda: shared_plot(curves(1e-6), "t", "y"),
    "huge values": lambda: shared_plot(curves(-3e11), "t", "y"),
    "panels": lambda: small_plots(curves(1e-4) * 2, "t", "y"),
    "axis": lambda: axis_plot(
        {name: {0: [0.1], 3: [0.2]} for name in LONG}, dict.fromkeys(LONG, 0), LONG, "t", "y", "x"
    ),
    "dots": lambda: dot_plot([DotRow(name, 0, (12345.25, 12345.5)) for name in LONG], "t", "x"),
    "half": lambda: dot_plot([DotRow(name, 0, (12345.25, 12345.5)) for name in LONG], "t", "x" * 50, 450.0),
    "bubbles": lambda: partition_bubbles([[10**7, 0]] * 40, ["a", "b"], "t"),
    "confusion": lambda: confusion([[10**6, 1], [0, 10**6]], ["a", "b"], "t"),
}


def boxes(drawing: str) -> list[tuple[str, float, float, float, float]]:
    """Return every horizontal text with its left, right, upper and lower edge."""
    found = []
    for text in ET.fromstring(drawing).iter("text"):
        words, size, x, y = text.text or "", *(float(text.get(name, "")) for name in ("font-size", "x", "y"))
        width = text_width(words, size)
        left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor", "start")]
        if words and not text.get("transform"):
            found.append((words, left, left + width, y - 0.75 * size, y + 0.2 * size))
    return found


@pytest.mark.parametrize("name", FIGURES)
def test_no_word_is_cut_or_lies_on_another(name: str) -> None:
    drawing = FIGURES[name]()
    root, found = ET.fromstring(drawing), boxes(drawing)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    cut = [box for box in found if box[1] < 0 or box[2] > width or box[3] < 0 or box[4] > height]
    assert cut == []
    pairs = combinations(found, 2)
    assert [(a[0], b[0]) for a, b in pairs if a[1] < b[2] and b[1] < a[2] and a[3] < b[4] and b[3] < a[4]] == []


@pytest.mark.parametrize(
    ("text", "widths"),  # at 100 pixels, in Helvetica and in DejaVu Sans
    [
        ("FedBM · generator=no", (1003, 1129)),
        ("HAM10000, β = 0.1: FedBM − FedAvg", (1701, 1889)),
        ("basal cell carcinoma", (906, 1023)),
        ("MMMWWW mmm www", (1055, 1157)),
        ("illicit lilies", (411, 490)),
        ("0.0025", (306, 350)),
        ("Wall-clock time, %", (813, 919)),
    ],
)
def test_estimated_widths_are_enough_in_common_fonts(text: str, widths: Sequence[float]) -> None:
    assert max(widths) <= text_width(text, 100) <= 1.35 * max(widths)


def test_a_text_is_shortened_to_the_room_that_there_is() -> None:
    whole = "FedBM · generator=no"
    assert shorten_to_width(whole, 1000) == whole
    for room in (60, 90, 120):
        assert room - 16 < text_width(shorten_to_width(whole, room)) <= room
    assert shorten_to_width(whole, 0) == "F…o"
    assert shorten_to_width("", 0) == ""


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_labels_keep_their_order_and_distance(wanted: list[float]) -> None:
    placed = spread_labels(wanted, gap=10, low=0, high=100)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    ordered = [placed[index] for index in order]
    assert all(b - a >= 10 - 1e-9 for a, b in pairwise(ordered))
    assert ordered[0] >= -1e-9
    assert ordered[-1] <= 100 + 1e-9
