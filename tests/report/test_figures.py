"""Figures: what is drawn is what was counted, in the page's colours, the same every time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from drawings import texts

from fedbm.report.figures import matrices, svg
from fedbm.report.figures.curves import Curve, axis_plot, shared_plot, small_plots
from fedbm.report.figures.dot_plot import DotRow, dot_plot
from fedbm.report.figures.labels import shorten
from fedbm.report.figures.matrices import confusion, partition_bubbles, similarity
from fedbm.report.figures.palette import SHAPES
from fedbm.report.figures.svg import save_svg

ODD = ["<script>alert(1)</script>", "核 & Kern", "$x_1$ \"quoted\" 'so'"]
SQUARE = [[3, 1, 0], [0, 0, 0], [1, 1, 2]]

FIGURES: dict[str, Callable[[str], str]] = {
    "curves": lambda title: shared_plot(
        [Curve(ODD[0], 0, (((1, 0.1), (2, 0.4)), ((1, 0.3), (2, 0.5))), ((2, 0.5),))], title, "y"
    ),
    "dots": lambda title: dot_plot([DotRow(ODD[0], 0, (1.0, 2.0)), DotRow(ODD[1], 1, (1.5,))], title, "x"),
    "panels": lambda title: small_plots(
        [Curve(ODD[k % 2], k, (((1, 0.1), (2, 0.1 * k)),)) for k in range(2)], title, "y"
    ),
    "axis": lambda title: axis_plot({ODD[0]: {0: [0.1, 0.2], 1: [0.3]}}, {ODD[0]: 0}, ODD[1:], title, "y", "x"),
    "bubbles": lambda title: partition_bubbles(SQUARE, ODD, title),
    "confusion": lambda title: confusion(SQUARE, ODD, title),
    "similarity": lambda title: similarity([[1, 0.5, 0.1], [0.5, 1, 0.2], [0.1, 0.2, 1]], ODD, title),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_deterministic_themeable_and_named(name: str) -> None:
    drawing = FIGURES[name]("<Title> & more")
    assert drawing == FIGURES[name]("<Title> & more")
    root = ET.fromstring(drawing)
    assert root.get("role") == "img"
    assert root.get("aria-label") == "<Title> & more"
    assert "font-family" not in drawing
    assert "http" not in drawing
    assert any(element.get("fill") == "currentColor" for element in root.iter("text"))
    assert ODD[0] in texts(drawing) or shorten(ODD[0]) in texts(drawing), "escaped, not interpreted"
    assert not list(root.iter("script"))
    assert not list(root.iter("style")), "a style element would reach the whole page"


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_a_page_share_no_ids(name: str) -> None:
    """No element has an id or refers to one, so a page can show a figure any number of times."""
    drawing = FIGURES[name]("one")
    assert not any("id" in element.attrib for element in ET.fromstring(drawing).iter())
    assert "#" not in re.sub(r"var\(--\w+, #\w{6}\)", "", drawing)


def test_bubble_area_is_the_count_and_totals_stand_at_the_side() -> None:
    """Counts 64 and 16: the second radius is half the first. No bubble for 0."""
    drawing = partition_bubbles([[64, 0], [16, 0]], ["a", "b"], "t")
    small, large = sorted(float(circle.get("r", "")) for circle in ET.fromstring(drawing).iter("circle"))
    assert large / small == pytest.approx(2, rel=0.01)
    assert texts(drawing).count("64") == 1
    assert texts(drawing).count("16") == 1


@pytest.mark.parametrize(("clients", "classes"), [(10, 7), (35, 62), (1, 2), (200, 3)])
def test_partition_is_readable_at_any_size(clients: int, classes: int) -> None:
    counts = np.random.default_rng(0).integers(0, 40, (clients, classes))
    names = [f"c{k}" for k in range(classes)]
    drawing = partition_bubbles(counts, names, "t")
    root = ET.fromstring(drawing)
    assert set(names) <= set(texts(drawing))
    sizes = {float(size) for size in re.findall(r'font-size="([\d.]+)"', drawing)}
    assert min(sizes) >= 9
    assert float(root.get("width", "0")) < 1000
    assert len(drawing) < 400_000


def test_confusion_shows_percent_of_the_true_class() -> None:
    """Row 1: 3 of 4 and 1 of 4. Row 2 is a class without test images: empty, not a division by zero."""
    shown = texts(confusion(SQUARE, ["a", "b", "c"], "t"))
    assert [word for word in shown if word.isdigit()] == ["4", "75", "25", "0", "4", "25", "25", "50"]


def test_numbers_leave_cells_that_are_too_small_for_them() -> None:
    many = np.eye(13) * 5
    assert "100" in texts(confusion(many[:12, :12], list("abcdefghijkl"), "t"))
    assert "100" not in texts(confusion(many, list("abcdefghijklm"), "t"))


def test_similarity_writes_cosines() -> None:
    assert {"1.00", "0.50"} <= set(texts(similarity([[1, 0.5], [0.5, 1]], ["a", "b"], "t")))
    assert similarity([[1.0]], ["only"], "t")


def test_an_unfinished_line_is_dashed_and_a_finished_one_is_not() -> None:
    line = ((1, 0.1), (2, 0.2))
    assert "stroke-dasharray" in shared_plot([Curve("a", 0, (line,), finished=False)], "t", "y")
    assert "stroke-dasharray" not in shared_plot([Curve("a", 0, (line,))], "t", "y")
    assert "stroke-dasharray" in shared_plot([Curve("a", len(svg.SERIES), (line,))], "t", "y"), "the palette repeats"


def test_the_dots_of_a_dashed_line_are_hollow() -> None:
    """Colour 8 is colour 1 again: SCAFFOLD's dots and FedETF's would look alike."""
    line = ((1, 0.1), (2, 0.2))
    solid, dashed = (shared_plot([Curve("a", number, (line,), ((2, 0.2),))], "t", "y") for number in (1, 8))
    assert solid.count('fill="var(--s1, #d55e00)"') > dashed.count('fill="var(--s1, #d55e00)"') == 0
    assert 'fill="var(--paper, #ffffff)"' in dashed


def test_marks_of_one_colour_differ_in_shape() -> None:
    """In a figure; in a table, classes of the style sheet draw the same shapes."""
    drawn = [dot_plot([DotRow("a", 1 + 7 * again, (0.1, 0.2))], "t", "y") for again in range(6)]
    marks = [[ET.tostring(group) for group in ET.fromstring(one).iter("g")][-1] for one in drawn]
    assert len(set(marks)) == 6
    style = files("fedbm.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    assert all(f".shape-{shape}::before" in style for shape in SHAPES if shape != "o")


def test_the_line_is_the_mean_and_the_band_goes_from_lowest_to_highest() -> None:
    """Seeds at 0 and 2 are drawn like one seed at 1, with a band that two equal seeds do not open."""
    level = [((1, value), (2, value)) for value in (0.0, 1.0, 2.0)]
    frame = Curve("frame", 1, (((1, 0.0), (2, 2.0)),))

    def line(*lines: tuple[tuple[int, float], ...]) -> str:
        drawn = shared_plot([frame, Curve("x", 0, lines)], "t", "y")
        return next(
            p.get("d") or ""
            for p in ET.fromstring(drawn).iter("path")
            if "--s0" in (p.get("stroke") or "") and p.get("stroke-width") == "2"
        )

    assert line(level[0], level[2]) == line(level[1])
    assert line(level[0], level[2]) != line(level[0])


def test_rounds_that_a_seed_lacks_are_not_averaged() -> None:
    assert shared_plot([Curve("a", 0, (((1, 0.1),), ((2, 0.3),)))], "t", "y"), "no common round: nothing drawn"
    whole = shared_plot([Curve("a", 0, (((1, 0.1), (2, 0.2), (3, 0.9)), ((1, 0.1), (2, 0.2))))], "t", "y")
    assert whole == shared_plot([Curve("a", 0, (((1, 0.1), (2, 0.2)), ((1, 0.1), (2, 0.2))))], "t", "y")


def test_save_svg_is_black_on_white_and_stands_alone(tmp_path: Path) -> None:
    drawing = FIGURES["dots"]("var(--s0, #123456) currentColor")
    path = tmp_path / "figure.svg"
    save_svg(path, drawing)
    text = path.read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root[0].attrib == {"width": "100%", "height": "100%", "fill": "#ffffff"}
    colours = {element.get(name) for element in root.iter() for name in ("fill", "stroke")}
    assert {"#000000", svg.SERIES[0]} <= colours
    assert not any("var(" in colour or "currentColor" in colour for colour in colours if colour)
    assert root.get("aria-label") == "var(--s0, #123456) currentColor", "words are not colours"


def _contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """WCAG 2: (L₁ + 0.05) / (L₂ + 0.05) of the relative luminances."""

    def luminance(colour: tuple[float, ...]) -> float:
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _themes() -> list[dict[str, tuple[float, ...]]]:
    css = (files("fedbm.report") / "templates" / "report.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    assert len(blocks) == 3  # light, dark, print
    return [
        {
            name: tuple(int(value[i : i + 2], 16) / 255 for i in (0, 2, 4))
            for name, value in re.findall(r"--(\w+): #(\w{6});", block)
        }
        for block in blocks
    ]


def test_every_theme_keeps_its_contrast() -> None:
    for theme in _themes():
        for text in ("ink", "muted", "warn", "good"):
            assert _contrast(theme[text], theme["paper"]) >= 4.5
        assert _contrast(theme["ink"], theme["tint"]) >= 4.5
        for number in range(len(svg.SERIES)):
            assert _contrast(theme[f"s{number}"], theme["paper"]) >= 3
        for shade in np.linspace(0, matrices.DEEPEST, 9):
            cell = tuple(shade * a + (1 - shade) * b for a, b in zip(matrices.HEAT, theme["paper"], strict=True))
            assert _contrast(theme["ink"], cell) >= 4.5
    light, _, printed = _themes()
    for number, colour in enumerate(svg.SERIES):
        assert (
            light[f"s{number}"] == printed[f"s{number}"] == tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        )
