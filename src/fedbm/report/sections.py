"""A group of runs → the sections of its page: figures with captions, or the reason why there are none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from fedbm.engine.records import RoundRecord
from fedbm.errors import join_words
from fedbm.report.comparison_checks import findings
from fedbm.report.cost_section import bytes_and_time
from fedbm.report.figures.curves import Curve, Points, curve_plot
from fedbm.report.figures.generated import galleries
from fedbm.report.figures.lanes import Dots, dots
from fedbm.report.figures.matrices import WRITTEN_UP_TO, confusion, partition_bubbles, similarity
from fedbm.report.figures.scatter import scatter
from fedbm.report.format import mean_and_std
from fedbm.report.group_tables import metrics_table, seeds_table
from fedbm.report.grouping import Group, MethodRuns, display
from fedbm.report.model import Block, Figure, Figures, Findings, Gallery, Pairs, Section, Text, figure_section
from fedbm.report.privacy import largest_losses
from fedbm.report.tables import BLOCKS, Colours, averaged
from fedbm.runs.reader import RunView
from fedbm.utils.metrics import label_mix_accuracy
from fedbm.utils.statistics import spread

PARTITIONS_SHOWN = 3
CENTRAL_ALONE = "Central training has all images in one place."
COMPUTE_FEATURES = "'fedbm features RUN' computes them and renews the run's record."
STARS = (
    "A star is a class’s text, where the classifier is made of texts: images should gather around it (images and texts "
    "are each centred by their mean). "
)
Measure = Callable[[RoundRecord], float | None]


def group_sections(group: Group, name: str, colours: Colours, dots_of_seeds: bool = False) -> tuple[Section, ...]:
    """Return every section of a group; *dots_of_seeds*: draw every seed's score, unless it is drawn elsewhere."""
    return (
        results(group, name, colours, dots_of_seeds),
        checks(group),
        training(group, colours),
        partition(group),
        client_by_client(group, colours),
        confusions(group),
        features(group),
        class_texts(group),
        generated_images(group),
        bytes_and_time(group, name, colours),
    )


def results(group: Group, name: str, colours: Colours, dots_of_seeds: bool) -> Section:
    central = any(row.central for row in group.rows)
    note = (
        "On the test images, in percent; mean ± standard deviation over n seeds. Bold: the highest mean of the column, "
        "among rows with the most seeds"
    )
    note += "; Central, with all data in one place, is an upper bound and not compared." if central else "."
    blocks: list[Block] = []
    if group.rows:
        blocks.append(metrics_table(group, f"{name}, test scores in %", colours))
    else:
        blocks.append(Text(("No run has finished, so there is no result to show.",), "absent"))
    said = [
        f"No result, not counted above: {display(run.label, run.method)}, seed {run.seed}, {run.state}."
        for run in group.unfinished
    ]
    said += [words for row in group.rows if (words := _personal(row))]
    said += [f"Privacy: {sentence}." for sentence in largest_losses(group)]
    blocks += [Text(tuple(said))] if said else []
    if dots_of_seeds and sum(len(row.runs) for row in group.rows) > 1:
        blocks.append(Figures({"Seeds": [_seed_dots(group, colours)]}))
    if sum(len(row.runs) for row in group.rows) > 1:
        blocks.append(seeds_table(group, f"{name} seeds"))
    return Section("Results", note, tuple(blocks))


def _personal(row: MethodRuns) -> str:
    """Return the accuracy of clients' own models: another question than the global scores, so not in the table."""
    chosen = [
        record.personal.accuracy
        for run in row.runs
        for record in run.rounds
        if run.summary and record.personal and record.round == run.summary.best.round
    ]
    if not chosen:
        return ""
    score = mean_and_std(spread(chosen))
    return f"Personal, not in the table: {row.name}: {score} accuracy of clients’ own models in their own label mix."


def _seed_dots(group: Group, colours: Colours) -> Figure:
    rows = [
        Dots(row.name, colours[row.name], tuple(100 * value for value in row.by_seed("best", "f1").values()))
        for row in group.rows
    ]
    title = f"Macro-F1 of every seed at the round chosen on validation; {group.title}"
    return Figure(partial(dots, rows, title, "macro-F1 of every seed, %"))


def checks(group: Group) -> Section:
    heading = "Is it a fair comparison?" if len(group.rows) > 1 else "Checks"
    return Section(heading, "Checked from the files of the runs.", (Findings(tuple(findings(group))),), detail=True)


