"""What makes a state unfit to be averaged, and what does not."""

import pytest
import torch
from small import TinyBody

from fedbm.engine.clients.cohort import find_nonfinite
from fedbm.methods.base import copy_all, copy_state, load_state


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_the_tensor_that_is_not_finite_is_named(bad):
    state = {"a": torch.ones(3), "b": torch.tensor([1.0, bad]), "c": torch.ones(2, dtype=torch.float64)}
    assert find_nonfinite(state) == "b is not finite"


def test_nothing_wrong_with_counters_empty_tensors_and_large_numbers():
    assert find_nonfinite({}) is None
    assert find_nonfinite({"count": torch.tensor(3), "empty": torch.empty(0)}) is None
    assert find_nonfinite({"large": torch.full((4,), 3e38), "small": torch.ones(2, dtype=torch.float64)}) is None


def test_a_state_is_copied_and_put_back_with_its_kinds_of_numbers():
    model = TinyBody()
    before = copy_state(model)
    with torch.no_grad():
        for value in model.state_dict().values():
            value.add_(1)
    assert not any(torch.equal(before[name], value) for name, value in model.state_dict().items())
    load_state(model, before)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert {value.dtype for value in before.values()} == {torch.float32, torch.int64}


def test_copies_change_precision_and_need_as_many_sources_as_targets():
    target = torch.zeros(2)
    copy_all([target], [torch.tensor([1.5, 2.5], dtype=torch.float64)])
    assert target.tolist() == [1.5, 2.5]
    with pytest.raises(ValueError, match="zip"):
        copy_all([target], [])
