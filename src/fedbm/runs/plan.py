"""From a configuration to everything that a run needs: data, partition, concepts, task and run id."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedbm.config.options import DataOptions, LanguageOptions, check
from fedbm.data.cache import checksum
from fedbm.data.dataset import Dataset, load
from fedbm.data.partition import Partition, check_partition, load_partition
from fedbm.data.partitioners import by_classes, by_column, dirichlet, iid, quantity
from fedbm.errors import FedBMError, join_words
from fedbm.language.bundled import ENCODER, find_bundled
from fedbm.language.concepts import ConceptDistribution, build_concepts
from fedbm.language.prompts import choose_prompts
from fedbm.methods.base import Method, Task, train_only
from fedbm.models.backbone import resnet_factory
from fedbm.runs.config import Config, check_config, recommend
from fedbm.runs.run_id import make_run_id, own_code
from fedbm.utils.fingerprint import fingerprint
from fedbm.utils.io import digest_of
from fedbm.utils.seeds import seeded_modules


@dataclass(frozen=True)
class Plan:
    """A run, decided: nothing that follows asks the user's files or options again."""

    config: Config
    dataset: Dataset
    partition: Partition
    task: Task
    id: str
    notes: tuple[str, ...]
    own_partition: bool = False  # made in Python: the run's own partition.json says how
    own: Mapping[str, str] = field(
        default_factory=dict
    )  # code and body made in Python, by a few digits of what they are


