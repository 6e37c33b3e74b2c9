"""A site's privacy loss adds up over all its runs, before anything leaves, and is shown wherever a run is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from one_process import Deployed, deploy, events_of

from fedbm.cli import main
from fedbm.errors import FedBMError
from fedbm.federation.audit import Audit
from fedbm.federation.deploy.settings_files import Policy
from fedbm.federation.node.handler import answer
from fedbm.federation.node.privacy import epsilon
from fedbm.federation.node.privacy_ledger import count_release
from fedbm.federation.protocol.flower_records import from_records
from fedbm.federation.protocol.messages import CENSUS, EVALUATE, Refusal
from fedbm.federation.server.flower_clients import read_privacy_file, save_privacy
from fedbm.report.privacy_sentences import client_losses
from fedbm.report.write import write_report
from fedbm.runs.run_file_types import PrivacyLoss
from fedbm.runs.run_view import read_run

ASKED = {"noise": 1.0, "clip": 0.5, "delta": 1e-5}
NONE = {"epsilon_all_runs": None, "bound": "none"}


def at(releases: float, delta: float = 1e-5) -> Any:
    """ε of so many releases with z = 1."""
    return pytest.approx(epsilon(releases / 2, delta))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "state" / "privacy.json"


def test_releases_add_up_over_runs(ledger: Path) -> None:
    count_release(ledger, "first", ASKED, Policy())
    told = count_release(ledger, "first", ASKED, Policy())
    assert told == {"delta": 1e-5, "epsilon": at(2), "epsilon_all_runs": at(2), "bound": "finite"}
    told = count_release(ledger, "second", {**ASKED, "noise": 2.0, "delta": 1e-6}, Policy())
    assert told["epsilon"] == at(1 / 4, 1e-6)
    assert told["epsilon_all_runs"] == at(2 + 1 / 4, 1e-6)
    count_release(ledger, "second", {**ASKED, "clip": 3.0}, Policy())
    assert json.loads(ledger.read_text()) == {
        "format": 1,
        "runs": {
            "first": {"releases": [{"noise": 1.0, "clip": 0.5, "count": 2}], "exact": False},
            "second": {
                "releases": [{"noise": 2.0, "clip": 0.5, "count": 1}, {"noise": 1.0, "clip": 3.0, "count": 1}],
                "exact": False,
            },
        },
    }


def test_one_exact_release_leaves_no_finite_bound(ledger: Path) -> None:
    count_release(ledger, "private", ASKED, Policy())
    count_release(ledger, "open", None, Policy())
    assert count_release(ledger, "private", ASKED, Policy()) == {"delta": 1e-5, "epsilon": at(2), **NONE}
    assert count_release(ledger, "open", ASKED, Policy()) == {"delta": 1e-5, "epsilon": None, **NONE}
    text = ledger.read_text()
    count_release(ledger, "open", None, Policy())
    assert ledger.read_text() == text
    ledger.unlink()  # restarts the count
    assert count_release(ledger, "private", ASKED, Policy())["epsilon_all_runs"] == at(1)


def test_concurrent_runs_lose_no_count(ledger: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: count_release(ledger, f"run {n % 3}", ASKED, Policy()), range(60)))
    assert count_release(ledger, "last", ASKED, Policy())["epsilon_all_runs"] == at(61)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot read"),
        ("[]", "it must be an object with keys"),
        ('{"format": 2, "runs": {}}', "format must be"),
        ('{"format": 1}', "runs is missing"),
        ('{"format": 1, "runs": {"a": {"releases": [], "exact": 0}}}', "runs.a.exact must be true or false"),
        (
            '{"format": 1, "runs": {"a": {"releases": [{"noise": 1, "clip": 1, "count": -5}], "exact": false}}}',
            r"runs.a.releases\[0\].count must be",
        ),
        (
            '{"format": 1, "runs": {"a": {"releases": [{"noise": 1e300, "clip": 1, "count": 5}], "exact": false}}}',
            r"runs.a.releases\[0\].noise must be",
        ),
    ],
)
def test_a_damaged_ledger_is_refused(ledger: Path, text: str, why: str) -> None:
    ledger.parent.mkdir()
    ledger.write_text(text)
    for use in (
        lambda: count_release(ledger, "a", ASKED, Policy()),
        lambda: count_release(ledger, "a", None, Policy()),
    ):
        with pytest.raises(Refusal) as refused:
            use()
        assert refused.value.code == "privacy"
        assert re.search(f"{why}.*restore a good copy", str(refused.value.__cause__))
    assert ledger.read_text() == text


def run_of(tiny: dict[str, Any], tmp_path: Path, **options: Any) -> Deployed:
    settings = {**tiny, "clients": 2, "rounds": 1, "participation": 1.0, "beta": 0.5, "batch": 32}
    return deploy(
        tmp_path, {**settings, **options.pop("settings", {})}, {"dp_noise": 1.0, "max_round_attempts": 3, **options}
    )


def summary_of(deployed: Deployed, seed: int = 0) -> tuple[Path, Mapping[str, Any]]:
    [run] = (deployed.state / "runs").glob(f"*-s{seed}-*")
    return run, json.loads((run / "summary.json").read_text())["privacy"]["clients"]


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_nothing_leaves_a_site_with_a_damaged_ledger(tiny: dict[str, Any], tmp_path: Path, noise: float) -> None:
    deployed = run_of(tiny, tmp_path, dp_noise=noise, max_round_attempts=1)
    for client in range(2):
        (tmp_path / f"node-{client}").mkdir(exist_ok=True)
        (tmp_path / f"node-{client}" / "privacy.json").write_text("{")
    with pytest.raises(FedBMError, match="never had enough usable updates"):
        deployed.serve()
    why = {line["why"] for line in events_of(deployed.state, "refused")}
    assert why == {"it cannot count its privacy loss, so nothing leaves it; see its own log"}


def test_an_update_is_counted_before_it_leaves(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that dies between the count and the answer has spent the update that never left."""
    append, died = Audit.append, []

    def die_once(audit: Audit, event: str, **facts: Any) -> None:
        if event == "trained" and not died:
            died.append(facts["run"])
            raise SystemExit
        append(audit, event, **facts)

    monkeypatch.setattr(Audit, "append", die_once)
    deployed = run_of(tiny, tmp_path, min_updates=2)
    deployed.serve()
    assert died
    _, clients = summary_of(deployed)
    assert [clients[client]["epsilon"] for client in ("0", "1")] == [at(2), at(2)]  # the round was repeated


