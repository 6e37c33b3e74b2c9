"""Markdown: any text is shown as it is, and missing runs are words, never numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fake_outcomes import fake_outcome
from fake_runs import fake_run
from hypothesis import example, given
from hypothesis import strategies as st

from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.spec import parse
from fedbm.report.experiments_report import experiments_report
from fedbm.report.render.markdown import escape, render_markdown
from fedbm.report.runs_report import runs_report
from fedbm.runs.run_view import read_runs


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("<`0")
@example("a\nb")
def test_any_text_is_one_cell_in_markdown(text: str) -> None:
    """No sign is left that could begin emphasis, code, a formula, a link, a tag, a cell or a line."""
    bare = re.sub(r"\\[\\|*`$~\[_]", "\0", escape(text))
    assert not set(bare) & set("\\|*`$~")
    assert not re.search(r"\[[^]]*\][(\[]", bare)
    assert not re.search(r"<[\w/!?]", bare)
    assert len(bare.splitlines()) < 2


def test_names_do_not_become_markup(tmp_path: Path) -> None:
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
    shown = render_markdown(experiments_report([outcome]))
    assert shown.startswith("# a\\|b \\*c\\* &lt;b>d&lt;/b>\n\n\\_s\\_. ")
    assert "1. \\`n\\` &lt;i>\n" in shown
    assert "| x\\|y &lt;u> | 1 | " in shown
    assert " has " not in shown, "a search does not compare its rows on test images"
    searched = shown[shown.index("## Chosen on validation") :].splitlines()[2:8]
    assert [line.split(" | ")[0] for line in searched[2:]] == ["| x\\|y &lt;u>"] * 2 + ["| \\*z\\*"] * 2
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in searched}) == 1
    assert not re.search(r"</?[bui]>", shown)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Kvasir: FedBM has two seeds of three, w/o CGDE none; OCT-C8 is not here."""
    return fake_outcome(
        tmp_path_factory.mktemp("runs"),
        "modules",
        rounds=3,
        missing={("FedBM", 2): ("failed", "it broke"), **{("w/o CGDE", seed): ("not run", "") for seed in range(3)}},
        absent={"oct-c8": "the images of oct-c8 are not here"},
    )


def test_missing_rows_have_a_reason_and_no_number(modules: Outcome) -> None:
    shown = render_markdown(experiments_report([modules]))
    row = next(line for line in shown.splitlines() if line.startswith("| w/o CGDE"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == "0"
    assert cells[2] == "not run"  # in place of accuracy
    assert cells[-4:] == ["–"] * 3 + [""]  # no test, no note
    plain = shown.replace("\N{NO-BREAK SPACE}", " ")
    assert "- 2 runs failed: it broke. Kvasir, β = 0.05: FedBM (seed 2); Kvasir, β = 0.1: FedBM (seed 2)." in plain
    assert "- 6 runs not run. Kvasir, β = 0.05: w/o CGDE; Kvasir, β = 0.1: w/o CGDE." in plain
    cells_of_oct = "OCT-C8, β = 0.05: all rows; OCT-C8, β = 0.1: all rows."
    assert f"- 18 runs absent: the images of oct-c8 are not here. {cells_of_oct}" in plain


def test_a_cell_without_a_result_has_no_table(modules: Outcome) -> None:
    headings = [line for line in render_markdown(experiments_report([modules])).splitlines() if line.startswith("#")]
    assert [heading.replace("\N{NO-BREAK SPACE}", " ") for heading in headings] == [
        "# What each of FedBM's two modules brings",
        "## Kvasir, β = 0.05",
        "## Kvasir, β = 0.1",
        "## What is missing",
        "## Notes",
    ]


def test_runs_have_their_table_and_what_is_not_finished(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path, method, seed, rounds=2) for method in ("fedavg", "fedbm") for seed in (0, 1)]
    shown = render_markdown(runs_report(read_runs([*runs, fake_run(tmp_path, "fedprox", rounds=2, done=1)])))
    assert shown.startswith("# digits, Dirichlet β")
    assert "| *At the last round* |" in shown
    assert "- No result, not counted: FedProx, seed 0, unfinished, 1 of 2 rounds." in shown
    assert "Where it comes from" not in shown  # the page's only
