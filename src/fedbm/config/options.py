"""The options of a run, as frozen dataclasses with checked values.

Each field has a type, a default, a meaning and a range. The TOML key, the command-line flag, the line of `fedbm config`
and the check are all derived from it. The options of a method are the fields of its own dataclass.
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
    """Return a dataclass field with its meaning and range; *flag* is the flag's name if it differs from the key."""
    return dataclasses.field(
        default=default,
        metadata={"meaning": meaning, "above": above, "least": least, "most": most, "below": below, "flag": flag},
    )


@cache
def types_of(section: type) -> dict[str, Any]:
    """Return the declared type of every field."""
    return get_type_hints(section)


def check(section: type, key: str, value: Any) -> Any:
    """Convert *value*, which may be text, to the type of the field. Raise FedBMError if it is invalid."""
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
    """Return *value*, an instance of an options dataclass, with every option checked and converted by check()."""
    checked = {
        field.name: check(type(value), field.name, getattr(value, field.name))
        for field in dataclasses.fields(value)
        if "meaning" in field.metadata  # a user's method may have other fields
    }
    other = {name: new for name, new in checked.items() if (type(new), new) != (type(old := getattr(value, name)), old)}
    return dataclasses.replace(value, **other) if other else value  # a user's class may not support replace()


def type_words(kind: Any) -> str:
    """Return the name of a type for messages and help, such as "whole number", or its choices."""
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
    if get_origin(kind) in (types.UnionType, typing.Union):  # an optional value: None means unset
        return None if value is None else _convert(next(k for k in get_args(kind) if k is not type(None)), value, key)
    if kind is bool:
        words = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
    elif kind is str and isinstance(value, str):
        if any(unicodedata.category(c) in ("Cc", "Cs") for c in value):  # control characters, invalid UTF-8
            raise FedBMError(f"{key} contains a character that cannot be printed: {format_value(value)}")
        return value
    elif kind in (int, float) and not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):  # not a number, infinite, or too large
            number = float(value)
            if kind is float and math.isfinite(number):
                return number
            if kind is int and number == int(number):
                return int(number) if abs(number) < 2**53 else int(value)  # a float cannot represent larger integers
    article = "" if kind is bool else "a "
    raise FedBMError(f"{key} must be {article}{type_words(kind)}, not {format_value(value)}")


@dataclass(frozen=True)
class DataOptions:
    """The images, their split, and the partition of the training part among clients."""

    name: str = option(
        "digits", "data set of the catalogue, or path of an image folder, archive, table or .npz", flag="data"
    )
    size: int | None = option(
        None, "side of the square images in pixels, a multiple of 4; unset: that of the data set", least=16
    )
    channels: Literal[1, 3] | None = option(None, "1 (grey) or 3 (colour); unset: those of the data set")
    split: Literal["auto", "official", "stratified", "grouped"] = option(
        "auto", "train, val and test: official, stratified by class, or also grouped; auto: the best available"
    )
    group: str = option("", "column, such as patient or lesion, with values that stay in one split; implies grouped")
    metadata: str = option("", "CSV or Parquet table with more columns, joined to the samples by file name")
    split_seed: int = option(0, "seed of the split if the source has none; independent of the run's seed", least=0)
    on_bad_file: Literal["refuse", "skip"] = option("refuse", "what to do with files that cannot be read as images")
    partition: Literal["dirichlet", "iid", "quantity", "classes", "column", "file"] = option(
        "dirichlet", "how training samples are partitioned among clients"
    )
    partition_file: str = option("", "if partition = file: the file, a run's partition.json")
    partition_column: str = option("", "if partition = column: each value of this column (site, writer) is a client")
    classes_per_client: int = option(2, "if partition = classes: number of classes per client", least=1)
    clients: int = option(10, "number of clients N, unless partition is column or file", least=1)
    beta: float = option(0.1, "Dirichlet concentration β: smaller is more skewed (quantity: in size)", above=0)
    min_samples: int = option(2, "minimum number of samples per client", least=1)
    strict_min_samples: bool = option(False, "stop instead of moving samples if 100 draws leave a client too small")


# the options of DataOptions about the partition; the others are about reading and splitting
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
BY_BETA = ("dirichlet", "quantity")  # partitions with a parameter β


