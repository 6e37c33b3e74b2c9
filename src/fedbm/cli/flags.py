"""Flags made from the configuration's own keys: a flag's name, help and default cannot fall out of step.

The keys are those of every method as well, so that asking for them imports PyTorch: each function does it when called.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedbm.config.options import BY_BETA
from fedbm.errors import FedBMError, join_words

if TYPE_CHECKING:
    from fedbm.methods import Method
    from fedbm.runs.config import Config, Key

# flag → the key it hangs on, and the values of that key for which it matters
MATTERS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "beta": ("partition", BY_BETA),
    "classes_per_client": ("partition", ("classes",)),
    "momentum": ("optimizer", ("sgd",)),
    "temperature": ("classifier", ("distribution", "mean")),
    **dict.fromkeys(("condition", "pseudo_batch", "lambda_div", "lambda_dis"), ("generator", (True,))),
    **dict.fromkeys(("generator_every", "generator_steps", "generator_batch"), ("generator", (True,))),
    **dict.fromkeys(("generator_lr", "generator_width"), ("generator", (True,))),
}


def names(section: str | None = None, without: Iterable[str] = ()) -> list[str]:
    """The flags of a section, or of all."""
    from fedbm.runs.config import keys

    return [key.flag for key in keys() if section in (None, key.section) and key.flag not in without]


def add_keys(parser: argparse.ArgumentParser, flags: Sequence[str] | None = None) -> None:
    """Flags for these keys (all by default), grouped by section; absent unless given."""
    from fedbm.runs.config import keys

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
    return "" if key.default is None else _typed(key.default)


def given_keys(found: argparse.Namespace) -> dict[str, Any]:
    """The configuration flags the user gave."""
    from fedbm.runs.config import keys

    flags = {key.flag for key in keys()}
    return {flag: value for flag, value in vars(found).items() if flag in flags}


def check_matters(flags: Iterable[str], config: Config, beta: str = "--beta", recommended: bool = True) -> None:
    """What is said on the command line must matter; in a file it may stand idle, since a complete file gives every key.

    *beta*: the switch by which β was given. *recommended*: whether the data's recommendations are in *config*; until
    they are, nothing is said of a partition that was not asked for.
    """
    held = {**vars(config.data), **vars(config.train), **vars(config.method)}
    for flag in flags:
        key, values = MATTERS.get(flag, ("", ()))
        if key not in held or held[key] in values:
            continue
        switch = beta if flag == "beta" else "--" + flag.replace("_", "-")
        by_default = key == "partition" and "data.partition" not in config.given
        if by_default and not recommended:
            continue
        own = f", by which {config.data.name} is dealt by default" if by_default else ""
        say = f"say --{key} {values[0]}, or " if by_default and len(values) == 1 else ""
        words, found = " or ".join(map(_typed, values)), _typed(held[key])
        raise FedBMError(f"{switch} matters for {key} = {words} only, not for {found}{own}: {say}leave it out")


def check_concepts_matter(flags: Iterable[str], methods: Sequence[Method]) -> None:
    """Flags of [language] must matter too: to one of the methods at least, with the options it has."""
    from fedbm.runs.config import keys, method_label

    given = set(flags)
    switch = next((key.switch for key in keys() if key.section == "language" and key.flag in given), None)
    if switch and not any(method.needs_concepts for method in methods):
        idle = join_words(dict.fromkeys(method_label(method, {}) for method in methods))
        raise FedBMError(f"{switch} matters for methods that read concepts only, not for {idle}: leave it out")


def _typed(value: Any) -> str:
    """As it would be typed."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
