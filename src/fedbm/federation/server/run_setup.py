"""Derive from a configuration what all sites share: the task and the run's id.

A server needs no images: classes, sizes and colour statistics come from the catalogue, or for an unknown data set from
[concepts]. With `evaluate = "server"` the server loads the named data set and scores the model on it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbm.config.options import parse_numbers
from fedbm.data.catalog.entries import CATALOG, Entry, Recommends
from fedbm.data.dataset import Dataset, choose_statistics, concept_texts
from fedbm.engine.evaluate import first_state
from fedbm.engine.server_average import no_common_model
from fedbm.errors import FedBMError, did_you_mean
from fedbm.federation.node.privacy import check_private
from fedbm.federation.options import FederationOptions
from fedbm.methods import METHODS
from fedbm.methods.base import Task
from fedbm.models.backbone import resnet_factory
from fedbm.runs.config import Config, check_config, recommend
from fedbm.runs.plan import agreed_concepts, load_dataset
from fedbm.runs.run_id import make_run_id

TASK_KEYS = ("classes", "concepts", "modality", "shape", "mean", "std", "hflip", "vflip")


@dataclass(frozen=True)
class Agreement:
    """What server and nodes agree on before a run."""

    config: Config
    task: Task
    dataset: Dataset | None  # the server's own, if it scores the model
    data: str  # name of the data set
    recommends: Recommends
    id: str


def agree(config: Config, options: FederationOptions) -> Agreement:
    """Return the task and the run's id; raise FedBMError if the run cannot be federated."""
    config = check_config(config)
    if METHODS.get(config.method.name) is not type(config.method) or config.method.central:
        raise FedBMError(f"{config.method.name} cannot be federated; choose a federated method of this package")
    if options.dp_noise:
        check_private(config.method, options)
    if config.data.normalise == "own":
        raise FedBMError(
            "a federation cannot measure the images of all sites: give the same mean and std to all, for example the "
            "averages of what 'fedbm data inspect' prints at each site, weighted by its number of images"
        )
    dataset = load_dataset(config) if options.evaluate == "server" else None
    if dataset is not None:
        config = recommend(config, dataset.recommends)
        known: dict[str, Any] = {key: getattr(dataset, key) for key in TASK_KEYS}
        name, recommends = dataset.name, dataset.recommends
    else:
        entry = find_entry(config)
        config = recommend(config, entry.recommends)
        side, depth = config.data.size or entry.size, config.data.channels or entry.channels
        given = [parse_numbers(key, getattr(config.data, key)) for key in ("mean", "std")]
        mean, std = choose_statistics(entry, depth, *given)
        known = {
            "classes": tuple(entry.classes),
            "concepts": concept_texts(entry, config.concepts),
            "modality": entry.modality,
            "shape": (depth, side, side),
            "mean": mean,
            "std": std,
            "hflip": entry.hflip,
            "vflip": entry.vflip,
        }
        name, recommends = entry.name, entry.recommends
    channels, size, _ = known["shape"]
    data = dataclasses.replace(config.data, clients=options.nodes, size=size, channels=channels)
    config = dataclasses.replace(config, data=data)
    texts, modality = known.pop("concepts"), known.pop("modality")
    concepts = None
    if config.method.needs_concepts:
        concepts = agreed_concepts(config, known["classes"], texts, modality)
    make_body = resnet_factory(config.model, channels)
    task = Task(**known, seed=config.train.seed, make_body=make_body, concepts=concepts)
    if config.train.server_average:  # the server has no client states
        server = config.method.server_init(config.method.model(task))
        if first_state(config.method, server, {}) is None:
            raise FedBMError(no_common_model(config.method.name))
    inputs = {  # without the nodes' images, which the server never sees
        "federated": True,
        "scored_on": dataset.checksum if dataset is not None else None,
        "task": [list(task.classes), list(task.shape), list(task.mean), list(task.std), task.hflip, task.vflip],
    }
    run_id = make_run_id(config, task, name, inputs)
    return Agreement(config, task, dataset, name, recommends, run_id)


def find_entry(config: Config) -> Entry:
    """Return the catalogue's entry for the named data set, or one made from [concepts]."""
    name = config.data.name
    if name in CATALOG:
        return CATALOG[name]
    if len(config.concepts) < 2:
        raise FedBMError(
            f'the catalogue does not contain "{name}"{did_you_mean(name, CATALOG)}: list every class in [concepts], '
            'class = "the clinical term", so that server and nodes agree on them'
        )
    return Entry(Path(name).stem, dict(config.concepts))
