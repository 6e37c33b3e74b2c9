"""Cells in order, rows that win over axes, conditions, and where runs stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbm.errors import FedBMError
from fedbm.experiments.spec import find_experiment, parse
from fedbm.experiments.trials import choose_trials, find_state, locate, trials
from fedbm.runs.failure import Failure, clear_failure, keep_failure
from fedbm.runs.plan import make_plan
from fedbm.runs.runner import run_path

GRID = parse(
    """
[all]
data = "digits"
rounds = 2
pseudo_batch = 4
[axes]
beta = [0.1, 0.05]
clients = [4, 5]
[[rows]]
name = "FedAvg"
method = "fedavg"
[[rows]]
name = "no CGDE"
method = "fedbm"
generator = false
[[rows]]
name = "Central"
method = "central"
beta = 0.1
clients = 4
""",
    "grid",
    "grid",
)


def test_cells_come_as_the_file_has_them_and_seeds_together() -> None:
    found = [(t.at["beta"], t.at["clients"], t.row, t.seed) for t in trials(GRID, range(2), {})]
    assert found == [
        (beta, clients, row, seed)
        for beta in (0.1, 0.05)
        for clients in (4, 5)
        for row in ("FedAvg", "no CGDE", "Central")
        for seed in (0, 1)
    ]


def test_rows_win_over_axes_and_take_only_what_is_theirs() -> None:
    found = trials(GRID, range(1), {"out": "elsewhere"})
    assert {t.config.engine.out for t in found} == {"elsewhere"}
    by_row = {t.row: t.config for t in found}  # the last cell's
    assert (by_row["FedAvg"].data.beta, by_row["FedAvg"].data.clients) == (0.05, 5)
    assert (by_row["Central"].data.beta, by_row["Central"].data.clients) == (0.1, 4)
    assert by_row["no CGDE"].method.pseudo_batch == 4
    assert by_row["no CGDE"].method.generator is False
    assert not hasattr(by_row["FedAvg"].method, "pseudo_batch")


@pytest.mark.parametrize(
    ("only", "count"),
    [
        (["beta=0.1"], 6),
        (["beta=0.10,0.05,"], 12),
        (["FedAvg"], 4),
        (["row=fedavg,Central"], 8),
        (["method=fedbm"], 4),
        (["no CGDE", "clients=5", "beta=0.05"], 1),
        (["data=digits"], 12),
        (["generator=false"], 4),
        (["FedAvg", "Central"], 0),
    ],
)
def test_only(only: list[str], count: int) -> None:
    """Central belongs to every column, though its run is the same in all."""
    assert len(choose_trials(only, trials(GRID, range(1), {}))) == count


@pytest.mark.parametrize(
    ("only", "rows"),
    [
        ("FedAvg, GroupNorm", ["FedAvg, GroupNorm"]),
        ("fedavg, groupnorm,FedAvg, lr 0.002", ["FedAvg, GroupNorm", "FedAvg, lr 0.002"]),
        ("FedAvg,FedAvg, FixBN", ["FedAvg", "FedAvg, FixBN"]),
        ("row=FedBM, GroupNorm", ["FedBM, GroupNorm"]),
    ],
)
def test_only_rows_with_a_comma_in_their_name(only: str, rows: list[str]) -> None:
    experiment = find_experiment("mechanism")
    found = choose_trials([only], trials(experiment, [0], {}))
    assert sorted(trial.row for trial in found) == sorted(rows)


@pytest.mark.parametrize(
    ("only", "sentence"),
    [
        ("beat=0.1", 'no run has the setting "beat" (did you mean "beta"?)'),
        ("FedAvgg", 'no run has row = "FedAvgg" (did you mean "FedAvg"?)'),
        ("beta=0.1,7", 'no run has beta = "7"; choose 0.1 or 0.05'),
        ("data=digits,method=fedbm", 'no run has data = "method=fedbm"; choose digits'),
    ],
)
def test_only_that_means_nothing(only: str, sentence: str) -> None:
    with pytest.raises(FedBMError) as caught:
        choose_trials([only], trials(GRID, range(1), {}))
    assert sentence in str(caught.value)


def test_equal_settings_are_one_run(tmp_path: Path) -> None:
    places = [locate(t) for t in trials(GRID, range(1), {"out": str(tmp_path)})]
    for place in places:  # what the data set recommends, written out, is the same run
        assert place.folder == run_path(make_plan(place.config))
    folders = {(p.row, p.at["beta"], p.at["clients"]): p.folder for p in places}
    assert len({folders["Central", beta, n] for beta in (0.1, 0.05) for n in (4, 5)}) == 1
    assert len(set(folders.values())) == 9


def test_where_a_run_stands(tmp_path: Path) -> None:
    place = locate(trials(GRID, range(1), {"out": str(tmp_path)})[0])
    assert place.folder is not None
    assert find_state(place).state == "not run"
    keep_failure(place.folder, Failure("the moon was full"))
    assert (find_state(place).state, find_state(place).why) == ("failed", "the moon was full")
    clear_failure(place.folder)
    (place.folder / "rounds.jsonl").touch()
    assert find_state(place).state == "unfinished"
    (place.folder / "summary.json").touch()
    assert find_state(place).state == "finished"


def test_data_that_are_not_here_are_said_to_be_absent(tmp_path: Path) -> None:
    grid = parse('[all]\ndata = "oct-c8"\n', "g", "g")
    found = find_state(locate(trials(grid, range(1), {"data_dir": str(tmp_path)})[0]))
    assert found.state == "absent"
    assert found.why.startswith("the images of oct-c8 are not here")
