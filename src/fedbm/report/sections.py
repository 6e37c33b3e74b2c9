"""A group of runs → the sections of its page: figures with captions, or the reason why there are none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedbm.errors import listed
from fedbm.report.figures.curves import (
    NARROW,
    WIDE,
    Curve,
    Points,
    confusion,
    partition_bubbles,
    similarity,
)
from fedbm.report.figures.matrices import WRITTEN_UP_TO
from fedbm.report.figures.panels import lines
from fedbm.report.grouping import Group, Row, display
from fedbm.report.tables import MOMENTS, moments_of
from fedbm.runs.reader import RunView

PARTITIONS_SHOWN = 3
CENTRAL_ALONE = "Central training has all images in one place."
BY_CLIENT = ("fedproto",)  # methods without a global model: every client's own is scored, and their matrices added up


@dataclass(frozen=True)
class Picture:
    """A drawing and, where it would be too small on a phone, a second one of the same for that."""

    svg: str
    caption: str = ""
    narrow: str = ""


@dataclass(frozen=True)
class Panel:
    name: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Section:
    """Several panels become a switch. No panel: *absent* says why."""

    heading: str
    note: str
    panels: tuple[Panel, ...]
    absent: str = ""
    wide: bool = False  # a picture takes the whole width


def training(group: Group, colours: Mapping[str, int]) -> Section:
    measures: dict[str, tuple[str, float, Callable[[Mapping[str, Any]], float | None], str]] = {
        "Macro-F1": ("macro-F1 on the test images, %", 100.0, _tested("f1"), "f1"),
        "Accuracy": ("accuracy on the test images, %", 100.0, _tested("accuracy"), "accuracy"),
        "Training loss": ("training loss, mean over the selected clients", 1.0, _loss, ""),
    }
    panels = []
    for name, (axis, scale, measure, metric) in measures.items():
        drawn = _curves(group, colours, measure, metric)
        if drawn:
            title = f"{name} by round for {_joined(curve.label for curve in drawn)}; {group.title}"
            wide, narrow = (lines(drawn, title, axis, scale, width) for width in (WIDE, NARROW))
            panels.append(Panel(name, (Picture(wide, narrow=narrow),)))
    note = (
        "Line: mean over seeds; band: lowest to highest seed. A dot is one seed’s round chosen on "
        "validation: the table’s upper half is the mean of these dots. "
        "Methods minimise different losses: compare a loss only with itself."
    )
    note += " Thin and dashed: a run that is not finished." if any(run.rounds for run in group.unfinished) else ""
    if "averaged" in moments_of(group):
        note += " Dotted: the averaged model, mean over seeds."
    note += _left_out([run for run in group.runs if not run.rounds], "rounds.jsonl")
    why = "" if panels else "No run here has recorded a round."
    return Section("Training", note, tuple(panels), why, wide=True)


def partition(group: Group) -> Section:
    dealt = group.dealt
    shown = dict(list(dealt.items())[: PARTITIONS_SHOWN if len(dealt) <= PARTITIONS_SHOWN else 1])
    panels = tuple(
        Panel(f"Seed {seed}", (_partition(group, seed, one, alone=len(shown) == 1),)) for seed, one in shown.items()
    )
    note = "Which client holds which classes: a bubble’s area is its number of training images."
    if len(shown) < len(dealt):
        note += f" The first of {len(dealt)} seeds is shown."
    clients = [run for run in group.runs if run.method != "central"]
    none = _without(clients, "partition.json") if clients else CENTRAL_ALONE
    why = "" if panels else none
    return Section("Clients and classes", note, panels, why, wide=True)


def mistakes(group: Group) -> Section:
    panels = []
    for moment, name in MOMENTS.items():
        pictures = tuple(picture for row in group.rows if (picture := _confusion(group, row, moment)) is not None)
        if pictures:
            panels.append(Panel(name, pictures))
    note = (
        "Truth down, prediction across, in percent of the true class; n test images. Seeds are added up"
        f"{_and_clients(group)}. The shade is the root of the share, so that rare confusions show."
    )
    finished = [run for row in group.rows for run in row.runs]
    note += _left_out([run for run in finished if run.details is None], "details.json")
    why = _without(finished, "details.json") if finished else "No run has finished."
    return Section("Confusions", note, tuple(panels), "" if panels else why, _many_classes(finished))


def class_texts(group: Group) -> tuple[Section, list[tuple[str, str]]]:
    """How alike the classes' texts are to each language model in use, and the texts themselves."""
    readers = {
        json.dumps([run.details["encoder"], run.details["similarity"]]): run.details
        for run in group.runs
        if run.details is not None and run.details.get("similarity") is not None
    }
    pictures = tuple(
        Picture(
            similarity(one["similarity"], one["classes"], f"Class texts as {one['encoder']} sees them; {group.title}"),
            f"Encoder: {one['encoder']}",
        )
        for one in readers.values()
    )
    texts = next((one for one in readers.values() if one.get("concepts")), None)
    known = any(run.details is not None for run in group.runs)
    why = "None of these methods reads the classes’ texts." if known else _without(group.runs, "details.json")
    section = Section(
        "Class texts",
        "Cosine of two classes’ mean text embeddings. Deeply shaded pairs are hard to tell apart by text.",
        (Panel("Similarity", pictures),) if pictures else (),
        "" if pictures else why,
        _many_classes(group.runs),
    )
    return section, list(zip(texts["classes"], texts["concepts"], strict=True)) if texts else []


