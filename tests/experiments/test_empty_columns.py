"""A column of a table that no line can fill is left out, in Markdown, LaTeX, README and page alike."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_outcomes import fake_outcome
from fill_readme import block

from fedbm.experiments.analysis import Column, columns
from fedbm.experiments.latex import latex
from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.report import write_outcomes
from fedbm.experiments.spec import parse
from fedbm.experiments.tables import HEADS, fillable, grid, markdown

ALWAYS = ["row", "n", "accuracy", "f1", "last_f1", "last_quarter_f1"]
APART = ["accuracy_minus_paper", "f1_minus_paper"]
TEST = ["p", "p_holm", "effect_size"]


def own(root: Path, *methods: str, seeds: int = 3, **more: Any) -> Outcome:
    """A sweep of a user's own, with a row per method."""
    rows = "".join(f'[[rows]]\nname = "{method}"\nmethod = "{method}"\n' for method in methods)
    return fake_outcome(root, parse(f'[all]\ndata = "digits"\n{rows}', "mine", "mine.toml"), seeds=seeds, **more)


def first(outcome: Outcome) -> Column:
    return columns(outcome)[0]


@pytest.mark.parametrize(
    ("methods", "seeds", "more"),
    [
        (["fedbm"], 3, []),
        (["fedbm", "central"], 3, []),  # a ceiling is not compared
        (["fedbm", "fedavg"], 1, ["lead_minus_row_f1"]),  # one pair has a difference and nothing to test it by
        (["fedbm", "fedavg"], 2, ["lead_minus_row_f1", *TEST]),
    ],
)
def test_of_ones_own_sweep(tmp_path: Path, methods: list[str], seeds: int, more: list[str]) -> None:
    column = first(own(tmp_path, *methods, seeds=seeds, rounds=2))
    assert fillable(column) == [key for key in HEADS if key in (*ALWAYS, *more)]


def test_what_is_not_finished_yet_keeps_its_place(tmp_path: Path) -> None:
    missing = {(row, seed): ("not run", "") for row in ("fedbm", "fedavg") for seed in range(2)}
    column = first(own(tmp_path, "fedbm", "fedavg", seeds=2, missing=missing))
    assert column.lead == ""
    assert set(fillable(column)) == {*ALWAYS, "lead_minus_row_f1", *TEST}


def test_of_the_papers_experiments(tmp_path: Path) -> None:
    """All columns; beside a stand-in, whose difference to the paper means nothing, all but that."""
    whole = fake_outcome(tmp_path / "a", "modules", seeds=2, rounds=2, absent={"oct-c8": "not here"})
    assert all(fillable(column) == list(HEADS) for column in columns(whole))
    stand_in = fake_outcome(tmp_path / "b", "comparison-femnist", seeds=2, rounds=2, absent={"femnist": "not here"})
    assert fillable(first(stand_in)) == [key for key in HEADS if key not in APART]


def test_texts_of_one_row_have_no_dash(tmp_path: Path) -> None:
    outcome = own(tmp_path, "fedbm", rounds=2)
    heads, line = grid(first(outcome))
    assert heads == ["Method", "n", "Accuracy", "Macro-F1", "F1, last round", "F1, last quarter"]
    assert line[:2] == ["fedbm", "3"]
    assert all(re.fullmatch(r"\d+\.\d ± \d+\.\d", cell) for cell in line[2:])
    for written in (markdown([outcome]), "\n".join(block(first(outcome)))):
        table = [text for text in written.splitlines() if text.startswith("|")]
        assert table[0].startswith("| Method | n | Accuracy | Macro-F1 |")
        assert len({text.count("|") for text in table}) == 1
        assert "–" not in "".join(table)
    shown = latex([outcome])
    assert "\\begin{tabular}{lrrrrr}" in shown
    assert "Method & n & Accuracy & Macro-F1 & F1, last round & F1, last quarter \\\\" in shown
    assert "Lead" not in shown


@pytest.mark.parametrize("methods", [["fedbm"], ["fedbm", "fedavg"]])
@pytest.mark.parametrize("seeds", [1, 2])
def test_the_page_has_the_same_columns(tmp_path: Path, methods: list[str], seeds: int) -> None:
    outcome = own(tmp_path, *methods, seeds=seeds, rounds=2)
    text = write_outcomes([outcome], tmp_path / "page.html").read_text(encoding="utf-8")
    assert widths(text) == [{len(fillable(first(outcome)))}]
    assert ("tinted" in text, "Lead − row" in text) == (len(methods) > 1,) * 2
    assert ("lead-row" in text[text.index("<table") :]) is (len(methods) > 1)
    assert ">paper<" not in text
    assert "Paper, Δ" not in text


def test_the_page_of_the_papers_experiments(tmp_path: Path) -> None:
    outcome = fake_outcome(tmp_path, "comparison-femnist", seeds=1, rounds=2, absent={"femnist": "not here"})
    text = write_outcomes([outcome], tmp_path / "page.html").read_text(encoding="utf-8")
    assert widths(text) == [{len(fillable(column))} for column in columns(outcome)]
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


def test_a_cell_without_any_number_is_a_line_in_markdown_and_latex(tmp_path: Path) -> None:
    """No run, and nothing printed in the paper: the reason is all there is to say. With a number of it, a table in
    Markdown; in LaTeX a comment, for it is nothing to print."""
    missing = {("FedBM", seed): ("not run", "") for seed in range(2)}
    nothing = fake_outcome(tmp_path / "a", "pseudo-batch", seeds=2, missing=missing)
    written = markdown([nothing])
    assert "tabular" not in latex([nothing])
    assert latex([nothing]).count("not run: FedBM (seeds 0, 1).") == len(columns(nothing))
    cell = "Kvasir, β\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}0.05, pseudo_batch 32"
    assert f"**{cell}**: not run: FedBM (seeds 0, 1)." in written
    assert "|" not in written
    rows = {(row, seed): ("not run", "") for row in ("FedBM", "w/o LKCC", "w/o CGDE") for seed in range(2)}
    not_run = fake_outcome(tmp_path / "b", "modules", seeds=2, missing=rows)
    assert markdown([not_run]).count("</details>") == 4
    assert all(line.startswith("% ") for one in (nothing, not_run) for line in latex([one]).splitlines())


def test_the_page_lists_cells_without_any_number_and_draws_no_course_of_one(tmp_path: Path) -> None:
    """Two values of the figure's axis make a course, one does not; the other cells are a list, not a table each."""
    whole = fake_outcome(tmp_path, "pseudo-batch", seeds=2, rounds=2, absent={"oct-c8": "not here"})

    def page(*places: int) -> str:
        results = tuple(
            r
            if r.run and r.at["pseudo_batch"] in places and r.at["beta"] == 0.05
            else replace(r, run=None, state="failed")
            for r in whole.results
        )
        return write_outcomes([replace(whole, results=results)], tmp_path / "page.html").read_text(encoding="utf-8")

    one, two = page(32), page(32, 8)
    assert ("Along the axis" in one, "Along the axis" in two) == (False, True)
    assert [made.count("<caption>Test scores") for made in (one, two)] == [1, 2]
    listed = one[one.index("Without a result") : one.index("Not like the paper")]
    assert listed.count("<li>") == len(columns(whole)) - 1
    assert "OCT-C8, β\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}0.1, pseudo_batch 4" in listed
