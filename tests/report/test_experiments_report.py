"""The report of experiments: words, marks and tables agree, notes are written once, and a run is counted once."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fake_outcomes import fake_outcome
from fake_runs import with_summary

from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.spec import parse
from fedbm.experiments.trials import Trial
from fedbm.report.comparison import compare_outcome
from fedbm.report.experiment_figures import overview_figure
from fedbm.report.experiments_report import TITLE, experiments_report
from fedbm.report.render.html import render_html
from fedbm.report.render.markdown import render_markdown
from fedbm.report.tables import BOLD, SHOWN
from fedbm.report.verdicts import main_rivals, verdicts

NOT_HERE = {"oct-c8": "not here"}


def page_of(outcomes: list[Outcome], elsewhere: tuple[str, ...] | None = None) -> str:
    return render_html(experiments_report(outcomes, elsewhere=elsewhere))


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return fake_outcome(tmp_path_factory.mktemp("runs"), "modules", seeds=2, rounds=3, absent=NOT_HERE)


@pytest.fixture(scope="module")
def ablation_page(ablation: Outcome) -> str:
    return page_of([ablation])


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return fake_outcome(tmp_path_factory.mktemp("runs"), "pseudo-batch", seeds=1, rounds=2, absent=NOT_HERE)


@pytest.fixture(scope="module")
def figure_page(figure: Outcome) -> str:
    return page_of([figure])


def behind(outcome: Outcome) -> Outcome:
    """FedBM has the lowest scores."""
    level = {"FedBM": 0.2, "w/o LKCC": 0.5, "w/o CGDE": 0.4}
    results = []
    for result in outcome.results:
        run = result.run
        if run is not None and run.summary is not None:
            scores = {"accuracy": level[result.row], "f1": level[result.row]}
            summary = {m: {**run.summary[m], **scores} for m in ("best", "last")}
            run = replace(with_summary(run, **summary), last_quarter={**(run.last_quarter or {}), **scores})
        results.append(replace(result, run=run))
    return replace(outcome, results=tuple(results))


def test_bold_is_the_highest_mean_and_the_tint_is_explained(ablation: Outcome) -> None:
    text = page_of([behind(ablation)])
    table = text[text.index('<table class="results measured">') : text.index("</table>")]
    assert re.findall(r"<strong>([\d.]+)", table) == ["50.0"] * 4  # accuracy, and macro-F1 thrice
    (tinted,) = re.findall(r'<tr class="lead-row">.*?</tr>', table, re.DOTALL)
    assert ">FedBM<" in tinted
    assert "<strong>" not in tinted
    assert f"{BOLD} The leading row is tinted, or its name is bold." in table
    assert "wherever it ranks" in text
    assert "font-weight: 600" not in text[text.index(".measured") : text.index(".lead-row")]


def test_a_table_has_its_scores_as_pictures_before_it(ablation: Outcome, ablation_page: str, figure_page: str) -> None:
    """Accuracy and macro-F1 of each cell with a result, the paper's beside; a figure has its own pictures instead."""
    text = ablation_page
    named = re.findall(
        r'aria-label="(.*?) of every seed at the round chosen on validation, and the paper’s; (.*?)"', text
    )
    assert named == [(words, cell.title) for cell in compare_outcome(ablation) if cell.lead for words in SHOWN.values()]
    assert text.index("of every seed at the round chosen") < text.index('<table class="results measured">')
    assert "of every seed at the round chosen" not in figure_page


def test_what_the_lead_is_ahead_by_is_a_picture_where_it_can_be_tested(ablation: Outcome) -> None:
    def uneven(result: Trial) -> Trial:
        if result.run is None or result.run.summary is None:
            return result
        best = {**result.run.summary["best"], "f1": 0.5 + 0.1 * result.seed * (result.row == "FedBM")}
        return replace(result, run=with_summary(result.run, best=best))

    made = replace(ablation, results=tuple(map(uneven, ablation.results)))
    said = 'aria-label="Macro-F1 of FedBM minus each row, 95 % intervals'
    text = page_of([made])
    assert text.count(said) == sum(bool(cell.lead) for cell in compare_outcome(made)) > 0
    assert "intervals are not corrected" in text
    alone = tuple(replace(r, run=None, state="not run") if r.seed else r for r in made.results)
    assert said not in page_of([replace(made, results=alone)])


