"""The prompts, and random fractions of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbm.errors import FedBMError
from fedbm.language.prompts import choose_prompts, make_prompts


def test_prompts_are_six_frames_by_four_media() -> None:
    assert make_prompts("melanoma", "dermatoscopy") == (
        "image of melanoma",
        "photo of melanoma",
        "dermatoscopy image of melanoma",
        "dermatoscopy photo of melanoma",
        "this is image of melanoma",
        "this is photo of melanoma",
        "this is dermatoscopy image of melanoma",
        "this is dermatoscopy photo of melanoma",
        "melanoma presented in image",
        "melanoma presented in photo",
        "melanoma presented in dermatoscopy image",
        "melanoma presented in dermatoscopy photo",
        "the image shows melanoma",
        "the photo shows melanoma",
        "the dermatoscopy image shows melanoma",
        "the dermatoscopy photo shows melanoma",
        "the image shows the presence of melanoma",
        "the photo shows the presence of melanoma",
        "the dermatoscopy image shows the presence of melanoma",
        "the dermatoscopy photo shows the presence of melanoma",
        "the presence of melanoma in image",
        "the presence of melanoma in photo",
        "the presence of melanoma in dermatoscopy image",
        "the presence of melanoma in dermatoscopy photo",
    )


def test_oct_has_thirty_prompts_and_a_scan_in_every_frame() -> None:
    grid = make_prompts("macular hole", "OCT")
    assert len(grid) == len(set(grid)) == 30
    assert sum("OCT scan" in prompt for prompt in grid) == 6


def test_braces_in_a_concept_are_plain_text() -> None:
    assert make_prompts("{media} {0}", "x-ray")[0] == "image of {media} {0}"


@pytest.mark.parametrize(("concept", "modality", "word"), [(" ", "OCT", "concept"), ("drusen", "", "modality")])
def test_empty_texts_are_refused(concept: str, modality: str, word: str) -> None:
    with pytest.raises(FedBMError, match=word):
        make_prompts(concept, modality)


@pytest.mark.parametrize(
    ("count", "fraction", "kept"),
    [
        (24, 0.25, 6),
        (24, 0.5, 12),
        (24, 0.75, 18),
        (24, 1.0, 24),
        (30, 0.25, 8),
        (30, 0.75, 23),
        (24, 0.01, 2),
    ],
)
def test_fractions_are_rounded(count: int, fraction: float, kept: int) -> None:
    assert len(choose_prompts(count, fraction, seed=0)) == kept


@given(count=st.integers(2, 40), seed=st.integers(0, 2**31), fractions=st.tuples(*[st.floats(0.01, 1.0)] * 2))
def test_fractions_are_sorted_repeatable_and_nested(count: int, seed: int, fractions: tuple[float, float]) -> None:
    small, large = (choose_prompts(count, fraction, seed) for fraction in sorted(fractions))
    assert list(small) == sorted(set(small))
    assert set(small) <= set(large) <= set(range(count))
    assert choose_prompts(count, min(fractions), seed) == small


def test_different_seeds_choose_different_prompts() -> None:
    assert len({choose_prompts(24, 0.5, seed) for seed in range(5)}) == 5
