"""Build the sections of a group of runs: figures with captions, or the reason why there are none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from fedbm.engine.round_record import RoundRecord
from fedbm.methods import title_of
from fedbm.report import tables
from fedbm.report.advice import judge_convergence
from fedbm.report.comparison_checks import check_comparison, collect_advice, find_inequalities
from fedbm.report.document import Block, Figure, Figures, Findings, Section, Text
from fedbm.report.experiment_figures import seeds_figure
from fedbm.report.figures.curves import Curve, Points, curve_plot
from fedbm.report.figures.dot_plot import DotRow, dot_plot
from fedbm.report.figures.generated_images import galleries
from fedbm.report.figures.matrices import MAX_CLASSES_WITH_NUMBERS, confusion, partition_bubbles, similarity
from fedbm.report.figures.scatter import scatter
from fedbm.report.format import mean_and_std
from fedbm.report.group import HEADLINE_METRIC, Group, GroupRow
from fedbm.report.privacy_sentences import client_losses
from fedbm.report.tables import Colours
from fedbm.runs.run_view import RunView
from fedbm.utils.metrics import label_mix_accuracy
from fedbm.utils.statistics import spread

MAX_PARTITIONS_SHOWN = 3
CONVERGENCE = (
    "Convergence, by validation macro-F1 over the last quarter of the rounds (change, and noise between rounds, in "
    "points)"
)
NO_PARTITION = "No run with clients has partition.json."
NO_FEATURES = "No run here has features; 'fedbm features RUN' computes them and updates the run's record."
CURVES = (  # name, metric, axis
    ("Macro-F1", "f1", "macro-F1 on the test images, %"),
    ("Accuracy", "accuracy", "accuracy on the test images, %"),
    ("Training loss", "loss", "training loss, mean over the selected clients"),
)


def group_sections(group: Group, name: str, colours: Colours) -> tuple[Section, ...]:
    """Return every section of a group, the results first."""
    return (
        results(group, name, colours),
        checks(group),
        *advice(group),
        training(group, colours),
        partition(group),
        client_by_client(group, colours),
        confusions(group),
        features(group),
        class_texts(group),
        generated_images(group),
        bytes_and_time(group, name, colours),
    )


def results(group: Group, name: str, colours: Colours) -> Section:
    note = (
        f"On the test images, in percent; mean ± standard deviation over n seeds. {tables.BOLD} Central training, with "
        "all data in one place, is an upper bound and not compared."
    )
    sentences = [f"No result, not counted: {run.label}, seed {run.seed}, {run.state}." for run in group.unfinished]
    if not group.rows:
        return Section("Results", "", (Text(("No run has finished.", *sentences), "absent"),))
    with_bold = not find_inequalities(group)
    blocks: list[Block] = [tables.metrics_table(group, f"{name}, test scores in %", colours, with_bold)]
    blocks += [table] if (table := tables.class_table(group, f"{name}, class by class", colours)) else []
    judged = [f"{row.name} {words}" for row in group.rows if (words := judge_convergence(row.runs))]
    sentences += [f"{CONVERGENCE}: {'; '.join(judged)}."] if judged else []
    sentences += [words for row in group.rows for words in (_hidden_options(row), _personal(row)) if words]
    for run in group.runs:
        sentences += [f"Privacy: {run.label}, seed {run.seed}, {sentence}." for sentence in client_losses(run)]
    blocks += [Text(tuple(sentences))] if sentences else []
    if len(group.runs) > 1:
        drawing = seeds_figure(group, colours, HEADLINE_METRIC)
        blocks += [Figures({"Seeds": [drawing]}), tables.seeds_table(group, f"{name} seeds")]
    return Section("Results", note, tuple(blocks))


def _hidden_options(row: GroupRow) -> str:
    """Return the method's options that are not the default, if the row's name is only the method's."""
    options = row.runs[0].summary.label.partition(" · ")[2] if row.runs[0].summary else ""
    shown = options and row.name == title_of(row.method)
    return f"Options of {row.name} that are not the default: {options}." if shown else ""


def _personal(row: GroupRow) -> str:
    """Return the accuracy of clients' own models. It is not in the table, because it is not a global score."""
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


def checks(group: Group) -> Section:
    findings = Findings(tuple(check_comparison(group)))
    return Section("Checks", "Checked from the files of the runs.", (findings,), detail=True)


