"""What runs took: a mean that one outlier makes stands beside the shortest and the longest."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_runs import edit, fake_run

from fedbm.report.cost import cost_lines
from fedbm.report.grouping import compare
from fedbm.report.render.html import write_report
from fedbm.runs.reader import read_runs


def timed(root: Path, seconds: list[float]) -> list[Path]:
    folders = [fake_run(root, "fedetf", seed, rounds=10) for seed in range(len(seconds))]
    for folder, value in zip(folders, seconds, strict=True):
        edit(folder / "summary.json", seconds=value)
    return folders


def test_wall_times_have_their_range(tmp_path: Path) -> None:
    """One of three runs shared the device: (858 + 257 + 258) / 3 = 457.7 s is no run's time."""
    folders = timed(tmp_path / "runs", [858.0, 257.0, 258.0])
    (line,) = cost_lines(compare(read_runs(folders))[0])
    assert (line.total_time, line.total_range) == ("7 min 38 s", "4 min 17 s – 14 min 18 s")
    assert (line.round_time, line.round_range) == ("45.8 s", "25.7 s – 1 min 26 s")
    page = write_report(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert '<td>7 min 38 s<span class="between">4 min 17 s – 14 min 18 s</span></td>' in page


@pytest.mark.parametrize("seconds", [[75.0], [75.0, 75.2]])
def test_no_range_where_none_is_seen(tmp_path: Path, seconds: list[float]) -> None:
    folders = timed(tmp_path / "runs", seconds)
    (line,) = cost_lines(compare(read_runs(folders))[0])
    assert (line.total_time, line.total_range) == ("1 min 15 s", "")
    assert '<span class="between"></span>' not in write_report(folders, tmp_path / "x.html").read_text(encoding="utf-8")
