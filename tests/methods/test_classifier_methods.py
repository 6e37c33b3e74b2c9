"""FedRep, FedBN, FedROD, FedNH, FedProto, FedETF, FedGLCL, central training: formulas by hand and identities."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from small import image_data, linear_task, play, samples, task

from fedbm.config.options import TrainOptions
from fedbm.engine.local_training import Samples, central_passes, schedule
from fedbm.errors import FedBMError
from fedbm.methods import Central, FedAvg, FedBM, FedBN, FedETF, FedGLCL, FedNH, FedProto, FedRep, FedROD
from fedbm.methods._label_prior import log_prior
from fedbm.methods.base import Batch, Facts, Upload, copy_state, load_state, train_only
from fedbm.methods.fedetf import simplex_frame
from fedbm.methods.fedglcl import TextHead

TRAIN = TrainOptions(batch=4)


def aggregate(method, server, uploads, clients=10):
    aggregator = method.aggregator(server, clients)
    for upload in uploads:
        aggregator.add(upload)
    return aggregator.result()


# --- label priors ---------------------------------------------------------------------------------------------------


def test_log_prior_by_hand():
    like = torch.zeros((), dtype=torch.float64)
    assert log_prior((4, 0, 1), "mask", like).tolist() == [math.log(4), -math.inf, 0.0]
    assert log_prior((4, 0, 1), "one", like).tolist() == [math.log(4), 0.0, 0.0]
    assert log_prior((4, 0, 1), "one", like, strength=2.0).tolist() == [2 * math.log(4), 0.0, 0.0]
    assert log_prior((4, 0, 1), "mask", like, strength=0.0).tolist() == [0.0, 0.0, 0.0], "γ = 0 masks nothing"


# --- FedRep ---------------------------------------------------------------------------------------------------------


def test_fedrep_trains_the_head_on_a_still_body_then_the_body_under_a_still_head():
    method, data = FedRep(), image_data(1)
    server, states, uploads = play(method, task(), TrainOptions(batch=5, momentum=0.0, weight_decay=0.0), data)
    model = method.model(task())
    images, labels = data[0].batch(torch.arange(3).repeat(2)[:5])
    assert data[0].indices.numel() == 3
    # by hand, with torch alone: one epoch is one step of 5 samples (3 wrapped)
    from fedbm.engine.local_training import epoch_plan
    from fedbm.utils.seeds import torch_rng

    for phase, parts in ((0, ("head",)), (1, ("body",))):
        trained = [p for _, p in train_only(model, parts)]
        plan = epoch_plan(3, 5, torch_rng(0, "client", 1, 0, phase, 0, "order"))
        images, labels = data[0].batch(plan[0])
        loss = F.cross_entropy(model(images), labels)
        for p, g in zip(trained, torch.autograd.grad(loss, trained), strict=True):
            p.data -= 0.01 * g
        if phase == 0:
            assert torch.equal(model.body.bn.running_mean, torch.zeros(6)), "the frozen body's statistics stay"
    assert torch.allclose(server["body.conv.weight"], model.body.conv.weight, atol=1e-7)
    assert torch.allclose(states[0]["head.weight"], model.head.weight, atol=1e-7)
    assert not torch.equal(server["body.bn.running_mean"], torch.zeros(6))
    assert all(name.startswith("body.") for name in uploads[0].state), "the head is in no upload"
    assert all(name.startswith("body.") for name in server)


def test_fedrep_scores_the_mean_head_or_lets_heads_vote():
    server, clients = (
        {"body.w": torch.zeros(1)},
        {
            1: {"head.weight": torch.tensor([1.0])},
            5: {"head.weight": torch.tensor([3.0]), "optimizer.0.momentum_buffer.head.weight": torch.tensor([9.0])},
        },
    )
    [mean] = FedRep().global_states(server, clients)
    assert mean == {"body.w": torch.zeros(1), "head.weight": torch.tensor([2.0])}
    vote = FedRep(common_head="vote")
    assert vote.ensemble
    assert [s["head.weight"].item() for s in vote.global_states(server, clients)] == [1.0, 3.0]


# --- FedBN ----------------------------------------------------------------------------------------------------------


def test_fedbn_by_hand():
    """One round: all but BatchNorm is FedAvg's mean of the uploads; what each client trained of it stays there."""
    fedavg, _, trained = play(FedAvg(), task(), TRAIN, image_data(2))
    server, states, uploads = play(FedBN(), task(), TRAIN, image_data(2))
    shared = {"body.conv.weight", "body.conv.bias", "head.weight", "head.bias"}
    assert set(server) == set(uploads[0].state) == shared
    assert all(torch.equal(server[name], fedavg[name]) for name in shared)
    for client in (0, 1):
        assert set(states[client]) == {name for name in fedavg if ".bn." in name}
        assert all(torch.equal(value, trained[client].state[name]) for name, value in states[client].items())
    found = list(FedBN().global_states(server, states))
    assert [set(state) for state in found] == [set(fedavg)] * 2
    assert torch.equal(found[1]["body.bn.running_var"], states[1]["body.bn.running_var"])
    assert not FedBN().common_model


