"""The configuration keys of all sections except [method]. This module does not import PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedbm.config.options import (
    DataOptions,
    EngineOptions,
    LanguageOptions,
    ModelOptions,
    TrainOptions,
    field_types,
    type_words,
)

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
        flag = f.metadata["flag"] or f.name
        yield Key(section, f.name, flag, type_words(hints[f.name]), f.default, f.metadata["meaning"])
