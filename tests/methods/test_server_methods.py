"""FedGen and CCVR: what the server learns from heads, means and covariances, by hand and against torch alone."""

import pytest
import torch
import torch.nn.functional as F
from small import image_data, linear_task, play, samples, task
from test_classifier_oracles import CLIENTS, LR, ROUNDS, STEPS, TRAIN, by_size, ce, close, sample, setting

from fedbm.config.options import TrainOptions
from fedbm.methods import CCVR, FedAvg, FedGen
from fedbm.methods.base import Upload, with_prefix
from fedbm.methods.fedgen import COUNTS, choose_labels, draw_features
from fedbm.utils.seeds import torch_rng

SHARED = ("body.map.weight", "head.weight", "head.bias")
LONGER = TrainOptions(batch=4, epochs=2)


def aggregate(method, server, uploads):
    aggregator = method.aggregator(server, 10)
    for upload in uploads:
        aggregator.add(upload)
    return aggregator.result()


# --- FedGen ---------------------------------------------------------------------------------------------------------


def test_fedgen_teachers_by_hand():
    """Client 0 has 1 and 3 samples of classes 0 and 1, client 1 has 3 and 0; class 2 has nobody."""
    method = FedGen()
    model = method.model(linear_task(2, 3))
    server = method.server_init(model)
    heads = [torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]), torch.tensor([[5.0, 4.0], [8.0, 1.0], [2.0, 6.0]])]
    counts = [torch.tensor([1.0, 3.0, 0.0]), torch.tensor([3.0, 0.0, 0.0])]
    uploads = [
        Upload(i, 1, {"head.weight": heads[i], "head.bias": heads[i][:, 0], "fedgen.counts": counts[i]}) for i in (0, 1)
    ]
    new = aggregate(method, server, uploads)
    assert torch.allclose(new["teachers.weight"][0], (heads[0] + 3 * heads[1]) / 4)
    assert torch.allclose(new["teachers.weight"][1], heads[0])
    assert torch.allclose(new["teachers.bias"][0], (heads[0] + 3 * heads[1])[:, 0] / 4)
    assert torch.allclose(new["fedgen.prior"], torch.tensor([4.0, 3.0, 0.0]) / 7)
    assert torch.allclose(new["head.weight"], (heads[0] + heads[1]) / 2), "FedAvg's mean"
    model.load_state_dict(method.model_state(new), strict=False)
    z, labels = torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([0, 1])
    votes = torch.stack([0.25 * heads[0] @ z[0] + 0.75 * heads[1] @ z[0], heads[0] @ z[1]])
    assert torch.allclose(model.teachers(z, labels), votes + new["teachers.bias"][labels])


def test_fedgen_labels_follow_the_prior_and_skip_missing_classes():
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    found = choose_labels(uniform, torch.tensor([0.2, 0.0, 0.5, 0.3]).cumsum(0)).bincount(minlength=5)
    assert found[1] == 0
    assert (found / 20_000).tolist() == pytest.approx([0.2, 0, 0.5, 0.3, 0], abs=0.02)


