"""Read experiments from TOML files: settings that all runs share, axes of a grid, and rows of a table.

    title = "…"                     what it shows
    lead = "…"                      the row that is tested against every other; unset: FedBM, else the first contrast's
                                    first row, else the first row
    [all]                           settings of every run, by the names of the flags of `fedbm run`
    [axes]                          lists of values; every combination is a cell, the first axis outermost
    [[rows]]                        name = "…" and the settings of this row, which override axes and [all]

A row has one run per seed. A budget is spent in the order of the file. An experiment may also state how its results
will be analysed:

    seeds = "3-12"                  its seeds; unset: 0, 1 and 2
    order = "seed"                  all runs of a seed before the next seed; unset: all seeds of a cell together
    endpoint = "averaged last"      the score that counts; unset: "chosen", at the round chosen on validation
    contrasts = [["FedBM", "FedAvg"]]   differences of rows, in place of the lead minus every other row
    confirmatory = true             test only these contrasts, and show no score before all runs are on record
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from fedbm.config.options import MAX_SEED
from fedbm.errors import FedBMError, did_you_mean, join_words, prefix_errors
from fedbm.methods import title_of
from fedbm.runs.run_config import check_method_options, find_key, find_method, to_sections
from fedbm.runs.seed_list import DEFAULT, parse_seeds
from fedbm.utils.io import parse_toml, read_text
from fedbm.utils.json_records import Keys, Length, NonNegative, Range, Scalar, decode
from fedbm.utils.statistics import MIN_SEEDS

ENDPOINTS = {"chosen": "best", "averaged last": "averaged"}  # Endpoint → moment of RunView.scores()
PAPER = files("fedbm.experiments").joinpath("paper")
EVIDENCE = files("fedbm.experiments").joinpath("evidence")
Endpoint = Literal["chosen", "averaged last"]
Seed = Annotated[int, Range(0, MAX_SEED)]
Choices = Annotated[tuple[Annotated[Any, Scalar], ...], Length(least=1)]
Betas = Annotated[tuple[NonNegative, ...], Length(least=1)]  # titles and the paper's numbers depend on β
Settings = Annotated[Mapping[str, Annotated[Any, Scalar]], Keys({"beta?": NonNegative})]
Axes = Annotated[Mapping[str, Choices], Keys({"beta?": Betas})]
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Search:
    choose: tuple[str, ...]

    refuses_others: ClassVar = True


@dataclass(frozen=True, kw_only=True)
class Description:
    """The words of an experiment."""

    title: str = ""
    shows: str = ""  # such as "Table III of the paper", or what the experiment is about
    paper: str = ""  # the table of the paper's numbers; "" if there is none
    figure: str = ""  # the axis over which scores are drawn; "" for a table
    lead: str = ""  # the row that is tested against every other; "": FedBM, or the first row
    notes: tuple[str, ...] = ()  # what was chosen, and why


@dataclass(frozen=True, kw_only=True)
class ExperimentFile(Description):
    """The keys of an experiment's file."""

    seeds: str = ""
    methods: tuple[str, ...] = ()
    all: Settings = field(default_factory=dict)
    axes: Axes = field(default_factory=dict)
    rows: tuple[Annotated[Mapping[str, object], Keys({"name": str})], ...] = ()
    deviations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    search: _Search | None = None
    order: Literal["cell", "seed"] = "cell"
    endpoint: Endpoint | None = None
    contrasts: Pairs = ()
    confirmatory: bool = False

    refuses_others: ClassVar = True


@dataclass(frozen=True)
class AnalysisPlan:
    """How results will be compared, as stated before there are any."""

    contrasts: Annotated[Pairs, Length(least=1)]  # pairs of rows: first − second
    endpoint: Endpoint
    confirmatory: bool  # contrasts are tested, and scores are withheld until all runs are on record
    seeds: Annotated[tuple[Seed, ...], Length(least=1)]

    @property
    def moment(self) -> str:
        return ENDPOINTS[self.endpoint]


