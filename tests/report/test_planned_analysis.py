"""Experiments that state their analysis beforehand: contrasts, the endpoint, what is withheld, runs that diverged."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawings import texts
from fake_outcomes import fake_outcome
from fake_runs import fake_run, plain, with_summary
from fill_readme import fill_readme
from pages import ROOT
from rich.console import Console
from scipy.stats import ttest_rel

from fedbm.cli.commands.reproduce import print_tables
from fedbm.errors import FedBMError
from fedbm.experiments.outcomes import Outcome, outcome_of, read_outcome, read_outcomes, with_results
from fedbm.experiments.record_store import write_outcome
from fedbm.experiments.spec import Experiment, parse
from fedbm.experiments.trials import Trial, find_state, trials
from fedbm.report.comparison import compare_outcome
from fedbm.report.contrasts import pool_cells, pool_clusters
from fedbm.report.document import Row
from fedbm.report.experiment_figures import contrast_figure, ladder_figure
from fedbm.report.experiment_tables import (
    contrast_table,
    ladder_table,
    other_scores_table,
    results_table,
    rounds_table,
)
from fedbm.report.experiments_report import experiments_report
from fedbm.report.figures.palette import assign_colours
from fedbm.report.format import format_cell, points
from fedbm.report.group import Group
from fedbm.report.render.csv import render_csv
from fedbm.report.render.html import render_html
from fedbm.report.render.latex import render_latex
from fedbm.report.render.markdown import render_markdown
from fedbm.report.tables import class_table
from fedbm.report.verdicts import ESTIMATED, planned_verdict, verdicts
from fedbm.runs.failure import Failure, keep_failure
from fedbm.runs.run_view import RunView
from fedbm.utils.metrics import f1_error
from fedbm.utils.statistics import holm, seeds_needed

PLAN = """
title = "A planned comparison"
methods = ["fedbm", "fedavg", "fedetf"]
seeds = "3-6"
endpoint = "averaged last"
contrasts = [["FedBM", "FedAvg"], ["FedBM", "FedETF"]]
{confirmatory}
[all]
data = "ham10000"
server_average = 0.9
[axes]
beta = [0.1, 0.05]
"""
SEEDS = range(3, 7)
WITHHELD = "22 of 24 runs of plan are on record; scores are withheld until all are there"
CONFIRM: Experiment = parse(PLAN.format(confirmatory="confirmatory = true"), "plan", "plan.toml")
CHOSEN = "at the round chosen on validation"
ESTIMATE: Experiment = parse(PLAN.format(confirmatory=""), "plan", "plan.toml")
GAIN = {  # FedBM's lead in points over the first and the second, by β and seed
    0.1: ([10.0, 12.0, 8.0, 14.0], [2.0, -1.0, 3.0, 0.5]),
    0.05: ([5.0, 9.0, 6.0, 8.0], [4.0, 4.5, 5.0, 3.5]),
}


def planned(root: Path, experiment: Experiment = CONFIRM, missing: Sequence[tuple[str, int]] = ()) -> Outcome:
    """All runs but *missing*, with averaged scores by GAIN; the chosen round has half the differences."""
    gone = dict.fromkeys(missing, ("not run", ""))
    made = fake_outcome(root, experiment, seeds=SEEDS, rounds=3, missing=gone)
    return replace(made, results=tuple(replace(r, run=_scored(r)) for r in made.results))


def _scored(result: Trial) -> RunView | None:
    run = result.run
    if run is None or run.summary is None:
        return None
    behind = {"FedBM": 0.0, "FedAvg": GAIN[result.at["beta"]][0], "FedETF": GAIN[result.at["beta"]][1]}[result.row]
    less = behind[result.seed - 3] / 100 if isinstance(behind, list) else 0.0
    averaged = {**run.summary["last"], "f1": 0.617345 - less, "accuracy": 0.738291}
    best = {**run.summary["best"], "f1": 0.583729 - less / 2}
    return replace(with_summary(run, averaged=averaged, best=best), id=run.path.name)


def sentences(outcome: Outcome) -> list[str]:
    return [plain(verdict) for cell in compare_outcome(outcome) for verdict in verdicts(cell)]


def test_contrasts_are_tested_at_the_endpoint_and_corrected_over_exactly_these(tmp_path: Path) -> None:
    outcome = planned(tmp_path)
    found = [contrast for cell in compare_outcome(outcome) for contrast in cell.contrasts]
    assert [(one.first, one.second) for one in found] == [("FedBM", "FedAvg"), ("FedBM", "FedETF")] * 2
    raw = [float(ttest_rel(gains, [0.0] * 4).pvalue) for pair in GAIN.values() for gains in pair]
    assert [one.found.p for one in found if one.found] == pytest.approx(raw)
    assert [one.corrected for one in found] == pytest.approx(holm(raw))
    assert [one.tests for one in found] == [4] * 4
    assert [one.sign_flip for one in found] == [2 / 16, 6 / 16, 2 / 16, 2 / 16]
    first, second = found[0].found, found[0].chosen
    assert first is not None
    assert second is not None
    assert (first.mean, second.mean) == pytest.approx((0.11, 0.055))
    assert all(not row.tests for cell in compare_outcome(outcome) for row in cell.rows)


def test_sentences_of_a_confirmation(tmp_path: Path) -> None:
    outcome = planned(tmp_path)
    first, second, *_ = sentences(outcome)
    assert first == (
        "FedBM − FedAvg: +11.0 points of macro-F1 (n = 4, 95 % interval +6.9 to +15.1, paired t-test p = 0.003, "
        "d = 4.3, p = 0.010 after Holm’s correction over 4 tests). An advantage is established."
    )
    assert (
        "The difference is not established. Seeds needed to show a difference of this size, with 80 % power at level "
        in second
    )
    rows = contrast_table(compare_outcome(outcome)[0], "plan").rows
    shown = {key: format_cell(cell) for key, cell in rows[0].cells.items()}
    assert shown == {
        "n": "4",
        "endpoint": "+11.0",
        "endpoint_interval": "+6.9 to +15.1",
        "p": "0.003",
        "p_holm": "0.010",
        "sign_flip": "0.12",
        "effect_size": "4.3",
        "seeds": "–",
        "chosen": "+5.5",
        "chosen_interval": "+3.4 to +7.6",
    }
    assert rows[1].cells["seeds"].value == f"about {seeds_needed(0.643, 0.05 / 4)}"


def test_two_seeds_establish_nothing_also_on_record(tmp_path: Path) -> None:
    """FedBM is 10.0 and 10.01 points ahead. Its plan with two seeds is older than the rule that refuses them."""
    outcome = planned(tmp_path)
    assert outcome.analysis is not None
    results = []
    for result in outcome.results:
        assert result.run is not None
        averaged = {"f1": 0.6 - (0.1 + 0.0001 * result.seed) * (result.row != "FedBM")}
        results += [replace(result, run=with_summary(result.run, averaged=averaged))] if result.seed < 5 else []
    few = replace(outcome, results=tuple(results), analysis=replace(outcome.analysis, seeds=(3, 4)))
    contrast = compare_outcome(few)[0].contrasts[0]
    assert contrast.corrected is not None
    assert contrast.corrected < 0.05
    assert not any("is established" in sentence for sentence in sentences(few))
    assert not any("is unlikely to explain" in sentence for sentence in planned_verdict(compare_outcome(few)))


def test_an_estimate_has_intervals_and_no_p(tmp_path: Path) -> None:
    outcome = planned(tmp_path / "runs", ESTIMATE, [("FedAvg", 6)])
    assert not outcome.withheld
    assert sentences(outcome) == []
    row = contrast_table(compare_outcome(outcome)[0], "plan").rows[0]
    assert (row.name, row.cells["n"].value) == ("FedBM − FedAvg", 3)
    assert row.cells["endpoint"].value == pytest.approx(0.1)
    assert row.cells["endpoint_interval"].value == "+5.0 to +15.0"  # 10 ± t(0.975, 2)·2/√3
    assert row.cells["chosen"].value == pytest.approx(0.05)
    report = experiments_report([outcome])
    page = render_html(report)
    shown = plain(render_markdown(report))
    assert "Averaged model, last round, points" in shown
    assert not re.search(r"\bp (=|<)|Holm|established", shown)
    assert ">Holm<" not in page
    lines = list(csv.DictReader(io.StringIO(render_csv(report))))
    assert not any(line["p"] or line["p_holm"] or line["p_sign_flip"] for line in lines)
    contrast = next(line for line in lines if line["round"] == "averaged last")
    assert (contrast["lead"], contrast["row"], contrast["n"]) == ("FedBM", "FedAvg", "3")
    assert float(contrast["low"]) < float(contrast["lead_minus_row_f1"]) < float(contrast["high"])


def _page(outcome: Outcome, to: Path) -> str:
    return render_html(experiments_report([outcome]))


def _console(outcome: Outcome, to: Path) -> str:
    told = io.StringIO()
    print_tables(outcome, Console(file=told, width=200))
    return told.getvalue()


def _readme(outcome: Outcome, to: Path) -> str:
    page = to / "README.md"
    page.write_text("<!-- fedbm:results plan -->\n<!-- /fedbm:results -->\n", encoding="utf-8")
    with pytest.raises(FedBMError, match="scores are withheld"):
        fill_readme([outcome], page)
    return page.read_text(encoding="utf-8")


OUTPUTS: dict[str, Callable[[Outcome, Path], str]] = {
    "page": _page,
    "markdown": lambda outcome, to: render_markdown(experiments_report([outcome])),
    "csv": lambda outcome, to: render_csv(experiments_report([outcome])),
    "latex": lambda outcome, to: render_latex(experiments_report([outcome])),
    "console": _console,
    "readme": _readme,
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_no_output_has_a_score_before_all_runs_are_on_record(tmp_path: Path, output: str) -> None:
    """The made-up scores are looked for as shares and in percent, with any number of digits."""
    outcome = planned(tmp_path / "runs", missing=[("FedETF", 6)])
    written = OUTPUTS[output](outcome, tmp_path)
    scores = [
        run.summary[moment][metric]
        for result in outcome.results
        if (run := result.run) is not None and run.summary is not None
        for moment in ("best", "last", "averaged")
        for metric in ("accuracy", "f1")
    ]
    for score in scores:
        assert f"{score:.3f}" not in written
        assert not re.search(rf"(?<![\d.]){100 * score:.1f}(?!\d)", written)
    assert "±" not in re.sub("[Mm]ean ± (std|standard deviation)", "", written)
    assert (
        output == "readme" or "22 of 24 runs of plan are on record; scores are withheld until all are there" in written
    )
    complete = planned(tmp_path / "all")
    if output != "readme":  # the same search finds scores once they may be seen
        shown = OUTPUTS[output](complete, tmp_path)
        assert re.search(r"61\.7|0\.617", shown)
        assert "withheld" not in shown


def test_a_record_keeps_the_plan_and_withholds_shared_runs_elsewhere(tmp_path: Path) -> None:
    """Another experiment that has one of the runs does not show it either, and no record loses it."""
    outcome = planned(tmp_path / "runs", missing=[("FedETF", 6)])
    path = write_outcome(outcome, tmp_path / "results")
    again = read_outcome(path)
    assert again.analysis == outcome.analysis
    assert again.withheld == WITHHELD
    other = parse('methods = ["fedbm"]\n[all]\ndata = "ham10000"\n[axes]\nbeta = [0.1, 0.05]', "other", "other")
    shared = [replace(r, id=r.run.id) for r in outcome.results if r.row == "FedBM" and r.run is not None]
    write_outcome(with_results(other, shared), tmp_path / "results")
    found = {one.name: one for one in read_outcomes(tmp_path / "results")}
    assert all(not row.runs for cell in compare_outcome(found["other"]) for row in cell.rows)
    assert "22 of 24 runs of plan are on record" in render_markdown(experiments_report([found["other"]]))
    write_outcome(planned(tmp_path / "all"), tmp_path / "results")
    found = {one.name: one for one in read_outcomes(tmp_path / "results")}
    assert not found["plan"].withheld
    assert all(row.runs for cell in compare_outcome(found["other"]) for row in cell.rows)


def test_runs_that_another_plan_withholds_are_on_record(tmp_path: Path) -> None:
    """The other plan is complete, so it says no other number of runs than there are."""
    outcome = planned(tmp_path / "runs", missing=[("FedETF", 6)])
    write_outcome(outcome, tmp_path / "results")
    text = PLAN.replace(', "fedetf"', "").replace(', ["FedBM", "FedETF"]', "")
    other = parse(text.format(confirmatory="confirmatory = true"), "other", "other.toml")
    shared = [replace(r, id=r.run.id) for r in outcome.results if r.row != "FedETF" and r.run is not None]
    found = read_outcome(write_outcome(with_results(other, shared), tmp_path / "results"))
    assert not found.withheld
    assert {(result.state, result.why) for result in found.results} == {("withheld", WITHHELD)}


def test_seeds_that_are_not_planned_do_not_count(tmp_path: Path) -> None:
    outcome = planned(tmp_path)
    others = tuple(replace(result, seed=result.seed - 3) for result in outcome.results)
    assert replace(outcome, results=others).withheld.startswith("6 of 24 runs of plan are on record")  # seed 3, from 6


DIVERGED = Failure("the model's outputs are not finite, so it cannot be scored; a lower lr may help", diverged=True)
FULL = Failure("the memory of cuda:0 is too small; its free share is not finite")


@pytest.mark.parametrize(
    ("failure", "averaged", "last"),
    [
        (DIVERGED, [0.3, 0.2], {"accuracy": 0.5, "f1": 0.2}),
        (DIVERGED, [], {"accuracy": 0.0, "f1": 0.0}),
        (FULL, [0.3, 0.2], None),
    ],
    ids=["last score", "no score", "not the method's failure"],
)
def test_a_run_that_diverged_counts_with_its_last_averaged_score(
    tmp_path: Path, failure: Failure, averaged: list[float], last: dict[str, float] | None
) -> None:
    folder = fake_run(tmp_path / "runs", "fedavg", 3, done=3, rounds=20)
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    scores = [f'{{"accuracy": 0.5, "f1": {f1}, "auc": null, "recall": 0.5, "precision": 0.5}}' for f1 in averaged]
    added = [f', "averaged": {{"val": {one}, "test": {one}}}}}' for one in scores] + [', "averaged": null}']
    lines = [line[:-1] + more for line, more in zip(lines, added, strict=False)]
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    trial = next(t for t in trials(CONFIRM, SEEDS, {}) if t.row == "FedAvg")
    keep_failure(folder, failure)
    (result,) = outcome_of(CONFIRM, [find_state(replace(trial, folder=folder))]).results
    assert (result.state, result.why) == ("failed", failure.reason)
    assert result.last == last
    complete = planned(tmp_path / "all")
    failed = [replace(result, id="x") if r.key == result.key else r for r in complete.results]
    outcome = replace(complete, results=tuple(failed))
    assert bool(outcome.withheld) == (last is None)
    if last is not None:
        again = read_outcome(write_outcome(outcome, tmp_path / "results"))
        assert not again.withheld
        contrast = compare_outcome(again)[0].contrasts[0]
        assert contrast.found is not None
        gains = [100 * (0.617345 - last["f1"]), *GAIN[0.1][0][1:]]
        assert (contrast.found.n, 100 * contrast.found.mean) == (4, pytest.approx(sum(gains) / 4))
        said = f"FedAvg diverged at seed 3 and counts there with a macro-F1 of {'20.0' if averaged else '0.0'} of 100."
        assert said in sentences(again)
        assert f"On HAM10000, β = 0.1, {said}" in map(plain, planned_verdict(compare_outcome(again)))
        assert "1 run failed, but counted at the planned endpoint: " in _page(again, tmp_path)


def test_differences_are_drawn_once_for_all_cells_with_a_dot_per_seed_unless_withheld(tmp_path: Path) -> None:
    """Four rows of four seeds: sixteen small dots, four means, and a line at zero."""
    (drawn,) = contrast_figure(compare_outcome(planned(tmp_path / "all")))
    svg = drawn.draw()
    names = [text for text in texts(svg) if "FedBM − " in text]
    assert names == [
        f"HAM10000, β\u00a0=\u00a0{beta}: FedBM − {rival}" for beta in (0.1, 0.05) for rival in ("FedAvg", "FedETF")
    ]
    assert svg.count("<circle ") == 16 + 4
    assert svg.count('stroke-width="1.2"') == 1
    assert _page(planned(tmp_path / "again"), tmp_path).count("differences within each seed") == 1
    withheld = planned(tmp_path / "some", missing=[("FedETF", 6)])
    assert contrast_figure(compare_outcome(withheld)) == []
    page = _page(withheld, tmp_path)
    assert "differences within each seed" not in page
    assert WITHHELD in page


def test_a_planned_verdict_is_a_sentence_per_cell(tmp_path: Path) -> None:
    about = "Macro-F1 counts rare findings as much as common ones."
    verdict = tuple(map(plain, planned_verdict(compare_outcome(planned(tmp_path / "a")))))
    assert verdict == (
        f"Macro-F1 of the averaged model on HAM10000, β = 0.1: FedBM is 11.0 points above FedAvg (+5.5 "
        f"{CHOSEN}); FedBM is 1.1 points above FedETF (+0.6 {CHOSEN}).",
        f"Macro-F1 of the averaged model on HAM10000, β = 0.05: FedBM is 7.0 points above FedAvg (+3.5 "
        f"{CHOSEN}); FedBM is 4.3 points above FedETF (+2.1 {CHOSEN}).",
        "Chance alone may explain: FedBM − FedETF on HAM10000, β = 0.1.",
        f"{about} The comparison was fixed before these runs.",
    )
    assert planned_verdict(compare_outcome(planned(tmp_path / "b", missing=[("FedETF", 6)]))) == ()
    estimate = tuple(map(plain, planned_verdict(compare_outcome(planned(tmp_path / "c", ESTIMATE)))))
    assert estimate[0] == verdict[0]
    assert estimate[2:] == (verdict[2], f"{about} {ESTIMATED}")


@pytest.mark.parametrize("name", ["FedAvg", "my method"])
def test_a_plan_without_fedbm_has_a_verdict_on_its_first_contrast(tmp_path: Path, name: str) -> None:
    rows = "".join(f'[[rows]]\nname = "{row}"\nmethod = "fedavg"\n' for row in (name, "FedProx"))
    plan = parse(f'seeds = "0-2"\ncontrasts = [["FedProx", "{name}"]]\n{rows}', "plan", "plan.toml")
    found = compare_outcome(fake_outcome(tmp_path, plan, rounds=3))
    assert [cell.lead for cell in found] == ["FedProx"]
    assert planned_verdict(found)[0] == f"Macro-F1 on Handwritten digits: FedProx is 0.0 points above {name}."


@pytest.mark.parametrize(
    ("contrasts", "verdict"),
    [
        (
            [["FedAvg", "FedBM"]],
            (
                "Macro-F1 of the averaged model on HAM10000, β = 0.1: FedAvg is 11.0 points below FedBM",
                "Macro-F1 of the averaged model on HAM10000, β = 0.05: FedAvg is 7.0 points below FedBM",
            ),
        ),
        (
            [["FedAvg", "FedBM"], ["FedETF", "FedBM"]],
            (
                "Macro-F1 of the averaged model on HAM10000, β = 0.1: FedAvg is 11.0 points below FedBM",
                "Macro-F1 of the averaged model on HAM10000, β = 0.05: FedAvg is 7.0 points below FedBM",
            ),
        ),
    ],
)
def test_a_plan_with_the_leading_row_in_second_place_has_a_verdict(
    tmp_path: Path, contrasts: list[list[str]], verdict: tuple[str, str]
) -> None:
    text = PLAN.format(confirmatory="confirmatory = true")
    text = text.replace('[["FedBM", "FedAvg"], ["FedBM", "FedETF"]]', json.dumps(contrasts))
    sentences = planned_verdict(compare_outcome(planned(tmp_path, parse(text, "plan", "plan.toml"))))
    assert tuple(plain(sentence).partition(" (")[0] for sentence in sentences[:2]) == verdict
    assert ("FedETF − FedBM on " in sentences[-2]) == (len(contrasts) > 1)


def test_pooled_differences_have_a_cluster_per_data_set_and_seed() -> None:
    """Worked by hand: clusters (a, 0): (1 + 3)/2 = 2, (a, 1): 4, (b, 0): 6.

    Their mean is 4 and their std 2. With t(0.975, 2) = 4.3027, the half width is 4.3027·2/√3 = 4.9683.
    """
    found = pool_clusters([("a", 0, 1.0), ("a", 0, 3.0), ("a", 1, 4.0), ("b", 0, 6.0)])
    assert found is not None
    assert (found.n, found.mean) == (3, 4.0)
    assert (found.low, found.high) == pytest.approx((4 - 4.9683, 4 + 4.9683), abs=1e-4)
    assert pool_clusters([]) is None


def test_a_report_pools_cells_and_calls_it_exploratory(tmp_path: Path) -> None:
    outcome = fake_outcome(tmp_path, "comparison-kvasir", seeds=3, rounds=2)
    found = compare_outcome(outcome)
    cells, pooled = pool_cells(found)["FedBM − FedAvg"]
    differences = {
        (place, seed): score - row["FedAvg"].by_seed()[seed]
        for place, row in enumerate({row.name: row for row in comparison.rows} for comparison in found)
        for seed, score in row["FedBM"].by_seed().items()
    }
    assert (cells, pooled.n) == (2, 3)  # one data set: a cluster is a seed
    assert pooled.mean == pytest.approx(sum(differences.values()) / 6)
    text = plain(render_markdown(experiments_report([outcome])))
    assert "Over all cells (exploratory)" in text
    assert f"| FedBM − FedAvg | 2 | 3 | {points(pooled.mean)} |" in text
    one_cell = replace(outcome, axes={**outcome.axes, "beta": (0.05,)})
    one_cell = replace(one_cell, results=tuple(r for r in outcome.results if r.at["beta"] == 0.05))
    assert "exploratory" not in render_markdown(experiments_report([one_cell]))


def test_a_planned_comparison_has_its_differences_by_round_and_its_classes() -> None:
    """The last of four rounds is the endpoint; recall is worked by hand from the confusion matrices on record."""
    comparison = compare_outcome(read_outcome(ROOT / "results" / "confirmation.json"))[0]
    table = rounds_table(comparison, "rounds")
    assert [column.title for column in table.columns] == [f"Round {number}" for number in (50, 100, 150, 200)]
    for row, contrast in zip(table.rows, comparison.contrasts, strict=True):
        assert contrast.found is not None
        assert str(row.cells["Round 200"].value).startswith(f"{points(contrast.found.mean)} (")
    first, contrast = other_scores_table(comparison, "scores").rows[0], comparison.contrasts[0]
    assert contrast.found is not None
    errors = [
        np.mean([f1_error(np.array(run.details.confusion.averaged)) for run in row.runs if run.details])
        for name in (contrast.first, contrast.second)
        for row in comparison.rows
        if row.name == name
    ]
    half = np.sqrt((contrast.found.high - contrast.found.mean) ** 2 + np.sum((1.96 * np.array(errors)) ** 2))
    low, high = (points(contrast.found.mean + sign * half) for sign in (-1, 1))
    assert (
        first.cells["Planned score, over seeds and images"].value == f"{points(contrast.found.mean)} ({low} to {high})"
    )
    for row in comparison.rows:
        classes = classes_of(comparison, row.name)
        matrices = [np.array(run.details.confusion.averaged) for run in row.runs if run.details]
        recall = np.mean([np.diag(matrix) / matrix.sum(axis=1) for matrix in matrices], axis=0)
        assert [line.cells["recall"].value for line in classes] == pytest.approx(recall.tolist())
        assert [line.cells["n"].value for line in classes] == matrices[0].sum(axis=1).tolist()


def classes_of(group: Group, row: str) -> list[Row]:
    table = class_table(group, "classes", dict.fromkeys([one.name for one in group.rows], 0), group.moment)
    assert table is not None
    return [line for line in table.rows if line.name == row]


def test_a_plan_on_test_images_of_one_class_has_a_report_without_auc(tmp_path: Path) -> None:
    """The AUC is not defined there."""
    outcome = planned(tmp_path)
    results = []
    for result in outcome.results:
        assert result.run is not None
        assert result.run.summary is not None
        averaged = {**result.run.summary["averaged"], "auc": None}
        results.append(replace(result, run=with_summary(result.run, averaged=averaged)))
    comparison = compare_outcome(replace(outcome, results=tuple(results)))[0]
    assert other_scores_table(comparison, "scores").rows[0].cells["AUC, averaged"].value is None


def test_other_scores_are_not_compared_without_the_seed_of_a_run_that_diverged() -> None:
    """They would only have the seeds at which FedAvg did not diverge."""
    whole = read_outcome(ROOT / "results" / "confirmation.json")
    first = next(one for one in whole.results if one.row == "FedAvg")
    results = [replace(r, run=None, last={"accuracy": 0.1, "f1": 0.1}) if r is first else r for r in whole.results]
    comparison = compare_outcome(replace(whole, results=tuple(results)))[0]
    assert [one.found.n for one in comparison.contrasts if one.found] == [10, 10]
    others, by_round = other_scores_table(comparison, "scores").rows, rounds_table(comparison, "rounds").rows
    for with_gap, complete in (others, by_round):
        assert {cell.value for key, cell in with_gap.cells.items() if not key.startswith("Planned")} == {None}
        assert None not in {cell.value for cell in complete.cells.values()}
    assert {line.cells["recall"].value for line in classes_of(comparison, "FedAvg")} == {None}
    assert None not in {line.cells["recall"].value for line in classes_of(comparison, "FedETF")}


def test_a_planned_difference_without_a_score_counts_as_a_test(tmp_path: Path) -> None:
    """FedETF has no score of an averaged model, so two of the four planned differences do not exist."""
    outcome = planned(tmp_path)
    results = []
    for result in outcome.results:
        run = result.run
        assert run is not None
        run = with_summary(run, averaged={"f1": None}) if result.row == "FedETF" else run
        results.append(replace(result, run=run))
    found = [one for cell in compare_outcome(replace(outcome, results=tuple(results))) for one in cell.contrasts]
    raw = [one.found.p if one.found else None for one in found]
    assert raw[1] is raw[3] is None
    assert [one.corrected for one in found] == [
        None if p is None else pytest.approx(q) for p, q in zip(raw, holm([p or 1.0 for p in raw]), strict=True)
    ]
    assert {one.tests for one in found} == {4}


def test_rounds_are_distinct_and_a_row_with_an_incomplete_run_has_no_scores_by_class() -> None:
    """A mean over the other seeds would not be comparable."""
    whole = read_outcome(ROOT / "results" / "confirmation.json")
    first = next(one for one in whole.results if one.row == "FedBM" and one.run)
    results = []
    for one in whole.results:
        assert one.run is not None
        results.append(replace(one, run=replace(one.run, planned=2, details=None if one is first else one.run.details)))
    comparison = next(cell for cell in compare_outcome(replace(whole, results=tuple(results))) if cell.at == first.at)
    assert list(rounds_table(comparison, "rounds").rows[0].cells) == ["Round 1", "Round 2"]
    assert {line.cells["recall"].value for line in classes_of(comparison, "FedBM")} == {None}
    assert None not in {line.cells["recall"].value for line in classes_of(comparison, "FedAvg")}


def test_a_plan_without_an_averaged_model_has_no_table_without_columns(tmp_path: Path) -> None:
    text = PLAN.format(confirmatory="confirmatory = true").replace('endpoint = "averaged last"', "")
    made = fake_outcome(tmp_path, parse(text, "plan", "plan.toml"), seeds=SEEDS, rounds=4)
    assert "| Difference |\n" not in render_markdown(experiments_report([made]))
    scoreless = compare_outcome(fake_outcome(tmp_path / "scoreless", CONFIRM, seeds=SEEDS, rounds=4))
    assert "FedBM − FedAvg: no seed has the planned score of both rows." in verdicts(scoreless[0])


def test_two_seeds_do_not_show_how_many_seeds_a_claim_needs(tmp_path: Path) -> None:
    gone = [(row, seed) for row in ("FedBM", "FedAvg", "FedETF") for seed in (5, 6)]
    table = contrast_table(compare_outcome(planned(tmp_path, ESTIMATE, gone))[0], "plan")
    assert [row.cells["n"].value for row in table.rows] == [2, 2]
    assert [row.cells["seeds"].value for row in table.rows] == [None, None]


def test_a_verdict_contains_a_difference_of_the_other_sign_without_averaging(tmp_path: Path) -> None:
    """Averaged, FedBM is 11.0 points ahead of FedAvg; at the chosen round, it is 2.0 points behind."""
    outcome = planned(tmp_path)
    results = []
    for result in outcome.results:
        run = result.run
        assert run is not None
        assert run.summary is not None
        best = {**run.summary["best"], "f1": 0.5 + 0.02 * (result.row == "FedAvg")}
        results.append(replace(result, run=with_summary(run, best=best)))
    first, *_ = planned_verdict(compare_outcome(replace(outcome, results=tuple(results))))
    assert f"FedBM is 11.0 points above FedAvg (−2.0 {CHOSEN})" in first


def test_an_estimate_that_may_be_zero_says_how_many_seeds_a_claim_needs(tmp_path: Path) -> None:
    """FedETF at β = 0.1: d = 1.125/1.750 = 0.643."""
    table = contrast_table(compare_outcome(planned(tmp_path, ESTIMATE))[0], "plan")
    assert [row.cells["seeds"].value for row in table.rows] == [None, f"about {seeds_needed(0.643, 0.05)}"]


LADDER = """
title = "What makes it work"
lead = "FedBM"
seeds = "3-6"
endpoint = "averaged last"
contrasts = [["half", "FedAvg"], ["FedBM", "half"], ["FedBM", "FedAvg"]]
[all]
data = "kvasir"
[[rows]]
name = "FedAvg"
method = "fedavg"
[[rows]]
name = "half"
method = "fedbm"
[[rows]]
name = "FedBM"
method = "fedbm"
"""


def climb(root: Path, scores: Mapping[str, Mapping[int, float]]) -> Outcome:
    """The ladder with these scores at its endpoint: row → seed → macro-F1. Other seeds were not run."""
    gone = {(row, seed): ("not run", "") for row, found in scores.items() for seed in SEEDS if seed not in found}
    made = fake_outcome(root, parse(LADDER, "ladder", "ladder.toml"), seeds=SEEDS, rounds=3, missing=gone)
    results = []
    for result in made.results:
        run = result.run
        if run is not None and run.summary is not None:
            averaged = {**run.summary["last"], "f1": scores[result.row][result.seed]}
            run = with_summary(run, averaged=averaged)
        results.append(replace(result, run=run))
    return replace(made, results=tuple(results))


def test_a_ladder_has_the_rows_of_the_file_with_their_share_of_the_gain(tmp_path: Path) -> None:
    level = {"FedAvg": 0.3, "half": 0.4, "FedBM": 0.5}
    scores = {row: {seed: f1 + 0.01 * (seed % 2) for seed in SEEDS} for row, f1 in level.items()}
    outcome = climb(tmp_path, scores)
    (cell,) = compare_outcome(outcome)
    table = ladder_table(cell, "ladder", dict.fromkeys(level, 0))
    assert [row.name for row in table.rows] == list(level)
    assert [row.cells["f1"].value for row in table.rows] == pytest.approx([0.305, 0.405, 0.505])
    assert [row.cells["share"].value for row in table.rows] == [None, pytest.approx(0.5), pytest.approx(1.0)]
    figure = ladder_figure(cell, assign_colours(level))
    assert figure is not None
    drawn = texts(figure.draw())
    assert [text for text in drawn if text in level] == list(level)
    page = _page(outcome, tmp_path)
    assert ">What makes it work</h1>" in page
    assert page.count("Every row at the endpoint of the plan") == 1
    assert [(step.first, step.second) for step in cell.ladder] == [("half", "FedAvg"), ("FedBM", "half")]
    rivals = replace(cell, contrasts=(cell.contrasts[2], cell.contrasts[1], cell.contrasts[0]))
    assert rivals.ladder == [], "comparisons with two rows that do not build on each other"
    assert sentences(outcome) == []
    confirmed = parse(LADDER.replace("[all]", "confirmatory = true\n[all]"), "ladder", "ladder.toml")
    tested = sentences(replace(outcome, analysis=confirmed.analysis))
    assert len(tested) == 3


@pytest.mark.parametrize(
    ("fedavg", "fedbm", "share", "title"),
    [
        ({3: 0.3, 4: 0.1, 5: 0.2}, {3: 0.5}, 0.8, "% of the lead’s gain, n = 1"),
        ({4: 0.1, 5: 0.2}, {3: 0.5, 6: 0.5}, None, ""),
        ({3: 0.3, 4: 0.1}, {3: 0.2, 4: 0.2}, None, ""),
    ],
    ids=["one shared seed", "no shared seed", "no gain"],
)
def test_a_share_of_the_gain_is_over_the_seeds_of_all_three_rows(
    tmp_path: Path, fedavg: dict[int, float], fedbm: dict[int, float], share: float | None, title: str
) -> None:
    """At seed 3, the row has 0.46 − 0.30 = 0.16 of 0.20. At its other seeds it gains more, where FedBM has no run."""
    half = {3: 0.46, 4: 0.6, 5: 0.6}
    (cell,) = compare_outcome(climb(tmp_path, {"FedAvg": fedavg, "half": half, "FedBM": fedbm}))
    table = ladder_table(cell, "ladder", dict.fromkeys(("FedAvg", "half", "FedBM"), 0))
    found = next(row.cells["share"].value for row in table.rows if row.name == "half")
    assert found == (None if share is None else pytest.approx(share))
    assert "".join(column.title for column in table.columns if column.key == "share") == title


@pytest.mark.parametrize("experiment", [CONFIRM, ESTIMATE])
def test_the_first_heading_of_a_page_on_one_experiment_is_not_its_title(tmp_path: Path, experiment: Experiment) -> None:
    outcome = planned(tmp_path / "runs", experiment)
    text = render_markdown(experiments_report([outcome]))
    first, second, *_ = re.findall("^#+ (.*)$", text, re.MULTILINE)
    assert (first, second) == ("A planned comparison", "Differences as planned")
    headings = re.findall(r"<h\d[^>]*>(.*?)</h\d>", _page(outcome, tmp_path))
    assert headings[:2] == [first, second]
    assert "\n## A planned comparison\n" in render_markdown(experiments_report([outcome], "A title"))


def test_without_steps_between_there_is_no_ladder(tmp_path: Path) -> None:
    (cell, _) = compare_outcome(planned(tmp_path))
    assert cell.ladder == []
    assert "Wall time of a run" not in _page(planned(tmp_path / "again"), tmp_path)


def test_without_scores_at_the_endpoint_there_is_no_ladder(tmp_path: Path) -> None:
    """These runs are finished, but none of them has an averaged model."""
    made = fake_outcome(tmp_path, parse(LADDER, "ladder", "ladder.toml"), seeds=SEEDS, rounds=3)
    page = _page(made, tmp_path)
    assert ">What makes it work</h1>" in page
    assert "Every row at the endpoint of the plan" not in page


def test_a_readme_shows_a_confirmation_once_it_is_complete(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("<!-- fedbm:results plan -->\n<!-- /fedbm:results -->\n", encoding="utf-8")
    other = fake_outcome(tmp_path / "other", "comparison-ham10000", seeds=2, rounds=3)
    with pytest.raises(FedBMError, match=WITHHELD):
        fill_readme([planned(tmp_path / "some", missing=[("FedETF", 6)]), other], page)
    picture = tmp_path / "docs" / "images" / "results.svg"
    assert fill_readme([planned(tmp_path / "all"), other], page) == [page, picture]
    assert "differences within each seed" in picture.read_text(encoding="utf-8")
    text = plain(page.read_text(encoding="utf-8"))
    assert "over 4 new seeds (3–6)" in text
    assert text.count("| --- |") == 1
    assert re.findall(r"^\| (?!Method|---)\**(\w+)", text, re.MULTILINE) == ["FedAvg", "FedETF", "FedBM", "Central"]
    assert "Macro-F1 of the averaged model on HAM10000, β = 0.1: FedBM is 11.0 points above FedAvg" in text
    assert text.count("](") == 2


def test_a_search_marks_no_row_by_its_test_scores(tmp_path: Path) -> None:
    text = '[all]\ndata = "digits"\n[axes]\nlr = [0.1, 0.2]\n[search]\nchoose = ["lr"]\n'
    rows = "".join(f'[[rows]]\nname = "{name}"\nmethod = "{name.lower()}"\n' for name in ("FedAvg", "FedBM"))
    for plan, marked in ((text, False), (text.partition("[search]")[0], True)):
        made = fake_outcome(tmp_path / str(marked), parse(plan + rows, "own", "own.toml"), seeds=2, rounds=3)
        table = results_table(compare_outcome(made)[0], "own", {"FedAvg": 0, "FedBM": 1}, {})
        assert any(cell.best for row in table.rows for cell in row.cells.values()) == marked
        assert ("Bold" in table.caption) == marked
