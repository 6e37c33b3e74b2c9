"""Flags made from the configuration's keys, so that a flag's name, help and default always match.

Options of methods are read from the methods, which import PyTorch. The functions here import them when they need them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbm.config.keys import Key, section_keys
from fedbm.config.options import BY_BETA
from fedbm.errors import FedBMError, join_words

if TYPE_CHECKING:
    from fedbm.methods import Method
    from fedbm.runs.config import Config

# flag → the key that decides whether it applies, and the values for which it does
APPLIES: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "beta": ("partition", BY_BETA),
    "classes_per_client": ("partition", ("classes",)),
    "momentum": ("optimizer", ("sgd",)),
    "temperature": ("classifier", ("distribution", "mean")),
    **dict.fromkeys(("condition", "pseudo_batch", "lambda_div", "lambda_dis"), ("generator", (True,))),
    **dict.fromkeys(("generator_every", "generator_steps", "generator_batch"), ("generator", (True,))),
    **dict.fromkeys(("generator_lr", "generator_width"), ("generator", (True,))),
}


def flags_of(section: str, without: Iterable[str] = ()) -> list[str]:
    """Return the flags of a section other than [method]."""
    return [key.flag for key in section_keys() if key.section == section and key.flag not in without]


def add_settings(parser: argparse.ArgumentParser, flags: Sequence[str]) -> None:
    """Add flags of sections; a flag is in the parsed arguments only if it was given."""
    _add_keys(parser, [key for key in section_keys() if key.flag in flags])


def add_all_settings(parser: argparse.ArgumentParser, without: Sequence[str] = ()) -> None:
    """Add the flags of all keys, with the options of methods. `--fedprox-mu` is there too, but not in the help."""
    from fedbm.runs.config import keys, method_flags

    _add_keys(parser, [key for key in keys() if key.flag not in without])
    listed_flags = {key.flag for key in keys()}
    for flag in method_flags():
        if flag not in listed_flags:
            switch = "--" + flag.replace("_", "-")
            parser.add_argument(
                switch, dest=flag, nargs="?", const="yes", default=argparse.SUPPRESS, help=argparse.SUPPRESS
            )


def add_averaged(parser: argparse.ArgumentParser) -> None:
    """Add --averaged, which chooses the averaged model of a run."""
    text = "use the averaged model (server_average) instead of the model of the chosen round"
    parser.add_argument("--averaged", action="store_true", help=text)


def _add_keys(parser: argparse.ArgumentParser, keys: Iterable[Key]) -> None:
    groups: dict[str, Any] = {}
    for key in keys:
        title = f"options of {', '.join(key.methods)}" if key.is_option else key.section
        group = groups.setdefault(title, parser.add_argument_group(title))
        optional: dict[str, Any] = {"nargs": "?", "const": "yes"} if key.type == "yes or no" else {}
        group.add_argument(
            key.switch,
            dest=key.flag,
            default=argparse.SUPPRESS,
            metavar=_metavar(key),
            help=_help_text(key),
            **optional,
        )


def _metavar(key: Key) -> str:
    return {"whole number": "N", "number": "X", "yes or no": "yes|no", "text": "TEXT"}.get(
        key.type, key.type.replace(" ", "")
    )


def _help_text(key: Key) -> str:
    default = format_default(key)
    return (f"{key.meaning} (default {default})" if default else key.meaning).replace("%", "%%")


def format_default(key: Key) -> str:
    """Return the default as it would be typed; "" if there is none."""
    return "" if key.default is None else _typed(key.default)


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given as flags."""
    known = {key.flag for key in section_keys()}
    given = {flag: value for flag, value in vars(args).items() if flag in known}
    if others := {flag: value for flag, value in vars(args).items() if flag not in known}:
        from fedbm.runs.config import keys, method_flags

        options = {key.flag for key in keys()} | set(method_flags())
        given |= {flag: value for flag, value in others.items() if flag in options}
    return given


def read_config(args: argparse.Namespace) -> Config:
    """Return the configuration file's values, overridden by the flags."""
    from fedbm.runs.config import make_config, nest, read_toml

    file = args.file
    if file and not file.endswith(".toml") and not Path(file).exists():
        raise FedBMError(f"there is no configuration file {file}. If it is a data set, use --data {file}.")
    values = read_toml(Path(file)) if file else {}
    flags = given_settings(args)
    if "method" not in flags and "name" in values.get("method", {}):
        flags["method"] = values["method"]["name"]
    elif "method" in flags and flags["method"] != values.get("method", {}).get("name", flags["method"]):
        values["method"] = {}  # the file's options belong to another method
    for section, pairs in nest(flags).items():
        values[section] = {**values.get(section, {}), **pairs}
    return make_config(values, where=file or "the command")


def runs_folder(args: argparse.Namespace) -> Path:
    """Return the folder of runs that --out names."""
    from fedbm.config.options import EngineOptions, check

    return Path(check(EngineOptions, "out", getattr(args, "out", EngineOptions.out))).expanduser()


def check_applies(flags: Iterable[str], config: Config, beta: str = "--beta", recommended: bool = True) -> None:
    """Raise FedBMError for a flag that has no effect. In a file such keys are allowed, because a file may set all keys.

    Args:
        flags: the flags that were given.
        config: the run's configuration.
        beta: the flag that set β.
        recommended: whether *config* includes the data set's recommendations. Without them, a partition that was not
            given is not known yet.
    """
    held = {**vars(config.data), **vars(config.train), **vars(config.method)}
    for flag in flags:
        key, values = APPLIES.get(flag.removeprefix(f"{config.method.name}_"), ("", ()))
        by_default = key == "partition" and "data.partition" not in config.given
        if key not in held or held[key] in values or (by_default and not recommended):
            continue
        switch = beta if flag == "beta" else "--" + flag.replace("_", "-")
        now = f"{config.data.name} uses {held[key]} by default" if by_default else f"it is {_typed(held[key])}"
        advice = f" or set --{key} {_typed(values[0])}" if by_default else ""
        only = join_words(map(_typed, values))
        raise FedBMError(f"{switch} only applies if {key} is {only}, but {now}. Remove {switch}{advice}.")


def check_language_applies(flags: Iterable[str], methods: Sequence[Method]) -> None:
    """Raise FedBMError for a flag of [language] if none of the methods reads concepts."""
    from fedbm.runs.config import method_label

    given = set(flags)
    switch = next((key.switch for key in section_keys() if key.section == "language" and key.flag in given), None)
    if switch and not any(method.needs_concepts for method in methods):
        names = join_words(dict.fromkeys(method_label(method, {}) for method in methods))
        raise FedBMError(f"{switch} only applies to methods that read concepts, not to {names}. Remove {switch}.")


def _typed(value: Any) -> str:
    """Return a value as it would be typed."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