def training(group: Group, colours: Colours) -> Section:
    measures: dict[str, tuple[str, float, Measure, str]] = {
        "Macro-F1": ("macro-F1 on the test images, %", 100.0, _tested("f1"), "f1"),
        "Accuracy": ("accuracy on the test images, %", 100.0, _tested("accuracy"), "accuracy"),
        "Training loss": ("training loss, mean over the selected clients", 1.0, _loss, ""),
    }
    panels = {}
    for name, (axis, scale, measure, metric) in measures.items():
        curves = _curves(group, colours, measure, metric)
        if curves:
            title = f"{name} by round for {', '.join(curve.label for curve in curves)}; {group.title}"
            panels[name] = [Figure(partial(curve_plot, curves, title, axis, scale))]
    note = (
        "Line: mean over seeds; band: lowest to highest seed. A dot is one seed’s round chosen on "
        "validation: the table’s first part is the mean of these dots. "
        "Methods minimise different losses: compare a loss only with itself."
    )
    note += " Thin and dashed: a run that is not finished." if any(run.rounds for run in group.unfinished) else ""
    note += " Dotted: the averaged model, mean over seeds." if averaged(group) else ""
    note += _left_out([run for run in group.runs if not run.rounds], "rounds.jsonl")
    return figure_section("Training", note, Figures(panels), "No run here has recorded a round.")


def partition(group: Group) -> Section:
    every = group.partitions
    shown = dict(list(every.items())[: PARTITIONS_SHOWN if len(every) <= PARTITIONS_SHOWN else 1])
    panels = {}
    for seed, found in shown.items():
        moved = len(found.moved or ())
        guard = f"{moved} sample{'s' * (moved != 1)} moved so that no client is too small" if moved else ""
        caption = ": ".join(filter(None, [f"Seed {seed}" if len(shown) == 1 else "", guard]))
        title = f"Samples per client and class, seed {seed}; {group.title}"
        panels[f"Seed {seed}"] = [Figure(partial(partition_bubbles, found.counts, found.classes, title), caption)]
    note = "Which client has which classes: a bubble’s area is its number of training images."
    note += f" The first of {len(every)} seeds is shown." if len(shown) < len(every) else ""
    runs = [run for run in group.runs if run.client_partition is None]
    why = _without(runs or group.runs, "partition.json") if group.clients else CENTRAL_ALONE
    return figure_section("Clients and classes", note, Figures(panels), why)


def client_by_client(group: Group, colours: Colours) -> Section:
    """Draw accuracy in each client's own label mix. Central training has no clients: those of its seed count."""
    rows = []
    for row in group.rows:
        scores = [score for run in row.runs for score in _client_scores(run, group, row.central)]
        rows += [Dots(row.name, colours[row.name], tuple(100 * score for score in scores))] if scores else []
    names = _without_global_model(group)
    instead = f" (for {names}, without one: the mean over all clients’ models)" if names else ""
    note = (
        f"A dot is a client at a seed: the global model’s accuracy{instead} on test images in the client’s own label "
        "mix, at the round chosen on validation. The tick is their mean. A wide row leaves some clients behind."
    )
    title, axis = f"Accuracy in every client's label mix; {group.title}", "accuracy in a client’s label mix, %"
    why = "No run with clients has details.json and partition.json." if group.clients else CENTRAL_ALONE
    panels = {"Clients": [Figure(partial(dots, rows, title, axis))]} if rows else {}
    return figure_section("Client by client", note, Figures(panels), why)


def _client_scores(run: RunView, group: Group, central: bool) -> list[float]:
    found = group.partitions.get(run.seed) if central else run.client_partition
    if run.details is None or found is None:
        return []
    matrix = np.array(run.details.confusion.best)
    scores = (label_mix_accuracy(matrix, counts) for counts in found.counts)
    return [score for score in scores if score is not None]


def confusions(group: Group) -> Section:
    panels = {}
    for moment, name in BLOCKS.items():
        figures = [figure for row in group.rows if (figure := _confusion(group, row, moment)) is not None]
        if figures:
            panels[name] = figures
    names = _without_global_model(group)
    clients = f"; for {names}, clients’ own models too, so that n counts an image once for each" if names else ""
    note = (
        "Truth down, prediction across, in percent of the true class; n test images. Seeds are added up"
        f"{clients}. The shade is the root of the share, so that rare confusions show."
    )
    finished = [run for row in group.rows for run in row.runs]
    note += _left_out([run for run in finished if run.details is None], "details.json")
    why = _without(finished, "details.json") if finished else "No run has finished."
    return figure_section("Confusions", note, Figures(panels, wide=_many_classes(finished)), why)


def _confusion(group: Group, row: MethodRuns, moment: str) -> Figure | None:
    details = [run.details for run in row.runs if run.details is not None]
    counted = [matrix for one in details if (matrix := getattr(one.confusion, moment))]
    if not counted:
        return None
    total = np.sum(counted, axis=0)
    title = f"Confusion matrix of {row.name}, {BLOCKS[moment].lower()}; {group.title}"
    return Figure(partial(confusion, total, details[0].classes, title), row.name)


