"""The first seconds of a command: PyTorch is imported only when it is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from calling import one_sentence
from forking import start_command

from fedbm.cli import main

ROOT = Path(__file__).parents[2]


def started(start: list[str], beside: Path) -> subprocess.Popen[str]:
    """Start a process that looks for modules in *beside* first, and that Ctrl-C can interrupt."""
    return subprocess.Popen(
        [sys.executable, *start],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (beside, ROOT / "src")))},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--version"], 0, "fedbm 0."),
        (["--help"], 0, "train one model"),
        ([], 0, "train one model"),
        (["list", "--help"], 0, "List the runs"),
        (["run", "--method", "fedprox", "--help"], 0, "fedbm methods NAME"),
        (["compare", "-h"], 0, "--methods METHODS"),
        (["completion", "bash"], 0, "-F _shtab_fedbm fedbm"),
        (["report", "--nothing"], 2, "report has no argument --nothing"),
        (["rnu"], 2, 'there is no command "rnu" (did you mean "run"?)'),
        (["federation", "inti"], 2, 'there is no task "inti" (did you mean "init"?)'),
    ],
)
def test_help_and_typos_need_no_pytorch(words: list[str], status: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('PyTorch was imported')")
    process = started(["-m", "fedbm", *words], tmp_path)
    out, err = process.communicate()
    assert said in out + err
    assert process.returncode == status
    assert "PyTorch was imported" not in err


@pytest.mark.parametrize("command", ["list", "run"])
def test_numpy_is_imported_before_pytorch(command: str, tmp_path: Path) -> None:
    """PyTorch swallows a Ctrl-C that interrupts its own import of NumPy, and NumPy then lacks half of its names."""
    (tmp_path / "torch.py").write_text("import sys\nraise ImportError(f'after NumPy: {\"numpy\" in sys.modules}')")
    _, err = started(["-m", "fedbm", command], tmp_path).communicate()
    assert "after NumPy: True" in err


MISSING = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"


HOW_TO_INSTALL = "Install FedBM with its dependencies: pip install fedbm. 'fedbm doctor' lists what is missing."


@pytest.mark.parametrize(
    ("words", "fault", "said"),
    [
        (["list"], MISSING, f"No module named 'torch'. {HOW_TO_INSTALL}"),
        (["federation", "status", "nowhere"], MISSING, f"No module named 'torch'. {HOW_TO_INSTALL}"),
        (["list"], "import nowhere", f"No module named 'nowhere'. {HOW_TO_INSTALL}"),
        (["list"], "raise ImportError('DLL load failed')", f"DLL load failed. {HOW_TO_INSTALL}"),
        (["list"], "raise OSError('libcudart.so.12:\\nno such file')", "libcudart.so.12: no such file"),
    ],
)
def test_without_pytorch_a_command_ends_with_one_sentence(
    words: list[str], fault: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text(fault)
    process = started(["-m", "fedbm", *words], tmp_path)
    out, err = process.communicate()
    assert (out, one_sentence(err), process.returncode) == ("", said, 2)


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the package is a traceback to report, also where it is an import or was raised within PyTorch."""

    def torch_fails(*_: object) -> None:
        torch.nn.Linear(2, 1)(torch.zeros(1, 3))

    def import_fails(*_: object) -> None:
        import fedbm.nowhere  # noqa: F401

    for fails, kind in ((torch_fails, RuntimeError), (import_fails, ModuleNotFoundError)):
        monkeypatch.setattr("fedbm.cli.commands.list.execute", fails)
        with pytest.raises(kind):
            main(["list"])


def test_ctrl_c_ends_with_one_sentence(tmp_path: Path) -> None:
    program = """
import sys, time
from fedbm.cli import main
from fedbm.cli.commands import list

def execute(args, console):
    print("running", flush=True)
    time.sleep(60)

list.execute = execute
sys.argv = ["fedbm", "list"]
sys.exit(main())
"""
    process = started(["-c", program], tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "fedbm: interrupted; run the same command again to continue\n")
    assert process.returncode == 130


def test_help_on_a_terminal_that_knows_no_greek(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    out, err = started(["-m", "fedbm", "--help"], tmp_path).communicate()
    assert "run methods ? ? ? seeds" in out
    assert err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--version"], ["list"]])
def test_output_to_a_full_disk_is_one_sentence(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        process = start_command(words, stdout=full, stderr=subprocess.PIPE, text=True)
        _, err = process.communicate()
    assert process.returncode == 2
    assert "No space left on device" in one_sentence(err)


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_is_ignored(closed: int, tmp_path: Path) -> None:
    command = f"{sys.executable} -m fedbm list --out {tmp_path} {closed}>&-"
    process = subprocess.run(command, shell=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, text=True)
    assert process.returncode == 0
