"""Tests against the leading row, their correction, and the sentences about them, also of unfinished experiments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from fake_outcomes import fake_outcome
from fake_runs import plain, with_summary
from scipy.stats import t as student
from scipy.stats import ttest_ind_from_stats

from fedbm.experiments.outcomes import Outcome, read_outcome
from fedbm.experiments.record_store import write_outcome
from fedbm.experiments.spec import Experiment, find_experiment, parse
from fedbm.report.comparison import compare_outcome
from fedbm.report.experiment_tables import results_table
from fedbm.report.verdicts import NO_RESULT, OTHER_SEEDS, plain_verdict, verdicts

FOUR = ("FedAvg", "FedBM", "FedProx", "SCAFFOLD")


def grid(methods: tuple[str, ...] = FOUR, axes: str = "") -> Experiment:
    rows = "".join(f'[[rows]]\nname = "{name}"\nmethod = "{name.lower()}"\n' for name in methods)
    return parse(f'title = "A grid"\n{axes}{rows}', "grid", "grid")


def scored(root: Path, experiment: Experiment, scores: Mapping[str, Mapping[int, float]]) -> Outcome:
    """Every cell alike: row → seed → macro-F1, half of it at the last round; seeds that are not named were not run."""
    missing = {(row, seed): ("not run", "") for row in experiment.rows for seed in range(3) if seed not in scores[row]}
    made = fake_outcome(root, experiment, missing=missing, rounds=3)
    results = []
    for result in made.results:
        run = result.run
        if run is not None and run.summary is not None:
            f1 = scores[result.row][result.seed]
            at = {"best": {**run.summary["best"], "f1": f1}, "last": {**run.summary["last"], "f1": f1 / 2}}
            run = replace(with_summary(run, **at), last_quarter={**(run.last_quarter or {}), "f1": f1 / 4})
        results.append(replace(result, run=run))
    return replace(made, results=tuple(results))


HIGH, LOW, NEAR = {0: 0.9, 1: 0.92, 2: 0.91}, {0: 0.7, 1: 0.721, 2: 0.711}, {0: 0.89, 1: 0.90, 2: 0.91}
TWO_CELLS = "[axes]\nbeta = [0.1, 0.05]\n"


def test_holm_counts_the_tests_that_have_data(tmp_path: Path) -> None:
    """Four rows less the lead and central, two cells: six tests, of which two have data: p₁·2 and p₂·1."""
    rows = ("FedAvg", "FedBM", "FedProx", "SCAFFOLD", "Central")
    scores = {"FedAvg": LOW, "FedBM": HIGH, "FedProx": NEAR, "SCAFFOLD": {}, "Central": HIGH}
    outcome = scored(tmp_path, grid(rows, TWO_CELLS), scores)
    early = replace(
        outcome,
        results=tuple(replace(r, run=None, state="not run") if r.at["beta"] == 0.05 else r for r in outcome.results),
    )
    for found, tests in ((early, 2), (outcome, 4)):
        first = compare_outcome(found)[0]
        made = {row.name: row.tests["best"] for row in first.rows if row.tests}
        p = {name: test.paired.p for name, test in made.items()}
        assert list(p) == ["FedAvg", "FedProx"]
        assert p["FedAvg"] is not None
        assert p["FedProx"] is not None
        assert made["FedAvg"].corrected == pytest.approx(tests * p["FedAvg"])
        assert made["FedProx"].corrected == pytest.approx(min(1.0, tests / 2 * p["FedProx"]))
        assert {test.tests for test in made.values()} == {tests}
    assert not any(row.tests for row in compare_outcome(early)[1].rows)


def test_what_is_not_established_says_how_many_seeds_it_would_need(tmp_path: Path) -> None:
    """Differences of 1, 2 and 0 points have mean 1 and std 1: d_z = 1 needs 10 pairs at level 0.05."""
    made = scored(tmp_path, grid(("FedAvg", "FedBM")), {"FedAvg": NEAR, "FedBM": HIGH})
    first, *_ = (plain(verdict) for verdict in verdicts(compare_outcome(made)[0]))
    assert (
        "not established. Seeds needed to show a difference of this size, with 80 % power at level 0.05/1: about 10."
        in first
    )
    for scores in ({"FedAvg": LOW, "FedBM": HIGH}, {"FedAvg": HIGH, "FedBM": NEAR}):  # established; behind
        made = scored(
            tmp_path / str(len(scores["FedAvg"])) / str(scores["FedBM"][0]), grid(("FedAvg", "FedBM")), scores
        )
        assert not any("Seeds needed" in verdict for verdict in verdicts(compare_outcome(made)[0]))


def test_the_last_round_has_tests_of_its_own(tmp_path: Path) -> None:
    made = scored(tmp_path, grid(("FedAvg", "FedBM")), {"FedAvg": LOW, "FedBM": HIGH})
    tests = compare_outcome(made)[0].rows[0].tests
    best, last = (tests[moment].paired for moment in ("best", "last"))
    assert last.mean == pytest.approx(best.mean / 2)
    assert last.p == pytest.approx(best.p)


def test_the_last_quarter_is_a_second_look(tmp_path: Path) -> None:
    """The scores made here are a quarter of the chosen round's, so is their difference; p and d do not change."""
    made = scored(tmp_path, grid(("FedAvg", "FedBM")), {"FedAvg": NEAR, "FedBM": HIGH})
    (cell,) = compare_outcome(made)
    best, last_quarter = (cell.rows[0].tests[moment].paired for moment in ("best", "last_quarter"))
    assert last_quarter.mean == pytest.approx(best.mean / 4)
    assert last_quarter.p == pytest.approx(best.p)
    sentence = plain(verdicts(cell)[0])
    assert "about 10. Over the last quarter of the rounds: +0.3 points (95 % interval " in sentence
    assert sentence.endswith(", p = 0.23, not corrected).")
    unevaluated = tuple(replace(r, run=replace(r.run, last_quarter=None)) for r in made.results if r.run is not None)
    (cell,) = compare_outcome(replace(made, results=unevaluated))
    assert verdicts(cell)[0].endswith("about 10.")
    table = results_table(cell, "t", {"FedAvg": 0, "FedBM": 1}, {})
    assert table.rows[0].cells["last_quarter_f1"].value is None


