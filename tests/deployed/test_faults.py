"""Faults injected into a real deployment, with real signals: what happens, what is said, and the final model's digest.

With as many answers needed as there are nodes, no fault may change what is learned: the digest is that of a run in
one process that nothing happened to. SCAFFOLD keeps state at every node, so a lost or doubled step would show.
"""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from deployment import NODES, Deployment, has_ended, pids_of, ready, wait_for

from fedbm.federation.deploy.flower import SERVER_APP
from fedbm.methods import Scaffold

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

WORKER = "worker"


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(tmp_path) as made:
        made.start_all()
        yield made


def changed_client_app(folder: Path, program: str) -> dict[str, str]:
    """Return the environment of a node that runs *program* at the start of each of its processes."""
    (folder / "changed").mkdir()
    (folder / "changed" / "sitecustomize.py").write_text(textwrap.dedent(program))
    return {"PYTHONPATH": os.pathsep.join([str(folder / "changed"), os.environ.get("PYTHONPATH", "")])}


SLOW = """
import sys
if "fedbm.federation.node.worker" in sys.orig_argv:
    import time
    import fedbm.engine.local_training as local
    true = local.train_client
    def slow(method, model, task, train, round_, *words):
        if round_ == 2:
            time.sleep({seconds})
        return true(method, model, task, train, round_, *words)
    local.train_client = slow
"""


def start_with_slow_node(study: Deployment, tmp_path: Path, slow: str, seconds: float) -> None:
    """Start the server and all nodes. The node *slow* takes *seconds* longer for its training of round 2."""
    ready([study.start("server", study.folder)])
    env = changed_client_app(tmp_path, SLOW.format(seconds=seconds))
    ready([study.start("node", study.folder / name, env=env if name == slow else None) for name in NODES])


def same_as_undisturbed(study: Deployment, tmp_path: Path) -> bool:
    return study.final_digest() == study.digests()[-1] == study.digest_in_process(tmp_path / "runs")


def test_a_killed_node_comes_back_and_nothing_is_lost(study: Deployment, tmp_path: Path) -> None:
    study.fedbm("run", study.folder, study.file, "--detach")
    study.training(2)
    site, node = study.folder / NODES[2], study.started[-1]
    [worker] = wait_for(lambda: pids_of(site, WORKER), lambda found: len(found) == 1, 60)
    node.kill()
    wait_for(lambda: has_ended(worker), bool, 60)  # what it had at work does not live on
    study.restart(site)
    study.finished()
    assert [record["round"] for record in study.records()] == [1, 2, 3]
    assert all(len(record["clients"]) == 3 for record in study.records())
    assert same_as_undisturbed(study, tmp_path)


def test_a_node_whose_worker_is_killed_comes_back_and_nothing_is_lost(study: Deployment, tmp_path: Path) -> None:
    """The kernel kills a worker in the same way when memory runs out."""
    study.fedbm("run", study.folder, study.file, "--detach")
    study.training(2)
    site, node = study.folder / NODES[2], study.started[-1]
    [worker] = pids_of(site, WORKER)
    os.kill(worker, signal.SIGKILL)
    assert node.wait(60) == 2
    assert "worker of hospital-3 has died" in node.words()  # type: ignore[attr-defined]
    study.restart(site)
    study.finished()
    assert all(len(record["clients"]) == 3 for record in study.records())
    assert same_as_undisturbed(study, tmp_path)


def test_a_node_that_is_upgraded_during_a_run_goes_on(study: Deployment, tmp_path: Path) -> None:
    study.fedbm("run", study.folder, study.file, "--detach")
    study.training(2)
    study.fedbm("stop", study.folder / NODES[1])  # its engineer installs another build of the same version
    ready([study.start("node", study.folder / NODES[1])])
    study.finished()
    assert all(len(record["clients"]) == 3 for record in study.records())
    assert same_as_undisturbed(study, tmp_path)


def test_after_a_killed_superlink_the_server_is_started_again_and_the_run_resumes(
    study: Deployment, tmp_path: Path
) -> None:
    study.fedbm("run", study.folder, study.file, "--detach")
    study.training(2)
    [app] = pids_of(study.home, SERVER_APP)
    study.kill("server", "superlink")
    assert study.started[0].wait(60) == 2
    wait_for(lambda: has_ended(app), bool, 60)
    ready([study.start("server", study.folder)])  # as its service does
    study.fedbm("run", study.folder, study.file)
    assert [line["round"] for line in study.events("resumed")] == [1]
    assert same_as_undisturbed(study, tmp_path)


