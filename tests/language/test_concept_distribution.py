"""Concept distributions compared with results computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from fedbm.errors import FedBMError
from fedbm.language.concept_distribution import ConceptDistribution, sample_concepts

# Two classes of two prompts in three dimensions. By hand:
#   a: μ = (.5, .5, 0), deviations ±(.5, −.5, 0);   b: μ = (0, .3, .9), deviations ±(0, −.3, .1)
EMBEDDINGS = torch.tensor([[[1.0, 0, 0], [0, 1, 0]], [[0, 0, 1], [0, 0.6, 0.8]]])


def small_concepts() -> ConceptDistribution:
    provenance = {"encoder": "by hand", "prompts": ["image of {c}", "photo of {c}"]}
    return ConceptDistribution.fit(["a", "b"], ["first", "second"], EMBEDDINGS, provenance)


def random_unit(count: int, per_class: int, dim: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(count, per_class, dim, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(drawn, dim=2)


def test_moments_by_hand() -> None:
    concepts = small_concepts()
    torch.testing.assert_close(concepts.mean, torch.tensor([[0.5, 0.5, 0], [0, 0.3, 0.9]]))
    torch.testing.assert_close(concepts.variance, torch.tensor([[0.5, 0.5, 0], [0, 0.18, 0.02]]))
    expected = torch.tensor([[0, 0, 0], [0, 0.18, -0.06], [0, -0.06, 0.02]])
    torch.testing.assert_close(torch.cov(concepts.embeddings[1].T), expected)
    # cos = .5·.3 / (√.5 · √.9) = .15 / √.45
    torch.testing.assert_close(concepts.similarity(), torch.tensor([[1, 0.2236068], [0.2236068, 1]]))


def test_a_sample_by_hand() -> None:
    # b: (0, .3, .9) + 1·(0, −.3, .1) + 2·(0, .3, −.1) + .01·(1, −1, 2) = (.01, .59, .82)
    drawn = small_concepts().sample(
        torch.tensor([1]), eps_prompts=torch.tensor([[1.0, 2.0]]), eps_dim=torch.tensor([[1.0, -1.0, 2.0]])
    )
    torch.testing.assert_close(drawn, torch.tensor([[0.01, 0.59, 0.82]]))


def test_three_prompts_are_scaled_by_root_two() -> None:
    # μ = (⅓, ⅓, ⅓), so √2 along prompt 1 gives μ + (e₁ − μ)·√2/√2 = e₁
    basis = torch.eye(3).expand(2, 3, 3)
    noise = torch.tensor([[2.0**0.5, 0.0, 0.0]])
    drawn = sample_concepts(basis, torch.tensor([0]), noise, torch.zeros(1, 3))
    torch.testing.assert_close(drawn, torch.tensor([[1.0, 0, 0]]))


def test_samples_have_the_expected_mean_and_covariance() -> None:
    concepts = ConceptDistribution.fit(["a", "b"], ["a", "b"], random_unit(2, 4, 3), {})
    count, rng = 200_000, torch.Generator().manual_seed(1)
    drawn = concepts.sample(
        torch.ones(count, dtype=torch.long),
        torch.randn(count, 4, generator=rng),
        torch.randn(count, 3, generator=rng),
    ).double()
    expected = (torch.cov(concepts.embeddings[1].T) + 1e-4 * torch.eye(3)).double()
    spread = expected.diagonal()
    of_mean = (spread / count).sqrt()
    of_covariance = ((spread[:, None] * spread + expected**2) / count).sqrt()  # normal variables
    assert bool(((drawn.mean(0) - concepts.mean[1]).abs() < 5 * of_mean).all())
    assert bool(((torch.cov(drawn.T) - expected).abs() < 5 * of_covariance).all())


@given(seed=st.integers(0, 1000), batch=st.integers(1, 5), count=st.integers(2, 4))
def test_without_noise_a_sample_is_the_class_mean(seed: int, batch: int, count: int) -> None:
    concepts = ConceptDistribution.fit("abcd"[:count], "abcd"[:count], random_unit(count, 3, 4, seed), {})
    labels = torch.randint(count, (batch,), generator=torch.Generator().manual_seed(seed))
    drawn = concepts.sample(labels, torch.zeros(batch, 3), torch.zeros(batch, 4))
    torch.testing.assert_close(drawn, concepts.mean[labels])


def test_samples_have_the_dtype_of_the_embeddings() -> None:
    drawn = sample_concepts(
        EMBEDDINGS.double(), torch.tensor([0, 1]), torch.ones(2, 2).double(), torch.ones(2, 3).double()
    )
    assert drawn.dtype == torch.float64
    assert drawn.shape == (2, 3)


def test_fit_normalises_but_does_not_change_unit_rows() -> None:
    fitted = ConceptDistribution.fit(["a", "b"], ["a", "b"], EMBEDDINGS * 7, {})
    torch.testing.assert_close(fitted.embeddings, EMBEDDINGS)
    again = ConceptDistribution.fit(["a", "b"], ["a", "b"], random_unit(2, 9, 50), {})
    assert torch.equal(
        ConceptDistribution.fit(["a", "b"], ["a", "b"], again.embeddings, {}).embeddings, again.embeddings
    )


@pytest.mark.parametrize(
    ("classes", "texts", "embeddings", "words"),
    [
        (["a", "b"], ["a", "b"], torch.ones(2, 3), "shape"),
        (["a"], ["a", "b"], EMBEDDINGS, "classes: 1, texts: 2"),
        (["a", "a"], ["a", "b"], EMBEDDINGS, 'class "a" occurs twice'),
        (["a"], ["a"], EMBEDDINGS[:1], "at least 2 classes"),
        (["a", "b"], ["a", "b"], EMBEDDINGS[:, :1], "at least 2 classes and 2 prompts"),
        (["a", "b"], ["a", "b"], EMBEDDINGS * float("nan"), "not a number"),
        (["a", "b"], ["a", "b"], EMBEDDINGS * 0, "zero"),
    ],
)
def test_bad_input_is_refused(classes: list[str], texts: list[str], embeddings: Tensor, words: str) -> None:
    with pytest.raises(FedBMError, match=words):
        ConceptDistribution.fit(classes, texts, embeddings, {})


def test_keep_prompts_keeps_embeddings_and_texts() -> None:
    embeddings = random_unit(2, 4, 3)
    whole = ConceptDistribution.fit(["a", "b"], ["a", "b"], embeddings, {"prompts": ["p", "q", "r", "s"]})
    part = whole.keep_prompts([1, 3])
    assert torch.equal(part.embeddings, whole.embeddings[:, [1, 3]])
    assert part.provenance["prompts"] == ["q", "s"]
    with pytest.raises(FedBMError, match="at least 2 classes and 2 prompts"):
        whole.keep_prompts([0])


def test_select_goes_by_name() -> None:
    turned = small_concepts().select(["b", "a"])
    assert turned.texts == ("second", "first")
    assert torch.equal(turned.embeddings, EMBEDDINGS.flip(0))
    with pytest.raises(FedBMError, match='no concept for the class "c", only for a, b: make a concept file'):
        small_concepts().select(["a", "c"])


def test_the_checksum_covers_classes_texts_and_embeddings() -> None:
    one = small_concepts()
    others = [
        ConceptDistribution.fit(["a", "c"], one.texts, EMBEDDINGS, {}),
        ConceptDistribution.fit(one.classes, ["first", "third"], EMBEDDINGS, {}),
        ConceptDistribution.fit(one.classes, one.texts, EMBEDDINGS.flip(1), {}),
    ]
    assert len({one.checksum, *(other.checksum for other in others)}) == 4
    assert ConceptDistribution.fit(one.classes, one.texts, EMBEDDINGS, {"made": "elsewhere"}).checksum == one.checksum


def test_a_saved_file_loads_bit_for_bit_and_saving_is_deterministic(tmp_path: Path) -> None:
    concepts = ConceptDistribution.fit(["é", "b"], ["œdème", "β"], random_unit(2, 5, 33), {"encoder": "x", "n": [1]})
    concepts.save(tmp_path / "one.safetensors")
    concepts.save(tmp_path / "two.safetensors")
    loaded = ConceptDistribution.load(tmp_path / "one.safetensors")
    assert (loaded.classes, loaded.texts, loaded.provenance) == (
        concepts.classes,
        concepts.texts,
        concepts.provenance,
    )
    assert torch.equal(loaded.embeddings, concepts.embeddings)
    assert loaded.checksum == concepts.checksum
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
    (tmp_path / "plain").touch()
    assert (tmp_path / "one.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_half_precision_is_half_the_size_and_unit_length_again(tmp_path: Path) -> None:
    concepts = ConceptDistribution.fit(["a", "b"], ["a", "b"], random_unit(2, 24, 384), {})
    concepts.save(tmp_path / "full.safetensors")
    concepts.save(tmp_path / "half.safetensors", half=True)
    loaded = ConceptDistribution.load(tmp_path / "half.safetensors")
    assert loaded.embeddings.dtype == torch.float32
    torch.testing.assert_close(loaded.embeddings.norm(dim=2), torch.ones(2, 24), atol=1e-6, rtol=0)
    torch.testing.assert_close(loaded.embeddings, concepts.embeddings, atol=1e-4, rtol=2**-10)
    size = {kind: (tmp_path / f"{kind}.safetensors").stat().st_size for kind in ("full", "half")}
    assert size["full"] - size["half"] == pytest.approx(2 * 24 * 384 * 2, abs=64)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").write_bytes(b"")
    save_file({"embeddings": EMBEDDINGS}, str(tmp_path / "bare"))
    save_file({"embeddings": EMBEDDINGS}, str(tmp_path / "odd"), {"concepts": "[]"})
    for name in ("text", "empty", "bare", "odd"):
        with pytest.raises(FedBMError, match=f"{name} is not a FedBM concept file"):
            ConceptDistribution.load(tmp_path / name)
    save_file({"embeddings": EMBEDDINGS}, str(tmp_path / "later"), {"concepts": json.dumps({"format": 99})})
    with pytest.raises(FedBMError, match="another format"):
        ConceptDistribution.load(tmp_path / "later")
    with pytest.raises(FedBMError, match="does not exist"):
        ConceptDistribution.load(tmp_path / "none")


def test_well_separated_concepts_are_reported() -> None:
    tight = torch.tensor([[[1.0, 0.1, 0], [1, -0.1, 0]], [[0.6, 0.8, 0.1], [0.6, 0.8, -0.1]]])
    first, second = ConceptDistribution.fit(["a", "b"], ["one", "two"], tight, {}).describe_separability()
    assert first == "The cosines between the means of the 2 concepts are 0.60 to 0.60, 0.60 on average."
    assert second.startswith("All concepts are well separated")


def test_numbers_are_not_well_separated_concepts() -> None:
    tight = torch.tensor([[[1.0, 0.1, 0], [1, -0.1, 0]], [[0.6, 0.8, 0.1], [0.6, 0.8, -0.1]]])
    _, second = ConceptDistribution.fit(["0", "1"], ["0", "1"], tight, {}).describe_separability()
    assert second.startswith("A language model cannot learn what a class is from a number")


def test_similar_concepts_are_named() -> None:
    near = torch.tensor([[[1.0, 0, 0], [1, 0.01, 0]], [[1, 0.2, 0], [1, 0.21, 0]], [[0, 0, 1], [0, 0.01, 1]]])
    sentences = ConceptDistribution.fit(["A", "a", "z"], ["big a", "small a", "zed"], near, {}).describe_separability()
    assert len(sentences) == 2
    assert '"A" and "a" (0.98)' in sentences[1]
    assert '"z"' not in sentences[1]


def test_equal_texts_are_named() -> None:
    sentences = ConceptDistribution.fit(
        ["a", "b"], ["lesion", "lesion"], EMBEDDINGS[[0, 0]], {}
    ).describe_separability()
    assert any('hardly distinguishes "a" and "b" (1.00)' in sentence for sentence in sentences)


def test_long_lists_are_shortened() -> None:
    names = [f"c{number}" for number in range(6)]
    same = random_unit(1, 3, 4).expand(6, 3, 4)
    sentences = ConceptDistribution.fit(names, names, same, {}).describe_separability()
    assert any("and 10 more;" in sentence for sentence in sentences)  # 15 pairs, 5 of them named
