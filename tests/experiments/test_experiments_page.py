"""The page of experiments: its words and its marks agree, and a run is counted once."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fake_outcomes import fake_outcome

from fedbm.experiments.analysis import columns
from fedbm.experiments.outcomes import TITLE, Outcome, Result
from fedbm.experiments.paper_numbers import Deviation
from fedbm.experiments.report import write_outcomes
from fedbm.experiments.spec import parse
from fedbm.experiments.tables import SHOWN, numbered, signs
from fedbm.report.grouping import compare
from fedbm.report.rounds_to_target import reach
from fedbm.runs.record import read_record, write_record

NOT_HERE = {"oct-c8": "not here"}


def page_of(outcomes: list[Outcome], folder: Path) -> str:
    return write_outcomes(outcomes, folder / "page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return fake_outcome(tmp_path_factory.mktemp("runs"), "modules", seeds=2, rounds=3, absent=NOT_HERE)


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return fake_outcome(tmp_path_factory.mktemp("runs"), "pseudo-batch", seeds=1, rounds=2, absent=NOT_HERE)


def behind(outcome: Outcome) -> Outcome:
    """FedBM has the lowest scores."""
    level = {"FedBM": 0.2, "w/o LKCC": 0.5, "w/o CGDE": 0.4}
    results = []
    for result in outcome.results:
        run = result.run
        if run is not None and run.summary is not None:
            scores = {"accuracy": level[result.row], "f1": level[result.row]}
            summary = {m: {**run.summary[m], **scores} for m in ("best", "last")}
            run = replace(run, summary={**run.summary, **summary}, last_quarter={**(run.last_quarter or {}), **scores})
        results.append(replace(result, run=run))
    return replace(outcome, results=tuple(results))


def test_bold_is_the_highest_mean_and_the_tint_is_explained(ablation: Outcome, tmp_path: Path) -> None:
    text = page_of([behind(ablation)], tmp_path)
    table = text[text.index('<table class="results measured">') : text.index("</table>")]
    assert re.findall(r"<strong>([\d.]+)", table) == ["50.0"] * 4  # accuracy, and macro-F1 thrice
    (tinted,) = re.findall(r'<tr class="lead-row">.*?</tr>', table, re.DOTALL)
    assert ">FedBM<" in tinted
    assert "<strong>" not in tinted
    assert "Bold: highest mean among rows with the most seeds; tinted: the leading row" in table
    assert "The tint does not say that it is best." in text
    assert "font-weight: 600" not in text[text.index(".measured") : text.index(".lead-row")]


def test_a_table_has_its_scores_as_pictures_before_it(ablation: Outcome, figure: Outcome, tmp_path: Path) -> None:
    """Accuracy and macro-F1 of each cell with a result, the paper's beside; a figure has its own pictures instead."""
    text = page_of([ablation], tmp_path)
    named = re.findall(
        r'aria-label="(.*?) of every seed at the round chosen on validation, and the paper’s; (.*?)"', text
    )
    assert named == [(words, column.title) for column in columns(ablation) if column.lead for words in SHOWN.values()]
    assert text.index("of every seed at the round chosen") < text.index('<table class="results measured">')
    assert "of every seed at the round chosen" not in page_of([figure], tmp_path)


def test_what_the_lead_is_ahead_by_is_a_picture_where_it_can_be_tested(ablation: Outcome, tmp_path: Path) -> None:
    def uneven(result: Result) -> Result:
        if result.run is None or result.run.summary is None:
            return result
        best = {**result.run.summary["best"], "f1": 0.5 + 0.1 * result.seed * (result.row == "FedBM")}
        return replace(result, run=replace(result.run, summary={**result.run.summary, "best": best}))

    made = replace(ablation, results=tuple(map(uneven, ablation.results)))
    said = 'aria-label="Macro-F1 of FedBM minus that of each row, 95 % intervals'
    assert page_of([made], tmp_path).count(said) == sum(bool(column.lead) for column in columns(made)) > 0
    assert "intervals are not corrected" in page_of([made], tmp_path)
    alone = tuple(replace(r, run=None, state="not run") if r.seed else r for r in made.results)
    assert said not in page_of([replace(made, results=alone)], tmp_path)


