"""fedbm.reproduce(): an experiment from Python, with its records, as one object."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedbm
from fedbm.engine.round_loop import Event
from fedbm.errors import FedBMError
from fedbm.experiments import reproduction
from fedbm.experiments.outcomes import Outcome, read_outcome
from fedbm.runs import batch
from fedbm.runs.plan import make_plan
from fedbm.runs.run_config import Config
from fedbm.runs.runner import run


@pytest.fixture
def grid(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a grid of FedAvg and FedProx, and change to its folder."""
    own = {key: value for key, value in tiny.items() if key not in ("device", "threads", "method")}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**own, "rounds": 2}.items()]
    path = tmp_path / "grid.toml"
    axes = '[axes]\nmethod = ["fedavg", "fedprox"]\nbeta = [0.1]'
    path.write_text("\n".join(['title = "A <grid>"', "[all]", *lines, axes, ""]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return path


def test_a_grid_is_run_recorded_and_shown(grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: set[str] = set()
    found = fedbm.reproduce(
        grid, seeds=1, only=["FedAvg"], device="cpu", on_event=lambda title, event: titles.add(title)
    )
    assert titles == {"FedAvg, beta 0.1, seed 0"}
    assert repr(found) == "Reproduction(grid: 1 of 2 results)"
    assert [run.method for run in found.runs] == ["fedavg"]
    (outcome,) = found.outcomes
    assert read_outcome(Path("results/grid.json")).results[0].state == outcome.results[0].state == "finished"
    page = found._repr_html_()
    assert "A &lt;grid&gt;" in page
    assert "<td>FedProx</td><td>0.1</td><td>0 of 1</td><td>–</td>" in page
    fake = ModuleType("pandas")
    fake.DataFrame = list  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", fake)
    rows = found.to_pandas()
    assert [(row["row"], row["beta"], row["status"]) for row in rows] == [
        ("FedAvg", 0.1, "finished"),
        ("FedProx", 0.1, "not run"),
    ]
    assert rows[0]["run"] == found.runs[0].id
    assert fedbm.write_report(found, "page.html").read_text(encoding="utf-8").count("A &lt;grid&gt;")
    monkeypatch.setattr(batch, "run_all", None)  # nothing remains to be run
    again = fedbm.reproduce(str(grid), seeds=1, only=["FedAvg"], device="cpu")
    assert [run.id for run in again.runs] == [run.id for run in found.runs]


def test_a_finished_run_is_on_record_while_others_run(grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed command, or a full disk later on, cannot take it away."""

    def one_after_the_other(configs: Sequence[Config], **_: Any) -> Iterator[tuple[int, Event]]:
        for number, config in enumerate(configs):
            for event in run(make_plan(config)):
                yield number, event

    known: list[tuple[str, int, int]] = []

    def count_records(title: str, event: Event) -> None:
        if event.record is not None:
            known.append((title.partition(",")[0], event.round, len(list(Path("results/runs").glob("*.json")))))

    monkeypatch.setattr(batch, "run_all", one_after_the_other)
    fedbm.reproduce(grid, seeds=1, device="cpu", on_event=count_records)
    assert known == [("FedAvg", 1, 0), ("FedAvg", 2, 0), ("FedProx", 1, 1), ("FedProx", 2, 1)]
    assert len(list(Path("results/runs").glob("*.json"))) == 2


def test_a_record_that_cannot_be_written_stops_no_run(grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(outcome: Outcome, folder: Path) -> Path:
        raise FedBMError("the disk is full")

    monkeypatch.setattr(reproduction, "write_outcome", fail)
    with pytest.raises(FedBMError, match="^the disk is full$"):
        fedbm.reproduce(grid, seeds=1, device="cpu")
    assert len(list(Path("runs").glob("*/summary.json"))) == 2


def test_a_spent_budget_is_reported(grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "run_all", lambda configs, **_: (one for one in ()))
    found = fedbm.reproduce(grid, seeds=1, budget="0s", device="cpu")
    assert found.stopped.startswith("The budget is spent. Run the same command again to continue")
    assert found.stopped in found._repr_html_()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"name": "modulse"}, 'there is no experiment "modulse" (did you mean "modules"?)'),
        ({"name": "modules", "data_dir": "nowhere"}, "nowhere is not a folder"),
        ({"name": "modules", "budget": "soon"}, 'a budget must be a time such as 25m, 90s or 1h30m, not "soon"'),
        ({"name": "modules", "only": ["beta=7"]}, 'only: no run has beta = "7"; choose 0.05 or 0.1'),
        ({"name": "nowhere.toml"}, "there is no file nowhere.toml"),
        ({"name": "modules", "only": ["nothing"]}, 'only: no run has row = "nothing"'),
        ({"name": "modules", "only": ["beat=1"]}, 'only: no run has the setting "beat" (did you mean "beta"?)'),
        ({"name": "confirmation", "seeds": [0]}, "plans the seeds 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 only. Choose among"),
        ({"name": "modules", "seeds": [1, 1]}, "seeds must be a count from 1 to 99"),
        ({"name": "modules", "rounds": 3}, "rounds is not a key of [engine], and the experiment decides it"),
        ({"name": []}, "name an experiment"),
        ({"name": "modules", "callbacks": [print]}, "callbacks must be objects of subclasses of fedbm.Callback"),
    ],
)
def test_mistakes(given: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBM_HOME", str(tmp_path))
    with pytest.raises(FedBMError) as caught:
        fedbm.reproduce(**given)
    assert sentence in str(caught.value)
    assert "--" not in str(caught.value), "the names of arguments, not of flags"


class Stop(fedbm.Callback):
    def on_end(self, run: fedbm.RunInfo, finished: bool) -> None:
        raise ValueError(f"{run.settings['method']['name']} {finished}")


def test_callbacks_and_progress_as_in_a_comparison(
    grid: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records of finished runs are written although a callback failed."""
    with pytest.raises(FedBMError, match="Stop.on_end failed: ValueError: fedavg True. The run is saved."):
        fedbm.reproduce(grid, seeds=1, only=["FedAvg"], device="cpu", callbacks=[Stop()], progress=True)
    assert len(list(Path("results/runs").glob("*.json"))) == 1
    shown = capsys.readouterr().out
    assert "FedAvg, beta 0.1, seed 0 round 2/2" in shown
    assert "\nrecords: results/grid.json\n" in shown


def test_absent_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBM_HOME", str(tmp_path))
    with pytest.raises(FedBMError, match="no run can be computed here: the images of"):
        fedbm.reproduce("language-models", seeds=1)
