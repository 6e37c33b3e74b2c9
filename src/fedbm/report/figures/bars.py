"""Draw stacked bars, such as bytes or seconds by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedbm.report.figures.labels import max_width, short_names, text_width, wrap_widths
from fedbm.report.figures.svg import INK, MUTED, WIDE, Drawing, series


def stacked_bars(
    labels: Sequence[tuple[str, int]], parts: Mapping[str, Sequence[float]], title: str, show: Callable[[float], str]
) -> str:
    """Draw a bar for each (label, colour), with *parts* from dark to light and the total at its end."""
    names = short_names([label for label, _ in labels])
    totals = [sum(values) for values in zip(*parts.values(), strict=True)]
    left, right, step = 16 + max_width(names), 16 + max_width([show(total) for total in totals]), 30.0
    room, longest = WIDE - left - right, max(totals) or 1.0
    shades = [max(0.12, 0.95 * 0.62**place) for place in range(len(parts))]
    legend = wrap_widths([34 + text_width(name) for name in parts], left, WIDE)
    top = legend[-1][1] + 24
    sheet = Drawing(WIDE, top + step * len(labels) + 4, title)
    for name, shade, (x, y) in zip(parts, shades, legend, strict=True):
        sheet.box(x, y - 5, 9.2, 10, INK, shade)
        sheet.write(x + 15, y, name, colour=MUTED)
    for place, (name, (_, colour)) in enumerate(zip(names, labels, strict=True)):
        y, x = top + step * place, left
        sheet.write(0, y + step / 2, name)
        for shade, values in zip(shades, parts.values(), strict=True):
            length = room * values[place] / longest
            sheet.box(x, y + 6, length - 0.8, step - 12, series(colour), shade)
            x += length
        sheet.write(x + 8, y + step / 2, show(totals[place]))
    return sheet.svg()