def test_fedbn_with_one_client_is_fedavg():
    server, states, _ = play(FedBN(), task(), TRAIN, image_data(1), rounds=3)
    plain, _, _ = play(FedAvg(), task(), TRAIN, image_data(1), rounds=3)
    whole = FedBN().personal_state(server, states[0])
    assert whole.keys() == plain.keys()
    assert all(torch.equal(whole[name], plain[name]) for name in plain)


def test_fedbn_needs_batch_norm():
    with pytest.raises(FedBMError, match="^FedBN needs a body with BatchNorm layers; without them it is FedAvg"):
        FedBN().model(linear_task(2, 3))


# --- FedROD ---------------------------------------------------------------------------------------------------------


def rod():
    method = FedROD()
    model = method.model(task())
    context = method.start_client(
        model, method.server_init(model), method.client_init(task(), None), Facts(0, 4, (3, 1, 0))
    )
    images, _ = image_data(1)[0].batch(torch.arange(3))
    return method, model, context, Batch(images, torch.tensor([0, 1, 0]))


def test_fedrod_losses_by_hand():
    method, model, context, batch = rod()
    train_only(model, ("body", "head", "personal"))
    model.eval()
    terms = method.loss(model, batch, context)
    features = model.body(batch.images)
    generic = model.head(features)
    balanced = generic + torch.tensor([math.log(3), 0.0, -math.inf])
    assert terms["generic"].item() == pytest.approx(F.cross_entropy(balanced, batch.labels).item(), abs=1e-6)
    personal = F.cross_entropy(generic + model.personal(features), batch.labels)
    assert terms["personal"].item() == pytest.approx(personal.item(), abs=1e-6)


def test_fedrods_personal_loss_reaches_the_personal_head_alone():
    method, model, context, batch = rod()
    train_only(model, ("body", "head", "personal"))
    method.loss(model, batch, context)["personal"].backward()
    assert {n for n, p in model.named_parameters() if p.grad is not None} == {"personal.weight", "personal.bias"}
    model.zero_grad()
    method.loss(model, batch, context)["generic"].backward()
    assert {n.partition(".")[0] for n, p in model.named_parameters() if p.grad is not None} == {"body", "head"}


def test_fedrods_personal_head_changes_no_global_score():
    method = FedROD()
    model = method.model(task())
    server = method.server_init(model)
    images, _ = image_data(1)[0].batch(torch.arange(3))
    [state] = method.global_states(server, {0: {"personal.weight": torch.full((3, 6), 50.0)}})
    load_state(model, state)
    model.eval()
    assert torch.equal(model(images), model.head(model.body(images)))
    load_state(model, method.personal_state(server, {"personal.bias": torch.tensor([0.0, 0.0, 99.0])}))
    assert model(images).argmax(1).tolist() == [2, 2, 2]


def test_a_client_with_one_class_has_no_generic_loss_when_absent_classes_are_masked():
    for absent, zero in (("mask", True), ("one", False)):
        method = FedROD(missing_classes=absent)
        model = method.model(task())
        context = method.start_client(model, method.server_init(model), {}, Facts(0, 4, (0, 4, 0)))
        images, _ = image_data(1)[0].batch(torch.arange(3))
        loss = method.loss(model, Batch(images, torch.tensor([1, 1, 1])), context)["generic"].item()
        assert (loss == 0) == zero


# --- FedNH ----------------------------------------------------------------------------------------------------------