def advice(group: Group) -> tuple[Section, ...]:
    found = tuple(collect_advice(group))
    note = "What the files of the runs show, and what may help."
    return (Section("Advice", note, (Findings(found),), detail=True),) if found else ()


def training(group: Group, colours: Colours) -> Section:
    panels = {}
    for name, metric, axis in CURVES:
        if curves := _curves(group, colours, metric):
            title = f"{name} by round for {', '.join(curve.label for curve in curves)}; {group.title}"
            panels[name] = [Figure(partial(curve_plot, curves, title, axis))]
    note = (
        "Line: mean over seeds; band: lowest to highest seed; thin and dashed: an unfinished run; dotted: the averaged "
        "model, mean over seeds. A dot is one seed’s round chosen on validation: the table’s first part is the mean of "
        "these dots. Methods minimise different losses: compare a loss only with itself."
    )
    return _figure_section("Training", note, panels, "No run here has recorded a round.")


def partition(group: Group) -> Section:
    every = group.partitions
    panels = {}
    for seed, found in list(every.items())[:MAX_PARTITIONS_SHOWN]:
        caption = f"Seed {seed}. Samples moved so that no client is too small: {len(found.moved)}"
        title = f"Samples per client and class, seed {seed}; {group.title}"
        panels[f"Seed {seed}"] = [Figure(partial(partition_bubbles, found.counts, found.classes, title), caption)]
    note = "Which client has which classes: a bubble’s area is its number of training images."
    note += f" Seeds shown: {len(panels)} of {len(every)}."
    return _figure_section("Clients and classes", note, panels, NO_PARTITION)


def client_by_client(group: Group, colours: Colours) -> Section:
    """Draw the accuracy in each client's own label mix, for central training in those of the seed's clients."""
    rows = []
    for row in group.rows:
        scores = [score for run in row.runs for score in _client_scores(run, group, row.central)]
        rows += [DotRow(row.name, colours[row.name], tuple(100 * score for score in scores))] if scores else []
    note = (
        "A dot is a client at a seed: the global model’s accuracy (for methods without one, the mean over all clients’ "
        "models) on test images in the client’s own label mix, at the round chosen on validation. The tick is their "
        "mean. If dots are far apart, the model serves some clients worse."
    )
    title, axis = f"Accuracy in every client's label mix; {group.title}", "accuracy in a client’s label mix, %"
    figures = [Figure(partial(dot_plot, rows, title, axis))] if rows else []
    return _figure_section("Client by client", note, {"Clients": figures}, NO_PARTITION)


def _client_scores(run: RunView, group: Group, central: bool) -> list[float]:
    found = group.partitions.get(run.seed) if central else run.client_partition
    if run.details is None or found is None:
        return []
    matrix = np.array(run.details.confusion.best)
    scores = (label_mix_accuracy(matrix, counts) for counts in found.counts)
    return [score for score in scores if score is not None]


def confusions(group: Group) -> Section:
    panels = {
        name: [figure for row in group.rows if (figure := _confusion(group, row, moment)) is not None]
        for moment, name in tables.BLOCKS.items()
    }
    note = (
        "A row is a true class with n test images, a column a predicted class. Numbers are percent of the row. Seeds "
        "are added up; for methods without a global model, all clients’ own models too. The shade follows the square "
        "root, so that rare confusions are visible."
    )
    return _figure_section("Confusions", note, panels, "No finished run has details.json.", wide=_many_classes(group))


def _confusion(group: Group, row: GroupRow, moment: str) -> Figure | None:
    details = [run.details for run in row.runs if run.details is not None]
    counted = [matrix for one in details if (matrix := getattr(one.confusion, moment))]
    if not counted:
        return None
    total = np.sum(counted, axis=0)
    title = f"Confusion matrix of {row.name}, {tables.BLOCKS[moment].lower()}; {group.title}"
    return Figure(partial(confusion, total, details[0].classes, title), row.name)


