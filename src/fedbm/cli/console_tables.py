"""Tables and lines that several commands print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from fedbm.config.keys import Key
from fedbm.data.dataset import Dataset
from fedbm.data.partition import Partition, heterogeneity
from fedbm.errors import FedBMError
from fedbm.methods import title_of
from fedbm.report.render.terminal import rich_table
from fedbm.runs.run_view import EDITED, METRICS, RunView, describe_run, read_run
from fedbm.utils.text import format_option

MAX_CLASS_COLUMNS = 12


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]], text_columns: int = 1) -> Table:
    """Return a table. The first *text_columns* columns are aligned to the left, the others to the right."""
    return rich_table(title, heads, rows, [place < text_columns for place in range(len(heads))])


def settings_table(section: str, keys: Iterable[Key]) -> Table:
    """Return a table of settings. The choices precede the meaning, and the methods with the option follow it."""
    rows = []
    for key in keys:
        choices = f"{key.type.lstrip(' |')}: " if "|" in key.type else ""
        methods = f" [{', '.join(key.methods)}]" if key.is_option and key.methods else ""
        default = "not set" if key.default in (None, "") else format_option(key.default)
        rows.append((key.switch, default, f"{choices}{key.meaning}{methods}"))
    return table(f"[{section}]", ("flag", "default", "meaning"), rows, text_columns=3)


def partition_table(counts: NDArray[np.int64], classes: Sequence[str], clients: Sequence[str] | None = None) -> Table:
    """Return clients × classes; with many classes, the number of classes of each client instead."""
    names = clients or range(len(counts))
    if len(classes) > MAX_CLASS_COLUMNS:
        heads = ["client", "samples", "classes", "largest class"]
        rows = [
            (name, row.sum(), np.count_nonzero(row), f"{classes[row.argmax()]} ({row.max()})")
            for name, row in zip(names, counts, strict=True)
        ]
    else:
        heads = ["client", "samples", *classes]
        rows = [(name, row.sum(), *(n or "·" for n in row)) for name, row in zip(names, counts, strict=True)]
    return table("", heads, rows)


def describe_partition(partition: Partition, dataset: Dataset, max_clients: int | None = None) -> Iterator[Table | str]:
    """Yield the table of clients × classes, unless there are more than *max_clients*, and lines about the clients."""
    counts = partition.counts(dataset.labels, len(dataset.classes))
    if max_clients is None or len(counts) <= max_clients:
        yield partition_table(counts, dataset.classes, partition.settings.get("values"))  # a column has named clients
        if partition.held_out:
            yield "held out, never trained on:"
            held_out = [np.bincount(dataset.labels[own], minlength=len(dataset.classes)) for own in partition.held_out]
            yield partition_table(np.stack(held_out), dataset.classes, partition.held_out_names)
    found = heterogeneity(counts)
    yield (
        f"{len(counts)} clients ({partition.kind}). Effective number of clients by size: "
        f"{found['effective_clients']:.1f}. Clients with one class only: {found['single_class']:.0f}. Mean distance "
        f"between a client's labels and all labels: {found['total_variation']:.2f} (total variation, 0 equal to 1 "
        f"disjoint), Jensen–Shannon {found['jensen_shannon']:.2f} bits."
    )
    if partition.shift is not None:
        levels = ", ".join(f"{partition.shift.strength * level:+.2f}" for level in partition.shift.levels)
        yield f"Feature shift ({partition.shift.kind}) of the clients' images, the held-out clients last: {levels}."
    if partition.moved:
        yield f"{len(partition.moved)} samples were moved from the largest client to reach the minimum size."


def run_facts(path: Path) -> dict[str, Any]:
    """Return a run as 'fedbm list --json' and 'fedbm show --json' print it."""
    try:
        run = read_run(path)
    except FedBMError as error:
        return {"run": path.name, "state": "unreadable", "reason": str(error), "path": str(path)}
    return {
        **describe_run(run),
        "state": "finished" if run.finished else "failed" if run.failure else "unfinished",
        "reason": run.failure or (f"config.toml {EDITED}" if run.edited else None),
        "edited": run.edited,
        "rounds_done": len(run.rounds),
        "started": (run.environment or {}).get("started"),
        "path": str(run.path),
    }


def result_table(runs: Sequence[RunView]) -> Table:
    """Return the test scores of finished runs at the chosen round, at the last round, and of the averaged model."""
    moments = {"best": "chosen on validation", "last": "last", "averaged": "averaged model"}
    rows = []
    for run in runs:
        for moment, words in moments.items():
            if (found := run.scores(moment)) is None:
                continue
            scores = [percent(found, name) for name in METRICS]
            name = run.label.replace(run.method, title_of(run.method), 1) if moment == "best" else ""
            rows.append((name, run.seed if moment == "best" else "", f"{found['round']}, {words}", *scores))
    heads = ("method", "seed", "round", "accuracy", "macro-F1", "AUC", "recall", "precision")
    return table("Test scores", heads, rows, text_columns=3)


def describe_reasons(found: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield one line per reason from (state, name, reason): "failed: A and 2 more: the reason"."""
    names: dict[tuple[str, str], list[str]] = {}
    for state, name, reason in found:
        names.setdefault((state, reason), []).append(name)
    for (state, reason), (first, *more) in names.items():
        yield f"{state}: {first}{f' and {len(more)} more' if more else ''}: {reason}"


def percent(scores: Any, name: str) -> str:
    """Return a score in percent, or "–" if there is none."""
    return "–" if scores is None or scores.get(name) is None else f"{100 * scores[name]:.1f} %"
