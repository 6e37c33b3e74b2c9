"""Build the report of runs: one part per group of runs that may be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedbm.report.comparison_checks import find_inequalities
from fedbm.report.document import Block, Part, Provenance, Report, Text
from fedbm.report.figures.palette import assign_colours
from fedbm.report.glossary import TERMS
from fedbm.report.group import Group
from fedbm.report.grouping import group_runs
from fedbm.report.sections import group_sections
from fedbm.report.source_scores import source_sections
from fedbm.report.tables import BLOCKS, METRICS, class_scores
from fedbm.report.verdicts import plain_verdict, verdicts
from fedbm.runs.run_view import RunView, describe_run
from fedbm.utils.text import format_range

UNEQUAL = "So this page does not say which row is ahead."
ABOUT = ("run", "method", "data", "partition", "beta", "clients", "seed", "rounds", "state")


def runs_report(runs: Sequence[RunView], title: str = "") -> Report:
    """Return the report that compares these runs."""
    groups = group_runs(runs)
    names = [row.name for group in groups for row in group.rows]
    names += [run.label for group in groups for run in group.unfinished]
    colours = assign_colours(names)
    parts = []
    for group in groups:
        unequal = find_inequalities(group)
        summary = (*unequal, UNEQUAL) if unequal else plain_verdict(group)
        first, *others = group_sections(group, group.title, colours)
        results = replace(first, blocks=(Text(unequal or tuple(verdicts(group)), "verdict"), *first.blocks))
        blocks = (results, *source_sections(group, group.title, colours), *others)
        parts.append(Part(group.title, blocks, summary=summary))
    opening: tuple[Block, ...] = ()
    title = title or (groups[0].title if len(groups) == 1 else f"{len(groups)} comparisons")
    if len(groups) == 1:
        sentence, *more = parts[0].summary
        facts = tuple(fact for fact in _facts(groups[0]) if fact != title)
        opening = (Text((sentence,), "lead"), Text(tuple(more), "more"), Text(facts, "facts", detail=True))
    return Report(
        title,
        opening,
        tuple(parts),
        reading=TERMS,
        provenance=tuple(provenance(run) for group in groups for run in group.runs),
        data=tuple(_data(runs)),
        contents=len(groups) > 1,
    )


def provenance(run: RunView) -> Provenance:
    environment = {k: v for k, v in (run.environment or {}).items() if k not in ("format", "settings", "command")}
    name = f"{run.label}, {run.data}, seed {run.seed} · {run.id} · {run.state}"
    return Provenance(name, (run.environment or {}).get("command") or "", environment, run.config_text)


def _facts(group: Group) -> tuple[str, ...]:
    """Return short facts about what was compared."""
    planned = [run.planned for run in group.runs]
    computed = [run.final_round for run in group.runs]  # fewer if patience ended a run
    seeds = {run.seed for row in group.rows for run in row.runs}
    found = next((run.client_partition for run in group.runs if run.client_partition is not None), None)
    images = (f"classes: {len(found.classes)}, training images: {sum(map(sum, found.counts)):,}",) if found else ()
    methods = f"methods: {len({row.method for row in group.rows})}, seeds: {len(seeds)}"
    rounds = f"rounds planned: {format_range(planned)}"
    return (group.title, methods, *images, f"{rounds}, run: {format_range(computed)}")


def _data(runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """Return a line per run and moment, scores as shares of 1; an unfinished run has one line without scores.

    The scores of each class follow, such as "f1: melanoma".
    """
    lines = []
    for run in runs:
        about = describe_run(run)
        for moment in BLOCKS if run.summary else ("",):
            scores = run.scores(moment) if moment else {}
            if scores is not None:
                values = {key: about[key] for key in ABOUT} | {"moment": moment}
                values |= {key: scores.get(key) for key in ("round", *METRICS)}
                for name, by_metric in class_scores(run, moment).items() if moment else ():
                    values |= {f"{metric}: {name}": value for metric, value in by_metric.items()}
                lines.append(values)
    return lines
