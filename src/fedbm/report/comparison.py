"""Compare the rows of an experiment, in a group per cell: scores over seeds, the paper's numbers, and differences.

An experiment that states contrasts has contrasts instead of tests (`report/contrasts.py`). A search has neither,
because the test images must not influence its choice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbm.data.catalog.entries import CATALOG
from fedbm.experiments.outcomes import Outcome, hide_withheld
from fedbm.experiments.paper_numbers import find_deviations, find_published
from fedbm.experiments.spec import cells
from fedbm.methods import METHODS, is_central
from fedbm.report.contrasts import add_contrasts, test_rivals
from fedbm.report.group import Group, GroupRow, leading_row

CENTRAL = tuple(method.title for method in METHODS.values() if method.central)


def compare_outcome(outcome: Outcome) -> list[Group]:
    """Return a group for every cell of an experiment. Withheld runs are missing."""
    outcome = hide_withheld(outcome)
    central = {*CENTRAL, *(r.row for r in outcome.results if r.run is not None and is_central(r.run.method))}
    firsts = [first for first, _ in outcome.analysis.contrasts] if outcome.analysis else []
    lead = leading_row([*firsts, *outcome.rows], central, outcome.lead)
    groups = test_rivals([_cell(outcome, at, lead, central) for at in cells(outcome.axes)])
    return add_contrasts(outcome.analysis, groups)


def _cell(outcome: Outcome, at: Mapping[str, Any], lead: str, central: Collection[str]) -> Group:
    settings = {"data": "digits", "beta": None, **outcome.shared, **at}
    data = Path(str(settings["data"])).stem
    rows = []
    for name in outcome.rows:
        results = outcome.cell(name, at)
        runs = tuple(replace(result.run, label=name) for result in results if result.run is not None)
        rows.append(
            GroupRow(
                name,
                runs[0].method if runs else "",
                runs,
                missing=tuple(result for result in results if result.run is None),
                published=find_published(outcome.paper, data, settings["beta"], name),
                deviations=tuple(find_deviations(outcome.name, name, data)) if runs else (),
                rival=not (outcome.analysis or outcome.search) and name not in (lead, *central),
            )
        )
    title = ", ".join([data_title(data), *setting_words(outcome, at)])
    return Group(title, tuple(rows), (), lead if any(row.runs for row in rows) else "", data, at)


def setting_words(outcome: Outcome, at: Mapping[str, Any]) -> list[str]:
    """Return ['β = 0.05', 'clients 5']."""
    beta = at.get("beta", outcome.shared.get("beta"))
    return [
        *([f"β\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{beta:g}"] if beta is not None else []),
        *(f"{axis} {value}" for axis, value in at.items() if axis not in ("data", "beta")),
    ]


def data_title(data: str) -> str:
    """Return 'HAM10000' for ham10000; the name itself for the user's own data set."""
    return re.split(r":| \(", CATALOG[data].title)[0] if data in CATALOG else data
