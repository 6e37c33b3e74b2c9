"""Build the report of experiments: an opening table per data set, a part per experiment, and numbered notes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedbm.experiments.outcomes import Outcome, list_unrecorded
from fedbm.experiments.spec import find_experiment, paper_experiments, shipped_experiments
from fedbm.experiments.trials import Trial, trials
from fedbm.report import experiment_figures, experiment_tables, tables
from fedbm.report.comparison import compare_outcome, data_title, setting_words
from fedbm.report.contrasts import pool_cells
from fedbm.report.document import Block, Figures, Finding, Findings, Fold, Note, Part, Report, Section, Text
from fedbm.report.experiment_tables import Notes
from fedbm.report.figures.palette import assign_colours
from fedbm.report.glossary import PAPER, TERMS
from fedbm.report.group import MOMENTS, Contrast, Group, GroupRow
from fedbm.report.runs_report import provenance
from fedbm.report.sections import group_sections, training
from fedbm.report.source_scores import source_sections
from fedbm.report.verdicts import plain_verdict, planned_verdict, verdicts
from fedbm.runs.run_view import RunView
from fedbm.utils.text import format_count

TITLE = "FedBM: the paper’s tables and figures, measured again"
Found = Sequence[tuple[Outcome, Sequence[Group]]]
AS_PLANNED = "Differences as planned"
CONTRASTS = (
    "Differences in macro-F1 at the planned endpoint: first row minus second row. A small dot is a seed. The bar is "
    "the mean with its 95 % interval, not corrected for the number of differences."
)
EXPLORATORY = (
    "Exploratory: the same differences in points by other scores, with 95 % intervals over seeds; the first also "
    "covers the choice of test images, by a bootstrap of the confusion matrices. Averaged: of the averaged model after "
    "the last round. Then come the averaged model’s macro-F1 after each quarter of the rounds, and the scores of each "
    "class at the planned endpoint. Nothing is corrected for the number of scores. A dash: a seed has no score."
)
POOLED = (
    "This table is exploratory: it was not planned and is not a test. Differences of one data set at one seed share "
    "images and random numbers. They form a cluster, which counts once with its mean. The t-interval over clusters "
    "does not cover the choice of test images."
)
SUMMARY = (
    "Test scores in percent at the round chosen on validation, mean ± standard deviation over seeds. Bold: highest "
    "mean, if all rows have the same seeds; tinted: the method under study. Macro-F1 counts rare classes as much as "
    "common ones."
)
DECIDED = "If a planned comparison above asks the same question, its result counts, not this one."
MISSING = "No number above counts these runs, except where this is stated. A row without seeds has no finished run."
SCORES = tuple(key for metric in tables.SHOWN for key in (metric, f"{metric}_std"))
FIELDS = (
    *("experiment", "cell", "row", "round", "n"),
    *(*SCORES, *(f"paper_{key}" for key in SCORES), *(f"{metric}_minus_paper" for metric in tables.SHOWN)),
    *("lead", "lead_minus_row_f1", "low", "high", "p", "p_holm", "p_sign_flip", "effect_size"),
    *("notes", "missing", "missing_in_words", "command"),
)


def experiments_report(
    outcomes: Sequence[Outcome], title: str = "", elsewhere: Collection[str] | None = None
) -> Report:
    """Return the report of these experiments.

    By default, the *title* is the experiment's own. Several experiments have TITLE for those of the paper, and the
    titles of the others. If the experiments on record *elsewhere* are known, the report lists the other shipped ones
    as not run.
    """
    planned_first = sorted(outcomes, key=lambda outcome: not outcome.confirmatory)
    found: Found = [(outcome, compare_outcome(outcome)) for outcome in planned_first]
    unrecorded = [] if elsewhere is None else list_unrecorded(outcomes, elsewhere)
    not_run = tuple(Finding(False, _describe_unrecorded(one), code=one.command) for one in unrecorded)
    notes = _number_notes(found)
    parts = tuple(_part(outcome, some, notes) for outcome, some in found)
    runs: dict[str, RunView] = {}
    for run in (run for _, some in found for comparison in some for run in comparison.runs):
        runs.setdefault(run.id, run)  # a run that experiments share has the name that the first gives it
    names = {outcome.name for outcome in outcomes}
    shared = shipped_experiments() if len(names) > 1 and names & set(paper_experiments()) else []
    own = [outcome.title for outcome in outcomes if outcome.name not in shared]
    return Report(
        title or "; ".join([TITLE] * bool(shared) + own),
        (*_confirmatory(found), *_summaries(found), *_overview(found), *_pooled(found)),
        parts,
        (Section("Not run", "Experiments without a record.", (Findings(not_run),)),) if not_run else (),
        tuple(Note(number, *words) for words, number in notes.items()),
        TERMS + PAPER * any(row.published for _, some in found for c in some for row in c.rows),
        tuple(map(provenance, runs.values())),
        tuple(_data(found, unrecorded)),
        FIELDS,
    )


def _number_notes(found: Found) -> Notes:
    """Number every note once, in the order in which the report refers to them."""
    notes = dict.fromkeys(
        words
        for outcome, some in found
        for words in (
            *(("", note) for note in notes_of(outcome)),
            *(one for comparison in some for row in comparison.rows for one in row.deviations),
        )
    )
    return {words: number for number, words in enumerate(notes, 1)}


def _describe_unrecorded(outcome: Outcome) -> str:
    runs = format_count(len(set(_run_names(outcome).values())), "run")
    return f"{outcome.title.rstrip('?')}: {outcome.shows}. {runs} not run."


def notes_of(outcome: Outcome) -> tuple[str, ...]:
    """Return the experiment's notes, for shipped experiments from their file."""
    return find_experiment(outcome.name).notes if outcome.name in shipped_experiments() else outcome.notes


