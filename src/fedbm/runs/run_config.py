"""A run's configuration: read from TOML, flags or Python into frozen dataclasses, and written as TOML.

The user's settings override the recommendations of the data set (in the catalogue); these override the defaults.
Unknown keys and values out of range raise the same FedBMError for a file, a flag and Python.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

import torch

from fedbm.config.keys import SECTIONS, Key, build_options, keys_of, section_keys
from fedbm.config.options import (
    BY_BETA,
    NEVER_IGNORED,
    OPTION_NEEDS,
    RECIPES,
    SERVER_LR,
    DataOptions,
    EngineOptions,
    LanguageOptions,
    ModelOptions,
    TrainOptions,
    check_all,
)
from fedbm.engine.server_average import no_common_model
from fedbm.engine.server_optimizer import check_server_optimizer
from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.methods import METHODS, FedAvg, FedBM, Method, all_methods, method_plugins
from fedbm.runs.custom_method import check_name, load_method
from fedbm.utils.io import parse_toml, read_text
from fedbm.utils.plugins import check_usable
from fedbm.utils.text import format_option

FILE_SECTIONS = (*SECTIONS, "method", "concepts")


@dataclass(frozen=True)
class Config:
    """The settings of a run.

    `given` are the keys that the user set; recommendations do not change them. `arguments` are the flags of the command
    line or the arguments of the Python function, which must have an effect.
    """

    data: DataOptions = field(default_factory=DataOptions)
    language: LanguageOptions = field(default_factory=LanguageOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    method: Method = field(default_factory=FedBM)
    train: TrainOptions = field(default_factory=TrainOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    concepts: Mapping[str, str] = field(default_factory=dict)  # class → what a clinician calls it
    given: frozenset[str] = frozenset()
    arguments: frozenset[str] = frozenset()

    def with_values(self, section: str, **values: Any) -> Config:
        """Return this configuration with other *values* in one section."""
        changed: dict[str, Any] = {section: dataclasses.replace(getattr(self, section), **values)}
        return dataclasses.replace(self, **changed)


@cache
def keys() -> tuple[Key, ...]:
    """Return every key of every section, method options included, each flag once.

    An option of several methods is one key, as the first method declares it. If one of them is a plug-in, it also has
    a key of its own, such as other_mu. So has an option with the name of another key, such as fedavgm_momentum.
    """
    methods = all_methods()
    name_key = Key("method", "name", "method", " | ".join(methods), FedBM.name, "the federated method", tuple(methods))
    shared = (*section_keys(), name_key)
    taken = {key.flag for key in shared}
    options: dict[str, Key] = {}
    for name, method in methods.items():
        for key in keys_of("method", method):
            flag = f"{name}_{key.flag}" if key.flag in taken else key.flag
            first = options.get(flag, dataclasses.replace(key, flag=flag))
            options[flag] = dataclasses.replace(first, methods=(*first.methods, name))
    own = [
        dataclasses.replace(key, flag=f"{name}_{key.flag}", methods=(name,))
        for name, method in methods.items()
        for key in keys_of("method", method)
        if name not in METHODS and key.flag not in taken and len(options[key.flag].methods) > 1
    ]
    return (*shared, *options.values(), *own)


def find_key(flag: str) -> Key:
    """Return the key that a flag sets; raise FedBMError if there is none."""
    by_flag = {key.flag: key for key in keys()}
    if flag not in by_flag:
        raise FedBMError(f'there is no setting "{flag}"{did_you_mean(flag, by_flag)}')
    return by_flag[flag]


def settings_for(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that apply to a method: all but the options that only other methods have."""
    found = {flag: find_key(flag) for flag in settings}
    return {flag: settings[flag] for flag, key in found.items() if not key.is_option or method in key.methods}


