"""Draw a contact sheet: one row per class with its name and up to eight training images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedbm.data.dataset import Dataset
from fedbm.utils.io import atomic_write

COLUMNS = 8
GAP = 3
MIN_CELL = 64  # pixels: smaller images are enlarged


def save_contact_sheet(path: Path, dataset: Dataset) -> None:
    """Write the sheet as a PNG. The same data set always gives the same sheet."""
    from PIL import Image, ImageDraw, ImageFont

    size = dataset.shape[1]
    cell = size * max(1, -(-MIN_CELL // size))
    font = ImageFont.load_default(max(12, cell // 8))
    names = [" ".join(name.split()) for name in dataset.classes]  # names may contain line breaks
    left = 2 * GAP + int(max(map(font.getlength, names)))
    sheet = Image.new("RGB", (left + COLUMNS * (cell + GAP), GAP + len(names) * (cell + GAP)), "white")
    draw = ImageDraw.Draw(sheet)
    for label, name in enumerate(names):
        top = GAP + label * (cell + GAP)
        draw.text((GAP, top + cell // 2), name, "black", font, anchor="lm")
        for column, sample in enumerate(choose_samples(dataset, label)):
            image = Image.fromarray(np.squeeze(dataset.images[sample]))
            sheet.paste(image.resize((cell, cell), Image.Resampling.NEAREST), (left + column * (cell + GAP), top))
    with atomic_write(path) as temporary:
        sheet.save(temporary, format="PNG")


def choose_samples(dataset: Dataset, label: int, most: int = COLUMNS) -> list[int]:
    """Return up to *most* training samples of a class, from first to last in equal steps."""
    train = dataset.indices("train")
    members = train[dataset.labels[train] == label]
    positions = np.linspace(0, len(members) - 1, min(most, len(members))).round().astype(np.int64)
    return [int(sample) for sample in members[positions]]
