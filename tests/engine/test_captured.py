"""Captured on CUDA graphs, every method computes what the plain loop computes: weights, statistics, client state."""

import dataclasses

import pytest
import torch

from fedbm.engine.checkpoint import ClientStates, Progress
from fedbm.engine.cohort import LocalCohort
from fedbm.engine.graphs import CapturedCohort, CapturedSteps
from fedbm.engine.local import plain_steps
from fedbm.engine.rounds import select
from fedbm.methods import METHODS, FedBM
from fedbm.options import TrainOptions
from small import TinyBody, image_data, task

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

CLIENTS, ROUNDS = 4, 4
SIZE = 24  # at 16 px the generator starts from one pixel: BatchNorm cancels expand.bias and Adam steps on rounding


@pytest.fixture(autouse=True)
def exact():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before
    torch.set_default_dtype(torch.float32)


def played(method, train, dtype, folder, captured, slots=2):
    """ROUNDS rounds at half participation; the server's state, every client's state and the losses."""
    torch.set_default_dtype(dtype)
    data = image_data(CLIENTS, size=SIZE)
    images = torch.cat([own.images for own in data]).cuda()
    labels = torch.cat([own.labels for own in data]).cuda()
    starts = torch.tensor([0, *[len(own.labels) for own in data]]).cumsum(0)
    clients = [torch.arange(starts[i], starts[i + 1]).cuda() for i in range(CLIENTS)]
    setting = task(make_body=TinyBody, size=SIZE)
    model = method.model(setting).to("cuda", dtype)
    server, progress = method.server_init(model), Progress()
    states = ClientStates(folder, "cuda", progress.client_rounds)
    parts = (method, setting, train, model, images, labels, clients, states, progress)
    cohort = CapturedCohort(*parts, slots) if captured else LocalCohort(*parts)
    steps = CapturedSteps() if captured else plain_steps
    losses = []
    for round_ in range(1, ROUNDS + 1):
        folding = method.fold(server, CLIENTS)
        next(folding)
        chosen = select(CLIENTS, 0.5, 0, round_)
        answers = [a for a in cohort.exchange(round_, chosen, method.parts(server, round_)) if a is not None]
        assert [a.upload.client for a in answers] == chosen
        for answer in answers:
            assert answer.flaw is None
            folding.send(answer.upload)
            losses.append(answer.upload.losses)
        with pytest.raises(StopIteration) as end:
            folding.send(None)
        server, more = method.afterwards(end.value.value, model, setting, round_, steps)
        losses.append(more)
    return server, {client: states[client] for client in states}, losses


# Adam divides by the root of a mean square, which magnifies rounding: in float32 a digit more is allowed
@pytest.mark.parametrize(
    ("optimizer", "dtype", "tolerance"),
    [
        ("sgd", torch.float32, 1e-4),
        ("adam", torch.float32, 1e-3),
        ("sgd", torch.float64, 1e-9),
        ("adam", torch.float64, 1e-9),
    ],
)
@pytest.mark.parametrize("name", [name for name in METHODS if name != "central"])
def test_captured_is_the_reference(name, optimizer, dtype, tolerance, tmp_path):
    options = {"generator_steps": 3, "generator_width": 4, "generator_every": 2} if name == "fedbm" else {}
    method = METHODS[name](**options)
    # a learning rate that float32 holds exactly: the graph reads it from a float32 tensor
    lr = 2**-7 if optimizer == "sgd" else 2**-12
    train = TrainOptions(batch=4, epochs=2, optimizer=optimizer, lr=lr, lr_decay=0.5, keep_optimizer=True)
    plain = played(method, train, dtype, tmp_path / "plain", captured=False)
    graph = played(method, train, dtype, tmp_path / "graph", captured=True)
    for reference, found in ((plain[0], graph[0]), *((plain[1][c], graph[1][c]) for c in plain[1])):
        assert reference.keys() == found.keys()
        for part, value in reference.items():
            scale = float(value.double().abs().max()) if value.numel() else 0.0
            gap = float((value.double() - found[part].double()).abs().max()) if value.numel() else 0.0
            assert gap <= tolerance * max(scale, 1.0), (part, gap, scale)
    for reference, found in zip(plain[2], graph[2], strict=True):
        assert found == pytest.approx(reference, rel=max(tolerance, 1e-6), abs=tolerance)


def test_more_clients_than_slots_and_many_clients(tmp_path):
    train = TrainOptions(batch=4)
    one = played(FedBM(generator=False), train, torch.float64, tmp_path / "one", captured=True, slots=1)
    two = played(FedBM(generator=False), train, torch.float64, tmp_path / "two", captured=True, slots=4)
    assert all(torch.allclose(one[0][n].double(), two[0][n].double(), atol=1e-12) for n in one[0])


def test_options_reach_the_graph_through_the_context_alone(tmp_path):
    """Two learning rates, one capture: halving lr from round to round is seen by the replayed step."""
    train = TrainOptions(batch=4, lr=0.5, lr_decay=0.5, momentum=0.0, weight_decay=0.0)
    constant = dataclasses.replace(train, lr_decay=1.0)
    decayed, _, _ = played(METHODS["fedavg"](), train, torch.float64, tmp_path / "a", captured=True)
    straight, _, _ = played(METHODS["fedavg"](), constant, torch.float64, tmp_path / "b", captured=True)
    assert not torch.allclose(decayed["body.conv.weight"], straight["body.conv.weight"])
