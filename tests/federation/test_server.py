"""The server's side: killed at any message and started again, alone on its run, scored by nodes, compressed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from one_process import Deployed, FakeGrid, deploy, digests_in_process, events_of, records_of, simulation
from small import SmallResNet

from fedbm.data.cache import checksum
from fedbm.engine.checkpoint import load_tensors
from fedbm.engine.run_folder import RunFolder
from fedbm.errors import FedBMError
from fedbm.federation.federation_options import FederationOptions, read_run_file
from fedbm.federation.protocol.packing import digest
from fedbm.federation.server.run_setup import agree
from fedbm.runs.run_view import read_run
from fedbm.utils.io import sha256_file
from fedbm.utils.metrics import NAMES


class Killed(BaseException):
    """Ends the server as a signal does: nothing catches it."""


class DeadlyGrid(FakeGrid):
    """Kills the server just before it pushes its n-th message."""

    left = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.left -= 1
        if self.left == 0:
            raise Killed
        return super().push_messages(messages)


@pytest.mark.parametrize("checkpoint_every", [1, 2])
def test_killed_at_any_message(tiny: dict[str, Any], tmp_path: Path, checkpoint_every: int) -> None:
    """The n-th attempt dies before its n-th message; client states survive with the nodes, and all adds up."""
    settings = {**tiny, "method": "scaffold", "keep_optimizer": True, "checkpoint_every": checkpoint_every}
    deployed = deploy(tmp_path, {**settings, "clients": 2, "rounds": 4, "participation": 1.0, "beta": 0.5, "batch": 32})
    deployed.grid = DeadlyGrid(deployed.grid.nodes)
    attempts = 0
    while not (list(deployed.state.glob("runs/*/summary.json"))):
        attempts += 1
        assert attempts < 20
        deployed.grid.left = attempts
        try:
            deployed.serve()
        except Killed:
            continue
    assert attempts > 4
    states = {line["round"]: line["state"] for line in events_of(deployed.state, "round")}
    assert list(states.values()) == digests_in_process(deployed.plan)
    ours, theirs = records_of(deployed.plan), records_of(deployed)
    assert [record["loss"] for record in theirs] == [record["loss"] for record in ours]
    own = simulation.run_path(deployed.plan) / "clients"
    for client in range(2):
        [kept] = [path for path in (tmp_path / f"node-{client}").rglob("clients/*") if path.stem.endswith("-4")]
        assert digest(load_tensors(kept)[0]) == digest(load_tensors(own / f"{client}-4.safetensors")[0])


def small(tiny: dict[str, Any], tmp_path: Path, method: str = "fedavg", **options: Any) -> Deployed:
    settings = {**tiny, "method": method, "clients": 2, "rounds": 2, "participation": 1.0, "beta": 0.5, "batch": 32}
    return deploy(tmp_path, settings, options)


def test_a_second_server_on_the_same_run_is_refused(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = small(tiny, tmp_path)
    run = agree(*read_run_file(deployed.config)).id
    with (
        RunFolder(deployed.state / "runs" / run).lock(),
        pytest.raises(FedBMError, match="another process is working on"),
    ):
        deployed.serve()
    assert not (deployed.state / "status.json").exists()  # the first one's to write
    deployed.serve()


def test_a_finished_run_is_left_alone(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = small(tiny, tmp_path)
    deployed.serve()
    before = {path: path.read_bytes() for path in deployed.state.rglob("*.safetensors")}
    lines = (deployed.state / "audit.jsonl").read_bytes()
    deployed.serve()
    assert {path: path.read_bytes() for path in deployed.state.rglob("*.safetensors")} == before
    assert (deployed.state / "audit.jsonl").read_bytes() == lines
    status = json.loads((deployed.state / "status.json").read_text())
    assert (status["phase"], status["round"], status["rounds"]) == ("finished", 2, 2)


def test_an_edited_configuration_is_seen_at_the_server_too(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = small(tiny, tmp_path)
    deployed.serve()
    [folder] = (deployed.state / "runs").iterdir()
    assert not read_run(folder).edited
    text = (folder / "config.toml").read_text(encoding="utf-8")
    (folder / "config.toml").write_text(text.replace("\nlr = 0.01\n", "\nlr = 0.02\n"), encoding="utf-8")
    assert read_run(folder).edited


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "fedrep", "fedrod"])
def test_nodes_score_what_the_server_cannot(tiny: dict[str, Any], tmp_path: Path, method: str) -> None:
    """Confusion matrices summed over the sites' own images. AUC needs more than counts, so there is none."""
    deployed = small(tiny, tmp_path, method, evaluate="nodes")
    deployed.serve()
    dataset = deployed.plan.dataset
    [folder] = (deployed.state / "runs").iterdir()
    details = json.loads((folder / "details.json").read_text())
    truth = np.bincount(dataset.labels[dataset.indices("test")], minlength=3)
    assert np.sum(details["confusion"]["last"], axis=1).tolist() == truth.tolist()
    last = records_of(deployed)[-1]
    assert list(last["test"]) == list(NAMES)
    assert last["test"]["auc"] is None
    assert last["test"]["accuracy"] == np.trace(details["confusion"]["last"]) / truth.sum()
    assert (last["personal"] is not None) == (method != "fedavg")
    if method != "fedavg":
        assert sorted(last["personal"]["clients"]) == ["0", "1"]
    if method == "fedavg":  # every image is scored once, by the same model: as good as on the server
        digests_in_process(deployed.plan)
        ours = records_of(deployed.plan)[-1]
        assert {**last["test"], "auc": ours["test"]["auc"]} == ours["test"]