def test_without_fedbm_the_first_row_leads_whatever_the_scores(tmp_path: Path) -> None:
    names = ("FedAvg", "FedProx", "SCAFFOLD")
    made = scored(tmp_path, grid(names), {"FedAvg": LOW, "FedProx": HIGH, "SCAFFOLD": NEAR})
    (cell,) = compare_outcome(made)
    assert cell.lead == "FedAvg"
    assert ["best" in row.tests for row in cell.rows] == [False, True, True]


def test_the_row_a_file_names_leads_and_a_record_keeps_it(tmp_path: Path) -> None:
    experiment = replace(grid(("FedAvg", "FedBM")), lead="FedAvg")
    made = scored(tmp_path, experiment, {"FedAvg": HIGH, "FedBM": LOW})
    assert [cell.lead for cell in compare_outcome(made)] == ["FedAvg"]
    assert [cell.lead for cell in compare_outcome(read_outcome(write_outcome(made, tmp_path / "results")))] == [
        "FedAvg"
    ]


def test_fedbm_leads_before_it_is_finished(tmp_path: Path) -> None:
    """Another row in its place would be tested as if it had been chosen beforehand."""
    made = scored(tmp_path, grid(("FedAvg", "FedBM")), {"FedAvg": HIGH, "FedBM": {}})
    (cell,) = compare_outcome(made)
    assert cell.lead == "FedBM"
    assert verdicts(cell) == [NO_RESULT]


def test_a_sentence_speaks_of_shared_seeds(tmp_path: Path) -> None:
    """FedBM 40, 50 and 60 %, FedProx 60 % at seed 0 alone: 40 against 60, and not 50 against 60 with −20 points."""
    scores = {"FedBM": {0: 0.4, 1: 0.5, 2: 0.6}, "FedProx": {0: 0.6}, "FedAvg": {0: 0.3, 1: 0.4, 2: 0.69}}
    (cell,) = compare_outcome(scored(tmp_path, grid(("FedAvg", "FedBM", "FedProx")), scores))
    first, second, third = (plain(verdict) for verdict in verdicts(cell))
    assert third == OTHER_SEEDS  # the table has 50 against 60
    assert first.startswith("FedBM − FedProx, the best other row: −20.0 points of macro-F1 (n = 1). The difference is ")
    assert second.startswith("FedBM − FedAvg: +3.7 points of macro-F1 (n = 3, ")


