"""Draw matrices: clients × classes as bubbles, classes × classes as shaded cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedbm.report.figures.drawing import SIZE, Sheet, max_width, shorten, text_width
from fedbm.report.figures.svg import MUTED, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = npt.NDArray[np.float64]

# A transparent blue: at every shade up to DEEPEST, text keeps a contrast of 4.5:1 on light and dark pages.
HEAT = (0.13, 0.45, 0.70)
DEEPEST = 0.8
MAX_CLASSES_WITH_NUMBERS = 12  # with more classes, cells are too small for numbers


def partition_bubbles(counts: npt.ArrayLike, classes: Sequence[str], title: str) -> str:
    """Draw clients down and classes across. A bubble's area is the number of samples; totals are at the side."""
    table = np.asarray(counts, dtype=np.float64)
    clients, width = table.shape
    cell = _cell(max(clients, width), largest=34)
    names = [str(client) for client in range(clients)]
    totals = [f"{int(total):,}" for total in table.sum(axis=1)]
    size = min(SIZE, cell - 2)
    left, top, over = 12 + max(max_width(names, size), text_width("client", SIZE)), *_room_above(classes, cell)
    side = 14 + max(max_width(totals, size), text_width("total"))
    unit = 0.48 * cell / np.sqrt(max(table.max(), 1.0))

    def draw(figure: Figure) -> None:
        sheet = Sheet(figure)
        _column_heads(sheet, classes, left, top, cell)
        end = left + cell * width
        sheet.write(left - 12, top - 10, "client", "right", colour=MUTED)
        sheet.write(end + side - 2, top - 10, "total", "right", colour=MUTED)
        for row in range(clients):
            y = top + cell * (row + 0.5)
            sheet.plot([left, end], [y, y], color=MUTED, alpha=0.25, lw=0.7)
            sheet.write(left - 12, y, names[row], "right", size, MUTED)
            sheet.write(end + side - 2, y, totals[row], "right", size)
        # Bubbles of nearly one size share a marker, so that a figure of 35 × 62 stays small.
        radii = np.round(4 * np.maximum(unit * np.sqrt(table), 0.75)) / 4
        for radius in np.unique(radii[table > 0]):
            rows, columns = np.nonzero((radii == radius) & (table > 0))
            across, down = left + cell * (columns + 0.5), top + cell * (rows + 0.5)
            sheet.plot(across, down, "o", ms=2 * radius, color=MUTED, mew=0)

    whole = left + cell * width + side
    return render(max(whole, left + cell * width + over), top + cell * clients + 6, title, draw)


def confusion(matrix: npt.ArrayLike, classes: Sequence[str], title: str) -> str:
    """Draw truth down and prediction across, in percent of the row. The shade is the root, so that rare errors show."""
    table = np.asarray(matrix, dtype=np.float64)
    totals = table.sum(axis=1)
    shares = table / np.maximum(totals, 1.0)[:, None]
    percents = [[f"{100 * share:.0f}" if share > 0 else "" for share in row] for row in shares]
    return _shaded(np.sqrt(shares), percents, classes, title, side=[f"{int(total):,}" for total in totals])


def similarity(matrix: npt.ArrayLike, classes: Sequence[str], title: str) -> str:
    """Draw the cosines of classes' mean text embeddings, shaded from the lowest pair to the highest."""
    table = np.asarray(matrix, dtype=np.float64)
    others = ~np.eye(len(table), dtype=bool)
    low, high = (table[others].min(), table[others].max()) if len(table) > 1 else (0.0, 1.0)
    shades = np.where(others, (table - low) / max(high - low, 1e-9), 0.0)
    written = [[f"{value:.2f}" for value in row] for row in table]
    return _shaded(shades, written, classes, title)


def _shaded(
    shades: Numbers, written: list[list[str]], classes: Sequence[str], title: str, side: Sequence[str] = ()
) -> str:
    count = len(classes)
    cell = _cell(count, largest=36)
    size = min(SIZE, cell - 2)
    names = [shorten(name) for name in classes]
    left = 10 + max_width(names, size)
    top, over = _room_above(classes, cell)
    right = 10 + max(max_width(side, size), text_width("n")) if side else 4.0

    def draw(figure: Figure) -> None:
        sheet = Sheet(figure)
        _column_heads(sheet, classes, left, top, cell)
        end, bottom = left + cell * count, top + cell * count
        picture = np.empty((count, count, 4))
        picture[..., :3] = HEAT
        picture[..., 3] = DEEPEST * np.clip(shades, 0, 1)
        sheet.cells(picture, left, top, end, bottom)
        sheet.plot([left, end, end, left, left], [top, top, bottom, bottom, top], color=MUTED, alpha=0.45, lw=0.7)
        for row in range(count):
            y = top + cell * (row + 0.5)
            sheet.write(left - 8, y, names[row], "right", size)
            if side:
                sheet.write(end + right - 2, y, side[row], "right", size, MUTED)
            for column in range(count if count <= MAX_CLASSES_WITH_NUMBERS else 0):
                sheet.write(left + cell * (column + 0.5), y, written[row][column], "center", SIZE - 1)
        if side:
            sheet.write(end + right - 2, top - 10, "n", "right", colour=MUTED)

    whole = left + cell * count + max(right, over)
    return render(whole, top + cell * count + 4, title, draw)


def _cell(count: int, largest: float) -> float:
    """Return the side of a cell: at most *largest*, and small enough for 62 classes."""
    return min(largest, max(12.0, 760 / count))


def _turn(classes: Sequence[str], cell: float) -> float:
    """Return the angle of the column heads: 0 if they fit above their column, else 45, or 90 in narrow columns."""
    if max_width([shorten(name) for name in classes], min(SIZE, cell - 2)) <= cell - 4:
        return 0.0
    return 90.0 if cell < 20 else 45.0


def _room_above(classes: Sequence[str], cell: float) -> tuple[float, float]:
    """Return the height above the cells, and the width beyond the last column, that the column heads need."""
    longest = max_width([shorten(name) for name in classes], min(SIZE, cell - 2))
    turn = np.radians(_turn(classes, cell))
    above = 22.0 if turn == 0 else 16 + longest * float(np.sin(turn))
    return above, float(np.cos(turn)) * longest if turn else 0.0


def _column_heads(sheet: Sheet, classes: Sequence[str], left: float, top: float, cell: float) -> None:
    turn, size = _turn(classes, cell), min(SIZE, cell - 2)
    for column, name in enumerate(classes):
        x = left + cell * (column + 0.5)
        if turn == 0:
            sheet.write(x, top - 10, shorten(name), "center", size)
        else:
            sheet.write(x + (size * 0.35 if turn == 90 else 2), top - 7, shorten(name), "left", size, turn=turn)
