"""The optimisers compute what those of torch.optim compute, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedbm.utils import optimizers

CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "weight_decay": 1e-3}),
    ("Adam", {"betas": (0.5, 0.999)}),
    ("Adam", {"weight_decay": 1e-2}),
    ("AdamW", {"weight_decay": 1e-2}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_equal_to_torch(name: str, options: dict[str, Any]) -> None:
    start = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    ends, states = [], []
    for library in (torch.optim, optimizers):
        weight = torch.nn.Parameter(start.clone())
        bias = torch.nn.Parameter(torch.ones(3))
        stepper = getattr(library, name)([weight, bias], lr=0.1, **options)
        for step in range(4):
            stepper.param_groups[0]["lr"] = 0.1 / (step + 1)
            stepper.zero_grad(set_to_none=True)
            assert weight.grad is None
            (weight.sin() @ bias).square().sum().backward()
            stepper.step()
        assert weight.requires_grad
        ends.append((weight, bias))
        states.append([value for one in (weight, bias) for value in stepper.state[one].values() if value is not None])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert bool(states[0]) == (name != "SGD" or "momentum" in options)
