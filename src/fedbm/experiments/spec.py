"""Read experiments from TOML files: settings that all runs share, axes of a grid, and rows of a table.

    title = "…"                     what it shows
    lead = "…"                      the row that is tested against every other; unset: FedBM, else the first
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
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError, did_you_mean, join_words, prefix_errors
from fedbm.methods import title_of
from fedbm.runs.run_config import check_method_options, find_method, keys, option_flags, to_sections
from fedbm.runs.seed_list import DEFAULT, parse_seeds
from fedbm.utils import schema
from fedbm.utils.io import parse_toml, read_text
from fedbm.utils.schema import REFUSED, SCALAR, TEXT, TRUTH, each

ENDPOINTS = {"chosen": "best", "averaged last": "averaged"}  # endpoint → moment of RunView.scores()
PAPER = files("fedbm.experiments").joinpath("paper")
EVIDENCE = files("fedbm.experiments").joinpath("evidence")
FILE = schema.keys(
    {
        **dict.fromkeys(("title?", "shows?", "paper?", "figure?", "lead?", "seeds?"), TEXT),
        **dict.fromkeys(("notes?", "methods?"), each(TEXT)),
        "all?": schema.keys({}, SCALAR),
        "axes?": schema.keys({}, each(SCALAR, least=1)),
        "rows?": each(schema.keys({"name": TEXT})),
        "deviations?": schema.keys({}, each(TEXT)),
        "search?": schema.keys({"choose": each(TEXT)}, REFUSED),
        "order?": schema.choice("cell", "seed"),
        "endpoint?": schema.choice(*ENDPOINTS),
        "contrasts?": each(each(TEXT, 2)),
        "confirmatory?": TRUTH,
    },
    REFUSED,
)


@dataclass(frozen=True)
class AnalysisPlan:
    """How results will be compared, as stated before there are any."""

    contrasts: tuple[tuple[str, str], ...]  # pairs of rows: first − second
    endpoint: str  # a key of ENDPOINTS
    confirmatory: bool  # contrasts are tested, and scores are withheld until all runs are on record
    seeds: tuple[int, ...]

    @property
    def moment(self) -> str:
        return ENDPOINTS[self.endpoint]


@dataclass(frozen=True)
class Experiment:
    """One experiment as its file describes it."""

    name: str
    title: str
    rows: Mapping[str, Mapping[str, Any]]  # name → settings
    shared: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    shows: str = ""  # such as "Table III of the paper", or what the experiment is about
    paper: str = ""  # the table of the paper's numbers; "" if there is none
    figure: str = ""  # the axis over which scores are drawn; "" for a table
    lead: str = ""  # the row that is tested against every other; "": FedBM, or the first row
    notes: tuple[str, ...] = ()  # what was chosen, and why
    deviations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "all", row or data set → names of notes
    search: tuple[str, ...] = ()  # axes on which validation chooses a value; "row" chooses among rows
    seeds: tuple[int, ...] = DEFAULT
    by_seed: bool = False  # all runs of a seed come before those of the next
    analysis: AnalysisPlan | None = None  # None: the lead is tested against every other row
    file: str = ""  # for error messages

    @property
    def confirmatory(self) -> bool:
        return self.analysis is not None and self.analysis.confirmatory

    def chosen_seeds(self, seeds: Sequence[int] | None) -> tuple[int, ...]:
        """Return *seeds*, by default the experiment's own.

        Raises:
            FedBMError: If a confirmatory experiment does not plan one of them.
        """
        chosen = self.seeds if seeds is None else tuple(seeds)
        if self.confirmatory and not set(chosen) <= set(self.seeds):
            planned = ", ".join(map(str, self.seeds))
            raise FedBMError(f"{self.name} is confirmatory and plans the seeds {planned} only. Choose among them.")
        return chosen


def cells(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the axes' values, the first axis outermost."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


@cache
def shipped_experiments() -> list[str]:
    """Return the experiments of the paper and those of docs/evidence-plan.md, in the order of their files' numbers."""
    return [name for _, name in sorted((file.name, name) for name, file in _files(PAPER, EVIDENCE).items())]


def paper_experiments() -> list[str]:
    """Return the shipped experiments that are tables, figures or checks of the paper."""
    return [name for name in shipped_experiments() if name in _files(PAPER)]


def _files(*folders: Traversable) -> dict[str, Traversable]:
    """Return the experiments' files by name: "modules" for 12-modules.toml."""
    items = (item for folder in folders for item in folder.iterdir())
    return {found[1]: item for item in items if (found := re.fullmatch(r"\d+-(.*)\.toml", item.name))}


@cache
def find_experiment(name: str) -> Experiment:
    """Return a shipped experiment by its name."""
    known = shipped_experiments()
    if name not in known:
        raise FedBMError(
            f'there is no experiment "{name}"{did_you_mean(name, known)}. Choose {join_words(known)}, or run your own '
            "file with 'fedbm sweep FILE'."
        )
    item = _files(PAPER, EVIDENCE)[name]
    return parse(item.read_text(encoding="utf-8"), name, item.name)


def read_experiment(path: Path) -> Experiment:
    """Read a user's own experiment. Its name must differ from shipped ones, because the name decides the record."""
    if path.stem in shipped_experiments():
        why = "has the name of a shipped experiment, and their records would mix. Rename the file, or run"
        why = why if path.exists() else "is not a file here. Run"
        raise FedBMError(f"{path} {why} the shipped experiment with 'fedbm reproduce {path.stem}'.")
    return parse(read_text(path), path.stem, str(path))