def check_method_options(flags: Iterable[str], methods: Iterable[str]) -> None:
    """Raise FedBMError if one of the *flags* is an option of none of the *methods*."""
    for key in map(find_key, flags):
        if key.is_option and not set(key.methods) & set(methods):
            known = join_words(key.methods)
            raise FedBMError(
                f"{key.flag} is an option of {known}, and no such method is chosen. Remove it, or add one."
            )


def make_config(values: Mapping[str, Mapping[str, Any]], where: str = "the configuration") -> Config:
    """Return the Config of nested values, {section: {key: value}}; texts are converted as on the command line."""
    for section in values:
        if section in ("federation", "own"):
            raise FedBMError(
                f"{where} has the section [{section}]. Use 'fedbm federation run' if it is a run between machines, "
                "or the command or script with the method or body of your own."
            )
        if section not in FILE_SECTIONS:
            near = did_you_mean(section, FILE_SECTIONS)
            raise FedBMError(f'{where} has no section "{section}"{near}; there are {join_words(FILE_SECTIONS)}')
    if (recipe := str(values.get("train", {}).get("recipe"))) in RECIPES:  # its values count as set by the user
        values = {**values, "train": {**RECIPES[recipe], **values["train"]}}
    if (kind := str(values.get("train", {}).get("server_optimizer"))) in SERVER_LR:
        values = {**values, "train": {"server_lr": SERVER_LR[kind], **values["train"]}}
    made: dict[str, Any] = {
        section: build_options(options, values.get(section, {}), f"[{section}] in {where}")
        for section, options in SECTIONS.items()
    }
    chosen = dict(values.get("method", {}))
    name = str(chosen.pop("name", FedBM.name))
    made["method"] = build_options(find_method(name), chosen, f"the method {name}")
    made["concepts"] = dict(values.get("concepts", {}))
    for name, text in made["concepts"].items():
        if not isinstance(text, str):
            raise FedBMError(f'[concepts] in {where}: the description of "{name}" must be a text in quotes, not {text}')
    given = frozenset(f"{section}.{key}" for section, pairs in values.items() for key in pairs)
    return Config(**made, given=given)


def is_reference(method: object) -> TypeGuard[str]:
    """Return whether *method* is a text of the form FILE.py:CLASS, not the name of a method."""
    return isinstance(method, str) and (":" in method or method.endswith(".py"))


def find_method(name: str) -> type[FedAvg]:
    if is_reference(name):  # not imported here: configurations come from other machines too
        raise FedBMError(f"{name} is your own code; only 'fedbm run', 'fedbm compare' and Python run it")
    if name in METHODS:
        return METHODS[name]
    check_usable(method_plugins(), name)
    if name not in (known := all_methods()):
        raise FedBMError(f'there is no method "{name}"{did_you_mean(name, known)}; choose {join_words(known)}')
    return known[name]


def read_sections(path: Path) -> dict[str, dict[str, Any]]:
    """Read {section: {key: value}} from a file."""
    values = parse_toml(read_text(path), str(path))
    for section, pairs in values.items():
        if not isinstance(pairs, dict):
            raise FedBMError(f'{path}: "{section}" is not a section. Sections begin with a line such as [train].')
    return values


def recommended_at_beta(recommends: Mapping[str, Any], partition: str, beta: float) -> dict[str, Any]:
    """Return the recommendations that apply to this partition and its β.

    >>> [recommended_at_beta({"temperature": {0.05: 12.5}}, kind, 0.05) for kind in ("dirichlet", "iid")]
    [{'temperature': 12.5}, {}]
    """
    known = beta if partition in (*BY_BETA, "file") else None  # a file contains its β
    decided = {k: v.get(known) if isinstance(v, Mapping) else v for k, v in recommends.items()}
    return {k: v for k, v in decided.items() if v is not None}


