"""Central training holds a partition it does not use: of whatever β it was run at, beside methods at another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fake_runs import fake_run

from fedbm.report.client_scores import per_client
from fedbm.report.figures.palette import numbers_of
from fedbm.report.grouping import Group, Row
from fedbm.report.sections import partition
from fedbm.runs.reader import RunView, read_run


def seen(tmp_path: Path, method: str, counts: list[list[int]], confusion: list[list[int]]) -> RunView:
    run = read_run(fake_run(tmp_path, method))
    assert run.dealt is not None
    assert run.details is not None
    dealt = {**run.dealt, "classes": ["a", "b"], "counts": counts}
    details = {**run.details, "classes": ["a", "b"], "confusion": {"best": confusion, "last": confusion}}
    return replace(run, dealt=dealt, details=details)


def group_of(*runs: RunView) -> Group:
    return Group("t", tuple(Row(run.method, run.method, (run,)) for run in runs), ())


def test_the_clients_shown_are_those_that_trained(tmp_path: Path) -> None:
    half = [[1, 1], [1, 1]]
    fedavg = seen(tmp_path, "fedavg", [[30, 0], [0, 10]], half)
    central = seen(tmp_path, "central", [[7, 7], [7, 7]], half)
    for group in (group_of(fedavg, central), group_of(central, fedavg)):
        assert {seed: dealt["counts"] for seed, dealt in group.dealt.items()} == {0: [[30, 0], [0, 10]]}
        assert partition(group).panels[0].pictures[0].svg == (partition(group_of(fedavg)).panels[0].pictures[0].svg)


def test_central_is_judged_by_the_clients_of_the_others(tmp_path: Path) -> None:
    """Recall 1 and ½: clients of one class alone have 100 and 50 %; those of its own file would both have 75 %."""
    recall = [[4, 0], [2, 2]]
    fedavg = seen(tmp_path, "fedavg", [[30, 0], [0, 10]], recall)
    central = seen(tmp_path, "central", [[7, 7], [7, 7]], recall)
    colours = numbers_of(["fedavg", "central"])
    both = per_client(group_of(fedavg, central), colours)
    twice = per_client(group_of(fedavg, replace(central, dealt=fedavg.dealt)), colours)
    assert both.panels[0].pictures[0].svg == twice.panels[0].pictures[0].svg
    own = per_client(group_of(fedavg, replace(central, method="fedprox")), {**colours, "fedprox": 1})
    assert both.panels[0].pictures[0].svg != own.panels[0].pictures[0].svg


def test_central_alone_has_no_clients_to_show(tmp_path: Path) -> None:
    group = group_of(seen(tmp_path, "central", [[7, 7], [7, 7]], [[1, 1], [1, 1]]))
    assert partition(group).panels == ()
    assert partition(group).absent == "Central training has all images in one place."
    assert per_client(group, numbers_of(["central"])).absent == "Central training has all images in one place."
