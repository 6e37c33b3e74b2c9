"""JSON objects become dataclasses, and every value is checked by its type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pytest

from fedbm.errors import FedBMError
from fedbm.utils.json_records import JsonRecord, Keys, Length, Range, Scalar, decode

Share = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, eq=False)
class Inner(JsonRecord):
    share: Share


@dataclass(frozen=True, eq=False, kw_only=True)
class Outer(JsonRecord):
    name: str
    inner: Inner
    several: tuple[Inner, ...]
    by_name: Mapping[str, Inner]
    maybe: Share | None
    pair: tuple[float, float]
    later: Share | None = None
    count: Annotated[int, Range(1)] = 1
    sure: bool = False
    kind: Literal["a", "b"] = "a"
    setting: Annotated[Any, Scalar] = ""
    plain: Any = None
    anything: object = None
    names: Annotated[tuple[str, ...], Length("names", least=1)] = ("a",)
    values: Annotated[tuple[Annotated[tuple[float, ...], Length("names")], ...], Length("names")] | None = None
    partly: Annotated[Mapping[str, float], Keys({"share": Share, "whole?": int})] = field(default_factory=dict)


@dataclass(frozen=True)
class Strict:
    refuses_others: ClassVar = True

    choose: str


@dataclass(frozen=True)
class File:
    by_name: Mapping[str, Strict]


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
    assert (found.maybe, found.later, found["name"], found.pair) == (None, None, "a", (1, 2))
    written = asdict(found)
    lists = {key: list(written[key]) for key in ("several", "pair", "names")}
    assert decode(Outer, {**written, **lists, "partly": {"share": 0}}, "file") == {**found, "partly": {"share": 0}}
    with pytest.raises(KeyError):
        found["unknown"]


@pytest.mark.parametrize(
    "change",
    [
        {"count": 3, "sure": True, "kind": "b", "setting": 0.5, "later": 0},
        {"plain": {"a": [1, None, "x"]}, "anything": math.nan},
        {"names": ["x", "y"], "values": [[1, 2], [3, 4]]},
        {"partly": {"other": 7, "share": 0.5, "whole": 3}},
    ],
)
def test_values_are_taken_as_they_are(change: dict[str, Any]) -> None:
    found = decode(Outer, GOOD | change, "file")
    lists = {"names", "values"}
    assert {key: found[key] for key in change.keys() - lists} == {key: change[key] for key in change.keys() - lists}
    assert list(found.partly) == list(change.get("partly", {}))  # in the order of the file


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": 3}, "name must be a text, not 3"),
        ({"name": "\udcff"}, "name must be a text"),
        ({"name": None}, "name must be a text, not null"),
        ({"inner": {}}, "inner.share is missing"),
        ({"inner": {"shares": 1}}, "inner.share is missing, but there is shares"),
        ({"inner": 3}, "inner must be an object with keys, not 3"),
        ({"several": [{"share": 2}]}, r"several\[0\].share must be a number from 0 to 1, not 2"),
        ({"several": {}}, "several must be a list"),
        ({"by_name": {"x": {"share": "a"}}}, "by_name.x.share must be a number"),
        ({"by_name": {"\udcff": {"share": 0}}}, "by_name has a key that is not readable text"),
        ({"maybe": "abc"}, "maybe must be a number"),
        ({"maybe": math.nan}, "maybe must be a number"),
        ({"maybe": True}, "maybe must be a number"),
        ({"later": 2}, "later must be a number from 0 to 1"),
        ({"pair": [1]}, "pair must have 2 entries, not 1"),
        ({"pair": [1, 10**400]}, r"pair\[1\] must be a number"),
        ({"count": 0}, "count must be a whole number from 1, not 0"),
        ({"count": 1.5}, "count must be a whole number from 1"),
        ({"sure": 1}, "sure must be true or false"),
        ({"kind": "c"}, 'kind must be "a" or "b", not "c"'),
        ({"setting": []}, "setting must be a text, a number, true or false"),
        ({"plain": {"x": math.inf}}, "plain must be made of finite numbers and readable text"),
        ({"names": []}, "names must not be empty"),
        ({"names": ["x"], "values": [[1], [2]]}, "values must have 1 entries, not 2"),
        ({"names": ["x"], "values": [[1, 2]]}, r"values\[0\] must have 1 entries, not 2"),
        ({"partly": {"other": 7}}, "partly.share is missing"),
        ({"partly": {"share": 7}}, "partly.share must be a number from 0 to 1"),
        ({"partly": {"share": 0, "whole": 0.5}}, "partly.whole must be a whole number"),
        ({"partly": {"share": 0, "other": "a"}}, "partly.other must be a number"),
    ],
)
def test_the_wrong_key_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(FedBMError, match=f"^file: {words}.*; remove it$"):
        decode(Outer, GOOD | change, "file", "; remove it")


def test_a_value_cannot_pass_for_a_place_in_the_sentence() -> None:
    with pytest.raises(FedBMError, match=r'^file: count must be a whole number from 1, not "{at}"$'):
        decode(Outer, {**GOOD, "count": "{at}"}, "file")


def test_what_is_no_object_is_said_to_be_it() -> None:
    with pytest.raises(FedBMError, match="^file: it must be an object with keys, not 3$"):
        decode(Inner, 3, "file")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"choose": "a", "chose": 1}, r'there is no key by_name.x.chose \(did you mean "choose"\?\)'),
        ({"chose": "a"}, "by_name.x.choose is missing, but there is chose"),
        ({"choose": 1, "y": 1}, "by_name.x.choose must be a text, not 1"),
        ({"choose": "b", "y": 1}, "there is no key by_name.x.y"),
    ],
)
def test_other_keys_are_refused_where_a_class_says_so(value: Any, words: str) -> None:
    with pytest.raises(FedBMError, match=f"^file: {words}$"):
        decode(File, {"by_name": {"x": value}}, "file")


def test_a_type_that_json_does_not_have_is_a_mistake_of_the_programmer() -> None:
    for kind in (set, bytes | None, tuple[complex, ...]):
        with pytest.raises(TypeError, match="JSON cannot be read as"):
            decode(kind, None, "file")  # type: ignore[arg-type]


def test_keys_alone_are_an_object_that_stays_a_dict() -> None:
    kind: Any = Keys({"share": Share, "several?": tuple[Keys({"a": int}), ...]})  # type: ignore[misc]
    assert decode(kind, {"share": 0.5, "more": math.nan}, "file").keys() == {"share", "more"}
    with pytest.raises(FedBMError, match=r"^file: several\[1\].a is missing$"):
        decode(kind, {"share": 0.5, "several": [{"a": 1}, {}]}, "file")


def test_the_first_field_of_the_class_decides_the_length_of_lists() -> None:
    with pytest.raises(FedBMError, match="^file: values must have 1 entries, not 2$"):
        decode(Outer, {"values": [[1, 2], [3, 4]], "names": ["x"], **GOOD}, "file")