def test_a_table_without_a_result_is_folded_and_no_other_is(ablation: Outcome, tmp_path: Path) -> None:
    """Two β of Kvasir have runs, two of OCT-C8 have none: their tables are there, closed, and open in print."""
    text = page_of([ablation], tmp_path)
    folded = re.findall(r'<details class="more-of-it"><summary>No run is finished here.*?</details>', text, re.DOTALL)
    assert [re.findall(r'aria-label="(.*?)"', one)[0] for one in folded] == [
        column.title for column in columns(ablation) if not column.lead
    ]
    assert all("data or model not here" in one for one in folded)
    assert len(folded) == 2
    assert text.count('<table class="results measured">') == 4


def test_a_run_of_two_experiments_has_the_name_the_first_gives_it(ablation: Outcome, tmp_path: Path) -> None:
    second = replace(
        ablation,
        name="again",
        rows=tuple(f"again {row}" for row in ablation.rows),
        results=tuple(replace(result, row=f"again {result.row}") for result in ablation.results),
    )
    text = page_of([ablation, second], tmp_path)
    listed = re.findall(r"<summary>(.*?), kvasir, seed", text[text.index("Where it comes from") :])
    assert set(listed) == {"FedBM"}, "the fakes of a seed share an id, and FedBM is the first row"


def test_no_id_of_a_page_occurs_twice_and_every_reference_has_its_id(
    ablation: Outcome, figure: Outcome, tmp_path: Path
) -> None:
    """Two experiments may share runs, and so have equal pictures."""
    own = parse('title = "Own"\nmethods = ["fedavg", "fedbm"]\n[all]\ndata = "digits"', "own", "own")
    shared = fake_outcome(tmp_path / "runs", own, seeds=2, rounds=3)
    several = [shared, ablation, figure, replace(shared, name="again")]
    text = write_outcomes(several, tmp_path / "page.html", whole=True).read_text(encoding="utf-8")
    ids = Counter(re.findall(r'\sid="([^"]*)"', text))
    assert [name for name, count in ids.items() if count > 1] == []
    referred = re.findall(r'(?:href="#|url\(#|\sfor="|labelledby=")([^")]+)', text)
    assert set(referred) <= set(ids)
    assert [name for name in ids if re.match(r"f[0-9a-f]{8}-2-", name)], "no two pictures were equal"


def test_a_single_missing_run_is_named_where_it_is_said_to_be_missing(tmp_path: Path) -> None:
    alone, many = {("FedBM", 2): ("failed", "it broke")}, {("w/o LKCC", seed): ("not run", "") for seed in (0, 1)}
    made = fake_outcome(tmp_path / "runs", "modules", rounds=2, absent=NOT_HERE, missing={**alone, **many})
    one_beta = replace(made, axes={**made.axes, "data": ("kvasir",), "beta": (0.05,)})
    text = page_of([replace(one_beta, results=tuple(r for r in made.results if r.at["beta"] == 0.05))], tmp_path)
    missing = text[text.index("What is missing") :].replace("\N{NO-BREAK SPACE}", " ")
    assert "1 run failed: it broke: FedBM, Kvasir, β = 0.05, seed 2</li>" in missing
    assert re.search(r"2 runs not run\s*<details", missing)


def test_a_run_of_two_cells_is_counted_once(tmp_path: Path) -> None:
    """Eleven methods, two β, three seeds: 66 cells, but Central's three runs stand in both columns."""
    made = fake_outcome(tmp_path / "runs", "comparison-ham10000", rounds=2, absent={"ham10000": "no images"})
    assert len(made.results) == 66
    text = page_of([made], tmp_path)
    assert "0 of 63 runs are finished" in text
    assert "63 runs cannot be run here: no images" in text


def test_a_cell_whose_runs_another_shows_has_its_table_alone(tmp_path: Path) -> None:
    """Central training does not depend on β. Nothing else is finished at 0.1: its curves and bytes stand at 0.05."""
    made = fake_outcome(tmp_path / "runs", "comparison-kvasir", seeds=1, rounds=2)
    central = next(r.run for r in made.results if r.row == "Central")

    def only(result: Result, *, methods: bool) -> Result:
        if result.row == "Central":
            return replace(result, run=central)
        kept = methods and result.at["beta"] == 0.05
        return result if kept else replace(result, run=None, state="not run")

    for methods in (True, False):  # without methods the first cell shows them
        some = replace(made, results=tuple(only(result, methods=methods) for result in made.results))
        text = page_of([some], tmp_path)
        assert [column.lead for column in columns(some)] == ["FedBM", "FedBM"]
        assert text.count("Curves, clients, confusions, features, bytes and time") == 1
        assert text.count("Bytes and time of one run") == 1
        assert "No run with clients holds" not in text


