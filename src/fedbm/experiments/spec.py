"""An experiment is a TOML file: what all runs share, the axes of a grid, the rows of a table.

    title = "…"                     what it shows
    lead = "…"                      the row that is tested against every other; unset: FedBM, else the first
    [all]                           settings every run has, by the names of the flags of `fedbm run`
    [axes]                          lists of values; every combination is a cell, the first axis outermost
    [[rows]]                        name = "…" and the settings that make this row; they win over axes and [all]

The runs of a row are its seeds. Order matters: a portion of time is spent from the top. An experiment may also state
how its results are to be analysed, before there are any:

    seeds = "3-12"                  its seeds; unset: 0, 1 and 2
    order = "seed"                  all runs of a seed before the next seed; unset: all seeds of a cell together
    endpoint = "averaged last"      the score that counts; unset: "chosen", at the round chosen on validation
    contrasts = [["FedBM", "FedAvg"]]   differences of rows, in place of the lead minus every other row
    confirmatory = true             tests of these contrasts alone, and no score is shown before all runs are on record
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.experiments.analysis_plan import AnalysisPlan, choice, read_analysis
from fedbm.methods import METHODS, title_of
from fedbm.runs.config import check_method_options, keys, method_flags, nest
from fedbm.runs.seed_list import DEFAULT, format_seeds, parse_seeds

KEYS = (
    *("title", "printed", "shows", "paper", "figure", "lead", "notes", "deviations", "methods", "all", "axes", "rows"),
    *("search", "seeds", "order", "endpoint", "contrasts", "confirmatory"),
)
PAPER = files("fedbm.experiments").joinpath("paper")
EVIDENCE = files("fedbm.experiments").joinpath("evidence")


@dataclass(frozen=True)
class RowPlan:
    """One line of a table: its name, and the settings that make it."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    rows: tuple[RowPlan, ...]
    shared: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    printed: str = ""  # which table or figure of the paper, such as "Table III"; "": it is none of them
    shows: str = ""  # that in words or, of another experiment, what it is about
    paper: str = ""  # the table of the paper's numbers; "": it prints none
    figure: str = ""  # the axis along which scores are drawn; "": a table
    lead: str = ""  # the row that is tested against every other; "": FedBM, or the first row
    notes: tuple[str, ...] = ()  # what was chosen, and why
    deviations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "all", a row or data set → notes' names
    search: tuple[str, ...] = ()  # axes among whose values one is chosen, on validation
    seeds: tuple[int, ...] = DEFAULT
    by_seed: bool = False  # all runs of a seed come before those of the next
    analysis: AnalysisPlan | None = None  # None: the lead is tested against every other row
    file: str = ""  # where it stands, for what is said of a mistake in it

    @property
    def confirmatory(self) -> bool:
        return self.analysis is not None and self.analysis.confirmatory

    def chosen_seeds(self, text: str | None) -> tuple[int, ...]:
        """Return the seeds that --seeds gives, by default the experiment's own.

        Raises:
            FedBMError: If a confirmatory experiment does not plan one of them.
        """
        seeds = self.seeds if text is None else parse_seeds(text)
        if self.confirmatory and not set(seeds) <= set(self.seeds):
            planned = format_seeds(self.seeds)
            raise FedBMError(
                f"{self.name} plans the seeds {planned} and takes no others: leave --seeds out, or name some of them"
            )
        return seeds