@dataclass(frozen=True, kw_only=True)
class ExperimentInfo(Description):
    """What an experiment, its record and its outcome have in common."""

    search: tuple[str, ...]  # axes on which validation chooses a value; "row" chooses among rows
    shared: Settings
    axes: Axes
    analysis: AnalysisPlan | None = None  # None: the lead is tested against every other row

    @property
    def confirmatory(self) -> bool:
        return self.analysis is not None and self.analysis.confirmatory

    def info(self) -> dict[str, Any]:
        """Return the fields of ExperimentInfo by name."""
        return {one.name: getattr(self, one.name) for one in fields(ExperimentInfo)}

    def check_references(self, rows: Sequence[str]) -> None:
        """Raise FedBMError if the lead or a contrast is not among *rows*, or the figure or a searched axis is none."""
        contrasts = self.analysis.contrasts if self.analysis else ()
        _check_names([self.lead, *itertools.chain(*contrasts)], rows, "a row")
        _check_names([self.figure], list(self.axes), "an axis")
        _check_names(self.search, ["row", *self.axes], "an axis")


@dataclass(frozen=True, kw_only=True)
class Experiment(ExperimentInfo):
    """One experiment as its file describes it."""

    name: str
    rows: Mapping[str, Mapping[str, Any]]  # name → settings
    deviations: Mapping[str, tuple[str, ...]]  # "all", row or data set → names of notes
    seeds: tuple[int, ...]
    by_seed: bool  # all runs of a seed come before those of the next
    file: str  # for error messages

    def chosen_seeds(self, seeds: Sequence[int] | None) -> tuple[int, ...]:
        """Return *seeds*, by default its own. A confirmatory experiment refuses seeds that it does not plan."""
        chosen = self.seeds if seeds is None else tuple(seeds)
        if self.confirmatory and not set(chosen) <= set(self.seeds):
            planned = ", ".join(map(str, self.seeds))
            raise FedBMError(f"{self.name} is confirmatory and plans the seeds {planned} only. Choose among them.")
        return chosen


