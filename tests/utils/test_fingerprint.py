"""Values that compute differently have different fingerprints, and equal values have equal ones."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbm.methods import FedBM
from fedbm.utils.fingerprint import changed_options, class_digest, fingerprint
from fedbm.utils.io import digest_of


class Body(nn.Module):
    """A module whose repr does not contain *p*."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.linear = p, nn.Linear(2, 2)
        nn.init.ones_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), self.p)


def long_tensor(value: float) -> Tensor:
    tensor = torch.arange(5000.0)  # long enough that repr leaves out the middle
    tensor[2500] = value
    return tensor


PAIRS = {
    "an attribute of a module": (lambda x: Body(x), 0.0, 0.9),
    "an option of a loss": (lambda x: nn.CrossEntropyLoss(label_smoothing=x), 0.0, 0.5),
    "an argument of a partial function": (lambda x: functools.partial(F.dropout, p=x), 0.0, 0.5),
    "one number of a tensor": (long_tensor, 1.0, 1.00001),
    "one number of an array": (lambda x: np.array([0.0, x]), 1.0, 1.0 + 1e-15),
    "the dtype": (lambda x: torch.zeros(2, dtype=x), torch.float32, torch.float64),
    "a value in a dictionary": (lambda x: {"a": [1, {"b": x}]}, 1, 2),
    "an imported module": (lambda x: [x], np, torch),
    "a method": (lambda x: getattr(Body(0.0), x), "forward", "extra_repr"),
    "a function of PyTorch": (lambda x: x, F.relu, F.gelu),
    "members of a set": (lambda x: {1, x}, 2, 3),
    "infinity": (lambda x: x, float("inf"), float("-inf")),
}


@pytest.mark.parametrize("name", PAIRS)
def test_different_values_have_different_fingerprints(name: str) -> None:
    make, one, other = PAIRS[name]
    digest_of({"value": fingerprint(make(one))})  # the description is JSON
    assert fingerprint(make(one)) == fingerprint(make(one))
    assert fingerprint(make(one)) != fingerprint(make(other))


def test_cyclic_references_end() -> None:
    body = Body(0.0)
    object.__setattr__(body, "reference", [body])
    assert "itself" in str(fingerprint(body))


def test_a_class_digest_depends_on_the_code_of_base_classes() -> None:
    digests = []
    for text in ("return 1", "return 2"):
        space: dict[str, Any] = {"__name__": "console"}
        exec(f"class A:\n    def f(self):\n        {text}\nclass B(A):\n    pass\n", space)
        digests.append(class_digest(space["B"]))
    assert digests[0] != digests[1]


def test_options_at_their_defaults_are_left_out() -> None:
    assert changed_options(FedBM()) == {}
    assert changed_options(FedBM(temperature=3.0)) == {"temperature": 3.0}
