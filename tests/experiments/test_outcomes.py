"""Records of runs and experiments: small, whole, and enough for every table."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_outcomes import fake_outcome
from fake_runs import fake_run
from hypothesis import example, given
from hypothesis import strategies as st
from pages import DOCS, section_of
from PIL import Image

from fedbm.errors import FedBMError
from fedbm.experiments.analysis import columns
from fedbm.experiments.latex import latex
from fedbm.experiments.outcomes import Outcome, read_outcome, read_outcomes
from fedbm.experiments.pictures import overview
from fedbm.experiments.record_store import write_outcome
from fedbm.experiments.report import write_outcomes
from fedbm.experiments.spec import parse
from fedbm.experiments.tables import FIELDS, HEADS, comma_separated, grid, markdown
from fedbm.experiments.wording import foremost, verdicts
from fedbm.report.checks import findings
from fedbm.report.figures.generated import galleries
from fedbm.report.grouping import compare
from fedbm.report.render.escaping import md, tex
from fedbm.report.render.html import colours_of, environment, group_view
from fedbm.report.tables import METRICS
from fedbm.runs.reader import RunView, read_run
from fedbm.runs.record import MOST_POINTS, _kept, read_record, record_of, write_record

FAILED = ("failed", "round 3: the update of client 1 is unusable: body.bn is not finite")


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Kvasir: FedBM has two seeds of three, w/o CGDE none; OCT-C8 is not here."""
    return fake_outcome(
        tmp_path_factory.mktemp("runs"),
        "modules",
        missing={("FedBM", 2): FAILED, **{("w/o CGDE", seed): ("not run", "") for seed in range(3)}},
        absent={"oct-c8": "the images of oct-c8 are not here"},
    )


@pytest.mark.parametrize("rounds", [7, 100, 333])
def test_a_record_gives_back_what_a_report_needs(tmp_path: Path, rounds: int) -> None:
    run = read_run(fake_run(tmp_path / "runs", "fedbm", seed=0, rounds=rounds, classes=[str(k) for k in range(8)]))
    write_record(run, tmp_path / "records" / "one.json")
    found = read_record(tmp_path / "records" / "one.json")
    assert found.generated == tmp_path / "records" / "one.jpg"
    for name in ("id", "method", "label", "data", "beta", "clients", "seed", "planned", "summary", "environment"):
        assert getattr(found, name) == getattr(run, name), name
    assert {"data", "method", "train"} <= set(found.config)
    assert "engine" not in found.config  # paths of a machine
    assert found.train_images == run.train_images
    assert len(found.rounds) <= MOST_POINTS + 1
    best = run.summary["best"]["round"] if run.summary else 0
    kept = {record["round"]: record for record in found.rounds}
    assert {best, rounds} <= set(kept)
    for record in run.rounds:
        if record["round"] in kept:
            assert kept[record["round"]]["test"]["f1"] == pytest.approx(record["test"]["f1"], abs=1e-5)
    assert total(found, "bytes", "sent") == total(run, "bytes", "sent")
    assert total(found, "seconds", "train") == pytest.approx(total(run, "seconds", "train"), abs=1e-3)
    assert (tmp_path / "records" / "one.json").stat().st_size < 25_000


