"""What stands beside a figure is true of the rows in it: of those without a global model, and of those left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_runs import CLASSES, fake_run
from small import task

from fedbm.methods import METHODS
from fedbm.methods.base import Facts
from fedbm.report.client_scores import per_client
from fedbm.report.figures.palette import numbers_of
from fedbm.report.figures.scatter import embedding
from fedbm.report.grouping import Group, Row
from fedbm.report.sections import BY_CLIENT, mistakes
from fedbm.runs.reader import RunView, read_run


def group_of(*runs: RunView) -> Group:
    return Group("t", tuple(Row(run.method, run.method, (run,)) for run in runs), ())


@pytest.mark.parametrize("name", METHODS)
def test_methods_without_a_global_model_are_those_that_score_every_clients(name: str) -> None:
    method = METHODS[name]()
    server = method.server_init(method.model(task()))
    clients = {i: method.client_init(task(), Facts(i, 6, (3, 2, 1))) for i in range(2)}
    several = len(list(method.global_states(server, clients))) > 1 and not method.ensemble
    assert several == (name in BY_CLIENT)


def test_what_is_added_up_and_whose_accuracy_it_is(tmp_path: Path) -> None:
    fedavg, fedproto = (read_run(fake_run(tmp_path, method)) for method in ("fedavg", "fedproto"))
    colours = numbers_of(["fedavg", "fedproto"])
    common, both = group_of(fedavg), group_of(fedavg, fedproto)
    assert "Seeds are added up. " in mistakes(common).note
    assert "Seeds are added up; of fedproto clients’ own models too, so that n counts" in mistakes(both).note
    assert "the global model’s accuracy on test images" in per_client(common, colours).note
    assert "accuracy (of fedproto, without one: the mean over all clients’ models)" in per_client(both, colours).note


def featured(run: RunView, anchors: list[list[float]] | None) -> RunView:
    points: dict[str, Any] = {"points": [[0.0, 1.0], [1.0, 0.0], [0.5, 0.2]], "labels": [0, 1, 2]}
    return replace(run, features={**points, "anchors": anchors, "classes": list(CLASSES)})


def test_rows_without_features_are_named_with_what_makes_them(tmp_path: Path) -> None:
    fedavg, fedprox, fedbm = (read_run(fake_run(tmp_path, method)) for method in ("fedavg", "fedprox", "fedbm"))
    some = embedding(group_of(fedavg, fedprox, featured(fedbm, None)))
    assert "No run of fedavg and fedprox has features; 'fedbm features RUN' computes them" in some.note
    assert not some.absent
    assert "fedbm features" not in embedding(group_of(featured(fedbm, None))).note
    none = embedding(group_of(fedavg, fedprox))
    assert none.absent.startswith("No run here has features; 'fedbm features RUN'")
    assert "fedbm features" not in none.note


def test_stars_are_explained_where_there_are_some(tmp_path: Path) -> None:
    fedavg, fedbm = (read_run(fake_run(tmp_path, method)) for method in ("fedavg", "fedbm"))
    anchors = [[0.1, 0.9], [0.9, 0.1], [0.5, 0.5]]
    assert "A star is" not in embedding(group_of(featured(fedavg, None))).note
    assert "A star is" in embedding(group_of(featured(fedavg, None), featured(fedbm, anchors))).note
