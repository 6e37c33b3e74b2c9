"""Build the report of runs: one part per group of runs that may be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedbm.report.comparison import ComparedGroup, compare_runs
from fedbm.report.comparison_checks import find_different_seeds, find_inequalities
from fedbm.report.document import Block, Part, Provenance, Report, Text
from fedbm.report.figures.palette import assign_colours
from fedbm.report.glossary import reading
from fedbm.report.grouping import Group, format_label, group_runs
from fedbm.report.sections import group_sections
from fedbm.report.source_scores import source_sections
from fedbm.report.tables import BLOCKS, METRICS, class_scores
from fedbm.report.verdicts import main_rivals, plain_verdict, verdicts
from fedbm.runs.run_view import RunView, describe_run
from fedbm.utils.text import format_count, format_range

UNEQUAL = "So this page does not say which row is ahead."
SHARED_SEEDS = "What follows compares rows over the seeds that they share."
ABOUT = ("run", "method", "data", "partition", "beta", "clients", "seed", "rounds", "state")


def runs_report(runs: Sequence[RunView], title: str = "") -> Report:
    """Return the report that compares these runs."""
    groups = group_runs(runs)
    names = [row.name for group in groups for row in group.rows]
    names += [format_label(run.label, run.method) for group in groups for run in group.unfinished]
    colours = assign_colours(names)
    comparisons = [compare_runs(group) for group in groups]
    parts = []
    for comparison in comparisons:
        group = comparison.group
        first, *others = group_sections(group, group.title, colours, dots_of_seeds=True)
        sentences = find_inequalities(group) or tuple(verdicts(comparison) if comparison.lead else ())
        results = replace(first, blocks=((Text(sentences, "verdict"),) if sentences else ()) + first.blocks)
        blocks = (results, *source_sections(group, group.title, colours), *others)
        parts.append(Part(group.title, blocks, summary=_summary(comparison)))
    single, lines = len(groups) == 1, _data(runs)
    return Report(
        title or (groups[0].title if single else f"{len(groups)} comparisons"),
        _opening(comparisons[0], title or groups[0].title) if single else (),
        tuple(parts),
        reading=reading(),
        provenance=tuple(provenance(run) for group in groups for run in group.runs),
        data=tuple(lines),
        fields=tuple(dict.fromkeys(key for line in lines for key in line)),
        contents=not single,
    )


def provenance(run: RunView) -> Provenance:
    environment = {k: v for k, v in (run.environment or {}).items() if k not in ("format", "settings", "command")}
    name = f"{format_label(run.label, run.method)}, {run.data}, seed {run.seed} · {run.id} · {run.state}"
    return Provenance(name, (run.environment or {}).get("command") or "", environment, run.config_text)


def _summary(comparison: ComparedGroup) -> tuple[str, ...]:
    """Return the verdict in plain words; if rows are unequal, first in what, and no leader where settings differ."""
    if unequal := find_inequalities(comparison.group):
        return (*unequal, UNEQUAL)
    seeds = find_different_seeds(comparison.group) if main_rivals(comparison) else None
    return (*((seeds.sentence, SHARED_SEEDS) if seeds else ()), *plain_verdict(comparison))


def _opening(comparison: ComparedGroup, title: str) -> tuple[Block, ...]:
    first, *more = _summary(comparison)
    facts = tuple(fact for fact in _facts(comparison.group) if fact and fact != title)
    return (Text((first,), "lead"), *((Text(tuple(more), "more"),) if more else ()), Text(facts, "facts", detail=True))


def _facts(group: Group) -> list[str]:
    """Return short facts about what was compared."""
    planned = sorted({run.planned for run in group.runs})
    early = [run.summary.rounds for run in group.runs if run.summary and run.summary.rounds < run.planned]
    span = format_range(min(early), max(early)) if early else ""
    seeds = {run.seed for row in group.rows for run in row.runs}
    found = next((run.client_partition for run in group.runs if run.client_partition is not None), None)
    images = f"{sum(map(sum, found.counts)):,} training images" if found else ""
    return [
        group.title,
        f"{format_count(len({row.method for row in group.rows}), 'method')}, {format_count(len(seeds), 'seed')}",
        f"{format_count(len(found.classes), 'class', 'classes')}, {images}" if found else "",
        f"{format_range(planned[0], planned[-1])} round{'s' * (planned[-1] != 1)}",
        f"patience ended {format_count(len(early), 'run')} after {span}" if early else "",
    ]


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