def test_generated_images_of_earlier_rounds_are_in_the_record(tmp_path: Path) -> None:
    """Noise, which compresses worst: a column of two tiles per round, in the order of rounds, with its label."""
    folder = fake_run(tmp_path / "runs", "fedbm", seed=0, classes=[str(k) for k in range(8)])
    (folder / "generated").mkdir()
    for number in (5, 10, 20, 50, 100, 200):
        noise = np.random.default_rng(number).integers(0, 256, (8 * 64, 8 * 64, 3), np.uint8)
        if number == 10:
            noise[:, : 2 * 64] = 255
        Image.fromarray(noise).save(folder / "generated" / f"{number}.png")
    path = tmp_path / "records" / "one.json"
    write_record(read_run(folder), path)
    found = read_record(path)
    assert found.strip == tmp_path / "records" / "one.rounds.jpg"
    assert found.strip_rounds == (5, 10, 20, 50, 100, 200)
    assert found.strip.stat().st_size < 60_000
    with Image.open(found.strip) as strip:
        columns_ = np.asarray(strip.convert("L"), float).reshape(strip.height, 6, -1).mean(axis=(0, 2))
    assert columns_.argmax() == 1
    (group,) = compare([found])
    ((gallery,), _) = galleries(group)
    assert gallery.rounds == (5, 10, 20, 50, 100, 200)
    assert [name for name, _ in gallery.course] == list("01234567")
    text = (
        environment()
        .get_template("report.html.j2")
        .render(title="", groups=[group_view(group, "g", colours_of([group]))], runs=[], metrics=METRICS, version="")
    )
    assert "".join(f"<span>{number}</span>" for number in (5, 10, 20, 50, 100, 200)) in text


def test_a_record_without_earlier_rounds_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    write_record(read_run(fake_run(tmp_path / "runs", "fedbm")), path)
    value = json.loads(path.read_text(encoding="utf-8"))
    del value["drawn"]  # as records were written before
    path.write_text(json.dumps(value), encoding="utf-8")
    assert (read_record(path).strip, read_record(path).strip_rounds) == (None, ())


def total(run: RunView, part: str, key: str) -> float:
    return sum(record[part][key] for record in run.rounds)


def test_partitions_are_compared_by_digest(tmp_path: Path) -> None:
    runs = [read_run(fake_run(tmp_path / "runs", method, seed=0)) for method in ("fedavg", "fedbm")]
    for run in runs:
        write_record(run, tmp_path / f"{run.method}.json")
    (group,) = compare([read_record(tmp_path / f"{run.method}.json") for run in runs])
    assert any("clients hold the same samples" in finding.sentence for finding in findings(group))


def test_an_outcome_is_read_as_it_was_written(modules: Outcome, tmp_path: Path) -> None:
    write_outcome(modules, tmp_path)
    (again,) = read_outcomes(tmp_path)
    assert comma_separated([again]) == comma_separated([modules])
    assert markdown([again]) == markdown([modules])
    assert [(r.key, r.state, r.why) for r in again.results] == [(r.key, r.state, r.why) for r in modules.results]


def test_what_another_machine_finished_stays(modules: Outcome, tmp_path: Path) -> None:
    write_outcome(modules, tmp_path)
    bare = replace(modules, results=tuple(replace(r, state="absent", why="no data", run=None) for r in modules.results))
    write_outcome(bare, tmp_path)
    again = read_outcome(tmp_path / "modules.json")
    assert [r.state for r in again.results if r.run] == ["finished"] * 10
    assert {(r.row, r.state) for r in again.results if not r.run and r.at["data"] == "kvasir"} == {
        ("FedBM", "failed"),  # there it was tried, here it was not
        ("w/o CGDE", "absent"),
    }


def told_of_one(outcome: Outcome, **more: Any) -> Outcome:
    """Only the first result of *outcome*, without a run, and so changed."""
    return replace(outcome, results=(replace(outcome.results[0], **{"run": None, "why": "", "id": "it", **more}),))


@pytest.mark.parametrize("state", ["unfinished", "failed"])
def test_a_run_that_is_here_says_itself_what_it_takes(modules: Outcome, state: str, tmp_path: Path) -> None:
    """Also where it says nothing: what was told before may be of a folder that has changed."""
    before = told_of_one(modules, state="unfinished", takes="about 3 h on GPU")
    for takes in ("about 4 min on cpu", ""):
        write_outcome(before, tmp_path)
        path = write_outcome(told_of_one(modules, state=state, why="now", takes=takes), tmp_path)
        assert [(r.state, r.why, r.takes) for r in read_outcome(path).results] == [(state, "now", takes)]


