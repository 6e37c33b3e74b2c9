"""Programs kept running, and ended with all that they started, however their keeper ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbm.errors import FedBMError
from fedbm.federation.deploy import supervisor
from fedbm.federation.deploy.supervisor import (
    LOCK,
    Child,
    check_free,
    end_all,
    end_marked,
    environment,
    find_marked,
    find_supervisor,
    running,
    supervise,
    wait_until_ready,
)
from fedbm.utils.io import lock_file, write_text

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="marks are found in /proc")

# a program that detaches a worker as Flower does, ignores that one's end, and says when it is ready
PROGRAM = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def child(folder: Path, program: str = PROGRAM) -> Child:
    return Child("program", [sys.executable, "-S", "-c", program], folder, lambda child: "ready" in child.output())


def soon(holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold within some seconds."""
    for _ in range(300):
        if holds():
            return True
        time.sleep(0.05)
    return False


def remaining(folder: Path) -> list[int]:
    return list(find_marked(folder))


def test_flower_is_quiet_and_at_home_in_its_folder(tmp_path: Path) -> None:
    found = environment(tmp_path)
    assert found["FLWR_TELEMETRY_ENABLED"] == "0"
    assert found["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert found["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert found["FLWR_HOME"] == str(tmp_path / "flower")


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY", "no_proxy"])
def test_no_proxy_sees_what_programs_send_on_loopback(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "http://proxy.example.org:3128")
    assert name not in environment(tmp_path)


def test_what_a_program_detached_ends_with_it(tmp_path: Path) -> None:
    program = child(tmp_path)
    program.start([])
    wait_until_ready(program, 20)
    assert soon(lambda: len(remaining(tmp_path)) == 2)
    assert running(tmp_path) == {"program": program.process.pid if program.process else 0}  # not the detached one
    program.end()
    end_marked(tmp_path)
    assert remaining(tmp_path) == []
    assert running(tmp_path) == {}


def test_a_stubborn_program_is_killed(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    program = child(tmp_path, stubborn)
    program.start([])
    wait_until_ready(program, 20)
    program.end(grace=0.3)
    assert not program.alive
    assert remaining(tmp_path) == []


def test_what_does_not_start_says_why(tmp_path: Path) -> None:
    program = child(tmp_path, "print('no such port'); raise SystemExit(1)")
    program.start([])
    with pytest.raises(FedBMError, match="program could not use its port; its log is .*program.log"):
        wait_until_ready(program, 20, lambda output: "could not use its port" if "no such port" in output else None)
    program.end()
    end_marked(tmp_path)
    slow = child(tmp_path, "import time; time.sleep(600)")
    slow.start([])
    with pytest.raises(FedBMError, match="program did not start: "):
        wait_until_ready(slow, 0.2)
    slow.end()


KEEPER = """
import signal, sys, time
from pathlib import Path
from fedbm.federation.deploy.supervisor import Child, supervise
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and in what nohup starts
folder = Path(sys.argv[1])
with supervise([folder]) as children:
    program = Child("program", [sys.executable, "-S", "-c", sys.argv[2]], folder)
    program.start(children)
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def keeper(tmp_path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(KEEPER), str(tmp_path), PROGRAM]
    made = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert made.stdout
    assert made.stdout.readline() == "up\n"
    assert soon(lambda: len(remaining(tmp_path)) == 2)
    return made


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_orphans_however_the_keeper_ends(
    number: signal.Signals, keeper: subprocess.Popen[str], tmp_path: Path
) -> None:
    os.kill(keeper.pid, number)
    keeper.wait(20)
    assert soon(lambda: remaining(tmp_path) == [])  # after SIGKILL the watchdog does it
    assert running(tmp_path) == {}


def test_the_watchdog_ends_only_with_the_keeper(keeper: subprocess.Popen[str], tmp_path: Path) -> None:
    children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text().split()
    [watchdog] = [int(pid) for pid in children if int(pid) not in remaining(tmp_path)]
    ignored = f"/proc/{watchdog}/status"
    assert soon(lambda: int(Path(ignored).read_text().split("SigIgn:")[1].split()[0], 16) >> 14 & 1 == 1)
    os.kill(watchdog, signal.SIGTERM)
    keeper.kill()
    keeper.wait(20)
    assert soon(lambda: remaining(tmp_path) == [])


def test_started_by_nohup_it_outlives_its_terminal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with supervise([tmp_path]):
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_stop_ends_the_keeper_first(keeper: subprocess.Popen[str], tmp_path: Path) -> None:
    assert set(running(tmp_path)) == {"program", "supervisor"}
    end_all(tmp_path)
    assert keeper.wait(20) != 0
    assert remaining(tmp_path) == []
    end_all(tmp_path)


def test_a_folder_has_one_keeper(keeper: subprocess.Popen[str], tmp_path: Path) -> None:
    with (
        pytest.raises(FedBMError, match=rf"is in use by process {keeper.pid}; 'fedbm federation stop"),
        supervise([tmp_path]),
    ):
        pass
    end_all(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no file that is always full")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / LOCK).symlink_to("/dev/full")
    with pytest.raises(FedBMError, match=r"cannot write .*supervisor\.pid: "), supervise([tmp_path]):
        pass


def test_what_a_killed_program_left_half_written_is_removed(tmp_path: Path) -> None:
    write_text(tmp_path / "state" / "status.json", "{}")
    (tmp_path / "state" / ".status.json.0a1b2c3d.part").write_text("{")
    with supervise([tmp_path]):
        assert [path.name for path in (tmp_path / "state").iterdir()] == ["status.json"]


def test_programs_of_a_killed_keeper_are_ended(tmp_path: Path) -> None:
    program = child(tmp_path)
    program.start([])
    wait_until_ready(program, 20)
    with supervise([tmp_path]):
        assert not remaining(tmp_path)
    program.end()
    end_marked(tmp_path)


def test_a_reused_process_id_is_not_mistaken(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text(str(os.getpid()))
    assert running(tmp_path) == {}
    (tmp_path / LOCK).write_text("")
    assert running(tmp_path) == {}


def test_who_asks_for_the_keeper_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text(str(os.getpid()))  # of an earlier keeper
    with (tmp_path / LOCK).open() as asking:
        lock_file(asking.fileno(), shared=True)
        assert find_supervisor(tmp_path) is None
        threading.Timer(0.3, asking.close).start()
        with supervise([tmp_path]):  # waits for those who ask
            assert asking.closed
            assert find_supervisor(tmp_path) == os.getpid()


def test_stop_when_the_keeper_has_just_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(supervisor, "find_supervisor", lambda folder: ended.pid)
    end_all(tmp_path)


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(FedBMError, match=f"the server needs port {port} of this machine, but cannot use it: "):
            check_free(port)
    check_free(port)
