"""Write the files of a run except rounds and checkpoints: its description, pictures, model and summary."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from fedbm.data.partition import find_sources
from fedbm.engine.checkpoint import Progress, best_path, load_best, save_tensors
from fedbm.engine.clients.backends import uses_cuda_graphs
from fedbm.engine.environment import environment, settings_digest
from fedbm.engine.round_loop import RoundLoop
from fedbm.engine.round_record import ModelScores, Traffic
from fedbm.engine.run_folder import FORMAT, RunFolder, replace_nonfinite
from fedbm.methods import is_plugin, method_plugins
from fedbm.methods.base import Task, load_state
from fedbm.models.backbone import body_code
from fedbm.report.figures.generated_images import COLUMNS
from fedbm.report.figures.matrices import partition_bubbles
from fedbm.report.figures.svg import save_svg
from fedbm.runs.custom_method import describe_class
from fedbm.runs.plan import Plan
from fedbm.runs.run_config import Config, method_label, recommended_at_beta, to_toml
from fedbm.runs.run_file_types import (
    Confusion,
    Details,
    PersonalSummary,
    Privacy,
    ScoredRound,
    SourceConfusion,
    Summary,
)
from fedbm.runs.run_id import own_code
from fedbm.utils.io import atomic_write, write_json, write_text

DRAWN_ROUNDS = (5, 10, 20, 50, 100, 200, 500)  # generated images are drawn after these rounds and after the last


def write_initial_files(plan: Plan, folder: RunFolder, device: torch.device) -> None:
    """Write the files of a simulation that are known before its first round."""
    dataset, partition, config = plan.dataset, plan.partition, plan.config
    if plan.own_partition:  # so that the saved configuration finds this run again
        config = config.with_values("data", partition="file", partition_file=str(folder.path / "partition.json"))
    write_description(folder, config, plan.task, device, plan.custom_digests)
    of = {"data": dataset.name, "checksum": dataset.checksum, "shape": dataset.shape}
    write_json(folder.path / "partition.json", {**partition.to_json(dataset.labels, dataset.classes), "of": of})
    counts = partition.counts(dataset.labels, len(dataset.classes))
    drawn = partition_bubbles(counts, dataset.classes, f"{dataset.name}: who holds what")
    save_svg(folder.path / "partition.svg", drawn)


def write_description(
    folder: RunFolder, config: Config, task: Task, device: torch.device, own: Mapping[str, str] | None = None
) -> None:
    """Write config.toml, environment.json and, if the method uses concepts, concepts.safetensors."""
    text = to_toml(config, own)
    write_text(folder.path / "config.toml", text)
    known = {**environment(device), "settings": settings_digest(tomllib.loads(text))}
    captured = uses_cuda_graphs(config.engine, config.method, device)
    known["engine"] = f"captured{', compiled' * config.engine.compile}" if captured else "reference"
    if own and "code" in own:
        known["method"] = describe_class(type(config.method))
    if is_plugin(config.method):
        known["method"] = method_plugins()[config.method.name].package
        known |= own_code(config.method)
    if not own or "body" not in own:
        known |= body_code(config.model.body)
    write_json(folder.path / "environment.json", known)
    if task.concepts is not None:
        task.concepts.save(folder.path / "concepts.safetensors")


def finish_simulation(plan: Plan, loop: RoundLoop) -> None:
    """Write the files of a finished simulation."""
    config, partition = plan.config, plan.partition
    recommends = recommended_at_beta(plan.dataset.recommends, config.data.partition, config.data.beta)
    write_final_files(
        loop,
        label=method_label(config.method, recommends),
        data=plan.dataset.name,
        clients=len(partition.clients),
        partition=partition.kind,
        beta=partition.settings.get("beta"),
        sources=sources.names if (sources := find_sources(plan.dataset, partition)) else (),
        held_out=partition.held_out_names,
    )


def write_final_files(
    loop: RoundLoop,
    *,
    label: str,
    data: str,
    clients: int,
    partition: str,
    beta: float | None,
    privacy: Privacy | None = None,
    sources: Sequence[str] = (),
    held_out: Sequence[str] = (),
) -> None:
    """Write details, model, pictures and, last, the summary, which marks the run as finished.

    *sources* are the names of the sources if test images are scored by source. *held_out* are the names of the
    held-out clients.
    """
    folder, progress, task = loop.folder.path, loop.progress, loop.task
    best, last = progress.best, progress.last
    assert best is not None
    assert last is not None
    concepts, averaged = task.concepts, last.averaged
    personal = None
    if last.scored is not None and last.personal is not None:  # each site scored its own model on its own images
        personal = [last.personal.clients.get(str(site)) for site in range(len(sources))]
    details = Details(
        classes=task.classes,
        concepts=concepts.texts if concepts else None,
        encoder=concepts.provenance.get("encoder") if concepts else None,
        similarity=tuple(map(tuple, concepts.similarity().tolist())) if concepts else None,
        confusion=Confusion(best.confusion, last.confusion, averaged.confusion if averaged else None),
        sources=_confusion_by_name(sources, progress, "by_source", personal),
        held_out=_confusion_by_name(held_out, progress, "held_out"),
    )
    write_json(folder / "details.json", {"format": FORMAT, **dataclasses.asdict(details)})
    draw_generated(loop, folder / "generated.png")
    notes = {"run": loop.run_id, "classes": task.classes, "shape": task.shape, "mean": task.mean, "std": task.std}
    chosen = load_best(folder, best.round)
    save_tensors(folder / "model.safetensors", chosen, {**notes, "round": best.round})
    if averaged and loop.average is not None:
        save_tensors(folder / "averaged.safetensors", loop.average.state(), {**notes, "round": last.round})
    summary = Summary(
        id=loop.run_id,
        label=label,
        method=loop.method.name,
        data=data,
        seed=loop.train.seed,
        rounds=progress.round,
        clients=clients,
        partition=partition,
        beta=beta,
        best=_scored_round(best.round, best),
        last=_scored_round(last.round, last),
        averaged=_scored_round(last.round, averaged) if averaged else None,
        personal=PersonalSummary(*(found.personal.accuracy if found.personal else None for found in (best, last))),
        bytes=Traffic(progress.bytes_sent, progress.bytes_received),
        seconds=progress.seconds,
        privacy=privacy,
    )
    best_path(folder, best.round).unlink(missing_ok=True)  # it is model.safetensors now
    write_json(folder / "summary.json", replace_nonfinite({"format": FORMAT, **dataclasses.asdict(summary)}))


def _confusion_by_name(
    names: Sequence[str], progress: Progress, part: str, personal: Sequence[float | None] | None = None
) -> tuple[SourceConfusion, ...] | None:
    """Return the confusion matrices of each source or held-out client, or None if there are none.

    *part* is "by_source" or "held_out". Sites that do not share their scores are left out.
    """
    assert progress.last is not None
    scored = (progress.best, progress.last, progress.last.averaged)
    best, last, averaged = (getattr(scores, part, None) for scores in scored)
    if not names or best is None or last is None:  # older versions did not score the best round by source
        return None
    unknown = [None] * len(names)
    found = map(SourceConfusion, names, best, last, averaged or unknown, personal or unknown)
    return tuple(source for source in found if any(map(sum, (*source.best, *source.last))))


def _scored_round(round_: int, scores: ModelScores) -> ScoredRound:
    return ScoredRound(round=round_, **scores.test)  # type: ignore[arg-type]


def draw_if_due(loop: RoundLoop) -> None:
    """Draw generated images after some of the rounds, to show how the generator learns."""
    path = loop.folder.path / "generated" / f"{loop.progress.round}.png"
    if loop.progress.round in DRAWN_ROUNDS and not path.exists():
        draw_generated(loop, path)


def draw_generated(loop: RoundLoop, path: Path) -> None:
    """Draw a picture with a row of generated images per class, if the method has a generator."""
    from PIL import Image

    if (state := loop.common_state()) is not None:
        load_state(loop.model, state)
        gallery = loop.method.sample_images(loop.model, loop.task, COLUMNS)
        if gallery is None:
            return
        rows, columns, channels, size, _ = gallery.shape
        grid = gallery.permute(0, 3, 1, 4, 2).reshape(rows * size, columns * size, channels)
        pixels = (grid.clamp(0, 1) * 255).round().byte().cpu().numpy()
        with atomic_write(path) as temporary:
            Image.fromarray(np.squeeze(pixels)).save(temporary, format="PNG")
