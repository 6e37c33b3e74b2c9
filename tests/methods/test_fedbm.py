"""FedBM: its parts, its losses and gradients, its ablations, and that stripped of both ideas it is FedAvg."""

import pytest
import torch
from small import TinyBody, image_data, play, task

from fedbm.config.options import TrainOptions
from fedbm.engine.local_training import plain_steps
from fedbm.errors import FedBMError
from fedbm.methods import FedAvg, FedBM
from fedbm.methods.base import Batch, Facts, copy_state, load_state, move_to, train_only
from fedbm.models.heads import concept_loss
from fedbm.utils.seeds import torch_rng

FAST = {"generator_steps": 3, "generator_batch": 6, "generator_width": 4, "pseudo_batch": 4}
FACTS = Facts(0, 8, (4, 4, 0))


def batch(method, model, received=None, n=5):
    rng = torch.Generator().manual_seed(5)
    images, labels = torch.rand(n, 1, 16, 16, generator=rng), torch.randint(0, 3, (n,), generator=rng)
    like = model.body.conv.weight
    draws = move_to(method.sample_randomness(model, task(), received or {}, 2, torch_rng(0, "draws")), like)
    with torch.no_grad():
        draws |= method.precompute(model, draws, {})
    return Batch(images.to(like.dtype), labels, {name: value[1] for name, value in draws.items()})


def after_training(method):
    """A model, and the server state after one generator training."""
    model = method.model(task())
    server, losses = method.server_step(method.server_init(model), model, task(), method.generator_every, plain_steps)
    return model, server, losses


def received_by_client(method, server):
    return {name: value for piece in method.broadcast(server, 1).values() for name, value in piece.state.items()}


def test_state_names_and_parts():
    method = FedBM(**FAST)
    model = method.model(task())
    server = method.server_init(model)
    assert {name.partition(".")[0] for name in server} == {
        "body",
        "project",
        "head",
        "concepts",
        "generator",
        "generator_round",
    }
    pieces = method.broadcast(server, 3)
    assert set(pieces) == {"model", "concepts"}, "an untrained generator is not sent"
    assert {name.partition(".")[0] for name in pieces["model"].state} == {"body", "project"}
    assert pieces["model"].version == 3
    assert pieces["concepts"].version == 0
    assert set(pieces["concepts"].state) == {"head.mean", "head.variance", "concepts.embeddings"}
    _, server, _ = after_training(method)
    assert method.broadcast(server, 6)["generator"].version == 5
    assert set(method.finish_client(model, None, {}, FACTS)[0]) == set(pieces["model"].state), (
        "only what is trained is sent"
    )


def test_initial_body_is_equal_for_all_methods():
    bodies = [copy_state(method.model(task(seed=4)), ("body",)) for method in (FedAvg(), FedBM(**FAST))]
    assert all(torch.equal(bodies[0][name], bodies[1][name]) for name in bodies[0])
    other = copy_state(FedAvg().model(task(seed=5)), ("body",))
    assert not torch.equal(bodies[0]["body.conv.weight"], other["body.conv.weight"])


def test_local_loss_is_lkcc_over_real_and_generated_images_in_one_pass():
    method = FedBM(**FAST)
    model, server, _ = after_training(method)
    received = received_by_client(method, server)
    method.start_client(model, received, {}, FACTS)
    train_only(model, ("body", "project"))
    step = batch(method, model, received)
    terms = method.loss(model, step, {})
    draws = step.draws
    with torch.no_grad():
        z = model.concepts.embeddings[draws["pseudo.labels"]].mean(1)
        deviation = model.concepts.embeddings[draws["pseudo.labels"]] - z[:, None]
        z = z + torch.einsum("bm,bmd->bd", draws["pseudo.prompts"], deviation) / 3**0.5 + 0.01 * draws["pseudo.noise"]
        pictures = model.generator(z)
        seen = torch.nn.functional.pad(pictures, (4, 4, 4, 4))[:, :, draws["pseudo.rows"]][..., draws["pseudo.columns"]]
        images = torch.cat([step.images, (seen - 0.5) / 0.25])
        h = torch.nn.functional.normalize(model.project(model.body(images)), dim=1)
        labels = torch.cat([step.labels, draws["pseudo.labels"]])
        expected = concept_loss(h, labels, model.head.mean, model.head.variance, 12.5)
    assert torch.allclose(terms["cross_entropy"], expected["cross_entropy"], atol=1e-6)
    assert torch.allclose(terms["variance"], expected["variance"], atol=1e-6)