def cells(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the axes' values, the first axis outermost."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


@cache
def shipped() -> list[str]:
    """Return the experiments of the paper and those of docs/evidence-plan.md, in the order of their files' numbers."""
    return [name.removesuffix(".toml").partition("-")[2] for name in sorted(_files())]


def of_the_paper() -> list[str]:
    """Return the shipped experiments that are tables, figures or checks of the paper."""
    there = {item.name.removesuffix(".toml").partition("-")[2] for item in PAPER.iterdir()}
    return [name for name in shipped() if name in there]


def _files() -> dict[str, Traversable]:
    items = (item for folder in (PAPER, EVIDENCE) for item in folder.iterdir())
    return {item.name: item for item in items if re.match(r"\d+-.*\.toml", item.name)}


@cache
def find_experiment(name: str) -> Experiment:
    """Return a shipped experiment by its name."""
    if name not in shipped():
        raise FedBMError(
            f'there is no experiment "{name}"{did_you_mean(name, shipped())}; there are {join_words(shipped())}; '
            "a file of your own is run by 'fedbm sweep FILE'"
        )
    item = next(item for file, item in _files().items() if file.partition("-")[2] == f"{name}.toml")
    return parse(item.read_text(encoding="utf-8"), name, item.name)


def read_experiment(path: Path) -> Experiment:
    """One of the user's own; not under the name of a shipped one, in whose record its runs would be written."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if path.name in shipped():
            raise FedBMError(f"{path} is a shipped experiment: 'fedbm reproduce {path}' runs it") from error
        near = did_you_mean(path.name, [beside.name for beside in path.parent.glob("*.toml")])
        raise FedBMError(f"there is no experiment {path}{near}: give a TOML file of your own") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FedBMError(f"cannot read the experiment {path}: {getattr(error, 'strerror', None) or error}") from error
    if path.stem in shipped():
        raise FedBMError(
            f"{path} has the name of an experiment of the paper, in whose record its runs would be written: give the "
            f"file another name, or run that experiment by 'fedbm reproduce {path.stem}'"
        )
    return parse(text, path.stem, str(path))


def parse(text: str, name: str, where: str) -> Experiment:
    """The experiment that *text* describes; FedBMError where it is not one."""
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FedBMError(f"{where} is not valid TOML: {error}") from error
    for key in values:
        if key not in KEYS:
            raise FedBMError(f'{where} has no place for "{key}"{did_you_mean(key, KEYS)}; there are {join_words(KEYS)}')
    shared, axes = _table(values, "all", where), dict(_table(values, "axes", where))
    for axis, choices in axes.items():
        if not isinstance(choices, list) or not choices:
            raise FedBMError(f"{where}: the axis {axis} must be a list of values, such as {axis} = [1, 2]")
        if len(set(map(repr, choices))) < len(choices):
            raise FedBMError(f"{where}: the axis {axis} names a value twice")
    for beta in (shared.get("beta"), *axes.get("beta", ())):  # which titles and the paper's numbers go by
        if isinstance(beta, str):
            raise FedBMError(f'{where}: beta must be a number, not "{beta}": write it without quotes')
    known = [*(key.flag for key in keys()), *method_flags()]
    for flag in (*shared, *axes):
        if flag not in known:
            raise FedBMError(f'{where}: there is no setting "{flag}"{did_you_mean(flag, known)}')
        if flag == "seed":
            raise FedBMError(f"{where} sets a seed; how many there are is said by --seeds")
    printed, differs = _text(values, "printed", where), _table(values, "deviations", where)
    given_seeds = _text(values, "seeds", where)
    seeds = parse_seeds(given_seeds, f"{where}: seeds") if given_seeds else DEFAULT
    experiment = Experiment(
        name=name,
        title=_text(values, "title", where) or name,
        rows=_rows(values, axes.pop("method", []), where),
        shared=shared,
        axes={axis: tuple(choices) for axis, choices in axes.items()},
        printed=printed,
        shows=_text(values, "shows", where) or (f"{printed} of the paper" if printed else ""),
        paper=_text(values, "paper", where),
        figure=_text(values, "figure", where),
        lead=_text(values, "lead", where),
        notes=_texts(values, "notes", where),
        deviations={key: _texts(differs, key, f"[deviations] in {where}") for key in differs},
        search=_search(values, where),
        seeds=seeds,
        by_seed=choice(values, "order", ("cell", "seed"), where) == "seed",
        analysis=read_analysis(values, seeds, where),
        file=where,
    )
    for axis in (*experiment.search, *([experiment.figure] if experiment.figure else [])):
        if axis not in experiment.axes:
            raise FedBMError(f'{where}: "{axis}" is no axis{did_you_mean(axis, experiment.axes)}')
    chosen = {row.settings.get("method", _method(values)) for row in experiment.rows}
    try:
        check_method_options((*shared, *experiment.axes), sorted(chosen))
    except FedBMError as error:
        raise FedBMError(f"{where}: {error}") from error
    names, tested = [row.name for row in experiment.rows], experiment.analysis.contrasts if experiment.analysis else ()
    named = [("lead", experiment.lead)] * bool(experiment.lead)
    for key, name in (*named, *(("contrasts", name) for pair in tested for name in pair)):
        if name not in names:
            near = did_you_mean(name, names)
            raise FedBMError(
                f'{where}: {key} names "{name}", which is not a row{near}; there are {join_words(names, "and")}'
            )
    return experiment


def _rows(values: Mapping[str, Any], axis: Sequence[Any], where: str) -> tuple[RowPlan, ...]:
    """Rows by name; methods = [...], or an axis of methods, is short for a row each. With none, one row: the method."""
    methods = [*_texts(values, "methods", where), *map(str, axis)]
    rows = [RowPlan(title_of(method), {"method": method}) for method in methods]
    given = values.get("rows", [])
    if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
        raise FedBMError(f"{where}: rows are written as [[rows]], each with a name and its settings")
    for row in given:
        settings = dict(row)
        name = settings.pop("name", None)
        if not isinstance(name, str) or not name.strip():
            raise FedBMError(f'{where}: every one of [[rows]] needs name = "…"')
        if "seed" in settings:
            raise FedBMError(f'{where}, row "{name}", sets a seed; how many there are is said by --seeds')
        with in_row(where, name):
            nest(settings if "method" in settings else {**settings, "method": _method(values)})
        rows.append(RowPlan(name, settings))
    for row_plan in rows:
        chosen = row_plan.settings.get("method", "fedbm")
        if not isinstance(chosen, str) or chosen not in METHODS:
            raise FedBMError(f'{where}: there is no method "{chosen}"{did_you_mean(str(chosen), METHODS)}')
    names = [row_plan.name for row_plan in rows]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise FedBMError(f'{where} has two rows called "{twice}"; give each a name of its own')
    return tuple(rows) or (RowPlan(title_of(_method(values)), {}),)


@contextmanager
def in_row(where: str, name: str) -> Iterator[None]:
    """A mistake found within is said with the file and the row it is in."""
    try:
        yield
    except FedBMError as error:
        raise FedBMError(f'{where}, row "{name}": {error}') from error


def _method(values: Mapping[str, Any]) -> str:
    shared = values.get("all", {})
    return str(shared.get("method", "fedbm")) if isinstance(shared, dict) else "fedbm"


def _search(values: Mapping[str, Any], where: str) -> tuple[str, ...]:
    search = _table(values, "search", where)
    if unknown := next((key for key in search if key != "choose"), None):
        raise FedBMError(f'{where}: [search] has no key "{unknown}"; it has choose = ["an axis", …]')
    return _texts(search, "choose", f"[search] in {where}")


def _table(values: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    found = values.get(key, {})
    if not isinstance(found, dict):
        raise FedBMError(f"{where}: {key} is a section, write [{key}] and below it its keys")
    return found


def _text(values: Mapping[str, Any], key: str, where: str) -> str:
    found = values.get(key, "")
    if not isinstance(found, str):
        raise FedBMError(f"{where}: {key} must be a text in quotes")
    return found


def _texts(values: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    found = values.get(key, [])
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise FedBMError(f"{where}: {key} must be a list of texts in quotes")
    return tuple(found)
