"""Merge results into an experiment's saved record without dropping finished runs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.experiments.outcomes import FORMAT, Outcome, read_outcome
from fedbm.experiments.spec import cells
from fedbm.experiments.trials import Trial
from fedbm.runs.run_record import write_record
from fedbm.utils.io import atomic_write, cannot_write, lock_file, make_folder
from fedbm.utils.text import format_count

PROGRESS = {"unfinished": 1, "failed": 1, "finished": 2}  # of a run by its state; 0 for others


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
    path = folder / f"{outcome.name}.json"
    before = {result.key: result for result in kept_results(outcome, folder)}
    for result in outcome.results:
        if result.run is not None and result.run.path != (record := folder / "runs" / f"{result.run.id}.json"):
            write_record(result.run, record)
    merged = {**before, **{r.key: _merge(before.get(r.key), r) for r in outcome.results}}
    places, rows = cells(outcome.axes), list(outcome.rows)
    ordered = sorted(merged.values(), key=lambda r: (places.index(dict(r.at)), rows.index(r.row), r.seed))
    head = ("title", "shows", "paper", "figure", "lead", "notes", "search", "command", "shared", "axes", "rows")
    value = {"format": FORMAT, "experiment": outcome.name, **{key: getattr(outcome, key) for key in head}}
    value |= {"analysis": asdict(outcome.analysis)} if outcome.analysis else {}
    lines = [f"{json.dumps(key)}: {json.dumps(item, ensure_ascii=False)}" for key, item in value.items()]
    trials = ",\n ".join(json.dumps(_trial(result), ensure_ascii=False) for result in ordered)
    with atomic_write(path) as temporary:
        temporary.write_text("{\n" + ",\n".join([*lines, f'"trials": [\n {trials}\n]']) + "\n}\n", encoding="utf-8")
    return path


def kept_results(now: Outcome, folder: Path) -> list[Trial]:
    """Return the results on record in *folder* that the experiment still plans: same row and cell, no other run id.

    Raise FedBMError if a finished run on record is not among them. Such runs have other data or settings, or belong to
    another grid of the same name. A run that *now* contains is kept, whatever its row and cell are called.
    """
    path = folder / f"{now.name}.json"
    if not path.exists():
        return []
    before, runs = read_outcome(path, with_runs=False), folder / "runs"
    there = [r for r in before.results if r.state != "finished" or (runs / f"{r.id}.json").exists()]
    ids = {result.key: result.id for result in now.results}
    known = [r for r in there if r.id and ids.get(r.key)]
    planned = {(row, json.dumps(at, sort_keys=True)) for row in now.rows for at in cells(now.axes)}
    if dict(now.shared) != dict(before.shared):  # without the data, ids are not known, and nothing else is compared
        planned &= {r.key[:2] for r in known}
    planned -= {r.key[:2] for r in known if ids[r.key] != r.id}
    kept = [r for r in there if r.key[:2] in planned]
    lost = {r.id for r in there if r.state == "finished"} - {r.id for r in (*now.results, *kept)}
    if lost:
        raise FedBMError(
            f"{path} contains {format_count(len(lost), 'finished run')} with other data, settings or rows, which would "
            "be dropped. Choose another folder for records, or remove that file if you no longer need it."
        )
    return kept


def _merge(before: Trial | None, now: Trial) -> Trial:
    """Return the newer result of a trial; keep the recorded one if that run got further."""
    if before is None or PROGRESS.get(before.state, 0) <= PROGRESS.get(now.state, 0):
        return replace(now, id=now.id or (before.id if before else ""))
    return before


def _trial(result: Trial) -> dict[str, Any]:
    id_ = result.run.id if result.run else result.id
    kept = {"row": result.row, "cell": result.at, "seed": result.seed, "status": result.state, "reason": result.why}
    last = {"last": result.last} if result.last is not None else {}
    return {**kept, "run": id_ if result.state == "finished" else None, "id": id_, **last}
