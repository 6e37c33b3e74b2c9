"""LaTeX: tables keep to the line, long text is outside floats, special characters are escaped."""

from __future__ import annotations

import re

import pytest
from fake_outcomes import fake_outcome
from fake_runs import fake_run
from hypothesis import given
from hypothesis import strategies as st
from pages import DOCS

from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.spec import parse
from fedbm.report.experiments_report import experiments_report
from fedbm.report.render.latex import FITTED, MAX_COLUMNS, NEEDS, escape, label, render_latex
from fedbm.report.runs_report import runs_report
from fedbm.runs.run_view import read_runs

ROWS = ("50%_a & b #1 {x} \\y ~ ^", "'fedbm run --out a_b' [x] $m$", "[first", "Łódź ≥ 90 °C, 猫")


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The table of the paper with the most rows and notes, FedProx not run; and a grid of hard names."""
    missing = {("FedProx", seed): ("not run", "") for seed in range(2)}
    folder = tmp_path_factory.mktemp("runs")
    rows = "".join(f"[[rows]]\nname = '''{name}'''\nmethod = 'fedavg'\n" for name in ROWS)
    own = parse(f"title = '{ROWS[0]}'\n[all]\ndata = 'digits'\n{rows}", "50%_a & b #1", "own.toml")
    outcomes: list[Outcome] = [
        fake_outcome(folder / "paper", "comparison-ham10000", seeds=2, rounds=2, missing=missing),
        fake_outcome(folder / "own", own, seeds=2, rounds=2),
    ]
    return render_latex(experiments_report(outcomes, elsewhere=()))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of one data set two seeds of two methods and one unfinished run; of the other only an unfinished run."""
    folder = tmp_path_factory.mktemp("runs")
    made = [fake_run(folder, method, seed) for method in ("fedavg", "fedbm") for seed in (0, 1)]
    made += [fake_run(folder, "fedprox", done=2), fake_run(folder, "fedavg", data="50%_b", done=1)]
    return render_latex(runs_report(read_runs(made)))


def floats(text: str) -> list[str]:
    return re.findall(r"\\begin\{table\*\}.*?\\end\{table\*\}", text, re.DOTALL)


def test_tables_keep_to_the_line(experiments: str, runs: str) -> None:
    """Few columns; a table that is still too wide, because of a name, is set smaller."""
    tables = floats(experiments) + floats(runs)
    assert len(tables) > 5
    for table in tables:
        (columns,) = re.findall(r"\\begin\{tabular\}\{(.*)\}", table)
        assert len(columns) <= MAX_COLUMNS + 1
        lines = [line for line in table.splitlines() if line.endswith("\\\\") and "multicolumn" not in line]
        assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {len(columns) - 1}
        assert f"{FITTED}\n\\begin{{tabular}}" in table


def test_a_wide_table_is_printed_in_parts(experiments: str) -> None:
    scores, last, *_ = (table for table in floats(experiments) if "Eleven methods on HAM10000: HAM10000, β" in table)
    assert "Method & n & Accuracy & paper & Δ & Macro-F1 & paper & Δ & F1, last round \\\\" in scores
    assert "Method & F1, last quarter & lead \\ensuremath{-} row & p & p (Holm) & d \\\\" in last


def test_long_text_is_in_no_float_and_notes_are_written_once(experiments: str) -> None:
    """A float higher than the page runs off it."""
    assert not any("An advantage" in table or "momentum" in table for table in floats(experiments))
    assert experiments.count("SGD with momentum 0.9") == 1
    assert "\\textbf{FedBM}\\textsuperscript{(" in experiments


def test_every_table_has_a_label_of_its_own(experiments: str, runs: str) -> None:
    labels = re.findall(r"\\label\{(.*)\}", experiments + runs)
    assert len(set(labels)) == len(floats(experiments + runs))
    assert all(re.fullmatch(r"tab:[A-Za-z0-9.-]+", label) for label in labels)


def test_labels_of_names_in_another_script_differ() -> None:
    labels = {label(f"{name}, Dirichlet β = 0.1") for name in ("皮肤", "肺部", "Łódź", "Żódź", "λ", "τ")}
    assert len(labels) == 6
    assert all(re.fullmatch(r"tab:[A-Za-z0-9.-]+", one) for one in labels)


def test_runs_without_a_result_are_text_and_no_empty_table(runs: str) -> None:
    assert len(floats(runs)) == 2  # scores, and scores by class
    assert "No result, not counted: FedProx, seed 0, unfinished, 2 of 6 rounds." in runs
    assert "\\subsection*{50\\%\\_b, Dirichlet β" in runs


def test_the_best_is_bold(runs: str) -> None:
    assert re.search(r"& \\textbf\{[\d.]+ ± [\d.]+\} &", runs)


def test_commands_are_as_they_are_typed(experiments: str) -> None:
    """Two hyphens must not become a dash."""
    assert "\\texttt{fedbm reproduce comparison-ham10000 -{}-data-dir DIR}" in experiments
    assert not re.search(r"--[a-z]", experiments)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("by 'fedbm reproduce search-ham10000'.", "by \\texttt{fedbm reproduce search-ham10000}."),
        ("clients' models, the paper's", "clients' models, the paper's"),
        ("'fedbm run --out a_b'; 1–3", "\\texttt{fedbm run -{}-out a\\_b}; 1–3"),
        ("λ_dis ± β, Łódź 猫", "λ\\_dis ± β, Łódź 猫"),
        ("a\n\nb\r\nc", "a  b c"),
        ("−3 ≤ x ≥ −1", r"\ensuremath{-}3 \ensuremath{\leq} x \ensuremath{\geq} \ensuremath{-}1"),
        ("p < 0.001, a|b -> c, 2/2ⁿ", r"p \textless{} 0.001, a\textbar{}b -\textgreater{} c, 2/2\textsuperscript{n}"),
    ],
)
def test_code_is_set_as_code_and_letters_stay(text: str, written: str) -> None:
    assert escape(text) == written


@given(st.text("ab\\&%$#_{}^~<>|'- "))
def test_no_special_character_is_left(text: str) -> None:
    words = "backslash|asciitilde|asciicircum|less|greater|bar"
    bare = re.sub(rf"\\text(?:{words})\{{\}}|\\[&%$#_{{}}]|-\{{\}}", "", escape(text))
    bare = re.sub(r"\\texttt\{([^{}\\]*)\}", r"\1", bare)
    assert not set(bare) & set("\\&%$#_{}^~<>|")


def test_the_file_and_the_docs_name_the_packages_it_needs(experiments: str) -> None:
    assert experiments.startswith(f"{NEEDS}\n")
    assert "\\usepackage{booktabs,graphicx}" in NEEDS
    assert "\\usepackage{booktabs,graphicx}" in (DOCS / "reproducing.md").read_text(encoding="utf-8")
