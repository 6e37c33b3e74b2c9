"""A site's own rules: each refusal, approval by a person, and scores that stay at the site."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from one_process import Deployed, Node, deploy, events_of

from fedbm.cli import main
from fedbm.errors import FedBMError
from fedbm.federation.deploy.federation_folders import create
from fedbm.federation.deploy.preflight import describe_policy
from fedbm.federation.deploy.settings_files import OPEN_POLICY, NodeSettings, Policy, read_settings, to_text
from fedbm.federation.node.policy_checks import approve, list_requests
from fedbm.federation.server import roster
from fedbm.utils.io import write_text

EVALUATED = {"evaluate": "nodes"}


def make(tiny: dict[str, Any], folder: Path, options: dict[str, Any] | None = None, **more: Any) -> Deployed:
    settings = {**tiny, "clients": 3, "rounds": 2, "participation": 1.0, "beta": 0.5, "batch": 32, **more}
    return deploy(folder, settings, {"deadline_s": 0.01, **(options or {})})


def second(deployed: Deployed) -> Node:
    return list(deployed.grid.nodes.values())[1]


def set_policy(node: Node, **rules: Any) -> None:
    changed = dataclasses.replace(OPEN_POLICY, **rules)
    (Path(str(node.config["folder"])) / "node.toml").write_text(to_text(NodeSettings(policy=changed)), encoding="utf-8")


@pytest.mark.parametrize(
    ("rules", "settings", "options", "code"),
    [
        ({"methods": "fedbm, fedprox"}, {}, {}, "method"),
        ({"max_rounds": 1}, {}, {}, "rounds"),
        ({"label_counts": False}, {"method": "fedproto"}, {}, "counts"),
        ({"min_noise": 0.5}, {}, {}, "noise"),
        ({"min_noise": 0.5}, {}, {"dp_noise": 0.4}, "noise"),
        ({"max_epsilon": 8.0}, {}, {}, "epsilon"),
        ({"min_per_class": 10_000}, {}, {}, "few"),
    ],
)
def test_a_rule_refuses_a_run_on_both_sides(
    rules: dict[str, Any], settings: dict[str, Any], options: dict[str, Any], code: str, tiny: Any, tmp_path: Path
) -> None:
    deployed = make(tiny, tmp_path, options, **settings)
    set_policy(second(deployed), **rules)
    deployed.serve()
    [line] = events_of(deployed.state, "refused")
    assert "in its policy" in line["why"]
    [own] = events_of(Path(str(second(deployed).config["state"])), "refused")
    assert own["code"] == code
    assert all(line["counted"] == [0, 2] for line in events_of(deployed.state, "round"))
    assert not events_of(Path(str(second(deployed).config["state"])), "trained")


def test_privacy_loss_over_all_runs_stops_at_the_limit(tiny: Any, tmp_path: Path) -> None:
    deployed = make(tiny, tmp_path, {"dp_noise": 1.0})
    set_policy(second(deployed), max_epsilon=5.0)  # one update with z = 1 costs 4.73, two cost more
    deployed.serve()
    assert [line["counted"] for line in events_of(deployed.state, "round")] == [[0, 1, 2], [0, 2]]
    state = Path(str(second(deployed).config["state"]))
    assert len(events_of(state, "trained")) == 1
    assert [line["code"] for line in events_of(state, "refused")] == ["epsilon", "epsilon"]  # training, then the census
    [run] = json.loads((state / "privacy.json").read_text())["runs"].values()
    assert run["releases"][0]["count"] == 1  # the refused update is not counted


def test_the_limit_uses_the_delta_of_the_site_not_of_the_server(tiny: Any, tmp_path: Path) -> None:
    deployed = make(tiny, tmp_path, {"dp_noise": 1.0, "dp_delta": 0.5})  # at δ = 0.5 two updates cost less than 1
    set_policy(second(deployed), max_epsilon=4.0)
    deployed.serve()
    assert [line["counted"] for line in events_of(deployed.state, "round")] == [[0, 2], [0, 2]]


def test_a_run_waits_until_a_person_approves_it(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployed = make(tiny, tmp_path, {"min_updates": 3})
    set_policy(second(deployed), approval=True)
    state = Path(str(second(deployed).config["state"]))
    monkeypatch.setattr(roster, "CENSUS_POLL_S", 0.0)
    sleeps: list[float] = []

    def wait(seconds: float) -> None:  # a person approves while the server waits, long after the deadline
        sleeps.append(seconds)
        if len(sleeps) == 4:
            [request] = list_requests(state)
            assert not request.approved
            assert "fedavg, 2 rounds, without noise" in request.text
            approve(state, request.digest)

    monkeypatch.setattr(roster.time, "sleep", wait)
    deployed.serve()
    assert len(sleeps) >= 4
    assert [line["counted"] for line in events_of(deployed.state, "round")] == [[0, 1, 2], [0, 1, 2]]
    assert len(events_of(deployed.state, "refused")) == 1  # the audit has the wait once
    assert len(events_of(state, "approved")) == 1


def train_requests(deployed: Deployed, client: int) -> int:
    [node] = [node for node in deployed.grid.nodes.values() if node.config["client"] == client]
    return sum(request.metadata.message_type == "train" for request in node.requests)


def test_no_node_trains_in_vain_while_a_needed_one_has_withdrawn_its_approval(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed = make(tiny, tmp_path, {"min_updates": 3, "max_round_attempts": 4}, rounds=3)
    set_policy(second(deployed), approval=True)
    state = Path(str(second(deployed).config["state"]))
    monkeypatch.setattr(roster, "CENSUS_POLL_S", 0.0)
    sleeps: list[float] = []

    def wait(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) in (4, 60):  # the second time long after the deadline of the second round
            approve(state, list_requests(state)[0].digest)

    def withdraw(request: Any, reply: Any) -> Any:
        if request.metadata.message_type == "train" and not events_of(state, "approval_withdrawn"):
            approve(state, list_requests(state)[0].digest, withdraw=True)
        return reply

    second(deployed).spoil = withdraw
    monkeypatch.setattr(roster.time, "sleep", wait)
    deployed.serve()
    assert len(sleeps) >= 60
    assert [line["counted"] for line in events_of(deployed.state, "round")] == [[0, 1, 2]] * 3
    assert train_requests(deployed, 0) == 4  # the second round twice


def test_no_node_spends_privacy_in_vain_once_a_needed_one_has_reached_its_limit(tiny: Any, tmp_path: Path) -> None:
    deployed = make(tiny, tmp_path, {"dp_noise": 1.0, "min_updates": 3, "max_round_attempts": 5})
    set_policy(second(deployed), max_epsilon=5.0)
    with pytest.raises(FedBMError, match="never had enough usable updates"):
        deployed.serve()
    assert train_requests(deployed, 0) == 2
    assert any("does not allow a larger privacy loss" in line["why"] for line in events_of(deployed.state, "refused"))


def test_no_node_spends_privacy_in_vain_once_a_needed_one_cannot_count_its_own(tiny: Any, tmp_path: Path) -> None:
    deployed = make(tiny, tmp_path, {"dp_noise": 1.0, "min_updates": 3, "max_round_attempts": 5})

    def damage(request: Any, reply: Any) -> Any:
        if request.metadata.message_type == "train":
            (Path(str(second(deployed).config["state"])) / "privacy.json").write_text("{")
        return reply

    second(deployed).spoil = damage
    with pytest.raises(FedBMError, match="never had enough usable updates"):
        deployed.serve()
    assert train_requests(deployed, 0) == 2


@pytest.mark.parametrize("approval", [False, True])
def test_too_few_nodes_never_make_a_round(
    approval: bool, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three nodes are away, or nobody there approves. No update of the third leaves or counts."""
    deployed = make(tiny, tmp_path, {"min_updates": 2, "deadline_s": 0.1, "max_round_attempts": 20 if approval else 2})
    for node in list(deployed.grid.nodes.values())[1:]:
        node.connected = approval
        set_policy(node, approval=approval)
        node.delay = lambda request: 0.005  # an answer takes a moment, as over Flower
    monkeypatch.setattr(roster, "CENSUS_POLL_S", 0.001)
    monkeypatch.setattr(roster, "POLL", 0.002)
    state = Path(str(second(deployed).config["state"]))
    refusals: list[str] = []

    def count(node: roster.Node, why: str) -> None:
        refusals.append(why)
        if len(refusals) == 20:  # long after the deadline
            approve(state, list_requests(state)[0].digest)

    watched = roster.Roster._refuse
    monkeypatch.setattr(roster.Roster, "_refuse", lambda self, *a: (watched(self, *a), count(*a))[0])
    if approval:
        deployed.serve()
        assert [line["counted"] for line in events_of(deployed.state, "round")] == [[0, 1], [0, 1]]
        return
    with pytest.raises(FedBMError, match=r"never had enough usable updates .min_updates = 2"):
        deployed.serve()
    assert not events_of(deployed.state, "round")
    assert not events_of(deployed.state, "sent")


