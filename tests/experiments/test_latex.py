"""What a report in LaTeX looks like in print: nothing wider than the line or higher than the page, every sign shown."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_outcomes import fake_outcome
from fake_runs import fake_run
from pages import DOCS

from fedbm.experiments.latex import latex
from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.spec import parse
from fedbm.report.render.escaping import tex
from fedbm.report.render.latex import FITTED, NEEDS, latex_table

ROWS = (
    "50%_a & b #1 {x} \\y ~ ^",
    "'fedbm run --out a_b' \"q\" <|> [x] *y* $m$ `z`",
    "[first",
    "*star",
    "Sørensen–Dice ≥ 90 °C, naïve Łódź Å ő",
    "λ_dis = 0.1 − β_max × 2 ± 3 · µ → 猫, which is wider with all it says than a line of an article can be",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """The table of the paper with the most rows and notes, FedProx not run; and a grid of hard names."""
    missing = {("FedProx", seed): ("not run", "") for seed in range(2)}
    folder = tmp_path_factory.mktemp("runs")
    rows = "".join(f"[[rows]]\nname = '''{name}'''\nmethod = 'fedavg'\n" for name in ROWS)
    own = parse(f"title = '{ROWS[0]}'\n[all]\ndata = 'digits'\n{rows}", "50%_a & b #1", "own.toml")
    return [
        fake_outcome(folder / "paper", "comparison-ham10000", seeds=2, rounds=2, missing=missing),
        fake_outcome(folder / "own", own, seeds=2, rounds=2),
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of one data set two seeds of two methods and one that is not finished; of the other none that is."""
    folder = tmp_path_factory.mktemp("runs")
    made = [fake_run(folder, method, seed) for method in ("fedavg", "fedbm") for seed in (0, 1)]
    return [*made, fake_run(folder, "fedprox", done=2), fake_run(folder, "fedavg", data="50%_b", done=1)]


def floats(text: str) -> list[str]:
    return re.findall(r"\\begin\{table\*\}.*?\\end\{table\*\}", text, re.DOTALL)


def test_tables_keep_to_the_line(outcomes: list[Outcome], runs: list[Path]) -> None:
    """Few columns, and what is still too wide, by a name of the user's own, is set smaller."""
    tables = floats(latex(outcomes)) + floats(latex_table(runs))
    assert [len(re.findall(r"\\begin\{tabular\}\{(.*)\}", table)[0]) for table in tables] == [8, 7] * 2 + [4, 7, 7, 4]
    assert all(f"{FITTED}\n\\begin{{tabular}}" in table and "\\end{tabular}}\n" in table for table in tables)


def test_long_text_is_in_no_float(outcomes: list[Outcome]) -> None:
    """A float higher than the page runs off it; text after the tables goes on overleaf."""
    text = latex(outcomes)
    assert all(len(re.findall(r"\\raggedright .*", table)) == 1 for table in floats(text))
    assert not any("Not like the paper" in table or "An advantage" in table for table in floats(text))
    assert text.count("(1) Not like the paper, ") == 1  # of one experiment with two tables
    assert "Not run: FedProx (seeds 0, 1)." in text


def test_every_table_has_a_label_of_its_own_and_the_text_names_it(outcomes: list[Outcome], runs: list[Path]) -> None:
    text = latex(outcomes) + latex_table(runs)
    labels = re.findall(r"\\label\{(.*)\}", text)
    assert len(set(labels)) == len(floats(text)) == 8
    assert all(re.fullmatch(r"tab:[A-Za-z0-9.-]+", label) for label in labels)
    assert labels[:2] == [f"tab:comparison-ham10000-HAM10000-beta-0.1{end}" for end in ("", "-last")]
    assert labels[-1] == "tab:digits-Dirichlet-beta-0.05-10-clients-last"
    assert set(re.findall(r"\\ref\{(.*?)\}", text)) == set(labels[:6])


def test_which_round_a_number_is_of(outcomes: list[Outcome]) -> None:
    """The lead's difference stands beside scores of the last rounds and is not theirs."""
    scores, last, *_ = floats(latex(outcomes))
    assert "at the round chosen on validation" in scores
    assert "Lead: FedBM; lead $-$ row: macro-F1 at the round chosen on validation." in last
    assert "\\caption{Eleven methods on HAM10000: HAM10000, $\\beta$~=~0.1, last rounds.}" in last