def _tested(metric: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda record: (record.get("test") or {}).get(metric)


def _averaged(metric: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda record: ((record.get("averaged") or {}).get("test") or {}).get(metric)


def _loss(record: Mapping[str, Any]) -> float | None:
    terms = list((record.get("loss") or {}).values())
    return None if not terms or None in terms else sum(terms)


def _curves(
    group: Group,
    colours: Mapping[str, int],
    measure: Callable[[Mapping[str, Any]], float | None],
    metric: str,
) -> list[Curve]:
    drawn = []
    for row in group.rows:
        found = tuple(line for run in row.runs if (line := _line(run, measure)))
        chosen = tuple(
            (run.summary["best"]["round"], run.summary["best"][metric])
            for run in row.runs
            if metric and run.summary is not None
        )
        drawn.append(Curve(row.name, colours[row.name], found, chosen))
        if metric:
            averages = tuple(line for run in row.runs if (line := _line(run, _averaged(metric))))
            label = f"{row.name}, averaged"
            drawn.append(Curve(label, colours[row.name], averages, panel=row.name, averaged=True))
    for run in group.unfinished:
        name, line = display(run.label, run.method), _line(run, measure)
        label = f"{name}, seed {run.seed}, unfinished"
        drawn.append(Curve(label, colours[name], (line,), finished=False, panel=name))
    return [curve for curve in drawn if any(curve.lines)]


def _line(run: RunView, measure: Callable[[Mapping[str, Any]], float | None]) -> Points:
    values = ((record["round"], measure(record)) for record in run.rounds)
    return tuple((number, value) for number, value in values if value is not None)


def _partition(group: Group, seed: int, dealt: Mapping[str, Any], alone: bool) -> Picture:
    title = f"Samples per client and class, seed {seed}; {group.title}"
    moved = len(dealt.get("moved") or ())
    guard = f"{moved} sample{'s' * (moved != 1)} moved so that no client is too small" if moved else ""
    caption = ": ".join(filter(None, [f"Seed {seed}" if alone else "", guard]))
    return Picture(partition_bubbles(dealt["counts"], dealt["classes"], title), caption)


def _confusion(group: Group, row: Row, moment: str) -> Picture | None:
    counted = [run.details for run in row.runs if run.details is not None]
    if not counted:
        return None
    matrices = [one["confusion"][moment] for one in counted]
    total = [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]
    title = f"Confusion matrix of {row.name}, {MOMENTS[moment].lower()}; {group.title}"
    return Picture(confusion(total, counted[0]["classes"], title), row.name)


def _many_classes(runs: Sequence[RunView]) -> bool:
    return any(len(run.details["classes"]) > WRITTEN_UP_TO for run in runs if run.details is not None)


def _and_clients(group: Group) -> str:
    names = without_global_model(group)
    return f"; of {names} clients’ own models too, so that n counts an image once for each" if names else ""


def without_global_model(group: Group) -> str:
    """The names of the rows of which every client's own model is scored; "": none."""
    names = [row.name for row in group.rows if row.method in BY_CLIENT]
    return listed(names, "and") if names else ""


def _left_out(runs: Sequence[RunView], name: str) -> str:
    return f" Left out, for want of {name}: {_joined(run.id for run in runs)}." if runs else ""


def _without(runs: Sequence[RunView], name: str) -> str:
    if len(runs) == 1:
        return f"The run {runs[0].id} holds no {name}."
    return f"None of these {len(runs)} runs holds a {name}."


def _joined(names: Iterable[str]) -> str:
    return ", ".join(names)
