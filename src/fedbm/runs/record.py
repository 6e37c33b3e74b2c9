"""A run as one small JSON file, which a repository can hold: all that a report needs, without tensors.

Curves are kept at no more than MOST_POINTS rounds and the best, the last among them; bytes and seconds are summed from
one kept round to the next, so that totals stay exact. Scores keep all their digits, curves five.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.report.figures.generated import COLUMNS, make_strip
from fedbm.runs.reader import RunView, identity, partition_digest
from fedbm.runs.record_schemas import PHASES, RECORD, SIDES
from fedbm.utils.io import atomic_write, read_json
from fedbm.utils.schema import check
from fedbm.utils.text import format_value

FORMAT = 2
MOST_POINTS = 100
STRIP = ".rounds.jpg"  # after the run's id: what was generated after some rounds
STRIP_BYTES = 48_000
TILE = 64  # pixels a generated image has in a record at most
MOST_CLASSES = 20  # up to so many the similarity of their texts is kept
SCORES = ("accuracy", "f1")
WAYS = ("sent", "received")
SECTIONS = ("data", "language", "model", "method", "train", "concepts")  # not engine: nothing in it changes a result


def record_of(run: RunView) -> dict[str, Any]:
    """The record of a finished run."""
    assert run.summary is not None
    if not run.rounds:
        raise FedBMError(
            f"{run.path} has no rounds.jsonl, from which its record is made; put the file back, or remove {run.path} "
            "to start this run over"
        )
    kept = _kept([record["round"] for record in run.rounds], run.summary["best"]["round"])
    details = dict(run.details) if run.details else None
    if details and len(details["classes"]) > MOST_CLASSES:
        details["similarity"] = None
    return {
        "format": FORMAT,
        "run": run.id,
        "config": {name: dict(run.config[name]) for name in SECTIONS if name in run.config},
        "environment": dict(run.environment) if run.environment else None,
        "summary": dict(run.summary),
        "last_quarter": dict(run.last_quarter) if run.last_quarter else None,
        **({"averaged_last_quarter": dict(run.averaged_last_quarter)} if run.averaged_last_quarter else {}),
        "partition": _partition_summary(run.client_partition) if run.client_partition else None,
        "checksum": run.checksum,
        "details": _rounded(details),
        "features": dict(run.features) if run.features else None,
        "generated_rounds": sorted(run.round_images) if _shown(run) else [],
        "curves": _curves(run.rounds, kept),
    }


def write_record(run: RunView, path: Path) -> None:
    """One line per top-level key: small, and a diff of it can be read."""
    lines = [f"{json.dumps(key)}: {_compact(value)}" for key, value in record_of(run).items()]
    with atomic_write(path) as temporary:
        temporary.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    if _shown(run):
        assert run.generated is not None
        _write_picture(run.generated, path.with_suffix(".jpg"))
        if run.round_images:
            _write_strip(run, path.with_suffix(STRIP))


def renew_record(run: RunView, folder: Path) -> Path | None:
    """Write the run's record in a folder of records again, if it is there: after something was added to the run."""
    path = folder / "runs" / f"{run.id}.json"
    if not (run.finished and path.is_file()):
        return None
    write_record(run, path)
    return path


def _shown(run: RunView) -> bool:
    """Generated images are kept of the first seed: a report shows no more."""
    return run.generated is not None and run.details is not None and run.seed == 0


def read_record(path: Path) -> RunView:
    """The run of a record, as read_run() would give it but for what a record leaves out."""
    value = read_json(path)
    if not isinstance(value, dict) or value.get("format") != FORMAT or "summary" not in value:
        raise FedBMError(
            f"{path} is not a record of a run that this FedBM reads; 'fedbm reproduce' and 'fedbm sweep' write them"
        )
    check(value, RECORD, path)
    return RunView(
        **identity(value["summary"]),
        path=path,
        id=value["run"],
        config=value["config"],
        config_text=_toml(value["config"]),
        rounds=_rounds(value["curves"]),
        summary=value["summary"],
        environment=value["environment"],
        client_partition=value["partition"],
        checksum=value["checksum"],
        details=value["details"],
        generated=picture if (picture := path.with_suffix(".jpg")).is_file() else None,
        strip=strip if value["generated_rounds"] and (strip := path.with_suffix(STRIP)).is_file() else None,
        strip_rounds=tuple(value["generated_rounds"]),
        features=value["features"],
        last_quarter=value.get("last_quarter"),
        averaged_last_quarter=value.get("averaged_last_quarter"),
    )


def record_named(path: Path) -> RunView:
    """The record of the run that its file is named after."""
    found = read_record(path)
    if found.id != path.stem:
        raise FedBMError(f"{path} is the record of another run, {format_value(found.id)}")
    return found


