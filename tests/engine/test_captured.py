"""Captured on CUDA graphs, every method computes what the plain loop computes: weights, statistics, client state."""

import dataclasses
import gc
import multiprocessing
import resource
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from small import TinyBody, image_data, task

from fedbm.config.options import TrainOptions
from fedbm.engine.checkpoint import ClientStates, Progress
from fedbm.engine.clients import cuda_graphs as graphs
from fedbm.engine.clients.cohort import LocalSetup, merge_pieces
from fedbm.engine.clients.cuda_graphs import CapturedClient, CapturedCohort, CapturedSteps
from fedbm.engine.clients.sequential import LocalCohort
from fedbm.engine.device import autocast
from fedbm.engine.local_training import Samples, plain_steps, train_client
from fedbm.engine.round_loop import select_clients
from fedbm.methods import METHODS, FedAvg, FedBM
from fedbm.methods.base import Facts
from fedbm.models.resnet import ResNet18

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

CLIENTS, ROUNDS = 4, 4
FEW_STEPS = {"fedgen": {"feature_steps": 3}, "ccvr": {"calibration_steps": 3}}  # of Adam, which magnifies rounding
SIZE = 24  # at 16 px the generator starts from one pixel: BatchNorm cancels expand.bias and Adam steps on rounding


@pytest.fixture(autouse=True)
def exact():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before
    torch.set_default_dtype(torch.float32)


def train_rounds(
    method,
    train,
    dtype,
    folder,
    captured,
    slots=2,
    clients=CLIENTS,
    compile_=False,
    said=None,
    rounds=ROUNDS,
    observe=None,
    make_body=TinyBody,
    images_on="cuda",
    size=SIZE,
):
    """Some rounds at half participation; the server's state, every client's state and the losses."""
    torch.set_default_dtype(dtype)
    data = image_data(clients, size=size)
    images = torch.cat([own.images for own in data]).to(images_on)
    labels = torch.cat([own.labels for own in data]).cuda()
    starts = torch.tensor([0, *[len(own.labels) for own in data]]).cumsum(0)
    own = [torch.arange(starts[i], starts[i + 1], device=images_on) for i in range(clients)]
    if method.central:
        own, clients = [torch.cat(own)], 1
    setting = task(make_body=make_body, size=size, hflip=True)
    model = method.model(setting).to("cuda", dtype)
    server, progress = method.server_init(model), Progress()
    states = ClientStates(folder, "cuda", progress.client_rounds, cache_bytes=1 << 30 if captured else 0)
    whole = LocalSetup(method, setting, train, model, images, labels, own, states, progress)
    say = (said if said is not None else []).append
    cohort = CapturedCohort(whole, slots, compile_, say) if captured else LocalCohort(whole)
    steps = CapturedSteps(cohort.free_memory, compile_, say) if captured else plain_steps
    losses = []
    for round_ in range(1, rounds + 1):
        aggregator = method.aggregator(server, clients)
        chosen = select_clients(clients, 0.5, 0, round_)
        answers = [a for a in cohort.exchange(round_, chosen, method.broadcast(server, round_)) if a is not None]
        assert [a.upload.client for a in answers] == chosen
        for result in answers:
            assert result.rejection is None
            aggregator.add(result.upload)
            losses.append(result.upload.losses)
        with autocast(labels.device, train.precision):
            server, more = method.server_step(aggregator.result(), model, setting, round_, steps)
        losses.append({name: float(value) for name, value in more.items()})
        if observe is not None:
            observe(round_)
    return server, {client: states.load(client) for client in states}, losses