def test_fednh_starts_with_orthonormal_rows_and_scale_20():
    head = FedNH().model(task()).head
    assert torch.allclose(head.weight @ head.weight.T, torch.eye(3), atol=1e-6)
    assert head.scale.item() == 20
    assert [name for name, _ in head.named_parameters()] == ["scale"]
    features = torch.tensor([[3.0, 0, 0, 0, 0, 0]])
    assert torch.allclose(head(features), 20 * head.weight[:, 0][None], atol=1e-5)
    with pytest.raises(FedBMError, match="at least as many features as classes, but the body has 2 features for 3"):
        FedNH().model(linear_task(2, 3))


def test_fednh_update_by_hand():
    """ρ = 0.5. Class 0: r = 2·(0,1) + 2·(1,0), n = 4 → norm(½(1,0) + ½(1,1)/√2), at π/8. Class 1: nobody, stays."""
    server = {"head.weight": torch.eye(2), "head.scale": torch.tensor(20.0), "body.w": torch.tensor([0.0])}
    uploads = [
        Upload(
            i,
            n,
            {
                "body.w": torch.tensor([value]),
                "head.scale": torch.tensor(scale),
                "fednh.sums": torch.tensor([sums, [0.0, 0.0]]),
                "fednh.counts": torch.tensor([2.0, 0.0]),
            },
        )
        for i, n, value, scale, sums in ((0, 1, 1.0, 10.0, [0.0, 2.0]), (1, 9, 3.0, 20.0, [2.0, 0.0]))
    ]
    new = aggregate(FedNH(rho=0.5), server, uploads)
    assert torch.allclose(
        new["head.weight"], torch.tensor([[math.cos(math.pi / 8), math.sin(math.pi / 8)], [0.0, 1.0]])
    )
    assert new["body.w"].item() == 2.0, "plain mean, whatever the sizes"
    assert new["head.scale"].item() == 15.0
    at_once = aggregate(FedNH(rho=0.0), server, uploads)["head.weight"]
    assert torch.allclose(at_once, torch.tensor([[0.5**0.5, 0.5**0.5], [0.0, 1.0]])), "it stays where nothing is kept"


def test_fednh_uploads_counts_times_unit_means_and_no_classifier():
    method, data = FedNH(), image_data(2)
    server, _, uploads = play(method, task(), TRAIN, data, rounds=2)
    assert torch.allclose(server["head.weight"].norm(dim=1), torch.ones(3), atol=1e-6), "rows stay unit length"
    for upload, own in zip(uploads, data, strict=True):
        counts = own.labels.bincount(minlength=3)
        assert "head.weight" not in upload.state
        assert torch.equal(upload.state["fednh.counts"], counts.float())
        assert torch.allclose(upload.state["fednh.sums"].norm(dim=1), counts.float(), atol=1e-4)


@pytest.mark.parametrize(("method", "key"), [(FedNH(), "fednh.sums"), (FedProto(), "fedproto.means")])
def test_prototypes_are_taken_in_eval_mode_from_the_trained_body(method, key):
    """By the running statistics, which taking them does not move; a class the client lacks has a row of zeros."""
    [data] = image_data(1)
    labels = torch.tensor([2, 0, 2])
    data = Samples(data.images, labels, data.indices, data.normalise)
    server, states, [upload] = play(method, task(), TrainOptions(batch=4, lr=0.1), [data])
    model = method.model(task())
    load_state(model, {**states[0], **{n: v for n, v in server.items() if n.startswith("body.")}})
    assert int(model.body.bn.num_batches_tracked) == 1, "one batch was trained on"
    model.eval()
    with torch.no_grad():
        features = model.body(data.batch(torch.arange(3))[0])
    if key == "fednh.sums":
        features = F.normalize(features, dim=1)
    expected = torch.stack([features[1], torch.zeros(6), (features[0] + features[2]) / 2])
    if key == "fednh.sums":
        expected = torch.tensor([[1.0], [0.0], [2.0]]) * F.normalize(expected, dim=1)
    assert torch.allclose(upload.state[key], expected, atol=1e-6)


# --- FedProto -------------------------------------------------------------------------------------------------------


def test_fedproto_loss_by_hand():
    method = FedProto(lambda_proto=2.0)
    model = method.model(linear_task(2, 2))
    load_state(model, {"prototypes.value": torch.tensor([[1.0, 1.0], [0.0, 0.0]])})
    model.prototypes.known[0] = True
    batch = Batch(torch.tensor([[3.0, 1.0], [5.0, 5.0]]).view(2, 1, 1, 2), torch.tensor([0, 1]))
    terms = method.loss(model, batch, {})
    # sample 0: ((3−1)² + 0²)/2 = 2; sample 1: its class has no prototype; mean over the batch 1; times λ
    assert terms["prototype"].item() == pytest.approx(2.0)
    logits = model.head(batch.images.flatten(1))
    assert terms["cross_entropy"].item() == pytest.approx(F.cross_entropy(logits, batch.labels).item())


