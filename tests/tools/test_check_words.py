"""tools/check_words.py finds retired words and file names, and this repository has none."""

from __future__ import annotations

from pathlib import Path

from check_words import find_retired


def test_retired_words_and_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "twins.py").write_text("# the run goes on\nx = 1\n", encoding="utf-8")
    assert find_retired(tmp_path) == [
        "src/twins.py: give the file another name",
        'src/twins.py:1: "goes on": write continues, resumes',
    ]


def test_this_repository_has_none() -> None:
    assert find_retired() == []