def by_paper(root: Path, scores: Mapping[str, Mapping[int, float]]) -> list[str]:
    """What is said of Kvasir, β = 0.05, in the table of modules: FedBM has 69.51 ± 4.11 in the paper, w/o LKCC 21.18 ±
    7.12 and w/o CGDE 61.67 ± 6.61."""
    rows = ("FedBM", "w/o LKCC", "w/o CGDE")
    made = scored(root, find_experiment("modules"), {name: scores.get(name, {}) for name in rows})
    (cell,) = (cell for cell in compare_outcome(made) if cell.at == {"data": "kvasir", "beta": 0.05})
    return [plain(verdict) for verdict in verdicts(cell)]


SMALLEST = (
    "Ours minus the paper’s macro-F1, smallest p of {} (Welch’s t-test with the paper’s three trials, not corrected): "
)


def test_rows_are_tested_against_the_papers_three_trials(tmp_path: Path) -> None:
    """By hand: 0.70, 0.72, 0.71 have mean 0.71 and s²/n = 0.0001/3, the paper's 0.0712²/3; ν by Satterthwaite."""
    *_, last = by_paper(tmp_path, {"FedBM": {0: 0.65, 1: 0.70, 2: 0.75}, "w/o LKCC": {0: 0.70, 1: 0.72, 2: 0.71}})
    ours, theirs = 0.01**2 / 3, 0.0712**2 / 3
    t, freedom = (0.71 - 0.2118) / (ours + theirs) ** 0.5, (ours + theirs) ** 2 / (ours**2 / 2 + theirs**2 / 2)
    p = 2 * float(student.sf(t, freedom))
    near = float(ttest_ind_from_stats(0.70, 0.05, 3, 0.6951, 0.0411, 3, equal_var=False).pvalue)
    assert last == f"{SMALLEST.format(2)}w/o LKCC (+49.8 points, p = {p:.3f}), FedBM (+0.5 points, p = {near:.2f})."


def test_of_many_rows_those_with_the_lowest_p_are_named(tmp_path: Path) -> None:
    """A p just above the level must not hide among many: FedBM has 49.49 ± 1.74, FedAvg 41.25 ± 1.86 in the paper."""
    near = {0: 0.30, 1: 0.40, 2: 0.50}
    scores = {"FedAvg": near, "FedBM": {0: 0.43, 1: 0.46, 2: 0.48}, "FedNH": near, "FedProx": near}
    experiment = find_experiment("comparison-ham10000")
    made = scored(tmp_path, experiment, {row: scores.get(row, {}) for row in experiment.rows})
    *_, last = verdicts(compare_outcome(made)[0])
    p = float(ttest_ind_from_stats(0.45667, 0.025166, 3, 0.4949, 0.0174, 3, equal_var=False).pvalue)
    assert plain(last).startswith(f"{SMALLEST.format(4)}FedBM (−3.8 points, p = {p:.2f}), FedNH (")
    assert plain(last).count("points, p = ") == 3


@pytest.mark.parametrize("few", [{1: 0.1}, {0: 0.1, 1: 0.1001}])
def test_fewer_than_three_seeds_are_not_tested_against_the_paper(tmp_path: Path, few: Mapping[int, float]) -> None:
    assert not any("the paper’s" in sentence for sentence in by_paper(tmp_path, {"FedBM": few}))


@pytest.mark.parametrize("fedavg", [{0: 0.7, 1: 0.7195}, {0: 1.0, 1: 1.0195}], ids=["ahead", "behind"])
def test_two_seeds_establish_nothing_whatever_their_p(tmp_path: Path, fedavg: Mapping[int, float]) -> None:
    """Differences of 20 and 20.05 points: t = 801, and with one degree of freedom p = 2/(π·801) = 0.0008."""
    made = scored(tmp_path, grid(("FedAvg", "FedBM")), {"FedAvg": fedavg, "FedBM": {0: 0.9, 1: 0.92}})
    (cell,) = compare_outcome(made)
    (corrected,) = (row.tests["best"].corrected for row in cell.rows if row.tests)
    assert corrected is not None
    assert corrected < 0.01
    first, *_ = verdicts(cell)
    assert "(n = 2, 95 % interval " in plain(first)  # the numbers are shown all the same
    assert "The difference is not established." in first
    assert "is established" not in first