def features(group: Group) -> Section:
    """Draw t-SNE features of the first seed of each row that has them."""
    figures = []
    for row in group.rows:
        run = next((run for run in row.runs if run.features is not None), None)
        if run is not None and run.features is not None:
            title = f"t-SNE of test features of {row.name}, seed {run.seed}; {group.title}"
            figures.append(Figure(partial(scatter, run.features, title), f"{row.name}, seed {run.seed}"))
    note = (
        "t-SNE of test images’ features: a point is an image, colour and shape are its true class. A star is a class’s "
        "text, where the classifier is made of texts: images should gather around it (images and texts are each "
        "centred by their mean). Distances between far groups mean nothing."
    )
    return _figure_section("Features of test images", note, {"Features": figures}, NO_FEATURES, wide=False)


def class_texts(group: Group) -> Section:
    """Draw how similar the classes' texts are for each language model in use."""
    encoders = {
        json.dumps([run.details.encoder, run.details.similarity]): run.details
        for run in group.runs
        if run.details is not None and run.details.similarity is not None
    }
    figures = []
    for found in encoders.values():
        title = f"Class texts as {found.encoder} sees them; {group.title}"
        drawing = partial(similarity, np.array(found.similarity), found.classes, title)
        figures.append(Figure(drawing, f"Encoder: {found.encoder}"))
    note = "Cosine of two classes’ mean text embeddings. Deeply shaded pairs are hard to tell apart by text."
    why = "No run here has similarities of class texts."
    return _figure_section("Class texts", note, {"Similarity": figures}, why, wide=_many_classes(group))


def generated_images(group: Group) -> Section:
    note = (
        "What the generator draws for each class at the end, and after some rounds if they are on record. It has "
        "seen no image, only the global model and the classes’ texts. The images need not look real to be useful."
    )
    found = tuple(galleries(group))
    absent = Text(("No run here has generated images.",), "absent")
    return Section("Generated images", note if found else "", found or (absent,), detail=True)


def bytes_and_time(group: Group, name: str, colours: Colours) -> Section:
    note = (
        "Bytes leave the server (sent) and come back to it (received). Seconds are wall-clock time "
        "on the machine that ran it: compare them only if the machine was the same and idle."
    )
    costs = tables.cost_table(group, f"{name} cost", colours)
    targets = tables.target_table(group, f"{name} target", colours)
    filled = tuple(table for table in (costs, targets) if table is not None and table.rows)
    return Section("Bytes and time", note, filled, detail=True)


def _figure_section(
    heading: str, note: str, panels: Mapping[str, Sequence[Figure]], why: str, wide: bool = True
) -> Section:
    """Return a section of figures, or the reason why there are none. Without figures, no note explains them."""
    filled = {name: figures for name, figures in panels.items() if figures}
    first: Block = Figures(filled, wide) if filled else Text((why,), "absent")
    return Section(heading, note if filled else "", (first,), detail=True)


def _curves(group: Group, colours: Colours, metric: str) -> list[Curve]:
    """Return a curve per row, one for its averaged model, and one per unfinished run; without empty ones."""
    curves = []
    for row in group.rows:
        lines = tuple(line for run in row.runs if (line := _line(run, metric)))
        averages = tuple(line for run in row.runs if (line := _line(run, metric, averaged=True)))
        best = [run.summary.best for run in row.runs if run.summary is not None and metric != "loss"]
        marks = tuple((scores.round, 100 * getattr(scores, metric)) for scores in best)
        curves.append(Curve(row.name, colours[row.name], lines, marks))
        curves.append(Curve(f"{row.name}, averaged", colours[row.name], averages, panel=row.name, averaged=True))
    for run in group.unfinished:
        label = f"{run.label}, seed {run.seed}, unfinished"
        curves.append(Curve(label, colours[run.label], (_line(run, metric),), finished=False, panel=run.label))
    return [curve for curve in curves if any(curve.lines)]


def _line(run: RunView, metric: str, averaged: bool = False) -> Points:
    """Return (round, value) of a test metric in percent or of the training loss, for rounds that have it."""

    def value(record: RoundRecord) -> float | None:
        if metric == "loss":
            terms = [] if averaged else [term for term in record.loss.values() if term is not None]
            return sum(terms) if terms and len(terms) == len(record.loss) else None
        found = record.averaged if averaged else record
        share = found.test.get(metric) if found and found.test else None
        return None if share is None else 100 * share

    values = ((record.round, value(record)) for record in run.rounds)
    return tuple((number, found) for number, found in values if found is not None)


def _many_classes(group: Group) -> bool:
    return any(len(run.details.classes) > MAX_CLASSES_WITH_NUMBERS for run in group.runs if run.details is not None)
