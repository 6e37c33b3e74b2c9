"""The Flower ServerApp: the same round loop as in one process, with the nodes of a Flower grid as clients.

`flwr run` starts it with `config`, the run's TOML file, and `folder`, the server's folder.

    <folder>/server.toml        settings, such as the names of the nodes
    <folder>/registered.json    the node that each Flower node id belongs to
    <folder>/state/runs/<id>/   the files of every run, federation.json, and privacy.json if sites add noise
    <folder>/state/audit.jsonl  what was sent, received and refused
    <folder>/state/status.json  the state of the run

A server that was killed resumes from its checkpoint. A second server on the same run is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedbm.engine.checkpoint import ClientStates
from fedbm.engine.clients.backends import uses_cuda_graphs
from fedbm.engine.clients.cohort import broadcast
from fedbm.engine.clients.cuda_graphs import CapturedSteps
from fedbm.engine.device import explain_memory_errors, find_device, numeric_settings, place_images
from fedbm.engine.local_training import Samples, plain_steps
from fedbm.engine.round_loop import RoundLoop
from fedbm.engine.run_folder import FORMAT, RunFolder
from fedbm.errors import FedBMError
from fedbm.federation.audit import Audit
from fedbm.federation.deploy.registration import Registered, read_registry
from fedbm.federation.deploy.settings_files import ServerSettings, read_settings
from fedbm.federation.federation_options import read_run_file
from fedbm.federation.flower_waits import shorten_object_waits
from fedbm.federation.protocol.messages import CONCEPTS, INIT, SCORED, CensusRules, versions
from fedbm.federation.protocol.packing import digest
from fedbm.federation.protocol.reply_checks import expected_upload
from fedbm.federation.server.flower_clients import FlowerCohort, read_privacy_file
from fedbm.federation.server.norm_history import NormHistory
from fedbm.federation.server.requests import Requests
from fedbm.federation.server.roster import Roster
from fedbm.federation.server.run_setup import Agreement, agree
from fedbm.federation.server.run_status import StatusFile
from fedbm.methods.base import State, Steps
from fedbm.runs.artifacts import write_description, write_final_files
from fedbm.runs.run_config import method_label, recommended_at_beta
from fedbm.runs.runner import start_or_resume
from fedbm.utils.io import digest_of, read_json, write_json

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what `config` describes to its end, or resume it from its last checkpoint."""
    paths = {key: Path(str(context.run_config.get(key, ""))) for key in ("config", "folder")}
    for key, path in paths.items():
        if not path.is_absolute():
            raise FedBMError(f"{key} must be an absolute path: flwr run … -c '{key}=\"/…\"'")
    shorten_object_waits()
    home = paths["folder"]
    agreement, state = agree(*read_run_file(paths["config"])), home / "state"
    config = agreement.config
    run = ServerRun(
        grid=grid,
        agreement=agreement,
        settings=read_settings(home, ServerSettings),
        registry=read_registry(home),
        folder=RunFolder(state / "runs" / agreement.id),
        device=find_device(config.engine.device),
        audit=Audit(state / "audit.jsonl"),
        status=StatusFile(state / "status.json", agreement.id, config.train.rounds),
    )
    with run.folder.lock():
        try:
            with numeric_settings(config.engine, config.train.precision), explain_memory_errors(run.device):
                if not run.folder.done:
                    run.run_rounds()
                done = read_json(run.folder.path / "summary.json")["rounds"]  # fewer than planned if patience is over
                run.status.write(phase="finished", round=done, rounds=done)
        except FedBMError as error:
            run.audit.append("failed", run=agreement.id, why=str(error))
            run.status.write(phase="failed", why=str(error))
            raise


