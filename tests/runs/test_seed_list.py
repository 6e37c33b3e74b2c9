"""--seeds: a count, a range, or a list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedbm.config.options import MAX_SEED
from fedbm.errors import FedBMError
from fedbm.runs.run_config import make_config
from fedbm.runs.seed_list import parse_seeds


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
        ("500-501", (500, 501)),
        (f"0,{MAX_SEED}", (0, MAX_SEED)),
    ],
)
def test_seeds(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds
    assert parse_seeds(seeds) == seeds
    assert make_config({"train": {"seed": seeds[-1]}}).train.seed == seeds[-1], "every seed is also one of fedbm run"


def test_a_number_in_python_is_a_count_and_a_list_has_the_seeds() -> None:
    assert parse_seeds(3) == (0, 1, 2)
    assert parse_seeds(np.int64(3)) == (0, 1, 2)
    assert parse_seeds([500]) == (500,)
    assert parse_seeds(np.arange(2)) == (0, 1)
    with pytest.raises(FedBMError, match='such as 0,1,5, each at most .*, not "2.5"'):
        parse_seeds(2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "seeds",
    ["0", "", "100", "three", "-3", "3-", "1,,2", "5-3", "1,1-2", "0,0", "²", "0-99", f"0-{MAX_SEED}", "0,4294967296"],
)
def test_bad_seeds_get_one_sentence(seeds: str) -> None:
    with pytest.raises(FedBMError) as caught:
        parse_seeds(seeds, "--seeds")
    assert str(caught.value) == (
        "--seeds must be a count from 1 to 99, a range such as 3-12 or a list of up to 99 different seeds such as "
        f'0,1,5, each at most 4294967295, not "{seeds}"'
    )


@pytest.mark.parametrize("seeds", [[3, 3], [0, 1.5], [], [-1], [True, False], [MAX_SEED + 1], 0, -1, True])
def test_a_bad_list_is_repeated_as_it_was_given(seeds: Any) -> None:
    words = ",".join(map(str, seeds)) if isinstance(seeds, list) else str(seeds)
    with pytest.raises(FedBMError, match=f'^seeds must be a count .*, not "{words}"$'):
        parse_seeds(seeds)


def test_the_largest_seed_of_a_run() -> None:
    with pytest.raises(FedBMError, match="seed must be at most 4294967295, not 4294967296"):
        make_config({"train": {"seed": MAX_SEED + 1}})