def test_fedgen_written_out():
    """Two rounds with a linear body: the generator's two Adam steps, then heads that train on its features as well."""
    method = FedGen(feature_weight=0.7, feature_batch=4, feature_steps=2, feature_lr=0.01)
    model = method.model(setting()).double()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    data = [samples([list(x)] * n, [y] * n) for x, y, n in CLIENTS]
    server, _, _ = play(method, setting(), TRAIN, data, ROUNDS, model=model)

    shared = [start[name] for name in SHARED]
    generator = [start[f"generator.{name}"] for name in ("expand.weight", "expand.bias", "out.weight", "out.bias")]

    def features(G, labels, noise):
        A, a, B, b = G
        return torch.relu(torch.cat([noise, F.one_hot(labels, 2).double()], dim=-1) @ A.T + a) @ B.T + b

    for round_ in range(1, ROUNDS + 1):
        results = []
        for i in (0, 1):
            x, y, _ = sample(i)
            values = [value.clone().requires_grad_() for value in shared]
            for epoch in range(STEPS):  # an epoch is one step here
                drawn = draw_features(1, 4, torch_rng(0, "client", round_, i, 0, epoch, "draws", 0))
                W, A, a = values
                loss = ce(A @ (W @ x) + a, y)
                if round_ > 1:
                    labels = (drawn["uniform"][0] >= 0.25).long()  # 1 and 3 samples of classes 0 and 1
                    with torch.no_grad():
                        z = features(generator, labels, drawn["noise"][0].double())
                    loss = loss + 0.7 * F.cross_entropy(z @ A.T + a, labels)
                gradients = torch.autograd.grad(loss, values)
                values = [(v - LR * g).detach().requires_grad_() for v, g in zip(values, gradients, strict=True)]
            results.append([value.detach() for value in values])
        shared = by_size(*results)
        drawn = draw_features(2, 4, torch_rng(0, "generator", round_))
        G = [value.clone().requires_grad_() for value in generator]
        adam = torch.optim.Adam(G, 0.01)
        for step in range(2):
            labels = (drawn["uniform"][step] >= 0.25).long()
            z = features(G, labels, drawn["noise"][step].double())
            # client i alone has class i: it is the only teacher of that label
            votes = torch.stack(
                [results[label][1] @ row + results[label][2] for label, row in zip(labels, z, strict=True)]
            )
            adam.zero_grad()
            F.cross_entropy(votes, labels).backward()
            adam.step()
        generator = [value.detach() for value in G]
    for name, value in zip(SHARED, shared, strict=True):
        close(server[name], value)
    close(server["generator.out.weight"], generator[2])
    assert server["fedgen.prior"].tolist() == [0.25, 0.75]


def test_fedgen_without_features_is_fedavg_to_the_last_bit():
    plain, _, _ = play(FedAvg(), task(), LONGER, image_data(), rounds=3, participation=0.5)
    same, with_features = (
        play(FedGen(feature_weight=weight), task(), LONGER, image_data(), rounds=3, participation=0.5)[0]
        for weight in (0.0, 1.0)
    )
    assert all(torch.equal(plain[name], same[name]) for name in plain)
    assert not torch.equal(plain["head.weight"], with_features["head.weight"])


def test_fedgen_sends_no_generator_before_it_is_trained():
    method = FedGen()
    server = method.server_init(method.model(task()))
    assert set(method.broadcast(server, 1)) == {"model"}
    assert set(method.broadcast(server, 2)) == {"model"}, "all clients of round 1 failed"
    server = aggregate(method, server, [Upload(0, 1, {**with_prefix(server, "head."), COUNTS: torch.ones(3)})])
    assert set(method.broadcast(server, 2)) == {"model", "generator"}
    assert not [name for piece in method.broadcast(server, 2).values() for name in piece.state if "teachers" in name]


# --- CCVR -----------------------------------------------------------------------------------------------------------


def test_ccvr_trains_as_fedavg():
    plain, _, _ = play(FedAvg(), task(), LONGER, image_data(), rounds=3, participation=0.5)
    found, _, _ = play(CCVR(calibration_steps=2), task(), LONGER, image_data(), rounds=3, participation=0.5)
    assert all(torch.equal(plain[name], found[f"ccvr.trained.{name}"]) for name in plain)


def test_ccvr_gaussians_are_those_of_all_samples():
    """What clients send of their own samples adds up to mean and covariance of all, under the received body."""
    method, data = CCVR(calibration_steps=1), image_data()
    servers = [method.server_init(method.model(task()))]
    play(method, task(), LONGER, data, rounds=2, observe=lambda server, _: servers.append(server))
    model = FedAvg().model(task())
    model.load_state_dict({name: servers[1][f"ccvr.trained.{name}"] for name in model.state_dict()})
    model.eval()
    with torch.no_grad():
        features = torch.cat([model.body(own.batch(own.indices)[0]) for own in data]).double()
    labels = torch.cat([own.labels for own in data])
    for k in range(3):
        of_class = features[labels == k]
        assert servers[2]["ccvr.counts"][k] == len(of_class)
        assert torch.allclose(servers[2]["ccvr.mean"][k].double(), of_class.mean(0), atol=1e-6)
        assert torch.allclose(servers[2]["ccvr.covariance"][k].double(), of_class.T.cov(), atol=1e-6)