def parse(text: str, name: str, where: str) -> Experiment:
    """Return the experiment that *text* describes; raise FedBMError, starting with *where*, if it is wrong."""
    values = parse_toml(text, where)
    schema.check(values, FILE, where)
    with prefix_errors(where):
        shared, axes = values.get("all", {}), dict(values.get("axes", {}))
        _check_settings(shared, axes)
        rows = _rows(values, axes.pop("method", []))
        seeds = parse_seeds(values["seeds"]) if values.get("seeds") else DEFAULT
        experiment = Experiment(
            name=name,
            title=values.get("title") or name,
            rows=rows,
            shared=shared,
            axes={axis: tuple(choices) for axis, choices in axes.items()},
            **{key: values.get(key, "") for key in ("shows", "paper", "figure", "lead")},
            notes=tuple(values.get("notes", ())),
            deviations={key: tuple(names) for key, names in values.get("deviations", {}).items()},
            search=tuple(values.get("search", {}).get("choose", ())),
            seeds=seeds,
            by_seed=values.get("order") == "seed",
            analysis=_analysis(values, seeds),
            file=where,
        )
        contrasts = experiment.analysis.contrasts if experiment.analysis else ()
        check_references(experiment.lead, contrasts, list(rows), experiment.figure, experiment.search, experiment.axes)
        methods = sorted({settings["method"] for settings in rows.values()})
        check_method_options({flag: flag for flag in (*shared, *experiment.axes)}, methods)
        return experiment


def check_references(
    lead: str, contrasts: Iterable[Sequence[str]], rows: Sequence[str], figure: str, search: Iterable[str], axes: Any
) -> None:
    """Raise FedBMError if *lead* or *contrasts* name no row, or *figure* or *search* no axis; both may be empty."""
    check_names([lead, *itertools.chain(*contrasts)], rows, "a row")
    check_names([figure], list(axes), "an axis")
    check_names(search, ["row", *axes], "an axis")


def check_names(names: Iterable[str], known: Sequence[str], kind: str) -> None:
    """Raise FedBMError if one of *names* is not among the *known* ones of this kind. Empty names are passed over."""
    for name in names:
        if name and name not in known:
            choose = f"; choose {join_words(known)}" if known else ""
            raise FedBMError(f'"{name}" is not {kind} of the experiment{did_you_mean(name, known)}{choose}')


def _check_settings(shared: Mapping[str, Any], axes: Mapping[str, Any]) -> None:
    for axis, choices in axes.items():
        if len(set(map(repr, choices))) < len(choices):
            raise FedBMError(f"the axis {axis} has a value twice")
    known = [*(key.flag for key in keys()), *option_flags()]
    for flag in (*shared, *axes):
        if flag not in known:
            raise FedBMError(f'there is no setting "{flag}"{did_you_mean(flag, known)}')
    _refuse_seed((*shared, *axes))
    for beta in (shared.get("beta"), *axes.get("beta", ())):  # titles and the paper's numbers depend on it
        if isinstance(beta, str):
            raise FedBMError(f'beta must be a number, not "{beta}". Write it without quotes.')


def _refuse_seed(settings: Sequence[str] | Mapping[str, Any]) -> None:
    if "seed" in settings:
        raise FedBMError('seed cannot be set here. Write seeds = "…" at the top of the file.')


def _analysis(values: Mapping[str, Any], seeds: tuple[int, ...]) -> AnalysisPlan | None:
    """Return what the file states about the analysis; None without contrasts."""
    contrasts, confirmatory = values.get("contrasts", []), values.get("confirmatory", False)
    if any(first == second for first, second in contrasts) or len({*map(tuple, contrasts)}) < len(contrasts):
        raise FedBMError('contrasts must be a list of different pairs of rows, such as [["FedBM", "FedAvg"]]')
    if contrasts and "search" in values:
        raise FedBMError("an experiment with [search] cannot have contrasts, which compare its rows on test images")
    if confirmatory and not (contrasts and "seeds" in values):
        raise FedBMError("a confirmatory experiment must state seeds and contrasts")
    endpoint = values.get("endpoint", "chosen")
    if "endpoint" in values and not contrasts:
        raise FedBMError("an endpoint needs contrasts, and there are none")
    return AnalysisPlan(tuple(map(tuple, contrasts)), endpoint, confirmatory, seeds) if contrasts else None


def _rows(values: Mapping[str, Any], axis: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    """Return name → settings. methods = […] and an axis of methods make one row per method; without both, one row."""
    default, given = values.get("all", {}).get("method", "fedbm"), values.get("rows", [])
    methods = [*values.get("methods", ()), *axis] or [default] * (not given)
    named = [{"name": title_of(str(method)), "method": method} for method in methods] + given
    rows: dict[str, Mapping[str, Any]] = {}
    for row in named:
        settings = {"method": default, **{key: value for key, value in row.items() if key != "name"}}
        with prefix_errors(f'row "{row["name"]}"'):
            _refuse_seed(settings)
            find_method(str(settings["method"]))
            to_sections(settings)
        if not row["name"].strip() or row["name"] in rows:
            raise FedBMError(f'every row needs a name of its own, but "{row["name"]}" is empty or used twice')
        rows[row["name"]] = settings
    return rows
