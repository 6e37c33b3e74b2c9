"""What the commands print: rich tables from plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from fedbm.cli.flags import format_default
from fedbm.data.catalog.download import BY_HAND, SUMS, find_download
from fedbm.data.catalog.lookup import CATALOG
from fedbm.data.dataset import Dataset, download_folder
from fedbm.data.inspection.inspect import Inspection, pairs_across_splits
from fedbm.data.partition import Partition, heterogeneity
from fedbm.language.concepts import ConceptDistribution
from fedbm.report.grouping import format_label
from fedbm.report.render.terminal import report_tables
from fedbm.report.runs_report import runs_report
from fedbm.runs.config import keys
from fedbm.runs.reader import RunView, read_runs

MOST_COLUMNS = 12


def table(title: str, heads: Iterable[str], rows: Iterable[Sequence[Any]], text_columns: int = 1) -> Table:
    """Text columns to the left, numbers to the right."""
    made = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for index, head in enumerate(heads):
        made.add_column(head, justify="left" if index < text_columns else "right", overflow="fold")
    for row in rows:
        made.add_row(*map(str, row))
    return made


def config_table() -> Table:
    """Every key: section, key, flag, type, default, meaning; whose option it is."""
    rows = []
    for key in keys():
        default = format_default(key) or "not set"
        of = f" [{', '.join(key.methods)}]" if key.is_option else ""
        rows.append((key.section, key.name, key.switch, key.type, default, key.meaning + of))
    return table("", ("section", "key", "flag", "type", "default", "meaning"), rows, text_columns=6)


def catalog_table() -> Table:
    rows = [(e.name, e.title, len(e.classes), f"{e.size} px", _where(e.name), e.licence) for e in CATALOG.values()]
    return table("", ("name", "what", "classes", "size", "images", "licence"), rows, text_columns=2)


def _where(name: str) -> str:
    if name in SUMS or name in BY_HAND:
        return "here" if find_download(name, download_folder()) else "get" if name in SUMS else "by hand"
    return "built in"


def dataset_table(data: Dataset) -> Table:
    counts = data.counts()
    rows = [(name, data.concepts[k], *counts[:, k], counts[:, k].sum()) for k, name in enumerate(data.classes)]
    rows.append(("all", "", *counts.sum(axis=1), counts.sum()))
    heads = ("class", "concept", "train", "val", "test", "all")
    return table(f"{data.name}: {len(data.labels)} images of {data.shape}", heads, rows, text_columns=2)


def inspection_words(seen: Inspection) -> list[str]:
    """Return what was measured, a line each, without the warnings."""
    data, pixels = seen.dataset, seen.pixels
    mean, std = (" ".join(f"{value:.3f}" for value in values) for values in (pixels.mean, pixels.std))
    sentences = [
        f"pixels: mean {mean}, standard deviation {std} over training (0 to 1); values {pixels.low} to {pixels.high}; "
        f"{100 * len(pixels.constant) / len(data.labels):.1f} % of images are of one colour",
    ]
    for pairs, kind in ((seen.exact, "equal"), (seen.near, "nearly equal")):
        crossing = len(pairs_across_splits(data.split, pairs))
        sentences.append(f"duplicates: {len(pairs)} pairs of {kind} images, {crossing} of them in different subsets")
    for column, values in seen.shared.items():
        known = np.unique(data.columns[column][data.columns[column] != ""])
        sentences.append(f"{column}: {len(values)} of {len(known)} values are in more than one subset")
    return sentences


def client_names(partition: Partition) -> Sequence[str] | None:
    """Return the clients' names if the partition has some, as one by column has."""
    return partition.settings.get("values")


def partition_table(counts: NDArray[np.int64], classes: Sequence[str], clients: Sequence[str] | None = None) -> Table:
    """Return clients × classes; with many classes, how many of them each client has."""
    names = clients or range(len(counts))
    if len(classes) > MOST_COLUMNS:
        heads = ["client", "samples", "classes", "largest class"]
        rows = [
            (name, row.sum(), np.count_nonzero(row), f"{classes[row.argmax()]} ({row.max()})")
            for name, row in zip(names, counts, strict=True)
        ]
    else:
        heads = ["client", "samples", *classes]
        rows = [(name, row.sum(), *(n or "·" for n in row)) for name, row in zip(names, counts, strict=True)]
    return table("", heads, rows)


def partition_words(partition: Partition, counts: NDArray[np.int64]) -> list[str]:
    """Return how different the clients are, and how many samples were moved to reach the minimum size."""
    found = heterogeneity(counts)
    sentences = [
        f"{len(counts)} clients ({partition.kind}), as uneven as {found['effective_clients']:.1f} of equal size; "
        f"clients with one class only: {found['single_class']:.0f}; label mixes differ from the whole by "
        f"{found['total_variation']:.2f} on average (total variation, 0 equal to 1 disjoint), "
        f"Jensen–Shannon {found['jensen_shannon']:.2f} bits."
    ]
    if partition.moved:
        sentences.append(
            f"{len(partition.moved)} samples were moved from the largest client to reach the minimum size."
        )
    return sentences


def result_table(runs: Sequence[RunView]) -> Table:
    """The test scores of finished runs: at the round chosen on validation, at the last, and of the averaged model."""
    moments = {"best": "chosen on validation", "last": "last", "averaged": "averaged model"}
    rows = []
    for run in runs:
        for moment, words in moments.items():
            if (found := run.scores(moment)) is None:
                continue
            scores = [percent(found, name) for name in ("accuracy", "f1", "auc", "recall", "precision")]
            name = format_label(run.label, run.method) if moment == "best" else ""
            rows.append((name, run.seed if moment == "best" else "", f"{found['round']}, {words}", *scores))
    heads = ("method", "seed", "round", "accuracy", "macro-F1", "AUC", "recall", "precision")
    return table("Test scores", heads, rows, text_columns=3)


def comparison_tables(folders: Sequence[Path]) -> list[Table]:
    """Return one table per data set and partition: test scores in percent, mean ± std over seeds."""
    return report_tables(runs_report(read_runs(folders)))


def similarity_table(concepts: ConceptDistribution) -> Table:
    """Cosines between class means; with many classes, each class's nearest other."""
    cosines = concepts.similarity()
    if len(concepts.classes) > MOST_COLUMNS:
        rows: list[tuple[str, ...]] = []
        for k, name in enumerate(concepts.classes):
            others = cosines[k].clone()
            others[k] = -1
            rows.append(
                (
                    name,
                    concepts.texts[k],
                    concepts.classes[int(others.argmax())],
                    f"{float(others.max()):.2f}",
                )
            )
        return table("", ("class", "concept", "nearest", "cosine"), rows, text_columns=3)
    rows = [(name, *(f"{float(c):.2f}" for c in cosines[k])) for k, name in enumerate(concepts.classes)]
    return table("Cosine between class means", ("class", *concepts.classes), rows)


def percent(scores: Any, name: str) -> str:
    return "–" if scores is None or scores.get(name) is None else f"{100 * scores[name]:.1f} %"
