"""Read JSON objects into frozen dataclasses, and check them by the types of the fields.

A field may be a str, a dataclass, `X | None`, `tuple[X, ...]`, `Mapping[str, X]` or Any. Every other type, such as a
number or a list of a given length, is `Annotated[…, schema]` with a schema of `fedbm.utils.schema`. A field with a
default is optional in the file. Keys that are not fields are ignored.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fedbm.utils.schema import PLAIN, TEXT, Lengths, Schema, check, each, keys, or_null

T = TypeVar("T")
UNIONS = (types.UnionType, Union)  # X | None, and the same with an Annotated X


class JsonRecord(Mapping[str, Any]):
    """Base of the record dataclasses: a field is an attribute and, as in the JSON file, a key.

    >>> @dataclasses.dataclass(frozen=True, eq=False)
    ... class Point(JsonRecord):
    ...     x: float
    >>> Point(0.5).x, Point(0.5)["x"], Point(0.5) == {"x": 0.5}
    (0.5, 0.5, True)
    """

    def __getitem__(self, key: str) -> Any:
        if key not in _hints(type(self)):
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(_hints(type(self)))

    def __len__(self) -> int:
        return len(_hints(type(self)))


def decode(kind: type[T], value: Any, source: object, remedy: str = "", lengths: Lengths | None = None) -> T:
    """Return *value* as an instance of the dataclass *kind*; raise FedBMError naming the first wrong or missing key.

    The message starts with *source*, the file, and ends with *remedy*. Pass the same *lengths* for several files if
    their lists must have equal lengths.
    """
    form: Any = kind
    check(value, schema_of(form), source, remedy, lengths)
    made: T = _builder(form)(value)
    return made


@cache
def schema_of(kind: Any) -> Schema:
    """Return the schema that JSON values of this type must match."""
    inner = get_args(kind)
    if get_origin(kind) is Annotated:
        schema: Schema = inner[1]
        return schema
    if get_origin(kind) in UNIONS:
        return or_null(schema_of(inner[0]))
    if get_origin(kind) is tuple:
        return each(schema_of(inner[0]))
    if get_origin(kind) is Mapping:
        return keys({}, schema_of(inner[1]))
    if dataclasses.is_dataclass(kind):
        form: Any = kind
        hints = _hints(form)
        fields = dataclasses.fields(kind)
        required = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
        return keys({f.name + "?" * (f.name not in required): schema_of(hints[f.name]) for f in fields})
    schemas: dict[Any, Schema] = {str: TEXT, Any: PLAIN}
    if kind not in schemas:
        raise TypeError(f"no schema for {kind}; annotate it with one")
    return schemas[kind]


@cache
def _builder(kind: Any) -> Callable[[Any], Any]:
    """Return the function that makes a value of this type from a JSON value that matches its schema."""
    inner, origin = get_args(kind), get_origin(kind)
    if origin is Annotated:
        return _builder(inner[0])
    if origin in UNIONS:
        known = _builder(inner[0])
        return lambda value: None if value is None else known(value)
    if origin is tuple:
        item = _builder(inner[0])
        return lambda value: tuple(map(item, value))
    if origin is Mapping:
        entry = _builder(inner[1])
        return lambda value: {key: entry(one) for key, one in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        fields = {name: _builder(hint) for name, hint in _hints(kind).items()}
        return lambda value: kind(**{name: field(value[name]) for name, field in fields.items() if name in value})
    return lambda value: value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)
