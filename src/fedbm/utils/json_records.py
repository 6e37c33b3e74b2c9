"""Read JSON objects as frozen dataclasses, and check every value by its type.

A field may be a str, int, float, bool, Literal, dataclass, `X | None`, `tuple[X, ...]`, `tuple[X, Y]`,
`Mapping[str, X]`, Any (whatever JSON can write again) or object (anything). A field with a default is optional in the
file. Keys that are not fields are ignored, or refused if the class has `refuses_others = True`.

Annotations limit values: `Range` a number, `Length` a list, `Keys` some keys of a mapping. `Annotated[Any, Scalar]` is
a text, a number, true or false. `Keys` alone is an object that stays a dict; its other keys may hold anything.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.utils.text import format_value

T = TypeVar("T")
Lengths = dict[str, int]  # name of a list length → the first length seen under that name
Reader = Callable[[Any, str, Lengths], Any]  # (value, path of keys, lengths) → the value as its type, or _Wrong

HUGE = 1e100  # larger numbers are treated as damage: squaring them would soon overflow


class Range(NamedTuple):
    least: float = -HUGE
    most: float = HUGE


class Length(NamedTuple):
    name: str = ""  # lists with the same name must be equally long
    least: int = 0


class Keys(dict[str, Any]):
    """Types of some keys of a mapping. A key is optional if its name ends in "?"."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Scalar:
    """The value of a setting."""


Index = Annotated[int, Range(0)]
Positive = Annotated[int, Range(1)]
NonNegative = Annotated[float, Range(0)]
VALUES: dict[Any, tuple[Any, str]] = {
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    bool: (bool, "true or false"),
    str: (str, "a text"),
    Scalar: ((str, int, float), "a text, a number, true or false"),
    Any: (object, "made of finite numbers and readable text"),
}


class JsonRecord(Mapping[str, Any]):
    """Base of the record dataclasses: a field is an attribute and, as in the JSON file, a key.

    >>> @dataclasses.dataclass(frozen=True, eq=False)
    ... class Point(JsonRecord):
    ...     x: float
    >>> Point(0.5).x, Point(0.5)["x"], Point(0.5) == {"x": 0.5}
    (0.5, 0.5, True)
    """

    def __getitem__(self, key: str) -> Any:
        return vars(self)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))


class _Wrong(Exception):
    """What is wrong with a value."""


def decode(kind: type[T], value: Any, source: object, remedy: str = "") -> T:
    """Return *value* as an instance of *kind*; raise FedBMError naming the first wrong or missing key.

    The message starts with *source*, the file, and ends with *remedy*.
    """
    form: Any = kind
    try:
        made: T = _reader(form)(value, "", {})
    except _Wrong as wrong:
        raise FedBMError(f"{source}: {wrong}{remedy}") from wrong
    return made


@cache
def _reader(kind: Any, limit: Any = None) -> Reader:
    """Return the function that checks a value and makes this type of it."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _reader(Scalar) if inner[1] is Scalar else _reader(*inner)
    if origin in (types.UnionType, Union):  # X | None
        known = _reader(inner[0])
        return lambda value, at, lengths: None if value is None else known(value, at, lengths)
    if origin is Literal:
        words = join_words([f'"{one}"' for one in inner])
        return lambda value, at, lengths: value if value in inner else _refuse(at, words, value)
    if origin is tuple:
        return _list_reader(inner, limit or Length())
    if origin is Mapping:
        return _object_reader(limit or {}, _reader(inner[1]))
    if isinstance(kind, Keys):
        return _object_reader(kind, _reader(object))
    if dataclasses.is_dataclass(kind):
        return _record_reader(kind)
    return (lambda value, at, lengths: value) if kind is object else _value_reader(kind, limit or Range())


def _value_reader(kind: Any, limit: Range) -> Reader:
    if kind not in VALUES:
        raise TypeError(f"JSON cannot be read as {kind}")
    accepted, words = VALUES[kind]
    least, most = limit
    words += f" from {least:.6g}" * (least > -HUGE) + f" to {most:.6g}" * (most < HUGE)

    def fits(value: Any) -> bool:
        if kind in (int, float):
            return not isinstance(value, bool) and least <= value <= most  # NaN is not
        return _is_writable(value)

    return lambda value, at, lengths: (
        value if isinstance(value, accepted) and fits(value) else _refuse(at, words, value)
    )


def _list_reader(inner: Sequence[Any], length: Length) -> Reader:
    readers = [_reader(one) for one in inner if one is not Ellipsis]
    repeated = Ellipsis in inner

    def read(value: Any, at: str, lengths: Lengths) -> Any:
        if not isinstance(value, list):
            _refuse(at, "a list", value)
        if len(value) < length.least:
            raise _Wrong(f"{at} must not be empty")
        expected = len(value) if repeated else len(readers)
        if length.name:
            expected = lengths.setdefault(length.name, len(value))
        if len(value) != expected:
            raise _Wrong(f"{at} must have {expected} entries, not {len(value)}")
        items = zip(readers * expected if repeated else readers, value, strict=True)
        return tuple(read_item(item, f"{at}[{n}]", lengths) for n, (read_item, item) in enumerate(items))

    return read


def _object_reader(keys: Mapping[str, Any], others: Reader | None) -> Reader:
    """Return the reader of an object. Keys that are not among *keys* are read by *others*, or refused if it is None."""
    readers = {name.removesuffix("?"): _reader(kind) for name, kind in keys.items()}
    required = [name for name in readers if name in keys]

    def read(value: Any, at: str, lengths: Lengths) -> Any:
        if not isinstance(value, dict):
            _refuse(at, "an object with keys", value)
        start = f"{at}." if at else ""
        if missing := next((name for name in required if name not in value), ""):
            near = next((f", but there is {name}" for name in value if did_you_mean(name, [missing])), "")
            raise _Wrong(f"{start}{missing} is missing{near}")
        made = dict(value)  # in its order
        for name in (*(name for name in readers if name in value), *(name for name in value if name not in readers)):
            if (read_value := readers.get(name, others)) is None:
                raise _Wrong(f"there is no key {start}{name}{did_you_mean(name, readers)}")
            made[name] = read_value(value[name], f"{start}{name}", lengths)
        if not _is_writable("".join(value)):
            raise _Wrong(f"{at or 'it'} has a key that is not readable text")
        return made

    return read


def _record_reader(kind: Any) -> Reader:
    hints, fields = get_type_hints(kind, include_extras=True), dataclasses.fields(kind)
    required = [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]
    keys = {field.name + "?" * (field.name not in required): hints[field.name] for field in fields}
    read = _object_reader(keys, None if getattr(kind, "refuses_others", False) else _reader(object))

    def make(value: Any, at: str, lengths: Lengths) -> Any:
        made = read(value, at, lengths)
        return kind(**{field.name: made[field.name] for field in fields if field.name in made})

    return make


def _refuse(at: str, be: str, value: Any) -> NoReturn:
    raise _Wrong(f"{at or 'it'} must be {be}, not {'null' if value is None else format_value(value)}")


def _is_writable(value: Any) -> bool:
    if isinstance(value, str) and value.isascii():
        return True
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True
