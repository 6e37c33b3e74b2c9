"""Merge results into an experiment's saved record without dropping finished runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.experiments.outcomes import FORMAT, Outcome, read_outcome
from fedbm.experiments.spec import cells
from fedbm.experiments.trials import Trial
from fedbm.runs.run_record import read_checked_record, write_record
from fedbm.runs.run_view import RunView
from fedbm.utils.io import atomic_write, cannot_write, lock_file, make_folder


def write_outcome(outcome: Outcome, folder: Path) -> Path:
    """Write trials and records to *folder* and return the experiment's file.

    Finished runs on record there are kept. Unfinished runs are dropped if the experiment no longer has their row or
    cell, or if their settings changed. Several processes can write to one folder at the same time.
    Nothing is written if a finished run on record would be dropped: this is an error.
    """
    make_folder(folder)
    try:
        with (folder / ".lock").open("a") as handle:
            lock_file(handle.fileno(), wait=True)
            return _merge_outcome(outcome, folder)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _merge_outcome(outcome: Outcome, folder: Path) -> Path:
    if sentence := would_drop(outcome, folder):
        raise FedBMError(sentence)
    path = folder / f"{outcome.name}.json"
    for result in outcome.results:  # first, because this repairs damaged records of runs that are here
        if result.run is not None and result.run.path != (record := folder / "runs" / f"{result.run.id}.json"):
            write_record(result.run, record)
    before = {result.key: result for result in _still_planned(outcome, _read_existing(path))} if path.exists() else {}
    merged = {**before, **{r.key: _merge(before.get(r.key), r) for r in outcome.results}}
    order = {name: place for place, name in enumerate(outcome.rows)}
    place = {json.dumps(at, sort_keys=True): number for number, at in enumerate(cells(outcome.axes))}
    ordered = sorted(merged.values(), key=lambda r: (place.get(r.key[1], len(place)), order.get(r.row, 0), r.seed))
    head = ("title", "shows", "paper", "figure", "lead", "notes", "search", "command", "shared", "axes", "rows")
    value = {"format": FORMAT, "experiment": outcome.name, **{key: getattr(outcome, key) for key in head}}
    value |= {"analysis": asdict(outcome.analysis)} if outcome.analysis else {}
    lines = [f"{json.dumps(key)}: {json.dumps(item, ensure_ascii=False)}" for key, item in value.items()]
    trials = ",\n ".join(json.dumps(_trial(result), ensure_ascii=False) for result in ordered)
    with atomic_write(path) as temporary:
        temporary.write_text("{\n" + ",\n".join([*lines, f'"trials": [\n {trials}\n]']) + "\n}\n", encoding="utf-8")
    return path


def would_drop(now: Outcome, folder: Path) -> str:
    """Return a sentence if writing *now* to *folder* would drop finished runs on record there; "" otherwise.

    Such runs have other data or settings, or belong to another grid of the same name. A run that *now* contains is
    kept, whatever its row and cell are called.
    """
    path = folder / f"{now.name}.json"
    if not path.exists():
        return ""
    before = _read_existing(path, lambda record: None)
    stay = {result.id for result in (*now.results, *_still_planned(now, before))}
    gone = {result.id for result in before.results if result.state == "finished"} - stay
    if not gone:
        return ""
    return (
        f"{path} contains {len(gone)} finished run{'s' * (len(gone) > 1)} with other data, settings or rows, which "
        "would be dropped. Choose another folder for records, or remove that file if you no longer need it."
    )


def _read_existing(path: Path, read: Callable[[Path], RunView | None] = read_checked_record) -> Outcome:
    """Return the recorded outcome without finished runs that no longer have a record file."""
    found = read_outcome(path, lambda record: read(record) if record.exists() else None)
    runs = path.parent / "runs"
    kept = (r for r in found.results if r.state != "finished" or (runs / f"{r.id}.json").exists())
    return replace(found, results=tuple(kept))


def _still_planned(now: Outcome, before: Outcome) -> list[Trial]:
    """Return the earlier results that the experiment still plans: same row and cell, and no seed with another id.

    Without the data, ids are not known; then the settings that all runs share must be equal.
    """
    ids = {result.key: result.id for result in now.results}
    there = {(row, json.dumps(at, sort_keys=True)) for row in now.rows for at in cells(now.axes)}
    known = [r for r in before.results if r.id and ids.get(r.key)]
    other = {r.key[:2] for r in known if ids[r.key] != r.id}
    if dict(now.shared) != dict(before.shared):
        there &= {r.key[:2] for r in known}
    return [result for result in before.results if result.key[:2] in there - other]


def _merge(before: Trial | None, now: Trial) -> Trial:
    """Return the newer result of a trial; keep the recorded one if its run is finished or has no folder here."""
    if before is None or now.run is not None:
        return now
    if before.run is not None:
        return before
    if now.state not in ("not run", "absent"):
        return now
    return before if before.state in ("failed", "unfinished") else replace(now, id=now.id or before.id)


def _trial(result: Trial) -> dict[str, Any]:
    kept = {"row": result.row, "cell": result.at, "seed": result.seed, "status": result.state, "reason": result.why}
    run = result.run.id if result.run else None
    last = {"last": result.last} if result.last is not None else {}
    return {**kept, "run": run, "id": result.id or run or "", **last}