def test_participation_of_all_nodes_decides_how_many_are_asked(tiny: Any, tmp_path: Path) -> None:
    deployed = make(tiny, tmp_path, {"min_updates": 2}, participation=0.7)  # two of three
    second(deployed).connected = False
    deployed.serve()
    assert [line["counted"] for line in events_of(deployed.state, "round")] == [[0, 2], [0, 2]]


def test_a_node_that_refused_is_asked_again(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "CENSUS_POLL_S", 0.0)
    deployed = make(tiny, tmp_path, rounds=3)
    set_policy(second(deployed), max_rounds=1)

    def correct(request: Any, reply: Any) -> Any:
        if events_of(deployed.state, "round"):
            set_policy(second(deployed), max_rounds=3)
        return reply

    second(deployed).spoil = correct
    deployed.serve()
    assert [line["counted"] for line in events_of(deployed.state, "round")] == [[0, 2], [0, 2], [0, 1, 2]]
    assert len(events_of(deployed.state, "refused")) == 1  # the same reason is recorded once


def test_approval_is_for_exactly_these_terms_and_can_be_withdrawn(tiny: Any, tmp_path: Path) -> None:
    deployed = make(tiny, tmp_path)
    set_policy(second(deployed), approval=True)
    state = Path(str(second(deployed).config["state"]))
    deployed.serve()
    [request] = list_requests(state)
    assert not approve(state, request.digest).approved
    assert approve(state, request.digest).approved
    assert len(events_of(state, "approved")) == 1
    other = make(tiny, tmp_path / "other", {"compression": "half"})  # the same run id, other terms
    set_policy(second(other), approval=True)
    second(other).config["state"] = str(state)
    other.serve()
    assert [known.approved for known in list_requests(state)] == [False, True]
    approve(state, request.digest, withdraw=True)
    assert [known.approved for known in list_requests(state)] == [False, False]
    assert len(events_of(state, "approval_withdrawn")) == 1