@dataclass(frozen=True)
class ServerRun:
    """One run at the server, and where it is written down."""

    grid: Grid
    agreement: Agreement
    settings: ServerSettings
    registry: Mapping[int, Registered]
    folder: RunFolder
    device: torch.device
    audit: Audit
    status: StatusFile

    def run_rounds(self) -> None:
        config, options = self.agreement.config, self.agreement.options
        privacy_file = self.folder.path / "privacy.json" if options.dp_noise else None
        if privacy_file:
            read_privacy_file(privacy_file, options.dp_delta)  # a damaged file stops the run before its first request
        loop = self.assemble(privacy_file)
        self.audit.append(
            "resumed" if loop.progress.round else "started",
            run=self.agreement.id,
            method=config.method.name,
            shares=config.method.shares,
            round=loop.progress.round,
            state=digest(loop.server),
            terms=digest_of(self.agreement.terms),
            options=dataclasses.asdict(options),
            max_samples=self.settings.max_samples,
            versions=versions(),
        )
        self.status.write(round=loop.progress.round, phase="census")
        for event in loop.rounds():
            if event is None:
                self.status.write()  # waiting for nodes
                continue
            if event.record is None:
                self.status.write(phase=event.phase, round=event.round)
                continue
            record = event.record
            self.audit.append(
                "round",
                round=event.round,
                selected=record.selected,
                counted=[result.client for result in record.clients],
                dropped=[dataclasses.asdict(client) for client in record.dropped],
                state=digest(loop.server),
            )
            scores = {side: record[side] for side in ("val", "test") if record[side] is not None}
            self.status.write(round=event.round, phase="done", **scores)  # otherwise the scores before it stay
        recommends = recommended_at_beta(self.agreement.recommends, config.data.partition, config.data.beta)
        write_final_files(
            loop,
            label=method_label(loop.method, recommends),
            data=self.agreement.data,
            clients=options.nodes,
            partition="nodes",
            beta=None,
            privacy=read_privacy_file(privacy_file, options.dp_delta) if privacy_file else None,
            sources=[self.settings.places.get(client, f"client {client}") for client in range(options.nodes)],
        )
        self.audit.append("finished", run=self.agreement.id, state=digest(loop.server))

    def assemble(self, privacy_file: Path | None) -> RoundLoop:
        """Return the run in memory, at its start or at its last checkpoint."""
        config, options, task = self.agreement.config, self.agreement.options, self.agreement.task
        start = start_or_resume(self.folder, self.agreement.id, config, task, self.device, self.write_initial_files)
        server, progress = start.server, start.progress
        every = config.engine.checkpoint_every or 1  # a round between machines costs more than a checkpoint
        parts = broadcast(config.method, start.model, server, progress.round + 1)
        sets = self.load_sets()
        rules = CensusRules(
            classes=task.classes,
            nodes=options.nodes,
            max_samples=self.settings.max_samples,
            shares_counts="label_counts" in config.method.shares,
            evaluates=self.agreement.terms["evaluates"],
        )
        notes: list[str] = []
        roster = Roster(self.grid, self.agreement, self.registry, rules, self.audit, self.status)
        cohort = FlowerCohort(
            config.method,
            roster,
            Requests(roster, task_parts(self.agreement), progress, every),
            expected_upload(config.method, start.model, task, parts),
            NormHistory(progress.accepted_norms, options.max_norm_ratio),
            privacy_file,
        )
        return RoundLoop(
            run_id=self.agreement.id,
            method=config.method,
            task=task,
            train=config.train,
            model=start.model,
            cohort=cohort,
            server=server,
            progress=progress,
            states=ClientStates(self.folder.path / "clients", self.device, {}),  # clients keep their states themselves
            sets=sets,
            folder=self.folder,
            steps=self.choose_steps(start.model, notes),
            checkpoint_every=every,
            min_updates=options.min_updates,
            max_round_attempts=options.max_round_attempts,
            population=options.nodes,
            notes=notes,
            average=start.average,
            optimizer=start.optimizer,
        )

    def choose_steps(self, model: nn.Module, notes: list[str]) -> Steps:
        """Return how the server's own model is trained: captured, where one process would capture it."""
        config = self.agreement.config
        if not uses_cuda_graphs(config.engine, config.method, self.device):
            return plain_steps
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return CapturedSteps(lambda: False, config.engine.compile, notes.append)

    def load_sets(self) -> Mapping[str, Samples]:
        """Return the server's val and test images; none if nodes score the model."""
        dataset = self.agreement.dataset
        if dataset is None or self.agreement.terms["evaluates"]:
            return {}
        images = place_images(dataset.images, self.device, self.agreement.config.engine.data_on)
        labels = torch.from_numpy(dataset.labels).to(self.device)
        normalise = self.agreement.task.normalise().to(self.device)
        indices = {side: torch.from_numpy(dataset.indices(side)).to(images.device) for side in SCORED}
        return {side: Samples(images, labels, own, normalise) for side, own in indices.items()}

    def write_initial_files(self) -> None:
        """Write what is known before the first round."""
        write_description(self.folder, self.agreement.config, self.agreement.task, self.device)
        options, terms = dataclasses.asdict(self.agreement.options), self.agreement.terms
        asked = {"format": FORMAT, "options": options, "terms": terms, "digest": digest_of(terms)}
        write_json(self.folder.path / "federation.json", asked)


def task_parts(agreement: Agreement) -> dict[str, State]:
    """Return the parts of the task itself, sent once: embeddings and initial weights."""
    parts: dict[str, State] = {}
    if agreement.task.concepts is not None:
        parts[CONCEPTS] = {"embeddings": agreement.task.concepts.embeddings}
    if agreement.config.model.init_weights:
        parts[INIT] = dict(agreement.task.body().state_dict())
    return parts