def test_the_sign_of_an_effect_is_a_minus(tmp_path: Path) -> None:
    scores = {"FedBM": {0: 0.5, 1: 0.6, 2: 0.7}, "FedAvg": {0: 0.6, 1: 0.8, 2: 1.0}}  # −0.1, −0.2, −0.3
    (cell,) = compare_outcome(scored(tmp_path, grid(("FedAvg", "FedBM")), scores))
    (verdict,) = verdicts(cell)
    assert "d = −2.0" in plain(verdict)
    assert "-" not in verdict.replace("t-test", "").replace("macro-F1", "")


def test_a_row_by_itself_has_no_verdict(tmp_path: Path) -> None:
    """A search has one row in each of its cells: that it stands alone says nothing."""
    made = fake_outcome(tmp_path, "search-ham10000", seeds=1, rounds=3)
    assert {len(cell.rows) for cell in compare_outcome(made)} == {1}
    assert [verdicts(cell) for cell in compare_outcome(made)] == [[]] * 18


def plain_words(root: Path, fedavg: Mapping[int, float]) -> tuple[str, ...]:
    made = scored(root, grid(("FedAvg", "FedBM"), TWO_CELLS), {"FedAvg": fedavg, "FedBM": HIGH})
    first, second = map(plain_verdict, compare_outcome(made))
    assert first[1] == second[1]
    return first


def test_the_plain_verdict_has_two_sentences_without_statistics(tmp_path: Path) -> None:
    """Accuracy of the fakes: 91 and 74 of 100 images, give or take; macro-F1 0.91 − 0.7107 and 0.91 − 0.90."""
    for name, fedavg, ending in (
        ("a", LOW, "is 19.9 points above FedAvg’s; with 3 seeds, chance alone is unlikely to explain this."),
        ("b", NEAR, "is 1.0 points above FedAvg’s; with 3 seeds, chance alone may explain this."),
        ("c", HIGH, "is 0.0 points above FedAvg’s; with 3 seeds, chance alone may explain this."),
        ("d", {0: 0.5}, "is 40.0 points above FedAvg’s; with 1 seed, chance alone may explain this."),
    ):
        first, second, *others = plain_words(tmp_path / name, fedavg)
        assert others == ([OTHER_SEEDS] if name == "d" else [])
        assert re.fullmatch(r"With FedBM, .* of 100 test images were classified correctly; with FedAvg, .*\.", first)
        assert second == f"FedBM’s macro-F1, in which rare classes count as much as common ones, {ending}"


def test_the_plain_verdict_names_a_row_that_is_ahead_of_the_leading_one(tmp_path: Path) -> None:
    scores = {"FedAvg": LOW, "FedBM": NEAR, "FedProx": HIGH}
    (cell,) = compare_outcome(scored(tmp_path, grid(("FedAvg", "FedBM", "FedProx")), scores))
    first, second, third = plain_verdict(cell)
    assert re.search(r"; with FedAvg, \d+; with FedProx, \d+\.$", first)
    assert "points above FedAvg’s" in second
    assert "points below FedProx’s" in third


def test_a_row_with_fewer_seeds_is_not_called_better(tmp_path: Path) -> None:
    """FedProx is ahead of FedBM at its only seed, where scores are low, and has the lowest mean."""
    scores = {"FedAvg": {0: 0.55, 1: 0.82, 2: 0.85}, "FedBM": {0: 0.5, 1: 0.8, 2: 0.9}, "FedProx": {0: 0.56}}
    first, _ = plain_verdict(*compare_outcome(scored(tmp_path, grid(("FedAvg", "FedBM", "FedProx")), scores)))
    assert re.search(r"; with FedAvg, \d+\.$", first)


def test_the_plain_verdict_of_what_cannot_be_compared(tmp_path: Path) -> None:
    first, second = plain_words(tmp_path / "a", {})
    assert first.endswith(" of 100 test images were classified correctly.")
    assert second == "Macro-F1, in which rare classes count as much as common ones, is 91 of 100."
    made = scored(tmp_path / "b", grid(("FedAvg", "FedBM")), {"FedAvg": {}, "FedBM": {}})
    assert plain_verdict(*compare_outcome(made)) == (NO_RESULT,)
    others = {"FedAvg": HIGH, "FedBM": {}, "FedProx": HIGH}
    made = scored(tmp_path / "c", grid(("FedAvg", "FedBM", "FedProx")), others)
    assert plain_verdict(*compare_outcome(made)) == (NO_RESULT,)