@pytest.mark.parametrize("before", ["not run", "unfinished", "failed"])
@pytest.mark.parametrize(("now", "known"), [("not run", "it"), ("absent", "")])
def test_of_a_run_that_is_not_here_the_last_word_is_kept(
    modules: Outcome, before: str, now: str, known: str, tmp_path: Path
) -> None:
    for takes, kept in (("", "about 3 h on GPU"), ("about 4 min on cpu", "about 4 min on cpu")):
        write_outcome(told_of_one(modules, state=before, takes="about 3 h on GPU"), tmp_path)
        path = write_outcome(told_of_one(modules, state=now, takes=takes, id=known), tmp_path)
        (result,) = read_outcome(path).results
        assert (result.takes, result.id) == (kept, "it")
        assert result.state == (now if before == "not run" else before)
        path.unlink()


def test_what_is_finished_elsewhere_outlasts_a_folder_that_is_not(modules: Outcome, tmp_path: Path) -> None:
    finished = next(r for r in modules.results if r.run is not None)
    assert finished.run is not None
    write_outcome(replace(modules, results=(replace(finished, id=finished.run.id),)), tmp_path)
    here = replace(finished, run=None, state="unfinished", why="1 of 4 rounds played", id=finished.run.id)
    (result,) = read_outcome(write_outcome(replace(modules, results=(here,)), tmp_path)).results
    assert (result.state, result.run is not None) == ("finished", True)


