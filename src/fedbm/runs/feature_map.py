"""features.json: t-SNE of the features of up to MAX_IMAGES test images, with the text anchors of the classes.

FedBM's features are unit vectors in the space of the texts, so each class's mean embedding μ_k is a point among them.
Images and anchors are each centred by their own mean first: otherwise the part that all texts have in common would
place the anchors far from the images.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from fedbm.data.dataset import Dataset
from fedbm.data.feature_shift import shift_images
from fedbm.data.partition import load_partition
from fedbm.engine.local_training import Samples
from fedbm.engine.run_folder import FORMAT
from fedbm.errors import FedBMError
from fedbm.methods import Method
from fedbm.models.heads import Classifier, ConceptHead
from fedbm.runs.plan import load_dataset
from fedbm.runs.prediction import Model, load_model, read_config
from fedbm.utils.io import write_json
from fedbm.utils.seeds import numpy_rng

MAX_IMAGES = 600
PERPLEXITY = 30.0


def write_features(
    run: Path, engine: Mapping[str, Any], averaged: bool = False, method: Method | str | None = None
) -> Path:
    """Write features.json of a finished run. *engine* are options such as device and data_dir."""
    config = read_config(run, method).with_values("engine", **engine)
    model = load_model(run, config.engine.device, method=method, averaged=averaged)
    dataset = load_dataset(config)
    if dataset.classes != model.classes:
        raise FedBMError(f"{run} was trained on {', '.join(model.classes)}, but {dataset.name} has other classes")
    chosen = dataset.indices("test")
    if len(chosen) > MAX_IMAGES:
        chosen = np.sort(numpy_rng(config.train.seed, "features").choice(chosen, MAX_IMAGES, replace=False))
    found, anchors = features_of(model, images_of_run(run, dataset)[chosen], dataset.labels[chosen])
    flat = flatten(np.concatenate([found, anchors]) if anchors is not None else found, config.train.seed)
    points = np.round(flat.astype(np.float64), 2).tolist()
    path = run / "features.json"
    value = {
        "format": FORMAT,
        "classes": list(model.classes),
        "labels": dataset.labels[chosen].tolist(),
        "points": points[: len(chosen)],
        "anchors": points[len(chosen) :] if anchors is not None else None,
    }
    write_json(path, value)
    return path


def images_of_run(run: Path, dataset: Dataset) -> NDArray[np.uint8]:
    """Return the images that the run trained and scored on: changed if its partition has a feature shift."""
    file = run / "partition.json"
    return shift_images(dataset, load_partition(file, dataset)) if file.exists() else dataset.images


def features_of(
    model: Model, images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Return features [n,F] of images, and class anchors [K,F] if the classifier is made of texts."""
    module, device = model.module, model.device
    if not isinstance(module, Classifier):
        raise FedBMError(f"the model of {model.method.name} has no features")
    pixels, classes = (torch.from_numpy(np.asarray(values)).to(device) for values in (images, labels))
    everyone = torch.arange(len(pixels), device=device)
    data = Samples(pixels, classes, everyone, model.task.normalise().to(device))
    with torch.inference_mode():
        found = torch.cat([module.features(batch).double() for batch, _ in data.batches()])
        if not isinstance(module.head, ConceptHead):
            return found.cpu().numpy(), None
        return _centre(F.normalize(found, dim=1)), _centre(module.head.mean.double())


def _centre(points: torch.Tensor) -> NDArray[np.float64]:
    """Return the points minus their mean, scaled to unit length."""
    made: NDArray[np.float64] = F.normalize(points - points.mean(dim=0), dim=1).cpu().numpy()
    return made


def flatten(points: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return two-dimensional t-SNE, started from PCA, with a fixed seed."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
    made: NDArray[np.float64] = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    return made