def test_marks_are_no_powers(outcomes: list[Outcome], tmp_path: Path) -> None:
    """λ_dis = 10 with the notes 1 to 4 is not ten to some power."""
    text = latex([fake_outcome(tmp_path, "lambda-dis", seeds=1, rounds=2)])
    assert "$\\lambda_{\\mathrm{dis}}$ = 10\\textsuperscript{(1--" in text
    assert "\\textbf{FedBM}\\textsuperscript{(" in latex(outcomes)


def test_runs_without_a_result_are_text_and_no_empty_table(runs: list[Path]) -> None:
    text = latex_table(runs)
    assert len(floats(text)) == 2
    assert "\\textbf{50\\%\\_b, Dirichlet $\\beta$~=~0.05, 10 clients.}\n\\par\\noindent No result: FedAvg" in text
    assert "\\par\\noindent No result: FedProx, seed 0, unfinished, 2 of 6 rounds." in text


def test_the_best_of_runs_is_bold(tmp_path: Path) -> None:
    made = [fake_run(tmp_path, method, best={"auc": auc}) for method, auc in (("fedavg", 0.5), ("fedbm", 0.75))]
    text = latex_table(made)
    assert " & \\textbf{75.0} & " in text
    assert " & 50.0 & " in text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Sørensen, Łódź, Å, ő, ß", "S\\o{}rensen, \\L{}\\'{o}d\\'{z}, \\r{A}, \\H{o}, \\ss{}"),
        ("cafe\N{COMBINING ACUTE ACCENT}", "caf\\'{e}"),  # as some file systems keep a name
        ("90 °C", "90 $^\\circ$C"),
        (
            "λ_dis, 'λ_dis', w/o L_sem, λ_1, x_dis, A_b_c, AB_c",
            "$\\lambda_{\\mathrm{dis}}$, \\texttt{$\\lambda$\\_dis}, w/o $L_{\\mathrm{sem}}$, "
            "$\\lambda$\\_1, x\\_dis, A\\_b\\_c, AB\\_c",
        ),
    ],
)
def test_letters_of_other_languages_and_indices(text: str, written: str) -> None:
    assert tex(text) == written


def test_what_a_document_needs_is_said_in_the_file_and_in_the_docs(outcomes: list[Outcome], runs: list[Path]) -> None:
    assert all(text.startswith(f"{NEEDS}\n") for text in (latex(outcomes), latex_table(runs)))
    assert NEEDS.removeprefix("% needs ") in (DOCS / "reproducing.md").read_text(encoding="utf-8")


def pdflatex() -> str:
    """Why nothing can be set here; empty where it can."""
    if not (shutil.which("pdflatex") and shutil.which("kpsewhich")):
        return "needs pdflatex"
    found = subprocess.run(["kpsewhich", "booktabs.sty", "graphicx.sty"], capture_output=True, text=True, check=False)
    return "" if len(found.stdout.split()) == 2 else "needs LaTeX's booktabs and graphicx"


@pytest.mark.skipif(bool(pdflatex()), reason=pdflatex())
@pytest.mark.parametrize("layout", ["onecolumn", "twocolumn"])
def test_pdflatex_sets_it_without_a_complaint(
    tmp_path: Path, layout: str, outcomes: list[Outcome], runs: list[Path]
) -> None:
    """No error, nothing too wide or too high, no sign without a glyph, every reference known."""
    (tmp_path / "results.tex").write_text(latex(outcomes, whole=True), encoding="ascii")
    (tmp_path / "runs.tex").write_text(latex_table(runs), encoding="ascii")
    lines = [f"\\documentclass[{layout}]{{article}}", NEEDS.removeprefix("% needs "), "\\begin{document}"]
    lines += ["\\input{results}", "\\input{runs}", "\\end{document}"]
    (tmp_path / "paper.tex").write_text("\n".join(lines), encoding="ascii")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    for _ in range(3):  # references are known the second time, and pages settled
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode("latin-1")[-2000:]
    log = (tmp_path / "paper.log").read_text(encoding="latin-1")
    assert not re.findall(r"^(?:LaTeX Warning|Overfull|Missing character).*", log, re.MULTILINE)
