"""JSON objects become dataclasses, and every field is checked by its type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import pytest

from fedbm.errors import FedBMError
from fedbm.utils.schema import each, number
from fedbm.utils.typed_json import JsonRecord, decode, schema_of

Share = Annotated[float, number(0, 1)]


@dataclass(frozen=True, eq=False)
class Inner(JsonRecord):
    share: Share


@dataclass(frozen=True, eq=False)
class Outer(JsonRecord):
    name: str
    inner: Inner
    several: tuple[Inner, ...]
    by_name: Mapping[str, Inner]
    maybe: Share | None
    pair: Annotated[tuple[float, ...], each(number(), 2)]
    later: Share | None = None


GOOD: dict[str, Any] = {
    "name": "a",
    "inner": {"share": 0.5},
    "several": [{"share": 0.1}, {"share": 1}],
    "by_name": {"x": {"share": 0}},
    "maybe": None,
    "pair": [1, 2],
}


def test_a_good_object_is_built_and_written_again() -> None:
    found = decode(Outer, {**GOOD, "unknown": 3}, "file")
    assert found.several[1].share == 1
    assert found.by_name["x"].share == 0
    assert (found.maybe, found.later, found["name"]) == (None, None, "a")
    assert decode(Outer, {**asdict(found), "several": list(asdict(found)["several"]), "pair": [1, 2]}, "file") == found
    with pytest.raises(KeyError):
        found["unknown"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": 3}, "name must be a text"),
        ({"inner": {}}, "inner.share is missing"),
        ({"several": [{"share": 2}]}, r"several\[0\].share must be a number from 0 to 1"),
        ({"by_name": {"x": {"share": "a"}}}, "by_name.x.share must be a number"),
        ({"maybe": "abc"}, "maybe must be a number"),
        ({"later": 2}, "later must be a number from 0 to 1"),
        ({"pair": [1]}, "pair must have 2 entries"),
    ],
)
def test_the_wrong_key_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(FedBMError, match=f"^file: {words}"):
        decode(Outer, GOOD | change, "file")


def test_a_type_without_a_schema_is_a_mistake_of_the_programmer() -> None:
    for kind in (int, float | None, tuple[float, ...]):
        with pytest.raises(TypeError, match="no schema for"):
            schema_of(kind)