def test_the_page_names_what_a_trial_has_and_how_many_rounds_a_record(modules: Outcome, tmp_path: Path) -> None:
    """The most there are: evenly spaced ones, and between them the best."""
    words = section_of(DOCS / "records.md", "Records of experiments")
    trials = json.loads(write_outcome(modules, tmp_path).read_text(encoding="utf-8"))["trials"]
    assert {key for trial in trials for key in trial} <= set(re.findall(r"`(\w+)`", words))
    most = max(len(_kept(range(1, rounds + 1), best)) for rounds in range(1, 402) for best in (1, rounds // 2 + 1))
    assert f"columns over at most {most} rounds" in words


def test_records_without_ids_are_read(modules: Outcome, tmp_path: Path) -> None:
    """The id of a finished run is its record's."""
    path = write_outcome(modules, tmp_path)
    value = json.loads(path.read_text(encoding="utf-8"))
    for trial in value["trials"]:
        del trial["id"]
    path.write_text(json.dumps(value), encoding="utf-8")
    assert [r.id for r in read_outcome(path).results] == [r.run.id if r.run else "" for r in modules.results]


def test_missing_cells_say_why_and_hold_no_number(modules: Outcome) -> None:
    shown = markdown([modules])
    line = next(line for line in shown.splitlines() if line.startswith("| w/o CGDE"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    row = dict(zip(HEADS, cells, strict=True))
    assert (row["n"], row["p"]) == ("0", "–")
    assert row["accuracy"] == row["f1"] == row["last_f1"] == "not run"
    assert "- failed: round 3: the update of client 1 is unusable: body.bn is not finite: FedBM (seed 2)." in shown
    assert "- absent: the images of oct-c8 are not here: FedBM (seeds 0, 1" in shown
    lines = [one for one in csv.DictReader(comma_separated([modules]).splitlines()) if one["round"] == "best"]
    assert {one["missing"] for one in lines if one["row"] == "w/o CGDE"} == {"not run", "data or model not here"}
    assert (lines[0]["row"], lines[0]["missing"]) == ("FedBM", "failed")
    assert lines[0]["missing_in_words"] == f"failed: {FAILED[1]}: FedBM (seed 2)"
    assert {one["missing_in_words"] for one in lines if not one["missing"]} == {""}
    assert {one["command"] for one in lines} == {"fedbm reproduce modules --data-dir DIR"}


def test_the_paper_stands_beside(modules: Outcome) -> None:
    """Kvasir at β = 0.05, w/o LKCC: 28.04 ± 9.74 accuracy in the paper."""
    column = columns(modules)[0]
    line = next(line for line in column.lines if line.name == "w/o LKCC")
    assert line.row is not None
    assert line.published is not None
    assert (line.published.mean["accuracy"], line.published.std["accuracy"]) == (28.04, 9.74)
    assert {one.mark for one in line.unlike} >= {"text", "split"}
    ours = line.row.score("best", "accuracy")
    assert ours is not None
    shown = next(text for text in markdown([modules]).splitlines() if text.startswith("| w/o LKCC"))
    assert f"| 28.04 ± 9.74 | {100 * ours.mean - 28.04:+.1f} |".replace("-", "−") in shown


def test_names_do_not_become_markup_in_markdown(tmp_path: Path) -> None:
    """A bar would begin a cell, and a browser would read a tag."""
    rows = """
    title = "a|b *c* <b>d</b>"
    shows = "_s_"
    notes = ["`n` <i>"]
    [axes]
    lr = [0.1, 0.01]
    [search]
    choose = ["lr"]
    [[rows]]
    name = "x|y <u>"
    method = "fedavg"
    [[rows]]
    name = "*z*"
    method = "fedbm"
    """
    outcome = fake_outcome(tmp_path, parse(rows, "own", "own.toml"), seeds=1, rounds=2)
    shown = markdown([outcome], whole=True)
    assert shown.startswith(
        "# a\\|b \\*c\\* &lt;b>d&lt;/b>\n\n## a\\|b \\*c\\* &lt;b>d&lt;/b>\n\n\\_s\\_. `fedbm sweep"
    )
    assert "- \\`n\\` &lt;i>\n" in shown
    assert "**x\\|y &lt;u>**" in shown  # the leading row
    assert "x\\|y &lt;u> has " in shown
    searched = shown[shown.index("**Chosen on validation**") :].splitlines()[2:]
    assert [line.split(" | ")[0] for line in searched[2:]] == ["| x\\|y &lt;u>"] * 2 + ["| \\*z\\*"] * 2
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in searched}) == 1
    assert not re.search(r"</?[bui]>", shown)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
@example("<`0")
def test_any_text_is_one_cell_in_markdown(text: str) -> None:
    """Without what is escaped no sign is left that could begin emphasis, code, a link, a tag or a cell."""
    bare = re.sub(r"\\[\\|*`\[_]", "\0", md(text))
    assert not set(bare) & set("\\|*`")
    assert not re.search(r"\[[^]]*\][(\[]", bare)
    assert not re.search(r"<[\w/!?]", bare)


def test_latex_is_whole_and_safe(modules: Outcome) -> None:
    text = latex([modules])
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == 4  # two of each β on Kvasir
    assert text.isascii()
    assert {line.count(" & ") for line in text.splitlines() if line.endswith("\\\\")} == {7, 6}
    assert "is not finite: FedBM (seed 2)." in text
    assert "w/o LKCC\\textsuperscript{(1--5)} & 3 &" in text
    assert "(1) Not like the paper, round: chosen on validation by the highest accuracy + macro-F1" in text


def test_latex_has_what_a_search_tried(tmp_path: Path) -> None:
    outcome = fake_outcome(tmp_path, "search-ham10000", seeds=1, rounds=3)
    text = latex([outcome])
    assert text.isascii()
    assert "$\\lambda_{\\mathrm{dis}}$ and the pseudo-batch on HAM10000: chosen on validation.}" in text
    assert text.count("& chosen") == 1


def test_latex_has_commands_as_they_are_typed(modules: Outcome) -> None:
    """A dash for two hyphens, or quotes that are not those of a keyboard, could not be copied."""
    text = latex([modules], whole=True)
    assert "\\texttt{fedbm reproduce modules -{}-data DIR}" in text
    assert "\\texttt{fedbm reproduce comparison-ham10000 -{}-data DIR}" in text  # of which there is no record
    assert "; \\texttt{-{}-budget 2m} measures it" in text
    assert not re.search(r"--[a-z]", text)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("by 'fedbm reproduce search-ham10000'.", "by \\texttt{fedbm reproduce search-ham10000}."),
        ("clients' models, the paper's", "clients' models, the paper's"),
        ("'fedbm run --out a_b'; 1–3", "\\texttt{fedbm run -{}-out a\\_b}; 1--3"),
        ("a -- b ''c'' --- d", "a -{}- b '{}'c'{}' -{}-{}- d"),
        ("""a "word" 'a "word"'""", "a ''word'' \\texttt{a {\\char34}word{\\char34}}"),
    ],
)
def test_code_in_prose_is_code_in_latex(text: str, written: str) -> None:
    assert tex(text) == written


