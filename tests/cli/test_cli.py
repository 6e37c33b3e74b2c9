"""fedbm COMMAND …: what users type and what they get to read."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from calling import Command, flags, one_sentence
from rich.console import Console

from fedbm.cli.commands import COMMANDS, demo
from fedbm.cli.flags import COMMON
from fedbm.config.keys import keys_of
from fedbm.engine.round_loop import Event
from fedbm.engine.round_record import Dropped, RoundRecord, Traffic
from fedbm.errors import FedBMError
from fedbm.methods import METHODS
from fedbm.report.advice import advise
from fedbm.runs import batch
from fedbm.runs import runner as simulation
from fedbm.runs import scheduler as side_by_side
from fedbm.runs.plan import make_plan
from fedbm.runs.progress_display import show_runs
from fedbm.runs.run_config import Config, keys, make_config, read_sections
from fedbm.runs.run_view import read_run


def test_the_promised_form(fedbm: Command, tmp_path: Path) -> None:
    """By name, as the README has it; only smaller."""
    typed = "run --data digits --method fedavg --clients 10 --beta 0.05 --rounds 2 --seed 0 --device cpu"
    words = typed.split()
    small = ["--size", 16, "--width", 4, "--batch", 64, "--out", tmp_path / "runs"]
    small += ["--lr", 0.1]  # too large: the model predicts one class, whatever the processor, and there is advice
    status, out, err = fedbm(*words, *small)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert "note: each class of digits was split 7:1:2 with seed 0" in lines
    assert lines[1].startswith("note: images of 16 pixels are small for the 7x7 stem, which reduces them to one")
    assert lines[2].split() == ["client", "samples", *"0123456789"]
    assert [line.split()[0] for line in lines[3:13]] == [str(client) for client in range(10)]
    assert any(line.startswith("fedavg round 2/2  loss ") for line in lines)
    assert "\x1b" not in out  # no colours or cursor movements in a file
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"run: {folder}" in lines
    advice = [f"advice: {one.sentence}" for one in advise(read_run(folder))[:2]]
    assert advice
    assert lines[-len(advice) :] == advice
    table = lines[-3 - len(advice) : -len(advice)]
    assert table[0].split() == ["method", "seed", "round", "accuracy", "macro-F1", "AUC", "recall", "precision"]
    summary = json.loads((folder / "summary.json").read_text())
    assert f"{100 * summary['best']['accuracy']:.1f} %" in table[1]

    status, again, err = fedbm(*words, *small)
    assert (status, err) == (0, "")
    assert "this run is finished; nothing to compute" in again
    assert "round 1/2" not in again
    assert again.splitlines()[-4:] == lines[-4:]


def test_a_path_and_a_file(fedbm: Command, tiny: dict[str, Any], tmp_path: Path) -> None:
    """fedbm run FILE.toml --seed 1: flags win over the file."""
    status, text, _ = fedbm("config", "--toml", "--method", "fedavg")
    assert status == 0
    file = tmp_path / "experiment.toml"
    file.write_text(text)
    config = make_config(read_sections(file))
    assert config.train.seed == 0
    own = {key: value for key, value in tiny.items() if key != "method"}
    status, out, err = fedbm("run", file, "--seed", 1, *flags(own), "--out", tmp_path)
    assert (status, err) == (0, "")
    (folder,) = tmp_path.glob("fedavg-scans-s1-*")
    assert make_config(read_sections(folder / "config.toml")).train.seed == 1
    status, out, err = fedbm("run", folder / "config.toml")  # a run's own file is a configuration
    assert (status, err) == (0, "")
    assert "this run is finished" in out


def test_another_method_than_the_files(fedbm: Command, tiny_fedbm: dict[str, Any], runs: Path, tmp_path: Path) -> None:
    (folder,) = runs.glob("fedbm-*")
    status, out, err = fedbm("run", folder / "config.toml", "--method", "fedavg", "--out", runs)
    assert (status, err) == (0, "")
    assert "this run is finished" in out  # the file's options of FedBM are not FedAvg's


def test_help(fedbm: Command) -> None:
    for words in ([], ["--help"]):
        status, out, err = fedbm(*words)
        assert (status, err) == (0, "")
        assert all(re.search(rf"\n    {command}\s", out) for command in COMMANDS)
    for command in COMMANDS:
        status, out, err = fedbm(command, "--help")
        assert (status, err) == (0, "")
        assert out.startswith(f"usage: fedbm {command} ")
    status, out, _ = fedbm("run", "--help")
    assert all(f"  --{flag.replace('_', '-')} " in out for flag in ("method", *COMMON))
    assert len(out.splitlines()) < 60
    assert out.index("examples:") < out.index("--data TEXT")
    assert fedbm("--version")[1].startswith("fedbm ")


def test_config(fedbm: Command) -> None:
    status, out, err = fedbm("config")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    for key in keys():
        (line,) = (line for line in lines if line.startswith(f"{key.switch} "))
        assert key.meaning in line
        assert max(place for place in range(lines.index(line)) if lines[place].startswith("[")) == next(
            place for place, other in enumerate(lines) if other.startswith(f"[{key.section}]")
        )
    assert next(line for line in lines if line.startswith("--temperature ")).rstrip().endswith("[fedbm]")
    for method in METHODS:
        assert f'name = "{method}"' in fedbm("config", "--toml", "--method", method)[1]


def test_the_options_of_a_method(fedbm: Command) -> None:
    status, out, err = fedbm("methods", "fedprox")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[3:]] == ["--weighting", "--mu"]
    (mu,) = (key for key in keys_of("method", METHODS["fedprox"]) if key.name == "mu")
    assert out.splitlines()[-1].split()[:2] == ["--mu", str(mu.default)]
    assert mu.meaning in out
    found = json.loads(fedbm("methods", "fedprox", "--json")[1])
    assert [(one["flag"], one["section"]) for one in found] == [("--weighting", "method"), ("--mu", "method")]
    assert 'there is no method "fedporx" (did you mean "fedprox"?)' in fedbm("methods", "fedporx")[2]


def test_list_and_show(fedbm: Command, runs: Path) -> None:
    status, out, err = fedbm("list", "--out", runs)
    assert (status, err) == (0, "")
    found = sorted(path.name for path in runs.iterdir())
    assert [line.split()[0] for line in out.splitlines()[1:]] == found
    assert out.count(" 4/4 ") == 2
    status, out, err = fedbm("show", "fedavg", "--out", runs)
    assert (status, err) == (0, "")
    assert out.startswith(found[0])
    assert out.index("chosen on validation") < out.index('  [method] name = "fedavg"\n')
    assert "  [model] width = 4\n" in out
    assert "weight_decay" not in out, "it has its default"
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
    assert " 3/4 " in out
    assert "unreadable" in out
    assert "is damaged" in out
    status, out, _ = fedbm("show", "half", "--out", tmp_path)
    assert status == 0
    assert "unfinished, 3 of 4 rounds\n" in out
    status, _, err = fedbm("show", "odd", "--out", tmp_path)
    assert status == 2
    assert "line 1 of " in one_sentence(err)


def test_report(fedbm: Command, runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    status, out, err = fedbm("report", "--out", runs, "--to", page)
    assert (status, out, err) == (0, f"report: {page}\n", "")
    assert "FedBM" in page.read_text()
    assert fedbm("report", "fedavg", "--out", runs, "--to", page.with_suffix(".md"))[0] == 0
    assert page.with_suffix(".md").read_text().count("| FedAvg |") == 2 + 3  # best and last round, and by class
    [file] = runs.glob("fedavg-*/summary.json")
    status, _, err = fedbm("report", file)
    assert (status, one_sentence(err)) == (2, f"{file} is a file of a run: give its folder, {file.parent}")
    assert "--to names the page" in one_sentence(fedbm("report", "--out", page)[2])


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
    for name, why in (("no.png", "is not a readable image: not an image"), ("absent.png", "does not exist")):
        status, _, err = fedbm("predict", "fedbm", tmp_path / name, "--out", runs)
        assert status == 2
        assert one_sentence(err).endswith(f"{tmp_path / name} {why}")


def test_predict_a_folder_with_a_bad_file_to_a_table(fedbm: Command, runs: Path, scans: Path, tmp_path: Path) -> None:
    """What can be read is classified, what cannot is named. As in training, links are followed, documents ignored."""
    folder = tmp_path / "linked"
    folder.mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "deep").symlink_to(folder)
    images = sorted((scans / "cyst").iterdir())[:3]
    for image in images:
        shutil.copy(image, folder)
    for ignored in (".hidden", "Thumbs.db", "notes.txt"):
        (folder / ignored).write_text("")
    (folder / "again").symlink_to(tmp_path / "new")
    status, out, err = fedbm("predict", "fedbm", tmp_path / "new", "--to", tmp_path / "all.csv", "--out", runs)
    assert (status, err) == (0, "")
    assert "3 images classified" in out
    rows = list(csv.DictReader((tmp_path / "all.csv").open(encoding="utf-8")))
    assert [Path(row["file"]).name for row in rows] == [image.name for image in images]
    for row in rows:
        each = {name: float(row[name]) for name in ("cyst", "normal", "polyp")}
        assert sum(each.values()) == pytest.approx(1)
        assert row["class"] == max(each, key=lambda name: each[name])
        assert float(row["probability"]) == max(each.values())
    for bad in ("a.png", "b.png"):
        (folder / bad).write_text("no image")
    status, out, err = fedbm("predict", "fedbm", tmp_path / "new", "--to", tmp_path / "all.csv", "--out", runs)
    assert status == 2
    assert "2 of 5 files could not be classified" in err
    assert out.count("is not a readable image") == 2
    assert len((tmp_path / "all.csv").read_text(encoding="utf-8").splitlines()) == 4
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "DICOMDIR").write_text("")
    status, out, err = fedbm("predict", "fedbm", folder, tmp_path / "empty", "--out", runs)
    assert (status, out) == (2, "")
    assert one_sentence(err) == f"there is no image in the folder {tmp_path / 'empty'}"
    assert (
        "--to needs a name that ends in .csv" in fedbm("predict", "fedbm", folder, "--to", "x.xlsx", "--out", runs)[2]
    )


def test_a_table_of_the_user_is_not_replaced(fedbm: Command, runs: Path, scans: Path, tmp_path: Path) -> None:
    """What a command wrote before is replaced."""
    words = ("predict", "fedbm", scans / "cyst" / "0.png", "--to", table := tmp_path / "scans.csv", "--out", runs)
    table.write_text("path,label\n")
    status, _, err = fedbm(*words)
    assert (status, table.read_text()) == (2, "path,label\n")
    assert f"{table} exists and was not written by this command: choose another name" in one_sentence(err)
    table.unlink()
    for _ in range(2):
        assert fedbm(*words)[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_predict_a_file_with_a_name_that_is_not_utf8(fedbm: Command, runs: Path, scans: Path, tmp_path: Path) -> None:
    image = shutil.copy(scans / "cyst" / "0.png", tmp_path / os.fsdecode(b"\xff.png"))
    status, _, err = fedbm("predict", "fedbm", image, "--to", tmp_path / "all.csv", "--out", runs)
    assert (status, err) == (0, "")
    assert f"\n{tmp_path}/\\xff.png," in (tmp_path / "all.csv").read_text(encoding="utf-8")


def test_predict_by_the_averaged_model(fedbm: Command, tiny: dict[str, Any], scans: Path, tmp_path: Path) -> None:
    flags = [word for key, value in tiny.items() for word in (f"--{key.replace('_', '-')}", value)]
    images = [scans / "cyst" / "0.png", scans / "polyp" / "1.png"]
    status, out, err = fedbm("run", *flags, "--server-average", "0.9", "--out", tmp_path / "with")
    assert (status, err) == (0, "")
    assert "4, averaged model" in out
    tables = []
    for more in ([], ["--averaged"]):
        table = tmp_path / f"{len(more)}.csv"
        assert fedbm("predict", "fedavg", *images, "--to", table, "--out", tmp_path / "with", *more)[0] == 0
        tables.append(table.read_text())
    assert tables[0] != tables[1]
    status, out, _ = fedbm("run", *flags, "--out", tmp_path / "without")
    assert "averaged model" not in out
    for command in (("predict", "fedavg", *images), ("features", "fedavg")):
        status, _, err = fedbm(*command, "--out", tmp_path / "without", "--averaged")
        assert status == 2
        assert (
            "has no averaged.safetensors: a finished run has model.safetensors and, with server_average"
            in one_sentence(err)
        )


def test_predict_before_the_run_is_finished(fedbm: Command, runs: Path, tmp_path: Path) -> None:
    (whole,) = runs.glob("fedavg-*")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.toml").write_bytes((whole / "config.toml").read_bytes())
    status, _, err = fedbm("predict", tmp_path / "half", "x.png")
    assert status == 2
    assert "has no model.safetensors: a finished run" in one_sentence(err)


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
    os.mkfifo(tmp_path / "pipe.json")
    status, _, err = fedbm("data", scans, *own, "--save", tmp_path / "pipe.json")
    assert (status, one_sentence(err)) == (
        2,
        f"{tmp_path}/pipe.json is a folder or a device, not a file: choose another name",
    )
    assert (tmp_path / "pipe.json").is_fifo()


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
    monkeypatch.setattr(side_by_side, "_start_worker", None)  # nothing is left to run
    status, again, err = fedbm("demo", "--rounds", 2, "--out", tmp_path)
    assert (status, err) == (0, "")
    assert " 1/2 " not in again


def one_after_the_other(configs: Sequence[Config], **_: Any) -> Iterator[tuple[int, Event]]:
    """run_all() without its processes."""
    for number, config in enumerate(configs):
        for event in simulation.run(make_plan(config)):
            yield number, event


def test_compare(fedbm: Command, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "run_all", one_after_the_other)
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


def test_a_comparison_refuses_an_unknown_format_before_it_computes(
    fedbm: Command, tiny: dict[str, Any], tmp_path: Path
) -> None:
    shared = {key: value for key, value in tiny.items() if key not in ("method", "rounds")}
    words = [
        "compare",
        *flags({**shared, "rounds": 1}),
        "--methods",
        "fedavg",
        "--seeds",
        1,
        "--out",
        tmp_path / "runs",
    ]
    status, _, err = fedbm(*words, "--to", tmp_path / "page.pdf")
    assert status == 2
    assert f"the format of {tmp_path / 'page.pdf'} is unknown" in one_sentence(err)
    assert not (tmp_path / "runs").exists()


def test_one_failed_run_does_not_stop_a_comparison(fedbm: Command, tiny: dict[str, Any], tmp_path: Path) -> None:
    """Two real processes: FedProx's pull is so strong that it diverges, FedAvg ends well and has its row."""
    shared = {key: value for key, value in tiny.items() if key not in ("method", "rounds")}
    words = ["compare", *flags({**shared, "rounds": 1}), "--out", tmp_path, "--to", tmp_path / "page.html"]
    words += ["--methods", "fedavg,fedprox", "--mu", "1e30", "--on-nonfinite", "stop", "--seeds", 1]
    status, out, err = fedbm(*words)
    assert status == 2
    assert "failed: fedprox, β" in out
    assert "FedAvg" in out.partition("test scores in %")[2]
    assert err.startswith("fedbm: 1 of 2 runs failed. The first: fedprox, β")
    assert (tmp_path / "page.html").exists()