def test_a_killed_server_app_fails_the_run_and_the_same_command_goes_on(study: Deployment, tmp_path: Path) -> None:
    first = study.start("run", study.folder, study.file)
    study.training(2)
    study.kill("server", SERVER_APP)
    assert first.wait(300) == 2
    said = first.words()  # type: ignore[attr-defined]
    assert "the run was not completed" in said
    assert "the same command resumes it" in said
    study.fedbm("run", study.folder, study.file)
    assert [line["round"] for line in study.events("resumed")] == [1]
    assert same_as_undisturbed(study, tmp_path)
    again = study.fedbm("run", study.folder, study.file)  # a finished run is left alone
    assert "round 3/3 done" in again.stdout
    assert len(study.events("finished")) == 1


def test_with_too_few_answers_a_round_is_repeated_and_never_counted(tmp_path: Path) -> None:
    with Deployment(tmp_path, deadline=60) as study:
        start_with_slow_node(study, tmp_path, NODES[2], 50)  # it is stopped before it answers
        study.fedbm("run", study.folder, study.file, "--detach")
        study.training(2)
        study.fedbm("stop", study.folder / NODES[2])
        study.until(lambda s: (s["round"] == 2 and s["phase"] != "train") or len(study.events("missed")) > 0, 200)
        assert [record["round"] for record in study.records()] == [1]
        second = study.fedbm("run", study.folder, study.file, check=False)
        assert (second.returncode, "another run is active" in second.stderr) == (2, True)
        ready([study.start("node", study.folder / NODES[2])])
        study.finished()
        assert [len(record["clients"]) for record in study.records()] == [3, 3, 3]
        assert same_as_undisturbed(study, tmp_path)


def test_a_round_goes_on_without_a_dead_node_where_fewer_answers_do(tmp_path: Path) -> None:
    with Deployment(tmp_path, "fedavg", rounds=4, min_updates=2, deadline=60) as study:
        start_with_slow_node(study, tmp_path, NODES[0], 50)  # it is stopped before it answers
        study.fedbm("run", study.folder, study.file, "--detach")
        study.training(2)
        study.fedbm("stop", study.folder / NODES[0])
        study.until(lambda s: any(len(record["clients"]) < 3 for record in study.records()), 260)
        without = next(record for record in study.records() if len(record["clients"]) < 3)
        assert [entry["client"] for entry in without["clients"]] == [1, 2]
        assert without["round"] == 2
        ready([study.start("node", study.folder / NODES[0])])
        study.finished()
        assert study.final_digest() == study.digests()[-1]
        assert study.final_digest() != study.digest_in_process(tmp_path / "runs")


def test_a_slow_client_0_costs_the_others_nothing(tmp_path: Path) -> None:
    """Client 0 trains past the deadline of round 2. The others answer in time and count; client 0 rejoins."""
    deadline = 240  # enough for the healthy nodes on a busy machine
    with Deployment(tmp_path, "fedavg", rounds=3, min_updates=2, deadline=deadline) as study:
        start_with_slow_node(study, tmp_path, NODES[0], deadline + 20)
        study.fedbm("run", study.folder, study.file, "--detach")
        study.finished(1200)
        used = [[entry["client"] for entry in record["clients"]] for record in study.records()]
        assert used == [[0, 1, 2], [1, 2], [0, 1, 2]]
        [missed] = study.events("missed")
        assert (missed["client"], missed["round"]) == (0, 2)
        assert missed["why"] == f"no answer within {deadline} s"
        assert len([line for line in study.events("trained", NODES[0]) if line["round"] == 2]) == 1


SPOIL = """
import sys
if "fedbm.federation.node.worker" in sys.orig_argv:
    import fedbm.engine.local_training as local
    true = local.train_client
    def spoilt(*words):
        upload, own = true(*words)
        next(value for value in upload.state.values() if value.is_floating_point()).view(-1)[0] = float("nan")
        return upload, own
    local.train_client = spoilt
"""


class Spoilt(Scaffold):
    """What the third hospital does, in one process."""

    def finish_client(self, model: Any, data: Any, context: Any, facts: Any) -> Any:
        upload, own = super().finish_client(model, data, context, facts)
        if facts.client == 2:
            next(value for value in upload.values() if value.is_floating_point()).view(-1)[0] = float("nan")
        return upload, own


def test_a_node_that_sends_nan_is_left_out_by_name(tmp_path: Path) -> None:
    with Deployment(tmp_path, min_updates=2) as study:
        ready([study.start("server", study.folder)])
        env = changed_client_app(tmp_path, SPOIL)
        ready([study.start("node", study.folder / name, env=env if name == NODES[2] else None) for name in NODES])
        study.fedbm("run", study.folder, study.file)
        rejected = study.events("rejected")
        assert {line["client"] for line in rejected} == {2}
        assert len(rejected) == 3
        assert all("not finite" in line["why"] for line in rejected)
        assert all([gone["client"] for gone in record["dropped"]] == [2] for record in study.records())
        assert study.final_digest() == study.digests()[-1] == study.digest_in_process(tmp_path / "runs", Spoilt())