def test_latex_has_the_notes_once_after_the_tables(modules: Outcome) -> None:
    warned = replace(modules, notes=("Chosen after results were known: it suggests.", "One of two."))
    *tables, after = latex([warned]).split("\\end{table*}")
    for note in warned.notes:
        assert after.count(f"\\par\\noindent {note}\n") == 1
        assert not any(note in table for table in tables)


@given(st.text() | st.text("'-`?, fed\\"))
@example("'``'")
def test_any_text_is_safe_in_latex(text: str) -> None:
    """Only commands, groups and formulas that are whole: what is left without them holds none of LaTeX's signs."""
    written = tex(text)
    assert written.isascii()
    assert "\n" not in written
    assert written.count("$") % 2 == written.count("\\$") % 2
    written = re.sub(r"(?<=[-'`?!,])\{\}|\{\\char34\}", "", written)
    written = re.sub(r"\\(?:ss|[oO]|[lL]|i|[ao]e|[AO]E)\{\}", "", written)
    bare = re.sub(r"\\text\w+\{\}|\\dots\{\}|\\[`'^~\"cv=u.rH]\{\w\}|\\[&%$#_{}]|\$[^$]*\$|\{[\[*]\}", "", written)
    bare = re.sub(r"\\texttt\{([^{}\\]*)\}", r"\1", bare)
    assert not set(bare) & set("\\&%$#_{}^")


def test_a_table_for_programs_says_it_all(modules: Outcome) -> None:
    lines = list(csv.DictReader(comma_separated([modules]).splitlines()))
    assert tuple(lines[0]) == FIELDS
    best, last, late = (one for one in lines if one["row"] == "w/o LKCC" and one["cell"] == columns(modules)[0].title)
    assert (float(best["paper_accuracy_std"]), float(best["paper_f1"])) == pytest.approx((0.0974, 0.2118))
    assert float(best["f1_minus_paper"]) == pytest.approx(float(best["f1"]) - 0.2118)
    assert best["unlike"] == "round, seeds, text, images, split"
    assert "text: read by MiniLM (all-MiniLM-L6-v2); the paper: concepts read by" in best["unlike_in_words"]
    assert best["lead"] == "FedBM"
    assert last["round"] == "last"
    assert last["lead_minus_row_f1"]
    assert last["f1_minus_paper"] == late["f1_minus_paper"] == ""
    assert late["round"] == "last_quarter"
    assert late["f1"] not in (best["f1"], last["f1"])


def test_a_stand_in_has_the_papers_number_without_a_difference(tmp_path: Path) -> None:
    outcome = fake_outcome(tmp_path, "comparison-femnist", seeds=1, absent={"femnist": "not here"}, rounds=3)
    line = next(line for line in columns(outcome)[0].lines if line.name == "FedAvg")
    assert line.published is not None
    assert line.published.mean["accuracy"] == 73.06
    assert not line.comparable
    assert "stand-in" in {one.mark for one in line.unlike}
    shown = next(text for text in markdown([outcome]).splitlines() if text.startswith("| FedAvg"))
    assert "| 73.06 ± 2.09 | " in shown
    assert "Δ" not in grid(columns(outcome)[0])[0]


