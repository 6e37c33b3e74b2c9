"""fedbm.compare(): the same runs as on the command line, in parallel or in this process, as one object."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

import fedbm
from fedbm.config.options import option
from fedbm.engine.round_loop import Event
from fedbm.errors import FedBMError
from fedbm.methods import METHODS
from fedbm.methods.fedavg import FedAvg
from fedbm.methods.fedprox import FedProx
from fedbm.runs import batch, run_config
from fedbm.runs.method_comparison import make_grid
from fedbm.runs.run_config import keys, make_config, to_sections


@pytest.fixture
def shared(tiny: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Settings of small runs, without data and method."""
    own = {key: value for key, value in tiny.items() if key not in ("data", "method")}
    return {**own, "rounds": 2, "out": str(tmp_path / "runs")}


def test_names_run_in_parallel_and_are_read_the_second_time(
    scans: Path, shared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, Event]] = []
    found = fedbm.compare(
        scans, ["fedavg", "fedprox"], betas=[0.1, 0.5], seeds=[1], on_event=lambda *news: seen.append(news), **shared
    )
    assert [(run.method, run.beta, run.seed) for run in found.runs] == [
        ("fedavg", 0.1, 1),
        ("fedprox", 0.1, 1),
        ("fedavg", 0.5, 1),
        ("fedprox", 0.5, 1),
    ]
    assert {title for title, _ in seen} == {f"{m}, β {b}, seed 1" for m in ("fedavg", "fedprox") for b in (0.1, 0.5)}
    assert repr(found) == "Comparison(4 runs of fedavg and fedprox)"
    lines = str(found).splitlines()
    assert lines[0] == "Test scores in %, mean ± std over seeds"
    assert lines[1].split()[:5] == ["data", "partition", "β", "method", "seeds"]
    assert [line.split()[:5] for line in lines[2:4]] == [
        [scans.name, "dirichlet", "0.1", method, "1"] for method in ("fedavg", "fedprox")
    ]
    assert len(lines) == 6
    monkeypatch.setattr(batch, "run_all", None)  # nothing remains to be run
    again = fedbm.compare(str(scans), "fedavg,fedprox", betas=[0.1, 0.5], seeds=[1], **shared)
    assert [run.id for run in again.runs] == [run.id for run in found.runs]
    one = fedbm.compare(str(scans), FedAvg(), betas=[0.1, 0.5], seeds=[1], **shared)
    assert [run.id for run in one.runs] == [run.id for run in found.runs if run.method == "fedavg"]


def test_loaded_data_run_in_this_process(scans: Path, shared: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "run_all", None)
    data = fedbm.load(scans, size=16, channels=1)
    rest = {key: value for key, value in shared.items() if key not in ("size", "channels")}
    found = fedbm.compare(data, ["fedavg", FedProx(mu=0.5)], seeds=1, beta=0.3, **rest)
    assert [(run.label, run.beta) for run in found.runs] == [("fedavg", 0.3), ("fedprox · mu=0.5", 0.3)]
    assert (found.runs[0].id, found.runs[0].seed) == (fedbm.simulate(data, method="fedavg", beta=0.3, **rest).id, 0)


def test_failures_are_sentences_and_other_runs_are_kept(scans: Path, shared: dict[str, Any]) -> None:
    settings = {**shared, "on_nonfinite": "stop"}
    found = fedbm.compare(scans, ["fedavg", "fedprox"], seeds=1, mu=1e30, **settings)
    assert [run.method for run in found.runs] == ["fedavg"]
    (failure,) = found.failures
    assert failure.startswith("fedprox, β 0.1, seed 0: ")
    assert repr(found).endswith(", 1 failed)")
    assert failure.split(":")[0] in found._repr_html_()
    with pytest.raises(FedBMError, match="fedprox"):
        fedbm.compare(scans, ["fedprox"], seeds=1, mu=1e30, **settings)


def test_a_notebook_shows_means_over_seeds(scans: Path, shared: dict[str, Any]) -> None:
    found = fedbm.compare(scans, ["fedavg"], seeds=2, **shared)
    scores = [100 * run.summary["best"]["accuracy"] for run in found.runs if run.summary]
    assert f"<td>2</td><td>{sum(scores) / 2:.1f} ± " in found._repr_html_()
    assert "<th>accuracy</th>" in found._repr_html_()


