"""The Flower ServerApp: the same round loop as in one process, with the nodes of a Flower grid as clients.

`fedbm federation run` starts it with `config`, the run's TOML file, and `folder`, the server's folder.

    <folder>/server.toml        settings, such as the names of the nodes
    <folder>/nodes/             their public keys, by which the SuperLink knows them
    <folder>/state/runs/<id>/   the files of every run, federation.json, and privacy.json if sites add noise
    <folder>/state/audit.jsonl  what was sent, received and refused
    <folder>/state/status.json  the state of the run

A server that was killed resumes from its checkpoint. A second server on the same run is refused.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbm.engine.checkpoint import ClientStates
from fedbm.engine.clients.backends import uses_cuda_graphs
from fedbm.engine.clients.cohort import broadcast
from fedbm.engine.clients.cuda_graphs import CapturedSteps
from fedbm.engine.device import explain_memory_errors, find_device, numeric_settings, place_images
from fedbm.engine.local_training import Samples, plain_steps
from fedbm.engine.round_loop import Event, RoundLoop
from fedbm.engine.run_folder import FORMAT, RunFolder
from fedbm.errors import FedBMError
from fedbm.federation.audit import Audit
from fedbm.federation.deploy.registration import find_registered
from fedbm.federation.deploy.settings_files import ServerSettings, read_settings
from fedbm.federation.deploy.supervisor import MARK
from fedbm.federation.federation_options import read_run_file
from fedbm.federation.protocol.flower_records import limit_messages
from fedbm.federation.protocol.messages import CONCEPTS, INIT, SCORED, versions
from fedbm.federation.protocol.packing import MAX_HEADER_LENGTH, digest
from fedbm.federation.protocol.reply_checks import expected_upload
from fedbm.federation.server.flower_clients import FlowerCohort, read_privacy_file
from fedbm.federation.server.roster import Roster
from fedbm.federation.server.run_setup import Agreement, agree
from fedbm.federation.server.run_status import StatusFile
from fedbm.methods.base import Piece, Steps, size_of
from fedbm.runs.run_file_types import Privacy
from fedbm.runs.run_file_writer import write_description, write_final_files
from fedbm.runs.runner import iterate_loop, start_or_resume
from fedbm.utils.io import digest_of, read_json, write_json

MAX_OTHER_BYTES = 4 * MAX_HEADER_LENGTH  # of a message: its text, its headers, and what Flower adds

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what `config` describes to its end, or resume it from its last checkpoint."""
    config, folder = (Path(str(context.run_config[key])) for key in ("config", "folder"))
    if os.environ.get(MARK, str(folder)) != str(folder):  # anyone on this machine can start a run
        raise FedBMError("folder must be the folder of this server")
    run = ServerRun(grid, agree(*read_run_file(config)), folder)
    numeric = numeric_settings(run.config.engine, run.config.train.precision)
    with run.folder.lock():
        try:
            with numeric, explain_memory_errors(run.device):
                if not run.folder.done:
                    run.run_rounds()
                done = read_json(run.folder.path / "summary.json")["rounds"]  # fewer than planned if patience is over
                run.status.write(phase="finished", round=done, rounds=done)
        except FedBMError as error:
            run.audit.append("failed", run=run.agreement.id, why=str(error))
            run.status.write(phase="failed", why=str(error))
            raise