def test_broken_records_are_one_sentence(modules: Outcome, tmp_path: Path) -> None:
    write_outcome(modules, tmp_path)
    path = tmp_path / "modules.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    record = tmp_path / "runs" / f"{value['trials'][0]['run']}.json"
    record.write_text('{"format": 1, "summary": {}, "config": {}}', encoding="utf-8")
    with pytest.raises(FedBMError, match="run is missing"):
        read_outcome(path)
    record.unlink()
    with pytest.raises(FedBMError, match="cannot read"):
        read_outcome(path)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(FedBMError, match="holds no experiment that this FedBM reads"):
        read_outcome(path)
    with pytest.raises(FedBMError, match="holds no records of experiments"):
        read_outcomes(tmp_path / "runs" / "none")


def test_verdicts_are_alike_whoever_is_ahead(tmp_path: Path) -> None:
    def said(ours: list[float], theirs: list[float], where: str) -> str:
        scores = {"FedBM": ours, "w/o LKCC": theirs, "w/o CGDE": theirs}
        outcome = fake_outcome(tmp_path / where, "modules", rounds=3, absent={"oct-c8": "not here"})
        results = tuple(
            replace(r, run=scored_run(r.run, scores[r.row][r.seed])) if r.run else r for r in outcome.results
        )
        return verdicts(columns(replace(outcome, results=results))[0])[0].sentence

    ahead = said([0.9, 0.92, 0.91], [0.7, 0.721, 0.711], "a")
    assert "+19.9 points" in ahead.replace("\N{NO-BREAK SPACE}", " ")
    assert ahead.endswith("An advantage is established.")
    behind = said([0.7, 0.721, 0.711], [0.9, 0.92, 0.91], "b")
    assert behind.endswith("A disadvantage is established.")
    unclear = said([0.7, 0.9, 0.8], [0.75, 0.8, 0.79], "c")
    assert unclear.endswith("An advantage is not established.")
    assert "n = 3, 95 % interval" in unclear.replace("\N{NO-BREAK SPACE}", " ")


def scored_run(run: RunView, f1: float) -> RunView:
    assert run.summary is not None
    return replace(run, summary={**run.summary, "best": {**run.summary["best"], "f1": f1}})


def test_the_page_says_what_the_tables_say(modules: Outcome, tmp_path: Path) -> None:
    text = write_outcomes([modules], tmp_path / "page.html").read_text(encoding="utf-8")
    (column, *_) = columns(modules)
    for verdict in verdicts(column):
        assert f'<p class="verdict">{verdict.sentence}</p>' in text, "with its table"
        assert not verdict.brief or f"<p>{column.title}: {verdict.brief}</p>" in text, "on top"
    row = text[text.index('<span class="name">w/o CGDE</span>') :]
    row = row[: row.index("</tr>")]
    assert row.count('<em class="none">not run</em>') == 4
    assert "65.00 ± 4.36" in row  # the paper's
    assert "body.bn is not finite" in text
    assert "Kvasir, β\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}0.05, seed 0" in text
    assert write_outcomes([modules], tmp_path / "again.html").read_text(encoding="utf-8") == text


