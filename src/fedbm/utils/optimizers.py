"""SGD, Adam and AdamW of torch.optim, without what prepares them for torch.compile.

With the first optimiser of a process, torch.optim imports torch._dynamo: 800 modules, which take about two seconds.
It only keeps the optimiser out of compiled graphs, and fedbm compiles models, never a step of an optimiser. The classes
below call the same functions directly, so they compute the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

MakeOptimizer = Callable[[list[nn.Parameter], bool], Optimizer]  # parameters, whether its steps are captured


class _Plain:
    add_param_group: Any = unwrap(Optimizer.add_param_group)
    zero_grad: Any = unwrap(Optimizer.zero_grad)


class SGD(_Plain, torch.optim.SGD):
    step: Any = torch.no_grad()(unwrap(torch.optim.SGD.step))


class Adam(_Plain, torch.optim.Adam):
    step: Any = torch.no_grad()(unwrap(torch.optim.Adam.step))


class AdamW(_Plain, torch.optim.AdamW):
    step: Any = torch.no_grad()(unwrap(torch.optim.AdamW.step))


def make_adam(lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> MakeOptimizer:
    """Return a function that makes Adam with these settings."""
    return lambda parameters, capturable: Adam(parameters, lr, betas, capturable=capturable)
