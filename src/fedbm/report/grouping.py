"""Group runs that may be compared (one data set, one partition), with one row per label and all its seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedbm.config.keys import SECTIONS
from fedbm.errors import FedBMError
from fedbm.methods import METHODS, is_central, title_of
from fedbm.report.contrasts import test_rivals
from fedbm.report.group import Group, GroupRow, leading_row
from fedbm.runs.run_view import RunView
from fedbm.utils.text import format_count, format_option

# keys that do not separate rows: the seed; name, partition and β, which are in the group's title; a path and the number
# of channels, because digests compare images and samples; and the recipe, because the values that it sets are compared
NOT_A_SETTING = {"train.seed", "data.name", "data.beta", "data.partition_file", "data.channels", "train.recipe"}
READ = ("method", "data", "language", "model", "train", "concepts", "own")
AVERAGE = "train.server_average"  # adds scores, and changes no other score


def group_runs(runs: Sequence[RunView]) -> list[Group]:
    """Return groups in the order of their titles, rows in the order of METHODS with central training first.

    Data sets of one name may differ in folder or size. Then each has its own group, named with its checksum. Raise
    FedBMError if a run is given twice.
    """
    grouped: dict[tuple[str, str], list[RunView]] = {}
    for run in runs:
        grouped.setdefault((_title(run), run.checksum), []).append(run)
    same_title = Counter(title for title, _ in grouped)
    groups = (
        _group(f"{title}, data {checksum[:8]}" if same_title[title] > 1 else title, _add_settings(members))
        for (title, checksum), members in sorted(grouped.items())
    )
    return [tested for group in groups for tested in test_rivals([group])]


def settings(run: RunView, *sections: str) -> dict[str, Any]:
    """Return {"train.lr": 0.01, …} for these sections, without the seed and what the group's title contains.

    A setting that is newer than the run has its default, with which it changes no result.
    """
    found = default_settings(run.method, sections)
    for section in sections:
        found |= {f"{section}.{key}": value for key, value in run.config.get(section, {}).items()}
    if found.get("data.partition") == "file" and run.client_partition is not None:  # such as one made in Python
        found["data.partition"] = run.client_partition.kind
    return {key: value for key, value in found.items() if key not in NOT_A_SETTING}


def default_settings(method: str, sections: Sequence[str]) -> dict[str, Any]:
    """Return {"train.lr": 0.01, …}: the defaults of these sections; none of [method] if the method is not known."""
    options = {section: METHODS.get(method) if section == "method" else SECTIONS.get(section) for section in sections}
    return {
        f"{section}.{one.name}": one.default
        for section, known in options.items()
        for one in (fields(known) if known else ())
        if one.default is not None
    }


def find_varying(all_settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys with different values; a missing key counts as a value."""
    keys = dict.fromkeys(key for one in all_settings for key in one)
    return [key for key in keys if len({repr(one.get(key)) for one in all_settings}) > 1]


def _title(run: RunView) -> str:
    beta = "" if run.beta is None else f" β\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{run.beta:g}"
    partition = run.partition.replace("dirichlet", "Dirichlet")
    return f"{run.data}, {partition}{beta}, {format_count(run.clients, 'client')}"


def _add_settings(runs: Sequence[RunView]) -> list[RunView]:
    """Label runs by the settings in which the rows of a method differ, without those that are the default."""
    named = []
    for method in dict.fromkeys(run.method for run in runs):
        own = [run for run in runs if run.method == method]
        read = [_read_settings(run) for run in own]
        usual = default_settings(method, READ)
        keys = find_varying(read)
        for run, values in zip(own, read, strict=True):
            other = {key: values[key] for key in keys if values.get(key) not in (None, usual.get(key))}
            shown = ", ".join(f"{key.removeprefix('method.')}={format_option(value)}" for key, value in other.items())
            named.append(replace(run, label=f"{title_of(method)} · {shown}" if shown else title_of(method)))
    return named


def _read_settings(run: RunView) -> dict[str, Any]:
    """Return all settings without those that the method never reads."""
    found = settings(run, *READ)
    if run.method in METHODS and not METHODS[run.method]().needs_concepts:
        return {key: value for key, value in found.items() if not key.startswith(("language.", "concepts."))}
    paths = ("language.concept_file", "language.encoder_dir")  # the same file may have several paths
    return found | {key: Path(found[key]).name for key in paths if key in found}


def _group(title: str, runs: Sequence[RunView]) -> Group:
    (label, seed), count = Counter((run.label, run.seed) for run in runs).most_common(1)[0]
    if count > 1:
        first, second = [run.path for run in runs if (run.label, run.seed) == (label, seed)][:2]
        raise FedBMError(f"{first} and {second} are the same run ({label}, seed {seed}, {title}). Remove one of them.")
    order = {name: (not method.central, place) for place, (name, method) in enumerate(METHODS.items())}
    last = (True, len(order))
    ordered = sorted(  # a method comes before its variants, which have more options in their label
        runs, key=lambda run: (order.get(run.method, last), run.method, run.label.count("="), run.label, run.seed)
    )
    finished = [run for run in ordered if run.finished]
    methods = {run.label: run.method for run in finished}
    lead = leading_row([*methods], [label for label, method in methods.items() if is_central(method)])
    rows = tuple(
        GroupRow(
            label,
            method,
            tuple(run for run in finished if run.label == label),
            rival=label != lead and not is_central(method),
        )
        for label, method in methods.items()
    )
    return Group(title, rows, tuple(run for run in ordered if not run.finished), lead)
