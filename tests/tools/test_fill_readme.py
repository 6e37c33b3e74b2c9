"""tools/fill_readme.py replaces what is between the marks, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_outcomes import fake_outcome
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
    assert "| **FedBM** |" in first
    assert "| 21.18" in first  # w/o LKCC's macro-F1 as the paper prints it
    assert first.count("| Method |") == 1  # the first cell, though two are finished
    assert (tmp_path / "docs" / "images" / "results.svg").exists()
    assert main(command) == 0
    assert page.read_text(encoding="utf-8") == first
    page.write_text("nothing marked\n", encoding="utf-8")
    capsys.readouterr()
    assert main(command) == 2
    assert "has no place for results" in capsys.readouterr().err
