"""tools/fill_readme.py replaces what is between the marks, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from fill_readme import main
from pages import ROOT, text_of


def test_a_readme_is_filled_between_its_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "README.md"
    page.write_text(
        "# Title\n<!-- fedbm:results confirmation -->\nold\n<!-- /fedbm:results -->\nend\n", encoding="utf-8"
    )
    command = [str(ROOT / "results"), str(page)]
    assert main(command) == 0
    first = text_of(page)
    assert first.startswith("# Title\n<!-- fedbm:results confirmation -->\n![Difference in macro-F1")
    assert first.endswith("<!-- /fedbm:results -->\nend\n")
    assert "old" not in first
    assert (tmp_path / "docs" / "images" / "results.svg").exists()
    assert main(command) == 0
    assert text_of(page) == first


@pytest.mark.parametrize(
    ("marked", "said"),
    [
        ("nothing marked", "has no place for results"),
        ("<!-- fedbm:results confirmed -->\n<!-- /fedbm:results -->", 'names the experiment "confirmed", which has no'),
        ("<!-- fedbm:results modules -->\n<!-- /fedbm:results -->", "modules is not confirmatory"),
    ],
)
def test_a_page_without_a_place_or_with_another_experiment_is_refused(
    marked: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text(marked, encoding="utf-8")
    assert main([str(ROOT / "results"), str(page)]) == 2
    assert said in capsys.readouterr().err
    assert text_of(page) == marked