def test_a_cell_without_a_result_has_no_table(ablation: Outcome, ablation_page: str) -> None:
    """Two β of Kvasir have runs, two of OCT-C8 have none: these are listed as missing."""
    titles = [cell.title for cell in compare_outcome(ablation)]
    with_table = re.findall(r'aria-label="[^"]*modules brings: ([^"]*?)">\n<table class="results m', ablation_page)
    assert with_table == titles[:2]
    missing = ablation_page[ablation_page.index("What is missing") :]
    assert all(f"<li>{title}: all rows</li>" in missing for title in titles[2:])


def test_a_run_of_two_experiments_has_the_name_the_first_gives_it(ablation: Outcome) -> None:
    second = replace(
        ablation,
        name="again",
        rows={f"again {row}": {} for row in ablation.rows},
        results=tuple(replace(result, row=f"again {result.row}") for result in ablation.results),
    )
    text = page_of([ablation, second])
    listed = re.findall(r"<summary>(.*?), kvasir, seed", text[text.index("Where it comes from") :])
    assert set(listed) == {"FedBM"}, "the fakes of a seed share an id, and FedBM is the first row"


def test_no_id_of_a_page_occurs_twice_and_every_reference_has_its_id(
    ablation: Outcome, figure: Outcome, tmp_path: Path
) -> None:
    """Two experiments may share runs, and so have equal pictures."""
    own = parse('title = "Own"\nmethods = ["fedavg", "fedbm"]\n[all]\ndata = "digits"', "own", "own")
    shared = fake_outcome(tmp_path / "runs", own, seeds=2, rounds=3)
    several = [shared, ablation, figure, replace(shared, name="again")]
    text = page_of(several, elsewhere=())
    ids = Counter(re.findall(r'\sid="([^"]*)"', text))
    assert [name for name, count in ids.items() if count > 1] == []
    referred = re.findall(r'(?:href="#|url\(#|\sfor="|labelledby=")([^")]+)', text)
    assert set(referred) <= set(ids)


def test_a_single_missing_run_is_named_where_it_is_said_to_be_missing(tmp_path: Path) -> None:
    alone, many = {("FedBM", 2): ("failed", "it broke")}, {("w/o LKCC", seed): ("not run", "") for seed in (0, 1)}
    made = fake_outcome(tmp_path / "runs", "modules", rounds=2, absent=NOT_HERE, missing={**alone, **many})
    one_beta = replace(made, axes={**made.axes, "data": ("kvasir",), "beta": (0.05,)})
    text = page_of([replace(one_beta, results=tuple(r for r in made.results if r.at["beta"] == 0.05))])
    missing = text[text.index("What is missing") :].replace("\N{NO-BREAK SPACE}", " ")
    assert "1 run failed: it broke. Kvasir, β = 0.05: FedBM (seed 2).</li>" in missing
    assert "2 runs not run. Kvasir, β = 0.05: w/o LKCC (seeds 0, 1).</li>" in missing


def test_a_run_of_two_cells_is_counted_once(tmp_path: Path) -> None:
    """Eleven methods, two β, three seeds: 66 cells, but Central's three runs stand in both columns."""
    made = fake_outcome(tmp_path / "runs", "comparison-ham10000", rounds=2, absent={"ham10000": "no images"})
    assert len(made.results) == 66
    text = page_of([made])
    assert "0 of 63 runs finished." in text
    assert "63 runs absent: no images" in text


def test_a_cell_whose_runs_another_shows_has_its_table_alone(tmp_path: Path) -> None:
    """Central training does not depend on β. A cell without another finished run has only its table."""
    made = fake_outcome(tmp_path / "runs", "comparison-kvasir", seeds=1, rounds=2)
    central = next(r.run for r in made.results if r.row == "Central")

    def only(result: Trial, *, methods: bool) -> Trial:
        if result.row == "Central":
            return replace(result, run=central)
        kept = methods and result.at["beta"] == 0.05
        return result if kept else replace(result, run=None, state="not run")

    for methods in (True, False):
        some = replace(made, results=tuple(only(result, methods=methods) for result in made.results))
        text = page_of([some])
        assert [cell.lead for cell in compare_outcome(some)] == ["FedBM", "FedBM"]
        assert text.count("Curves, clients, confusions, features, bytes and time") == methods
        assert text.count("Bytes and time of one run") == methods
        assert "No run with clients has" not in text


