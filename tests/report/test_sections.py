"""Sections of a group: captions are true of their rows, and central training has no clients of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fake_runs import CLASSES, fake_run

from fedbm.report.document import Figures, Section, Text
from fedbm.report.figures.palette import assign_colours
from fedbm.report.group import Group, GroupRow
from fedbm.report.sections import client_by_client, features, partition
from fedbm.runs.run_file_types import Confusion, Features
from fedbm.runs.run_view import RunView, read_run


def drawn(section: Section) -> str:
    figures = section.blocks[0]
    assert isinstance(figures, Figures)
    return next(iter(figures.panels.values()))[0].draw()


def words_of(section: Section) -> str:
    """Why there is no figure."""
    text = section.blocks[0]
    assert isinstance(text, Text)
    return text.sentences[0]


def group_of(*runs: RunView) -> Group:
    return Group("t", tuple(GroupRow(run.method, run.method, (run,)) for run in runs), ())


def featured(run: RunView) -> RunView:
    return replace(run, features=Features(tuple(CLASSES), (0, 1, 2), ((0.0, 1.0), (1.0, 0.0), (0.5, 0.2)), None))


def test_rows_with_features_are_drawn(tmp_path: Path) -> None:
    fedavg, fedbm = (read_run(fake_run(tmp_path, method)) for method in ("fedavg", "fedbm"))
    (figures,) = features(group_of(fedavg, featured(fedbm))).blocks
    assert isinstance(figures, Figures)
    assert [figure.caption for figure in figures.panels["Features"]] == ["fedbm, seed 0"]
    assert words_of(features(group_of(fedavg))).startswith("No run here has features; 'fedbm features RUN'")


def seen(tmp_path: Path, method: str, counts: list[list[int]], confusion: list[list[int]]) -> RunView:
    run = read_run(fake_run(tmp_path, method))
    assert run.client_partition is not None
    assert run.details is not None
    partition_ = replace(run.client_partition, classes=("a", "b"), counts=counts)
    details = replace(run.details, classes=("a", "b"), confusion=Confusion(confusion, confusion))
    return replace(run, client_partition=partition_, details=details)


def test_the_clients_shown_are_those_that_trained(tmp_path: Path) -> None:
    half = [[1, 1], [1, 1]]
    fedavg = seen(tmp_path, "fedavg", [[30, 0], [0, 10]], half)
    central = seen(tmp_path, "central", [[7, 7], [7, 7]], half)
    for group in (group_of(fedavg, central), group_of(central, fedavg)):
        assert {seed: found.counts for seed, found in group.partitions.items()} == {0: [[30, 0], [0, 10]]}
        assert drawn(partition(group)) == drawn(partition(group_of(fedavg)))


def test_central_is_judged_by_the_clients_of_the_others(tmp_path: Path) -> None:
    """Recall 1 and ½: clients of one class alone have 100 and 50 %; those of its own file would both have 75 %."""
    recall = [[4, 0], [2, 2]]
    fedavg = seen(tmp_path, "fedavg", [[30, 0], [0, 10]], recall)
    central = seen(tmp_path, "central", [[7, 7], [7, 7]], recall)
    colours = assign_colours(["fedavg", "central"])
    both = client_by_client(group_of(fedavg, central), colours)
    twice = client_by_client(group_of(fedavg, replace(central, client_partition=fedavg.client_partition)), colours)
    assert drawn(both) == drawn(twice)
    own = client_by_client(group_of(fedavg, replace(central, method="fedprox")), {**colours, "fedprox": 1})
    assert drawn(both) != drawn(own)


def test_central_alone_has_no_clients_to_show(tmp_path: Path) -> None:
    group = group_of(seen(tmp_path, "central", [[7, 7], [7, 7]], [[1, 1], [1, 1]]))
    assert words_of(partition(group)) == "No run with clients has partition.json."
    assert words_of(client_by_client(group, assign_colours(["central"]))) == words_of(partition(group))
