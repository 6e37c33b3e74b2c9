"""run folders → one page: self-contained, offline, the same bytes for the same runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbm.report.checks import findings
from fedbm.report.client_scores import per_client
from fedbm.report.cost import cost, cost_lines
from fedbm.report.figures.curves import NARROW, WIDE, Dots, dots
from fedbm.report.figures.generated import galleries
from fedbm.report.figures.palette import numbers_of
from fedbm.report.figures.scatter import embedding
from fedbm.report.figures.svg import SERIES, for_one_page
from fedbm.report.grouping import Group, Row, compare, display
from fedbm.report.privacy import largest_losses
from fedbm.report.rounds_to_target import reach
from fedbm.report.sections import Picture, class_texts, mistakes, partition, training
from fedbm.report.statistics import spread
from fedbm.report.tables import METRICS, lines, markdown_table, moments_of
from fedbm.report.text import headline, mean_and_std, percent, seed_by_seed
from fedbm.runs.reader import RunView, read_runs
from fedbm.utils.io import write_text
from fedbm.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["markdown_table", "write_report"]


def write_report(run_dirs: Sequence[str | Path], out: str | Path, title: str | None = None) -> Path:
    """Write the page that compares these runs to *out* (in a folder: report.html) and return where it is."""
    groups = compare(read_runs([Path(folder) for folder in run_dirs]))
    colours = colours_of(groups)
    text = (
        environment()
        .get_template("report.html.j2")
        .render(
            title=title or _title(groups),
            groups=[
                group_view(group, f"g{number}", colours, _dots(group, colours))
                for number, group in enumerate(groups, 1)
            ],
            runs=[provenance(run) for group in groups for run in group.runs],
            metrics=METRICS,
            version=__version__,
        )
    )
    path = Path(out) / "report.html" if Path(out).is_dir() else Path(out)
    write_text(path, text)
    return path


def environment() -> Environment:
    """The package's templates, for one page: everything is escaped, and a name that is not there is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("fedbm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["palette"] = len(SERIES)
    made.filters["placed"] = for_one_page()
    return made


def _title(groups: Sequence[Group]) -> str:
    return groups[0].title if len(groups) == 1 else f"{len(groups)} comparisons"


def colours_of(groups: Sequence[Group]) -> dict[str, int]:
    """A name looks the same on the whole page; FedBM's variants come before those of others."""
    methods = {row.name: row.method for group in groups for row in group.rows}
    methods |= {display(run.label, run.method): run.method for group in groups for run in group.unfinished}
    return numbers_of(sorted(methods, key=lambda name: methods[name] != "fedbm"))


def group_view(group: Group, ident: str, colours: Mapping[str, int], dots: Picture | None = None) -> dict[str, Any]:
    """What the page shows of a group; *dots*: every seed's score, where they are not shown above it."""
    texts, concepts = class_texts(group)
    pictures, no_pictures = galleries(group)
    return {
        "id": ident,
        "title": group.title,
        "headline": headline(group),
        "seed_by_seed": seed_by_seed(group),
        "facts": _facts(group),
        "findings": findings(group),
        "blocks": {words: lines(group, moment) for moment, words in moments_of(group).items()} if group.rows else {},
        "colours": {row.name: colours[row.name] for row in group.rows},
        "central": any(row.method == "central" for row in group.rows),
        "personal": [sentence for row in group.rows if (sentence := _personal(row))],
        "privacy": largest_losses(group),
        "unfinished": [(display(run.label, run.method), run) for run in group.unfinished],
        "seeds": [_seed_line(row, run) for row in group.rows for run in row.runs],
        "dots": dots,
        "training": training(group, colours),
        "partition": partition(group),
        "mistakes": mistakes(group),
        "texts": texts,
        "concepts": concepts,
        "galleries": pictures,
        "no_galleries": no_pictures,
        "sites": per_client(group, colours),
        "features": embedding(group),
        "reach": reach(group),
        "cost": cost(group, colours),
        "cost_lines": cost_lines(group),
    }


def _facts(group: Group) -> list[str]:
    """What was compared, in a few words each."""
    planned = sorted({run.planned for run in group.runs})
    rounds = f"{planned[0]}" if len(planned) == 1 else f"{planned[0]}–{planned[-1]}"
    seeds = {run.seed for row in group.rows for run in row.runs}
    classes = next((len(run.dealt["classes"]) for run in group.runs if run.dealt is not None), None)
    images = next((sum(map(sum, run.dealt["counts"])) for run in group.runs if run.dealt is not None), None)
    return [
        group.title,
        f"{_counted(len(group.rows), 'method')}, {_counted(len(seeds), 'seed')}",
        f"{_counted(classes, 'class', 'classes')}, {images:,} training images" if classes and images else "",
        f"{rounds} rounds" if rounds != "1" else "1 round",
    ]


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _personal(row: Row) -> str:
    """Personal scores are another question than the global ones of the table, so they stand apart."""
    chosen = [
        record["personal"]["accuracy"]
        for run in row.runs
        for record in run.rounds
        if run.summary and record["round"] == run.summary["best"]["round"] and record.get("personal")
    ]
    if not chosen:
        return ""
    score = mean_and_std(spread(chosen))
    return f"{row.name}: {score} accuracy of clients’ own models on test images in their own label mix"


def _seed_line(row: Row, run: RunView) -> dict[str, Any]:
    best = (run.summary or {})["best"]
    scores = [best[metric] for metric in METRICS]
    return {
        "name": row.name,
        "seed": run.seed,
        "round": best["round"],
        "scores": [percent(score) if score is not None else "–" for score in scores],
    }


def _dots(group: Group, colours: Mapping[str, int]) -> Picture | None:
    """Nothing for a single dot."""
    if sum(len(row.runs) for row in group.rows) < 2:
        return None
    drawn = [
        Dots(row.name, colours[row.name], tuple(100 * value for value in row.by_seed("best", "f1").values()))
        for row in group.rows
    ]
    title = f"Macro-F1 of every seed at the round chosen on validation; {group.title}"
    wide, narrow = (dots(drawn, title, "macro-F1 of every seed, %", width) for width in (WIDE, NARROW))
    return Picture(wide, narrow=narrow)


def provenance(run: RunView) -> dict[str, Any]:
    environment = dict(run.environment or {})
    for of_the_file in ("format", "settings"):
        environment.pop(of_the_file, None)
    return {
        "id": run.id,
        "name": display(run.label, run.method),
        "seed": run.seed,
        "data": run.data,
        "state": run.state,
        "command": environment.pop("command", None),
        "environment": environment,
        "config": run.config_text,
    }
