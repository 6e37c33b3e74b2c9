"""Configuration: what is accepted, what is refused and how, and who wins."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import numpy as np
import pytest
from calling import flags
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedbm
from fedbm.cli.flags import read_config
from fedbm.cli.main import parse
from fedbm.config.options import DataOptions, ModelOptions, TrainOptions, check, type_words
from fedbm.errors import FedBMError
from fedbm.methods import METHODS, FedAvg, FedBM
from fedbm.runs.method_comparison import make_grid
from fedbm.runs.run_config import (
    Config,
    check_config,
    keys,
    make_config,
    method_label,
    read_sections,
    recommend,
    to_sections,
    to_toml,
    with_method,
)

FLAGS = {key.flag: key for key in keys()}


@pytest.mark.parametrize(
    ("section", "key", "value", "kept"),
    [
        (TrainOptions, "rounds", "7", 7),
        (TrainOptions, "rounds", 7.0, 7),
        (TrainOptions, "rounds", "1e3", 1000),
        (TrainOptions, "rounds", np.int64(7), 7),
        (DataOptions, "split_seed", str(2**62 + 1), 2**62 + 1),
        (DataOptions, "split_seed", 2**62 + 1, 2**62 + 1),
        (TrainOptions, "lr", "1e-3", 0.001),
        (TrainOptions, "lr", 1, 1.0),
        (TrainOptions, "participation", 1, 1.0),
        (TrainOptions, "keep_optimizer", "Yes", True),
        (TrainOptions, "keep_optimizer", "0", False),
        (TrainOptions, "keep_optimizer", False, False),
        (DataOptions, "channels", "3", 3),
        (DataOptions, "channels", 1, 1),
        (DataOptions, "channels", None, None),
        (DataOptions, "size", None, None),
        (DataOptions, "name", "scans [of 2024] β", "scans [of 2024] β"),
        (ModelOptions, "stem", "3x3", "3x3"),
    ],
)
def test_accepted(section: type, key: str, value: Any, kept: Any) -> None:
    found = check(section, key, value)
    assert found == kept
    assert type(found) is type(kept)


@pytest.mark.parametrize(
    ("section", "key", "value", "sentence"),
    [
        (TrainOptions, "rounds", "0", "rounds must be at least 1, not 0"),
        (TrainOptions, "rounds", "many", 'rounds must be a whole number, not "many"'),
        (TrainOptions, "rounds", 2.5, "rounds must be a whole number, not 2.5"),
        (TrainOptions, "rounds", True, "rounds must be a whole number, not True"),
        (TrainOptions, "rounds", [3], "rounds must be a whole number, not [3]"),
        (TrainOptions, "rounds", None, "rounds must be a whole number, not None"),
        (TrainOptions, "rounds", "", 'rounds must be a whole number, not ""'),
        (TrainOptions, "rounds", 10**400, f"rounds must be a whole number, not 1{'0' * 56}…"),
        (TrainOptions, "lr", 0, "lr must be above 0, not 0"),
        (TrainOptions, "lr", "nan", 'lr must be a number, not "nan"'),
        (TrainOptions, "lr", float("inf"), "lr must be a number, not inf"),
        (TrainOptions, "weight_decay", 1e300, "weight_decay must be at most 1e+30 in size, not 1e+300"),
        (TrainOptions, "participation", "1.01", "participation must be at most 1, not 1.01"),
        (TrainOptions, "optimizer", "adm", 'optimizer must be sgd, adam or adamw, not "adm" (did you mean "adam"?)'),
        (TrainOptions, "optimizer", 3, "optimizer must be sgd, adam or adamw, not 3"),
        (TrainOptions, "keep_optimizer", "maybe", 'keep_optimizer must be yes or no, not "maybe"'),
        (TrainOptions, "keep_optimizer", 1, "keep_optimizer must be yes or no, not 1"),
        (DataOptions, "channels", 2, "channels must be 1 or 3, not 2"),
        (DataOptions, "channels", True, "channels must be 1 or 3, not True"),
        (DataOptions, "size", 12, "size must be at least 16, not 12"),
        (DataOptions, "name", 5, "name must be a text, not 5"),
        (DataOptions, "name", "a\0b", 'name contains a character that cannot be printed: "a\\u0000b"'),
        (DataOptions, "name", "\udcff", 'name contains a character that cannot be printed: "\\udcff"'),
        (FedBM, "temperature", -1, "temperature must be above 0 for fedbm, not -1"),
        (FedBM, "condition", "labels", 'condition must be concepts, noise or noise+label for fedbm, not "labels"'),
    ],
)
def test_refused(section: type, key: str, value: Any, sentence: str) -> None:
    with pytest.raises(FedBMError) as caught:
        check(section, key, value)
    assert str(caught.value) == sentence


def test_numbers_too_long_to_print() -> None:
    with pytest.raises(FedBMError, match="^rounds must be a whole number, not a number that long$"):
        check(TrainOptions, "rounds", 16**9999)
    with pytest.raises(FedBMError, match="^channels must be 1 or 3, not a number that long$"):
        check(DataOptions, "channels", 16**9999)


def test_values_made_in_python_are_checked_too() -> None:
    with pytest.raises(FedBMError, match="temperature must be above 0"):
        with_method(Config(), FedBM(temperature=0))
    with pytest.raises(FedBMError, match="partition = file needs partition_file"):
        check_config(Config(data=DataOptions(partition="file")))
    needless = Config(data=DataOptions(partition="iid", partition_file="p.json"), given=frozenset({"data.partition"}))
    with pytest.raises(FedBMError, match="partition_file only applies if partition is file, but it is iid. Remove"):
        recommend(needless, {})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"trian": {}}, 'x.toml has no section "trian" (did you mean "train"?); there are data, language, model'),
        ({"train": {"ruonds": 1}}, '[train] in x.toml has no key "ruonds" (did you mean "rounds"?)'),
        ({"method": {"name": "fedmb"}}, 'there is no method "fedmb" (did you mean "fedbm"?); choose fedavg'),
        ({"method": {"name": "fedavg", "temperature": 3}}, 'the method fedavg has no key "temperature"'),
        ({"method": {"temprature": 3}}, 'the method fedbm has no key "temprature" (did you mean "temperature"?)'),
        ({"model": {"norm": "bacth"}}, 'norm must be batch or group, not "bacth" (did you mean "batch"?)'),
    ],
)
def test_the_nearest_word_is_offered(values: Any, sentence: str) -> None:
    with pytest.raises(FedBMError) as caught:
        make_config(values, "x.toml")
    assert str(caught.value).startswith(sentence)


def test_flags() -> None:
    assert to_sections({"data": "pbc", "rounds": "3", "method": "fedbm", "temperature": "9"}) == {
        "data": {"name": "pbc"},
        "train": {"rounds": "3"},
        "method": {"name": "fedbm", "temperature": "9"},
    }
    with pytest.raises(FedBMError, match=r'there is no setting "ruonds" \(did you mean "rounds"\?\)'):
        to_sections({"ruonds": 3})
    with pytest.raises(FedBMError, match="temperature is an option of fedbm.*, not of fedavg"):
        to_sections({"method": "fedavg", "temperature": 9})


def test_every_key_has_one_flag_and_a_meaning() -> None:
    assert len(FLAGS) == len(keys())
    assert all(key.meaning and key.switch.startswith("--") and "_" not in key.switch for key in keys())
    assert set(METHODS) == set(FLAGS["method"].methods)


def test_given_wins_over_recommended_wins_over_default() -> None:
    recommends = {"clients": 12, "rounds": 200, "pseudo_batch": 32, "epochs": 10}
    config = recommend(make_config(to_sections({"rounds": 3, "pseudo_batch": 16})), recommends)
    assert config.train.rounds == 3  # given
    assert config.method.pseudo_batch == 16  # given, though it is the default  # type: ignore[attr-defined]
    assert config.data.clients == 12  # recommended
    assert config.train.epochs == 10  # recommended
    assert config.train.batch == TrainOptions().batch  # default
    plain = recommend(make_config(to_sections({"method": "fedavg"})), recommends)
    assert plain.method == FedAvg()  # a recommendation for another method's option is none for this


def test_a_label_names_what_is_not_the_default() -> None:
    assert method_label(FedBM(), {}) == "fedbm"
    changed = FedBM(generator=False, temperature=9.0)
    assert method_label(changed, {"pseudo_batch": 16}) == "fedbm · temperature=9.0, generator=no"


def written(text: str, folder: Path) -> Path:
    (folder / "c.toml").write_text(text, encoding="utf-8")
    return folder / "c.toml"


def same(left: Config, right: Config) -> bool:
    """But for who chose the values."""
    return dataclasses.replace(left, given=frozenset()) == dataclasses.replace(right, given=frozenset())


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "whole number": st.integers(16, 1000),
    "number": st.floats(1e-6, 1, exclude_max=True),
    "yes or no": st.booleans(),
    "text": st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=12),
}


@st.composite
def choices(draw: st.DrawFn) -> dict[str, Any]:
    """Settings a user could give, all acceptable."""
    method = draw(st.sampled_from(sorted(METHODS)))
    owned = get_type_hints(METHODS[method])  # one option may have fewer choices for one method than for another
    known = [key for key in keys() if key.flag != "method" and (not key.methods or method in key.methods)]
    picked = draw(st.lists(st.sampled_from(known), max_size=6, unique_by=lambda key: key.flag))
    made = {}
    for key in picked:
        kind = type_words(owned[key.name]) if key.methods else key.type
        made[key.flag] = draw(VALUES.get(kind, st.sampled_from(kind.split(" | "))))
    return {**made, "method": method}


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices())
def test_toml_and_back(tmp_path: Path, flat: dict[str, Any]) -> None:
    config = make_config(to_sections(flat))
    again = make_config(read_sections(written(to_toml(config), tmp_path)))
    assert same(config, again)
    assert to_toml(again) == to_toml(config)


@pytest.mark.parametrize("method", METHODS)
def test_the_canonical_file_holds_every_key(method: str, tmp_path: Path) -> None:
    text = to_toml(make_config({"method": {"name": method}}))
    for key in keys():
        if not key.methods or method in key.methods:
            assert f"\n{key.name} = " in text or f"\n# {key.name} is not set\n" in text, key.name
    assert same(make_config(read_sections(written(text, tmp_path))), make_config({"method": {"name": method}}))


def refusal(make: Callable[[], Config]) -> str | None:
    """The sentence with which a configuration is refused, or None for one that is whole."""
    try:
        config = make()
        check_config(config)
    except FedBMError as error:
        return str(error)
    tomllib.loads(to_toml(config))
    return None


numbers = st.integers().map(str) | st.floats().map(str) | st.sampled_from(["1e999", "0x10", "1_0", "１"])
odd = st.text(max_size=20) | numbers | st.sampled_from(["", "yes", "file"])


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(sorted(FLAGS)), odd, max_size=4))
def test_any_text_for_any_key_is_a_configuration_or_a_sentence(flat: dict[str, str]) -> None:
    assert refusal(lambda: make_config(to_sections(flat))) != ""


toml_values = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
sections = st.sampled_from(["data", "train", "method", "model"])
names = st.sampled_from([*(key.name for key in keys()), "x"])


@settings(max_examples=150)
@given(st.dictionaries(sections, st.dictionaries(names, toml_values, max_size=3), max_size=3))
def test_any_value_for_any_key_is_a_configuration_or_a_sentence(values: dict[str, dict[str, Any]]) -> None:
    assert refusal(lambda: make_config(values)) != ""


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | st.text("[]{}=\"'#. \nabtrain0_-", max_size=60).map(str.encode))
def test_any_file_is_a_configuration_or_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.toml"
    path.write_bytes(content)
    sentence = refusal(lambda: make_config(read_sections(path), str(path)))
    assert sentence is None or str(path) in sentence or "the method" in sentence


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("rounds = 5", '"rounds" is not a section. Sections begin with a line such as [train].'),
        ("train = 5", '"train" is not a section'),
        ("[[train]]", '"train" is not a section'),
        ("[train", "is not valid TOML: "),
        ("a = " + "[" * 9999, "is not valid TOML: "),
        ("a = " + "9" * 9999, "is not valid TOML: "),
        ("a = '\xff'", "cannot read "),
    ],
)
def test_a_file_that_is_not_understood(content: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(content.encode("latin-1"))
    with pytest.raises(FedBMError) as caught:
        read_sections(tmp_path / "c.toml")
    assert sentence in str(caught.value)
    assert str(tmp_path / "c.toml") in str(caught.value)


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Editors on Windows write it."""
    (tmp_path / "a.toml").write_text("[train]\nrounds = 3\n", encoding="utf-8-sig")
    assert read_sections(tmp_path / "a.toml") == {"train": {"rounds": 3}}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").touch()
    with pytest.raises(FedBMError, match=r'there is no file .*\(did you mean "experiment.toml"'):
        read_sections(tmp_path / "expriment.toml")
    with pytest.raises(FedBMError, match="cannot read .*: Is a directory"):
        read_sections(tmp_path)


