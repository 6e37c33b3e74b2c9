"""fedbm COMMAND …: what users type, mistakes included, and what they get to read."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from fedbm.cli import compare, demo, main
from fedbm.cli.live import showing
from fedbm.cli.main import COMMANDS
from fedbm.config import Config, keys, make_config, read_toml
from fedbm.engine.rounds import Event
from fedbm.errors import FedBMError
from fedbm.methods import METHODS
from fedbm.plan import make_plan

simulation = importlib.import_module("fedbm.simulate")  # fedbm.simulate is the function of that name

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fedbm(capsys: pytest.CaptureFixture[str]) -> Command:
    """fedbm("run", "--rounds", 3) → exit status, standard output, standard error."""

    def call(*words: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = main([str(word) for word in words])
        except SystemExit as stop:  # --help and --version
            status = int(stop.code or 0)
        seen = capsys.readouterr()
        return status, seen.out, seen.err

    return call


def flags(settings_: dict[str, Any]) -> list[Any]:
    return [word for flag, value in settings_.items() for word in (f"--{flag.replace('_', '-')}", value)]


@pytest.fixture(scope="module")
def runs(tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of each method."""
    out = tmp_path_factory.mktemp("runs")
    for each in (tiny, tiny_fedbm):
        assert main([str(word) for word in ["run", *flags(each), "--out", out]]) == 0
    return out