def _write_picture(source: Path, path: Path) -> None:
    """The generated images of the first seed, small: the report needs an impression, not every pixel."""
    import PIL.Image

    with PIL.Image.open(source) as sheet:
        scale = min(1.0, TILE * COLUMNS / sheet.width)
        size = (round(scale * sheet.width), round(scale * sheet.height))
        small = sheet.convert("RGB" if sheet.mode not in ("L", "1") else "L").resize(size)
    with atomic_write(path) as temporary:
        small.save(temporary, format="JPEG", quality=80)


def _write_strip(run: RunView, path: Path) -> None:
    """As good as STRIP_BYTES allow."""
    assert run.details is not None
    strip, _ = make_strip(run.round_images, len(run.details["classes"]))
    with atomic_write(path) as temporary:
        for quality in (80, 60, 40, 20, 10):
            strip.save(temporary, format="JPEG", quality=quality, optimize=True)
            if temporary.stat().st_size <= STRIP_BYTES:
                break


def _kept(rounds: Sequence[int], best: int) -> set[int]:
    """Evenly spaced, the best and the last among them."""
    step = -(-len(rounds) // MOST_POINTS)
    return set(rounds[step - 1 :: step]) | {best, *rounds[-1:]}


def _curves(records: Sequence[Mapping[str, Any]], kept: set[int]) -> dict[str, Any]:
    """Columns over the kept rounds."""
    columns: dict[str, list[Any]] = {"round": []}
    sums: dict[str, float] = {}
    for record in records:
        sums = _added(sums, {f"bytes.{way}": record["bytes"][way] for way in WAYS})
        sums = _added(sums, {f"seconds.{key}": record["seconds"].get(key, 0.0) for key in PHASES})
        sums = _added(sums, {"dropped": len(record["dropped"])})
        if record["round"] not in kept:
            continue
        point: dict[str, Any] = {"loss": _sum(record["loss"])}
        averaged = record.get("averaged") or {}
        sides = {side: averaged.get(side.removeprefix("averaged."), {}) for side in SIDES}
        sides |= {side: record[side] or {} for side in ("val", "test")}
        point |= {f"{side}.{s}": found.get(s) for side, found in sides.items() for s in SCORES}
        point["personal"] = (record["personal"] or {}).get("accuracy")
        point["generator"] = _sum(record["generator"] or {})
        columns["round"].append(record["round"])
        for name, value in {**point, **sums}.items():
            columns.setdefault(name, []).append(round(value, 5) if isinstance(value, float) else value)
        sums = {}
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}


def _rounds(curves: Mapping[str, Sequence[Any]]) -> tuple[Mapping[str, Any], ...]:
    """Records of rounds again, with what curves hold of them."""
    made = []
    for place, number in enumerate(curves["round"]):
        at = {name: values[place] for name, values in curves.items()}

        def scores(side: str, at: Mapping[str, Any] = at) -> dict[str, Any] | None:
            found = {name: at.get(f"{side}.{name}") for name in SCORES}
            return found if None not in found.values() else None

        averaged = {side: scores(f"averaged.{side}") for side in ("val", "test")}
        made.append(
            {
                "round": number,
                "loss": {"all": at["loss"]} if at.get("loss") is not None else {},
                "val": scores("val"),
                "test": scores("test"),
                "averaged": averaged if None not in averaged.values() else None,
                "personal": {"accuracy": at["personal"]} if at.get("personal") is not None else None,
                "generator": {"all": at["generator"]} if at.get("generator") is not None else None,
                "dropped": range(at.get("dropped", 0)),
                "bytes": {way: at.get(f"bytes.{way}", 0) for way in WAYS},
                "seconds": {phase: at.get(f"seconds.{phase}", 0.0) for phase in PHASES},
            }
        )
    return tuple(made)


def _sum(terms: Mapping[str, float | None]) -> float | None:
    """None where a term is not finite, or there is none."""
    known = [value for value in terms.values() if value is not None]
    return sum(known) if known and len(known) == len(terms) else None


def _added(sums: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {**sums, **{key: sums.get(key, 0) + value for key, value in more.items()}}


def _partition_summary(partition: Mapping[str, Any]) -> dict[str, Any]:
    """Counts and a digest in place of the numbers of all samples."""
    kept = {key: partition[key] for key in ("format", "kind", "settings", "counts", "classes") if key in partition}
    return {**kept, "moved": [None] * len(partition.get("moved") or ()), "digest": partition_digest(partition)}


def _rounded(details: dict[str, Any] | None) -> dict[str, Any] | None:
    if details and details.get("similarity"):
        details["similarity"] = [[round(value, 4) for value in row] for row in details["similarity"]]
    return details


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _toml(config: Mapping[str, Mapping[str, Any]]) -> str:
    lines: list[str] = []
    for section, pairs in config.items():
        lines += [
            f"[{section}]",
            *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in pairs.items()),
            "",
        ]
    return "\n".join(lines)