def make_plan(
    config: Config,
    *,
    dataset: Dataset | None = None,
    partition: Partition | None = None,
    make_body: Callable[[], nn.Module] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Load, deal, read the concepts, and name the run. Objects made in Python take the place of options."""
    config = check_config(config)
    if dataset is None:
        dataset = load_dataset(config, progress)
    else:
        # made or changed in Python: what it was called when it was loaded need not be what it is
        held = checksum(dataset.classes, dataset.images, dataset.labels, dataset.split)
        dataset = dataclasses.replace(dataset, checksum=held)
        pixels: dict[str, Any] = {"size": dataset.shape[1], "channels": dataset.shape[0]}
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, **pixels))
    own = partition is not None
    if partition is not None:
        check_partition(partition, dataset, "the partition")
    before = load_partition(Path(config.data.partition_file), dataset) if config.data.partition == "file" else partition
    if before is not None and "beta" in before.settings:  # recommendations go by the β it was dealt with
        dealt = dataclasses.replace(config.data, beta=check(DataOptions, "beta", before.settings["beta"]))
        config = dataclasses.replace(config, data=dealt)
    config = recommend(config, dataset.recommends)
    said: dict[str, Any] = {}
    if partition is None:
        partition = deal(config, dataset)
    else:  # what the saved configuration says is how this one was made
        said = {key: partition.settings[key] for key in ("beta", "min_samples") if key in partition.settings}
        said["partition"] = partition.kind
    said["clients"] = len(partition.clients)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **said))
    if config.method.central:
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, keep_optimizer=True))
    concepts = None
    if config.method.needs_concepts:
        concepts = agreed_concepts(config, dataset.classes, dataset.concepts, dataset.modality)
    task = Task(
        classes=dataset.classes,
        shape=dataset.shape,
        mean=dataset.mean,
        std=dataset.std,
        seed=config.train.seed,
        make_body=make_body or resnet_factory(config.model, dataset.shape[0]),
        concepts=concepts,
        hflip=dataset.hflip,
        vflip=dataset.vflip,
    )
    inputs = {
        "data": dataset.checksum,
        "input": [list(dataset.mean), list(dataset.std), dataset.hflip, dataset.vflip],
        "partition": partition.digest,
    }
    run_id = make_run_id(config, task, dataset.name, inputs, own_body=make_body is not None)
    made: dict[str, Any] = own_code(config.method)
    if make_body is not None:  # not by the body itself, whose initial weights differ from seed to seed
        made["body"] = [fingerprint(make_body), repr(task.body())]
    few = {name: digest_of({name: what})[:8] for name, what in made.items()}
    if made:  # the package's own methods and bodies fit each other
        check_trained(config.method, task, config.train.epochs)
    return Plan(config, dataset, partition, task, run_id, dataset.notes, own, few)


def load_dataset(config: Config, progress: Callable[[int, int], None] | None = None) -> Dataset:
    options = config.data
    return load(
        options.name,
        size=options.size,
        channels=options.channels,
        split=options.split,
        group=options.group or None,
        metadata=options.metadata or None,
        split_seed=options.split_seed,
        on_bad_file=options.on_bad_file,
        concepts=config.concepts,
        cache=Path(config.engine.cache).expanduser() if config.engine.cache else None,
        folder=Path(config.engine.data_dir).expanduser() if config.engine.data_dir else None,
        progress=progress,
    )


def deal(config: Config, dataset: Dataset) -> Partition:
    """The training samples dealt to clients as the options say."""
    options, seed = config.data, config.train.seed
    train = dataset.indices("train")
    if options.partition in ("file", "column"):
        if options.partition == "file":
            partition = load_partition(Path(options.partition_file), dataset)
        else:
            partition = by_column(dataset.columns, train, options.partition_column, options.min_samples)
        if "data.clients" in config.given and options.clients != len(partition.clients):
            source = options.partition_file or f'the column "{options.partition_column}"'
            raise FedBMError(f"clients is {options.clients}, but {source} makes {len(partition.clients)}: leave it out")
        return partition
    if options.partition == "iid":
        return iid(train, options.clients, seed, options.min_samples)
    guard = (seed, options.min_samples, options.strict_min_samples)
    if options.partition == "quantity":
        return quantity(dataset.labels, train, options.clients, options.beta, *guard)
    if options.partition == "classes":
        return by_classes(dataset.labels, train, options.clients, options.classes_per_client, *guard)
    return dirichlet(dataset.labels, train, options.clients, options.beta, *guard)


def agreed_concepts(config: Config, classes: Sequence[str], texts: Sequence[str], modality: str) -> ConceptDistribution:
    """The classes' concepts, of the words that the user gave: a file read from others is refused."""
    concepts = concepts_for(config.language, classes, texts, modality, config.train.seed)
    for name, text, read in zip(classes, texts, concepts.texts, strict=True):
        if name in config.concepts and text != read:
            raise FedBMError(
                f'[concepts] calls {name} "{text}", but {config.language.concept_file} was read from "{read}"; '
                "leave one of the two out"
            )
    return concepts


def concepts_for(
    options: LanguageOptions, classes: Sequence[str], texts: Sequence[str], modality: str, seed: int
) -> ConceptDistribution:
    """The classes' concepts: from a file, from those shipped with the package, or read by the encoder."""
    if options.concept_file:
        concepts = ConceptDistribution.load(Path(options.concept_file)).select(classes)
        for key in ("encoder", "encoder_dir", "pooling"):
            asked, read = getattr(options, key), concepts.provenance.get(key)
            if asked not in (getattr(LanguageOptions, key), read):  # a saved configuration names the default
                by = f"with {read}" if read else "already"
                raise FedBMError(
                    f'{key} is "{asked}", but {options.concept_file} was read {by}; leave one of the two out'
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
    """Every stretch of local training needs parameters: a body of one's own may have none, and be trained alone."""
    with seeded_modules(task.seed, "model"):  # a method of one's own may draw from the global generator
        model = method.model(task)
    for phase in method.phases(epochs):
        if phase.epochs and not train_only(model, phase.train):
            parts = join_words([f"the {part}" for part in phase.train] or ["nothing"], "and")
            raise FedBMError(
                f"{method.name} has a phase that trains {parts} alone, where there are no parameters to train; "
                "give a body that has some, or another method"
            )


def find_runs(out: Path, names: Sequence[str]) -> list[Path]:
    """The run folders that *names* mean, each a folder of runs or what find_run() takes; without names all of *out*."""
    return [run for name in names for run in _meant(out, name)] if names else _runs_in(out)


def _meant(out: Path, name: str) -> list[Path]:
    folder = Path(name)
    if found := _runs_in(folder):
        return found
    try:
        return [find_run(out, name)]
    except FedBMError as error:
        if folder.is_dir():
            raise FedBMError(f"{folder} holds neither runs nor records of experiments") from error
        raise


def _runs_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/config.toml"))


def find_run(out: Path, name: str) -> Path:
    """The one run folder that *name* means: a path, an id, or a part of one id."""
    for path in (Path(name), out / name):
        if (path / "config.toml").exists():
            return path
    found = [path for path in _runs_in(out) if name in path.name]
    if len(found) == 1:
        return found[0]
    if found:
        raise FedBMError(
            f'"{name}" means {len(found)} runs in {out} ({found[0].name}, {found[1].name}, …); say more of it'
        )
    raise FedBMError(f'there is no run "{name}" in {out} and no such folder; "fedbm list --out {out}" shows them')
