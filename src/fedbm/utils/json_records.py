"""Read JSON objects as frozen dataclasses, and check every value by its type.

A field may be a str, int, float, bool, Literal, dataclass, `X | None`, `tuple[X, ...]`, `tuple[X, Y]`,
`Mapping[str, X]`, Any (whatever JSON can write again) or object (anything). A field with a default is optional in the
file. Keys that are not fields are ignored, or refused if the class has `refuses_others = True`.

Annotations limit values: `Range` a number, `Length` a list, `Keys` some keys of a mapping. `Annotated[Any, Scalar]` is
a text, a number, true or false.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.utils.text import format_value

T = TypeVar("T")
Lengths = dict[str, int]  # name of a list length → the first length seen under that name
Reader = Callable[[Any, Lengths], Any]  # returns the value as its type, or raises _Wrong

HUGE = 1e100  # larger numbers are treated as damage: squaring them would soon overflow


class Range(NamedTuple):
    """The limits of a number."""

    least: float = -HUGE
    most: float = HUGE


class Length(NamedTuple):
    """The least length of a list; lists with the same *name* must be equally long."""

    name: str = ""
    least: int = 0


class Keys:
    """Types of some keys of a mapping. A key is optional if its name ends in "?"."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self.types = types


class Scalar:
    """The value of a setting."""


Index = Annotated[int, Range(0)]
Positive = Annotated[int, Range(1)]
NonNegative = Annotated[float, Range(0)]

KINDS: dict[Any, tuple[Any, str]] = {
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

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __getitem__(self, key: str) -> Any:
        if key not in self.__dataclass_fields__:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)


class _Wrong(Exception):
    """What is wrong with a value. "{at}" in the sentence stands for the path of its keys."""

    def __init__(self, sentence: str, *path: str | int) -> None:
        self.sentence, self.path = sentence, [*path]

    def __str__(self) -> str:
        at = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in reversed(self.path))
        return self.sentence.replace("{at}", at.removeprefix(".") or "it", 1)


def decode(kind: type[T], value: Any, source: object, remedy: str = "", lengths: Lengths | None = None) -> T:
    """Return *value* as an instance of *kind*; raise FedBMError naming the first wrong or missing key.

    The message starts with *source*, the file, and ends with *remedy*. Pass the same *lengths* for several files if
    their lists must have equal lengths.
    """
    form: Any = kind
    try:
        made: T = _reader(form)(value, {} if lengths is None else lengths)
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
        return lambda value, lengths: None if value is None else known(value, lengths)
    if origin is Literal:
        words = join_words([f'"{one}"' for one in inner])
        return lambda value, lengths: value if value in inner else _refuse(words, value)
    if origin is tuple:
        return _list_reader(inner, limit or Length())
    if origin is Mapping:
        named = {} if limit is None else limit.types
        keys = {name.removesuffix("?"): _reader(type_) for name, type_ in named.items()}
        return _object_reader(keys, [name for name in named if name in keys], _reader(inner[1]))
    if dataclasses.is_dataclass(kind):
        return _record_reader(kind)
    return (lambda value, lengths: value) if kind is object else _value_reader(kind, limit or Range())


def _value_reader(kind: Any, limit: Range) -> Reader:
    if kind not in KINDS:
        raise TypeError(f"JSON cannot be read as {kind}")
    accepted, words = KINDS[kind]
    least, most = limit
    words += f" from {least:.6g}" * (least > -HUGE) + f" to {most:.6g}" * (most < HUGE)

    def read_number(value: Any, lengths: Lengths) -> Any:
        fits = isinstance(value, accepted) and not isinstance(value, bool) and least <= value <= most  # NaN is not
        return value if fits else _refuse(words, value)

    def read(value: Any, lengths: Lengths) -> Any:
        return value if isinstance(value, accepted) and _is_writable(value) else _refuse(words, value)

    return read_number if kind in (int, float) else read


def _list_reader(inner: Sequence[Any], length: Length) -> Reader:
    readers = [_reader(one) for one in inner if one is not Ellipsis]
    repeated = Ellipsis in inner

    def read(value: Any, lengths: Lengths) -> Any:
        if not isinstance(value, list):
            _refuse("a list", value)
        count = len(value)
        if count < length.least:
            raise _Wrong("{at} must not be empty")
        expected = count if repeated else len(readers)
        if length.name:
            expected = lengths.setdefault(length.name, count)
        if count != expected:
            raise _Wrong(f"{{at}} must have {expected} entries, not {count}")
        made: list[Any] = []
        try:
            for one, item in zip(readers * count if repeated else readers, value, strict=True):
                made.append(one(item, lengths))
        except _Wrong as wrong:
            wrong.path.append(len(made))
            raise
        return tuple(made)

    return read


def _object_reader(keys: Mapping[str, Reader], required: Sequence[str], others: Reader | None) -> Reader:
    """Return the reader of an object. Keys that are not among *keys* are read by *others*, or refused if it is None."""

    def read(value: Any, lengths: Lengths) -> Any:
        if not isinstance(value, dict):
            _refuse("an object with keys", value)
        if missing := next((name for name in required if name not in value), ""):
            near = next((f", but there is {name}" for name in value if did_you_mean(name, [missing])), "")
            raise _Wrong("{at} is missing" + near, missing)
        made = dict(value)  # in its order
        name = ""
        try:
            for name in sorted(value, key=lambda name: name not in keys):
                if (read_value := keys.get(name, others)) is None:
                    raise _Wrong("there is no key {at}" + did_you_mean(name, keys))
                made[name] = read_value(value[name], lengths)
        except _Wrong as wrong:
            wrong.path.append(name)
            raise
        if not _is_writable("".join(value)):
            raise _Wrong("{at} has a key that is not readable text")
        return made

    return read


def _record_reader(kind: Any) -> Reader:
    hints, fields = get_type_hints(kind, include_extras=True), dataclasses.fields(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields}
    required = [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]

    others = None if getattr(kind, "refuses_others", False) else _reader(object)
    read_object = _object_reader(readers, required, others)

    def read(value: Any, lengths: Lengths) -> Any:
        made = read_object(value, lengths)
        return kind(**{name: made[name] for name in readers if name in made})

    return read


def _refuse(be: str, value: Any) -> NoReturn:
    raise _Wrong(f"{{at}} must be {be}, not {'null' if value is None else format_value(value)}")


def _is_writable(value: Any) -> bool:
    if isinstance(value, str) and value.isascii():
        return True
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True
