"""generated.png (a row of tiles per class) → one picture per class, ready for the page.

generated/<round>.png, laid out alike, show what was drawn after earlier rounds: one tile of each, side by side.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedbm.errors import FedBMError
from fedbm.results.compare import Group
from fedbm.results.runs import RunView

if TYPE_CHECKING:
    from PIL.Image import Image

COLUMNS = 8
LARGE = 64  # pixels; smaller tiles are enlarged with hard edges, so that nobody takes the blur for detail


@dataclass(frozen=True)
class Gallery:
    name: str
    seed: int
    rows: tuple[tuple[str, str], ...]  # (class, data URI)
    large: bool
    rounds: tuple[int, ...] = ()
    course: tuple[tuple[str, str], ...] = ()  # (class, data URI): a tile for each of *rounds*

    @property
    def label_width(self) -> int:
        """Room for the class names, in letters; longer ones wrap."""
        return min(14, max(len(name) for name, _ in self.rows) + 1)


def galleries(group: Group) -> tuple[list[Gallery], str]:
    """A gallery for the first seed of each row that has one; with none, the reason."""
    found = []
    for row in group.rows:
        run = next((run for run in row.runs if run.generated is not None and run.details is not None), None)
        if run is not None:
            found.append(_gallery(run, row.name))
    if found:
        return found, ""
    trained = [run.id for run in group.runs if any(record.get("generator") for record in run.rounds)]
    if trained:
        return [], f"Not there yet: generated.png or details.json of {', '.join(trained)}."
    return [], "None of these methods trains a generator."


def _gallery(run: RunView, name: str) -> Gallery:
    assert run.generated is not None
    classes = list((run.details or {})["classes"])
    sheet, tile = _sheet(run.generated, len(classes))
    rows = tuple(
        (label, _data_uri(sheet.crop((0, place * tile, sheet.width, (place + 1) * tile))))
        for place, label in enumerate(classes)
    )
    rounds = tuple(sorted(run.drawn))
    return Gallery(name, run.seed, rows, tile >= LARGE, rounds, _course(run, classes) if rounds else ())


def _course(run: RunView, classes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """For every class the first tile of each round's sheet."""
    import PIL.Image

    sheets = [_sheet(run.drawn[number], len(classes)) for number in sorted(run.drawn)]
    strips = []
    for place, label in enumerate(classes):
        strip = PIL.Image.new(sheets[0][0].mode, (len(sheets) * sheets[0][1], sheets[0][1]))
        for column, (sheet, tile) in enumerate(sheets):
            strip.paste(sheet.crop((0, place * tile, tile, (place + 1) * tile)), (column * tile, 0))
        strips.append((label, _data_uri(strip)))
    return tuple(strips)


def _sheet(path: Path, classes: int) -> tuple[Image, int]:
    """The picture and the side of its tiles."""
    import PIL.Image

    try:
        with PIL.Image.open(path) as opened:
            sheet = opened.convert("RGB" if opened.mode not in ("L", "1") else "L")
    except (OSError, SyntaxError) as error:
        raise FedBMError(f"cannot read {path}: {error}; delete it to leave the pictures out") from error
    tile = sheet.width // COLUMNS
    if tile == 0 or sheet.size != (COLUMNS * tile, classes * tile):
        raise FedBMError(
            f"{path} is {sheet.width} × {sheet.height}, not {COLUMNS} square tiles for each of "
            f"{classes} classes; delete it to leave the pictures out"
        )
    return sheet, tile


def _data_uri(picture: Image) -> str:
    written = io.BytesIO()
    picture.save(written, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode("ascii")
