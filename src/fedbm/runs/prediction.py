"""Classify images with the model of a finished run.

model = load_model("runs/fedbm-digits-s0-…"); model.classes[model.predict(images).argmax(1)]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from fedbm.config.options import parse_numbers
from fedbm.data.arrays import to_pixels
from fedbm.data.decode import DecodeError, decode_image
from fedbm.data.readers.file_tree import open_folder
from fedbm.engine.checkpoint import load_tensors
from fedbm.engine.device import find_device
from fedbm.engine.evaluate import predict_probabilities
from fedbm.engine.local_training import Samples
from fedbm.errors import FedBMError, prefix_errors
from fedbm.language.concept_distribution import ConceptDistribution
from fedbm.methods.base import Method, Task, load_state
from fedbm.models.backbone import body_factory
from fedbm.runs.custom_method import describe_class, load_method
from fedbm.runs.run_config import Config, make_config, method_values, with_method
from fedbm.runs.run_id import own_code, plugin_code
from fedbm.runs.run_view import RunView, check_unedited, find_folder, read_run
from fedbm.utils.io import digest_of

MAX_FILES_AT_ONCE = 256  # bounds the memory


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """The classifier of a finished run."""

    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    method: Method
    task: Task
    module: nn.Module
    device: torch.device
    value_range: tuple[float, ...] = ()  # see fedbm.load()

    def __repr__(self) -> str:
        return f"Model({self.method.name}: images of {self.shape}, classes {', '.join(self.classes)})"

    def predict(self, images: ArrayLike) -> NDArray[Any]:
        """Return class probabilities [n,K] of images that have the model's size, in any form of `from_arrays()`."""
        channels, height, width = self.shape
        if isinstance(images, str | Path):
            raise FedBMError(f"images must be an array, not {type(images).__name__}. For files use classify(paths).")
        pixels = to_pixels(images, "images")
        if pixels.shape[1:] != (height, width, channels):
            raise FedBMError(f"images must be [n, {height}, {width}, {channels}], not {list(np.shape(images))}")
        positions = torch.arange(len(pixels))
        labels = positions.to(self.device)  # not used, but on the device of the model
        samples = Samples(torch.from_numpy(pixels), labels, positions, self.task.normalise().to(self.device))
        return predict_probabilities(self.module, samples)

    def classify(self, paths: str | Path | Iterable[str | Path]) -> Iterator[tuple[Path, NDArray[Any] | str]]:
        """Yield each file, or each file of a folder, with its probabilities [K] or the reason why it cannot be read."""
        channels, size, _ = self.shape
        names = [paths] if isinstance(paths, str | Path) else paths
        remaining = iter([file for name in names for file in files_in(Path(name))])
        while some := list(islice(remaining, MAX_FILES_AT_ONCE)):
            read: list[NDArray[np.uint8] | str] = []
            for path in some:
                try:
                    read.append(decode_image(path, size, channels, self.value_range))
                except DecodeError as error:
                    read.append(str(error))
            images = [image for image in read if not isinstance(image, str)]
            found = iter(self.predict(np.stack(images)) if images else ())
            for path, image in zip(some, read, strict=True):
                yield path, image if isinstance(image, str) else next(found)


def files_in(path: Path) -> list[Path]:
    """Return the file itself, or the files of a folder that training would read."""
    if not path.is_dir():
        return [path]
    if files := open_folder(path).images():
        return [path / name for name in files]
    raise FedBMError(f"there is no image in the folder {path}")


def read_config(folder: Path, method: Method | str | None = None) -> Config:
    """Return a run's configuration. *method* is needed if it is the user's own; see load_model()."""
    run = check_unedited(read_run(folder))
    values, known = dict(run.config), run.environment or {}
    code = values.pop("own", {}).get("code")
    if method is None and code is None:
        with prefix_errors(str(folder)):
            config = make_config(values)
        if any(known.get(key, digest) != digest for key, digest in plugin_code(config).items()):
            raise FedBMError(
                f"{folder} was trained by another version of an installed plug-in: install that version, or train again"
            )
        return config
    options = values.pop("method", {})
    name = options.pop("name", "")
    if method is None:
        raise FedBMError(
            f"{folder} was trained by {name}, which is your own method: give its file and class, "
            f"{known.get('method', 'FILE.py:CLASS')} (--method on the command line, method in Python)"
        )
    if isinstance(method, str):
        usual = method_values(load_method(method))
        method = load_method(method, {key: value for key, value in options.items() if usual.get(key) != value})
        if digest_of(own_code(method))[:8] != code:
            raise FedBMError(
                f"{describe_class(type(method))} is not the code that trained {folder}: the file was edited, or it is "
                "another class. Restore it, or pass an object in Python: load_model(…, method=…)."
            )
    return with_method(make_config(values), method)


def load_model(
    run: RunView | str | Path,
    device: str | torch.device = "auto",
    make_body: Any = None,
    method: Method | str | None = None,
    averaged: bool = False,
) -> Model:
    """Load the model of a finished run.

    Args:
        run: the run, its folder, or its id if the folder is in runs/.
        device: cpu, cuda, cuda:N, or auto.
        make_body: the function that makes the body, if the run used your own body.
        method: the method, if it is your own: an object, or "FILE.py:CLASS" with the options of the run.
        averaged: load the averaged model after the last round instead of the model of the chosen round.

    Returns:
        The model. `predict(images)` returns probabilities; `classify(paths)` reads files.

    Raises:
        FedBMError: if the run is not finished, or has no model of this kind.

    Example:
        >>> import fedbm
        >>> run = fedbm.simulate("digits", method="fedavg", clients=5, rounds=1, size=16, width=8, batch=32)
        >>> fedbm.load_model(run).predict(fedbm.load("digits", size=16).images[:2]).shape
        (2, 10)
    """
    folder, place = find_folder(run), find_device(str(device))
    path = folder / f"{'averaged' if averaged else 'model'}.safetensors"
    if not path.exists():
        raise FedBMError(
            f"{folder} has no {path.name}: a finished run has model.safetensors and, with server_average above 0, "
            "averaged.safetensors"
        )
    state, notes = load_tensors(path, place)
    if "classes" not in notes:  # a checkpoint, for example
        raise FedBMError(f"{path} is not the model of a run. Restore the file.")
    config = read_config(folder, method)
    architecture = dataclasses.replace(config.model, init_weights="")  # that file may have moved
    saved = folder / "concepts.safetensors"
    task = Task(
        classes=tuple(notes["classes"]),
        shape=tuple(notes["shape"]),
        mean=tuple(notes["mean"]),
        std=tuple(notes["std"]),
        seed=config.train.seed,
        make_body=make_body or body_factory(architecture, notes["shape"][0]),
        concepts=ConceptDistribution.load(saved) if saved.exists() else None,
    )
    module = config.method.model(task).to(place)
    try:
        load_state(module, state)
    except (KeyError, RuntimeError) as error:
        raise FedBMError(
            f"the weights of {folder} do not fit the model in its config.toml. If the run had its own body, pass it: "
            "load_model(…, make_body=…)."
        ) from error
    trained = config.method.trained_parts  # also frozen layers: without init_weights they are not those of the run
    if missing := [name for name in module.state_dict() if name not in state and name.partition(".")[0] in trained]:
        raise FedBMError(
            f"{folder} has no common model: with {config.method.name}, every client keeps its own "
            f"{missing[0].partition('.')[0]} (clients/ in the run's folder)"
        )
    value_range = parse_numbers("value_range", config.data.value_range)
    return Model(task.classes, task.shape, config.method, task, module.eval(), place, value_range)