def test_the_scored_model_is_the_one_trained_next(tiny: dict[str, Any], tmp_path: Path) -> None:
    """Sent for scoring, it is not sent again for training."""
    deployed = small(tiny, tmp_path, evaluate="nodes")
    deployed.serve()
    sent = [(line["request"], bool(line["parts"])) for line in events_of(deployed.state, "sent") if not line["client"]]
    assert sent == [("train", True), ("evaluate", True), ("train", False), ("evaluate", True)]


def test_no_images_to_score_on_is_said(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = small(tiny, tmp_path, evaluate="nodes")
    for client in range(2):
        share = tmp_path / f"share-{client}"
        manifest = json.loads((share / "manifest.json").read_text())
        images, labels, split = (np.load(share / f"{name}.npy") for name in ("images", "labels", "split"))
        np.save(share / "split.npy", np.zeros_like(split))
        manifest["files"]["split"]["sha256"] = sha256_file(share / "split.npy")
        manifest["checksum"] = checksum(tuple(manifest["classes"]), images, labels, np.zeros_like(split))
        (share / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FedBMError, match="no node has val images to score"):
        deployed.serve()
    assert not events_of(deployed.state, "sent")  # it is known before the first round


@pytest.mark.parametrize("compression", ["half", "delta"])
def test_compressed_uploads_halve_and_stay_near(tiny: dict[str, Any], tmp_path: Path, compression: str) -> None:
    deployed = small(tiny, tmp_path, compression=compression)
    deployed.serve()
    digests_in_process(deployed.plan)
    ours, theirs = records_of(deployed.plan), records_of(deployed)
    assert 0.5 <= theirs[0]["bytes"]["received"] / ours[0]["bytes"]["received"] < 0.53
    assert theirs[-1]["loss"]["cross_entropy"] == pytest.approx(ours[-1]["loss"]["cross_entropy"], rel=0.02)


def test_initial_weights_reach_the_nodes(tiny: dict[str, Any], tmp_path: Path) -> None:
    """FedProto's clients start from the body the server's file describes, which no node has."""
    from safetensors.torch import save_file

    save_file(SmallResNet(1, 4, "7x7", "batch").state_dict(), tmp_path / "body.safetensors")
    deployed = small({**tiny, "init_weights": str(tmp_path / "body.safetensors")}, tmp_path, "fedproto")
    deployed.serve()
    assert [line["state"] for line in events_of(deployed.state, "round")] == digests_in_process(deployed.plan)


def test_initial_weights_may_be_in_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "body.safetensors").touch()
    path = tmp_path / "run.toml"
    path.write_text(f'[model]\ninit_weights = "body.safetensors"\n[engine]\ndata_dir = "{tmp_path}"\n')
    assert read_run_file(path)[0].model.init_weights == str(tmp_path / "body.safetensors")