# --- opening --------------------------------------------------------------------------------------------------------


def _confirmatory(found: Found) -> list[Section]:
    """Return a section per confirmatory experiment: its verdict and differences, or why its scores are withheld."""
    sections = []
    for outcome, some in found:
        if outcome.confirmatory:
            sentences = (f"{outcome.withheld}.",) if outcome.withheld else planned_verdict(some)
            blocks = (Text(sentences, "verdict"), *_drawn_contrasts(some))
            heading = outcome.title if len(found) > 1 else AS_PLANNED
            sections.append(Section(heading, f"Planned before its runs. {CONTRASTS}", blocks))
    return sections


def _drawn_contrasts(found: Sequence[Group]) -> list[Block]:
    figures = experiment_figures.contrast_figure(found)
    return [Figures({"Differences in macro-F1 at the planned endpoint, by seed": figures})] if figures else []


def _summaries(found: Found) -> list[Section]:
    """Return a section per data set: a verdict in plain words and one table of all comparisons of methods on it."""
    by_data: dict[str, list[tuple[Outcome, Group]]] = {}
    for outcome, some in found:
        if _detail(outcome) == "all" and not outcome.analysis:
            for comparison in some:
                if len({row.method for row in comparison.rows if row.runs}) > 1:
                    by_data.setdefault(comparison.data, []).append((outcome, comparison))
    sections: list[Section] = []
    for data, comparisons in by_data.items():
        several = len({outcome.name for outcome, _ in comparisons}) > 1
        cells = [
            (", ".join([outcome.title] * several + setting_words(outcome, comparison.at)), comparison)
            for outcome, comparison in comparisons
        ]
        colours = assign_colours(row.name for _, comparison in cells for row in comparison.rows)
        table = experiment_tables.summary_table(cells, f"{data_title(data)} summary", colours)
        note = "" if sections else SUMMARY
        sentences = [f"{words}: " * (len(cells) > 1) + " ".join(plain_verdict(cell)) for words, cell in cells]
        sentences += [DECIDED] if any(outcome.confirmatory for outcome, _ in found) else []
        sections.append(Section(data_title(data), note, (Text(tuple(sentences), "verdict"), table)))
    return sections


def _pooled(found: Found) -> list[Section]:
    """Return differences pooled over the cells, marked exploratory; [] if no difference has several cells."""
    cells = [c for outcome, some in found if _detail(outcome) == "all" and not outcome.analysis for c in some]
    pooled = pool_cells(cells)
    table = experiment_tables.pooled_table(pooled, "Differences over all cells")
    return [Section("Over all cells (exploratory)", "", (Text((POOLED,), "more"), table))] if pooled else []


def _overview(found: Found) -> list[Block]:
    """Draw the leading row's differences in all tables; figures and searches have their own drawings."""
    comparisons = [comparison for outcome, some in found if _detail(outcome) != "none" for comparison in some]
    figure = experiment_figures.overview_figure(comparisons)
    return [Figures({"Overview": [figure]})] if figure else []


# --- one experiment -------------------------------------------------------------------------------------------------


