"""Read files of named tensors."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedbm.errors import FedBMError


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors from a .safetensors file, or from a PyTorch file without unpickling code."""
    if not path.is_file():
        raise FedBMError(f"{path} does not exist")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # for a damaged file both readers raise many kinds of errors
        raise FedBMError(
            f"{path} is damaged, or neither a .safetensors file nor a PyTorch file of tensors alone"
        ) from error
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise FedBMError(f"{path} does not contain a dictionary of tensors")
    return tensors
