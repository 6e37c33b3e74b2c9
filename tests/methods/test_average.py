"""The weighted mean with BatchNorm buffers and the integer counter, by hand and in any order."""

import pytest
import torch

from fedbm.methods import FedAvg
from fedbm.methods._average import Average
from fedbm.methods.base import Upload


def state(weight: float, running: float, counter: int) -> dict[str, torch.Tensor]:
    return {
        "body.weight": torch.tensor([weight, -weight]),
        "body.bn.running_var": torch.tensor([running]),
        "body.bn.num_batches_tracked": torch.tensor(counter),
    }


def aggregate(method: FedAvg, uploads: list[Upload]) -> dict[str, torch.Tensor]:
    aggregator = method.aggregator({"body.weight": torch.zeros(2), "head.frozen": torch.ones(1)}, clients=10)
    for upload in uploads:
        aggregator.add(upload)
    return aggregator.result()


UPLOADS = [Upload(0, 1, state(1.0, 2.0, 7)), Upload(3, 3, state(5.0, 4.0, 3))]


def test_weighted_by_samples():
    averaged = aggregate(FedAvg(), UPLOADS)
    # (1·1 + 3·5) / 4 = 4 and (1·2 + 3·4) / 4 = 3.5; the counter keeps its maximum and its type
    assert averaged["body.weight"].tolist() == [4.0, -4.0]
    assert averaged["body.bn.running_var"].tolist() == [3.5]
    assert averaged["body.bn.num_batches_tracked"].item() == 7
    assert averaged["body.bn.num_batches_tracked"].dtype == torch.int64
    assert averaged["body.weight"].dtype == torch.float32
    assert averaged["head.frozen"].tolist() == [1.0], "what no client sends stays"


def test_plain_mean():
    averaged = aggregate(FedAvg(weighting="equal"), UPLOADS)
    assert averaged["body.weight"].tolist() == [3.0, -3.0]
    assert averaged["body.bn.running_var"].tolist() == [3.0]


def test_order_of_uploads_does_not_matter():
    rng = torch.Generator().manual_seed(0)
    uploads = [Upload(i, i + 1, {"body.w": torch.randn(1000, generator=rng)}) for i in range(20)]
    forth, back = aggregate(FedAvg(), uploads), aggregate(FedAvg(), uploads[::-1])
    assert torch.allclose(forth["body.w"], back["body.w"], rtol=0, atol=1e-7)


def test_one_upload_is_returned_to_the_last_bit():
    value = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    assert torch.equal(aggregate(FedAvg(), [Upload(0, 7, {"body.w": value})])["body.w"], value)


def test_mismatched_states_cannot_be_averaged():
    average = Average()
    average.add({"a": torch.zeros(1)}, 1.0)
    with pytest.raises(ValueError, match="same names"):
        average.add({"b": torch.zeros(1)}, 1.0)


def test_counters_alone_and_nothing_at_all():
    average = Average()
    for count in (3, 7, 5):
        average.add({"n": torch.tensor(count)}, 1.0)
    assert average.result()["n"].item() == 7
    empty = Average()
    empty.add({}, 1.0)
    assert empty.result() == {}


def test_uploads_are_left_as_they_came():
    average, first = Average(), state(1.0, 2.0, 7)
    before = {name: value.clone() for name, value in first.items()}
    average.add(first, 2.0)
    average.add(state(5.0, 4.0, 9), 1.0)
    assert all(torch.equal(first[name], before[name]) for name in first)