def test_an_answer_that_is_lost_counts(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = run_of(tiny, tmp_path, min_updates=2)
    lost = []

    def lose_once(request: Message, reply: Message) -> Message | None:
        if request.metadata.message_type == "train" and not lost:
            lost.append(reply)
            return None
        return reply

    deployed.grid.nodes[9000].spoil = lose_once
    deployed.serve()
    _, clients = summary_of(deployed)
    assert clients["0"]["epsilon"] == at(2)


@pytest.mark.parametrize("kind", [CENSUS, EVALUATE])
def test_label_counts_and_confusion_matrices_leave_no_finite_bound(
    tiny: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    deployed = run_of(tiny, tmp_path, settings={"method": "fednh"}, dp_noise=0.0, evaluate="nodes")
    deployed.serve()
    node = deployed.grid.nodes[9000]
    asked = next(request for request in node.requests if request.metadata.message_type == kind)
    (tmp_path / "node-0" / "privacy.json").unlink()
    assert answer(kind, from_records(asked.content), node.config).body["code"] == "ok"
    told = count_release(tmp_path / "node-0" / "privacy.json", "another", ASKED, Policy())
    assert told == {"delta": 1e-5, "epsilon": at(1), **NONE}


@pytest.mark.parametrize("before", ["private", "open"])
def test_two_runs_of_a_site(
    tiny: dict[str, Any], tmp_path: Path, before: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second has another seed, so another id; the loss over all runs resumes from the first."""
    first = run_of(tiny, tmp_path, dp_noise=1.0 if before == "private" else 0.0)
    first.serve()
    second = run_of(tiny, tmp_path / "again", settings={"seed": 1})
    for mine, theirs in zip(second.grid.nodes.values(), first.grid.nodes.values(), strict=True):
        mine.config["state"] = theirs.config["state"]
    second.serve()
    run, clients = summary_of(second, seed=1)
    total = {"epsilon_all_runs": at(2), "bound": "finite"} if before == "private" else NONE
    assert clients == {client: {"epsilon": at(1), **total} for client in ("0", "1")}
    assert [line["privacy"] for line in events_of(second.state, "received")] == list(clients.values())
    assert events_of(tmp_path / "node-0", "trained")[-1]["privacy"] == {"delta": 1e-5, **clients["0"]}
    words = "≤ 7.08" if before == "private" else "without a finite bound"
    assert client_losses(read_run(run)) == [
        f"client {n}: ε ≤ 4.73 in this run, ε {words} over all runs on its data, at δ = 1e-05" for n in range(2)
    ]
    sentence = f"seed 1, client 0: ε ≤ 4.73 in this run, ε {words} over all runs on its data, at δ = 1e-05"
    for page in ("report.md", "report.html"):
        assert sentence in write_report([run], tmp_path / page).read_text(encoding="utf-8")
    assert main(["show", str(run)]) == 0
    assert f"privacy of client 0: ε ≤ 4.73 in this run, ε {words}" in capsys.readouterr().out


def test_a_run_is_resumed_with_the_delta_at_which_its_losses_were_reported(tmp_path: Path) -> None:
    """With another one, the summary would not contain the sites that do not answer again."""
    file = tmp_path / "privacy.json"
    save_privacy(file, 1e-5, 0, PrivacyLoss(1.0, 2.0))
    with pytest.raises(FedBMError, match="has the losses at dp_delta = 1e-05; resume the run with this dp_delta"):
        read_privacy_file(file, 1e-6)
    assert list(read_privacy_file(file, 1e-5).clients) == ["0"]
