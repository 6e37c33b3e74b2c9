"""Turn a configuration into a plan: data set, partition, concepts, task and run id."""

from __future__ import annotations

import csv
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedbm.config.options import DataOptions, LanguageOptions, check, parse_numbers
from fedbm.data.cache import checksum
from fedbm.data.catalog.entries import Entry
from fedbm.data.dataset import Dataset, load
from fedbm.data.feature_shift import shift_features
from fedbm.data.inspection.problems import find_problems
from fedbm.data.partition import Partition, check_partition, check_scored, hold_out, load_partition
from fedbm.data.partitioners import PARTITIONERS, by_column
from fedbm.engine.augmentation import check_augment
from fedbm.errors import FedBMError, join_words
from fedbm.language.bundled import ENCODER, find_bundled
from fedbm.language.concept_distribution import ConceptDistribution, build_concepts
from fedbm.language.prompts import choose_prompts
from fedbm.methods import is_plugin
from fedbm.methods.base import Method, Task, train_only
from fedbm.models.backbone import body_factory
from fedbm.models.heads import probe_body
from fedbm.runs.run_config import Config, check_config, describe_recipe, recommend
from fedbm.runs.run_id import make_run_id, own_code
from fedbm.utils.fingerprint import fingerprint
from fedbm.utils.io import digest_of
from fedbm.utils.seeds import seeded_modules


@dataclass(frozen=True)
class Plan:
    """Everything a run needs. The user's files and options are not read again after this."""

    config: Config
    dataset: Dataset
    partition: Partition
    task: Task
    id: str
    notes: tuple[str, ...]  # what the user should know about the data
    own_partition: bool = False  # made in Python, so the configuration refers to the run's partition.json
    custom_digests: Mapping[str, str] = field(default_factory=dict)  # of a method and a body made in Python


