"""Every block of code in the README and in docs/ runs, page by page, in settings so small that it takes a moment.

Commands and calls run as printed, except that they train for one round on small images with two methods and one seed.
A line <!-- not run: REASON --> above a block exempts it. `your-data.md` and the Python of `your-method.md` have tests
of their own, which run them literally.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import DOCS, PAGES, commands_of, named, runnable_of, text_of
from PIL import Image

import fedbm
from fedbm.cli import main
from fedbm.data.catalog.entries import CATALOG

SMALL = {"rounds": 1, "width": 8, "batch": 64, "device": "cpu"}
SMALL_GENERATOR = {"generator_every": 1, "generator_steps": 1, "generator_batch": 10, "generator_width": 8}
OWN_TESTS = {DOCS / "your-data.md": ("sh", "python"), DOCS / "your-method.md": ("python",)}
BLOCKS = {
    page: [(kind, block) for kind, block in runnable_of(page, "sh", "python") if kind not in OWN_TESTS.get(page, ())]
    for page in PAGES
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with scans/CLASS/*.png, the classes of HAM10000, so that FedBM needs no language model."""
    rng = np.random.default_rng(0)
    for name in CATALOG["ham10000"].classes:
        (tmp_path / "scans" / name).mkdir(parents=True)
        for number in range(12):
            picture = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(picture).save(tmp_path / "scans" / name / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(fedbm, "simulate", shrink(fedbm.simulate))
    monkeypatch.setattr(fedbm, "compare", shrink(fedbm.compare, betas=[1.0], seeds=1))
    monkeypatch.setattr("fedbm.runs.batch.is_importable", lambda method: False)  # faster in one process
    return tmp_path


def shrink(call: Callable[..., Any], **instead: Any) -> Callable[..., Any]:
    """Return simulate() or compare() with small settings; a data set that is loaded keeps its size."""

    def small(data: Any, *more: Any, **given: Any) -> Any:
        less = SMALL if isinstance(data, fedbm.Dataset) else {**SMALL, "size": 16}
        methods = more[0] if instead and more else [given.get("method")]
        generator = SMALL_GENERATOR if "fedbm" in methods else {}
        kept = {key: value for key, value in given.items() if key != "beta" or not instead}
        return call(data, *more, **{**kept, **less, **generator, **instead})

    return small


def shrink_command(words: list[str]) -> list[str]:
    """Add flags to `fedbm run` and `fedbm compare`: the last value of a flag counts."""
    if words[0] not in ("run", "compare"):
        return words
    words = ["fedavg,fedbm" if word == "all" else word for word in words]
    less = {**SMALL, "size": 16, "clients": 3, **(SMALL_GENERATOR if re.search(r"\bfedbm\b", " ".join(words)) else {})}
    less |= {"beta": 1} if words[0] == "run" else {"betas": 1, "seeds": 1}
    return [*words, *(part for key, value in less.items() for part in (f"--{key.replace('_', '-')}", str(value)))]


@pytest.mark.parametrize("page", [page for page, blocks in BLOCKS.items() if blocks], ids=named)
def test_every_block_runs(page: Path, place: Path) -> None:
    for block in re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```", text_of(page), re.MULTILINE | re.DOTALL):
        Path(block[1]).write_text(block[0], encoding="utf-8")
    if page.stem == "configuration":  # the file that `fedbm compare` reads
        last = re.findall(r"```toml\n(.*?)```", text_of(page).partition("fedbm compare shared.toml")[0], re.DOTALL)[-1]
        Path("shared.toml").write_text(last, encoding="utf-8")
    if page.stem == "records":  # the runs that the page reads
        for method in ("fedavg", "fedbm"):
            assert main(shrink_command(["run", "--data", "digits", "--method", method])) == 0
    names: dict[str, Any] = {"__name__": "page"}
    for kind, block in BLOCKS[page]:
        if kind == "python":
            exec(compile(block, str(page), "exec"), names)
        elif block.startswith("fedbm "):
            for words in commands_of(block):
                assert main(shrink_command(words)) == 0, f"fedbm {' '.join(words)}"
        else:
            assert block.startswith("jq "), f"mark this block or make it run:\n{block}"
            if shutil.which("jq"):
                subprocess.run(["bash", "-euc", block], check=True)


def test_a_block_that_is_not_run_has_a_reason() -> None:
    """Unmarked blocks are the ones that run; text that shows commands would escape both."""
    assert sum(map(len, BLOCKS.values())) > 15
    for page in PAGES:
        assert not re.search(r"^```(?!sh|python)\w*\n(?:\$ )?(fedbm|python|pip) ", text_of(page), re.MULTILINE)


def test_the_notebook_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells in one namespace; only the page that shows the report needs IPython. It is stored without outputs."""
    shown = types.ModuleType("IPython.display")
    monkeypatch.setattr(shown, "HTML", str, raising=False)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in json.loads(text_of(DOCS / "tutorials" / "first-ten-minutes.ipynb"))["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            exec(compile("".join(cell["source"]), "first-ten-minutes.ipynb", "exec"), names)
    assert names["found"].failures == names["mine"].failures == ()
    assert names["page"].startswith("<!DOCTYPE html>")
