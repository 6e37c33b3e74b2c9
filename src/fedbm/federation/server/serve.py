"""Run one federated run at the server: the same round loop, with the nodes of a Flower grid as clients.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedbm.engine.checkpoint import ClientStates
from fedbm.engine.device import explain_memory_errors, find_device, numeric_settings
from fedbm.engine.evaluate import first_state
from fedbm.engine.local_training import Samples, plain_steps
from fedbm.engine.round_loop import RoundLoop
from fedbm.engine.run_folder import FORMAT, RunFolder
from fedbm.errors import FedBMError
from fedbm.federation.audit import Audit
from fedbm.federation.deploy.site_files import Server, read
from fedbm.federation.options import FederationOptions, read_run_file
from fedbm.federation.protocol.messages import CONCEPTS, INIT, CensusRules, make_terms, versions
from fedbm.federation.protocol.packing import digest
from fedbm.federation.protocol.reply_checks import expected_upload
from fedbm.federation.server.flower_clients import FlowerCohort
from fedbm.federation.server.norm_history import NormHistory
from fedbm.federation.server.privacy_file import PrivacyFile
from fedbm.federation.server.registry import Registered, read_registry
from fedbm.federation.server.requests import Requests
from fedbm.federation.server.roster import Roster
from fedbm.federation.server.run_setup import Agreement, agree
from fedbm.federation.server.run_status import StatusFile
from fedbm.methods.base import State
from fedbm.runs.artifacts import write_final_files
from fedbm.runs.config import method_label, recommended_at_beta
from fedbm.runs.run_files import Privacy
from fedbm.runs.start import start_or_resume, write_description
from fedbm.utils.io import digest_of, write_json
from fedbm.utils.typed_json import decode

if TYPE_CHECKING:
    from flwr.serverapp import Grid


def serve(grid: Grid, config: Path, home: Path) -> None:
    """Run what *config* describes to its end, or resume it from its last checkpoint."""
    run_config, options = read_run_file(config)
    agreement = agree(run_config, options)
    server: Server = read(home, Server)
    registry, state = read_registry(home), home / "state"
    folder = RunFolder(state / "runs" / agreement.id)
    audit = Audit(state / "audit.jsonl")
    device = find_device(agreement.config.engine.device)
    with folder.lock():
        status = StatusFile(state / "status.json", agreement.id, agreement.config.train.rounds)
        try:
            with (
                numeric_settings(agreement.config.engine, agreement.config.train.precision),
                explain_memory_errors(device),
            ):
                if not folder.done:
                    run_rounds(grid, server, registry, agreement, options, folder, device, audit, status)
                status.write(phase="finished", round=agreement.config.train.rounds)
        except FedBMError as error:
            audit.append("failed", run=agreement.id, why=str(error))
            status.write(phase="failed", why=str(error))
            raise


def run_rounds(
    grid: Grid,
    server: Server,
    registry: Mapping[int, Registered],
    agreement: Agreement,
    options: FederationOptions,
    folder: RunFolder,
    device: torch.device,
    audit: Audit,
    status: StatusFile,
) -> None:
    privacy = PrivacyFile(folder.path / "privacy.json", options.dp_delta) if options.dp_noise else None
    loop = assemble(grid, server.max_samples, registry, agreement, options, folder, device, audit, status, privacy)
    how = "resumed" if loop.progress.round else "started"
    audit.append(
        how,
        run=agreement.id,
        method=agreement.config.method.name,
        shares=agreement.config.method.shares,
        round=loop.progress.round,
        state=digest(loop.server),
        terms=digest_of(terms_of(agreement, options)),
        options=dataclasses.asdict(options),
        max_samples=server.max_samples,
        versions=versions(),
    )
    status.write(round=loop.progress.round, phase="census")
    for event in loop.rounds():
        if event is None:
            status.write()  # waiting for nodes
            continue
        if event.record is None:
            status.write(phase=event.phase, round=event.round)
            continue
        record = event.record
        audit.append(
            "round",
            round=event.round,
            selected=record.selected,
            counted=[result.client for result in record.clients],
            dropped=[dataclasses.asdict(client) for client in record.dropped],
            state=digest(loop.server),
        )
        status.write_record(record)
    data = agreement.config.data
    write_final_files(
        loop,
        label=method_label(loop.method, recommended_at_beta(agreement.recommends, data.partition, data.beta)),
        data=agreement.data,
        clients=options.nodes,
        partition="nodes",
        beta=None,
        privacy=decode(Privacy, privacy.values, "privacy.json") if privacy else None,
    )
    audit.append("finished", run=agreement.id, state=digest(loop.server))


def assemble(
    grid: Grid,
    max_samples: int,
    registry: Mapping[int, Registered],
    agreement: Agreement,
    options: FederationOptions,
    folder: RunFolder,
    device: torch.device,
    audit: Audit,
    status: StatusFile,
    privacy: PrivacyFile | None,
) -> RoundLoop:
    """Return the run in memory, at its start or at its last checkpoint."""
    config, task = agreement.config, agreement.task
    start = start_or_resume(
        folder, agreement.id, config, task, device, lambda: write_initial_files(agreement, options, folder, device)
    )
    server, progress = start.server, start.progress
    every = config.engine.checkpoint_every or 1  # a round between machines costs more than a checkpoint
    expected = expected_upload(config.method, start.model, task, config.method.broadcast(server, progress.round + 1))
    terms = terms_of(agreement, options)
    sets = server_sets(agreement, server, device)
    rules = CensusRules(
        classes=task.classes,
        nodes=options.nodes,
        max_samples=max_samples,
        shares_counts="label_counts" in config.method.shares,
        evaluates=not sets,
    )
    roster = Roster(
        grid,
        registry,
        terms,
        rules,
        options,
        audit,
        lambda roster: status.write(nodes=nodes_of(roster)),
    )
    requests = Requests(grid, roster, task_parts(agreement), options, progress, every, audit)
    norms = NormHistory(progress.accepted_norms, options.max_norm_ratio)
    return RoundLoop(
        run_id=agreement.id,
        method=config.method,
        task=task,
        train=config.train,
        model=start.model,
        cohort=FlowerCohort(config.method, roster, requests, expected, options, audit, norms, privacy),
        server=server,
        progress=progress,
        states=ClientStates(folder.path / "clients", device, {}),  # clients keep their states themselves
        sets=sets,
        folder=folder,
        steps=plain_steps,
        checkpoint_every=every,
        min_updates=options.min_updates,
        max_round_attempts=options.max_round_attempts,
        population=options.nodes,
        average=start.average,
    )


def server_sets(agreement: Agreement, server: State, device: torch.device) -> Mapping[str, Samples]:
    """Return the server's val and test images; none if nodes score the model."""
    dataset, task = agreement.dataset, agreement.task
    if dataset is None or first_state(agreement.config.method, server, {}) is None:
        return {}
    images, labels = (torch.from_numpy(array).to(device) for array in (dataset.images, dataset.labels))
    normalise = task.normalise().to(device)
    return {
        side: Samples(images, labels, torch.from_numpy(dataset.indices(side)).to(device), normalise)
        for side in ("val", "test")
    }


