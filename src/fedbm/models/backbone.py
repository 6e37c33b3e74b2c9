"""From options to a body: build ResNet-18 and, where a file is given, load its weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fedbm.config.options import ModelOptions
from fedbm.errors import FedBMError
from fedbm.models.resnet import ResNet18


def resnet_factory(options: ModelOptions, channels: int) -> Callable[[], nn.Module]:
    """A function that builds the body the options describe; its random weights come from the caller's stream.

    It can be pickled, as client processes need.
    """
    weights = read_weights(Path(options.init_weights).expanduser()) if options.init_weights else None
    return partial(make_resnet, options, channels, weights)


def make_resnet(options: ModelOptions, channels: int, weights: dict[str, Tensor] | None) -> nn.Module:
    body = ResNet18(channels, options.width, options.stem, options.norm)
    if weights is not None:
        load_weights(body, weights, options.init_weights)
    return body


def read_weights(path: Path) -> dict[str, Tensor]:
    """Named tensors from .safetensors, or from a PyTorch file read without unpickling code."""
    if not path.is_file():
        raise FedBMError(f"init_weights: there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # both readers raise many kinds for a damaged file
        raise FedBMError(f"init_weights: {path} holds no weights that can be read ({_first_line(error)})") from error
    if not isinstance(weights, dict) or not all(isinstance(v, Tensor) for v in weights.values()):
        raise FedBMError(f"init_weights: {path} holds no dictionary of tensors")
    return weights


def load_weights(body: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Load by name: bare names or those of a saved run (`body.…`); a classifier (`fc.…`, `head.…`) is left out."""
    if any(name.startswith("body.") for name in weights):
        weights = {name.removeprefix("body."): v for name, v in weights.items() if name.startswith("body.")}
    own = body.state_dict()
    given = {name: v for name, v in weights.items() if name in own}
    missing = [name for name in own if name not in given and not name.endswith("num_batches_tracked")]
    foreign = [name for name in weights if name not in own and not name.startswith("fc.")]
    misfits = [name for name, v in given.items() if v.shape != own[name].shape]
    for names, what in ((missing, "lacks"), (foreign, "has the unknown"), (misfits, "has another shape for")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise FedBMError(
                f"init_weights: {source} does not fit the body: it {what} {names[0]}{more}; "
                "check stem, width, norm, channels"
            )
    body.load_state_dict({**own, **given})


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
