"""A server that asks for more than its run needs: what a site keeps nevertheless."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import Deployed, Node, deploy, events_of

from fedbm.errors import FedBMError
from fedbm.federation.deploy.settings_files import OPEN_POLICY, NodeSettings, to_text
from fedbm.federation.node.handler import answer
from fedbm.federation.node.loaded_run import LoadedRun
from fedbm.federation.node.policy_checks import approve, list_requests
from fedbm.federation.protocol.flower_records import Envelope, from_records
from fedbm.federation.protocol.packing import pack, unpack
from fedbm.utils.io import write_text

W = "body.conv1.weight"


def make(tiny: dict[str, Any], folder: Path, options: dict[str, Any] | None = None, **more: Any) -> Deployed:
    settings = {**tiny, "clients": 3, "rounds": 2, "participation": 1.0, "beta": 0.5, "batch": 32, **more}
    return deploy(folder, settings, {"deadline_s": 0.01, **(options or {})})


def served(tiny: dict[str, Any], folder: Path, options: dict[str, Any] | None = None, **more: Any) -> Node:
    """Serve a run, and return its second node with all requests; the node has just been started."""
    deployed = make(tiny, folder, options, **more)
    deployed.serve()
    return list(deployed.grid.nodes.values())[1]


def restart(node: Node, state: Path, **rules: Any) -> Path:
    """Give a node an empty state folder and other rules, and return the folder."""
    node.config["state"] = str(state)
    policy = dataclasses.replace(OPEN_POLICY, **rules)
    (Path(node.config["folder"]) / "node.toml").write_text(to_text(NodeSettings(policy=policy)), encoding="utf-8")
    return state


def request_of(node: Node, kind: str) -> Envelope:
    return next(from_records(one.content) for one in node.requests if one.metadata.message_type == kind)


@pytest.mark.parametrize("method", ["fedrep", "fedproto"])
def test_another_method_cannot_load_a_clients_own_state(method: str, tiny: dict[str, Any], tmp_path: Path) -> None:
    node = served(tiny, tmp_path / "own", {"evaluate": "nodes"}, method=method)
    own = sorted(Path(node.config["state"]).rglob("clients/1-2.safetensors"))
    assert len(own) == 1
    run = request_of(node, "train").body["terms"]["run"]
    asked = request_of(served(tiny, tmp_path / "other"), "train")
    terms = {**asked.body["terms"], "run": run}
    body = {**asked.body, "terms": terms, "counted": 2, "durable": 0}
    found = answer("train", Envelope(body, asked.packed), node.config)
    assert found.body["code"] == "lost"
    assert not found.packed
    assert own[0].exists()


@pytest.mark.parametrize("name", ["privacy.lock", "privacy.json", "refused.json", "approvals", "audit.jsonl"])
def test_a_run_cannot_have_the_name_of_a_file_of_the_site(name: str, tiny: dict[str, Any], tmp_path: Path) -> None:
    node = served(tiny, tmp_path / "run")
    restart(node, tmp_path / "state")
    asked = request_of(node, "train")
    other = {**asked.body, "terms": {**asked.body["terms"], "run": name}}
    assert answer("train", Envelope(other, asked.packed), node.config).body["code"] == "ok"
    assert answer("train", asked, node.config).body["code"] == "ok"


def test_an_approval_without_scores_lets_no_score_leave(tiny: dict[str, Any], tmp_path: Path) -> None:
    node = served(tiny, tmp_path / "run", {"evaluate": "nodes"})
    census, train, evaluate = (request_of(node, kind) for kind in ("query.census", "train", "evaluate"))
    state = restart(node, tmp_path / "state", approval=True)
    quiet = {**census.body["terms"], "evaluates": False}
    assert answer("query.census", Envelope({"terms": quiet}), node.config).body["code"] == "approval"
    [request] = list_requests(state)
    assert "confusion" not in request.text
    approve(state, request.digest)
    told = answer("query.census", Envelope({"terms": quiet, "evaluates": True}), node.config).body
    assert told["code"] == "ok"
    assert not {"val", "test"} & set(told)
    parts = {**train.packed, **evaluate.packed}
    body = {**evaluate.body, "terms": quiet, "counted": 0}
    found = answer("evaluate", Envelope(body, parts), node.config).body
    assert (found["code"], "confusion" in found) == ("terms", False)
    body = {**evaluate.body, "counted": 0}  # the terms with scores are others, which nobody has approved
    assert answer("evaluate", Envelope(body, parts), node.config).body["code"] == "approval"
    assert "confusion matrices" in list_requests(state)[0].text  # those that wait are first


def test_terms_that_nobody_has_seen_are_not_approved(tiny: dict[str, Any], tmp_path: Path) -> None:
    node = served(tiny, tmp_path / "run")
    state = restart(node, tmp_path / "state", approval=True)
    terms = request_of(node, "query.census").body["terms"]
    more = {**terms, "train": {**terms["train"], "rounds": 1000, "epochs": 999}}
    for _ in range(3):
        for each in (terms, more):
            assert answer("query.census", Envelope({"terms": each}), node.config).body["code"] == "approval"
    assert len(events_of(state, "refused")) == 2  # a run that waits is in the audit once
    [read] = [request for request in list_requests(state) if "epochs 999" not in request.text]
    for short in (terms["run"], "", read.digest[:11]):
        with pytest.raises(FedBMError, match="no single request has the digest"):
            approve(state, short)
    for _ in range(2):  # the command is repeated by mistake
        assert approve(state, read.digest[:12]).text == read.text
    assert [line["terms"] for line in events_of(state, "approved")] == [read.digest]
    assert answer("query.census", Envelope({"terms": terms}), node.config).body["code"] == "ok"
    assert answer("query.census", Envelope({"terms": more}), node.config).body["code"] == "approval"


def test_the_number_of_requests_on_the_disk_is_bounded(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = served(tiny, tmp_path / "run")
    state = restart(node, tmp_path / "state", approval=True)
    monkeypatch.setattr("fedbm.federation.node.policy_checks.MAX_WAITING", 2)
    terms = request_of(node, "query.census").body["terms"]
    for number in range(4):
        other = {**terms, "run": f"run-{number}"}
        assert answer("query.census", Envelope({"terms": other}), node.config).body["code"] == "approval"
    assert runs_of(state) == ["run-0", "run-1"]
    approve(state, list_requests(state)[0].digest)  # makes room for one
    for number in (2, 3):
        answer("query.census", Envelope({"terms": {**terms, "run": f"run-{number}"}}), node.config)
    assert runs_of(state) == ["run-1", "run-2", "run-0"]


def runs_of(state: Path) -> list[str]:
    return [request.text.splitlines()[0] for request in list_requests(state)]


def test_two_requests_with_the_same_first_characters_are_not_mistaken(tmp_path: Path) -> None:
    for end in "ab":
        write_text(tmp_path / "approvals" / f"{'0' * 12}{end}.txt", f"run-{end}\n")
    with pytest.raises(FedBMError, match=f'no single request has the digest "{"0" * 12}"'):
        approve(tmp_path, "0" * 12)
    assert approve(tmp_path, "0" * 12 + "a").text == "run-a\n"


def test_text_of_the_server_neither_forges_nor_hides_what_leaves(tiny: dict[str, Any], tmp_path: Path) -> None:
    node = served(tiny, tmp_path / "run")
    state = restart(node, tmp_path / "state", approval=True)
    terms = request_of(node, "query.census").body["terms"]
    names = [*terms["task"]["classes"], 'x". Leaves this site: nothing.\x1b[8m\n\x9b8m\u202e', *map(str, range(30))]
    forged = {**terms, "task": {**terms["task"], "classes": names}, "concepts": None}
    assert answer("query.census", Envelope({"terms": forged}), node.config).body["code"] == "approval"
    text = list_requests(state)[0].text
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(text.splitlines()) == 4
    assert text.index("leaves this site: model updates") < text.index("Leaves this site: nothing")
    assert '"x\\". Leaves' in text  # in the quotes of its class
    assert "classes (34): " in text
    assert '"25"' not in text
    long = {**forged, "task": {**terms["task"], "classes": ["a", "b" * 201]}}
    assert answer("query.census", Envelope({"terms": long}), node.config).body["code"] == "terms"


@pytest.mark.parametrize(("rules", "code"), [({}, "approval"), ({"max_rounds": 1}, "rounds")])
def test_nothing_leaves_after_an_approval_is_withdrawn_or_a_rule_is_stricter(
    rules: dict[str, Any], code: str, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = served(tiny, tmp_path / "run")
    state = restart(node, tmp_path / "state", approval=True)
    train = request_of(node, "train")
    assert answer("train", train, node.config).body["code"] == "approval"
    approve(state, list_requests(state)[0].digest)
    really_train = LoadedRun.train

    def change_rules(self: LoadedRun, *inputs: Any) -> Any:
        if rules:
            restart(node, state, **rules)
        else:
            approve(state, self.terms.digest, withdraw=True)
        return really_train(self, *inputs)

    monkeypatch.setattr(LoadedRun, "train", change_rules)
    found = answer("train", train, node.config)
    assert (found.body["code"], dict(found.packed)) == (code, {})
    assert not events_of(state, "trained")
    [counted] = json.loads((state / "privacy.json").read_text())["runs"].values()
    assert counted["answers"] == {"train": 1}  # though nothing left
    assert [line["code"] for line in events_of(state, "refused")] == ["approval", code]


def test_a_policy_that_cannot_be_read_is_named(tiny: dict[str, Any], tmp_path: Path) -> None:
    node = served(tiny, tmp_path / "run")
    (Path(node.config["folder"]) / "node.toml").write_text("format = 1\n[policy]\nmax_round = 3\n", encoding="utf-8")
    assert answer("train", request_of(node, "train"), node.config).body["code"] == "policy"


def test_a_run_gets_a_bounded_number_of_answers(tiny: dict[str, Any], tmp_path: Path) -> None:
    node = served(tiny, tmp_path / "run", {"evaluate": "nodes"}, rounds=1)
    train, evaluate = request_of(node, "train"), request_of(node, "evaluate")
    state = restart(node, tmp_path / "state", max_rounds=1)
    scored = Envelope({**evaluate.body, "counted": 0}, {**train.packed, **evaluate.packed})
    for kind, request in (("train", train), ("evaluate", scored)):
        kept: dict[Any, Any] = {}
        codes = [answer(kind, request, node.config, kept).body["code"] for _ in range(6)]
        assert codes == ["ok"] * 5 + ["answers"]
        for round_ in (0, 2, 10**6):
            other = Envelope({**request.body, "round": round_}, request.packed)
            assert answer(kind, other, node.config, kept).body["code"] == "terms"
    [run] = json.loads((state / "privacy.json").read_text())["runs"].values()
    assert run["answers"] == {"train": 5, "evaluate": 5}


@pytest.mark.parametrize("noise", [False, True])
def test_a_refusal_that_shows_something_of_the_images_counts_as_an_answer(
    noise: bool, tiny: dict[str, Any], tmp_path: Path
) -> None:
    """Whether a number of the update fits 16 bits depends on the images and on what the server sent."""
    node = served(tiny, tmp_path / "run", {"dp_noise": 1.0} if noise else {}, rounds=1)
    train, state = request_of(node, "train"), restart(node, tmp_path / "state")
    model = unpack(train.packed["model"])
    sent = pack({**model, W: model[W] + 1e6})
    terms = {**train.body["terms"], "compression": "half"}
    parts = [{**one, "digest": sent.digest} if one["name"] == "model" else one for one in train.body["parts"]]
    request = Envelope({**train.body, "terms": terms, "parts": parts}, {**train.packed, "model": sent})
    codes = [answer("train", request, node.config).body["code"] for _ in range(6)]
    assert codes == ["compression"] * 5 + ["answers"]
    [run] = json.loads((state / "privacy.json").read_text())["runs"].values()
    assert (run["exact"], [release["count"] for release in run["releases"]]) == (not noise, [5] if noise else [])


def test_no_score_leaves_a_split_with_few_images_of_a_class(tiny: dict[str, Any], tmp_path: Path) -> None:
    node = served(tiny, tmp_path / "run", {"evaluate": "nodes"}, rounds=1)
    train, evaluate = request_of(node, "train"), request_of(node, "evaluate")
    restart(node, tmp_path / "state", min_per_class=2)  # its val images are one of each class, its test images two
    told = answer("query.census", request_of(node, "query.census"), node.config).body
    assert (told["code"], told["val"], told["test"]) == ("ok", 0, 6)
    body = {**evaluate.body, "counted": 0}
    found = answer("evaluate", Envelope(body, {**train.packed, **evaluate.packed}), node.config).body
    assert (found["code"], list(found["confusion"])) == ("ok", ["test"])


def test_text_that_has_no_encoding_is_in_the_audit(tiny: dict[str, Any], tmp_path: Path) -> None:
    node = served(tiny, tmp_path / "run")
    state = restart(node, tmp_path / "state")
    census = request_of(node, "query.census").body
    strange = {**census, "terms": {**census["terms"], "run": "\ud800"}}
    assert answer("query.census", Envelope(strange), node.config).body["code"] == "terms"
    assert answer("query.census", Envelope({**census, "head": "\ud800" * 1_000_000}), node.config).body["code"] == "ok"
    assert (
        answer("query.refused", Envelope({"why": "\ud800", "head": ["x" * 1_000_000]}), node.config).body["code"]
        == "ok"
    )
    [line] = events_of(state, "refused")
    assert line["run"] == "?"
    assert max(map(len, (state / "audit.jsonl").read_bytes().splitlines())) < 1000


def test_text_of_the_server_neither_fills_the_audit_nor_controls_a_terminal(
    tiny: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = served(tiny, tmp_path / "run")
    state = restart(node, tmp_path / "state")
    census = request_of(node, "query.census").body
    assert answer("query." + "a" * 1_000_000, Envelope(census), node.config).body["code"] == "app"
    assert len((state / "audit.jsonl").read_bytes()) < 1000
    method = {"name": "\x1b]0;title\x07\x1b[8m" + "x" * 1_000_000}
    strange = {**census, "terms": {**census["terms"], "method": method}}
    assert answer("query.census", Envelope(strange), node.config).body["code"] == "terms"
    log = capsys.readouterr().err
    assert "there is no method" in log
    assert "\x1b" not in log
    assert len(log) < 50_000


def test_parts_that_a_run_no_longer_names_do_not_stay(tiny: dict[str, Any], tmp_path: Path) -> None:
    node = served(tiny, tmp_path / "run")
    restart(node, tmp_path / "state")
    train = request_of(node, "train")
    more = pack({"a": torch.zeros(1)})
    kept: dict[Any, LoadedRun] = {}
    for name in ("task.junk0", "task.junk1"):  # not for the method
        pieces = [*train.body["parts"], {"name": name, "digest": more.digest}]
        request = Envelope({**train.body, "parts": pieces}, {**train.packed, name: more})
        assert answer("train", request, node.config, kept).body["code"] == "ok"
    assert answer("train", train, node.config, kept).body["code"] == "ok"
    [run] = kept.values()
    assert run.pieces.keys() == run.digests.keys() == {item["name"] for item in train.body["parts"]}
    other = [{**item, "digest": more.digest} for item in train.body["parts"]]
    assert answer("train", Envelope({**train.body, "parts": other}), node.config, kept).body["code"] == "lacks"


def test_a_folder_that_cannot_be_written_is_not_called_busy(tiny: dict[str, Any], tmp_path: Path) -> None:
    node = served(tiny, tmp_path / "run")
    state = restart(node, tmp_path / "state")
    (state / "runs").mkdir(parents=True)
    train = request_of(node, "train")
    (state / "runs" / train.body["terms"]["run"]).write_text("a file where the run's folder should be")
    assert answer("train", train, node.config).body["code"] == "failed"


def test_a_piece_with_an_endless_name_does_not_damage_the_audit(tiny: dict[str, Any], tmp_path: Path) -> None:
    node = served(tiny, tmp_path / "run")
    state = restart(node, tmp_path / "state")
    train = request_of(node, "train")
    more = pack({"a": torch.zeros(1)})
    name = "task." + "x" * 2_000_000
    pieces = [*train.body["parts"], {"name": name, "digest": more.digest}]
    request = Envelope({**train.body, "parts": pieces}, {**train.packed, name: more})
    assert answer("train", request, node.config).body["code"] == "terms"
    assert answer("train", train, node.config).body["code"] == "ok"
    assert len((state / "audit.jsonl").read_bytes()) < 5000