# Adam divides by the root of a mean square, which magnifies rounding: in float32 a digit more is allowed
@pytest.mark.parametrize(
    ("optimizer", "dtype", "tolerance"),
    [
        ("sgd", torch.float32, 1e-4),
        ("adam", torch.float32, 1e-3),
        ("sgd", torch.float64, 1e-9),
        ("adam", torch.float64, 1e-9),
        ("adamw", torch.float64, 1e-9),
    ],
)
@pytest.mark.parametrize("name", [name for name in METHODS if name != "central"])
def test_captured_is_the_reference(name, optimizer, dtype, tolerance, tmp_path):
    options = {"fedbm": {"generator_steps": 3, "generator_width": 4, "generator_every": 2}, **FEW_STEPS}.get(name, {})
    method = METHODS[name](**options)
    # float32 holds this learning rate exactly, and 1 - lr * decay of AdamW: the graph reads lr from a float32 tensor
    lr = 2**-7 if optimizer == "sgd" else 2**-12
    decay = 2**-6 if optimizer == "adamw" else 5e-4
    train = TrainOptions(
        batch=4, epochs=2, optimizer=optimizer, lr=lr, lr_decay=0.5, keep_optimizer=True, weight_decay=decay
    )
    plain = train_rounds(method, train, dtype, tmp_path / "plain", captured=False)
    graph = train_rounds(method, train, dtype, tmp_path / "graph", captured=True)
    assert_equal(plain, graph, tolerance)


def assert_equal(one, other, tolerance):
    """Server state, every client's state and the losses, to *tolerance* of each tensor's largest value."""
    for reference, found in ((one[0], other[0]), *((one[1][c], other[1][c]) for c in one[1])):
        assert reference.keys() == found.keys()
        for part, value in reference.items():
            scale = float(value.double().abs().max()) if value.numel() else 0.0
            gap = float((value.double() - found[part].double()).abs().max()) if value.numel() else 0.0
            assert gap <= tolerance * max(scale, 1.0), (part, gap, scale)
    for reference, found in zip(one[2], other[2], strict=True):
        assert found == pytest.approx(reference, rel=max(tolerance, 1e-6), abs=tolerance)


@pytest.mark.parametrize("name", ["scaffold", "fedbm"])
def test_the_one_client_of_a_node_is_the_reference(name):
    """A node keeps one slot from round to round."""
    torch.set_default_dtype(torch.float64)
    method, setting = METHODS[name](), task(size=SIZE)
    train = TrainOptions(batch=4, epochs=2, lr=2**-7, lr_decay=0.5, keep_optimizer=True)
    own = image_data(2, size=SIZE)[1]
    model, normalise = method.model(setting).to("cuda", torch.float64), setting.normalise().to("cuda")
    normalise.memory_format = torch.channels_last
    samples = Samples(own.images.cuda(), own.labels.cuda(), own.indices.cuda(), normalise)
    facts = Facts(1, len(own.labels), tuple(own.labels.bincount(minlength=3).tolist()))
    received = merge_pieces(method.broadcast(method.server_init(model), 1))
    received = {part: value.detach().clone() for part, value in received.items()}
    state = {part: value.cuda() for part, value in method.client_init(setting, facts).items()}
    client = CapturedClient(method, setting, train, normalise.mean)
    states = [state, state]
    for round_ in (1, 2, 3):
        plain, first = train_client(method, model, setting, train, round_, facts, samples, received, states[0])
        graph, second = client.train(round_, facts, samples, received, states[1])
        assert_equal((plain.state, {1: first}, [plain.losses]), (graph.state, {1: second}, [graph.losses]), 1e-9)
        assert graph.seconds > 0
        states = [first, second]


FEDBM = FedBM(generator_steps=3, generator_width=4, generator_every=2)


def make(name, **options):
    """The method with few steps at the server."""
    few = {"generator_steps": 3, "generator_width": 4, "generator_every": 2} if name == "fedbm" else {}
    return METHODS[name](**few, **FEW_STEPS.get(name, {}), **options)


