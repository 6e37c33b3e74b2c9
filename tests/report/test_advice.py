"""Advice after a run: each piece appears where the records show its reason, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_runs import fake_run, plain, with_summary

from fedbm.report.advice import advise, judge_convergence
from fedbm.report.comparison_checks import collect_advice
from fedbm.report.grouping import group_runs
from fedbm.runs.run_view import RunView, read_run

EVEN = ((10, 10, 10),) * 4


@pytest.fixture
def run(tmp_path: Path) -> RunView:
    """A run of 20 rounds that needs no advice."""
    made = read_run(fake_run(tmp_path, "fedbm", rounds=20, clients=4))
    return with_scores(sized(made, EVEN), [0.5] * 20, best=12)


def with_scores(run: RunView, scores: Sequence[float], best: int) -> RunView:
    """Return the run with these validation scores (accuracy and macro-F1) in its rounds."""
    val = [dict.fromkeys(("accuracy", "f1", "auc", "recall", "precision"), score) for score in scores]
    rounds = tuple(replace(record, val=one) for record, one in zip(run.rounds, val, strict=True))
    return replace(with_summary(run, best={"round": best}), rounds=rounds)


def sized(run: RunView, counts: Sequence[Sequence[int]]) -> RunView:
    assert run.client_partition is not None
    return replace(run, client_partition=replace(run.client_partition, counts=tuple(map(tuple, counts))))


def evidence(run: RunView) -> str:
    return "; ".join(one.evidence for one in advise(run))


def test_nothing_without_a_reason(run: RunView) -> None:
    assert advise(run) == []


def test_an_unfinished_run_gets_no_advice(tmp_path: Path) -> None:
    assert advise(read_run(fake_run(tmp_path, rounds=6, done=3))) == []


@pytest.mark.parametrize(
    ("matrix", "found"),
    [
        (((0, 30, 0), (1, 29, 0), (0, 30, 0)), "99 % of the test images are predicted as"),
        (((4, 26, 0), (1, 29, 0), (0, 30, 0)), ""),  # 94 %
        (((0, 9, 0), (0, 82, 0), (0, 9, 0)), ""),  # most images are of that class
    ],
)
def test_nearly_all_predictions_are_one_class(run: RunView, matrix: Sequence[Sequence[int]], found: str) -> None:
    assert run.details is not None
    details = replace(run.details, confusion=replace(run.details.confusion, best=matrix))
    assert bool(found) == bool(evidence(replace(run, details=details)))
    assert found in evidence(replace(run, details=details))


def test_the_last_round_was_chosen(run: RunView) -> None:
    (found,) = advise(with_scores(run, [0.5] * 20, best=20))
    assert found.sentence == "The chosen round is the last one, 20. More training may help: use more --rounds."
    assert advise(with_scores(run, [0.5] * 20, best=19)) == []


def test_swings_count_if_there_are_several_late_ones(run: RunView) -> None:
    swinging = [0.5] * 14 + [0.5, 0.71, 0.5, 0.5, 0.5, 0.5]
    (found,) = advise(with_scores(run, swinging, best=12))
    assert found.evidence.startswith("between rounds, validation accuracy changed by 20 points or more, 2 of 9 times")
    assert "--server-average 0.9" in found.action
    once = [0.5] * 14 + [0.71] * 6
    early = [0.1, 0.5, 0.1, 0.5, 0.1] + [0.5] * 15
    small = [0.5, 0.69] * 10
    for calm in (once, early, small):
        assert advise(with_scores(run, calm, best=12)) == []


def test_an_average_is_not_advised_where_there_cannot_be_one(run: RunView) -> None:
    scores = [0.2, 0.6] * 10
    assert advise(with_scores(replace(run, method="fedproto"), scores, best=12)) == []


@pytest.mark.parametrize(
    ("sizes", "share"), [((62, 20, 10, 8), "62 %"), ((50, 25, 25), ""), ((62, 38), ""), ((66, 20, 14), "")]
)
def test_one_client_has_most_images(run: RunView, sizes: tuple[int, ...], share: str) -> None:
    """More than half, and more than twice an equal share: of two or three clients one has that easily."""
    found = advise(sized(run, [(size, 0, 0) for size in sizes]))
    assert [one.evidence for one in found] == ([f"one client has {share} of the training images"] if share else [])
    assert all("--beta" in one.action for one in found)
    assert advise(replace(sized(run, [(size, 0, 0) for size in sizes]), method="central")) == []


def test_a_report_gives_each_advice_once_with_its_runs(run: RunView) -> None:
    late = with_scores(sized(run, [(62, 0, 0), (20, 0, 0), (18, 0, 0), (0, 0, 0)]), [0.5] * 20, best=20)
    fedavg = replace(late, method="fedavg", label="fedavg", generated=None)
    (group,) = group_runs([late, fedavg, replace(fedavg, seed=1)])
    rounds, client = collect_advice(group)
    assert rounds.sentence == "More training may help: use more --rounds."
    assert [item.partition(":")[0] for item in rounds.items] == ["FedAvg, seed 0", "FedAvg, seed 1", "FedBM, seed 0"]
    assert [item.partition(":")[0] for item in client.items] == [item.partition(":")[0] for item in rounds.items]
    (alone,) = collect_advice(group_runs([with_scores(run, [0.5] * 20, best=20)])[0])
    assert alone.text.endswith("--rounds. FedBM, seed 0: the chosen round is the last one, 20.")


# --- convergence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("late", "words"),
    [
        ([0.50, 0.52, 0.54, 0.56, 0.58], "still rises (+8.0, noise 0.0)"),
        ([0.58, 0.56, 0.54, 0.52, 0.50], "falls (−8.0, "),
        ([0.50, 0.51, 0.50, 0.51, 0.50], "is settled (0.0, noise 0.6)"),
        ([0.30, 0.50, 0.30, 0.50, 0.30], "swings (0.0, noise 12.6)"),
        ([0.50, 0.502, 0.504, 0.506, 0.508], "is settled (+0.8, "),
    ],
)
def test_convergence_by_the_last_quarter(run: RunView, late: list[float], words: str) -> None:
    """Residuals of 0.5, 0.51, … around their mean: √(5 · 0.01² · 0.24 / 3) = 0.0063."""
    assert plain(judge_convergence([with_scores(run, [0.1] * 15 + late, best=12)])).startswith(words)


def test_convergence_needs_enough_rounds_and_takes_all_seeds(run: RunView) -> None:
    rising = with_scores(run, [0.1] * 15 + [0.50, 0.52, 0.54, 0.56, 0.58], best=12)
    falling = with_scores(run, [0.1] * 15 + [0.38, 0.36, 0.34, 0.32, 0.30], best=12)
    assert judge_convergence([rising, falling]).startswith("is settled")
    assert judge_convergence([rising, replace(rising, rounds=rising.rounds[:19])]) == ""
