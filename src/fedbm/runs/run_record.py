"""The record of a run: one small JSON file for a repository, with all that a report needs and no tensors.

Curves keep up to MAX_POINTS rounds, with the best and the last. Bytes and seconds are summed between kept rounds, so
totals stay exact. Scores keep all digits, curves five.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbm.engine.round_record import AveragedScores, Dropped, PersonalScores, RoundRecord, Traffic
from fedbm.engine.run_folder import FORMAT as RUN_FORMAT
from fedbm.errors import FedBMError
from fedbm.report.figures.generated_images import make_strip, read_sheet
from fedbm.runs.run_config import format_sections
from fedbm.runs.run_file_types import PHASES, SIDES, PartitionRecord, RunRecord
from fedbm.runs.run_view import RunView, facts_of, partition_digest
from fedbm.utils.io import atomic_write, read_object, write_text
from fedbm.utils.json_records import decode
from fedbm.utils.text import format_value

FORMAT = 2
MAX_POINTS = 100
STRIP = ".rounds.jpg"  # suffix of the picture of images generated after several rounds
MAX_STRIP_BYTES = 48_000
MAX_TILE = 64  # pixels of one generated image
MAX_CLASSES = 20  # with more classes the similarity of their texts is left out
SCORES = ("accuracy", "f1")  # in curves
UNKNOWN_CLIENT = Dropped(0, "")  # a record counts dropped clients only
SECTIONS = ("data", "language", "model", "method", "train", "concepts")  # not engine, which does not change results


def record_of(run: RunView) -> dict[str, Any]:
    """Return the record of a finished run, as plain values."""
    assert run.summary is not None
    if not run.rounds:
        raise FedBMError(
            f"{run.path} has no rounds.jsonl, from which its record is made. Restore the file, or remove {run.path} "
            "to start this run over."
        )
    details = dataclasses.asdict(run.details) if run.details else None
    if details and details["similarity"]:
        few = len(details["classes"]) <= MAX_CLASSES
        details["similarity"] = [[round(v, 4) for v in row] for row in details["similarity"]] if few else None
    averaged = {"averaged_last_quarter": run.averaged_last_quarter} if run.averaged_last_quarter else {}
    return {
        "format": FORMAT,
        "run": run.id,
        "config": {name: dict(run.config[name]) for name in SECTIONS if name in run.config},
        "environment": run.environment,
        "summary": {"format": RUN_FORMAT, **dataclasses.asdict(run.summary)},
        "last_quarter": run.last_quarter,
        **averaged,
        "partition": _summarise_partition(run.client_partition) if run.client_partition else None,
        "checksum": run.checksum,
        "details": details,
        "features": dataclasses.asdict(run.features) if run.features else None,
        "generated_rounds": sorted(run.round_images) if _keeps_images(run) else [],
        "curves": _curves(run.rounds, _kept_rounds(len(run.rounds), run.summary.best.round)),
    }


def write_record(run: RunView, path: Path) -> None:
    """Write the record with one line per top-level key, so that diffs are readable."""
    compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    lines = [f"{json.dumps(key)}: {compact.encode(value)}" for key, value in record_of(run).items()]
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    if _keeps_images(run):
        _write_pictures(run, path)


def _keeps_images(run: RunView) -> bool:
    """Return whether the record keeps generated images: only those of the first seed, which a report shows."""
    return run.generated is not None and run.details is not None and run.seed == 0


def read_record(path: Path) -> RunView:
    """Read a record; the result equals read_run() except for what a record does not keep.

    Raise FedBMError if the file is damaged or not named after its run.
    """
    record = decode(RunRecord, read_object(path, FORMAT), path)
    if record.run != path.stem:
        raise FedBMError(f"{path} is the record of another run, {format_value(record.run)}")
    picture, strip = path.with_suffix(".jpg"), path.with_suffix(STRIP)
    return RunView(
        **facts_of(record.summary, record.config),
        path=path,
        id=record.run,
        config=record.config,
        config_text=format_sections(record.config),
        rounds=_rounds(record.curves),
        summary=record.summary,
        environment=record.environment,
        client_partition=record.partition,
        checksum=record.checksum,
        details=record.details,
        generated=picture if picture.is_file() else None,
        strip=strip if record.generated_rounds and strip.is_file() else None,
        strip_rounds=record.generated_rounds,
        features=record.features,
        last_quarter=record.last_quarter,
        averaged_last_quarter=record.averaged_last_quarter,
    )


def _write_pictures(run: RunView, path: Path) -> None:
    """Write the generated images in reduced size, and images of several rounds in at most MAX_STRIP_BYTES."""
    assert run.generated is not None
    assert run.details is not None
    classes = len(run.details.classes)
    sheet, tile = read_sheet(run.generated, classes)
    scale = min(1.0, MAX_TILE / tile)
    small = sheet.resize((round(scale * sheet.width), round(scale * sheet.height)))
    with atomic_write(path.with_suffix(".jpg")) as temporary:
        small.save(temporary, format="JPEG", quality=80)
    if run.round_images:
        strip, _ = make_strip(run.round_images, classes)
        with atomic_write(path.with_suffix(STRIP)) as temporary:
            for quality in (80, 60, 40, 20, 10):
                strip.save(temporary, format="JPEG", quality=quality, optimize=True)
                if temporary.stat().st_size <= MAX_STRIP_BYTES:
                    break


def _kept_rounds(rounds: int, best: int) -> set[int]:
    """Return evenly spaced rounds, with the best and the last."""
    step = -(-rounds // MAX_POINTS)
    return {*range(step, rounds + 1, step), best, rounds}


def _curves(records: Sequence[RoundRecord], kept: set[int]) -> dict[str, Any]:
    """Return columns over the kept rounds; bytes, seconds and dropped clients are summed from one to the next."""
    columns: dict[str, list[Any]] = {"round": []}
    sums: dict[str, float] = {}
    for record in records:
        amounts: dict[str, float] = {"bytes.sent": record.bytes.sent, "bytes.received": record.bytes.received}
        amounts |= {f"seconds.{phase}": record.seconds.get(phase, 0.0) for phase in PHASES}
        amounts["dropped"] = len(record.dropped)
        sums = {name: sums.get(name, 0) + amount for name, amount in amounts.items()}
        if record.round not in kept:
            continue
        averaged = (record.averaged.val, record.averaged.test) if record.averaged else (None, None)
        sides = (record.val, record.test, *averaged)
        point: dict[str, Any] = {"round": record.round, "loss": _total(record.loss)}
        point |= {
            f"{side}.{s}": scores and scores[s] for side, scores in zip(SIDES, sides, strict=True) for s in SCORES
        }
        point["personal"] = record.personal and record.personal.accuracy
        point["generator"] = _total(record.generator or {})
        for name, value in {**point, **sums}.items():
            columns.setdefault(name, []).append(round(value, 5) if isinstance(value, float) else value)
        sums = {}
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}


def _rounds(curves: Mapping[str, Sequence[Any]]) -> tuple[RoundRecord, ...]:
    """Return the records of the kept rounds, as far as curves contain them."""
    made = []
    for place in range(len(curves["round"])):
        at = {name: values[place] for name, values in curves.items()}
        sides = {side: {score: at.get(f"{side}.{score}") for score in SCORES} for side in SIDES}
        val, test, averaged_val, averaged_test = (None if None in s.values() else s for s in sides.values())
        loss, personal, generator = at.get("loss"), at.get("personal"), at.get("generator")
        made.append(
            RoundRecord(
                round=at["round"],
                loss={} if loss is None else {"all": loss},
                dropped=(UNKNOWN_CLIENT,) * at.get("dropped", 0),
                generator=None if generator is None else {"all": generator},
                val=val,
                test=test,
                personal=None if personal is None else PersonalScores(personal),
                bytes=Traffic(at.get("bytes.sent", 0), at.get("bytes.received", 0)),
                seconds={phase: at.get(f"seconds.{phase}", 0.0) for phase in PHASES},
                averaged=AveragedScores(averaged_val, averaged_test) if averaged_val and averaged_test else None,
            )
        )
    return tuple(made)


def _total(terms: Mapping[str, float | None]) -> float | None:
    """Return the sum of loss terms; None if there are none or one is not finite."""
    known = [value for value in terms.values() if value is not None]
    return sum(known) if known and len(known) == len(terms) else None


def _summarise_partition(partition: PartitionRecord) -> dict[str, Any]:
    """Return counts, and a digest in place of the samples of each client."""
    return {
        "format": RUN_FORMAT,
        "kind": partition.kind,
        "settings": partition.settings,
        "counts": partition.counts,
        "classes": partition.classes,
        "moved": [None] * len(partition.moved),
        "digest": partition_digest(partition),
        **({"shift": vars(partition.shift)} if partition.shift else {}),
    }
