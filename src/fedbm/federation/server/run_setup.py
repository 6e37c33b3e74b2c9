"""From a configuration to what the whole federation agrees on: the task, and the run's id.

A server need not have images: classes, sizes and colour statistics come from the catalogue by the data set's name, or
from [concepts] for data it does not know. With `evaluate = "server"` the data it names is loaded and scored there.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbm.data.catalog.entry import Entry, Recommends, generic_entry
from fedbm.data.catalog.lookup import CATALOG
from fedbm.data.dataset import Dataset, concept_texts, match_channels
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


@dataclass(frozen=True)
class Agreement:
    """A run between machines, decided."""

    config: Config
    task: Task
    dataset: Dataset | None  # the server's own, where it scores
    data: str  # what the data are called
    recommends: Recommends
    id: str


def agree(config: Config, options: FederationOptions) -> Agreement:
    """Decide the task and name the run; FedBMError where it cannot be federated."""
    config = check_config(config)
    if METHODS.get(config.method.name) is not type(config.method) or config.method.central:
        raise FedBMError(f"{config.method.name} cannot be federated: choose a federated method of this package")
    if options.dp_noise:
        check_private(config.method, options)
    dataset = load_dataset(config) if options.evaluate == "server" else None
    if dataset is not None:
        config = recommend(config, dataset.recommends)
        known: dict[str, Any] = {key: getattr(dataset, key) for key in _OF_A_TASK}
        name, recommends = dataset.name, dataset.recommends
    else:
        entry = find_entry(config)
        config = recommend(config, entry.recommends)
        side, depth = config.data.size or entry.size, config.data.channels or entry.channels
        known = {
            "classes": tuple(entry.classes),
            "concepts": concept_texts(entry, config.concepts),
            "modality": entry.modality,
            "shape": (depth, side, side),
            "mean": match_channels(entry.mean, depth),
            "std": match_channels(entry.std, depth),
            "hflip": entry.hflip,
            "vflip": entry.vflip,
        }
        name, recommends = entry.name, entry.recommends
    channels, size, _ = known["shape"]
    said: dict[str, Any] = {"clients": options.nodes, "size": size, "channels": channels}
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **said))
    texts, modality = known.pop("concepts"), known.pop("modality")
    concepts = None
    if config.method.needs_concepts:
        concepts = agreed_concepts(config, known["classes"], texts, modality)
    make_body = resnet_factory(config.model, channels)
    task = Task(**known, seed=config.train.seed, make_body=make_body, concepts=concepts)
    if config.train.server_average:  # what clients keep is not at the server
        server = config.method.server_init(config.method.model(task))
        if first_state(config.method, server, {}) is None:
            raise FedBMError(no_common_model(config.method.name))
    inputs = {  # the nodes' images are not part of the id: the server never sees them
        "federated": True,
        "scored_on": dataset.checksum if dataset is not None else None,
        "task": [list(task.classes), list(task.shape), list(task.mean), list(task.std), task.hflip, task.vflip],
    }
    run_id = make_run_id(config, task, name, inputs)
    return Agreement(config, task, dataset, name, recommends, run_id)


_OF_A_TASK = ("classes", "concepts", "modality", "shape", "mean", "std", "hflip", "vflip")


def find_entry(config: Config) -> Entry:
    """What the catalogue knows of the named data, or what [concepts] says of data it does not know."""
    name = config.data.name
    if name in CATALOG:
        return CATALOG[name]
    if len(config.concepts) < 2:
        raise FedBMError(
            f'the catalogue does not know "{name}"{did_you_mean(name, CATALOG)}: list every class in [concepts], '
            'class = "what a clinician calls it", so that server and nodes agree on them'
        )
    return generic_entry(Path(name).stem, dict(config.concepts), title=name)