def terms_of(agreement: Agreement, options: FederationOptions) -> dict[str, Any]:
    privacy = {"noise": options.dp_noise, "clip": options.dp_clip, "delta": options.dp_delta}
    asked = privacy if options.dp_noise else None
    return make_terms(agreement.id, agreement.config, agreement.task, options.compression, asked)


def task_parts(agreement: Agreement) -> dict[str, State]:
    """Return the parts of the task itself, sent once: embeddings and initial weights."""
    parts: dict[str, State] = {}
    if agreement.task.concepts is not None:
        parts[CONCEPTS] = {"embeddings": agreement.task.concepts.embeddings}
    if agreement.config.model.init_weights:
        parts[INIT] = dict(agreement.task.body().state_dict())
    return parts


def write_initial_files(
    agreement: Agreement, options: FederationOptions, folder: RunFolder, device: torch.device
) -> None:
    """Write what is known before the first round."""
    write_description(folder, agreement.config, agreement.task, device)
    terms = terms_of(agreement, options)
    asked = {"format": FORMAT, "options": dataclasses.asdict(options), "terms": terms, "digest": digest_of(terms)}
    write_json(folder.path / "federation.json", asked)


def nodes_of(roster: Roster) -> list[dict[str, Any]]:
    """Return the nodes for status.json: those that take part, then those that are refused."""
    missed, rejected = roster.missed_deadlines, roster.rejections
    rows: list[tuple[Any, ...]] = [
        (client, peer.census.name, peer.state, missed[client], peer.last_seen, rejected.get(client))
        for client, peer in sorted(roster.peers.items())
    ]
    rows += [(None, name, f"refused: {why}", 0, None, None) for name, why in roster.refused.values()]
    keys = ("client", "name", "state", "missed_deadlines", "last_seen", "rejected")
    return [dict(zip(keys, row, strict=True)) for row in rows]
