"""--seeds: a count, a range, or a list."""

from __future__ import annotations

import pytest

from fedbm.errors import FedBMError
from fedbm.runs.seed_list import list_seeds, parse_seeds


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("1", (0,)),
        ("3", (0, 1, 2)),
        ("3-12", tuple(range(3, 13))),
        ("7-7", (7,)),
        ("0,1,5", (0, 1, 5)),
        ("5, 0", (0, 5)),
        ("3-5,9", (3, 4, 5, 9)),
        ("98-98", (98,)),
    ],
)
def test_seeds(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds
    assert list_seeds(seeds) == seeds


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0", 'must be a count from 1 to 99, a range such as 3-12 or a list such as 0,1,5, not "0"'),
        ("", "must be a count"),
        ("100", "must be a count"),
        ("three", "must be a count"),
        ("-3", "must be a count"),
        ("3-", "must be a count"),
        ("1,,2", "must be a count"),
        ("5-3", 'the range "5-3" ends before it starts'),
        ("1,1-2", 'seed 1 is named twice in "1,1-2"'),
        ("0,0", "seed 0 is named twice"),
        ("99-99", "the largest seed is 98, not 99"),
    ],
)
def test_bad_seeds_get_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(FedBMError) as caught:
        parse_seeds(text)
    assert str(caught.value).startswith("--seeds")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_list_is_repeated_as_it_was_given() -> None:
    for given, words in (([3, 3], 'named twice in "3,3"'), ([0, 1.5], 'not "0,1.5"'), ([], 'not ""')):
        with pytest.raises(FedBMError, match=f"^seeds.*{words}$"):
            list_seeds(given)  # type: ignore[arg-type]