def cells(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the axes' values, the first axis outermost."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def shipped_experiments() -> list[str]:
    """Return the experiments of the paper and those of docs/evidence-plan.md, in the order of their files' numbers."""
    return list(_files())


def paper_experiments() -> list[str]:
    """Return the shipped experiments that are tables, figures or checks of the paper."""
    return [name for name, file in _files().items() if PAPER.joinpath(file.name).is_file()]


@cache
def _files() -> dict[str, Traversable]:
    """Return the experiments' files by name: "modules" for 12-modules.toml."""
    items = sorted((item for folder in (PAPER, EVIDENCE) for item in folder.iterdir()), key=lambda item: item.name)
    return {found[1]: item for item in items if (found := re.fullmatch(r"\d+-(.*)\.toml", item.name))}


@cache
def find_experiment(name: str) -> Experiment:
    """Return a shipped experiment by its name."""
    if name not in _files():
        raise FedBMError(
            f'there is no experiment "{name}"{did_you_mean(name, _files())}. Choose {join_words(_files())}, or run a '
            "file of your own with 'fedbm sweep FILE'."
        )
    return parse(_files()[name].read_text(encoding="utf-8"), name, _files()[name].name)


def read_experiment(path: Path) -> Experiment:
    """Read a user's own experiment. Its name must differ from shipped ones, because the name decides the record."""
    if path.stem in _files():
        raise FedBMError(
            f"{path} has the name of a shipped experiment, and their records would mix. Rename the file, or run the "
            f"shipped experiment with 'fedbm reproduce {path.stem}'."
        )
    text = read_text(path)
    if not parse_toml(text, str(path)).keys() & {"methods", "all", "axes", "rows"}:
        raise FedBMError(f"{path} describes no grid: it has none of methods, [all], [axes] and [[rows]]")
    return parse(text, path.stem, str(path))


def parse(text: str, name: str, where: str) -> Experiment:
    """Return the experiment that *text* describes; raise FedBMError, starting with *where*, if it is wrong."""
    values = decode(ExperimentFile, parse_toml(text, where), where)
    with prefix_errors(where):
        _check_settings(values)
        axes = dict(values.axes)
        rows = _rows(values, axes.pop("method", ()))
        seeds = parse_seeds(values.seeds) if values.seeds else DEFAULT
        words = {one.name: getattr(values, one.name) for one in fields(Description)}
        experiment = Experiment(
            **words | {"title": values.title or name},
            name=name,
            rows=rows,
            deviations=values.deviations,
            shared=values.all,
            axes=axes,
            search=values.search.choose if values.search else (),
            seeds=seeds,
            by_seed=values.order == "seed",
            analysis=_plan_analysis(values, seeds),
            file=where,
        )
        experiment.check_references(list(rows))
        methods = sorted({settings["method"] for settings in rows.values()})
        check_method_options([*values.all, *axes], methods)
        return experiment


def _check_names(names: Iterable[str], known: Sequence[str], kind: str) -> None:
    """Raise FedBMError if one of *names* is not among the *known* ones of this kind. Empty names are passed over."""
    for name in names:
        if name and name not in known:
            choose = f"; choose {join_words(known)}" if known else ""
            raise FedBMError(f'"{name}" is not {kind} of the experiment{did_you_mean(name, known)}{choose}')


def _check_settings(values: ExperimentFile) -> None:
    for flag in (*values.all, *values.axes):
        find_key(flag)
    if any("seed" in settings for settings in (values.all, values.axes, *values.rows)):
        raise FedBMError('seed cannot be set here. Write seeds = "…" at the top of the file.')
    for axis, choices in values.axes.items():
        if len(set(map(repr, choices))) < len(choices):
            raise FedBMError(f"the axis {axis} has a value twice")


def _plan_analysis(values: ExperimentFile, seeds: tuple[int, ...]) -> AnalysisPlan | None:
    """Return what the file states about the analysis; None without contrasts."""
    contrasts = values.contrasts
    if any(first == second for first, second in contrasts) or len({*contrasts}) < len(contrasts):
        raise FedBMError('contrasts must be a list of different pairs of rows, such as [["FedBM", "FedAvg"]]')
    if contrasts and values.search:
        raise FedBMError("an experiment with [search] cannot have contrasts, which compare its rows on test images")
    if (values.confirmatory or values.endpoint) and not contrasts:
        raise FedBMError("confirmatory and endpoint need contrasts, and there are none")
    if values.confirmatory and (not values.seeds or len(seeds) < MIN_SEEDS):
        raise FedBMError(f"a confirmatory experiment must state at least {MIN_SEEDS} seeds")
    return AnalysisPlan(contrasts, values.endpoint or "chosen", values.confirmatory, seeds) if contrasts else None


def _rows(values: ExperimentFile, axis: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    """Return name → settings. methods = […] and an axis of methods make one row per method; without both, one row."""
    default = values.all.get("method", "fedbm")
    methods = [*values.methods, *axis] or [default] * (not values.rows)
    named: list[Mapping[str, Any]] = [{"name": title_of(str(method)), "method": method} for method in methods]
    rows: dict[str, Mapping[str, Any]] = {}
    for row in (*named, *values.rows):
        settings = {"method": default, **{key: value for key, value in row.items() if key != "name"}}
        with prefix_errors(f'row "{row["name"]}"'):
            find_method(str(settings["method"]))
            to_sections(settings)
        if not row["name"].strip() or row["name"] in rows:
            raise FedBMError(f'every row needs a name of its own, but "{row["name"]}" is empty or used twice')
        rows[row["name"]] = settings
    return rows