class ServerRun:
    """One run at the server, and the files that record it."""

    def __init__(self, grid: Grid, agreement: Agreement, home: Path) -> None:
        state = home / "state"
        self.grid, self.agreement = grid, agreement
        self.config, self.options, self.task = agreement.config, agreement.options, agreement.task
        self.settings = read_settings(home, ServerSettings)
        self.registry = find_registered(home, self.settings)
        self.folder = RunFolder(state / "runs" / agreement.id)
        self.device = find_device(self.config.engine.device)
        self.audit = Audit(state / "audit.jsonl")
        self.status = StatusFile(state / "status.json", agreement.id, self.config.train.rounds)
        self.privacy_file = self.folder.path / "privacy.json" if self.options.dp_noise else None

    def run_rounds(self) -> None:
        """Run the remaining rounds, and write the files of a finished run."""
        self.read_privacy()  # a damaged file stops the run before its first request
        loop = self.prepare_round_loop()
        self.audit.append(
            "resumed" if loop.progress.round else "started",
            run=self.agreement.id,
            method=self.config.method.name,
            shares=self.config.method.shares,
            round=loop.progress.round,
            state=digest(loop.server),
            terms=digest_of(self.agreement.terms),
            options=dataclasses.asdict(self.options),
            max_samples=self.settings.max_samples,
            versions=versions(),
        )
        self.status.write(round=loop.progress.round, phase="census")
        with closing(iterate_loop(loop, lambda event: self.record(event, loop))) as events:
            for event in events:
                if event is None:
                    self.status.write()  # waiting for nodes
        write_final_files(
            loop,
            label=self.agreement.label,
            data=self.agreement.data,
            clients=self.options.nodes,
            partition="nodes",
            beta=None,
            privacy=self.read_privacy(),
            sources=[self.settings.places.get(client, f"client {client}") for client in range(self.options.nodes)],
        )
        self.audit.append("finished", run=self.agreement.id, state=digest(loop.server))

    def record(self, event: Event, loop: RoundLoop) -> None:
        """Write an event to the status, and a finished round to the audit."""
        if (record := event.record) is None:
            self.status.write(phase=event.phase, round=event.round)
            return
        self.audit.append(
            "round",
            round=event.round,
            selected=record.selected,
            counted=[result.client for result in record.clients],
            dropped=[dataclasses.asdict(client) for client in record.dropped],
            state=digest(loop.server),
        )
        scores = {side: record[side] for side in SCORED if record[side] is not None}
        self.status.write(round=event.round, phase="done", **scores)  # otherwise the scores before it stay

    def read_privacy(self) -> Privacy | None:
        """Return the privacy loss of each site, or None if sites add no noise."""
        return read_privacy_file(self.privacy_file, self.options.dp_delta) if self.privacy_file else None

    def prepare_round_loop(self) -> RoundLoop:
        """Return the run in memory, at its start or at its last checkpoint."""
        config, method = self.config, self.config.method
        start = start_or_resume(
            self.folder, self.agreement.id, config, self.task, self.device, self.write_initial_files
        )
        model, progress = start.model, start.progress
        every = config.engine.checkpoint_every or 1  # a round between machines costs more than a checkpoint
        pieces = broadcast(method, model, start.server, progress.round + 1)
        sets, notes = self.load_sets(), list[str]()
        expected = expected_upload(method, model, self.task, pieces)
        limit_messages(size_of(expected) + MAX_OTHER_BYTES, self.options.deadline_s)
        steps: Steps = plain_steps
        if uses_cuda_graphs(config.engine, method, self.device):  # as in one process
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            steps = CapturedSteps(lambda: False, config.engine.compile, notes.append)
        most = self.settings.max_samples
        roster = Roster(self.grid, self.agreement, self.registry, most, self.audit, self.status)
        cohort = FlowerCohort(method, roster, self.task_pieces(), expected, progress, every, self.privacy_file)
        return RoundLoop(
            **vars(start),
            run_id=self.agreement.id,
            method=method,
            task=self.task,
            train=config.train,
            cohort=cohort,
            states=ClientStates(self.folder.path / "clients", self.device, {}),  # clients keep their states themselves
            sets=sets,
            folder=self.folder,
            steps=steps,
            checkpoint_every=every,
            min_updates=self.options.min_updates,
            max_round_attempts=self.options.max_round_attempts,
            population=self.options.nodes,
            notes=notes,
        )

    def load_sets(self) -> Mapping[str, Samples]:
        """Return the server's val and test images; none if nodes score the model."""
        dataset = self.agreement.dataset
        if dataset is None or self.agreement.terms["evaluates"]:
            return {}
        images = place_images(dataset.images, self.device, self.config.engine.data_on)
        labels = torch.from_numpy(dataset.labels).to(self.device)
        normalise = self.task.normalise().to(self.device)
        indices = {side: torch.from_numpy(dataset.indices(side)).to(images.device) for side in SCORED}
        return {side: Samples(images, labels, own, normalise) for side, own in indices.items()}

    def task_pieces(self) -> dict[str, Piece]:
        """Return the pieces of the task itself, sent once: embeddings and initial weights."""
        pieces = {}
        if self.task.concepts is not None:
            pieces[CONCEPTS] = Piece(0, {"embeddings": self.task.concepts.embeddings})
        if self.config.model.init_weights:
            pieces[INIT] = Piece(0, self.task.body().state_dict())
        return pieces

    def write_initial_files(self) -> None:
        """Write what is known before the first round."""
        write_description(self.folder, self.config, self.task, self.device)
        options, terms = dataclasses.asdict(self.options), self.agreement.terms
        asked = {"format": FORMAT, "options": options, "terms": terms, "digest": digest_of(terms)}
        write_json(self.folder.path / "federation.json", asked)
