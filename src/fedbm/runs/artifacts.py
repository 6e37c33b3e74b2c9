"""What a run leaves beside its rounds and checkpoints: its description, pictures on the way, and what ends it.

describe(plan, …) before the first round; draw_when_due(federation) after each; finish(plan, federation) at the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbm.engine.checkpoint import best_path, load_best, save_tensors
from fedbm.engine.environment import write_settings
from fedbm.engine.round_loop import Federation
from fedbm.engine.run_folder import FORMAT, RunFolder, finite
from fedbm.methods.base import load_state
from fedbm.report.figures.generated import COLUMNS
from fedbm.report.figures.matrices import partition_bubbles
from fedbm.report.figures.svg import save_svg
from fedbm.runs.config import at_beta, method_label, to_toml
from fedbm.runs.plan import Plan
from fedbm.utils.io import atomic_write, write_json

DRAWN = (5, 10, 20, 50, 100, 200, 500)  # rounds after which generated images are drawn, beside those of the last


def describe(plan: Plan, folder: RunFolder, device: torch.device) -> None:
    """What is known before the first round."""
    dataset, partition = plan.dataset, plan.partition
    config = plan.config
    if plan.own_partition:  # so that the saved configuration finds this run again
        made: dict[str, Any] = {"partition": "file", "partition_file": str(folder.path / "partition.json")}
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, **made))
    write_settings(folder.path, to_toml(config, plan.own), device)
    of = {"data": dataset.name, "checksum": dataset.checksum, "shape": dataset.shape}
    write_json(folder.path / "partition.json", {**partition.to_json(dataset.labels, dataset.classes), "of": of})
    counts = partition.counts(dataset.labels, len(dataset.classes))
    drawn = partition_bubbles(counts, dataset.classes, f"{dataset.name}: who holds what")
    save_svg(folder.path / "partition.svg", drawn)
    if plan.task.concepts is not None:
        plan.task.concepts.save(folder.path / "concepts.safetensors")


def finish(plan: Plan, federation: Federation) -> None:
    """What is left to write when the rounds are over."""
    config, partition = plan.config, plan.partition
    recommends = at_beta(plan.dataset.recommends, config.data.partition, config.data.beta)
    conclude(
        federation,
        {
            "label": method_label(config.method, recommends),
            "data": plan.dataset.name,
            "clients": len(partition.clients),
            "partition": partition.kind,
            "beta": partition.settings.get("beta"),
        },
    )


def conclude(federation: Federation, about: Mapping[str, Any]) -> None:
    """Details, model and pictures, and last the summary: where it stands, the run is done."""
    folder, progress, method, task, train = (
        federation.folder.path,
        federation.progress,
        federation.method,
        federation.task,
        federation.train,
    )
    assert progress.best is not None
    assert progress.last is not None
    concepts, averaged = task.concepts, progress.last.get("averaged")
    write_json(
        folder / "details.json",
        {
            "format": FORMAT,
            "classes": task.classes,
            "concepts": concepts.texts if concepts else None,
            "encoder": concepts.provenance.get("encoder") if concepts else None,
            "similarity": concepts.similarity().tolist() if concepts else None,
            "confusion": {
                "best": progress.best["confusion"],
                "last": progress.last["confusion"],
                **({"averaged": averaged["confusion"]} if averaged else {}),
            },
        },
    )
    draw_generated(federation, folder / "generated.png")
    notes = {"run": federation.run_id, "classes": task.classes, "shape": task.shape, "mean": task.mean, "std": task.std}
    chosen = load_best(folder, progress.best_round)
    save_tensors(folder / "model.safetensors", chosen, {**notes, "round": progress.best_round})
    if averaged and federation.average is not None:
        state = federation.average.state()
        save_tensors(folder / "averaged.safetensors", state, {**notes, "round": progress.last["round"]})
    summary = {
        "format": FORMAT,
        "id": federation.run_id,
        "label": about["label"],
        "method": method.name,
        "data": about["data"],
        "seed": train.seed,
        "rounds": train.rounds,
        "clients": about["clients"],
        "partition": about["partition"],
        "beta": about["beta"],
        "best": {"round": progress.best["round"], **progress.best["test"]},
        "last": {"round": progress.last["round"], **progress.last["test"]},
        "averaged": {"round": progress.last["round"], **averaged["test"]} if averaged else None,
        "personal": {
            moment: found["personal"]["accuracy"] if found["personal"] else None
            for moment, found in (("best", progress.best), ("last", progress.last))
        },
        "bytes": {"sent": progress.bytes_sent, "received": progress.bytes_received},
        "seconds": progress.seconds,
        "privacy": about.get("privacy"),
    }
    best_path(folder, progress.best_round).unlink(missing_ok=True)  # it is model.safetensors now
    write_json(folder / "summary.json", finite(summary))


def draw_when_due(federation: Federation) -> None:
    """After some rounds, so that one sees the generator learn."""
    path = federation.folder.path / "generated" / f"{federation.progress.round}.png"
    if federation.progress.round in DRAWN and not path.exists():
        draw_generated(federation, path)


def draw_generated(federation: Federation, path: Path) -> None:
    """What the generator makes of every class now, where the method has one."""
    state = federation.common_state(federation.states.method_states())
    if state is not None:
        load_state(federation.model, state)
        gallery = federation.method.sample_images(federation.model, federation.task, COLUMNS)
        if gallery is not None:
            save_gallery(path, gallery)


def save_gallery(path: Path, images: torch.Tensor) -> None:
    """[K,m,C,s,s] in [0,1] → one picture of K rows × m columns."""
    from PIL import Image

    rows, columns, channels, size, _ = images.shape
    grid = images.permute(0, 3, 1, 4, 2).reshape(rows * size, columns * size, channels)
    pixels = (grid.clamp(0, 1) * 255).round().byte().cpu().numpy()
    with atomic_write(path) as temporary:
        Image.fromarray(np.squeeze(pixels)).save(temporary, format="PNG")