def test_fedproto_prototypes_by_hand():
    """Class 0: (1·2 + 3·6)/4 = 5; class 1: only client 1; class 2: nobody this round, keeps its own."""
    method = FedProto()
    server = {"prototypes.value": torch.tensor([[9.0], [9.0], [7.0]]), "prototypes.known": torch.tensor([0, 0, 1]) > 0}
    uploads = [
        Upload(0, 1, {"fedproto.means": torch.tensor([[2.0], [0], [0]]), "fedproto.counts": torch.tensor([1.0, 0, 0])}),
        Upload(1, 5, {"fedproto.means": torch.tensor([[6.0], [4], [0]]), "fedproto.counts": torch.tensor([3.0, 2, 0])}),
    ]
    new = aggregate(method, server, uploads)
    assert new["prototypes.value"].flatten().tolist() == [5.0, 4.0, 7.0]
    assert new["prototypes.known"].tolist() == [True, True, True]


def test_fedproto_predicts_the_nearest_known_prototype():
    method = FedProto()
    model = method.model(linear_task(2, 3))
    model.prototypes.value.copy_(torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 1.0]]))
    model.prototypes.known.copy_(torch.tensor([True, True, False]))
    images = torch.tensor([[1.0, 1.0], [3.0, 0.0]]).view(2, 1, 1, 2)
    logits = model(images)
    assert torch.allclose(logits[:, :2], torch.tensor([[-2.0, -10.0], [-9.0, -1.0]]), atol=1e-5)
    assert logits[:, 2].tolist() == [-math.inf] * 2


def test_fedproto_sends_no_weights_and_clients_differ():
    method = FedProto()
    server, states, uploads = play(method, task(), TRAIN, image_data(2), rounds=2)
    assert set(server) == {"prototypes.value", "prototypes.known"}
    assert set(uploads[0].state) == {"fedproto.means", "fedproto.counts"}
    assert sum(v.numel() for v in uploads[0].state.values()) == 3 * 6 + 3
    assert not torch.equal(states[0]["body.conv.weight"], states[1]["body.conv.weight"])
    assert len(list(method.global_states(server, states))) == 2


# --- FedETF ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 8, 62])
def test_frame_has_the_simplex_angles(classes):
    frame = simplex_frame(classes, torch.Generator().manual_seed(0)).double()
    expected = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64).fill_diagonal_(1.0)
    assert torch.allclose(frame.T @ frame, expected, atol=1e-6)


def test_fedetf_loss_by_hand_and_frozen_frame():
    method = FedETF()
    model = method.model(task())
    server = method.server_init(model)
    context = method.start_client(model, server, {}, Facts(0, 6, (4, 2, 0)))
    assert model.head.scale.item() == 1, "β starts there"
    model.head.scale.data.fill_(3.0)
    images, _ = image_data(1)[0].batch(torch.arange(3))
    labels = torch.tensor([0, 1, 0])
    model.eval()
    g = F.normalize(model.project(model.body(images)), dim=1)
    logits = 3.0 * g @ model.head.frame + torch.tensor([math.log(4), math.log(2), -math.inf])
    found = method.loss(model, Batch(images, labels), context)["cross_entropy"]
    assert found.item() == pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-6)
    assert torch.allclose(model(images), 3.0 * g @ model.head.frame), "probabilities include β"
    pieces = method.broadcast(server, 4)
    assert pieces["frame"].version == 0
    assert "head.frame" not in pieces["model"].state
    new, _, uploads = play(method, task(), TRAIN, image_data(2))
    assert torch.equal(new["head.frame"], server["head.frame"])
    assert "head.frame" not in uploads[0].state


# --- FedGLCL --------------------------------------------------------------------------------------------------------


def test_fedglcl_logits_by_hand():
    """h = (0.6, 0.8) for features (3, 4): t (h·T_k) with texts (1, 0) and (0, 0.5)."""
    head = TextHead(torch.tensor([[1.0, 0.0], [0.0, 0.5]]), scale=10.0)
    assert torch.allclose(head(torch.tensor([[3.0, 4.0]])), torch.tensor([[6.0, 4.0]]))
    assert not list(head.parameters())


