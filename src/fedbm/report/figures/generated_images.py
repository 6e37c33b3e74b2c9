"""Cut generated.png, which has a row of tiles per class, into one picture per class.

generated/<round>.png have the same layout and show images after earlier rounds. A strip also has a row per class, with
the first IMAGES_PER_ROUND tiles of every such round; a record keeps it as one small picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedbm.errors import FedBMError
from fedbm.report.document import Gallery
from fedbm.report.figures.svg import data_uri
from fedbm.runs.run_view import RunView

if TYPE_CHECKING:
    from PIL.Image import Image

    from fedbm.report.group import Group

COLUMNS = 8
MIN_SMOOTH_TILE = 64  # pixels; smaller tiles are enlarged with hard edges, so that blur does not look like detail
IMAGES_PER_ROUND = 2  # of each class in a strip
STRIP_TILE, STRIP_PIXELS = 48, 200_000  # largest side of a tile, and largest size of a strip


def galleries(group: Group) -> list[Gallery]:
    """Return galleries for the first seed of each row that has images."""
    found = []
    for row in group.rows:
        run = next((run for run in row.runs if run.generated is not None and run.details is not None), None)
        found += _galleries(run, row.name) if run is not None else []
    return found


def _galleries(run: RunView, name: str) -> list[Gallery]:
    """Return the images at the end, and those of earlier rounds if there are any."""
    assert run.generated is not None
    assert run.details is not None
    classes, caption = list(run.details.classes), f"{name}, seed {run.seed}"
    sheet, tile = read_sheet(run.generated, len(classes))
    made = [Gallery(caption, _rows(sheet, tile, classes, "PNG"), tile >= MIN_SMOOTH_TILE, tile >= MIN_SMOOTH_TILE)]
    if run.strip is not None:
        rounds = run.strip_rounds
        strip, side = read_sheet(run.strip, len(classes), IMAGES_PER_ROUND * len(rounds))
    elif run.round_images:
        rounds = tuple(sorted(run.round_images))
        strip, side = make_strip(run.round_images, len(classes))
    else:
        return made
    smooth = side >= STRIP_TILE // 2
    caption += ": two images of each class during training, after the round above them"
    return [*made, Gallery(caption, _rows(strip, side, classes, "JPEG" if smooth else "PNG"), True, smooth, rounds)]


def _rows(sheet: Image, tile: int, classes: Sequence[str], kind: Literal["PNG", "JPEG"]) -> tuple[tuple[str, str], ...]:
    """Return (class, data URI) for every row of tiles."""
    strips = (sheet.crop((0, place * tile, sheet.width, (place + 1) * tile)) for place in range(len(classes)))
    return tuple((label, data_uri(strip, kind)) for label, strip in zip(classes, strips, strict=True))


def make_strip(images: Mapping[int, Path], classes: int) -> tuple[Image, int]:
    """Return a picture with the first IMAGES_PER_ROUND tiles of every class, round by round, and the side of a tile."""
    import PIL.Image

    sheets = [read_sheet(images[number], classes) for number in sorted(images)]
    room = int((STRIP_PIXELS / (classes * len(sheets) * IMAGES_PER_ROUND)) ** 0.5)
    side = max(1, min(STRIP_TILE, room, *(tile for _, tile in sheets)))
    strip = PIL.Image.new(sheets[0][0].mode, (len(sheets) * IMAGES_PER_ROUND * side, classes * side))
    for column, (sheet, tile) in enumerate(sheets):
        first = sheet.crop((0, 0, IMAGES_PER_ROUND * tile, classes * tile))
        strip.paste(first.resize((IMAGES_PER_ROUND * side, classes * side)), (column * IMAGES_PER_ROUND * side, 0))
    return strip, side


def read_sheet(path: Path, classes: int, columns: int = COLUMNS) -> tuple[Image, int]:
    """Read a picture and return it with the side of its tiles."""
    import PIL.Image

    try:
        with PIL.Image.open(path) as opened:
            sheet = opened.convert("RGB" if opened.mode not in ("L", "1") else "L")
    except (OSError, SyntaxError) as error:
        raise FedBMError(f"cannot read {path}: {error}. Delete it to make the report without pictures.") from error
    tile = sheet.width // columns if columns else 0
    if tile == 0 or sheet.size != (columns * tile, classes * tile):
        raise FedBMError(
            f"{path} is {sheet.width} × {sheet.height}, not {columns} square tiles for each of "
            f"{classes} classes. Delete it to make the report without pictures."
        )
    return sheet, tile