def test_time_is_labelled_and_there_for_ablations_and_figures(
    ablation: Outcome, ablation_page: str, figure: Outcome, figure_page: str
) -> None:
    for outcome, text in ((ablation, ablation_page), (figure, figure_page)):
        finished = sum(any(r.run for r in outcome.cell(next(iter(outcome.rows)), at)) for at in _cells(outcome))
        assert text.count("Bytes and time of one run: means over the row’s seeds") == finished > 0


def _cells(outcome: Outcome) -> list[dict[str, object]]:
    return [dict(at) for at in {repr(r.at): r.at for r in outcome.results}.values()]


def test_an_experiment_of_ones_own_has_its_own_title(ablation: Outcome, tmp_path: Path) -> None:
    own = [
        fake_outcome(tmp_path / name, parse(f'title = "{name}"\n[all]\ndata = "digits"', name, name), seeds=1, rounds=2)
        for name in ("Dropout", "Warm-up")
    ]
    assert "<title>Dropout; Warm-up · FedBM</title>" in page_of(own)
    assert f"<title>{TITLE}; Dropout · FedBM</title>" in page_of([ablation, own[0]])


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
    text = page_of([replace(outcome, results=named)])
    assert "2 of 4 runs finished." in text
    assert "1 run failed: the disk is full" in text
    assert "1 run not run" in text


# --- columns, notes, and cells without a result ----------------------------------------------------------------------


@pytest.mark.parametrize("methods", [["fedbm"], ["fedbm", "fedavg"]])
@pytest.mark.parametrize("seeds", [1, 2])
def test_the_page_has_the_columns_of_the_table(tmp_path: Path, methods: list[str], seeds: int) -> None:
    rows = "".join(f'[[rows]]\nname = "{method}"\nmethod = "{method}"\n' for method in methods)
    own = parse(f'[all]\ndata = "digits"\n{rows}', "mine", "mine.toml")
    text = page_of([fake_outcome(tmp_path, own, seeds=seeds, rounds=2)])
    assert all(len(found) == 1 for found in widths(text))
    assert ("; tinted" in text, '<th scope="col">Lead − row' in text or "Lead − row, macro-F1</th>" in text) == (
        len(methods) > 1,
    ) * 2
    assert ("lead-row" in text[text.index("<table") :]) is (len(methods) > 1)
    assert ">paper<" not in text
    assert "Paper, Δ" not in text


def test_the_page_of_the_papers_experiments(tmp_path: Path) -> None:
    outcome = fake_outcome(tmp_path, "comparison-femnist", seeds=1, rounds=2, absent={"femnist": "not here"})
    text = page_of([outcome])
    assert all(len(found) == 1 for found in widths(text))
    assert "Paper, Δ" in text


def widths(page: str) -> list[set[int]]:
    """Of every table of measured scores: how many columns its heads span, and how many cells each line has."""
    found = []
    for table in re.findall(r'<table class="results measured">(.*?)</table>', page, re.DOTALL):
        head, body = re.findall(r"<t(?:head|body)>(.*?)</t(?:head|body)>", table, re.DOTALL)
        top, *below = re.findall(r"<tr[^>]*>(.*?)</tr>", head, re.DOTALL)
        spans = [re.search(r'colspan="(\d)"', words) for words in re.findall("<th[^>]*>", top)]
        grouped = sum(int(span[1]) for span in spans if span)
        assert sum(row.count("<th") for row in below) == grouped
        assert top.count("rowspan") == (len(spans) - top.count("colgroup") if below else 0)
        lines = re.findall(r"<tr[^>]*>(.*?)</tr>", body, re.DOTALL)
        found.append({grouped + spans.count(None), *(len(re.findall("<t[hd]", line)) for line in lines)})
    return found


def test_a_note_is_written_once_and_rows_refer_to_it(ablation: Outcome) -> None:
    """Two experiments with equal notes: the second refers to the numbers of the first."""
    report = experiments_report([ablation, replace(ablation, title="Again")])
    assert [note.number for note in report.notes] == list(range(1, len(report.notes) + 1))
    assert len({note.text for note in report.notes}) == len(report.notes)
    text = render_markdown(report)
    assert all(text.count(note.text) == 1 for note in report.notes)
    first, second = report.parts
    assert first.notes == second.notes == (1, 2, 3)
    titles = {note.number: note.title for note in report.notes}
    row = text[text.index("| w/o LKCC |") :].splitlines()[0]
    assert row.endswith("| 4–12 |")
    assert {titles[number] for number in range(4, 13)} >= {"text", "split of Kvasir", "weights"}