def make_plan(
    config: Config,
    *,
    dataset: Dataset | None = None,
    partition: Partition | None = None,
    make_body: Callable[[], nn.Module] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Load the data, partition it, read the concepts and compute the run id.

    *dataset*, *partition* and *make_body* were made in Python and replace the options that describe them. *progress* is
    called with (images decoded, images in all).
    """
    check_config(config)
    if dataset is None:
        dataset = load_dataset(config, progress)
    else:
        found = checksum(dataset.classes, dataset.images, dataset.labels, dataset.split)  # it may have changed
        dataset = dataclasses.replace(dataset, checksum=found)
        channels, size, _ = dataset.shape
        scale = ",".join(map(str, dataset.value_range))  # for prediction
        config = config.with_values("data", name=dataset.name, value_range=scale, size=size, channels=channels)
    own = partition is not None
    config, partition = _complete(find_weights(config), dataset, partition)
    if config.method.central:
        config = config.with_values("train", keep_optimizer=True)
    task = make_task(config, dataset, dataset.concepts, dataset.shape, (dataset.mean, dataset.std), make_body)
    inputs = {
        "data": dataset.checksum,
        "input": [list(dataset.mean), list(dataset.std), dataset.hflip, dataset.vflip],
        "partition": partition.digest,
    }
    run_id = make_run_id(config, task, dataset.name, inputs, own_body=make_body is not None)
    digests = _digest_custom(config, task, make_body)
    if own_code(config.method) or digests or config.model.freeze or config.model.body != "resnet18":
        check_trained(config.method, task, config.train.epochs)  # the package's own are known to fit
    stem = config.model.stem if make_body is None and config.model.body == "resnet18" else ""
    texts = task.concepts.texts if task.concepts else ()
    problems = find_problems(dataset, concepts=texts, stem=stem)
    notes = (*dataset.notes, *problems, *describe_recipe(config.train))
    return Plan(config, dataset, partition, task, run_id, notes, own, digests)


def make_task(
    config: Config,
    source: Dataset | Entry,
    texts: Sequence[str],
    shape: tuple[int, int, int],
    statistics: tuple[tuple[float, ...], tuple[float, ...]],
    make_body: Callable[[], nn.Module] | None = None,
) -> Task:
    """Return the task with the classes of *source*, their *texts*, and the mean and std of its images."""
    check_augment(config.train.augment, source.hflip, source.vflip)
    classes, concepts = tuple(source.classes), None
    if config.method.needs_concepts:
        concepts = concepts_for(config.language, classes, texts, source.modality, config.train.seed)
        for name, text, read in zip(classes, texts, concepts.texts, strict=True):
            if name in config.concepts and text != read:
                raise FedBMError(
                    f'[concepts] describes {name} as "{text}", but {config.language.concept_file} was made from '
                    f'"{read}". Remove one of the two.'
                )
    return Task(
        classes=classes,
        shape=shape,
        mean=statistics[0],
        std=statistics[1],
        seed=config.train.seed,
        make_body=make_body or body_factory(config.model, shape[0]),
        concepts=concepts,
        hflip=source.hflip,
        vflip=source.vflip,
    )


def _complete(config: Config, dataset: Dataset, partition: Partition | None) -> tuple[Config, Partition]:
    """Return the configuration with what the data set recommends, and the partition, made unless it is given."""
    if partition is not None:
        check_partition(partition, dataset, "the partition")
    given = load_partition(Path(config.data.partition_file), dataset) if config.data.partition == "file" else partition
    if given is not None and "beta" in given.settings:  # recommendations depend on the partition's β
        config = config.with_values("data", beta=check(DataOptions, "beta", given.settings["beta"]))
    config = recommend(config, dataset.recommends)
    made: dict[str, Any] = {}
    if partition is None:
        partition = make_partition(config, dataset)
    else:  # the saved configuration describes the partition that is used
        made = {key: partition.settings[key] for key in ("beta", "min_samples") if key in partition.settings}
        made["partition"] = partition.kind
    check_scored(partition, dataset)
    return config.with_values("data", **made, clients=len(partition.clients)), partition


def _digest_custom(config: Config, task: Task, make_body: Callable[[], nn.Module] | None) -> dict[str, str]:
    """Return digests of a method and a body made in Python."""
    code: dict[str, Any] = {} if is_plugin(config.method) else own_code(config.method)
    if make_body is not None:  # its code, because its initial weights differ from seed to seed
        code["body"] = [fingerprint(make_body), repr(task.body())]
    return {name: digest_of({name: what})[:8] for name, what in code.items()}


def load_dataset(config: Config, progress: Callable[[int, int], None] | None = None, verify: bool = False) -> Dataset:
    """Load the data set that the configuration names."""
    options, engine = config.data, config.engine
    numbers = {key: parse_numbers(key, getattr(options, key)) for key in ("value_range", "mean", "std")}
    values = {**vars(options), **numbers, "group": options.group or None}
    accepted = inspect.signature(load).parameters.keys() & values.keys()
    return load(
        options.name,
        **{key: values[key] for key in accepted},
        concepts=config.concepts,
        cache=Path(engine.cache).expanduser() if engine.cache else None,
        folder=Path(engine.data_dir).expanduser() if engine.data_dir else None,
        verify=verify,
        progress=progress,
    )


def find_weights(config: Config) -> Config:
    """Return *config* with the place of init_weights: the path itself or, if there is no such file, in data_dir."""
    weights, folder = Path(config.model.init_weights).expanduser(), Path(config.engine.data_dir).expanduser()
    if not config.engine.data_dir or weights.is_file() or not (folder / weights).is_file():
        return config
    return config.with_values("model", init_weights=str(folder / weights))


def make_partition(config: Config, dataset: Dataset) -> Partition:
    """Partition the training samples among clients as the options describe."""
    options, seed = config.data, config.train.seed
    if options.partition == "file":
        partition = load_partition(Path(options.partition_file), dataset)
    elif options.partition == "column":
        words = next(csv.reader([options.held_out_values], skipinitialspace=True))
        held_out = [word.strip() for word in words if word.strip()]
        partition = by_column(dataset, None, options.partition_column, options.min_samples, held_out)
    else:
        draw, clients = PARTITIONERS[options.partition], options.clients + options.held_out
        values = {**vars(options), "clients": clients, "seed": seed, "strict": options.strict_min_samples}
        accepted = inspect.signature(draw).parameters.keys() - {"data", "train"}
        partition = draw(dataset, **{name: values[name] for name in accepted})
        partition = hold_out(partition, options.held_out) if options.held_out else partition
    if "data.clients" in config.given and options.clients != len(partition.clients):
        source = options.partition_file or f'the column "{options.partition_column}"'
        raise FedBMError(f"clients is {options.clients}, but {source} has {len(partition.clients)}. Remove clients.")
    if options.feature_shift == "none":
        return partition
    return shift_features(partition, options.feature_shift, options.shift_strength, seed)


def concepts_for(
    options: LanguageOptions, classes: Sequence[str], texts: Sequence[str], modality: str, seed: int
) -> ConceptDistribution:
    """Return the concepts of the classes: from a file, from the package's own, or computed by the encoder."""
    if options.concept_file:
        concepts = ConceptDistribution.load(Path(options.concept_file)).select(classes)
        for key in ("encoder", "encoder_dir", "pooling"):
            asked, used = getattr(options, key), concepts.provenance.get(key)
            if asked not in (getattr(LanguageOptions, key), used):  # a saved configuration contains the default
                raise FedBMError(
                    f'{key} is "{asked}", but {options.concept_file} was made with "{used or ""}". Remove one.'
                )
    else:
        bundled = None
        if options.encoder == ENCODER and not options.encoder_dir and not options.pooling:
            bundled = find_bundled(classes, texts, modality)
        folder = Path(options.encoder_dir) if options.encoder_dir else None
        concepts = bundled or build_concepts(classes, texts, modality, options.encoder, folder, options.pooling or None)
    if options.prompt_fraction < 1:
        concepts = concepts.keep_prompts(choose_prompts(concepts.embeddings.shape[1], options.prompt_fraction, seed))
    return concepts


def check_trained(method: Method, task: Task, epochs: int) -> None:
    """Raise FedBMError if a user's body does not fit the images, or a phase of training has no parameters."""
    with seeded_modules(task.seed, "model"):  # a user's method may use the global random generator
        probe_body(body := task.body(), task.shape)
        if body is task.body():
            raise FedBMError("body returned the same module twice. Make a new one in each call: lambda: MyBody()")
        model = method.model(task)
    for phase in method.phases(epochs):
        if phase.epochs and not train_only(model, phase.train):
            parts = join_words([f"the {part}" for part in phase.train] or ["nothing"], "and")
            raise FedBMError(
                f"{method.name} has a phase that trains only {parts}, but there are no parameters to train. "
                "Use a body that has some, freeze less of it, or use another method."
            )