def test_images_in_statistics_alone_change_batch_norm_and_not_the_loss():
    """The loss is the mean over the real rows of the joint forward pass, worked by hand."""
    method = FedBM(pseudo_in="statistics", **FAST)
    model, server, _ = after_training(method)
    received = received_by_client(method, server)
    method.start_client(model, received, {}, FACTS)
    train_only(model, ("body", "project"))
    step = batch(method, model, received)
    terms = method.loss(model, step, {})
    running = model.body.bn.running_mean.clone()
    with torch.no_grad():
        images = torch.cat([step.images, model.look(step.draws["pseudo.images"], step.draws)])
        x = model.body.conv(images)
        mean, variance = x.mean(dim=(0, 2, 3), keepdim=True), x.var(dim=(0, 2, 3), correction=0, keepdim=True)
        features = ((x - mean) / (variance + 1e-5).sqrt()).relu().mean(dim=(2, 3))[:5]  # affine: 1 and 0 at the start
        h = torch.nn.functional.normalize(model.project(features), dim=1)
        expected = concept_loss(h, step.labels, model.head.mean, model.head.variance, 12.5)
        real_alone = model.loss(step.images, step.labels)
    for name in ("cross_entropy", "variance"):
        assert torch.allclose(terms[name], expected[name], atol=1e-5)
        assert not torch.allclose(terms[name], real_alone[name], atol=1e-5)
    assert torch.allclose(running, 0.1 * mean.flatten(), atol=1e-6), "running statistics see all images"


def test_images_in_statistics_alone_have_no_effect_on_frozen_batch_norm():
    """The first generator is trained in round 2; from then on BatchNorm is frozen: as if there were no generator."""
    data, train = image_data(3), TrainOptions(batch=4, freeze_batchnorm_after=2)
    options = {**FAST, "generator_every": 2, "pseudo_in": "statistics"}
    found = [play(method, task(), train, data, 4)[0] for method in (FedBM(**options), FedBM(generator=False))]
    assert all(torch.allclose(value, found[0][name], atol=1e-6) for name, value in found[1].items())
    thawed = play(FedBM(**options), task(), TrainOptions(batch=4), data, 4)[0]
    without = play(FedBM(generator=False), task(), TrainOptions(batch=4), data, 4)[0]
    assert not torch.allclose(thawed["body.bn.running_mean"], without["body.bn.running_mean"], atol=1e-3)


def test_no_pseudo_images_before_the_first_generator():
    method = FedBM(**FAST)
    model = method.model(task())
    received = received_by_client(method, method.server_init(model))
    assert method.sample_randomness(model, task(), received, 2, torch_rng(0, "x")) == {}
    assert method.server_step(method.server_init(model), model, task(), 4, plain_steps)[1] == {}


def test_generator_training_touches_the_generator_alone():
    method = FedBM(**FAST)
    before = method.server_init(method.model(task()))
    _, after, losses = after_training(method)
    assert set(losses) == {"semantic", "diversity", "distribution"}
    assert all(loss > 0 for loss in losses.values())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed, "the generator was trained"
    assert {name.partition(".")[0] for name in changed} == {"generator", "generator_round"}
    assert int(after["generator_round"]) == 5
    again = after_training(method)[1]
    assert all(torch.equal(after[name], again[name]) for name in after), "same seed, same generator"


def test_generator_training_lowers_its_loss():
    method = FedBM(**{**FAST, "generator_steps": 80, "generator_batch": 16, "generator_lr": 1e-2})
    model = method.model(task())
    draws = {name: value[0] for name, value in model.draw_pseudo(1, 32, torch_rng(9)).items()}
    train_only(model, ("generator",))
    first = float(sum(method.generator_loss(model, draws).values()).detach())
    method.server_step(method.server_init(model), model, task(), method.generator_every, plain_steps)
    assert float(sum(method.generator_loss(model, draws).values()).detach()) < 0.9 * first


