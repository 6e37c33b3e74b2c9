"""An experiment with what came of it: every cell's runs, and for a run that is not there the reason.

results/<experiment>.json names the trials; results/runs/<id>.json are the records of their finished runs. Both are
small enough to be kept with the code, and a report needs nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.experiments.estimate import Estimate
from fedbm.experiments.files import Experiment, cells, shipped
from fedbm.experiments.trials import DONE, Standing, finished_run, key_of
from fedbm.files import read_json, replacing
from fedbm.results.cost import show_seconds
from fedbm.results.records import read_record, write_record
from fedbm.results.runs import RunView, read_run

FORMAT = 1

TITLE = "FedBM: the paper’s tables and figures, measured again"


@dataclass(frozen=True)
class Result:
    """One trial: its run where it is finished, else its state and the reason in words."""

    row: str
    at: Mapping[str, Any]
    seed: int
    state: str
    why: str
    run: RunView | None
    takes: str = ""  # how long it would take, and on what; "" where that is not known
    id: str = ""  # of its run, finished or not; "" where that is not known

    @property
    def key(self) -> tuple[str, str, int]:
        return key_of(self.row, self.at, self.seed)


@dataclass(frozen=True)
class Outcome:
    """What a report shows of one experiment."""

    name: str
    title: str
    shows: str
    paper: str
    figure: str
    lead: str  # the row its file names; "": none
    notes: tuple[str, ...]
    search: tuple[str, ...]
    shared: Mapping[str, Any]
    axes: Mapping[str, Sequence[Any]]
    rows: tuple[str, ...]
    command: str
    results: tuple[Result, ...]

    def cell(self, row: str, at: Mapping[str, Any]) -> list[Result]:
        return [result for result in self.results if result.row == row and result.at == at]


def command_of(name: str) -> str:
    """What runs an experiment: the paper's by its name, one's own by its file."""
    return f"fedbm reproduce {name} --data DIR" if name in shipped() else f"fedbm sweep {name}.toml"


def title_of(outcomes: Sequence[Outcome]) -> str:
    """The paper's share a title; an experiment of one's own has its own."""
    own = [outcome.title for outcome in outcomes if outcome.name not in shipped() or len(outcomes) == 1]
    return "; ".join([TITLE] * (len(own) < len(outcomes)) + own)


def outcome_of(experiment: Experiment, standings: Sequence[Standing], told: Estimate | None = None) -> Outcome:
    """From run folders and records; *told*: what the runs that are left take."""
    unread = unread_outcome(experiment, standings)
    results = [
        replace(result, why=s.why or _words(s), run=finished_run(s) if s.state in DONE else None, takes=_takes(s, told))
        for result, s in zip(unread.results, standings, strict=True)
    ]
    return replace(unread, results=tuple(results))


def unread_outcome(experiment: Experiment, standings: Sequence[Standing]) -> Outcome:
    """Which runs there are, by their ids, and in which state; none is read."""
    return with_results(
        experiment,
        [
            Result(
                s.trial.row,
                s.trial.at,
                s.trial.seed,
                "finished" if s.state in DONE else s.state,
                s.why,
                None,
                id=s.folder.name if s.folder else "",
            )
            for s in standings
        ],
    )


def with_results(experiment: Experiment, results: Sequence[Result]) -> Outcome:
    return Outcome(
        name=experiment.name,
        title=experiment.title,
        shows=experiment.shows,
        paper=experiment.paper,
        figure=experiment.figure,
        lead=experiment.lead,
        notes=experiment.notes,
        search=experiment.search,
        shared=experiment.shared,
        axes=experiment.axes,
        rows=tuple(row.name for row in experiment.rows),
        command=command_of(experiment.name),
        results=tuple(results),
    )


def _takes(standing: Standing, told: Estimate | None) -> str:
    seconds = told.each.get(standing.folder) if told and standing.folder else None
    return f"about {show_seconds(seconds)} on {told.device}" if told and seconds is not None else ""


def _words(standing: Standing) -> str:
    if standing.state == "unfinished" and standing.folder and (standing.folder / "config.toml").exists():
        run = read_run(standing.folder)
        return f"{len(run.rounds)} of {run.planned} rounds played"
    return ""


def write_outcome(outcome: Outcome, folder: Path) -> Path:
    """Write trials and records to *folder*.

    What another machine finished and recorded there stays; where it cannot, as would_drop() says, nothing is written.
    Of what is not finished, a row or cell that is no longer in the experiment goes, and so does one whose runs would
    now be others.
    """
    if sentence := would_drop(outcome, folder):
        raise FedBMError(sentence)
    path = folder / f"{outcome.name}.json"
    for result in outcome.results:  # before former ones are read: a damaged record of a run that is here is mended
        if result.run is not None and result.run.path != (record := folder / "runs" / f"{result.run.id}.json"):
            write_record(result.run, record)
    before = {result.key: result for result in _still_meant(outcome, _there(path))} if path.exists() else {}
    merged = {**before, **{r.key: _together(before.get(r.key), r) for r in outcome.results}}
    order = {name: place for place, name in enumerate(outcome.rows)}
    place = {json.dumps(at, sort_keys=True): number for number, at in enumerate(cells(outcome.axes))}
    ordered = sorted(merged.values(), key=lambda r: (place.get(r.key[1], len(place)), order.get(r.row, 0), r.seed))
    told = ("title", "shows", "paper", "figure", "lead", "notes", "search", "command")
    head = {key: getattr(outcome, key) for key in told}
    value = {"format": FORMAT, "experiment": outcome.name, **head}
    value |= {"shared": outcome.shared, "axes": outcome.axes, "rows": outcome.rows}
    lines = [f"{json.dumps(key)}: {json.dumps(item, ensure_ascii=False)}" for key, item in value.items()]
    trials = ",\n ".join(json.dumps(_trial(result), ensure_ascii=False) for result in ordered)
    with replacing(path) as beside:
        beside.write_text("{\n" + ",\n".join([*lines, f'"trials": [\n {trials}\n]']) + "\n}\n", encoding="utf-8")
    return path


def would_drop(now: Outcome, folder: Path, by: str = "--records") -> str:
    """The sentence that refuses to write *now* to *folder*: which finished runs on record there would go; "": none.

    They are of other data or settings, or of another grid of this name. A run that *now* has too stays, whatever its
    row and cell are called. *by*: the option that chooses the folder.
    """
    path = folder / f"{now.name}.json"
    if not path.exists():
        return ""
    before = _there(path, lambda record: None)
    stay = {result.id for result in (*now.results, *_still_meant(now, before))}
    gone = {result.id for result in before.results if result.state == "finished"} - stay
    if not gone:
        return ""
    return (
        f"{path} holds {len(gone)} finished run{'s' * (len(gone) > 1)} of other data, settings or rows than these, and "
        f"would lose them: give the records of these another folder by {by} DIR, or remove that file if what it holds "
        "is no longer wanted"
    )


def read_outcome(path: Path, read: Callable[[Path], RunView | None] = read_record) -> Outcome:
    value = read_json(path)
    if not isinstance(value, dict) or value.get("format") != FORMAT or "trials" not in value:
        raise FedBMError(f"{path} holds no experiment that this FedBM reads; 'fedbm records' writes them")
    runs = path.parent / "runs"
    try:
        return Outcome(
            name=value["experiment"],
            **{key: value[key] for key in ("title", "shows", "paper", "figure", "shared", "axes", "command")},
            lead=value.get("lead", ""),  # records of before it could be named have none
            notes=tuple(value["notes"]),
            search=tuple(value["search"]),
            rows=tuple(value["rows"]),
            results=tuple(
                Result(
                    t["row"],
                    t["at"],
                    t["seed"],
                    t["state"],
                    t["why"],
                    read(runs / f"{t['run']}.json") if t["run"] else None,
                    t["takes"],
                    t.get("id") or t["run"] or "",
                )
                for t in value["trials"]
            ),
        )
    except (KeyError, TypeError) as error:
        raise FedBMError(f"{path} lacks {error}: it is not the file 'fedbm records' writes") from error


def read_outcomes(folder: Path) -> list[Outcome]:
    """Every experiment in a folder of records, the paper's in their own order."""
    order = {name: place for place, name in enumerate(shipped())}
    found = sorted(folder.glob("*.json"), key=lambda path: (order.get(path.stem, len(order)), path.stem))
    if not found:
        raise FedBMError(f"{folder} holds no records of experiments; 'fedbm records' writes them")
    return [read_outcome(path) for path in found]


