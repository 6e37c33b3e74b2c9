"""Methods of the user's own by FILE.py:CLASS: in parallel processes, from scripts, and what is wrong with a file."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fedbm
from fedbm.engine.round_loop import Event
from fedbm.errors import FedBMError
from fedbm.methods import Scaffold
from fedbm.runs import batch, custom_method, scheduler
from fedbm.runs.custom_method import is_importable, load_class, load_method
from fedbm.runs.failure import Failure
from fedbm.runs.method_comparison import make_grid
from fedbm.runs.run_config import configure, make_config, to_sections, with_method
from fedbm.runs.scheduler import run_all

HALVED = """
import dataclasses
from typing import ClassVar
import fedbm
from fedbm.config.options import option

@dataclasses.dataclass(frozen=True)
class Halved(fedbm.FedAvg):
    name: ClassVar[str] = "halved"
    scale: float = option(0.5, "factor on every gradient", above=0)
    layers: tuple[int, ...] = ()

    def adjust_gradients(self, model, context):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.scale)

class Nameless(fedbm.FedAvg):
    pass

class Abstract(fedbm.Method):
    name: ClassVar[str] = "abstract"
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """write("name.py", text) → the file; what is imported from it is forgotten after the test."""
    modules, path = set(sys.modules), list(sys.path)

    def write(name: str, text: str = HALVED) -> Path:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    yield write
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def shared(tiny: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    own = {key: value for key, value in tiny.items() if key not in ("data", "method")}
    return {**own, "rounds": 2, "out": str(tmp_path / "runs")}


def test_by_file_or_as_an_object_its_runs_are_the_same_and_parallel(
    scans: Path, shared: dict[str, Any], write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = f"{write('by_file.py')}:Halved"
    monkeypatch.setattr(batch, "run", None)  # nothing runs in this process
    found = fedbm.compare(scans, ["fedavg", reference], seeds=[0, 1], **shared)
    assert [(run.method, run.seed) for run in found.runs] == [
        ("fedavg", 0),
        ("halved", 0),
        ("fedavg", 1),
        ("halved", 1),
    ]
    assert found.runs[1].summary["last"] != found.runs[0].summary["last"]
    again = fedbm.compare(scans, [load_class(reference)()], seeds="0,1", **shared)
    assert [run.id for run in again.runs] == [found.runs[1].id, found.runs[3].id]
    alone = fedbm.simulate(scans, method=reference, seed=1, **{**shared, "out": str(tmp_path / "alone")})
    assert alone.id == found.runs[3].id
    assert alone.summary["last"] == found.runs[3].summary["last"]
    assert found.runs[1].environment["method"] == "by_file.py:Halved"


def test_a_script_is_not_imported_by_other_processes(scans: Path, shared: dict[str, Any], write: Write) -> None:
    """Runs of the package's own methods are parallel, and those of the script's method are not."""
    own = f"fedbm.compare({str(scans)!r}, [Halved(scale=0.25)], seeds=1, progress=True, **{shared!r}).runs[0].label"
    built_in = f"fedbm.compare({str(scans)!r}, ['fedavg'], seeds=1, **{shared!r})"
    environment = {**os.environ, "PYTHONPATH": str(Path(fedbm.__file__).parents[1])}
    script = write("script.py", HALVED + f"print('started')\nprint([{built_in}])\nprint({own})\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["started", "[Comparison(1 run of fedavg)]"]
    assert "note: halved has one run at a time. Import it from a file of its own to have several." in lines
    assert lines[-1] == "halved · scale=0.25"


def test_a_class_that_others_cannot_import_runs_here(
    scans: Path, shared: dict[str, Any], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Local(fedbm.FedAvg):
        name = "local"

    assert not is_importable(Local())
    assert is_importable(load_class(f"{write('importable.py')}:Halved")())
    monkeypatch.setattr(batch, "run_all", None)
    fedbm.compare(scans, [Local()], seeds=1, **shared)
    config = with_method(make_config(to_sections({**shared, "data": str(scans)})), Local())
    for dataset, notes in ((None, 1), (fedbm.load(scans, size=16, channels=1), 0)):
        [job] = batch.plan_jobs([config], dataset)
        assert sum("one run at a time" in note for note in job.notes) == notes, "an import would not help loaded data"


def test_a_file_that_changes_fails_its_run_and_no_other(
    tiny: dict[str, Any], write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("changing.py")
    config = make_config(to_sections({**tiny, "rounds": 1, "out": str(tmp_path / "runs")}))
    own = with_method(config, load_method(f"{file}:Halved"))
    write("changing.py", "class Halved(:")
    monkeypatch.setattr(scheduler, "cores", lambda: 1)
    news = list(run_all([own, own, config], ids=["x", "y", batch.plan_jobs([config])[0].folder.name]))
    failed = {number: one.reason for number, one in news if isinstance(one, Failure)}
    assert [reason.partition(":")[0] for reason in failed.values()] == ["SyntaxError", "SyntaxError"]
    assert [number for number, event in news if isinstance(event, Event) and event.record] == [2]
    write("changing.py", HALVED + "\n# edited")
    [(_, failure)] = run_all([own], ids=["halved-scans-s0-000000000000"])
    assert isinstance(failure, Failure)
    assert failure.reason == "its data or its method's file changed after the command started. Run the command again."


def test_an_edited_file_is_read_again(write: Write) -> None:
    file = write("edited.py")
    assert load_method(f"{file}:Halved").scale == 0.5  # type: ignore[attr-defined]
    write("edited.py", HALVED.replace("0.5", "0.125"))
    assert load_method(f"{file}:Halved").scale == 0.125  # type: ignore[attr-defined]


def test_a_file_of_a_package_may_import_its_neighbours(write: Write) -> None:
    write("package/__init__.py", "")
    write("package/names.py", "NAME = 'inside'")
    file = write("package/inside.py", HALVED + "from .names import NAME\n\nclass Inside(Halved):\n    name = NAME\n")
    assert is_importable(load_method(f"{file}:Inside"))


def test_a_variant_of_a_method_keeps_the_states_of_both_apart_from_the_model() -> None:
    class Variant(Scaffold):
        name = "variant"

    state = {"body.w": 1, "scaffold.c.body.w": 2, "variant.v": 3}
    assert Variant().model_state(state) == {"body.w": 1}  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [{}, {"limit": math.nan}])
def test_an_option_may_be_infinite_or_not_a_number(tiny: dict[str, Any], tmp_path: Path, values: Any) -> None:
    @dataclasses.dataclass(frozen=True)
    class Limited(fedbm.FedAvg):
        name: ClassVar[str] = "limited"
        limit: float = math.inf

    settings = {key: value for key, value in tiny.items() if key != "method"} | {"rounds": 1, "out": tmp_path}
    run = fedbm.simulate(method=Limited(**values), **settings)
    assert run.config["method"]["limit"] == ("NaN" if values else "Infinity")


def test_options_come_from_a_configuration_file(write: Write) -> None:
    reference = f"{write('options.py')}:Halved"
    config = configure(reference, {}, {"method": {"scale": "0.1"}, "train": {"rounds": 3}}, "x.toml")
    assert (config.method, config.train.rounds) == (load_method(reference, {"scale": 0.1}), 3)
    for options, words in (
        ({"scale": 0}, "scale must be above 0 for halved, not 0"),
        ({"skale": 1}, r'has no key "skale" \(did you mean "scale"\?\)'),
        ({"layers": [1]}, r'\(fedbm.config.options.option declares options\) has no key "layers"'),
    ):
        with pytest.raises(FedBMError, match=words):
            load_method(reference, options)
    with pytest.raises(
        FedBMError, match="^mu is an option of fedprox, not of .*options.py:Halved. Remove it, or use fedprox.$"
    ):
        to_sections({"method": reference, "mu": 1})
    with pytest.raises(FedBMError, match="mu is an option of fedprox, and no such method is chosen"):
        make_grid({}, {"mu": 1}, [reference], [None], [0])


def test_what_is_wrong_with_a_file_is_one_sentence(write: Write, tmp_path: Path) -> None:
    file = write("mistakes.py")
    broken, failing = write("broken.py", "def f(:\n"), write("failing.py", "import nowhere_to_be_found")
    rule = " A method is a subclass of fedbm.FedAvg or fedbm.Method."
    ending, taken = write("ending.py", "raise SystemExit(3)"), write("json.py", "")
    for reference, words in {
        f"{tmp_path}/mistake.py:Halved": f'there is no file {tmp_path}/mistake.py (did you mean "mistakes.py"?)',
        f"{file}:Halvd": f'{file} has no class "Halvd" (did you mean "Halved"?).' + rule,
        f"{file}:option": f'{file} has no class "option".' + rule,
        f"{file}:Nameless": 'Nameless needs a name that no method of the package has, such as name = "nameless".',
        f"{file}": f'a method of your own is named FILE.py:CLASS, such as fedper.py:FedPer, not "{file}"',
        "moon:Moon": 'a method of your own is named FILE.py:CLASS, such as fedper.py:FedPer, not "moon:Moon"',
        f"{broken}:A": f"{broken} is not valid Python: invalid syntax, line 1",
        f"{failing}:A": f"{failing} cannot be imported: ModuleNotFoundError: No module named 'nowhere_to_be_found'",
        f"{ending}:A": f"{ending} cannot be imported: SystemExit: 3",
        f"{taken}:A": f'{taken} cannot be imported: the module "json" is already {sys.modules["json"].__file__}. '
        "Rename the file.",
    }.items():
        with pytest.raises(FedBMError) as error:
            load_class(reference)
        assert str(error.value) == words
    with pytest.raises(FedBMError, match="Abstract cannot be made: Can't instantiate abstract class"):
        load_method(f"{file}:Abstract")
    nameless = vars(custom_method.import_file(file))["Nameless"]
    with pytest.raises(FedBMError, match="^Nameless needs a name that no method"):
        fedbm.simulate("digits", method=nameless())


def test_a_configuration_from_elsewhere_imports_no_file(write: Write, tmp_path: Path) -> None:
    """Nodes of a federation make a configuration of what a server sends them."""
    from fedbm.federation.federation_options import read_run_file

    marker = tmp_path / "imported"
    file = write("sent.py", f"open({str(marker)!r}, 'w').close()\n{HALVED}")
    text = f'[method]\nname = "{file}:Halved"\n[federation]\nnodes = 2\n'
    with pytest.raises(
        FedBMError, match="sent.py:Halved is your own code; only 'fedbm run', 'fedbm compare' and Python"
    ):
        read_run_file(write("run.toml", text))
    with pytest.raises(FedBMError, match="is your own code"):
        make_config({"method": {"name": f"{file}:Halved"}})
    assert not marker.exists()