@pytest.mark.parametrize(
    ("method", "statistics"),
    [
        ("ccvr", "the mean and covariance of the features of each class"),
        ("fednh", "the mean of the features of each class"),
        ("fedproto", "the mean of the features of each class"),
        ("fedgen", ""),
    ],
)
def test_a_person_reads_which_class_statistics_leave(method: str, statistics: str, tiny: Any, tmp_path: Path) -> None:
    deployed = make(tiny, tmp_path, method=method)
    set_policy(second(deployed), approval=True, label_counts=True)
    deployed.serve()
    [request] = list_requests(Path(str(second(deployed).config["state"])))
    assert "label counts" in request.text
    assert statistics in request.text
    assert ("features" in request.text) == bool(statistics)


def test_a_person_reads_that_scores_can_leave_even_if_they_stay_at_first(tiny: Any, tmp_path: Path) -> None:
    """The rule can change between the first request, when the text is written, and the approval."""
    deployed = make(tiny, tmp_path, EVALUATED)
    set_policy(second(deployed), approval=True, scores=False)
    deployed.serve()
    [request] = list_requests(Path(str(second(deployed).config["state"])))
    assert "confusion matrices (unless scores = false)" in request.text


def test_scores_stay_at_a_site_that_keeps_them(tiny: Any, tmp_path: Path) -> None:
    deployed = make(tiny, tmp_path, EVALUATED)
    set_policy(second(deployed), scores=False)
    deployed.serve()
    assert all(line["counted"] == [0, 1, 2] for line in events_of(deployed.state, "round"))
    scored = [[node["client"] for node in line["nodes"]] for line in events_of(deployed.state, "scored")]
    assert scored == [[0, 2], [0, 2]]


