"""LKCC compared with results computed by hand, its closed form and the bound that it guarantees."""

import math

import pytest
import torch

from fedbm.methods.fedetf import FrameHead
from fedbm.methods.fednh import CosineHead
from fedbm.models.heads import ConceptHead, LinearHead, concept_logits, concept_loss

# Two classes in three dimensions, τ = 2, one sample h = (0.6, 0, 0.8):
#   h·μ_0 = 0.6,  h·μ_1 = 0.8;  h² = (0.36, 0, 0.64);  h²·σ²_0 = 0.36·0.1 = 0.036,  h²·σ²_1 = 0.64·0.5 = 0.32
#   logit_0 = 2·0.6 + ½·4·0.036 = 1.272,   logit_1 = 2·0.8 + ½·4·0.32 = 2.24
MEAN = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
VARIANCE = torch.tensor([[0.1, 0.2, 0.0], [0.0, 0.3, 0.5]], dtype=torch.float64)
H = torch.tensor([[0.6, 0.0, 0.8]], dtype=torch.float64)
TAU = 2.0


def test_logits_by_hand():
    logits = concept_logits(H, MEAN, VARIANCE, TAU)
    assert torch.allclose(logits, torch.tensor([[1.272, 2.24]], dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize(("label", "similarity", "spread"), [(0, 0.6, 0.036), (1, 0.8, 0.32)])
def test_loss_by_hand_and_closed_form(label, similarity, spread):
    terms = concept_loss(H, torch.tensor([label]), MEAN, VARIANCE, TAU)
    log_sum = math.log(math.exp(1.272) + math.exp(2.24))
    assert float(terms["cross_entropy"]) == pytest.approx(log_sum - [1.272, 2.24][label], abs=1e-12)
    assert float(terms["variance"]) == pytest.approx(0.5 * TAU**2 * spread, abs=1e-12)
    assert float(sum(terms.values())) == pytest.approx(log_sum - TAU * similarity, abs=1e-12)


def test_zero_variance_is_plain_cross_entropy_on_the_means():
    labels = torch.tensor([1])
    terms = concept_loss(H, labels, MEAN, torch.zeros_like(VARIANCE), TAU)
    expected = torch.nn.functional.cross_entropy(TAU * H @ MEAN.T, labels)
    assert torch.equal(terms["cross_entropy"], expected)
    assert float(terms["variance"]) == 0


def test_loss_bounds_the_expected_loss_over_drawn_embeddings():
    """E[−log e^{τ h·e_y} / (e^{τ h·e_y} + Σ_{k≠y} E e^{τ h·e_k})] ≤ loss, embeddings from N(μ_k, diag σ²_k)."""
    rng = torch.Generator().manual_seed(3)
    mean = torch.nn.functional.normalize(torch.randn(4, 6, generator=rng, dtype=torch.float64), dim=1)
    variance = 0.05 * torch.rand(4, 6, generator=rng, dtype=torch.float64)
    for label in range(4):
        h = torch.nn.functional.normalize(torch.randn(1, 6, generator=rng, dtype=torch.float64), dim=1)
        bound = float(sum(concept_loss(h, torch.tensor([label]), mean, variance, 5.0).values()))
        draws = mean + variance.sqrt() * torch.randn(200_000, 4, 6, generator=rng, dtype=torch.float64)
        scores = 5.0 * (draws @ h[0])
        others = torch.tensor([k for k in range(4) if k != label])
        negatives = (5.0 * (mean @ h[0]) + 12.5 * (variance @ h[0] ** 2))[others].exp().sum()
        samples = torch.log1p(negatives * torch.exp(-scores[:, label]))
        standard_error = float(samples.std() / math.sqrt(len(samples)))
        assert float(samples.mean()) <= bound + 4 * standard_error
        # The draws agree with the closed-form moment of the Gaussian used above.
        drawn = scores[:, others].exp()
        assert torch.allclose(drawn.mean(0).sum(), negatives, atol=4 * float(drawn.sum(1).std()) / math.sqrt(200_000))


def test_the_bound_is_tight_without_variance():
    """Without variance the bound equals the expected loss."""
    loss = float(sum(concept_loss(H, torch.tensor([0]), MEAN, torch.zeros_like(VARIANCE), TAU).values()))
    assert loss == pytest.approx(math.log1p(math.exp(TAU * (0.8 - 0.6))), abs=1e-12)


def test_head_normalises_features_and_has_no_parameters():
    head = ConceptHead(MEAN, VARIANCE, TAU)
    assert torch.allclose(head(7 * H), concept_logits(H, MEAN, VARIANCE, TAU))
    assert list(head.parameters()) == []
    assert set(head.state_dict()) == {"mean", "variance"}


def test_gradients_of_both_heads():
    features = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([0, 1, 1])
    concept, linear = ConceptHead(MEAN, VARIANCE, TAU), LinearHead(3, 2).double()
    assert torch.autograd.gradcheck(lambda x: sum(concept.loss(x, labels).values()), features)
    assert torch.autograd.gradcheck(lambda x: sum(linear.loss(x, labels).values()), features)


@pytest.mark.parametrize(
    "head",
    [
        LinearHead(4, 3),
        ConceptHead(torch.eye(3, 4), torch.zeros(3, 4), 2.0),
        CosineHead(torch.eye(3, 4)),
        FrameHead(torch.eye(4, 3)),
    ],
    ids=lambda head: type(head).__name__,
)
def test_logits_keep_full_precision_under_autocast(head: torch.nn.Module) -> None:
    features = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    plain = head(features.float())
    with torch.autocast("cpu", torch.bfloat16):
        found = head(features)
    assert found.dtype == torch.float32
    assert torch.equal(found, plain)
