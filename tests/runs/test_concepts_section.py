"""[concepts] in a run's file: what a clinician calls a class, in the user's own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedbm.runs.plan
from fedbm.cli import main
from fedbm.cli.flags import read_config
from fedbm.cli.main import make_parser
from fedbm.errors import FedBMError
from fedbm.language.concept_distribution import ConceptDistribution
from fedbm.runs.plan import make_plan
from fedbm.runs.run_config import make_config, read_sections, to_sections, to_toml

WORDS = {"cyst": "fluid-filled cyst", "polyp": 'sessile "polyp" \\ é'}


def file_of(tmp_path: Path, settings: dict[str, Any], concepts: dict[str, str]) -> Path:
    values = {**to_sections(settings), "concepts": concepts}
    path = tmp_path / "run.toml"
    path.write_text(to_toml(make_config(values)), encoding="utf-8")
    return path


def read_by_run(path: Path) -> Any:
    return read_config(make_parser().parse(["run", str(path), "--seed", "1"]))


def test_the_section_survives_the_way_to_a_file_and_back(tmp_path, tiny) -> None:
    path = file_of(tmp_path, tiny, WORDS)
    assert read_sections(path)["concepts"] == WORDS
    config = make_config(read_sections(path))
    assert config.concepts == WORDS
    assert to_toml(config) == path.read_text(encoding="utf-8")
    assert "[concepts]" not in to_toml(make_config(to_sections(tiny)))


def test_fedbm_run_uses_the_words_of_its_file(tmp_path, tiny) -> None:
    plan = make_plan(read_by_run(file_of(tmp_path, tiny, WORDS)))
    assert plan.config.train.seed == 1
    assert plan.dataset.concepts == (WORDS["cyst"], "normal", WORDS["polyp"])


def test_other_words_are_another_run_where_concepts_matter(tmp_path, tiny, tiny_fedbm, monkeypatch) -> None:
    def embed(classes, texts, *_more: object) -> ConceptDistribution:
        rng = torch.Generator().manual_seed(sum(map(len, texts)))
        return ConceptDistribution.fit(classes, texts, torch.randn(len(classes), 4, 8, generator=rng), {})

    monkeypatch.setattr(fedbm.runs.plan, "build_concepts", embed)

    def run_id(settings: dict[str, Any], concepts: dict[str, str]) -> str:
        return make_plan(make_config({**to_sections(settings), "concepts": concepts})).id

    read = tiny_fedbm | {"concept_file": ""}
    assert run_id(read, WORDS) != run_id(read, {})
    assert run_id(tiny, WORDS) == run_id(tiny, {})


def test_a_file_of_concepts_read_from_other_words_is_refused(tmp_path, tiny_fedbm) -> None:
    """Its embeddings would be used, and the words given passed over."""
    with pytest.raises(FedBMError, match='describes cyst as "fluid-filled cyst", but .* was made from "cyst"'):
        make_plan(read_by_run(file_of(tmp_path, tiny_fedbm, WORDS)))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"encoder": "bert"}, r'encoder is "bert", but .* was made with "made up"'),
        ({"pooling": "cls"}, r'pooling is "cls", but .* was made with ""'),
        ({"encoder_dir": "models"}, r'encoder_dir is "models", but .* was made with ""'),
    ],
)
def test_a_file_of_concepts_and_another_encoder_are_refused(tmp_path, tiny_fedbm, asked, sentence) -> None:
    """None would be asked, and the run's configuration would name one that read nothing."""
    with pytest.raises(FedBMError, match=sentence):
        make_plan(make_config(to_sections({**tiny_fedbm, **asked})))
    saved = to_toml(make_plan(make_config(to_sections({**tiny_fedbm, "encoder": "made up"}))).config)
    (tmp_path / "config.toml").write_text(saved)
    assert make_plan(make_config(read_sections(tmp_path / "config.toml"))).config.language.encoder == "made up"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[concepts]\ncyst = 3",
            r'\[concepts\] in .*run.toml: the description of "cyst" must be a text in quotes, not 3',
        ),
        ("[concepts.cyst]\na = 'b'", 'the description of "cyst" must be a text'),
        ("[concept]\ncyst = 'x'", r'has no section "concept" \(did you mean "concepts"\?\)'),
        (
            "[concepts]\ncysts = 'x'",
            r'concepts name the class "cysts", which scans does not have \(did you mean "cyst"',
        ),
        ("[concepts]\ncyst = ' '", 'the concept text of class "cyst" is empty'),
    ],
)
def test_a_wrong_section_is_refused_in_one_sentence(tmp_path, tiny, text, sentence) -> None:
    path = file_of(tmp_path, tiny, {})
    path.write_text(f"{path.read_text()}\n{text}\n")
    with pytest.raises(FedBMError, match=sentence):
        make_plan(read_by_run(path))


def test_words_outside_of_the_section_are_shown_where_to_go(tmp_path) -> None:
    (tmp_path / "run.toml").write_text("concepts = 'x'")
    with pytest.raises(FedBMError, match='"concepts" is not a section. Sections begin with a line'):
        read_sections(tmp_path / "run.toml")


def test_fedbm_concepts_reads_the_words_of_its_file(tmp_path, monkeypatch, capsys) -> None:
    seen: list[tuple[str, ...]] = []

    def embed(options, classes, texts, modality, seed) -> ConceptDistribution:
        seen.append(tuple(texts))
        rng = torch.Generator().manual_seed(0)
        return ConceptDistribution.fit(classes, texts, torch.randn(len(classes), 4, 8, generator=rng), {})

    monkeypatch.setattr("fedbm.runs.plan.concepts_for", embed)
    path = tmp_path / "run.toml"
    path.write_text('[data]\nname = "digits"\n[concepts]\n"0" = "a ring"\n', encoding="utf-8")
    assert main(["concepts", str(path)]) == 0
    assert main(["concepts", "--data", "digits"]) == 0
    assert (seen[0][0], seen[1][0]) == ("a ring", "the number zero (0)")
    assert seen[0][1:] == seen[1][1:]
    path.write_text('[data]\nname = "digits"\n[concepts]\nnil = "a ring"\n', encoding="utf-8")
    assert main(["concepts", str(path)]) == 2
    assert 'concepts name the class "nil", which digits does not have' in capsys.readouterr().err
