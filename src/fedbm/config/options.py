"""The settings of a run: frozen dataclasses that declare the type, range, default and meaning of every key.

One field makes the TOML key, the command-line flag, the line of `fedbm config` and the check of the value. The options
of a method are the fields of its own dataclass, declared in the same way.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import types
import typing
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.utils.text import format_value

TRUTH = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}

MAX_SEED = 2**32 - 1
MAX_NUMBER = 1e30  # PyTorch computes with 32 bits

BOUNDS = {
    "above": (operator.gt, "above"),
    "least": (operator.ge, "at least"),
    "most": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}


def option(
    default: Any,
    meaning: str,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> Any:
    """Return a dataclass field with its meaning and range.

    Args:
        default: the value if the user sets none.
        meaning: one line for help and documentation.
        above: the value must be greater than this.
        least: the smallest value.
        most: the largest value.
        below: the value must be smaller than this.
    """
    return dataclasses.field(
        default=default,
        metadata={"meaning": meaning, "above": above, "least": least, "most": most, "below": below},
    )


@cache
def field_types(section: type) -> dict[str, Any]:
    """Return the declared type of every field."""
    return get_type_hints(section)


def check(section: type, key: str, value: Any) -> Any:
    """Return *value* converted to the type of the field; raise FedBMError if type or range is wrong.

    Text is converted as on the command line: "0.1" is a number, "yes" is true. If *section* is a method's class, the
    error names the method.
    """
    declared = {f.name: f.metadata for f in dataclasses.fields(section)}
    method = None if "name" in declared else getattr(section, "name", None)
    whose, bounds = f" for {method}" if method else "", declared[key]
    checked = _convert(field_types(section)[key], value, key, whose)
    for name, (is_within, words) in BOUNDS.items():
        bound = bounds[name]
        if bound is not None and isinstance(checked, int | float) and not is_within(checked, bound):
            raise FedBMError(f"{key} must be {words} {bound:.12g}{whose}, not {checked:.12g}")
    return checked


def check_all(value: Any) -> Any:
    """Return an options object made in Python with every declared option checked and converted."""
    checked = {
        field.name: check(type(value), field.name, getattr(value, field.name))
        for field in dataclasses.fields(value)
        if "meaning" in field.metadata  # a user's own method may have other fields
    }
    changed = {
        name: new for name, new in checked.items() if (type(new), new) != (type(old := getattr(value, name)), old)
    }
    return dataclasses.replace(value, **changed) if changed else value  # replace() may fail for a user's own method


def type_words(kind: Any) -> str:
    """Return a type in words: "whole number", "number", "yes or no", "text" or the choices."""
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    if get_origin(kind) in (types.UnionType, typing.Union):
        return type_words(_unwrap_optional(kind))
    return {int: "whole number", float: "number", bool: "yes or no", str: "text"}[kind]


def _unwrap_optional(kind: Any) -> Any:
    """Return X for `X | None`."""
    return next(k for k in get_args(kind) if k is not type(None))


def _convert(kind: Any, value: Any, key: str, whose: str = "") -> Any:
    if get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in get_args(kind)}
        word = value if isinstance(value, str) else format_value(value)
        if word not in choices:
            known = join_words(choice or '""' for choice in choices)
            near = did_you_mean(word, choices)
            raise FedBMError(f"{key} must be {known}{whose}, not {format_value(value)}{near}")
        return choices[word]
    if get_origin(kind) in (types.UnionType, typing.Union):  # None means not set
        return None if value is None else _convert(_unwrap_optional(kind), value, key, whose)
    if kind is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in TRUTH:
            return TRUTH[value.lower()]
    elif kind is str and isinstance(value, str):
        if any(unicodedata.category(c) in ("Cc", "Cs") for c in value):  # control characters, bytes that are not UTF-8
            raise FedBMError(f"{key} contains a character that cannot be printed: {format_value(value)}")
        return value
    elif kind in (int, float) and not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):  # not a number, infinite, or too large for a float
            number = float(value)
            if kind is float and math.isfinite(number):
                if abs(number) > MAX_NUMBER:
                    raise FedBMError(f"{key} must be at most {MAX_NUMBER:g} in size{whose}, not {format_value(value)}")
                return number
            if kind is int and number == int(number):
                return int(number) if abs(number) < 2**53 else int(value)  # above, a float does not have all digits
    article = "" if kind is bool else "a "
    raise FedBMError(f"{key} must be {article}{type_words(kind)}{whose}, not {format_value(value)}")


def parse_numbers(key: str, text: str) -> tuple[float, ...]:
    """Return the numbers of an option that are separated by commas.

    >>> parse_numbers("value_range", "0,4095")
    (0.0, 4095.0)
    """
    return tuple(_convert(float, word, key) for word in text.split(",")) if text.strip() else ()


@dataclass(frozen=True)
class DataOptions:
    """Which images, how they are split, and how the training images are partitioned among clients."""

    name: str = option("digits", "a catalogued data set, or a path: an image folder, archive, table or .npz")
    size: int | None = option(
        None, "side of the square images in pixels, a multiple of 4; unset: the data set's", least=16
    )
    channels: Literal[1, 3] | None = option(None, "1 (grey) or 3 (colour); unset: the data set's")
    split: Literal["auto", "official", "stratified", "grouped"] = option(
        "auto",
        "how to split train, val and test. official: as the source; stratified: by class; grouped: by class and "
        "group; auto: the first of official, grouped, stratified that the data allow",
    )
    group: str = option(
        "", "a column, such as patient or lesion; samples with the same value stay in one subset; implies grouped"
    )
    metadata: str = option("", "a CSV, Parquet or .xlsx table; its columns are joined to the samples by name")
    path_column: str = option("", "column of a table with the names of the images; unset: path, image, filename, …")
    label_column: str = option(
        "", "column of a table (or of metadata, for a folder of images) with the labels; unset: label, class, dx, …"
    )
    split_seed: int = option(
        0, "seed of the split if the source has no split of its own; does not depend on the run's seed", least=0
    )
    on_bad_file: Literal["refuse", "skip"] = option("refuse", "what to do with files that are not readable images")
    value_range: str = option(
        "",
        "LOW,HIGH: values that become black and white in DICOM and 16-bit grey; unset: the file's window, or 0,65535",
    )
    normalise: Literal["fixed", "own"] = option(
        "fixed",
        "mean and standard deviation for normalisation. own: those of the training images; fixed: ImageNet's (grey: "
        "0.5), or as given",
    )
    mean: str = option("", "mean of each channel for normalisation, from 0 to 1, separated by commas; needs std")
    std: str = option("", "standard deviation of each channel for normalisation, separated by commas; needs mean")
    partition: Literal["dirichlet", "balanced", "iid", "quantity", "classes", "shards", "column", "file"] = option(
        "dirichlet",
        "how training samples are divided among clients. dirichlet, balanced (equal sizes), classes, shards: skewed "
        "labels; quantity: skewed sizes; iid: at random; column: by a column; file: as in a file",
    )
    partition_file: str = option("", "the partition to use when partition = file (a run's partition.json)")
    partition_column: str = option(
        "", "when partition = column: the column; each of its values (site, writer) is a client"
    )
    classes_per_client: int = option(2, "when partition = classes: number of classes per client", least=1)
    shards_per_client: int = option(
        2, "when partition = shards: number of shards (pieces of the samples sorted by class) per client", least=1
    )
    clients: int = option(
        10, "number of clients N; with partition = column or file, that column or file sets N", least=1
    )
    held_out: int = option(
        0, "number of clients, in addition to N, that never train; the model is scored on their images", least=0
    )
    held_out_values: str = option(
        "",
        "when partition = column: values, separated by commas (in quotes if they contain one), that never train; the "
        "model is scored on their images",
    )
    feature_shift: Literal["none", "brightness", "contrast", "blur", "noise"] = option(
        "none", "simulate sites with different devices: change the images, by a different amount at each client"
    )
    shift_strength: float = option(
        0.2, "amount of feature_shift at the client with the largest change", above=0, most=1
    )
    beta: float = option(
        0.1, "Dirichlet concentration β; smaller means more skewed labels (quantity: more skewed sizes)", above=0
    )
    min_samples: int = option(2, "smallest number of samples per client", least=1)
    strict_min_samples: bool = option(
        False, "stop if a client is too small after 100 draws, instead of moving samples to it"
    )


_DATA_KEYS = [field.name for field in dataclasses.fields(DataOptions)]
PARTITION_KEYS = tuple(_DATA_KEYS[_DATA_KEYS.index("partition") :])  # the others describe the images
BY_BETA = ("dirichlet", "balanced", "quantity")  # the partitions that depend on β
NEVER_IGNORED = ("partition_file", "partition_column", "held_out", "held_out_values")  # refused in a file, too
OPTION_NEEDS: Mapping[str, tuple[str, tuple[Any, ...]]] = {  # key → (other key, its values for which the key applies)
    "beta": ("partition", BY_BETA),
    "classes_per_client": ("partition", ("classes",)),
    "shards_per_client": ("partition", ("shards",)),
    "partition_file": ("partition", ("file",)),
    "partition_column": ("partition", ("column",)),
    "held_out": ("partition", (*BY_BETA, "iid", "classes", "shards")),
    "held_out_values": ("partition", ("column",)),
    "shift_strength": ("feature_shift", ("brightness", "contrast", "blur", "noise")),
    **dict.fromkeys(("stem", "width", "norm"), ("body", ("resnet18",))),
    "momentum": ("optimizer", ("sgd",)),
    **dict.fromkeys(("server_lr", "server_momentum"), ("server_optimizer", ("momentum", "adam", "yogi"))),
    "lr_decay": ("lr_schedule", ("exponential",)),
    "lr_decay_every": ("lr_schedule", ("exponential",)),
}


@dataclass(frozen=True)
class LanguageOptions:
    """Which language model reads the class concepts, and how many of the prompts it uses."""

    encoder: str = option("minilm", "minilm, bert, roberta, biomedclip, or the name of any Hugging Face encoder")
    encoder_dir: str = option("", "folder with the encoder's files, to read it offline")
    pooling: Literal["", "mean", "cls", "biomedclip"] = option(
        "", "pooling of an encoder other than those listed for encoder; unset: as the encoder declares"
    )
    concept_file: str = option("", "concept distributions saved by 'fedbm concepts --save'; needs no encoder")
    prompt_fraction: float = option(1.0, "fraction of the prompts to use, chosen by the run's seed", above=0, most=1)


@dataclass(frozen=True)
class ModelOptions:
    """The shared feature extractor. Python can pass any module that maps images to features."""

    body: str = option(
        "resnet18",
        "feature extractor: resnet18, the name of a plug-in, or timm:NAME for a model of the package timm, such as "
        "timm:tf_efficientnet_lite0",
    )
    stem: Literal["7x7", "3x3"] = option(
        "7x7", "ResNet-18's first layer: 7x7 with stride 2 and pooling, or 3x3 for small images"
    )
    width: int = option(64, "channels of ResNet-18's first stage; features = 8 × width", least=4)
    norm: Literal["batch", "group"] = option("batch", "normalisation layers of ResNet-18")
    init_weights: str = option(
        "",
        "file with initial weights of the body (.safetensors, or a .pth of tensors such as torchvision's ResNet-18), "
        "also looked for in data_dir; unset: random",
    )
    freeze: str = option(
        "",
        "layers of the body that are not trained: names such as conv1,layer1, or a share of all layers, counted from "
        "the first, such as 0.5",
    )


@dataclass(frozen=True)
class TrainOptions:
    """The protocol that all methods share: rounds, selection, local optimisation, evaluation, seed."""

    recipe: Literal["paper", "modern"] = option(
        "paper",
        "paper: the defaults; modern: adamw with a smaller lr, cosine schedule, warm-up and augmentation; keys that "
        "you set yourself keep your values",
    )
    rounds: int = option(50, "communication rounds", least=1)
    epochs: int = option(1, "local epochs E per round", least=1)
    batch: int = option(8, "real samples per local step B", least=1)
    participation: float = option(0.5, "fraction of clients selected each round", above=0, most=1)
    drop_rate: float = option(
        0.0,
        "probability that a selected client fails or answers too late, so that its update is lost",
        least=0,
        below=1,
    )
    optimizer: Literal["sgd", "adam", "adamw"] = option("sgd", "optimiser of local training")
    lr: float = option(0.01, "initial learning rate η", above=0)
    momentum: float = option(0.9, "SGD momentum", least=0, most=1)
    weight_decay: float = option(5e-4, "L2 weight decay; with adamw, decoupled from the gradient", least=0)
    lr_schedule: Literal["exponential", "cosine"] = option(
        "exponential",
        "how the learning rate falls. exponential: by the factor lr_decay; cosine: over all rounds towards 0",
    )
    warmup_rounds: int = option(
        0, "number of first rounds in which the learning rate rises in equal steps; at most all rounds but one", least=0
    )
    lr_decay: float = option(0.99, "factor applied to the learning rate every round or local epoch", above=0, most=1)
    lr_decay_every: Literal["round", "epoch"] = option("round", "when lr_decay applies")
    augment: Literal["none", "flip", "standard"] = option(
        "none",
        "random changes of real training images. flip: flips that the data set allows; standard: also shift, "
        "brightness and contrast",
    )
    label_smoothing: float = option(
        0.0,
        "share of each label that is spread over all classes; only for methods with FedAvg's loss, such as fedprox",
        least=0,
        below=1,
    )
    keep_optimizer: bool = option(False, "clients keep the optimiser's state between rounds")
    freeze_batchnorm_after: int = option(
        0, "after this round, local training uses the global BatchNorm statistics unchanged (FixBN); 0: never", least=0
    )
    evaluate_every: int = option(1, "rounds between evaluations; the last round is always evaluated", least=1)
    patience: int = option(
        0, "stop after this many rounds without a better validation score (accuracy + macro-F1); 0: never", least=0
    )
    server_average: float = option(
        0.0, "decay of a moving average of the global model, which is evaluated too; 0: no average", least=0, below=1
    )
    server_optimizer: Literal["mean", "momentum", "adam", "yogi"] = option(
        "mean",
        "mean: the new model is the mean of the clients' models; others: the server takes a step towards this mean "
        "(FedOpt)",
    )
    server_lr: float = option(
        1.0, "learning rate of the server's step; 0.01 with adam and yogi, unless you set it", above=0
    )
    server_momentum: float = option(0.9, "momentum of the server's step, β₁ of adam and yogi", least=0, below=1)
    precision: Literal["tf32", "fp32", "bf16"] = option(
        "tf32", "arithmetic of convolutions and matrix products: tf32 (fp32 on a CPU), fp32, or bf16 by autocast"
    )
    on_nonfinite: Literal["drop", "stop"] = option("drop", "what to do with an update that contains NaN or infinity")
    seed: int = option(
        0,
        "seed of everything random: partition, choice of prompts, selection of clients, initial weights, batches",
        least=0,
        most=MAX_SEED,
    )


RECIPES: Mapping[str, Mapping[str, Any]] = {  # the keys of [train] that a recipe sets
    "modern": {
        "optimizer": "adamw",
        "lr": 3e-4,
        "weight_decay": 0.05,
        "lr_schedule": "cosine",
        "warmup_rounds": 5,
        "augment": "standard",
    },
}
SERVER_LR = {"adam": 0.01, "yogi": 0.01}  # server_optimizer → server_lr if the user sets none


@dataclass(frozen=True)
class EngineOptions:
    """Where and how the run is computed. These keys change neither the result nor the run's id."""

    device: str = option("auto", "cpu, cuda, cuda:N, or auto: cuda if available")
    out: str = option("runs", "folder that contains one folder per run")
    cache: str = option("", "folder of prepared data sets; unset: $FEDBM_HOME or ~/.cache/fedbm")
    data_dir: str = option("", "folder that contains the catalogued data sets; unset: downloads in the cache")
    threads: int = option(
        0, "CPU threads of this run, shared by its processes; 0: PyTorch's default", least=0, most=1024
    )
    workers: int = option(
        0,
        "processes that train clients on a CPU; 0: one per core unless the run is short, 1: only this process",
        least=0,
        most=1024,
    )
    engine: Literal["auto", "reference", "captured"] = option(
        "auto",
        "reference: a plain loop; captured: CUDA graphs on streams; auto: captured on CUDA for this package's methods",
    )
    data_on: Literal["auto", "gpu", "host"] = option(
        "auto",
        "where images are stored: gpu, host (copied batch by batch), auto (gpu if they take at most half of its free "
        "memory)",
    )
    slots: int = option(6, "clients that the captured engine trains in parallel", least=1)
    compile: bool = option(
        False,
        "captured engine: use torch.compile; this takes a minute or two and saves time from some hundred rounds on",
    )
    on: Literal["processes", "ray"] = option(
        "processes",
        "where several runs of a command are computed. processes: on this machine; ray: on a Ray cluster",
    )
    runs_per_gpu: int = option(3, "runs that share one GPU if a command has several runs", least=1)
    processes_per_gpu: int = option(
        1, "processes that compute these runs on one GPU; 2 are faster only with NVIDIA MPS", least=1
    )
    checkpoint_every: int = option(
        0, "rounds between checkpoints; 0: as often as 2 % of the time allows, in a federation every round", least=0
    )
    track: Literal["none", "tensorboard", "mlflow", "wandb"] = option(
        "none", "tool that logs the numbers of each round during the run; needs the extra of that name"
    )
    deterministic: bool = option(False, "on CUDA, use only deterministic kernels (slower)")