def test_to_pandas(scans: Path, shared: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = fedbm.compare(scans, ["fedavg"], seeds=1, **shared)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedBMError, match=r'needs pandas: pip install "fedbm\[pandas\]"'):
        found.to_pandas()
    fake = ModuleType("pandas")
    fake.DataFrame = list  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", fake)
    (row,) = found.to_pandas()
    assert (row["run"], row["method"], row["seed"], row["state"]) == (found.runs[0].id, "fedavg", 0, "finished")
    assert row["accuracy"] == (found.runs[0].summary or {})["best"]["accuracy"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"beta": 0.1, "betas": [0.2]}, "beta and betas are both given"),
        ({"method": "fedavg"}, "compare() has no argument method. Use methods."),
        ({"seed": 3}, "compare() has no argument seed. Use seeds."),
        ({"seeds": 0}, "seeds must be a count from 1 to 99"),
        ({"methods": []}, "no method is given"),
        ({"betas": []}, "betas is empty; give at least one β"),
        ({"methods": "fedmb"}, 'there is no method "fedmb" (did you mean "fedbm"?)'),
        ({"methods": [FedAvg]}, "method must be a name or an object"),
        ({"methods": FedAvg}, "method must be a name or an object"),
        (
            {"betas": np.float32(0.5)},
            "betas is 0.5, but it must be a list, such as [0.05, 0.1]. For one β, use beta.",
        ),
        ({"betas": 0.1}, "betas is 0.1, but it must be a list, such as [0.05, 0.1]. For one β, use beta."),
        ({"temperature": 3}, "temperature is an option of fedbm, and no such method"),
        ({"ruonds": 3}, 'there is no setting "ruonds" (did you mean "rounds"?)'),
    ],
)
def test_mistakes(given: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedBMError) as caught:
        fedbm.compare("digits", **{"methods": ["fedavg"], **given})
    assert sentence in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_write_report_takes_runs_folders_and_comparisons(scans: Path, shared: dict[str, Any], tmp_path: Path) -> None:
    found = fedbm.compare(scans, ["fedavg"], seeds=1, **shared)
    (run,) = found.runs
    pages = [
        fedbm.write_report(given, tmp_path / f"{number}.html").read_text(encoding="utf-8")
        for number, given in enumerate((found, run, run.path, [run], [str(run.path)]))
    ]
    assert len(set(pages)) == 1


@dataclass(frozen=True)
class Other(FedAvg):
    """A method with an option of the same name as FedProx's, and another meaning."""

    name: ClassVar[str] = "other"

    mu: int = option(3, "steps of the server", least=1)


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(run_config, "all_methods", lambda: {**METHODS, "other": Other})
    keys.cache_clear()
    yield
    monkeypatch.undo()
    keys.cache_clear()


@pytest.mark.usefixtures("other")
class TestOptionsOfOneName:
    """Two methods have an option `mu`."""

    def test_one_method_takes_its_own(self) -> None:
        for method, kind in (("fedprox", FedProx(mu=2.0)), ("other", Other(mu=2))):
            assert make_config(to_sections({"method": method, "mu": "2"})).method == kind
        assert make_config(to_sections({"method": "other", "other_mu": 5, "mu": 4})).method == Other(mu=5)
        with pytest.raises(FedBMError, match="other_mu is an option of other, not of fedprox"):
            to_sections({"method": "fedprox", "other_mu": 2})

    def test_a_grid_sets_the_option_of_each(self) -> None:
        configs = make_grid({}, {"other_mu": 5, "mu": 2}, ["fedprox", "other", "fedavg"], [None], [0])
        assert [config.method for config in configs] == [FedProx(mu=2.0), Other(mu=5), FedAvg()]

    def test_they_are_listed_as_the_first_declares_them_and_for_a_plug_in(self) -> None:
        found = {key.flag: (key.methods, key.default) for key in keys() if key.name == "mu"}
        assert found == {
            "mu": (("fedprox", "other"), 0.001),
            "other_mu": (("other",), Other.mu),
        }
