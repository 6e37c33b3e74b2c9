"""check(value, shape, source): what a JSON file holds is what its readers count on, or one sentence says where not.

A shape is put together from TEXT, SCALAR, PLAIN, number(0, 1), whole(1), or_null(…), each(…) for a list, and keys({…})
for an object: a key that ends in "?" may be lacking, and keys that are not named are of the shape *others*, or any.
Lists of each(…, "classes") must all be equally long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fedbm.config.options import shown
from fedbm.errors import FedBMError

Lengths = dict[str, int]  # of lists that must agree, by name: what the first of them has
Shape = Callable[[Any, str, Lengths], str]  # (value, where it stands, lengths) → what is wrong with it, or ""

HUGE = 1e100  # what is beyond is damage: its square is no float any more


def check(value: Any, shape: Shape, source: object, remedy: str = "", lengths: Lengths | None = None) -> None:
    """FedBMError where *value* does not fit; files that share *lengths* must agree on them."""
    if wrong := shape(value, "", {} if lengths is None else lengths):
        raise FedBMError(f"{source}: {wrong}{remedy}")


def TEXT(value: Any, at: str, lengths: Lengths) -> str:
    return "" if isinstance(value, str) and _writable(value) else _must(at, "a text", value)


def SCALAR(value: Any, at: str, lengths: Lengths) -> str:
    """What a setting can be."""
    fits = isinstance(value, str | int | float) and _writable(value)
    return "" if fits else _must(at, "a text, a number, true or false", value)


def PLAIN(value: Any, at: str, lengths: Lengths) -> str:
    """Anything that can be written again: no NaN, no half of a character."""
    return "" if _writable(value) else _must(at, "made of finite numbers and readable text", value)


def number(least: float = -HUGE, most: float = HUGE) -> Shape:
    return _number(int | float, "a number", least, most)


def whole(least: float = -HUGE, most: float = HUGE) -> Shape:
    return _number(int, "a whole number", least, most)


def or_null(shape: Shape) -> Shape:
    return lambda value, at, lengths: "" if value is None else shape(value, at, lengths)


def each(shape: Shape, length: str | int = "", least: int = 0) -> Shape:
    """A list of *least* or more; *length*: how long it is, or the name of lists that are as long as it."""

    def fits(value: Any, at: str, lengths: Lengths) -> str:
        if not isinstance(value, list):
            return _must(at, "a list", value)
        if len(value) < least:
            return f"{at} must not be empty"
        meant = lengths.setdefault(length, len(value)) if isinstance(length, str) and length else length
        if meant != "" and len(value) != meant:
            return f"{at} must have {meant} entries, not {len(value)}"
        return next((wrong for n, one in enumerate(value) if (wrong := shape(one, f"{at}[{n}]", lengths))), "")

    return fits


def keys(known: Mapping[str, Shape], others: Shape | None = None) -> Shape:
    required = {name: shape for name, shape in known.items() if not name.endswith("?")}
    shapes = {name.removesuffix("?"): shape for name, shape in known.items()}

    def fits(value: Any, at: str, lengths: Lengths) -> str:
        if not isinstance(value, dict):
            return _must(at, "an object", value)
        inside = f"{at}." if at else ""
        if lacking := next((name for name in required if name not in value), ""):
            return f"{inside}{lacking} is missing"
        for name in (*(name for name in shapes if name in value), *(name for name in value if name not in shapes)):
            shape = shapes.get(name, others)
            if shape and (wrong := shape(value[name], f"{inside}{name}", lengths)):
                return wrong
        return "" if _writable(list(value)) else f"{at or 'it'} has a key that is no readable text"

    return fits


def _number(kinds: Any, words: str, least: float, most: float) -> Shape:
    ends = [f"from {least:.6g}"] * (least > -HUGE) + [f"to {most:.6g}"] * (most < HUGE)

    def fits(value: Any, at: str, lengths: Lengths) -> str:
        if isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= most:  # NaN is not
            return ""
        return _must(at, " ".join([words, *ends]), value)

    return fits


def _must(at: str, be: str, value: Any) -> str:
    return f"{at or 'it'} must be {be}, not {'null' if value is None else shown(value)}"


def _writable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True