def _part(outcome: Outcome, found: Sequence[Group], notes: Notes) -> Part:
    colours = assign_colours(outcome.rows)
    runs = _run_names(outcome)
    finished = len({runs[result.key] for result in outcome.results if result.run is not None})
    count = f"{finished} of {format_count(len(set(runs.values())), 'run')}"
    opening = f"{outcome.shows[0].upper()}{outcome.shows[1:]}. " if outcome.shows else ""
    blocks: list[Block] = [Text((f"{opening}{count} finished.",), "more", outcome.command)]
    summary = () if outcome.confirmatory else planned_verdict(found)
    if not outcome.confirmatory and (drawn := _drawn_contrasts(found)):
        blocks.append(Section(AS_PLANNED, CONTRASTS, (Text(summary, "verdict"), *drawn), whole=True))
    if outcome.figure and (figures := experiment_figures.axis_figures(outcome, found, colours)):
        note = "Test scores at the round chosen on validation. Line: mean over seeds; band: lowest to highest seed."
        blocks.append(Section(f"Scores by {outcome.figure}", note, (Figures({"Axis": figures}),), detail=True))
    if outcome.search:
        note = (
            "Accuracy + macro-F1 on the validation set, mean ± std over seeds. The test set has no influence. Nothing "
            "is chosen while a run of a combination is missing."
        )
        table = experiment_tables.search_table(outcome, f"{outcome.title}: search")
        blocks.append(Section("Chosen on validation", note, (table,)))
    blocks += [_cell(outcome, comparison, colours, notes) for comparison in found if comparison.lead]
    if missing := _missing(found, runs):
        blocks.append(Section("What is missing", MISSING, (Findings(tuple(missing)),)))
    numbers = tuple(notes["", note] for note in notes_of(outcome))
    return Part(outcome.title, tuple(blocks), count, summary, notes=numbers)


def _cell(outcome: Outcome, comparison: Group, colours: Mapping[str, int], notes: Notes) -> Section:
    """Return verdicts, drawings, the table, and details of the runs behind a fold."""
    detail, name = _detail(outcome), f"{outcome.title}: {comparison.title}"
    blocks: list[Block] = []
    if not outcome.search and (sentences := tuple(verdicts(comparison))):
        blocks.append(Text(sentences, "verdict"))
    if detail != "none" and comparison.contrasts:
        if any(one.found for one in comparison.contrasts):
            blocks.append(experiment_tables.contrast_table(comparison, f"{name}, differences"))
        if outcome.confirmatory:
            blocks.append(Text((EXPLORATORY,), "more"))
            others = experiment_tables.other_scores_table(comparison, f"{name}, other scores")
            by_round = experiment_tables.rounds_table(comparison, f"{name}, rounds")
            blocks += [table for table in (others, by_round) if table.columns]
            classes = tables.class_table(comparison, f"{name}, classes", colours, comparison.moment)
            blocks += [classes] if classes else []
        if comparison.ladder and (ladder := experiment_figures.ladder_figure(comparison, colours)):
            blocks.append(Figures({"Endpoint": [ladder]}))
            blocks.append(experiment_tables.ladder_table(comparison, f"{name}, endpoint", colours))
    elif detail != "none":
        blocks.append(Figures({"Scores": experiment_figures.cell_figures(comparison, colours)}, wide=False))
    blocks.append(experiment_tables.results_table(comparison, name, colours, notes))
    finished = comparison.finished
    blocks += source_sections(finished, name, colours)
    if finished.clients:  # central training alone is the same in every cell
        cost = tables.cost_table(finished, f"{name} cost", colours)
        if detail == "all":
            words = "Curves, clients, confusions, features, bytes and time"
            blocks.append(Fold(words, group_sections(finished, name, colours)))
        elif detail == "curves":
            blocks.append(Fold("Curves, bytes and time", (training(finished, colours), cost)))
        else:
            blocks.append(Fold("Bytes and time", (cost,)))
    return Section(comparison.title, "", tuple(blocks), whole=True)


def _detail(outcome: Outcome) -> str:
    """Return how much detail a cell has: everything in a comparison, curves in an ablation, else none."""
    if outcome.figure or outcome.search:
        return "none"
    return "all" if outcome.paper in ("", "comparison") else "curves"


def _run_names(outcome: Outcome) -> dict[Any, str]:
    """Return a name for the run of every result, equal for cells that share a run.

    The name is the run's settings or, for an experiment that is not shipped, its id.
    """
    names = {r.key: (r.run.id if r.run else r.id) or repr(r.key) for r in outcome.results}
    if outcome.name in shipped_experiments():
        seeds = sorted({result.seed for result in outcome.results})
        names |= {t.key: repr(t.config) for t in trials(find_experiment(outcome.name), seeds, {}) if t.key in names}
    return names