def recommend(config: Config, recommends: Mapping[str, Any]) -> Config:
    """Return *config* with the data set's recommendations for the keys that the user did not set."""
    own = {} if "data.partition" in config.given else recommends
    recommends = recommended_at_beta(recommends, own.get("partition", config.data.partition), config.data.beta)
    parts: dict[str, Any] = {}
    for section in ("data", "model", "method", "train"):
        options = getattr(config, section)
        names = {f.name for f in dataclasses.fields(options)}
        use = {k: v for k, v in recommends.items() if k in names and f"{section}.{k}" not in config.given}
        if "data.partition" in config.given:
            use.pop("partition_column", None)  # it belongs to the recommended partition
        if use:  # a user's method may not support replace()
            parts[section] = dataclasses.replace(options, **use)
    config = dataclasses.replace(config, **parts)
    check_effects(config)
    return config


def describe_recipe(train: TrainOptions) -> Iterator[str]:
    """Yield a sentence that lists what the recipe sets; nothing for the recipe "paper"."""
    if train.recipe in RECIPES:
        values = ((key, value) for key, value in RECIPES[train.recipe].items() if getattr(train, key) == value)
        found = [f"{key} = {format_option(value)}" for key, value in values]
        yield f"recipe {train.recipe} sets {join_words(found or ['nothing'], 'and')}"


def check_config(config: Config) -> None:
    """Raise FedBMError if settings contradict each other."""
    for kind in ("file", "column"):
        if config.data.partition == kind and not getattr(config.data, f"partition_{kind}"):
            raise FedBMError(f"partition = {kind} needs partition_{kind}")
    if config.train.server_average and not config.method.common_model:
        raise FedBMError(no_common_model(config.method.name))
    check_server_optimizer(config.method, config.train)
    if config.train.label_smoothing and getattr(type(config.method), "loss", None) is not FedAvg.loss:
        raise FedBMError(
            f"label_smoothing changes FedAvg's cross-entropy, but {config.method.name} has a loss of its own. "
            "Remove it, or choose a method with FedAvg's loss, such as fedprox or scaffold."
        )


def check_effects(config: Config) -> None:
    """Raise FedBMError if one of `arguments` has no effect. A file may contain such keys, because it may set all keys.

    The partition is only known after recommend().
    """
    values = {**vars(config.data), **vars(config.model), **vars(config.train), **vars(config.method)}
    for flag in (*filter(values.get, NEVER_IGNORED), *sorted(config.arguments)):
        key = find_key(flag)
        if key.section == "language" and not config.method.needs_concepts:
            raise FedBMError(f"{flag} only applies to methods that read concepts. Remove {flag}.")
        needs = config.method.option_needs if key.is_option else OPTION_NEEDS
        other, suitable = needs.get(key.name, ("", ()))
        if other in values and values[other] not in suitable:
            choices = list(map(format_option, suitable))
            raise FedBMError(
                f"{flag} only applies if {other} is {join_words(choices)}, but it is {format_option(values[other])}. "
                f"Remove {flag}, or set {other} to {choices[0]}."
            )


def method_values(method: Method) -> dict[str, Any]:
    """Return a method's name and options; a value of a user's method that is not plain data becomes a text."""
    text = json.dumps(dataclasses.asdict(method), default=repr)
    plain: dict[str, Any] = json.loads(text, parse_constant=str)  # NaN and infinity are not plain data either
    return {"name": method.name, **plain}


def method_label(method: Method, recommends: Mapping[str, Any]) -> str:
    """Return the method's name with the options that differ from default and recommendation: 'fedbm · generator=no'."""
    usual = {f.name: recommends.get(f.name, f.default) for f in dataclasses.fields(method)}
    values = {name: getattr(method, name) for name in usual}
    changed = [f"{name}={format_option(value)}" for name, value in values.items() if value != usual[name]]
    return f"{method.name} · {', '.join(changed)}" if changed else method.name


def to_toml(config: Config, own: Mapping[str, str] | None = None) -> str:
    """Return *config* as TOML, with every key in a fixed order; a key that is not set becomes a comment.

    [concepts] is added if the user described classes, [own] if method or body were made in Python.
    """
    texts = {"concepts": config.concepts, "own": own or {}}
    return format_sections(to_values(config) | {section: pairs for section, pairs in texts.items() if pairs})