# FedProto reads a client's images again after its training, FedRep trains in two phases
@pytest.mark.parametrize("method", [FedAvg(), FEDBM, METHODS["fedproto"](), METHODS["fedrep"]()], ids=lambda m: m.name)
@pytest.mark.parametrize("captured", [False, True], ids=["reference", "captured"])
def test_images_in_host_memory_give_the_same_bits(method, captured, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    train = TrainOptions(batch=4, epochs=2, lr=2**-7, keep_optimizer=True, freeze_batchnorm_after=2)
    on_gpu, on_host = (
        train_rounds(method, train, torch.float32, tmp_path / place, captured, images_on=place)
        for place in ("cuda", "cpu")
    )
    assert_equal(on_gpu, on_host, 0.0)


@pytest.mark.parametrize(
    ("method", "compile_"), [(FedAvg(), False), (METHODS["fedrep"](), False), (FEDBM, False), (FEDBM, True)]
)
def test_captured_with_frozen_batch_norm_is_the_reference(method, compile_, tmp_path):
    """In rounds 3 and 4 the layers use the statistics of round 2: a phase has a captured step for either mode."""
    train = TrainOptions(batch=4, epochs=2, lr=2**-7, lr_decay=0.5, keep_optimizer=True, freeze_batchnorm_after=2)
    plain = train_rounds(method, train, torch.float64, tmp_path / "plain", captured=False)
    graph = train_rounds(method, train, torch.float64, tmp_path / "graph", captured=True, compile_=compile_)
    assert_equal(plain, graph, 1e-9)
    early = train_rounds(method, train, torch.float64, tmp_path / "early", captured=True, rounds=2)
    statistics = [name for name in graph[0] if name.startswith("body.bn.running")]
    assert len(statistics) == 2
    assert all(torch.allclose(graph[0][name], early[0][name], rtol=1e-12) for name in statistics)


def test_captured_with_a_cosine_and_smoothed_labels_is_the_reference(tmp_path):
    """The graph reads the rate from a float32 tensor, which rounds those of a cosine."""
    train = TrainOptions(
        batch=4, rounds=4, optimizer="adamw", lr=2**-10, lr_schedule="cosine", warmup_rounds=1, label_smoothing=0.1
    )
    plain = train_rounds(FedAvg(), train, torch.float64, tmp_path / "plain", captured=False)
    graph = train_rounds(FedAvg(), train, torch.float64, tmp_path / "graph", captured=True)
    assert_equal(plain, graph, 1e-6)


@pytest.mark.parametrize("images_on", ["cuda", "cpu"])
@pytest.mark.parametrize(
    ("method", "compile_"), [(FedAvg(), False), (METHODS["fedrep"](), False), (FEDBM, False), (FEDBM, True)]
)
def test_captured_with_augmentation_is_the_reference(method, compile_, images_on, tmp_path):
    train = TrainOptions(batch=4, epochs=2, lr=2**-7, lr_decay=0.5, augment="standard")
    plain = train_rounds(method, train, torch.float64, tmp_path / "plain", captured=False)
    graph = train_rounds(
        method, train, torch.float64, tmp_path / "graph", captured=True, compile_=compile_, images_on=images_on
    )
    assert_equal(plain, graph, 1e-9)


def test_captured_with_generated_images_in_statistics_alone_is_the_reference(tmp_path):
    method = dataclasses.replace(FEDBM, pseudo_in="statistics")
    train = TrainOptions(batch=4, lr=2**-7)
    plain = train_rounds(method, train, torch.float64, tmp_path / "plain", captured=False)
    graph = train_rounds(method, train, torch.float64, tmp_path / "graph", captured=True)
    assert_equal(plain, graph, 1e-9)


def test_central_training_captured_is_the_reference(tmp_path):
    """A pass over the data continues in the next round, and so does the optimiser."""
    method = METHODS["central"]()
    for optimizer, lr in (("sgd", 2**-7), ("adamw", 2**-12)):
        train = TrainOptions(batch=4, optimizer=optimizer, lr=lr, lr_decay=0.5, keep_optimizer=True, weight_decay=2**-6)
        plain = train_rounds(method, train, torch.float64, tmp_path / f"plain {optimizer}", captured=False)
        graph = train_rounds(method, train, torch.float64, tmp_path / f"graph {optimizer}", captured=True)
        assert_equal(plain, graph, 1e-9)


# the rows of the experiment "mechanism": the trained classifier, each condition, images in the loss or in statistics
@pytest.mark.parametrize("pseudo_in", ["loss", "statistics"])
@pytest.mark.parametrize("condition", ["concepts", "noise", "noise+label"])
@pytest.mark.parametrize("classifier", ["distribution", "trained", "random", "mean"])
def test_every_ablation_of_fedbm_captured_is_the_reference(classifier, condition, pseudo_in, tmp_path):
    method = make("fedbm", classifier=classifier, condition=condition, pseudo_in=pseudo_in, pseudo_batch=5)
    train = TrainOptions(batch=4, lr=2**-7, lr_decay=0.5)
    plain = train_rounds(method, train, torch.float64, tmp_path / "plain", captured=False)
    graph = train_rounds(method, train, torch.float64, tmp_path / "graph", captured=True)
    assert_equal(plain, graph, 1e-9)


# those of the experiments; "compile" is what they run with
PLANNED = ("fedavg", "fedbm", "fedetf", "fedglcl", "fedgen", "ccvr", "fedlc", "fedntd", "moon", "fedbn", "central")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in PLANNED if name != "fedbm"])
def test_a_compiled_method_is_the_reference(name, tmp_path):
    """Also after BatchNorm is frozen, for which a phase is compiled again."""
    train = TrainOptions(batch=4, lr=2**-7, lr_decay=0.5, keep_optimizer=True, freeze_batchnorm_after=3)
    plain = train_rounds(make(name), train, torch.float64, tmp_path / "plain", captured=False)
    graph = train_rounds(make(name), train, torch.float64, tmp_path / "graph", captured=True, compile_=True)
    assert_equal(plain, graph, 1e-9)


