"""Two values that would compute differently are described differently; the same value always alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbm.methods import FedBM
from fedbm.utils.fingerprint import changed, class_digest, described


class Body(nn.Module):
    """Its repr does not tell *p*."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.linear = p, nn.Linear(2, 2)
        nn.init.ones_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), self.p)


def capturing(value: Any) -> Callable[[], Any]:
    return lambda: value


def close_to(value: float) -> Tensor:
    found = torch.arange(5000.0)  # so many that a repr leaves out the middle
    found[2500] = value
    return found


PAIRS = {
    "an attribute of a module": (lambda x: Body(x), 0.0, 0.9),
    "an option of a loss": (lambda x: nn.CrossEntropyLoss(label_smoothing=x), 0.0, 0.5),
    "an argument given beforehand": (lambda x: functools.partial(F.dropout, p=x), 0.0, 0.5),
    "what a function captured": (capturing, 1, 2),
    "one number of a tensor": (close_to, 1.0, 1.00001),
    "one number of an array": (lambda x: np.array([0.0, x]), 1.0, 1.0 + 1e-15),
    "the kind of number": (lambda x: torch.zeros(2, dtype=x), torch.float32, torch.float64),
    "a value in a dictionary": (lambda x: {"a": [1, {"b": x}]}, 1, 2),
    "whose method it is": (lambda x: Body(x).forward, 0.0, 0.9),
    "a module that was captured": (capturing, np, torch),
    "a function of PyTorch": (lambda x: x, F.relu, F.gelu),
    "members of a set": (lambda x: {1, x}, 2, 3),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_is_told_apart_and_what_is_equal_is_not(name: str) -> None:
    make, one, other = PAIRS[name]
    assert described(make(one)) == described(make(one))
    assert described(make(one)) != described(make(other))


def test_objects_that_hold_each_other_come_to_an_end() -> None:
    body = Body(0.0)
    object.__setattr__(body, "friend", [body])
    assert "itself" in str(described(body))


def test_the_code_of_base_classes_counts() -> None:
    made = []
    for text in ("return 1", "return 2"):
        space: dict[str, Any] = {"__name__": "console"}
        exec(f"class A:\n    def f(self):\n        {text}\nclass B(A):\n    pass\n", space)
        made.append(class_digest(space["B"]))
    assert made[0] != made[1]


def test_options_at_their_defaults_say_nothing() -> None:
    assert changed(FedBM()) == {}
    assert changed(FedBM(temperature=3.0)) == {"temperature": 3.0}
