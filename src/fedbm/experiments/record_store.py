"""An outcome is written beside what is on record of its experiment: no finished run there is lost without a word."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.experiments.outcomes import FORMAT, Outcome, Result, read_outcome
from fedbm.experiments.spec import cells
from fedbm.runs.reader import RunView
from fedbm.runs.record import record_named, write_record
from fedbm.utils.io import atomic_write


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
    value |= {"analysis": asdict(outcome.analysis)} if outcome.analysis else {}
    lines = [f"{json.dumps(key)}: {json.dumps(item, ensure_ascii=False)}" for key, item in value.items()]
    trials = ",\n ".join(json.dumps(_trial(result), ensure_ascii=False) for result in ordered)
    with atomic_write(path) as temporary:
        temporary.write_text("{\n" + ",\n".join([*lines, f'"trials": [\n {trials}\n]']) + "\n}\n", encoding="utf-8")
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


def _there(path: Path, read: Callable[[Path], RunView | None] = record_named) -> Outcome:
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
    return before if before.state in ("failed", "unfinished") else replace(now, id=now.id or before.id)


def _trial(result: Result) -> dict[str, Any]:
    kept = {"row": result.row, "cell": result.at, "seed": result.seed, "status": result.state, "reason": result.why}
    run = result.run.id if result.run else None
    last = {"last": result.last} if result.last is not None else {}
    return {**kept, "run": run, "id": result.id or run or "", **last}