@pytest.mark.parametrize("compile_", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("name", PLANNED)
def test_captured_in_bf16_is_the_reference_to_rounding(name, compile_, tmp_path):
    """Weights that autocast has cached, or casts that a graph does not repeat, would not follow the training."""
    train = TrainOptions(batch=4, lr=2**-6, precision="bf16")
    plain = train_rounds(make(name), train, torch.float32, tmp_path / "plain", captured=False)
    graph = train_rounds(make(name), train, torch.float32, tmp_path / "graph", captured=True, compile_=compile_)
    bound = BF16.get(name, 2e-2)
    assert_equal(plain, graph, bound)
    idle = dataclasses.replace(train, lr=2**-40)  # the bound is narrow enough to see a model that does not train
    still = train_rounds(make(name), idle, torch.float32, tmp_path / "still", captured=True)
    with pytest.raises(AssertionError):
        assert_equal(plain, still, bound)


# 2e-2: rounding to 8 bits, in all the steps of four rounds; FedGLCL's loss has cosines divided by 0.07
BF16 = {"fedglcl": 5e-2}


# the bodies of the experiments; StemConv2d computes otherwise in channels_last, which only the captured engine uses
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", ["fedavg", "fedbm", "moon"])
def test_captured_resnet_is_the_reference(name, norm, tmp_path):
    method = make(name, **({"lambda_dis": 0.0} if (name, norm) == ("fedbm", "group") else {}))
    # of one pixel, a group of two channels is +1 and -1: GroupNorm then magnifies rounding
    body = partial(ResNet18, channels=1, width=4, norm=norm, stem="7x7" if norm == "batch" else "3x3")
    train = TrainOptions(batch=4, lr=2**-9, lr_decay=0.5)
    plain = train_rounds(method, train, torch.float64, tmp_path / "plain", captured=False, make_body=body)
    graph = train_rounds(method, train, torch.float64, tmp_path / "graph", captured=True, make_body=body)
    assert_equal(plain, graph, 1e-7)


def small_efficientnet():
    return pytest.importorskip("timm").create_model("tf_efficientnet_lite0", num_classes=0, in_chans=1)


@pytest.mark.long
@pytest.mark.parametrize("compile_", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("name", ["fedavg", "fedbm", "fedetf"])
def test_captured_body_of_timm_is_the_reference(name, compile_, tmp_path):
    small_efficientnet()
    # of one pixel, BatchNorm turns two images into +1 and -1, and the gradient into rounding: 64 px leave four pixels
    train = TrainOptions(batch=4, lr=2**-12, lr_decay=0.5)
    run = partial(train_rounds, make(name), train, torch.float64, make_body=small_efficientnet, size=64)
    plain = run(tmp_path / "plain", captured=False)
    graph = run(tmp_path / "graph", captured=True, compile_=compile_)
    assert_equal(plain, graph, 1e-6)


@pytest.mark.parametrize("augment", ["standard", "flip"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("name", ["fedavg", "fedetf", "fedbm", "central"])
def test_captured_with_the_modern_recipe_is_the_reference(name, optimizer, augment, tmp_path):
    """The graph reads the rate from a float32 tensor, which rounds those of a cosine and of its warm-up."""
    lr, decay = (3e-4, 0.05) if optimizer == "adamw" else (0.01, 5e-4)
    train = TrainOptions(
        rounds=4, batch=4, optimizer=optimizer, lr=lr, weight_decay=decay, lr_schedule="cosine", warmup_rounds=2,
        augment=augment,
    )  # fmt: skip
    plain = train_rounds(make(name), train, torch.float64, tmp_path / "plain", captured=False)
    graph = train_rounds(make(name), train, torch.float64, tmp_path / "graph", captured=True)
    assert_equal(plain, graph, 1e-6)


class Frozen(TinyBody):
    """Its convolution is not trained, as with freeze = conv."""

    frozen_layers = ("conv",)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn", "moon", "ccvr", "fedntd", "fedbm"])
def test_captured_with_frozen_layers_is_the_reference(name, tmp_path):
    train = TrainOptions(batch=4, lr=2**-7, lr_decay=0.5, keep_optimizer=True)
    plain = train_rounds(make(name), train, torch.float64, tmp_path / "plain", captured=False, make_body=Frozen)
    graph = train_rounds(make(name), train, torch.float64, tmp_path / "graph", captured=True, make_body=Frozen)
    assert_equal(plain, graph, 1e-9)


def test_many_clients_in_few_slots(tmp_path):
    """Forty clients, of more chunks than rows are held, in one slot, in three, and in a plain loop."""
    train = TrainOptions(batch=1, epochs=2, lr=2**-12)
    plain = train_rounds(FEDBM, train, torch.float64, tmp_path / "plain", captured=False, clients=40)
    for slots in (1, 3):
        graph = train_rounds(FEDBM, train, torch.float64, tmp_path / str(slots), captured=True, slots=slots, clients=40)
        assert_equal(plain, graph, 1e-9)


def test_compiled_is_the_reference(tmp_path):
    said = []
    train = TrainOptions(batch=4, lr=2**-7)
    plain = train_rounds(FEDBM, train, torch.float64, tmp_path / "plain", captured=False)
    graph = train_rounds(FEDBM, train, torch.float64, tmp_path / "graph", captured=True, compile_=True, said=said)
    assert_equal(plain, graph, 1e-9)
    assert any(note.startswith("compiled and captured in") for note in said)


@dataclasses.dataclass(frozen=True)
class Peeking(FedAvg):
    """Looks at a value in the middle of a step, which a graph cannot hold."""

    name: ClassVar[str] = "peeking"

    def loss(self, model, batch, context):
        terms = super().loss(model, batch, context)
        return terms if float(terms["cross_entropy"]) < 1e9 else {}


def test_a_method_that_cannot_be_captured_uses_the_plain_loop(tmp_path):
    said = []
    train = TrainOptions(batch=4)
    plain = train_rounds(Peeking(), train, torch.float64, tmp_path / "plain", captured=False)
    other = train_rounds(Peeking(), train, torch.float64, tmp_path / "other", captured=True, said=said)
    assert_equal(plain, other, 1e-12)
    assert len(said) == 1
    assert said[0].startswith("peeking cannot be captured, so a plain loop trains its clients")


class Forgetful(TinyBody):
    def forward(self, x):
        return torch.nn.functional.dropout(super().forward(x), training=self.training)


def test_a_body_that_draws_random_numbers_uses_the_plain_loop(tmp_path):
    """Replays would draw in the order in which they happen to be issued, not from each client's stream."""
    said, train, method = [], TrainOptions(batch=4), FedAvg()
    plain = train_rounds(method, train, torch.float64, tmp_path / "plain", captured=False, make_body=Forgetful)
    other = train_rounds(
        method, train, torch.float64, tmp_path / "other", captured=True, said=said, make_body=Forgetful
    )
    assert_equal(plain, other, 1e-9)
    assert any("cannot be captured" in note and "random numbers" in note for note in said), said


def test_full_memory_means_fewer_slots(tmp_path, monkeypatch):
    """If a slot runs out of memory, the others continue, the results are the same, and a note is written."""
    made = []

    class Greedy(graphs.Slot):
        def _capture(self, *args):
            made.append(self)
            if len(made) == 3:
                torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
            super()._capture(*args)

    said = []
    train = TrainOptions(batch=4, lr=2**-7)
    plain = train_rounds(FEDBM, train, torch.float64, tmp_path / "plain", captured=False, clients=12)
    monkeypatch.setattr(graphs, "Slot", Greedy)
    other = train_rounds(FEDBM, train, torch.float64, tmp_path / "other", captured=True, slots=4, clients=12, said=said)
    assert_equal(plain, other, 1e-9)
    assert "the device's memory is full: continuing with 3 clients in parallel" in said


def test_full_memory_while_a_state_is_kept(tmp_path, monkeypatch):
    """If storing a state runs out of memory, its client starts again. States go to disk before a slot is given up."""
    put, puts = ClientStates.put, []

    def short(self, *given):
        puts.append(given)
        if len(puts) == 3:
            raise torch.OutOfMemoryError
        put(self, *given)

    said, train, method = [], TrainOptions(batch=4, lr=2**-7), METHODS["scaffold"]()
    plain = train_rounds(method, train, torch.float64, tmp_path / "plain", captured=False, clients=12)
    monkeypatch.setattr(ClientStates, "put", short)
    other = train_rounds(
        method, train, torch.float64, tmp_path / "other", captured=True, slots=4, clients=12, said=said
    )
    assert_equal(plain, other, 1e-9)
    assert "the device's memory is full: client states are read from disk" in said


def test_full_memory_in_the_middle_of_a_capture(tmp_path):
    """Memory really runs out during a capture or warm-up, in a separate process with empty memory."""
    process = multiprocessing.get_context("spawn").Process(target=meet_the_limit, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0


def meet_the_limit(folder):
    def run(name, slots, said):
        dtype, clients = torch.float64, 12
        body = partial(ResNet18, channels=1, stem="3x3")  # a slot weighs more than its streams' workspaces, which stay
        return train_rounds(
            FEDBM, TrainOptions(batch=4), dtype, folder / name, True, slots, clients, False, said, make_body=body
        )

    three = run("three", 3, [])
    limit = torch.cuda.max_memory_reserved() + (512 << 20)
    torch._C._cuda_clearCublasWorkspaces()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    said = []
    assert_equal(three, run("many", 12, said), 1e-6)
    assert any("memory is full" in note for note in said), said


def test_options_reach_the_graph_through_the_context_alone(tmp_path):
    """Two learning rates, one capture: halving lr from round to round is seen by the replayed step."""
    train = TrainOptions(batch=4, lr=0.5, lr_decay=0.5, momentum=0.0, weight_decay=0.0)
    constant = dataclasses.replace(train, lr_decay=1.0)
    decayed, _, _ = train_rounds(METHODS["fedavg"](), train, torch.float64, tmp_path / "a", captured=True)
    straight, _, _ = train_rounds(METHODS["fedavg"](), constant, torch.float64, tmp_path / "b", captured=True)
    assert not torch.allclose(decayed["body.conv.weight"], straight["body.conv.weight"])


def test_memory_does_not_grow_over_500_rounds(tmp_path):
    held = {}

    def observe(round_):
        if round_ in (100, 500):
            gc.collect()
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
            held[round_] = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), resident

    train_rounds(FEDBM, TrainOptions(batch=4), torch.float32, tmp_path, captured=True, rounds=500, observe=observe)
    assert held[500][0] <= held[100][0]
    assert held[500][1] <= held[100][1] + (32 << 20), "what the allocator keeps"
    assert held[500][2] <= held[100][2] + (16 << 20), "the host's"
