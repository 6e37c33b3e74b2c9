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
_add_param_group: Any = unwrap(Optimizer.add_param_group)
_zero_grad: Any = unwrap(Optimizer.zero_grad)


class SGD(torch.optim.SGD):
    add_param_group = _add_param_group
    zero_grad = _zero_grad
    step: Any = torch.no_grad()(unwrap(torch.optim.SGD.step))


class Adam(torch.optim.Adam):
    add_param_group = _add_param_group
    zero_grad = _zero_grad
    step: Any = torch.no_grad()(unwrap(torch.optim.Adam.step))


class AdamW(torch.optim.AdamW):
    add_param_group = _add_param_group
    zero_grad = _zero_grad
    step: Any = torch.no_grad()(unwrap(torch.optim.AdamW.step))


def make_adam(lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> MakeOptimizer:
    """Return a function that makes Adam with these settings."""
    return lambda parameters, capturable: Adam(parameters, lr, betas, capturable=capturable)
