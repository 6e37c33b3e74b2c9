"""Draw matrices: clients × classes as bubbles, classes × classes as shaded cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedbm.report.figures.labels import max_width, shorten, text_width
from fedbm.report.figures.svg import MUTED, SIZE, Drawing

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
    left, (turn, top, over) = 12 + max(max_width(names, size), text_width("client")), _room_above(classes, cell)
    side = 14 + max(max_width(totals, size), text_width("total"))
    unit = 0.48 * cell / np.sqrt(max(table.max(), 1.0))
    end = left + cell * width
    sheet = Drawing(max(end + side, end + over), top + cell * clients + 6, title)
    _write_column_heads(sheet, classes, left, top, cell, turn)
    sheet.write(left - 12, top - 10, "client", "end", colour=MUTED)
    sheet.write(end + side - 2, top - 10, "total", "end", colour=MUTED)
    for row in range(clients):
        y = top + cell * (row + 0.5)
        sheet.line([(left, y), (end, y)], MUTED, 0.7, alpha=0.25)
        sheet.write(left - 12, y, names[row], "end", size, MUTED)
        sheet.write(end + side - 2, y, totals[row], "end", size)
    for count in np.unique(table[table > 0]):
        rows, columns = np.nonzero(table == count)
        centres = zip(left + cell * (columns + 0.5), top + cell * (rows + 0.5), strict=True)
        sheet.marks(centres, "o", 2 * max(0.75, unit * count**0.5), MUTED)
    return sheet.svg()


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
    import PIL.Image

    count = len(classes)
    cell = _cell(count, largest=36)
    size = min(SIZE, cell - 2)
    names = [shorten(name) for name in classes]
    left = 10 + max_width(names, size)
    turn, top, over = _room_above(classes, cell)
    right = 10 + max(max_width(side, size), text_width("n")) if side else 4.0
    end, bottom = left + cell * count, top + cell * count
    sheet = Drawing(end + max(right, over), bottom + 4, title)
    _write_column_heads(sheet, classes, left, top, cell, turn)
    pixels = np.empty((count, count, 4))
    pixels[..., :3] = HEAT
    pixels[..., 3] = DEEPEST * np.clip(shades, 0, 1)
    sheet.picture(left, top, end - left, bottom - top, PIL.Image.fromarray((255 * pixels).astype(np.uint8)))
    sheet.line([(left, top), (end, top), (end, bottom), (left, bottom), (left, top)], MUTED, 0.7, alpha=0.45)
    for row in range(count):
        y = top + cell * (row + 0.5)
        sheet.write(left - 8, y, names[row], "end", size)
        if side:
            sheet.write(end + right - 2, y, side[row], "end", size, MUTED)
        for column in range(count if count <= MAX_CLASSES_WITH_NUMBERS else 0):
            sheet.write(left + cell * (column + 0.5), y, written[row][column], "middle", SIZE - 1)
    if side:
        sheet.write(end + right - 2, top - 10, "n", "end", colour=MUTED)
    return sheet.svg()


def _cell(count: int, largest: float) -> float:
    """Return the side of a cell: at most *largest*, and small enough for 62 classes."""
    return min(largest, max(12.0, 760 / count))


def _room_above(classes: Sequence[str], cell: float) -> tuple[float, float, float]:
    """Return the angle of the column heads, and the room that they need above the cells and beyond the last column.

    The angle is 0 if they fit above their column, else 45, or 90 in narrow columns.
    """
    longest = max_width([shorten(name) for name in classes], min(SIZE, cell - 2))
    if longest <= cell - 4:
        return 0.0, 22.0, 0.0
    turn = 90.0 if cell < 20 else 45.0
    return turn, 16 + longest * math.sin(math.radians(turn)), longest * math.cos(math.radians(turn))


def _write_column_heads(
    sheet: Drawing, classes: Sequence[str], left: float, top: float, cell: float, turn: float
) -> None:
    size = min(SIZE, cell - 2)
    for column, name in enumerate(classes):
        x = left + cell * (column + 0.5)
        if turn == 0:
            sheet.write(x, top - 10, shorten(name), "middle", size)
        else:
            sheet.write(x + (size * 0.35 if turn == 90 else 2), top - 7, shorten(name), "start", size, turn=turn)