def test_time_is_labelled_and_there_for_ablations_and_figures(
    ablation: Outcome, figure: Outcome, tmp_path: Path
) -> None:
    for outcome in (ablation, figure):
        text = page_of([outcome], tmp_path)
        finished = sum(any(r.run for r in outcome.cell(outcome.rows[0], at)) for at in _cells(outcome))
        assert text.count("Bytes and time of one run, each the mean over the row’s seeds.") == finished > 0


def _cells(outcome: Outcome) -> list[dict[str, object]]:
    return [dict(at) for at in {repr(r.at): r.at for r in outcome.results}.values()]


def test_an_experiment_of_ones_own_has_its_own_title(ablation: Outcome, tmp_path: Path) -> None:
    own = [
        fake_outcome(tmp_path / name, parse(f'title = "{name}"\n[all]\ndata = "digits"', name, name), seeds=1, rounds=2)
        for name in ("Dropout", "Warm-up")
    ]
    assert "<title>Dropout; Warm-up · FedBM</title>" in page_of(own, tmp_path)
    assert f"<title>{TITLE}; Dropout · FedBM</title>" in page_of([ablation, own[0]], tmp_path)


@pytest.mark.parametrize(("rounds", "words"), [(100, "every round"), (200, "at most every 2 rounds")])
def test_how_often_an_accuracy_was_looked_at(tmp_path: Path, rounds: int, words: str) -> None:
    made = fake_outcome(tmp_path / "runs", "modules", seeds=1, rounds=rounds, absent=NOT_HERE)
    runs = [result.run for result in made.results if result.run and result.at["beta"] == 0.05]
    for run in runs:
        write_record(replace(run, label=run.path.parent.name), tmp_path / f"{run.path.parent.name}.json")
    records = [
        replace(read_record(tmp_path / f"{run.path.parent.name}.json"), label=run.path.parent.name) for run in runs
    ]
    (group,) = compare(records)
    found = reach(group)
    assert found is not None
    assert found.looked == words


def test_what_is_unlike_the_paper_is_named_in_ascending_order(ablation: Outcome) -> None:
    """A later row may have one of its own before those that it shares with the first."""
    column = columns(ablation)[0]
    first, second, own = (Deviation(mark, "", "", "") for mark in ("round", "SGD", "text"))
    lines = [
        replace(line, unlike=unlike)
        for line, unlike in zip(column.lines, [(first, second), (first, own, second)], strict=False)
    ]
    numbers = numbered([replace(column, lines=tuple(lines))])
    assert numbers == {first: 1, second: 2, own: 3}
    assert [signs(line, numbers, ", ") for line in lines] == ["1, 2", "1–3"]


def test_cells_that_share_a_run_which_is_not_finished_count_it_once(tmp_path: Path) -> None:
    """FedAvg has no temperature: its two cells are one run, also where it failed or was not run."""
    grid = "[axes]\ntemperature = [7.5, 12.5]\n" + "".join(
        f'[[rows]]\nname = "{method}"\nmethod = "{method}"\n' for method in ("fedavg", "fedprox", "fedbm")
    )
    states = {"fedavg": ("failed", "the disk is full"), "fedprox": ("not run", "")}
    missing = {(row, 0): state for row, state in states.items()}
    outcome = fake_outcome(tmp_path / "runs", parse(grid, "mine", "mine"), seeds=1, rounds=3, missing=missing)
    ids = [r.row if r.row in states else f"{r.row} {r.at}" for r in outcome.results]
    named = tuple(
        replace(r, id=one, run=replace(r.run, id=one) if r.run else None)
        for r, one in zip(outcome.results, ids, strict=True)
    )
    text = page_of([replace(outcome, results=named)], tmp_path)
    assert "2 of 4 runs are finished." in text
    assert "1 run failed: the disk is full" in text
    assert "1 run not run" in text