@dataclass(frozen=True)
class LanguageOptions:
    """The language model that encodes the class concepts, and the prompts in use."""

    encoder: str = option("minilm", "minilm, bert, roberta, biomedclip, or the name of a Hugging Face encoder")
    encoder_dir: str = option("", "folder with the encoder's files, for use offline")
    pooling: Literal["", "mean", "cls", "biomedclip"] = option(
        "", "pooling of the encoder; unset: its own if it is listed, otherwise mean"
    )
    concept_file: str = option("", "file of 'fedbm concepts --save' to use instead of an encoder")
    prompt_fraction: float = option(1.0, "fraction of the prompts to use, chosen by the run's seed", above=0, most=1)


@dataclass(frozen=True)
class ModelOptions:
    """The feature extractor: ResNet-18 or, from Python, any module that maps images to features."""

    stem: Literal["7x7", "3x3"] = option("7x7", "first layer: 7x7 stride 2 with pooling, or 3x3 for small images")
    width: int = option(64, "channels of the first stage; the model has 8 × width features", least=4)
    norm: Literal["batch", "group"] = option("batch", "normalisation layers")
    init_weights: str = option("", "file with initial body weights (.safetensors, or torchvision's ResNet-18 .pth)")


@dataclass(frozen=True)
class TrainOptions:
    """The training protocol, the same for every method: rounds, selection, local optimisation, evaluation, seed."""

    rounds: int = option(50, "communication rounds", least=1)
    epochs: int = option(1, "local epochs E per round", least=1)
    batch: int = option(8, "batch size B: real samples per local step", least=1)
    participation: float = option(0.5, "fraction of clients selected each round", above=0, most=1)
    optimizer: Literal["sgd", "adam"] = option("sgd", "local optimiser")
    lr: float = option(0.01, "initial learning rate η", above=0)
    momentum: float = option(0.9, "SGD momentum", least=0, most=1)
    weight_decay: float = option(5e-4, "L2 weight decay", least=0)
    lr_decay: float = option(0.99, "factor on the learning rate after each round or local epoch", above=0, most=1)
    lr_decay_every: Literal["round", "epoch"] = option("round", "when lr_decay applies")
    keep_optimizer: bool = option(False, "clients keep the state of their optimiser between rounds")
    evaluate_every: int = option(1, "rounds between evaluations; the last round is always evaluated", least=1)
    server_average: float = option(
        0.0,
        "decay d of an average of the server's models over rounds, scored as well; 0: none",
        least=0,
        below=1,
    )
    precision: Literal["tf32", "fp32", "bf16"] = option(
        "tf32", "precision of convolutions and matrix products: tf32 (fp32 on a CPU), fp32, or bf16 by autocast"
    )
    on_nonfinite: Literal["drop", "stop"] = option("drop", "what to do with an update that contains NaN or infinity")
    seed: int = option(0, "seed of the partition, client selection, initial weights and batches", least=0)


@dataclass(frozen=True)
class EngineOptions:
    """Where and how the run is computed. These options change neither its result nor its run id."""

    device: str = option("auto", "cpu, cuda, cuda:N, or auto: cuda if available")
    out: str = option("runs", "folder for the run folders")
    cache: str = option("", "folder for prepared data sets; unset: $FEDBM_HOME or ~/.cache/fedbm")
    data_dir: str = option("", "folder that contains data sets of the catalogue; unset: downloads in the cache")
    threads: int = option(
        0, "CPU threads of this run, divided among its processes; 0: PyTorch's default", least=0, most=1024
    )
    workers: int = option(
        0, "processes that train clients on a CPU; 0: chosen automatically, 1: only this process", least=0, most=1024
    )
    engine: Literal["auto", "reference", "captured"] = option(
        "auto", "reference (plain loop) or captured (CUDA graphs); auto: captured on CUDA for methods of this package"
    )
    slots: int = option(6, "captured engine: clients trained in parallel", least=1)
    compile: bool = option(
        False, "captured engine: use torch.compile; takes a minute or two, worthwhile for several hundred rounds"
    )
    runs_per_gpu: int = option(3, "number of runs that share one GPU, in commands with several runs", least=1)
    checkpoint_every: int = option(
        0,
        "rounds between checkpoints; 0: checkpoints take at most a fiftieth of the time",
        least=0,
    )
    deterministic: bool = option(False, "use only deterministic CUDA kernels (slower)")