def test_what_depends_on_beta_is_recommended_at_that_beta_alone() -> None:
    recommends = {"temperature": {0.05: 17.5, 0.1: 7.5}, "rounds": 200}
    found = [recommend(make_config(to_sections({"beta": beta})), recommends) for beta in (0.05, 0.1, 0.3)]
    assert [config.method.temperature for config in found] == [17.5, 7.5, FedBM().temperature]
    assert [config.train.rounds for config in found] == [200] * 3


@pytest.mark.parametrize("partition", ["iid", "classes", "column"])
def test_a_beta_that_shapes_no_partition_recommends_nothing(partition: str) -> None:
    """Else it would decide τ, though a flag that gives it is refused as one that changes nothing."""
    recommends = {"temperature": {0.05: 17.5, 0.1: 7.5}, "rounds": 200}
    asked = [make_config(to_sections({"beta": beta, "partition": partition})) for beta in (0.05, 0.1)]
    found = [recommend(config, recommends) for config in asked]
    assert [(config.method.temperature, config.train.rounds) for config in found] == [(FedBM().temperature, 200)] * 2
    own = recommend(make_config(to_sections({"beta": 0.05})), {**recommends, "partition": partition})
    assert own.method.temperature == FedBM().temperature


def test_a_dictionary_among_a_methods_fields_can_be_read_again(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Weighted(FedAvg):
        name: ClassVar[str] = "weighted"
        weights: Any = None

    config = Config(method=Weighted(weights={"cyst": [1, {"deep": "yes"}], "odd key ü": None}))
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    kept = read_sections(tmp_path / "config.toml")["method"]["weights"]
    assert kept == {"cyst": [1, {"deep": "yes"}], "odd key ü": ""}


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        (
            {"partition": "iid", "beta": 0.5},
            "beta only applies if partition is dirichlet, balanced or quantity, but it is iid. Remove beta, or",
        ),
        (
            {"shards_per_client": 7},
            "shards_per_client only applies if partition is shards, but it is dirichlet. "
            "Remove shards_per_client, or set partition to shards.",
        ),
        ({"optimizer": "adam", "momentum": 0.5}, "momentum only applies if optimizer is sgd, but it is adam. Remove"),
        (
            {"method": "fedbm", "generator": False, "lambda_dis": 1},
            "lambda_dis only applies if generator is yes, but it is no. Remove",
        ),
        ({"method": "fedavg", "encoder": "bert"}, "encoder only applies to methods that read concepts."),
    ],
)
def test_an_argument_without_effect_gets_the_sentence_of_its_flag(
    chosen: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python and the command line refuse the same settings; a file may contain them."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedBMError) as caught:
        fedbm.simulate("digits", **chosen)
    assert str(caught.value).startswith(sentence)
    with pytest.raises(FedBMError) as typed:
        recommend(read_config(parse(["run", *map(str, flags(chosen))])), {})
    assert str(typed.value) == str(caught.value)
    recommend(make_config(to_sections(chosen)), {})


def test_one_method_that_reads_concepts_is_enough_in_a_comparison() -> None:
    configs = make_grid({}, {"encoder": "bert"}, ["fedavg", "fedbm"], [None], [0])
    for config in configs:
        recommend(config, {})
    assert [config.language.encoder for config in configs] == ["bert", "bert"]