def one_sentence(err: str) -> str:
    """What stands on standard error: a line that says who speaks, and no traceback."""
    assert err.startswith("fedbm: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.removeprefix("fedbm: ").rstrip("\n")


def test_the_promised_form(fedbm: Command, tmp_path: Path) -> None:
    """By name, as the README has it; only smaller."""
    typed = "run --data digits --method fedavg --clients 10 --beta 0.05 --rounds 2 --seed 0 --device cpu"
    words = typed.split()
    small = ["--size", 16, "--width", 4, "--batch", 64, "--out", tmp_path / "runs"]
    status, out, err = fedbm(*words, *small)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert "note: digits brings no split: each class was cut 7:1:2 with seed 0" in lines
    assert lines[1].split() == ["client", "samples", *"0123456789"]
    assert [line.split()[0] for line in lines[2:12]] == [str(client) for client in range(10)]
    assert any(line.startswith("fedavg round 2/2  loss ") for line in lines)
    assert "\x1b" not in out  # no colours or cursor movements in a file
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"run: {folder}" in lines
    assert lines[-3].split() == ["method", "seed", "round", "accuracy", "macro-F1", "AUC", "recall", "precision"]
    summary = json.loads((folder / "summary.json").read_text())
    assert f"{100 * summary['best']['accuracy']:.1f} %" in lines[-2]

    status, again, err = fedbm(*words, *small)
    assert (status, err) == (0, "")
    assert "this run is finished; nothing to compute" in again
    assert "round 1/2" not in again
    assert again.splitlines()[-3:] == lines[-3:]


def test_a_path_and_a_file(fedbm: Command, tiny: dict[str, Any], tmp_path: Path) -> None:
    """fedbm run FILE.toml --seed 1: flags win over the file."""
    status, text, _ = fedbm("config", "--toml", "--method", "fedavg")
    assert status == 0
    file = tmp_path / "experiment.toml"
    file.write_text(text)
    config = make_config(read_toml(file))
    assert config.train.seed == 0
    own = {key: value for key, value in tiny.items() if key != "method"}
    status, out, err = fedbm("run", file, "--seed", 1, *flags(own), "--out", tmp_path)
    assert (status, err) == (0, "")
    (folder,) = tmp_path.glob("fedavg-scans-s1-*")
    assert make_config(read_toml(folder / "config.toml")).train.seed == 1
    status, out, err = fedbm("run", folder / "config.toml")  # a run's own file is a configuration
    assert (status, err) == (0, "")
    assert "this run is finished" in out


def test_another_method_than_the_files(fedbm: Command, tiny_fedbm: dict[str, Any], runs: Path, tmp_path: Path) -> None:
    (folder,) = runs.glob("fedbm-*")
    status, out, err = fedbm("run", folder / "config.toml", "--method", "fedavg", "--out", runs)
    assert (status, err) == (0, "")
    assert "this run is finished" in out  # the file's options of FedBM are not FedAvg's


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("rnu", 'there is no command "rnu" (did you mean "run"?); try fedbm --help'),
        ("--ruonds", "fedbm does not know --ruonds"),
        ("--ruonds 3", "argument COMMAND: invalid choice: '3' (choose from "),
        ("run --ruonds 3", 'fedbm run does not know --ruonds (did you mean "--rounds"?)'),
        ("run --ruonds=3", 'fedbm run does not know --ruonds (did you mean "--rounds"?)'),
        ("run --rounds", "argument --rounds: expected one argument; 'fedbm run --help' explains"),
        ("run --rounds many", 'rounds must be a whole number, not "many"'),
        ("run --rounds -3", "rounds must be at least 1, not -3"),
        ("run --beta 0", "beta must be above 0, not 0"),
        ("run --optimizer sdg", 'optimizer must be sgd or adam, not "sdg" (did you mean "sgd"?)'),
        ("run --generator maybe", 'generator must be yes or no, not "maybe"'),
        ("run --method fedmb", 'there is no method "fedmb" (did you mean "fedbm"?); choose fedavg'),
        ("run --method fedavg --temperature 3", "temperature is an option of fedbm"),
        ("run --data digts", 'no data set is called "digts" (did you mean "digits"?)'),
        ("run --data pbc", "the images of pbc are not part of this package: get "),
        ("run --data ./nowhere", "nowhere does not exist or cannot be reached"),
        ("run --data bad.toml", "bad.toml is not understood: give a folder that holds"),
        ("run --device gpu", 'device must be cpu, cuda, cuda:N or auto, not "gpu"'),
        ("run --device cuda:99", "cuda:99"),
        ("run --clients 2000", "1258 training samples are too few for 2000 clients"),
        ("run --partition file", "partition = file needs partition_file"),
        ("run --init nowhere.pth", "init: there is no file nowhere.pth"),
        ("run digits", "there is no configuration file digits; if it names data, say --data digits"),
        ("run bda.toml", 'there is no configuration file bda.toml (did you mean "bad.toml"?)'),
        ("run bad.toml", '[train] in bad.toml has no key "ruonds" (did you mean "rounds"?)'),
        ("run section.toml", 'section.toml has no section "trian" (did you mean "train"?)'),
        ("run broken.toml", "broken.toml is not valid TOML: "),
        ("run bad.toml worse.toml", "fedbm run does not know worse.toml"),
        ("show", "the following arguments are required: run; 'fedbm show --help' explains"),
        ("show nothing", 'there is no run "nothing" in runs; "fedbm list --out runs" shows them'),
        ("report", "there are no runs in runs to report on"),
        ("report nothing", 'there is no run "nothing" in runs'),
        ("predict nothing x.png", 'there is no run "nothing" in runs'),
        ("concepts --data digits --encoder-folder nowhere", "nowhere"),
        ("concepts --data digts", 'no data set is called "digts" (did you mean "digits"?)'),
        ("data digts", 'no data set is called "digts" (did you mean "digits"?)'),
        ("data digits --partition file", "partition = file needs partition_file"),
        ("config --tmol", 'fedbm config does not know --tmol (did you mean "--toml"?)'),
        ("config --toml --method fedmb", 'there is no method "fedmb" (did you mean "fedbm"?)'),
        ("compare --methods fedavg,fedmb", 'there is no method "fedmb" (did you mean "fedbm"?)'),
        ("compare --methods fedavg --temperature 3", "--temperature is an option of fedbm"),
        ("compare --betas 0.1,x", 'beta must be a number, not "x"'),
        ("compare --seeds 0", 'seeds must be a whole number from 1 to 99, not "0"'),
        ("compare bad.toml", 'has no key "ruonds" (did you mean "rounds"?)'),
        ("compare absent.toml", "there is no configuration file absent.toml"),
        ("demo --seeds two", 'seeds must be a whole number from 1 to 99, not "two"'),
        ("demo --seeds ²", 'seeds must be a whole number from 1 to 99, not "²"'),
        ("demo --rounds 0", "rounds must be at least 1, not 0"),
    ],
)
def test_mistakes(fedbm: Command, words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, status 2, and nothing written."""
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text("[train]\nruonds = 3\n")
    Path("section.toml").write_text("[trian]\nrounds = 3\n")
    Path("broken.toml").write_text("[train\n")
    status, _, err = fedbm(*words.split())
    assert sentence in one_sentence(err)
    assert status == 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["bad.toml", "broken.toml", "section.toml"]


def test_names_that_look_like_markup(fedbm: Command, tiny: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "[/red] :heart: 100 %"
    status, text, err = fedbm("run", *flags({**tiny, "rounds": 1}), "--out", out)
    assert (status, err) == (0, "")
    (folder,) = out.iterdir()
    assert f"run: {folder}" in text.splitlines()
    assert fedbm("show", folder)[0] == 0
    assert fedbm("list", "--out", tmp_path / "[/none]") == (
        0,
        f"there are no runs in {tmp_path}/[/none] yet; 'fedbm demo' or 'fedbm run' makes some\n",
        "",
    )


def test_help(fedbm: Command) -> None:
    for words in ([], ["--help"]):
        status, out, err = fedbm(*words)
        assert (status, err) == (0, "")
        assert all(f"\n    {command} " in out for command in COMMANDS)
    for command in COMMANDS:
        status, out, err = fedbm(command, "--help")
        assert (status, err) == (0, "")
        assert out.startswith(f"usage: fedbm {command} ")
    status, out, _ = fedbm("run", "--help")
    assert all(f"  {key.switch} " in out for key in keys())
    assert fedbm("--version")[1].startswith("fedbm ")


def test_config(fedbm: Command) -> None:
    status, out, err = fedbm("config")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    for key in keys():
        (line,) = (line for line in lines if f" {key.switch} " in line)
        assert line.split()[:2] == [key.section, key.name]
        assert key.meaning in line
    assert next(line for line in lines if " --temperature " in line).rstrip().endswith("[fedbm]")
    for method in METHODS:
        assert f'name = "{method}"' in fedbm("config", "--toml", "--method", method)[1]


def test_list_and_show(fedbm: Command, runs: Path) -> None:
    status, out, err = fedbm("list", "--out", runs)
    assert (status, err) == (0, "")
    found = sorted(path.name for path in runs.iterdir())
    assert [line.split()[0] for line in out.splitlines()[1:]] == found
    assert out.count(" done ") == 2
    status, out, err = fedbm("show", "fedavg", "--out", runs)
    assert (status, err) == (0, "")
    assert out.startswith(found[0])
    assert 'name = "fedavg"' in out
    assert "chosen on validation" in out
    assert f"{runs / found[0] / 'model.safetensors'}  " in out


def test_an_unfinished_and_an_unreadable_run(fedbm: Command, runs: Path, tmp_path: Path) -> None:
    (whole,) = runs.glob("fedavg-*")
    for name in ("half", "odd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_bytes((whole / "config.toml").read_bytes())
    (tmp_path / "half" / "rounds.jsonl").write_bytes((whole / "rounds.jsonl").read_bytes()[:-9])
    (tmp_path / "odd" / "rounds.jsonl").write_text("{\n")
    status, out, err = fedbm("list", "--out", tmp_path)
    assert (status, err) == (0, "")
    assert "3/4 rounds" in out
    assert "unreadable" in out
    assert "is damaged" in out
    status, out, _ = fedbm("show", "half", "--out", tmp_path)
    assert status == 0
    assert "unfinished: 3 of 4 rounds; the same command goes on with it" in out
    status, _, err = fedbm("show", "odd", "--out", tmp_path)
    assert status == 2
    assert "line 1 of " in one_sentence(err)


def test_report(fedbm: Command, runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    status, out, err = fedbm("report", "--out", runs, "--to", page)
    assert (status, out, err) == (0, f"report: {page}\n", "")
    assert "FedBM" in page.read_text()
    status, out, err = fedbm("report", "fedavg", "--out", runs, "--markdown")
    assert (status, err) == (0, "")
    assert out.count("FedAvg") == 1
    assert "|" in out


def test_predict(fedbm: Command, runs: Path, scans: Path, tmp_path: Path) -> None:
    images = [scans / "cyst" / "0.png", scans / "polyp" / "1.png"]
    status, out, err = fedbm("predict", "fedbm", *images, "--out", runs, "--device", "cpu")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["file", "class", "probability"]
    for line, image in zip(lines[1:], images, strict=True):
        assert line.split()[0] == str(image)
        assert line.split()[1] in ("cyst", "normal", "polyp")
        assert 0 < float(line.split()[2]) <= 100
    (tmp_path / "no.png").write_text("no image")
    for name, why in (("no.png", "not an image"), ("absent.png", "No such file or directory")):
        status, _, err = fedbm("predict", "fedbm", tmp_path / name, "--out", runs)
        assert status == 2
        assert one_sentence(err) == f"{tmp_path / name} is no readable image: {why}"


def test_predict_before_the_run_is_finished(fedbm: Command, runs: Path, tmp_path: Path) -> None:
    (whole,) = runs.glob("fedavg-*")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.toml").write_bytes((whole / "config.toml").read_bytes())
    status, _, err = fedbm("predict", tmp_path / "half", "x.png")
    assert status == 2
    assert "holds no model yet" in one_sentence(err)


def test_concepts(fedbm: Command, tmp_path: Path) -> None:
    status, out, err = fedbm("concepts", "--data", "pbc", "--save", tmp_path / "pbc.safetensors")
    assert (status, err) == (0, "")
    assert out.splitlines()[1].split()[:3] == ["class", "basophil", "eosinophil"]
    assert f"saved: {tmp_path / 'pbc.safetensors'}" in out
    status, again, _ = fedbm("concepts", "--data", "pbc", "--concept-file", tmp_path / "pbc.safetensors")
    assert status == 0
    assert again.splitlines()[:10] == out.splitlines()[:10]
    assert "nearest" in fedbm("concepts", "--data", "femnist")[1]  # 62 classes: no table of 62 columns


def test_data(fedbm: Command, tiny: dict[str, Any], scans: Path, tmp_path: Path) -> None:
    status, out, err = fedbm("data")
    assert (status, err) == (0, "")
    assert "built in" in next(line for line in out.splitlines() if line.startswith("digits "))
    drawn, saved = tmp_path / "p.svg", tmp_path / "p.json"
    own = ["--size", 16, "--channels", 1, "--clients", 3]
    status, out, err = fedbm("data", scans, *own, "--picture", drawn, "--save", saved)
    assert (status, err) == (0, "")
    assert out.startswith("scans: 90 images of (1, 16, 16)")
    assert "3 clients (dirichlet)" in out
    assert "<svg" in drawn.read_text()
    again = fedbm("data", scans, *own, "--partition", "file", "--partition-file", saved)[1]
    assert "3 clients (dirichlet)" in again


@pytest.fixture
def small_demo(tiny_fedbm: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SETTINGS", {key: value for key, value in tiny_fedbm.items() if key != "method"})


@pytest.mark.usefixtures("small_demo")
def test_demo(fedbm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing, in a process of its own; only its settings are small, and one method stands for two."""
    monkeypatch.setattr(demo, "METHODS", ("fedbm",))
    status, out, err = fedbm("demo", "--rounds", 2, "--out", tmp_path)
    assert (status, err) == (0, "")
    assert [line.split()[6] for line in out.splitlines() if line.startswith("fedbm, ")] == ["1/2", "2/2"]
    assert f"report: {tmp_path / 'report.html'} (open it in a browser; it needs no network)" in out
    assert len(list(tmp_path.glob("*/summary.json"))) == 1
    monkeypatch.setattr(compare, "run_all", None)  # nothing is left to run
    status, again, err = fedbm("demo", "--rounds", 2, "--out", tmp_path)
    assert (status, err) == (0, "")
    assert "1 of 1 runs are finished already" in again
    assert " 1/2 " not in again


def one_after_the_other(configs: Sequence[Config], processes: int) -> Iterator[tuple[int, Event]]:
    """run_all() without its processes."""
    for number, config in enumerate(configs):
        for event in simulation.run(make_plan(config)):
            yield number, event


def test_compare(fedbm: Command, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "run_all", one_after_the_other)
    shared = {key: value for key, value in tiny.items() if key not in ("method", "rounds")}
    words = ["compare", *flags({**shared, "rounds": 1}), "--out", tmp_path, "--to", tmp_path / "page.html"]
    status, out, err = fedbm(*words, "--methods", "fedavg, fedprox,fedavg", "--betas", "0.1,0.5", "--seeds", 1)
    assert (status, err) == (0, "")
    assert len(list(tmp_path.glob("*/summary.json"))) == 2 * 2
    assert out.count("test scores in %") == 2
    assert f"report: {tmp_path / 'page.html'}" in out
    status, out, err = fedbm(*words, "--methods", "fedavg", "--betas", "0.5", "--seeds", 1)
    assert (status, err) == (0, "")
    assert "1 of 1 runs are finished already" in out


@pytest.mark.usefixtures("small_demo")
def test_a_failing_demo(fedbm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(configs: Sequence[Config], processes: int) -> Iterator[tuple[int, Event]]:
        yield from islice(one_after_the_other(configs, processes), 1)
        raise FedBMError("run 1 of 2 ended with status 1")

    monkeypatch.setattr(compare, "run_all", fail)
    status, _, err = fedbm("demo", "--out", tmp_path, "--device", "cpu")
    assert status == 2
    assert one_sentence(err) == "run 1 of 2 ended with status 1"


def test_a_live_line_in_a_terminal() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=150)
    with showing(screen, "fedbm", 3) as show:
        show(Event(2, "train", 1, 4))  # resumed: one round is behind
        record = {"loss": {"cross_entropy": 1.25}, "val": {"accuracy": 0.5, "f1": 0.25}}
        show(Event(2, "done", record=record))
    assert isinstance(screen.file, io.StringIO)
    assert "2/3 loss 1.250 val 50.0 %, F1 25.0 % " in screen.file.getvalue()


def test_interrupted_while_looking(fedbm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "list", interrupt)
    monkeypatch.setitem(COMMANDS, "compare", interrupt)
    assert fedbm("list") == (130, "", "fedbm: interrupted\n")
    status, _, err = fedbm("compare")
    assert status == 130
    assert one_sentence(err) == "interrupted; the same command goes on from the last whole round"


def test_a_reader_that_leaves() -> None:
    """fedbm list --help | head: quiet, though so little would only be flushed at the very end."""
    command = [sys.executable, "-m", "fedbm", "list", "--help"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=buffered)
    assert process.stdout is not None
    process.stdout.close()
    assert (process.communicate()[1], process.returncode) == (b"", 0)


def test_a_reader_that_leaves_a_table(fedbm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert fedbm("config")[0] == 0


def test_a_terminal_that_knows_no_greek(fedbm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert fedbm("config")[0] == 0
    assert b"Dirichlet concentration ?" in shown.getvalue()


words = st.lists(
    st.sampled_from([*COMMANDS, *(key.switch for key in keys()), "--save", "--to", "--help", "--", "-x", "digits"])
    | st.sampled_from(["0", "1", "-1", "0.5", "yes", "cpu", "fedavg", "fedbm", "dirichlet", "="])
    | st.text(max_size=6),
    max_size=6,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=words | st.tuples(st.sampled_from(sorted(COMMANDS)), words).map(lambda pair: [pair[0], *pair[1]]))
def test_any_words(words: list[str], fedbm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is typed: done, or one sentence. What would compute or write is stopped where it would begin."""

    def stop(*_: Any, **__: Any) -> Any:
        raise FedBMError("stopped")

    monkeypatch.chdir(tmp_path)
    for place in ("plan.make_plan", "plan.load_dataset", "plan.concepts_for", "language.shipped.ship"):
        monkeypatch.setattr(f"fedbm.{place}", stop)
    for module in (demo, compare):
        monkeypatch.setattr(module, "make_plan", stop)
    status, _, err = fedbm(*words)
    assert status in (0, 2)
    if status == 2:
        one_sentence(err)
    else:
        assert err == ""
    assert list(tmp_path.iterdir()) == []
