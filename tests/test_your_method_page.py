"""The page 'Your method in 60 lines', followed literally: its code blocks run in order, in an empty folder."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "your-method.md"


def test_every_code_block_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 5
    page: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), page)
    printed = capsys.readouterr().out
    assert printed.startswith("fedbn ScoredRound(round=")
    run = page["run"]
    assert run.method == "fednh"
    folder = next(Path("runs").glob("fedbn-*"))
    first = next(iter((folder / "clients").glob("*.safetensors")))
    from safetensors import safe_open

    with safe_open(first, framework="pt") as kept:
        assert all("bn" in name or "downsample.1" in name for name in kept.keys())  # noqa: SIM118


def test_the_example_is_no_longer_than_it_says():
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[0]
    assert len(block.splitlines()) <= 60