def test_a_row_keeps_the_name_that_the_experiment_gives_it(tmp_path: Path) -> None:
    """Even if the name begins with that of its method."""
    text = '[[rows]]\nname = "fedavg-long"\nmethod = "fedavg"\n[[rows]]\nname = "FedBM"\nmethod = "fedbm"'
    report = experiments_report([fake_outcome(tmp_path, parse(text, "own", "own.toml"), seeds=1, rounds=2)])
    assert {run.summary.split(",")[0] for run in report.provenance} == {"fedavg-long", "FedBM"}


def test_the_report_opens_with_one_table_per_data_set_and_two_sentences(tmp_path: Path) -> None:
    outcome = fake_outcome(tmp_path, "comparison-ham10000", seeds=3, rounds=2)
    report = experiments_report([outcome])
    summary, *_ = report.opening
    text = render_markdown(report)
    opening = text[: text.index("## Eleven methods on HAM10000")]
    assert opening.count("| Method | Accuracy | Macro-F1 | Macro-F1, paper | Difference |") == 1
    assert [line for line in opening.splitlines() if line.startswith("| *β")] == [
        "| *β\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}0.1* |  |  |  |  |",
        "| *β\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}0.05* |  |  |  |  |",
    ]
    assert len([line for line in opening.splitlines() if line.startswith("- ")]) == 2
    assert getattr(summary, "heading", "") == "HAM10000"


def test_cells_without_a_result_are_listed_and_a_single_point_makes_no_line(tmp_path: Path) -> None:
    """Two values of the figure's axis make a line, one does not; the other cells are a list, not a table each."""
    whole = fake_outcome(tmp_path, "pseudo-batch", seeds=2, rounds=2, absent={"oct-c8": "not here"})

    def page(*places: int) -> str:
        results = tuple(
            r
            if r.run and r.at["pseudo_batch"] in places and r.at["beta"] == 0.05
            else replace(r, run=None, state="failed")
            for r in whole.results
        )
        return page_of([replace(whole, results=results)])

    one, two = page(32), page(32, 8)
    assert ("Scores by pseudo_batch" in one, "Scores by pseudo_batch" in two) == (False, True)
    assert [made.count("<caption>Test scores") for made in (one, two)] == [1, 2]
    listed = one[one.index("What is missing") :]
    assert "OCT-C8, β\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}0.1, pseudo_batch 4: FedBM" in listed


def test_the_page_has_the_verdicts_of_the_tables(ablation: Outcome, ablation_page: str) -> None:
    text = ablation_page
    (cell, *_) = compare_outcome(ablation)
    for verdict in verdicts(cell):
        assert f'<p class="verdict">{verdict}</p>' in text, "with its table"
    assert page_of([ablation]) == text


def test_the_overview_has_the_best_other_row_and_fedavg_of_every_cell(tmp_path: Path) -> None:
    """Differences that experiments share are drawn once; a single one is not drawn."""
    cells = compare_outcome(fake_outcome(tmp_path, "comparison-kvasir", seeds=3, rounds=3))
    names = [[row.name for row in main_rivals(cell)] for cell in cells]
    assert all(1 <= len(some) <= 2 and "Central" not in some for some in names)
    for cell, some in zip(cells, names, strict=True):
        means = {row.name: row.tests["best"].paired.mean for row in cell.rows if row.tests}
        assert means[some[0]] == min(means.values())
        assert "FedAvg" in some
    figure = overview_figure([*cells, *cells])
    assert figure is not None
    assert re.findall(r"FedBM − (.+?)</text>", figure.draw()) == [name for some in names for name in some]
    assert overview_figure([]) is None


def test_an_axis_may_have_values_written_as_numbers_and_as_texts(tmp_path: Path) -> None:
    text = 'figure = "clients"\nmethods = ["fedavg"]\n[axes]\nclients = [3, "2"]\n'
    outcome = fake_outcome(tmp_path / "runs", parse(text, "mine", "mine.toml"), seeds=1, rounds=3)
    assert "by clients" in page_of([outcome])
