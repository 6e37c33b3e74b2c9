"""A file that was damaged on its way, or edited or merged by hand, reads as before, or is named in one sentence."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_runs import fake_run

from fedbm.cli.commands.list import format_run
from fedbm.cli.console_tables import result_table, run_facts
from fedbm.errors import FedBMError
from fedbm.experiments.outcomes import read_outcomes
from fedbm.report.experiments_report import experiments_report
from fedbm.report.render.markdown import render_markdown
from fedbm.report.runs_report import runs_report
from fedbm.report.write import write_report
from fedbm.runs.run_record import read_record, record_of, write_record
from fedbm.runs.run_view import read_run, read_runs
from fedbm.utils.io import read_json

NEW = (None, "abc", "\udcff", -3, 1.5, math.nan, 1e308, 10**400, True, [1, "x"], [], {}, {"a": 1})
HERE = Path(__file__).parents[2] / "results"
RUNS = ("fedbm-ham10000-s0-4e8a419b8ac3", "central-ham10000-s0-399e8a9313c0")


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Where something stands; of a list, the first."""
    inside = value if isinstance(value, dict) else [0] if isinstance(value, list) and value else ()
    for key in inside:
        yield (key,)
        yield from ((key, *more) for more in places(value[key]))


def damaged(value: Any) -> Iterator[tuple[str, Any]]:
    """Every place in turn without its value, with another in its place, and a list with one too many."""
    for place in places(value):
        old = value
        for key in place:
            old = old[key]
        for new in (KeyError, *NEW, *([[*old, *old[:1]]] if isinstance(old, list) else [])):
            yield f"{place} {new!r:.40}", replaced(value, place, new)


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at *place*, or without one if it is KeyError; the rest is shared with the original."""
    changed = copy.copy(value)
    if len(place) > 1:
        changed[place[0]] = replaced(value[place[0]], place[1:], new)
    elif new is KeyError:
        del changed[place[0]]
    else:
        changed[place[0]] = new
    return changed


def refused(path: Path, read: Callable[[], object], what: str) -> bool:
    """Whether a sentence that names *path* refuses it; anything else that is raised is a fault."""
    try:
        read()
        return False
    except FedBMError as error:
        sentence = str(error)
    except Exception as error:
        error.add_note(what)
        raise
    assert path.name in sentence, what
    assert "\n" not in sentence, what
    return True


def thinned(value: dict[str, Any]) -> dict[str, Any]:
    """A record without most points of its curves and features, which are all alike, and of its environment."""
    value["curves"] = {name: column[-3:] for name, column in value["curves"].items()}
    value["environment"] = {name: value["environment"][name] for name in ("device", "command")}
    if value["features"]:
        value["features"] |= {key: value["features"][key][:3] for key in ("labels", "points")}
    for section in ("data", "train"):
        kept = ("name", "partition", "beta", "clients", "rounds", "seed", "lr")
        value["config"][section] = {key: one for key, one in value["config"][section].items() if key in kept}
    return value


@pytest.mark.parametrize("run", RUNS)
def test_a_damaged_record(tmp_path: Path, run: str) -> None:
    (tmp_path / "runs").mkdir()
    outcome = read_json(HERE / "comparison-ham10000.json")
    (outcome["trials"][0],) = [trial for trial in outcome["trials"] if trial["run"] == run][:1]
    outcome["trials"] = outcome["trials"][:1]
    (tmp_path / "comparison-ham10000.json").write_text(json.dumps(outcome))
    path = tmp_path / "runs" / f"{run}.json"
    value = thinned(read_json(HERE / "runs" / path.name))
    path.write_text(json.dumps(value))
    render_markdown(experiments_report(read_outcomes(tmp_path)))
    count = 0
    for what, changed in damaged(value):
        path.write_text(json.dumps(changed))
        count += refused(path, lambda: render_markdown(experiments_report(read_outcomes(tmp_path))), what)
    assert count > 500


@pytest.mark.parametrize("name", ["comparison-ham10000", "search-ham10000"])
def test_a_damaged_experiment(tmp_path: Path, name: str) -> None:
    value = read_json(HERE / f"{name}.json")
    value["trials"] = [trial for trial in value["trials"] if not trial["run"]][:1]
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(value))
    render_markdown(experiments_report(read_outcomes(tmp_path)))
    for what, changed in damaged(value):
        if "'run') 'abc'" not in what:  # a record that is not there is named itself
            path.write_text(json.dumps(changed))
            refused(path, lambda: render_markdown(experiments_report(read_outcomes(tmp_path))), what)


@pytest.mark.parametrize(
    "name", ["summary.json", "details.json", "environment.json", "partition.json", "features.json", "rounds.jsonl"]
)
def test_a_damaged_file_of_a_run(tmp_path: Path, name: str) -> None:
    run = fake_run(tmp_path, rounds=1, clients=2)
    classes = ["0", "1", "2"]
    features = {"format": 1, "classes": classes, "labels": [0], "points": [[0.5, 1.0]], "anchors": [[1.0, 2.0]] * 3}
    (run / "features.json").write_text(json.dumps(features))
    path = run / name

    def read() -> None:
        seen = read_run(run)
        format_run(run_facts(run))
        result_table([seen])
        record_of(seen)
        render_markdown(runs_report(read_runs([run])))

    read()
    for what, changed in damaged(json.loads(path.read_text())):
        if changed.get("rounds", 1) == 1:  # else it is rounds.jsonl that does not fit
            path.write_text(json.dumps(changed) + "\n")
            refused(path, read, what)


@pytest.mark.parametrize("name", ["details.json", "partition.json"])
def test_a_file_of_another_run(tmp_path: Path, name: str) -> None:
    run, other = fake_run(tmp_path / "a", rounds=1), fake_run(tmp_path / "b", rounds=1, classes=["p", "q", "r", "s"])
    (run / name).write_bytes((other / name).read_bytes())
    with pytest.raises(FedBMError, match="files of different runs: their numbers of classes differ"):
        read_run(run)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Expecting value"),
        (b"\xff", "can't decode"),
        (b'{"format": 1', "Expecting"),
        (b"[" * 100_000, "recursion"),
        (b'{"format": 1, "summary": {}, "summary": {}}', 'the key "summary" occurs twice'),
        (None, "directory"),
    ],
)
def test_what_is_no_json(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "record.json"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(FedBMError, match=words) as caught:
        read_json(path)
    assert "record.json" in str(caught.value)


def test_the_sentence_says_where_and_what(tmp_path: Path) -> None:
    run = read_run(fake_run(tmp_path, rounds=2))
    path = tmp_path / f"{run.id}.json"
    write_record(run, path)
    value = read_json(path)
    value["summary"]["best"]["f1"] = "abc"
    path.write_text(json.dumps(value))
    with pytest.raises(FedBMError, match=r'json: summary\.best\.f1 must be a number from 0 to 1, not "abc"$'):
        read_record(path)


def test_options_of_a_method_of_ones_own_are_not_held_to_those_of_fedbm(tmp_path: Path) -> None:
    options = {"temperature": "hot", "generator": True, "generator_every": "often"}
    run = fake_run(tmp_path, "mine", rounds=2, options=options)
    assert read_run(run).config["method"] == {"name": "mine", **options}
    assert "No run here has generated images" in write_report([run], tmp_path / "page.html").read_text()
