"""Build the body that the options describe, load initial weights into it, and choose frozen layers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fedbm.config.options import ModelOptions
from fedbm.errors import FedBMError, did_you_mean, prefix_errors, shorten_list
from fedbm.models.resnet import ResNet18
from fedbm.utils.fingerprint import package_digest
from fedbm.utils.plugins import Plugin, check_usable, load_plugins, usable
from fedbm.utils.tensor_files import read_tensors

OWN_BODIES = ("resnet18", "timm")


def body_factory(options: ModelOptions, channels: int) -> Callable[[], nn.Module]:
    """Return a function that builds the body with weights from the global generator. Client processes unpickle it."""
    weights = None
    if options.init_weights:
        with prefix_errors("init_weights"):
            weights = read_tensors(Path(options.init_weights).expanduser())
    check_body(options.body)
    return partial(make_body, options, channels, weights)


@cache
def body_plugins() -> dict[str, Plugin]:
    """Return the bodies that other installed packages declare in the entry points "fedbm.bodies"."""
    return load_plugins(
        "fedbm.bodies", OWN_BODIES, lambda name, value: "" if callable(value) else "it is not a function"
    )


def body_code(name: str) -> dict[str, str]:
    """Return the digest of the source of a plug-in's body, else nothing."""
    plugins = {} if name.partition(":")[0] in OWN_BODIES else usable(body_plugins())
    return {"body_code": package_digest(plugins[name])} if name in plugins else {}


def check_body(name: str) -> None:
    """Raise FedBMError unless *name* is resnet18, a plug-in, or timm:NAME with a model of the installed timm."""
    library, _, model = name.partition(":")
    if name == "resnet18":
        return
    if library != "timm":
        plugins = body_plugins()
        check_usable(plugins, name)
        if name not in plugins:
            near = did_you_mean(name, ["resnet18", *plugins])
            known = ", ".join(["resnet18", *plugins])
            raise FedBMError(f'there is no body "{name}"{near}; use {known}, or timm:NAME for a model of timm')
        return
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision is made for one build of PyTorch
        problem = str(error).partition("\n")[0]
        raise FedBMError(
            f"the body {name} needs timm, which cannot be imported ({problem}): "
            f'pip install "fedbm[timm]", with the build of torchvision that belongs to PyTorch {torch.__version__}'
        ) from error
    if not timm.is_model(model):  # in particular, it is not the address of a model to download
        raise FedBMError(f'timm {timm.__version__} has no model "{model}"{did_you_mean(model, timm.list_models())}')


def make_body(options: ModelOptions, channels: int, weights: dict[str, Tensor] | None) -> nn.Module:
    body: nn.Module
    if options.body == "resnet18":
        body = ResNet18(channels, options.width, options.stem, options.norm)
    elif not options.body.startswith("timm:"):
        body = body_plugins()[options.body].value(channels)
    else:
        import timm

        body = timm.create_model(options.body.removeprefix("timm:"), num_classes=0, in_chans=channels)
    if weights is not None:
        load_weights(body, weights, options.init_weights)
    if options.freeze:
        body.frozen_layers = choose_layers(body, options.freeze)  # type: ignore[assignment]
    return body


def choose_layers(body: nn.Module, freeze: str) -> tuple[str, ...]:
    """Return the layers with a given name or within a given module, or the first layers up to a share of all.

    >>> body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
    >>> choose_layers(body, "0,1"), choose_layers(body, "0.34")
    (('0', '1'), ('0',))
    """
    layers = [
        name
        for name, layer in body.named_modules()
        if name and (*layer.parameters(recurse=False), *layer.buffers(recurse=False))
    ]
    if re.fullmatch(r"0?\.\d*[1-9]\d*|1(\.0*)?", freeze):  # above 0 and up to 1
        return tuple(layers[: max(1, math.floor(float(freeze) * len(layers) + 1e-9))])
    chosen: list[str] = []
    for word in (word.strip() for word in freeze.split(",")):
        found = [name for name in layers if f"{name}.".startswith(f"{word}.")]
        if not found:
            known = ", ".join(dict.fromkeys(name.partition(".")[0] for name in layers))
            raise FedBMError(
                f'freeze: "{word}" is neither a layer of the body{did_you_mean(word, layers)} nor a share above 0 and '
                f"up to 1. Layers: {known}."
            )
        chosen += found
    return tuple(dict.fromkeys(chosen))


def load_weights(body: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Load weights by name, with or without the prefix `body.` of a saved run. Ignore a classifier (such as `fc.…`)."""
    classifier = getattr(body, "pretrained_cfg", {}).get("classifier") or "fc"  # models of timm name theirs
    ignored = tuple(f"{name}." for name in ((classifier,) if isinstance(classifier, str) else classifier))
    if any(name.startswith("body.") for name in weights):
        weights = {name.removeprefix("body."): v for name, v in weights.items() if name.startswith("body.")}
    own = body.state_dict()
    weights = {name: value for name, value in weights.items() if name in own or not name.startswith(ignored)}
    wrong = [name for name in own if name not in weights and not name.endswith("num_batches_tracked")]
    wrong += [name for name, value in weights.items() if name not in own or value.shape != own[name].shape]
    if wrong:
        raise FedBMError(
            f"init_weights: {source} does not fit the body. Missing, unknown or of another shape: "
            f"{shorten_list(wrong, 1)}. Check body, stem, width, norm and channels."
        )
    body.load_state_dict({**own, **weights})
