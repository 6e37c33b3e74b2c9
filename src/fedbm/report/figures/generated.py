"""generated.png (a row of tiles per class) → one picture per class, ready for the page.

generated/<round>.png, laid out alike, show what was drawn after earlier rounds. A strip has a row of tiles per class
again, the first EACH tiles of every such round side by side; a record holds it as one small picture.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedbm.errors import FedBMError
from fedbm.report.grouping import Group
from fedbm.runs.reader import RunView

if TYPE_CHECKING:
    from PIL.Image import Image

COLUMNS = 8
LARGE = 64  # pixels; smaller tiles are enlarged with hard edges, so that nobody takes the blur for detail
EACH = 2  # images of a class that a strip has for every round
STRIP_TILE, STRIP_PIXELS = 48, 200_000  # its tiles are no larger, and with many classes smaller


@dataclass(frozen=True)
class Gallery:
    name: str
    seed: int
    rows: tuple[tuple[str, str], ...]  # (class, data URI)
    large: bool
    rounds: tuple[int, ...] = ()
    course: tuple[tuple[str, str], ...] = ()  # (class, data URI): EACH tiles for each of *rounds*
    blurred: bool = True  # whether tiles of the course are large enough to be enlarged smoothly

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
    waiting = [run.config["method"] for run in group.runs if run.config["method"].get("generator")]
    if pauses := [every for method in waiting if isinstance(every := method.get("generator_every"), int)]:
        every = min(pauses)
        return [], f"No generator was trained yet: that is done every {every} rounds, and no run has played so many."
    return [], "None of these methods trains a generator."


def _gallery(run: RunView, name: str) -> Gallery:
    assert run.generated is not None
    classes = list((run.details or {})["classes"])
    sheet, tile = _sheet(run.generated, len(classes))
    rows = tuple(
        (label, _data_uri(sheet.crop((0, place * tile, sheet.width, (place + 1) * tile))))
        for place, label in enumerate(classes)
    )
    gallery = Gallery(name, run.seed, rows, tile >= LARGE)
    if run.strip is not None:
        rounds = run.strip_rounds
        strip, side = _sheet(run.strip, len(classes), EACH * len(rounds))
    elif run.drawn:
        rounds = tuple(sorted(run.drawn))
        strip, side = strip_of(run.drawn, len(classes))
    else:
        return gallery
    smooth = side >= STRIP_TILE // 2
    course = tuple(
        (label, _data_uri(strip.crop((0, place * side, strip.width, (place + 1) * side)), "JPEG" if smooth else "PNG"))
        for place, label in enumerate(classes)
    )
    return replace(gallery, rounds=rounds, course=course, blurred=smooth)


def strip_of(drawn: Mapping[int, Path], classes: int) -> tuple[Image, int]:
    """The rounds' first EACH tiles of every class, round after round from left to right; and the side of a tile."""
    import PIL.Image

    sheets = [_sheet(drawn[number], classes) for number in sorted(drawn)]
    room = int((STRIP_PIXELS / (classes * len(sheets) * EACH)) ** 0.5)
    side = max(1, min(STRIP_TILE, room, *(tile for _, tile in sheets)))
    strip = PIL.Image.new(sheets[0][0].mode, (len(sheets) * EACH * side, classes * side))
    for column, (sheet, tile) in enumerate(sheets):
        first = sheet.crop((0, 0, EACH * tile, classes * tile))
        strip.paste(first.resize((EACH * side, classes * side)), (column * EACH * side, 0))
    return strip, side


def _sheet(path: Path, classes: int, columns: int = COLUMNS) -> tuple[Image, int]:
    """The picture and the side of its tiles."""
    import PIL.Image

    try:
        with PIL.Image.open(path) as opened:
            sheet = opened.convert("RGB" if opened.mode not in ("L", "1") else "L")
    except (OSError, SyntaxError) as error:
        raise FedBMError(f"cannot read {path}: {error}; delete it to leave the pictures out") from error
    tile = sheet.width // columns if columns else 0
    if tile == 0 or sheet.size != (columns * tile, classes * tile):
        raise FedBMError(
            f"{path} is {sheet.width} × {sheet.height}, not {columns} square tiles for each of "
            f"{classes} classes; delete it to leave the pictures out"
        )
    return sheet, tile


def _data_uri(picture: Image, kind: str = "PNG") -> str:
    written = io.BytesIO()
    picture.save(written, format=kind, optimize=True, **({"quality": 90} if kind == "JPEG" else {}))
    return f"data:image/{kind.lower()};base64," + base64.b64encode(written.getvalue()).decode("ascii")