def features(group: Group) -> Section:
    """Draw t-SNE features of the first seed of each row that has them; name the rows that have none."""
    figures, missing, stars = [], [], False
    for row in group.rows:
        run = next((run for run in row.runs if run.features is not None), None)
        if run is not None and run.features is not None:
            title = f"t-SNE of test features of {row.name}, seed {run.seed}; {group.title}"
            figures.append(Figure(partial(scatter, run.features, title), f"{row.name}, seed {run.seed}"))
            stars |= bool(run.features.anchors)
        else:
            missing.append(row.name)
    note = "t-SNE of test images’ features: a point is an image, colour and shape are its true class. "
    note += STARS if stars else ""
    note += "Distances between far groups mean nothing."
    note += f" No run of {join_words(missing, 'and')} has features; {COMPUTE_FEATURES}" if figures and missing else ""
    panels = {"Features": figures} if figures else {}
    why = f"No run here has features; {COMPUTE_FEATURES}"
    return figure_section("Features of test images", note, Figures(panels, wide=False), why)


def class_texts(group: Group) -> Section:
    """Draw how similar the classes' texts are to each language model in use, and list the texts."""
    readers = {
        json.dumps([run.details.encoder, run.details.similarity]): run.details
        for run in group.runs
        if run.details is not None and run.details.similarity is not None
    }
    figures = []
    for found in readers.values():
        title = f"Class texts as {found.encoder} sees them; {group.title}"
        drawing = partial(similarity, np.array(found.similarity), found.classes, title)
        figures.append(Figure(drawing, f"Encoder: {found.encoder}"))
    note = "Cosine of two classes’ mean text embeddings. Deeply shaded pairs are hard to tell apart by text."
    known = any(run.details is not None for run in group.runs)
    why = "None of these methods reads the classes’ texts." if known else _without(group.runs, "details.json")
    texts = next((found for found in readers.values() if found.concepts), None)
    pairs = tuple(zip(texts.classes, texts.concepts or (), strict=True)) if texts else ()
    more = (Pairs(pairs, "The text of each class"),) if pairs else ()
    panels = {"Similarity": figures} if figures else {}
    return figure_section("Class texts", note, Figures(panels, wide=_many_classes(group.runs)), why, more)


def generated_images(group: Group) -> Section:
    found, why = galleries(group)
    note = (
        "What the generator draws for each class at the end, and after some rounds where that is on record. It has "
        "seen no image, only the global model and the classes’ texts; the images need not look real to be of use."
    )
    blocks: tuple[Gallery | Text, ...] = tuple(found) or (Text((why,), "absent"),)
    return Section("Generated images", note, blocks, detail=True)


def _tested(metric: str) -> Measure:
    return lambda record: (record.test or {}).get(metric)


def _averaged(metric: str) -> Measure:
    return lambda record: record.averaged.test.get(metric) if record.averaged else None


def _loss(record: RoundRecord) -> float | None:
    terms = [term for term in record.loss.values() if term is not None]
    return sum(terms) if terms and len(terms) == len(record.loss) else None


def _curves(group: Group, colours: Colours, measure: Measure, metric: str) -> list[Curve]:
    curves = []
    for row in group.rows:
        lines = tuple(line for run in row.runs if (line := _line(run, measure)))
        marks = tuple(
            (run.summary.best.round, getattr(run.summary.best, metric))
            for run in row.runs
            if metric and run.summary is not None
        )
        curves.append(Curve(row.name, colours[row.name], lines, marks))
        if metric:
            averages = tuple(line for run in row.runs if (line := _line(run, _averaged(metric))))
            label = f"{row.name}, averaged"
            curves.append(Curve(label, colours[row.name], averages, panel=row.name, averaged=True))
    for run in group.unfinished:
        name, line = display(run.label, run.method), _line(run, measure)
        label = f"{name}, seed {run.seed}, unfinished"
        curves.append(Curve(label, colours[name], (line,), finished=False, panel=name))
    return [curve for curve in curves if any(curve.lines)]


def _line(run: RunView, measure: Measure) -> Points:
    values = ((record.round, measure(record)) for record in run.rounds)
    return tuple((number, value) for number, value in values if value is not None)


def _many_classes(runs: Sequence[RunView]) -> bool:
    return any(len(run.details.classes) > WRITTEN_UP_TO for run in runs if run.details is not None)


def _without_global_model(group: Group) -> str:
    """Return the names of the rows in which every client's own model is scored; "" if none."""
    names = [row.name for row in group.rows if not row.global_model]
    return join_words(names, "and") if names else ""


def _left_out(runs: Iterable[RunView], name: str) -> str:
    ids = ", ".join(run.id for run in runs)
    return f" Left out, for want of {name}: {ids}." if ids else ""


def _without(runs: Sequence[RunView], name: str) -> str:
    if len(runs) == 1:
        return f"The run {runs[0].id} has no {name}."
    return f"None of these {len(runs)} runs has a {name}."