def _missing(found: Sequence[Group], runs: Mapping[Any, str]) -> list[Finding]:
    """Return each reason once, with the number of runs and their cells, rows and seeds."""
    reasons: dict[str, dict[str, list[Trial]]] = {}
    seen: set[str] = set()
    for comparison, result in [(cell, one) for cell in found for row in cell.rows for one in row.missing]:
        if runs[result.key] not in seen:
            seen.add(runs[result.key])
            reasons.setdefault(_reason(result), {}).setdefault(comparison.title, []).append(result)
    rows = {group.title: group.rows for group in found}
    findings = []
    for reason, cells in reasons.items():
        items = tuple(f"{title}: {_rows_and_seeds(missing, rows[title])}" for title, missing in cells.items())
        sentence = f"{format_count(sum(map(len, cells.values())), 'run')} {reason}."
        findings.append(Finding(False, sentence, items))
    return findings


def _reason(result: Trial) -> str:
    state = result.state if result.last is None else f"{result.state}, but counted at the planned endpoint"
    return f"{state}: {result.why}" if result.why else state


def _rows_and_seeds(missing: Sequence[Trial], rows: Sequence[GroupRow]) -> str:
    """Return missing results as 'FedAvg (seeds 0, 1), FedBM'. A row without a finished run has no seeds."""
    seeds: dict[str, list[str]] = {}
    for result in missing:
        seeds.setdefault(result.row, []).append(str(result.seed))
    whole = {row.name for row in rows if len(seeds.get(row.name, ())) == len(row.missing) and not row.runs}
    if len(whole) == len(rows) > 1:
        return "all rows"
    return ", ".join(
        name if name in whole else f"{name} (seed{'s' * (len(some) > 1)} {', '.join(some)})"
        for name, some in seeds.items()
    )


# --- numbers for programs --------------------------------------------------------------------------------------------


def _data(found: Found, unrecorded: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return a line per experiment, cell, row and moment, and per stated contrast; missing rows have no numbers.

    Scores are shares of 1.
    """
    lines: list[dict[str, Any]] = []
    for outcome, comparisons in found:
        with_average = any(tables.has_averaged_model(comparison) for comparison in comparisons)
        moments = [moment for moment in MOMENTS if with_average or not moment.startswith("averaged")]
        for comparison in comparisons:
            lines += [_row(outcome, comparison, row, moment) for row in comparison.rows for moment in moments]
            lines += [_contrast(outcome, comparison, contrast) for contrast in comparison.contrasts]
    lines += [{"experiment": one.name, "missing": "not run", "command": one.command} for one in unrecorded]
    return lines


def _row(outcome: Outcome, comparison: Group, row: GroupRow, moment: str) -> dict[str, Any]:
    values: dict[str, Any] = {"experiment": outcome.name, "cell": comparison.title, "row": row.name, "round": moment}
    values |= {"n": len(row.runs), "lead": comparison.lead, "command": outcome.command}
    for metric in tables.SHOWN:
        if score := row.score(moment, metric):
            values |= {metric: score.mean, f"{metric}_std": score.std}
        if row.published:
            mean, std = row.published.mean[metric], row.published.std[metric]
            values |= {f"paper_{metric}": mean, f"paper_{metric}_std": std}
        values[f"{metric}_minus_paper"] = row.minus_paper(metric) if moment == "best" else None
    if test := row.tests.get(moment):
        values |= _difference(test)
    return values | {
        "notes": ", ".join(title for title, _ in row.deviations),
        "missing": row.state,
        "missing_in_words": " | ".join(f"seed {one.seed}: {_reason(one)}" for one in row.missing),
    }


def _contrast(outcome: Outcome, comparison: Group, contrast: Contrast) -> dict[str, Any]:
    """Return a line for first − second: *lead* is the first row, *row* the second; p only if it is tested."""
    values = {"experiment": outcome.name, "cell": comparison.title, "row": contrast.second, "round": contrast.endpoint}
    values |= {"lead": contrast.first, "command": outcome.command}
    return {**values, "n": contrast.found.n, **_difference(contrast)} if contrast.found else values


def _difference(one: Contrast) -> dict[str, float | None]:
    """Return mean, effect size and 95 % interval, and p of a test; a single pair has no interval."""
    found = one.paired
    low, high = (found.low, found.high) if found.n > 1 else (None, None)
    values = {"lead_minus_row_f1": found.mean, "low": low, "high": high, "effect_size": found.size}
    tested = {"p": found.p, "p_holm": one.corrected, "p_sign_flip": one.sign_flip}
    return {**values, **tested} if one.tests else values
