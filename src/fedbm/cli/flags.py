"""Flags made from the configuration's own keys: a flag's name, help and default cannot fall out of step.

The keys are those of every method as well, so that asking for them imports PyTorch: each function does it when called.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fedbm.errors import FedBMError
from fedbm.options import BY_BETA

if TYPE_CHECKING:
    from fedbm.config import Config, Key


def names(section: str | None = None, without: Iterable[str] = ()) -> list[str]:
    """The flags of a section, or of all."""
    from fedbm.config import keys

    return [key.flag for key in keys() if section in (None, key.section) and key.flag not in without]


def add_keys(parser: argparse.ArgumentParser, flags: Sequence[str] | None = None) -> None:
    """Flags for these keys (all by default), grouped by section; absent unless given."""
    from fedbm.config import keys

    groups: dict[str, Any] = {}
    for key in keys():
        if flags is not None and key.flag not in flags:
            continue
        title = key.section if key.name == "name" or not key.methods else f"options of {', '.join(key.methods)}"
        group = groups.setdefault(title, parser.add_argument_group(title))
        optional: dict[str, Any] = {"nargs": "?", "const": "yes"} if key.type == "yes or no" else {}
        group.add_argument(
            key.switch,
            dest=key.flag,
            default=argparse.SUPPRESS,
            metavar=metavar(key),
            help=help_text(key),
            **optional,
        )


def metavar(key: Key) -> str:
    return {"whole number": "N", "number": "X", "yes or no": "yes|no", "text": "TEXT"}.get(
        key.type, key.type.replace(" ", "")
    )


def help_text(key: Key) -> str:
    default = default_words(key)
    return (f"{key.meaning} (default {default})" if default else key.meaning).replace("%", "%%")


def default_words(key: Key) -> str:
    """The default as it would be typed; '' where there is none."""
    if isinstance(key.default, bool):
        return "yes" if key.default else "no"
    return "" if key.default is None else str(key.default)


def given_keys(found: argparse.Namespace) -> dict[str, Any]:
    """The configuration flags the user gave."""
    from fedbm.config import keys

    flags = {key.flag for key in keys()}
    return {flag: value for flag, value in vars(found).items() if flag in flags}


def check_beta(flag: str, config: Config) -> None:
    """β on the command line must matter; in a file it may stand idle, since a complete file gives every key."""
    if config.data.partition not in BY_BETA:
        kinds = " or ".join(BY_BETA)
        partition = config.data.partition
        own = "" if "data.partition" in config.given else f", by which {config.data.name} is dealt by default"
        raise FedBMError(f"{flag} matters for partition = {kinds} only, not for {partition}{own}: leave it out")