@pytest.mark.parametrize("condition", ["concepts", "noise", "noise+label"])
@pytest.mark.parametrize("classifier", ["distribution", "mean", "random", "trained"])
def test_gradients_of_local_and_generator_loss(classifier, condition):
    """In float64, with respect to every parameter each of them trains."""
    method = FedBM(classifier=classifier, condition=condition, **{**FAST, "pseudo_batch": 3, "generator_batch": 4})
    model = method.model(task()).double()
    received = {**received_by_client(method, method.server_init(model)), "generator_round": torch.tensor(5)}
    step = batch(method, model, received, n=3)
    parts = method.phases(1)[0].train
    for parts_, loss in (
        (parts, lambda: sum(method.loss(model, step, {}).values())),
        (("generator",), lambda: sum(method.generator_loss(model, step.draws).values())),
    ):
        trained = train_only(model, parts_)
        for module in model.modules():  # running statistics must not move between evaluations
            module.training = False
        loss().backward()
        rng = torch.Generator().manual_seed(2)
        for _, parameter in trained:
            direction = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
            slope = float((parameter.grad * direction).sum())
            differences = []
            for size in (1e-6, 1e-7, 1e-8):  # a larger step may cross a kink of a ReLU, a smaller one is noisier
                with torch.no_grad():
                    parameter += size * direction
                    above = float(loss())
                    parameter -= 2 * size * direction
                    differences.append((above - float(loss())) / (2 * size))
                    parameter += size * direction
            assert any(d == pytest.approx(slope, rel=1e-4, abs=1e-7) for d in differences)
            parameter.grad = None


def test_without_both_ideas_it_is_fedavg_to_the_bit():
    plain, stripped = FedAvg(), FedBM(classifier="trained", generator=False)
    assert not stripped.needs_concepts
    a, b = plain.model(task()), stripped.model(task())
    assert list(a.state_dict()) == list(b.state_dict())
    assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))
    step = batch(plain, a)
    for method, model in ((plain, a), (stripped, b)):
        train_only(model, method.phases(1)[0].train)
        sum(method.loss(model, step, {}).values()).backward()
    assert torch.equal(a.body.conv.weight.grad, b.body.conv.weight.grad)


def test_random_classifier_is_fedavgs_head_frozen():
    method = FedBM(classifier="random", generator=False)
    model = method.model(task())
    assert torch.equal(model.head.weight, FedAvg().model(task()).head.weight)
    assert method.phases(2) == ((2, ("body",)),)
    assert set(method.broadcast(method.server_init(model), 1)["concepts"].state) == {"head.weight", "head.bias"}


def test_mean_classifier_has_no_variance():
    head = FedBM(classifier="mean", generator=False).model(task()).head
    assert torch.equal(head.mean, task().concepts.mean)
    assert not bool(head.variance.any())


@pytest.mark.parametrize(("condition", "wide"), [("concepts", 5), ("noise", 5), ("noise+label", 8)])
def test_conditions(condition, wide):
    method = FedBM(condition=condition, **FAST)
    model, server, _ = after_training(method)
    assert model.generator.expand.in_features == wide
    assert ("concepts.embeddings" in server) == (condition == "concepts")
    load_state(model, server)
    gallery = method.sample_images(model, task(), 3)
    if condition == "noise":
        assert gallery is None
    else:
        assert gallery.shape == (3, 3, 1, 16, 16)


def test_noise_and_label_is_noise_beside_a_one_hot_label_and_noise_alone_is_noise():
    draws = {"pseudo.labels": torch.tensor([2, 0]), "pseudo.noise": torch.tensor([[1.0, 2, 3, 4, 5], [6, 7, 8, 9, 0]])}
    [z, alone] = [FedBM(condition=c, **FAST).model(task()).generate(draws)[1] for c in ("noise+label", "noise")]
    assert z.tolist() == [[1, 2, 3, 4, 5, 0, 0, 1], [6, 7, 8, 9, 0, 1, 0, 0]]
    assert torch.equal(alone, draws["pseudo.noise"])


def test_gallery_needs_a_trained_generator():
    method = FedBM(**FAST)
    assert method.sample_images(method.model(task()), task(), 3) is None
    assert FedBM(generator=False).sample_images(method.model(task()), task(), 3) is None


def test_group_norm_has_no_statistics():
    class GroupBody(TinyBody):
        def __init__(self):
            super().__init__()
            self.bn = torch.nn.GroupNorm(2, 6)

    for options in ({}, {"pseudo_in": "statistics", "lambda_dis": 0}):
        with pytest.raises(FedBMError, match="set lambda_dis = 0 and pseudo_in = loss$"):
            FedBM(**options, **FAST).model(task(make_body=GroupBody))
    _, _, losses = after_training(FedBM(lambda_dis=0, **FAST))
    assert set(losses) == {"semantic", "diversity"}
    assert FedBM(lambda_dis=0, **FAST).model(task(make_body=GroupBody)) is not None


def test_terms_with_weight_zero_are_left_out():
    assert set(after_training(FedBM(lambda_div=0, **FAST))[2]) == {"semantic", "distribution"}


def test_concepts_are_required_where_they_are_used():
    bare = task()
    bare = type(bare)(**{**vars(bare), "concepts": None})
    with pytest.raises(FedBMError, match="needs concept distributions"):
        FedBM(**FAST).model(bare)
