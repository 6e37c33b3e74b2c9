"""failed.json is written once, read by every list, and removed when the run resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from whole_runs import play, small_plan_of, stop_after

import fedbm
from fedbm.errors import DivergenceError, FedBMError
from fedbm.runs.failure import Failure, clear_failure, failure_of, keep_failure
from fedbm.runs.run_view import read_run

FULL = Failure("the disk is full")


def test_a_failure_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert failure_of(tmp_path) is None
    for failure in (FULL, Failure("the model is not finite", diverged=True)):
        keep_failure(tmp_path, failure)
        assert failure_of(tmp_path) == failure
    clear_failure(tmp_path)
    assert failure_of(tmp_path) is None
    clear_failure(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 1, "reason": 3}'])
def test_a_damaged_file_is_still_a_failure(tmp_path: Path, text: str) -> None:
    (tmp_path / "failed.json").write_text(text, encoding="utf-8")
    assert failure_of(tmp_path) == Failure("its failed.json cannot be read")


def test_the_class_of_the_error_decides_what_a_divergence_is() -> None:
    """A message may mention values that are not finite for other reasons."""
    assert Failure.of(DivergenceError("round 3: stopped")) == Failure("round 3: stopped", diverged=True)
    assert not Failure.of(FedBMError("the embeddings are not finite")).diverged


class Forgets(fedbm.FedAvg):
    name: ClassVar[str] = "forgets"

    def finish_client(self, *arguments: Any) -> Any:
        return None


def test_a_failed_method_does_not_stop_the_others(tiny: dict[str, Any], scans: Path, tmp_path: Path) -> None:
    free = {key: value for key, value in tiny.items() if key not in ("data", "method", "size", "channels")}
    found = fedbm.compare(
        fedbm.load(scans, size=tiny["size"], channels=1), [Forgets(), "fedavg"], seeds=1, out=tmp_path, **free
    )
    assert [run.method for run in found.runs] == ["fedavg"]
    assert "TypeError: cannot unpack" in found.failures[0]


def test_a_run_that_resumes_in_any_command_has_not_failed(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder = stop_after(2, small_plan_of(tiny, tmp_path))
    keep_failure(folder, FULL)
    assert read_run(folder).state == "failed after 2 of 4 rounds: the disk is full"
    stop_after(3, small_plan_of(tiny, tmp_path))
    assert read_run(folder).state == "unfinished, 3 of 4 rounds"
    keep_failure(folder, FULL)
    play(small_plan_of(tiny, tmp_path))
    assert read_run(folder).state == "finished"
    assert not (folder / "failed.json").exists()