@pytest.mark.usefixtures("small_demo")
def test_a_failing_demo(fedbm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(configs: Sequence[Config], **_: Any) -> Iterator[tuple[int, Event]]:
        yield from islice(one_after_the_other(configs), 1)
        raise FedBMError("run 1 of 2 ended with status 1")

    monkeypatch.setattr(batch, "run_all", fail)
    status, _, err = fedbm("demo", "--out", tmp_path, "--device", "cpu")
    assert status == 2
    assert one_sentence(err) == "run 1 of 2 ended with status 1"


def test_a_live_line_in_a_terminal() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=150)
    with show_runs(screen, {0: ("fedbm", 3)}) as show:
        show(0, Event(2, "train", 1, 4, {"cross_entropy": 2.5}))  # resumed: one round is behind
        record = RoundRecord(
            round=2,
            loss={"cross_entropy": 1.25},
            dropped=(Dropped(7, "body.w is not finite"),),
            generator=None,
            val={"accuracy": 0.5, "f1": 0.25},
            test=None,
            personal=None,
            bytes=Traffic(),
            seconds={"total": 1.0},
        )
        show(0, Event(2, "done", record=record))
    assert isinstance(screen.file, io.StringIO)
    assert "2/3 loss 1.250 val 50.0 %, F1 25.0 % " in screen.file.getvalue()
    assert "round 2: left out client 7: body.w is not finite" in screen.file.getvalue()
