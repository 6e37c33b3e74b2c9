"""The page 'Your own method', followed literally: its code blocks run in order, in an empty folder."""

import dataclasses
import re
import runpy
import sys
from pathlib import Path

from fedbm.methods.base import Batch, Facts, Task, Upload

PAGE = Path(__file__).resolve().parents[1] / "docs" / "your-method.md"


def test_every_code_block_runs_as_printed(tmp_path, monkeypatch, capsys):
    """A block that starts with the name of a file is that file; penalty.py is run, the others are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    files = {found[1]: block for block in blocks if (found := re.match(r"# (\w+\.py)\n", block))}
    assert (list(files), len(blocks)) == (["penalty.py", "fedper.py", "fedavgm.py", "npy_reader.py"], 7)
    for file, block in files.items():
        Path(file).write_text(block, encoding="utf-8")
    runpy.run_path("penalty.py", run_name="__main__")
    page: dict[str, object] = {"__name__": "page"}
    for block in blocks[2:]:
        exec(compile(block, str(PAGE), "exec"), page)
    for file in files:
        sys.modules.pop(Path(file).stem, None)
    printed = capsys.readouterr().out
    assert printed.startswith("penalty ScoredRound(round=")
    assert all(len(re.findall(rf" {name} ", printed)) == 2 for name in ("fedavg", "fedper", "fedavgm · momentum=0.5"))
    run = page["run"]
    assert run.method == "fednh"
    folder = next(Path("runs").glob("fedper-*"))
    first = next(iter((folder / "clients").glob("*.safetensors")))
    from safetensors import safe_open

    with safe_open(first, framework="pt") as kept:
        assert sorted(kept.keys()) == ["head.bias", "head.weight"]


def test_the_fields_on_the_page_are_those_of_the_classes():
    rows = dict(re.findall(r"^\| `(\w+)` \| (`\w+`[:,].*) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    for name, kind in (("task", Task), ("facts", Facts), ("batch", Batch), ("upload", Upload)):
        documented = re.findall(r"`(\w+)`[:,]", rows[name])
        assert documented == [field.name for field in dataclasses.fields(kind)], name
