"""The configuration keys of all sections except [method], and how values become options; without PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from fedbm.config.options import (
    DataOptions,
    EngineOptions,
    LanguageOptions,
    ModelOptions,
    TrainOptions,
    check,
    field_types,
    type_words,
)
from fedbm.errors import FedBMError, did_you_mean

T = TypeVar("T")

SECTIONS: dict[str, type] = {
    "data": DataOptions,
    "language": LanguageOptions,
    "model": ModelOptions,
    "train": TrainOptions,
    "engine": EngineOptions,
}


@dataclass(frozen=True)
class Key:
    """One configuration key: its place in TOML, its flag, and its line of `fedbm config`."""

    section: str
    name: str
    flag: str
    type: str
    default: Any
    meaning: str
    methods: tuple[str, ...] = ()  # the methods that have this option

    @property
    def switch(self) -> str:
        """The flag with its dashes, such as --min-samples."""
        return "--" + self.flag.replace("_", "-")

    @property
    def is_option(self) -> bool:
        """Whether this key is an option of a method."""
        return self.section == "method" and self.name != "name"


@cache
def section_keys() -> tuple[Key, ...]:
    """Return the keys of all sections except [method]."""
    return tuple(key for section, options in SECTIONS.items() for key in keys_of(section, options))


def keys_of(section: str, options: type) -> Iterator[Key]:
    """Yield a key for every field of an options dataclass."""
    hints = field_types(options)
    for f in dataclasses.fields(options):
        flag = section if f.name == "name" else f.name
        yield Key(section, f.name, flag, type_words(hints[f.name]), f.default, f.metadata["meaning"])


def build_options(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return an options object with these values; raise FedBMError for an unknown key or a value out of range."""
    fields: Any = kind
    known = [f.name for f in dataclasses.fields(fields) if "meaning" in f.metadata]
    for key in values:
        if key not in known:
            raise FedBMError(f'{where} has no key "{key}"{did_you_mean(key, known)}')
    return kind(**{key: check(kind, key, value) for key, value in values.items()})
