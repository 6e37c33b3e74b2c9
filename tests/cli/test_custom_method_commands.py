"""A method of the user's own on the command line: run, resume, compare, predict, features."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calling import Command, flags, one_sentence

from fedbm.engine.round_loop import Event
from fedbm.runs import batch, runner
from fedbm.runs.plan import make_plan

MINE = """
import dataclasses
from typing import ClassVar
import fedbm
from fedbm.config.options import option

@dataclasses.dataclass(frozen=True)
class Mine(fedbm.FedAvg):
    name: ClassVar[str] = "mine"
    scale: float = option(0.5, "factor on every loss", above=0)

    def loss(self, model, batch, context):
        return {name: self.scale * value for name, value in super().loss(model, batch, context).items()}
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """mine.py in an empty folder, which is the current one."""
    path = list(sys.path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    yield tmp_path / "mine.py"
    sys.path[:] = path
    sys.modules.pop("mine", None)


def test_from_a_first_run_to_a_prediction(fedbm: Command, tiny: dict[str, Any], mine: Path, scans: Path) -> None:
    settings = flags({**tiny, "rounds": 1, "method": "mine.py:Mine"})
    Path("mine.toml").write_text('[method]\nname = "mine.py:Mine"\nscale = 0.25\n')
    status, out, err = fedbm("run", "mine.toml", *[w for w in settings if w not in ("--method", "mine.py:Mine")])
    assert (status, err) == (0, "")
    assert "mine · scale=0.25" in out
    [run] = Path("runs").iterdir()
    image = next(scans.rglob("*.png"))
    status, out, err = fedbm("predict", run, image, "--method", "mine.py:Mine")
    assert (status, err) == (0, "")
    assert image.name in out
    status, _, err = fedbm("features", run, "--method", "mine.py:Mine")
    assert (status, err) == (0, "")
    assert (run / "features.json").exists()
    for command in (["predict", run, image], ["features", run]):
        status, _, err = fedbm(*command)
        assert status == 2
        assert "was trained by mine, which is your own method: give its file and class, mine.py:Mine (" in err
    mine.write_text(MINE + "# edited\n")
    status, _, err = fedbm("predict", run, image, "--method", "mine.py:Mine")
    assert status == 2
    assert f"mine.py:Mine is not the code that trained {run}: the file was edited" in one_sentence(err)
    status, _, err = fedbm("run", run / "config.toml")
    assert one_sentence(err).endswith("the command or script with the method or body of your own.")
    status, _, err = fedbm("run", "--method", "mine.py:Mien")
    assert one_sentence(err).startswith('mine.py has no class "Mien" (did you mean "Mine"?). A method is')


def test_in_a_comparison_and_resumed(
    fedbm: Command, tiny: dict[str, Any], mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round has the remaining time of all runs."""
    shared = {key: value for key, value in tiny.items() if key != "method"}
    words = ["compare", *flags({**shared, "rounds": 2}), "--methods", "fedavg,mine.py:Mine", "--seeds", "0,5"]

    def one_after_the_other(configs: Any, stop: int = 99, **_: Any) -> Iterator[tuple[int, Event]]:
        for number, config in enumerate(configs):
            for event in runner.run(make_plan(config)):
                yield number, event
                if event.record is not None and (stop := stop - 1) == 0:
                    return

    monkeypatch.setattr(batch, "run_all", lambda configs, **_: one_after_the_other(configs, 3))
    _, out, _ = fedbm(*words)
    rounds = [line for line in out.splitlines() if "seed" in line and " round " in line]
    assert len(rounds) == 3
    assert all(re.search(" s  remaining .* for all runs$", line) for line in rounds)
    monkeypatch.setattr(batch, "run_all", one_after_the_other)
    status, out, err = fedbm(*words)
    assert (status, err) == (0, "")
    assert "mine, β 0.1, seed 0: continuing after round 1" in out
    assert "1 of 4 runs are finished already" in out
    assert sorted(path.name[:8] for path in Path("runs").iterdir()) == ["fedavg-s", "fedavg-s", "mine-sca", "mine-sca"]
    assert {path.name.split("-")[2] for path in Path("runs").iterdir()} == {"s0", "s5"}