def _there(path: Path, read: Callable[[Path], RunView | None] = read_record) -> Outcome:
    """The outcome, without finished runs whose records were removed."""
    found = read_outcome(path, lambda record: read(record) if record.exists() else None)
    runs = path.parent / "runs"
    kept = (r for r in found.results if r.state != "finished" or (runs / f"{r.id}.json").exists())
    return replace(found, results=tuple(kept))


def _still_meant(now: Outcome, before: Outcome) -> list[Result]:
    """The results of before whose row and cell are in the file, and of which no seed has another id now.

    Where no id is known, as without the data, what all runs share must be the same.
    """
    ids = {result.key: result.id for result in now.results}
    there = {(row, json.dumps(at, sort_keys=True)) for row in now.rows for at in cells(now.axes)}
    known = [r for r in before.results if r.id and ids.get(r.key)]
    other = {r.key[:2] for r in known if ids[r.key] != r.id}
    if dict(now.shared) != dict(before.shared):
        there &= {r.key[:2] for r in known}
    return [result for result in before.results if result.key[:2] in there - other]


def _together(before: Result | None, now: Result) -> Result:
    """What is known of a trial: a run whose folder is here speaks for itself, of others another machine may know more.

    A finished run stays, whatever a folder of the same id has of it: they would end alike.
    """
    if before is None or now.run is not None:
        return now
    if before.run is not None:
        return before
    if now.state not in ("not run", "absent"):
        return now
    takes = now.takes or before.takes
    if before.state in ("failed", "unfinished"):
        return replace(before, takes=takes)
    return replace(now, takes=takes, id=now.id or before.id)


def _trial(result: Result) -> dict[str, Any]:
    kept = {"row": result.row, "at": result.at, "seed": result.seed, "state": result.state, "why": result.why}
    run = result.run.id if result.run else None
    return {**kept, "takes": result.takes, "run": run, "id": result.id or run or ""}