def test_fedglcl_is_fedbm_with_embedding_means_and_no_generator():
    """To the last bit: the same text and scale, three rounds at half participation."""
    train, same = TrainOptions(batch=4, epochs=2), {"rounds": 3, "participation": 0.5}
    theirs, _, _ = play(FedBM(classifier="mean", generator=False, temperature=9.0), task(), train, image_data(), **same)
    ours, _, uploads = play(FedGLCL(logit_scale=9.0), task(), train, image_data(), **same)
    trained = {name for name in theirs if name.startswith(("body.", "project."))}
    assert set(uploads[0].state) == trained
    assert set(ours) == trained | {"head.text"}
    assert all(torch.equal(ours[name], theirs[name]) for name in trained)
    assert torch.equal(ours["head.text"], theirs["head.mean"])


def test_fedglcl_sends_the_texts_once_and_needs_them():
    method = FedGLCL()
    pieces = method.broadcast(method.server_init(method.model(task())), 4)
    assert {name: (piece.version, "head.text" in piece.state) for name, piece in pieces.items()} == {
        "model": (4, False),
        "text": (0, True),
    }
    with pytest.raises(FedBMError, match="^FedGLCL needs concept distributions"):
        method.model(dataclasses.replace(task(), concepts=None))


# --- central --------------------------------------------------------------------------------------------------------


def test_central_is_one_client_at_ratio_one_with_kept_optimiser():
    data = samples([[i % 7, i % 5] for i in range(12)], [i % 3 for i in range(12)])
    train = TrainOptions(batch=4, epochs=2, keep_optimizer=True, participation=1.0)
    one, _, _ = play(FedAvg(), linear_task(2, 3), train, [data], rounds=3)
    all_in_one, _, _ = play(Central(), linear_task(2, 3), train, [data], rounds=3)
    assert all(torch.equal(one[name], all_in_one[name]) for name in one)


def test_central_passes_go_on_over_rounds():
    """n = 10, B = 4: three steps a pass; ⌊2 · 0.5 · 10 / 4⌋ = 2 steps a round."""
    train = TrainOptions(batch=4, epochs=2, participation=0.5)
    rounds = [[(o, e, s.start, s.stop) for o, e, s in central_passes(train, r, 10)] for r in (1, 2, 3, 4)]
    assert rounds == [
        [(1, 0, 0, 2)],
        [(1, 0, 2, 3), (1, 1, 0, 1)],
        [(1, 1, 1, 3)],
        [(2, 0, 0, 2)],
    ]
    [(_, _, steps)] = central_passes(TrainOptions(batch=1, participation=0.29), 1, 100)
    assert steps == slice(0, 29), "0.29 · 100 is 28.999… in floating point"


def test_central_learning_rate_decays_by_its_own_round_or_by_the_pass():
    """Round 2 ends the first pass and begins the second; round 4 is in the third."""
    for each, expected in (
        ("round", [[1.0], [0.5, 0.5], [0.25], [0.125]]),
        ("epoch", [[1.0], [1.0, 0.5], [0.5], [0.25]]),
    ):
        train = TrainOptions(batch=4, epochs=2, participation=0.5, lr=1.0, lr_decay=0.5, lr_decay_every=each)
        chunks = [schedule(Central(), task(), train, round_, Facts(0, 10, (10, 0, 0))) for round_ in (1, 2, 3, 4)]
        assert [[chunk.lr for chunk in some] for some in chunks] == expected


def test_central_rounds_that_share_a_pass_draw_different_numbers():
    """Two steps a round, three a pass: the pass that round 2 ends was begun in round 1."""
    train = TrainOptions(batch=4, epochs=2, participation=0.5)
    rounds = [schedule(Central(), task(), train, round_, Facts(0, 10, (10, 0, 0))) for round_ in (1, 2, 3, 4)]
    seeds = [chunk.rng.initial_seed() for some in rounds for chunk in some]
    assert len(set(seeds)) == len(seeds) == 5


def test_initial_states_agree_where_methods_share_a_part():
    heads = [copy_state(m.model(task()), ("head",))["head.weight"] for m in (FedAvg(), FedRep(), FedROD(), FedProto())]
    assert all(torch.equal(heads[0], head) for head in heads)
    bodies = [copy_state(m.model(task()), ("body",))["body.conv.weight"] for m in (FedAvg(), FedNH(), FedETF())]
    assert all(torch.equal(bodies[0], body) for body in bodies)
