"""Run folders as the engine writes them, with made-up but plausible numbers, for the tests of results."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedbm.runs.run_file_types import ScoredRound, Summary
from fedbm.runs.run_view import RunView

METRICS = ("accuracy", "f1", "auc", "recall", "precision")
LEVEL = {"central": 0.95, "fedavg": 0.74, "fedprox": 0.76, "scaffold": 0.72, "fedbm": 0.91}
CLASSES = ("0", "1", "2")


def fake_run(
    root: Path,
    method: str = "fedbm",
    seed: int = 0,
    *,
    data: str = "digits",
    classes: Sequence[str] = CLASSES,
    clients: int = 10,
    rounds: int = 6,
    beta: float | None = 0.05,
    done: int | None = None,
    options: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    best: dict[str, float | None] | None = None,
    dropped: int = 0,
    tile: int = 8,
    leave_out: Sequence[str] = (),
) -> Path:
    """Write one run. *done*: the rounds of an unfinished one; *best*: metrics in place of made-up ones."""
    partition = "iid" if beta is None else "dirichlet"
    changed = ", ".join(f"{key}={json.dumps(value)}" for key, value in (options or {}).items())
    label = f"{method} · {changed}" if changed else method
    rng = np.random.default_rng([seed, len(method), *map(ord, label), clients])
    finished = done is None
    done = rounds if done is None else done
    folder = root / f"{data}-{clients}-{beta}-{label.replace(' · ', '-')}-{seed}".replace("/", "_")
    folder.mkdir(parents=True)

    config = {
        "data": {
            "name": data,
            "partition": partition,
            "clients": clients,
            "beta": 0.1 if beta is None else beta,
        },
        "language": {"encoder": "minilm", "prompt_fraction": 1.0},
        "model": {"stem": "3x3", "width": 16},
        "method": {"name": method, **(options or {})},
        "train": {"rounds": rounds, "epochs": 1, "batch": 8, "lr": 0.01, "seed": seed, **(train or {})},
        "engine": {"device": "cpu", "out": "runs"},
    }
    (folder / "config.toml").write_text(_toml(config), encoding="utf-8")

    counts = _counts(np.random.default_rng([seed, 7, clients]), clients, len(classes), beta)
    sizes = counts.sum(axis=1)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    records = [
        _record(rng, number, method, sizes, rounds, with_dropped=number <= dropped) for number in range(1, done + 1)
    ]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    _json(
        folder / "environment.json",
        {
            "format": 1,
            "fedbm": "0.1.0",
            "python": "3.11.9",
            "torch": "2.6.0",
            "numpy": "2.1.0",
            "platform": "Linux",
            "device": "cpu",
            "threads": 1,
            "command": f"fedbm run --method {method} --data {data} --seed {seed}",
            "started": "2025-01-02T03:04:05+00:00",
        },
    )
    _json(
        folder / "partition.json",
        {
            "format": 1,
            "kind": partition,
            "settings": {"beta": beta, "seed": seed},
            "clients": [list(range(starts[i], starts[i + 1])) for i in range(clients)],
            "counts": counts.tolist(),
            "classes": list(classes),
            "moved": [],
        },
    )
    if finished:
        chosen = max(records, key=lambda record: record["val"]["accuracy"] + record["val"]["f1"])
        _json(
            folder / "summary.json",
            {
                "format": 1,
                "id": folder.name,
                "method": method,
                "label": label,
                "data": data,
                "seed": seed,
                "rounds": rounds,
                "clients": clients,
                "partition": partition,
                "beta": beta,
                "best": {"round": chosen["round"], **chosen["test"], **(best or {})},
                "last": {"round": rounds, **records[-1]["test"]},
                "seconds": 1.5 + sum(record["seconds"]["total"] for record in records),
                "bytes": {way: sum(record["bytes"][way] for record in records) for way in ("sent", "received")},
            },
        )
        _json(folder / "details.json", _details(rng, method, classes, LEVEL.get(method, 0.7)))
        if method == "fedbm" and (options or {}).get("generator") is not False:
            _generated(rng, len(classes), tile).save(folder / "generated.png")
    for name in leave_out:
        (folder / name).unlink()
    return folder


def two_methods(root: Path, seeds: int = 3, **more: Any) -> list[Path]:
    return [fake_run(root, method, seed, **more) for method in ("fedavg", "fedbm") for seed in range(seeds)]


def scored(root: Path, method: str, scores: list[float], **more: Any) -> list[Path]:
    return [fake_run(root, method, seed, rounds=3, best={"f1": f1}, **more) for seed, f1 in enumerate(scores)]


def edit(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(value | changes), encoding="utf-8")


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def _record(
    rng: np.random.Generator, number: int, method: str, sizes: np.ndarray, rounds: int, with_dropped: bool
) -> dict[str, Any]:
    level = LEVEL.get(method, 0.7)
    learnt = level * (1 - math.exp(-4.5 * number / rounds))
    selected = sorted(int(i) for i in rng.choice(len(sizes), max(1, len(sizes) // 2), replace=False))
    noise = 0.12 if method != "fedbm" else 0.03

    def metrics() -> dict[str, float]:
        accuracy = float(np.clip(learnt + noise * rng.normal() * 0.5 + 0.02, 0.05, 0.995))
        return {
            "accuracy": accuracy,
            "f1": max(0.01, accuracy - 0.03 + 0.01 * rng.normal()),
            "auc": min(0.999, 0.5 + accuracy / 2),
            "recall": max(0.01, accuracy - 0.02),
            "precision": max(0.01, accuracy - 0.01),
        }

    loss = {"cross_entropy": 2.3 * math.exp(-3 * number / rounds) + 0.05 * rng.random()}
    if method == "fedbm":
        loss["variance"] = 0.08
    seconds = {
        "train": 0.8 + 0.1 * rng.random(),
        "aggregate": 0.03,
        "generator": 0.0,
        "evaluate": 0.2,
        "checkpoint": 0.05,
    }
    trains_generator = method == "fedbm" and number % 5 == 0
    seconds["generator"] = 1.2 if trains_generator else 0.0
    return {
        "round": number,
        "lr": 0.01 * 0.99 ** (number - 1),
        "selected": selected,
        "loss": loss,
        "clients": [{"client": i, "n": int(sizes[i]), "loss": loss, "seconds": 0.1} for i in selected],
        "dropped": [{"client": selected[0], "reason": "the update is not finite"}] if with_dropped else [],
        "generator": {"semantic": 1.1, "diversity": 0.4, "distribution": 2.0} if trains_generator else None,
        "val": metrics(),
        "test": metrics(),
        "personal": {"accuracy": 0.88, "clients": {"0": 0.88}} if method == "fedrep" else None,
        "bytes": {"sent": 44_700_000 + 3_000_000 * trains_generator, "received": 44_600_000},
        "seconds": seconds | {"total": sum(seconds.values()) + 0.02},
    }


def _counts(rng: np.random.Generator, clients: int, classes: int, beta: float | None) -> np.ndarray:
    per_class = 126
    if beta is None:
        return np.full((clients, classes), per_class // clients, dtype=int)
    shares = rng.dirichlet([beta * 4] * clients, size=classes).T
    return np.floor(shares * per_class + 0.4).astype(int)


def _details(rng: np.random.Generator, method: str, classes: Sequence[str], level: float) -> dict[str, Any]:
    count = len(classes)
    confusion = {}
    for moment in ("best", "last"):
        matrix = rng.poisson(36 * (1 - level) / count, (count, count))
        matrix[np.arange(count), np.arange(count)] = rng.poisson(36 * level, count)
        confusion[moment] = matrix.tolist()
    points = np.random.default_rng(count).normal(size=(count, 16)) + 0.9
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    reads = method == "fedbm"
    return {
        "format": 1,
        "classes": list(classes),
        "concepts": [f"handwritten digit {name}" for name in classes] if reads else None,
        "encoder": "minilm" if reads else None,
        "similarity": (points @ points.T).tolist() if reads else None,
        "confusion": confusion,
    }


def _generated(rng: np.random.Generator, classes: int, tile: int) -> Image.Image:
    """Soft stripes whose direction is the class."""
    y, x = np.mgrid[0:tile, 0:tile] / tile
    sheet = np.zeros((classes * tile, 8 * tile))
    for row in range(classes):
        for column in range(8):
            angle, phase = np.pi * row / classes, rng.random()
            wave = 0.5 + 0.5 * np.sin(2 * np.pi * (1.5 * (x * np.cos(angle) + y * np.sin(angle)) + phase))
            sheet[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile] = wave
    return Image.fromarray((255 * sheet).astype(np.uint8))


def _toml(config: dict[str, dict[str, Any]]) -> str:
    lines = []
    for section, values in config.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def with_summary(run: RunView, **changes: dict[str, Any]) -> RunView:
    """Return *run* with other scores of the moments "best", "last" or "averaged" in its summary."""
    assert run.summary is not None
    scores = {**dict.fromkeys(METRICS, 0.0), "round": 1}
    moments = {moment: ScoredRound(**{**scores, **values}) for moment, values in changes.items()}
    return dataclasses.replace(run, summary=Summary(**{**run.summary, **moments}))
