"""Derive from a configuration what all sites share: the task and the run's id.

A server needs no images: classes, sizes and colour statistics come from the catalogue, or for an unknown data set from
[concepts]. With `evaluate = "server"` the server loads the named data set and scores the model on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbm.config.options import parse_numbers
from fedbm.data.catalog.entries import CATALOG, Entry
from fedbm.data.dataset import Dataset, choose_statistics, concept_texts
from fedbm.engine.server_average import no_common_model
from fedbm.errors import FedBMError, did_you_mean
from fedbm.federation.federation_options import RESULT_OPTIONS, FederationOptions
from fedbm.federation.protocol.messages import PRIVACY_LIMITS, make_terms
from fedbm.methods import all_methods
from fedbm.methods.base import Method, Task
from fedbm.runs.plan import check_trained, load_dataset, make_task
from fedbm.runs.run_config import Config, check_config, method_label, recommend, recommended_at_beta
from fedbm.runs.run_id import make_run_id
from fedbm.utils.fingerprint import changed_options


@dataclass(frozen=True)
class Agreement:
    """What server and nodes agree on before a run."""

    id: str
    config: Config
    options: FederationOptions
    task: Task
    terms: Mapping[str, Any]  # what every request contains about the run
    dataset: Dataset | None  # the server's own, if it scores the model
    data: str  # name of the data set
    label: str  # the method and its options that are not the default


def agree(config: Config, options: FederationOptions) -> Agreement:
    """Return the task, the terms and the run's id; raise FedBMError if the run cannot be federated."""
    check_config(config)
    if all_methods().get(config.method.name) is not type(config.method) or config.method.central:
        raise FedBMError(f"{config.method.name} cannot be federated; choose a federated method that is installed")
    if options.dp_noise:
        check_privacy(config.method, options)
    if config.data.normalise == "own":
        raise FedBMError(
            "normalise = own needs the images of all sites, which no machine of a federation sees. Combine what 'fedbm "
            "data inspect' prints at each site (docs/your-data.md, Normalisation), and set mean and std"
        )
    dataset = load_dataset(config) if options.evaluate == "server" else None
    source = find_entry(config) if dataset is None else dataset
    config = recommend(config, source.recommends)
    if isinstance(source, Dataset):
        texts, shape = source.concepts, source.shape
    else:
        texts, size = concept_texts(source, config.concepts), config.data.size or source.size
        shape = (config.data.channels or source.channels, size, size)
    given = [parse_numbers(key, getattr(config.data, key)) for key in ("mean", "std")]
    config = config.with_values("data", clients=options.nodes, size=shape[1], channels=shape[0])
    task = make_task(config, source, texts, shape, choose_statistics(source, shape[0], *given))
    if config.model.freeze or config.model.body != "resnet18":
        check_trained(config.method, task, config.train.epochs)
    server = config.method.server_init(config.method.model(task))
    has_common_model = next(config.method.global_states(server, {}), None) is not None  # no client states here
    if config.train.server_average and not has_common_model:
        raise FedBMError(no_common_model(config.method.name))
    inputs: dict[str, Any] = {  # without the nodes' images, which the server never sees
        "federated": True,
        "scored_on": dataset.checksum if dataset is not None else None,
        "task": [list(task.classes), list(task.shape), list(task.mean), list(task.std), task.hflip, task.vflip],
    }
    if chosen := {key: value for key, value in changed_options(options).items() if key in RESULT_OPTIONS}:
        inputs["federation"] = chosen
    run_id = make_run_id(config, task, source.name, inputs)
    privacy = {"noise": options.dp_noise, "clip": options.dp_clip, "delta": options.dp_delta}
    evaluates = dataset is None or not has_common_model
    terms = make_terms(run_id, config, task, options.compression, privacy if options.dp_noise else None, evaluates)
    label = method_label(config.method, recommended_at_beta(source.recommends, config.data.partition, config.data.beta))
    return Agreement(run_id, config, options, task, terms, dataset, source.name, label)


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


def check_privacy(method: Method, options: FederationOptions) -> None:
    """Raise FedBMError if exact numbers would leave a site alongside the noisy ones, or if nodes refuse the noise."""
    if "label_counts" in method.shares:
        raise FedBMError(
            f"{method.name} sends exact label counts, so dp_noise would protect nothing; choose another method"
        )
    if options.evaluate != "server":
        raise FedBMError('nodes would send exact confusion matrices; with dp_noise set evaluate = "server"')
    if options.dp_noise < (least := PRIVACY_LIMITS["noise"][0]):
        raise FedBMError(f"dp_noise must be 0 or at least {least:g}, not {options.dp_noise:g}")