def test_only_options_that_change_updates_make_another_run(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = small(tiny, tmp_path)
    config, options = read_run_file(deployed.config)
    other = dataclasses.replace(options, deadline_s=9.0, min_updates=5, max_missed_deadlines=7, max_norm=3.0, nodes=2)
    assert agree(config, options).id == agree(config, other).id
    changes = ({}, {"compression": "half"}, {"dp_noise": 1.0}, {"dp_noise": 2.0}, {"dp_noise": 1.0, "dp_clip": 0.5})
    assert len({agree(config, dataclasses.replace(options, **change)).id for change in changes}) == 5


def test_a_server_without_images_knows_the_task_from_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[data]\nname = "ham10000"\nsize = 64\n[method]\nname = "fedbm"\n[federation]\nnodes = 2\n')
    found = agree(*read_run_file(path))
    assert found.dataset is None
    assert (len(found.task.classes), found.task.shape) == (7, (3, 64, 64))
    assert found.task.concepts is not None


def test_classes_the_catalogue_does_not_know_come_from_concepts(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[data]\nname = "our-scans"\nchannels = 1\n[method]\nname = "fedavg"\n')
    with pytest.raises(
        FedBMError, match=r'the catalogue does not contain "our-scans": list every class in \[concepts\]'
    ):
        agree(*read_run_file(path))
    path.write_text(path.read_text() + '[concepts]\nill = "pneumonia"\nwell = "normal lung"\n')
    assert agree(*read_run_file(path)).task.classes == ("ill", "well")


def test_sites_normalise_by_agreed_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[data]\nname = "ham10000"\nmean = "0.7,0.5,0.5"\nstd = "0.1,0.2,0.3"\n[method]\nname = "fedavg"\n')
    task = agree(*read_run_file(path)).task
    assert (task.mean, task.std) == ((0.7, 0.5, 0.5), (0.1, 0.2, 0.3))
    path.write_text('[data]\nname = "ham10000"\nnormalise = "own"\n[method]\nname = "fedavg"\n')
    with pytest.raises(FedBMError, match="normalise = own needs the images of all sites"):
        agree(*read_run_file(path))


def test_words_that_a_file_of_concepts_was_not_read_from_are_refused(
    tiny_fedbm: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    words = '[concepts]\ncyst = "fluid-filled cyst"\nnormal = "normal"\npolyp = "polyp"\n'
    file = f'[language]\nconcept_file = "{tiny_fedbm["concept_file"]}"\n'
    path.write_text(f'[data]\nname = "our-scans"\n[method]\nname = "fedbm"\n{file}{words}')
    with pytest.raises(FedBMError, match=r'describes cyst as "fluid-filled cyst", but .* was made from "cyst"'):
        agree(*read_run_file(path))
    path.write_text(path.read_text().replace("fluid-filled ", ""))
    assert agree(*read_run_file(path)).task.concepts is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[federation]\ndeadline = 3", 'has no key "deadline" .did you mean "deadline_s"'),
        ("[federation]\nmin_updates = 0", "min_updates must be at least 1, not 0"),
        ('[federation]\ncompression = "zip"', "compression must be none, half or delta"),
        ('[method]\nname = "central"', "central cannot be federated"),
        ("[train]\ndrop_rate = 0.1", r"drop_rate in \[train\] of .* only applies to simulations. Remove it."),
        ('[engine]\ntrack = "tensorboard"', "track in .* only applies to simulations"),
        ('[engine]\nout = "elsewhere"', "out in .* only applies to simulations"),
        ("[engine]\nworkers = 2", "workers in .* only applies to simulations"),
        ('[data]\nfeature_shift = "blur"', "feature_shift in .* only applies to simulations"),
    ],
)
def test_mistakes_in_the_file_are_said(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(FedBMError, match=why):
        agree(*read_run_file(tmp_path / "run.toml"))


def test_options_have_defaults(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[data]\nname = "digits"')
    assert read_run_file(tmp_path / "run.toml")[1] == FederationOptions()
