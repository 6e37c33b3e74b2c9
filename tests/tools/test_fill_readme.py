"""tools/fill_readme.py replaces what is between the marks, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_outcomes import fake_outcome
from fake_runs import plain
from fill_readme import main

from fedbm.experiments.record_store import write_outcome


def test_a_readme_is_filled_between_its_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = fake_outcome(tmp_path / "runs", "modules", seeds=2, rounds=3, absent={"oct-c8": "not here"})
    write_outcome(outcome, tmp_path / "results")
    page = tmp_path / "README.md"
    page.write_text("# Title\n<!-- fedbm:results modules -->\nold\n<!-- /fedbm:results -->\nend\n", encoding="utf-8")
    command = [str(tmp_path / "results"), str(page)]
    assert main(command) == 0
    first = page.read_text(encoding="utf-8")
    assert first.startswith("# Title\n<!-- fedbm:results modules -->\n![Macro-F1 of every seed, Kvasir")
    assert first.endswith("<!-- /fedbm:results -->\nend\n")
    assert "old" not in first
    assert "| **FedBM** | 2 |" in first
    assert "28.04 ± 9.74" in first  # w/o LKCC's accuracy as the paper prints it
    assert first.count("| Method |") == 1  # the first cell, though two are finished
    assert "\n- [Notes](results/README.md#notes) list" in first
    assert "\n13 of the paper’s tables and figures have no run on record: the report lists them" in first
    assert (tmp_path / "docs" / "images" / "results.svg").exists()
    assert main(command) == 0
    assert page.read_text(encoding="utf-8") == first
    page.write_text("nothing marked\n", encoding="utf-8")
    capsys.readouterr()
    assert main(command) == 2
    assert "has no place for results" in capsys.readouterr().err


def test_a_readme_has_the_differences_of_what_it_shows_no_table_of(tmp_path: Path) -> None:
    for name in ("modules", "generator-terms"):
        outcome = fake_outcome(tmp_path / name, name, seeds=2, rounds=3, absent={"oct-c8": "not here"})
        write_outcome(outcome, tmp_path / "results")
    page = tmp_path / "README.md"
    page.write_text("<!-- fedbm:results modules -->\n<!-- /fedbm:results -->\n", encoding="utf-8")
    assert main([str(tmp_path / "results"), str(page)]) == 0
    text = plain(page.read_text(encoding="utf-8"))
    found = [line.split(" | ") for line in text.splitlines() if line.startswith("| Kvasir")]
    assert [line[:2] for line in found][:2] == [
        ["| Kvasir, β = 0.1", "FedBM − w/o LKCC"],  # β = 0.05 has its table above
        ["| Kvasir, β = 0.1", "FedBM − w/o CGDE"],
    ]
    assert ["| Kvasir, β = 0.05", "FedBM − w/o L_div"] in [line[:2] for line in found]
    assert not any(line[:2] == ["| Kvasir, β = 0.05", "FedBM − w/o LKCC"] for line in found)
    assert found[0][3:5] == ["+57.7", "2"]  # the paper: 73.75 − 16.07
