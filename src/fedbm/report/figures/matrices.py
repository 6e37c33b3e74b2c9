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
    columns = _Columns(classes, max(clients, width), largest=34)
    cell, size, top = columns.cell, columns.size, columns.top
    names = [str(client) for client in range(clients)]
    totals = [f"{int(total):,}" for total in table.sum(axis=1)]
    left = 12 + max(max_width(names, size), text_width("client"))
    side = 14 + max(max_width(totals, size), text_width("total"))
    unit = 0.48 * cell / np.sqrt(max(table.max(), 1.0))
    end = left + cell * width
    sheet = Drawing(end + max(side, columns.over), top + cell * clients + 6, title)
    columns.write_names(sheet, left)
    sheet.write(left - 12, top - 10, "client", "end", colour=MUTED)
    sheet.write(end + side - 2, top - 10, "total", "end", colour=MUTED)
    for row in range(clients):
        y = top + cell * (row + 0.5)
        sheet.line([(left, y), (end, y)], MUTED, 0.7, alpha=0.25)
        sheet.write(left - 12, y, names[row], "end", size, MUTED)
        sheet.write(end + side - 2, y, totals[row], "end", size)
    for count in np.unique(table[table > 0]):
        down, across = np.nonzero(table == count)
        centres = zip(left + cell * (across + 0.5), top + cell * (down + 0.5), strict=True)
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
    columns = _Columns(classes, count, largest=36)
    cell, size, top = columns.cell, columns.size, columns.top
    left = 10 + max_width(columns.names, size)
    right = 10 + max(max_width(side, size), text_width("n")) if side else 4.0
    end, bottom = left + cell * count, top + cell * count
    sheet = Drawing(end + max(right, columns.over), bottom + 4, title)
    columns.write_names(sheet, left)
    pixels = np.empty((count, count, 4))
    pixels[..., :3] = HEAT
    pixels[..., 3] = DEEPEST * np.clip(shades, 0, 1)
    sheet.picture(left, top, end - left, bottom - top, PIL.Image.fromarray((255 * pixels).astype(np.uint8)))
    sheet.line([(left, top), (end, top), (end, bottom), (left, bottom), (left, top)], MUTED, 0.7, alpha=0.45)
    for row in range(count):
        y = top + cell * (row + 0.5)
        sheet.write(left - 8, y, columns.names[row], "end", size)
        if side:
            sheet.write(end + right - 2, y, side[row], "end", size, MUTED)
        for column in range(count if count <= MAX_CLASSES_WITH_NUMBERS else 0):
            sheet.write(left + cell * (column + 0.5), y, written[row][column], "middle", SIZE - 1)
    if side:
        sheet.write(end + right - 2, top - 10, "n", "end", colour=MUTED)
    return sheet.svg()


class _Columns:
    """Cells in columns with class names above: level if they fit, else at 45°, or at 90° above narrow columns."""

    def __init__(self, classes: Sequence[str], cells: int, largest: float) -> None:
        self.cell = min(largest, max(12.0, 760 / cells))  # small enough for 62 classes
        self.size = min(SIZE, self.cell - 2)  # of letters
        self.names = [shorten(name) for name in classes]
        longest = max_width(self.names, self.size)
        fit = longest <= self.cell - 4
        self.turn = 0.0 if fit else 90.0 if self.cell < 20 else 45.0
        self.top = 22.0 if fit else 16 + longest * math.sin(math.radians(self.turn))  # room for the names
        self.over = 0.0 if fit else longest * math.cos(math.radians(self.turn))  # beyond the last column

    def write_names(self, sheet: Drawing, left: float) -> None:
        for column, name in enumerate(self.names):
            x = left + self.cell * (column + 0.5)
            if self.turn:
                x += self.size * 0.35 if self.turn == 90 else 2
                sheet.write(x, self.top - 7, name, "start", self.size, turn=self.turn)
            else:
                sheet.write(x, self.top - 10, name, "middle", self.size)