def test_a_page_opens_with_what_leads_in_every_table(tmp_path: Path) -> None:
    """In each cell the best other row and FedAvg; what experiments share is drawn once, and a single one is not."""
    outcome = fake_outcome(tmp_path, "comparison-kvasir", seeds=3, rounds=3)
    found = columns(outcome)
    names = [[line.name for line in foremost(column)] for column in found]
    assert all(1 <= len(some) <= 2 and "Central" not in some for some in names)
    for column, some in zip(found, names, strict=True):
        least = min(line.against.mean for line in column.lines if line.against)
        assert next(line.against.mean for line in column.lines if line.name == some[0]) == least
        assert some[0] == "FedAvg" or some[1] == "FedAvg"
    drawn = overview([*found, *found], 1100)
    assert drawn is not None
    written = re.findall(r"FedBM − (.+?)</text>", drawn)
    assert written == [name for some in names for name in some]
    assert overview([], 1100) is None
    text = write_outcomes([outcome, outcome], tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.index("The leading row minus the best other") < text.index("Eleven methods on Kvasir")


def test_among_variants_of_fedavg_none_stands_for_it(tmp_path: Path) -> None:
    rows = "".join(f'[[rows]]\nname = "{name}"\nmethod = "fedavg"\n' for name in ("a", "b", "c"))
    outcome = fake_outcome(tmp_path / "runs", parse(rows, "mine", "mine.toml"), rounds=3)
    (verdict,) = verdicts(columns(outcome)[0])
    assert "the best of 2 others" in verdict.sentence


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"format": 1, "summary": []}', "run is missing"),
        ('{"format": 1, "run": "a", "config": {}, "summary": {}}', "environment is missing"),
        ('{"format": 1, "summary": [], "run": 3}', "config is missing"),
    ],
)
def test_a_damaged_record_is_named_not_the_experiment(tmp_path: Path, content: str, words: str) -> None:
    outcome = fake_outcome(tmp_path / "runs", "precision", rounds=3)
    path = write_outcome(outcome, tmp_path / "results")
    damaged = sorted((tmp_path / "results" / "runs").glob("*.json"))[0]
    damaged.write_text(content, encoding="utf-8")
    with pytest.raises(FedBMError, match=words) as caught:
        read_outcome(path)
    assert damaged.name in str(caught.value)


@pytest.mark.parametrize("content", ["{", None])
def test_a_damaged_record_of_a_run_that_is_here_is_written_anew(tmp_path: Path, content: str | None) -> None:
    outcome = fake_outcome(tmp_path / "runs", "precision", rounds=3)
    path = write_outcome(outcome, tmp_path / "results")
    damaged = sorted((tmp_path / "results" / "runs").glob("*.json"))[0]
    whole = damaged.read_text(encoding="utf-8")
    damaged.unlink() if content is None else damaged.write_text(content, encoding="utf-8")
    write_outcome(outcome, tmp_path / "results")
    assert damaged.read_text(encoding="utf-8") == whole
    assert comma_separated([read_outcome(path)]) == comma_separated([outcome])


def test_no_record_is_made_of_a_run_without_rounds(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "runs", rounds=3, leave_out=["rounds.jsonl"])
    with pytest.raises(FedBMError, match=r"has no rounds\.jsonl, from which its record is made; put the file back"):
        write_record(read_run(run), tmp_path / "record.json")


def test_a_record_under_the_name_of_another_run_is_refused(tmp_path: Path) -> None:
    outcome = fake_outcome(tmp_path / "runs", "precision", rounds=3)
    path = write_outcome(outcome, tmp_path / "results")
    one, other, *_ = sorted((tmp_path / "results" / "runs").glob("*.json"))
    one.write_bytes(other.read_bytes())
    with pytest.raises(FedBMError, match=f'{one.name} is the record of another run, "{other.stem}"$'):
        read_outcome(path)


def test_a_term_of_the_generator_that_was_not_finite_has_no_sum(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "runs", rounds=3)
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    lines[0]["generator"] = {"cross_entropy": 1.0, "diversity": 0.5}
    lines[1]["generator"] = {"cross_entropy": 1.0, "diversity": None}
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert record_of(read_run(run))["curves"]["generator"][:2] == [1.5, None]


def test_a_picture_is_drawn_along_values_written_as_numbers_and_as_texts(tmp_path: Path) -> None:
    text = 'figure = "clients"\nmethods = ["fedavg"]\n[axes]\nclients = [3, "2"]\n'
    outcome = fake_outcome(tmp_path / "runs", parse(text, "mine", "mine.toml"), seeds=1, rounds=3)
    assert "by clients" in write_outcomes([outcome], tmp_path / "page.html").read_text(encoding="utf-8")
