"""Sizes and durations in words."""

from __future__ import annotations

import pytest

from fedbm.utils.text import format_bytes, format_seconds


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_960, "1.0 MB"), (44_700_000, "44.7 MB"), (3e15, "3000.0 TB")],
)
def test_bytes_in_words(count: float, words: str) -> None:
    assert format_bytes(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.84, "0.84 s"), (9.996, "10.0 s"), (59.96, "1 min 0 s"), (75, "1 min 15 s"), (7380, "2 h 3 min")],
)
def test_seconds_in_words(seconds: float, words: str) -> None:
    assert format_seconds(seconds) == words