def to_values(config: Config) -> dict[str, Mapping[str, Any]]:
    """Return *config* as {section: {key: value}}, without [concepts]."""
    order = ("data", "language", "model", "method", "train", "engine")
    values = {name: dataclasses.asdict(getattr(config, name)) for name in order}
    return {**values, "method": method_values(config.method)}


def format_sections(values: Mapping[str, Mapping[str, Any]]) -> str:
    """Return {section: {key: value}} as TOML. Names of classes are quoted, because they may contain spaces."""
    lines: list[str] = []
    for section, pairs in values.items():
        lines.append(f"[{section}]")
        for key, value in pairs.items():
            name = json.dumps(key, ensure_ascii=False) if section in ("concepts", "own") else key
            lines.append(f"# {key} is not set" if value is None else f"{name} = {_format_toml(value)}")
        lines.append("")
    return "\n".join(lines)


def _format_toml(value: Any) -> str:
    """Return *value* as TOML, which equals JSON except for tables and null (an empty text)."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key, ensure_ascii=False)} = {_format_toml(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_format_toml, value))}]"
    return json.dumps("" if value is None else value, ensure_ascii=False)


def to_sections(flags: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Turn {flag: value} into {section: {key: value}}; refuse an option that the chosen method does not have."""
    method = str(flags.get("method", FedBM.name))
    values: dict[str, dict[str, Any]] = {}
    for flag in sorted(flags, key=len):  # mu before other_mu, which is for one method
        key, value = find_key(flag), flags[flag]
        if key.is_option and method not in key.methods:
            if not is_reference(method):
                find_method(method)  # a mistake in its name comes first
            known = join_words(key.methods)
            raise FedBMError(f"{flag} is an option of {known}, not of {method}. Remove it, or use {known}.")
        if isinstance(value, list | tuple):  # such as mean=(0.5,), freeze=["conv1", "bn1"]
            value = ",".join(map(str, value))
        plain = str(value) if isinstance(value, Path | torch.device) else value
        values.setdefault(key.section, {})[key.name] = plain
    return values


def override(values: Mapping[str, Mapping[str, Any]], flags: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the *values* of a configuration file, {section: {key: value}}, overridden by *flags*."""
    given = to_sections(flags)
    return {section: {**values.get(section, {}), **given.get(section, {})} for section in (*values, *given)}


def configure(
    method: str | Method,
    settings: Mapping[str, Any],
    base: Mapping[str, Mapping[str, Any]] | None = None,
    where: str = "the configuration",
) -> Config:
    """Return the configuration of a run of a method: a name, an object, or a class of the user's own as FILE.py:CLASS.

    *settings* are values by flag. They win over *base*, the values of a configuration file, and must have an effect.
    """
    own: Method | None = None
    if isinstance(method, str):
        values = override(base or {}, {**settings, "method": method})
        if is_reference(method):
            options = values.pop("method")
            own = load_method(options.pop("name"), options)
    else:
        if not isinstance(method, Method):
            raise FedBMError(
                f"method must be a name or an object like fedbm.FedAvg(), not {method!r}. Add () to a class."
            )
        check_name(type(method))
        for flag in settings:
            if find_key(flag).is_option:
                raise FedBMError(f"{flag} is an option of a method. Set it where you make the {method.name} object.")
        own, values = method, override(base or {}, settings)
    config = dataclasses.replace(make_config(values, where), arguments=frozenset(settings))
    return config if own is None else with_method(config, own)


def with_method(config: Config, method: Method) -> Config:
    """Return *config* with a method object, whose options are checked. They count as set by the user."""
    method = check_all(method)
    given = config.given | {f"method.{option}" for option in method_values(method)}
    return dataclasses.replace(config, method=method, given=given)
