"""Validate JSON values against a schema.

Schemas are built from TEXT, SCALAR, TRUTH, PLAIN, number(0, 1), whole(1), choice("a", "b"), or_null(…), each(…) for a
list and keys({…}) for an object. A key that ends in "?" is optional. Lists declared as each(…, "classes") must all have
the same length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.utils.text import format_value

Lengths = dict[str, int]  # name of a list length → the first length seen under that name
Schema = Callable[[Any, str, Lengths], str]  # (value, key path, lengths) → what is wrong, or ""

HUGE = 1e100  # larger numbers are treated as damage: squaring them would soon overflow


def check(value: Any, schema: Schema, source: object, remedy: str = "", lengths: Lengths | None = None) -> None:
    """Raise FedBMError naming the offending key if *value* does not match. Files can share *lengths*."""
    if wrong := schema(value, "", {} if lengths is None else lengths):
        raise FedBMError(f"{source}: {wrong}{remedy}")


def TEXT(value: Any, at: str, lengths: Lengths) -> str:
    return "" if isinstance(value, str) and _writable(value) else _must(at, "a text", value)


def SCALAR(value: Any, at: str, lengths: Lengths) -> str:
    """Accept the value of a setting."""
    fits = isinstance(value, str | int | float) and _writable(value)
    return "" if fits else _must(at, "a text, a number, true or false", value)


def TRUTH(value: Any, at: str, lengths: Lengths) -> str:
    return "" if isinstance(value, bool) else _must(at, "true or false", value)


def PLAIN(value: Any, at: str, lengths: Lengths) -> str:
    """Accept anything that can be written as JSON again: no NaN, no lone surrogates."""
    return "" if _writable(value) else _must(at, "made of finite numbers and readable text", value)


def REFUSED(value: Any, at: str, lengths: Lengths) -> str:
    """Refuse a key: keys(…, REFUSED) accepts no other keys than those it names."""
    return f"there is no key {at}"


def choice(*known: str) -> Schema:
    words = join_words([f'"{one}"' for one in known])
    return lambda value, at, lengths: "" if value in known else _must(at, words, value)


def number(least: float = -HUGE, most: float = HUGE) -> Schema:
    return _number(int | float, "a number", least, most)


def whole(least: float = -HUGE, most: float = HUGE) -> Schema:
    return _number(int, "a whole number", least, most)


def or_null(schema: Schema) -> Schema:
    return lambda value, at, lengths: "" if value is None else schema(value, at, lengths)


def each(schema: Schema, length: str | int = "", least: int = 0) -> Schema:
    """Accept a list of at least *least* items. *length* is its length, or a name for the length of several lists."""

    def fits(value: Any, at: str, lengths: Lengths) -> str:
        if not isinstance(value, list):
            return _must(at, "a list", value)
        if len(value) < least:
            return f"{at} must not be empty"
        expected = lengths.setdefault(length, len(value)) if isinstance(length, str) and length else length
        if expected != "" and len(value) != expected:
            return f"{at} must have {expected} entries, not {len(value)}"
        for n, one in enumerate(value):
            if schema(one, at, lengths):  # the path is made only for the item that is wrong: lists can be long
                return schema(one, f"{at}[{n}]", lengths)
        return ""

    return fits


def keys(known: Mapping[str, Schema], others: Schema | None = None) -> Schema:
    """Accept an object with the *known* keys. Other keys must match *others*, or may hold anything if it is None."""
    required = [name for name in known if not name.endswith("?")]
    schemas = {name.removesuffix("?"): schema for name, schema in known.items()}

    def fits(value: Any, at: str, lengths: Lengths) -> str:
        if not isinstance(value, dict):
            return _must(at, "an object with keys", value)
        inside = f"{at}." if at else ""
        if missing := next((name for name in required if name not in value), ""):
            near = next((f", but there is {name}" for name in value if did_you_mean(name, [missing])), "")
            return f"{inside}{missing} is missing{near}"
        for name in (*(name for name in schemas if name in value), *(name for name in value if name not in schemas)):
            schema = schemas.get(name, others)
            if schema and (wrong := schema(value[name], f"{inside}{name}", lengths)):
                return wrong + (did_you_mean(name, schemas) if schema is REFUSED else "")
        return "" if _writable("".join(value)) else f"{at or 'it'} has a key that is not readable text"

    return fits


def _number(kinds: Any, words: str, least: float, most: float) -> Schema:
    ends = [f"from {least:.6g}"] * (least > -HUGE) + [f"to {most:.6g}"] * (most < HUGE)

    def fits(value: Any, at: str, lengths: Lengths) -> str:
        if isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= most:  # NaN is not
            return ""
        return _must(at, " ".join([words, *ends]), value)

    return fits


def _must(at: str, be: str, value: Any) -> str:
    return f"{at or 'it'} must be {be}, not {'null' if value is None else format_value(value)}"


def _writable(value: Any) -> bool:
    if isinstance(value, str) and value.isascii():
        return True
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True
