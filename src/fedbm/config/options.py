"""What a run is, in frozen dataclasses; every value is checked where it enters, with one sentence.

A field carries its meaning and its range; the same field makes the TOML key, the command-line flag, the line of
`fedbm config` and the check. A method's options are the fields of its own dataclass, declared the same way.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.utils.text import format_value


def option(
    default: Any,
    meaning: str,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
    flag: str | None = None,
) -> Any:
    """A dataclass field with its meaning and range; *flag* where the flag's name differs from the key's."""
    return dataclasses.field(
        default=default,
        metadata={"meaning": meaning, "above": above, "least": least, "most": most, "below": below, "flag": flag},
    )


@cache
def types_of(section: type) -> dict[str, Any]:
    """The declared type of every field; read once, since it is asked for with every value."""
    return get_type_hints(section)


def check(section: type, key: str, value: Any) -> Any:
    """*value* as the type the field declares, or FedBMError. Text is read as the command line gives it."""
    field = next(f for f in dataclasses.fields(section) if f.name == key)
    kind = types_of(section)[key]
    checked = _convert(kind, value, key)
    if isinstance(checked, int | float):
        above, least, most, below = (field.metadata[bound] for bound in ("above", "least", "most", "below"))
        if above is not None and checked <= above:
            raise FedBMError(f"{key} must be above {above:g}, not {checked:g}")
        if least is not None and checked < least:
            raise FedBMError(f"{key} must be at least {least:g}, not {checked:g}")
        if most is not None and checked > most:
            raise FedBMError(f"{key} must be at most {most:g}, not {checked:g}")
        if below is not None and checked >= below:
            raise FedBMError(f"{key} must be below {below:g}, not {checked:g}")
    return checked


def check_all(value: Any) -> Any:
    """An instance made in Python with every declared option checked, and converted, as check() does for text."""
    checked = {
        field.name: check(type(value), field.name, getattr(value, field.name))
        for field in dataclasses.fields(value)
        if "meaning" in field.metadata  # a method of the user's own may have fields of any kind
    }
    other = {name: new for name, new in checked.items() if (type(new), new) != (type(old := getattr(value, name)), old)}
    return dataclasses.replace(value, **other) if other else value  # and need not be rebuildable


def type_words(kind: Any) -> str:
    """'whole number', 'number', 'yes or no', 'text' or the choices, for sentences and help."""
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    if get_origin(kind) in (types.UnionType, typing.Union):
        return type_words(next(k for k in get_args(kind) if k is not type(None)))
    return {int: "whole number", float: "number", bool: "yes or no", str: "text"}[kind]


def _convert(kind: Any, value: Any, key: str) -> Any:
    if get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in get_args(kind)}
        word = value if isinstance(value, str) else format_value(value)
        if word not in choices:
            quoted = [choice or '""' for choice in choices]
            raise FedBMError(
                f"{key} must be {join_words(quoted)}, not {format_value(value)}{did_you_mean(word, choices)}"
            )
        return choices[word]
    if get_origin(kind) in (types.UnionType, typing.Union):  # "number | None": None means not given
        return None if value is None else _convert(next(k for k in get_args(kind) if k is not type(None)), value, key)
    if kind is bool:
        words = {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
    elif kind is str and isinstance(value, str):
        if any(unicodedata.category(c) in ("Cc", "Cs") for c in value):  # control characters, bytes that are no UTF-8
            raise FedBMError(f"{key} holds a character that cannot be printed: {format_value(value)}")
        return value
    elif kind in (int, float) and not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):  # no number, infinite, or beyond every float
            number = float(value)
            if kind is float and math.isfinite(number):
                return number
            if kind is int and number == int(number):
                return int(number) if abs(number) < 2**53 else int(value)  # beyond, a float has not all digits
    article = "" if kind is bool else "a "
    raise FedBMError(f"{key} must be {article}{type_words(kind)}, not {format_value(value)}")


@dataclass(frozen=True)
class DataOptions:
    """Which images, how they are split, and how the training part is dealt to clients."""

    name: str = option(
        "digits", "a catalogued data set, or a path: an image folder, archive, table or .npz", flag="data"
    )
    size: int | None = option(
        None, "side of the square images in pixels, a multiple of 4; unset: the data set's", least=16
    )
    channels: Literal[1, 3] | None = option(None, "1 grey or 3 colour; unset: the data set's")
    split: Literal["auto", "official", "stratified", "grouped"] = option(
        "auto", "train, val and test: the source's own, by class, or by class and group; auto: the best it allows"
    )
    group: str = option("", "the column whose samples stay on one side, such as patient or lesion; implies grouped")
    metadata: str = option("", "a CSV or Parquet table whose columns are joined to the samples by name")
    split_seed: int = option(0, "seed of the split where the source has none; fixed over runs", least=0)
    on_bad_file: Literal["refuse", "skip"] = option("refuse", "what to do with files that are no readable image")
    partition: Literal["dirichlet", "iid", "quantity", "classes", "column", "file"] = option(
        "dirichlet", "how training samples are dealt to clients"
    )
    partition_file: str = option("", "the partition to use when partition = file (a run's partition.json)")
    partition_column: str = option("", "when partition = column: each value of this column (site, writer) is a client")
    classes_per_client: int = option(2, "when partition = classes: how many classes each client holds", least=1)
    clients: int = option(10, "number of clients N; a partition by column or from a file brings its own", least=1)
    beta: float = option(0.1, "Dirichlet concentration β: smaller is more skewed (quantity: in sizes)", above=0)
    min_samples: int = option(2, "samples each client has at least", least=1)
    strict_min_samples: bool = option(False, "stop, rather than move samples, when 100 draws leave a client too small")


# those of DataOptions that say how samples are dealt; the others say how they are read
DEALING = (
    "partition",
    "partition_file",
    "partition_column",
    "classes_per_client",
    "clients",
    "beta",
    "min_samples",
    "strict_min_samples",
)
BY_BETA = ("dirichlet", "quantity")  # the partitions that β shapes


@dataclass(frozen=True)
class LanguageOptions:
    """Which language model read the class concepts, and how much of the prompt grid is used."""

    encoder: str = option("minilm", "minilm, bert, roberta, biomedclip or any Hugging Face encoder's name")
    encoder_dir: str = option("", "folder with the encoder's files: read from there, offline")
    pooling: Literal["", "mean", "cls", "biomedclip"] = option(
        "", "pooling of an encoder not listed; unset: as declared"
    )
    concept_file: str = option("", "concept distributions saved by 'fedbm concepts --save'; no encoder is then needed")
    prompt_fraction: float = option(1.0, "share of the prompts in use, chosen by the run's seed", above=0, most=1)


@dataclass(frozen=True)
class ModelOptions:
    """The shared feature extractor: ResNet-18, or from Python any module that maps images to features."""

    stem: Literal["7x7", "3x3"] = option("7x7", "first layer: 7x7 stride 2 with pooling, or 3x3 for small images")
    width: int = option(64, "channels of the first stage; features = 8 × width", least=4)
    norm: Literal["batch", "group"] = option("batch", "normalisation layers")
    init_weights: str = option("", "file with initial body weights (.safetensors, or torchvision's ResNet-18 .pth)")


@dataclass(frozen=True)
class TrainOptions:
    """The protocol every method shares: rounds, selection, local optimisation, evaluation, seed."""

    rounds: int = option(50, "communication rounds", least=1)
    epochs: int = option(1, "local epochs E per round", least=1)
    batch: int = option(8, "real samples per local step B", least=1)
    participation: float = option(0.5, "share of clients selected each round", above=0, most=1)
    optimizer: Literal["sgd", "adam"] = option("sgd", "local optimiser")
    lr: float = option(0.01, "initial learning rate η", above=0)
    momentum: float = option(0.9, "SGD momentum", least=0, most=1)
    weight_decay: float = option(5e-4, "L2 weight decay", least=0)
    lr_decay: float = option(0.99, "factor on the learning rate, each round or each local epoch", above=0, most=1)
    lr_decay_every: Literal["round", "epoch"] = option("round", "when lr_decay applies")
    keep_optimizer: bool = option(False, "clients keep momentum between rounds (state) instead of starting afresh")
    evaluate_every: int = option(1, "rounds between evaluations; the last round is always evaluated", least=1)
    server_average: float = option(
        0.0, "decay d of an average of the server's models over rounds, which is scored too; 0: none", least=0, below=1
    )
    precision: Literal["tf32", "fp32", "bf16"] = option(
        "tf32", "arithmetic of convolutions and products: tf32 (on a CPU plain fp32), fp32, or bf16 by autocast"
    )
    on_nonfinite: Literal["drop", "stop"] = option("drop", "what to do with an update that has NaN or infinity")
    seed: int = option(0, "root seed of partition, selection, initial weights and every batch", least=0)


@dataclass(frozen=True)
class EngineOptions:
    """Where and how the run is computed. Nothing here changes what it computes, nor the run's id."""

    device: str = option("auto", "cpu, cuda, cuda:N, or auto: cuda where there is one")
    out: str = option("runs", "folder that holds one folder per run")
    cache: str = option("", "folder of prepared data sets; unset: $FEDBM_HOME or ~/.cache/fedbm")
    data_dir: str = option("", "folder where catalogued data sets are looked for; unset: downloads in the cache")
    threads: int = option(
        0, "CPU threads of this run, shared out among its processes; 0: as the machine is set up", least=0, most=1024
    )
    workers: int = option(
        0, "processes that train clients on a CPU; 0: as many as pay, 1: none beside this one", least=0, most=1024
    )
    engine: Literal["auto", "reference", "captured"] = option(
        "auto", "plain loop, or CUDA graphs on streams; auto: captured on CUDA for the methods of this package"
    )
    slots: int = option(6, "clients trained side by side by the captured engine", least=1)
    compile: bool = option(
        False, "captured engine: torch.compile its steps; takes a minute or two, pays over some hundred rounds"
    )
    runs_per_gpu: int = option(3, "runs that share one GPU, where several are asked for", least=1)
    checkpoint_every: int = option(
        0, "rounds between checkpoints; 0: as often as takes a fiftieth of the time, between machines 1", least=0
    )
    deterministic: bool = option(False, "on CUDA, use only deterministic kernels (slower)")