def test_ccvr_keeps_the_gaussian_of_a_class_that_nobody_had():
    method = CCVR()
    server = method.server_init(method.model(linear_task(1, 2)))
    server |= {"ccvr.counts": torch.tensor([0.0, 5.0]), "ccvr.mean": torch.tensor([[0.0], [7.0]])}
    sent = {
        "ccvr.counts": torch.tensor([2.0, 0.0]),
        "ccvr.mean": torch.tensor([[3.0], [0.0]]),
        "ccvr.covariance": torch.tensor([[[4.0]], [[0.0]]]),
    }
    other = {**sent, "ccvr.counts": torch.tensor([1.0, 0.0]), "ccvr.mean": torch.tensor([[9.0], [0.0]])}
    new = aggregate(method, server, [Upload(0, 1, sent), Upload(1, 1, other)])
    assert new["ccvr.counts"].tolist() == [3.0, 5.0]
    assert new["ccvr.mean"].flatten().tolist() == [5.0, 7.0]
    # 3 ± √2 twice and 9 once: ((2 − 1)·4 + 2·9 + 81 − 3·25) / 2 = 14; a single sample has no covariance to add
    assert new["ccvr.covariance"].flatten().tolist() == [14.0, 0.0]


def test_ccvr_draws_from_the_gaussians():
    method = CCVR(calibration_steps=100, calibration_batch=400)
    covariance = torch.tensor([[[2.0, 1.0], [1.0, 3.0]], [[1.0, 1.0], [1.0, 1.0]], [[9.0, 0.0], [0.0, 9.0]]])
    server = {
        "ccvr.counts": torch.tensor([1.0, 3.0, 0.0]),
        "ccvr.mean": torch.tensor([[1.0, -1.0], [4.0, 4.0], [0.0, 0.0]]),
        "ccvr.covariance": covariance,
    }
    drawn = method.draw_virtual_features(server, torch.Generator().manual_seed(0))
    labels, features = drawn["labels"].flatten(), drawn["features"].flatten(0, 1)
    assert (labels.bincount(minlength=3) / 40_000).tolist() == pytest.approx([0.25, 0.75, 0.0], abs=0.01)
    for k in (0, 1):
        assert torch.allclose(features[labels == k].mean(0), server["ccvr.mean"][k].double(), atol=0.05)
        assert torch.allclose(features[labels == k].T.cov(), covariance[k].double(), atol=0.1)


def test_ccvr_scores_fedavgs_previous_model_calibrated():
    """The body of the round before, and its head after Adam's steps on the virtual features: by torch alone."""
    method, seen = CCVR(calibration_steps=3, calibration_batch=8, calibration_lr=0.01), []
    play(method, task(), LONGER, image_data(), rounds=2, observe=lambda server, _: seen.append(server))
    [scored] = method.global_states(seen[1], {})
    before = with_prefix(seen[0], "ccvr.trained.", "")
    assert scored.keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in scored.items() if name.startswith("body."))
    head = [before[name].clone().requires_grad_() for name in ("head.weight", "head.bias")]
    adam, drawn = torch.optim.Adam(head, 0.01), method.draw_virtual_features(seen[1], torch_rng(0, "calibration", 2))
    for labels, features in zip(drawn["labels"], drawn["features"].float(), strict=True):
        adam.zero_grad()
        F.cross_entropy(features @ head[0].T + head[1], labels).backward()
        adam.step()
    assert torch.allclose(scored["head.weight"], head[0], atol=1e-6)
    assert not torch.allclose(scored["head.weight"], before["head.weight"], atol=1e-3)