def test_a_late_score_is_asked_for_again_if_the_others_keep_theirs(tiny: Any, tmp_path: Path) -> None:
    deployed = make(tiny, tmp_path, {**EVALUATED, "min_updates": 2})
    first, *others = deployed.grid.nodes.values()
    for node in others:
        set_policy(node, scores=False)
    lost: list[Any] = []

    def lose_one_score(request: Any, reply: Any) -> Any:
        if request.metadata.message_type == "evaluate" and not lost:
            lost.append(reply)
            return None
        return reply

    first.spoil = lose_one_score
    deployed.serve()
    assert lost
    assert [[node["client"] for node in line["nodes"]] for line in events_of(deployed.state, "scored")] == [[0], [0]]


def rules_of(folder: Path) -> Policy:
    return read_settings(folder, NodeSettings).policy


def test_a_real_site_starts_with_strict_rules_and_a_rehearsal_with_open_ones(tmp_path: Path) -> None:
    create(tmp_path / "real", 1, host="fl.example.org")
    create(tmp_path / "here", 1)
    create(tmp_path / "rehearsal", 1, host="server", port=8443, rehearsal=True)
    assert rules_of(tmp_path / "rehearsal" / "hospital-1") == OPEN_POLICY
    assert rules_of(tmp_path / "real" / "hospital-1") == Policy()
    assert Policy().approval
    assert not Policy().label_counts
    assert rules_of(tmp_path / "here" / "hospital-1") == OPEN_POLICY
    rules = 'approval = true, methods = "all", max_rounds = 1000, min_per_class = 5, scores = true, '
    rules += "label_counts = false, min_noise = 0.0, delta = 1e-05"
    waits = "each run waits for 'fedbm federation approve'"
    assert describe_policy(read_settings(tmp_path / "real" / "hospital-1", NodeSettings)) == f"policy: {rules}; {waits}"
    assert waits not in describe_policy(NodeSettings(policy=OPEN_POLICY))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[policy]\nmax_round = 3", 'has no key "max_round" .did you mean "max_rounds"'),
        ("[policy]\nmax_rounds = 0", "at least 1"),
        ("policy = 3", "policy must be a section"),
    ],
)
def test_a_wrong_policy_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(f"format = 1\n{text}\n", encoding="utf-8")
    with pytest.raises(FedBMError, match=sentence.replace("[", r"\[")):
        describe_policy(read_settings(tmp_path, NodeSettings))


def test_the_command_shows_and_approves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(tmp_path / "study", 1)
    site = tmp_path / "study" / "hospital-1"

    def call(*words: str, status: int = 0) -> str:
        assert main(["federation", "approve", str(site), *words]) == status
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    assert "A run asks within half a minute after its start" in call()
    assert 'no single request has the digest "absent"' in call("absent", status=2)
    assert "--withdraw needs a digest" in call("--withdraw", status=2)
    folder, first, later = site / "state" / "approvals", 64 * "1", 64 * "2"
    write_text(folder / f"{first}.txt", "r1\n  leaves this site: x\n")
    assert (
        f"waiting {first[:12]}: r1\n  leaves this site: x\n\nTo approve a waiting run: fedbm federation approve "
        in call()
    )
    assert "approved: r1" in call(first[:12])
    assert "approved: r1" in call(first)
    shown = call()
    assert f"approved {first[:12]}: r1" in shown
    write_text(folder / f"{later}.txt", "r1\n  leaves this site: y\n")
    assert re.findall(r"^(waiting|approved) (\d+): r1$", call(), re.MULTILINE) == [
        ("waiting", later[:12]),
        ("approved", first[:12]),
    ]
    assert "withdrawn: r1" in call(first[:12], "--withdraw")
    assert call().count("waiting ") == 3  # two requests, and the sentence after them
