"""Programs kept running, and ended with all that they started, however their keeper ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbm.errors import FedBMError
from fedbm.federation.deploy import watchdog
from fedbm.federation.deploy.processes import (
    QUIET,
    Child,
    born,
    check_free,
    end_all,
    environment,
    pid_file,
    running,
    wait_until_ready,
)

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="marks are found in /proc")

# a program that detaches a worker as Flower does, ignores that one's end, and says when it is ready
PROGRAM = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def child(folder: Path, program: str = PROGRAM, **more: object) -> Child:
    command = [sys.executable, "-S", "-c", program]
    return Child("program", command, folder, ready=lambda c: "ready" in c.said(), **more)  # type: ignore[arg-type]


def soon(holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold within some seconds."""
    for _ in range(300):
        if holds():
            return True
        time.sleep(0.05)
    return False


def left(folder: Path) -> list[int]:
    return watchdog.marked(str(folder.resolve()))


def test_flower_is_quiet_and_at_home_in_its_folder(tmp_path: Path) -> None:
    found = environment(tmp_path)
    assert found["FLWR_TELEMETRY_ENABLED"] == "0"
    assert found["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert found["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert found.items() >= QUIET.items()
    assert found["FLWR_HOME"] == str(tmp_path / "flower")


def test_what_a_program_detached_ends_with_it(tmp_path: Path) -> None:
    program = child(tmp_path)
    program.start()
    wait_until_ready(program, 20, lambda said: None)
    assert soon(lambda: len(left(tmp_path)) == 2)
    assert running(tmp_path) == {"program": program.process.pid if program.process else 0}
    program.end()
    assert left(tmp_path) == []
    assert running(tmp_path) == {}


def test_a_stubborn_program_is_killed(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    program = child(tmp_path, stubborn)
    program.start()
    wait_until_ready(program, 20, lambda said: None)
    program.end(grace=0.3)
    assert not program.alive
    assert left(tmp_path) == []


@pytest.mark.parametrize("alone", [True, False])
def test_a_dead_program_is_started_again(alone: bool, tmp_path: Path) -> None:
    program = child(tmp_path, alone=alone, wait=0.0)
    program.start()
    wait_until_ready(program, 20, lambda said: None)
    [worker] = [pid for pid in left(tmp_path) if program.process and pid != program.process.pid]
    assert program.process
    os.kill(program.process.pid, signal.SIGKILL)
    assert soon(program.keep)
    assert (program.starts, program.alive) == (2, True)
    # what a node had at work is ended; a server app outlives the SuperLink and finds it again
    assert (born(worker) is None) == alone
    wait_until_ready(program, 20, lambda said: None)  # the words of the second start count alone
    program.end()
    assert left(tmp_path) == []


def test_restarts_wait_longer_and_longer(tmp_path: Path) -> None:
    program = child(tmp_path, "raise SystemExit(1)", wait=0.01)
    program.start()
    for _ in range(3):
        assert soon(program.keep)
        assert program.process
        program.process.wait()
    assert program.wait == pytest.approx(0.08)
    program.end()


def test_what_does_not_start_says_why(tmp_path: Path) -> None:
    program = child(tmp_path, "print('no such port'); raise SystemExit(1)")
    program.start()
    with pytest.raises(FedBMError, match="program could not have its port; all it said is in .*program.log"):
        wait_until_ready(program, 20, lambda said: "could not have its port" if "no such port" in said else None)
    program.end()
    slow = child(tmp_path, "import time; time.sleep(600)")
    slow.start()
    with pytest.raises(FedBMError, match="program was not ready after 0 s"):
        wait_until_ready(slow, 0.2, lambda said: None)
    slow.end()


KEEPER = """
import signal, sys
from pathlib import Path
from fedbm.federation.deploy.processes import Child
from fedbm.federation.deploy.supervise import supervising, work
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and in what nohup starts
folder = Path(sys.argv[1])
with supervising([folder]) as children:
    program = Child("program", [sys.executable, "-S", "-c", sys.argv[2]], folder)
    children.append(program)
    program.start()
    print("up", flush=True)
    work(children, print, lambda: True)
"""


@pytest.fixture
def keeper(tmp_path: Path) -> subprocess.Popen[str]:
    pytest.importorskip("flwr", reason="needs the flower extra")
    command = [sys.executable, "-c", textwrap.dedent(KEEPER), str(tmp_path), PROGRAM]
    made = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert made.stdout
    assert made.stdout.readline() == "up\n"
    assert soon(lambda: len(left(tmp_path)) == 2)
    return made


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_orphans_however_the_keeper_ends(
    number: signal.Signals, keeper: subprocess.Popen[str], tmp_path: Path
) -> None:
    os.kill(keeper.pid, number)
    keeper.wait(20)
    assert soon(lambda: left(tmp_path) == [])  # after SIGKILL the watchdog does it
    assert running(tmp_path) == {}


def test_started_by_nohup_it_outlives_its_terminal(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs the flower extra")
    from fedbm.federation.deploy.supervise import supervising

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with supervising([tmp_path]):
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_stop_ends_the_keeper_first(keeper: subprocess.Popen[str], tmp_path: Path) -> None:
    assert set(running(tmp_path)) == {"program", "supervisor"}
    assert end_all(tmp_path) >= 2
    assert keeper.wait(20) != 0
    assert left(tmp_path) == []
    assert end_all(tmp_path) == 0


def test_a_folder_has_one_keeper(keeper: subprocess.Popen[str], tmp_path: Path) -> None:
    from fedbm.federation.deploy.supervise import supervising

    with (
        pytest.raises(FedBMError, match="is in use: its program runs; 'fedbm federation stop"),
        supervising([tmp_path]),
    ):
        pass
    end_all(tmp_path)


def test_a_reused_process_id_is_not_mistaken(tmp_path: Path) -> None:
    pid_file(tmp_path, "old").parent.mkdir()
    pid_file(tmp_path, "old").write_text(f'{{"pid": {os.getpid()}, "born": "1"}}')
    pid_file(tmp_path, "gone").write_text('{"pid": 999999999, "born": null}')
    pid_file(tmp_path, "half").write_text('{"pid"')
    assert running(tmp_path) == {}


def test_a_taken_port_is_named() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(FedBMError, match=f"port {port} of this machine, which the SuperLink is to use, is taken"):
            check_free(port, "the SuperLink")
    check_free(port, "the SuperLink")
