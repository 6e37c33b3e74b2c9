"""read_run(folder) → RunView: what a run folder holds, checked and read-only, finished or not."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from fedbm.config.options import BY_BETA
from fedbm.data.catalog.lookup import CATALOG
from fedbm.engine.checkpoint import rounds_behind
from fedbm.engine.environment import settings_digest
from fedbm.engine.run_folder import FORMAT, read_rounds
from fedbm.errors import FedBMError
from fedbm.runs.config import at_beta, make_config, method_label
from fedbm.runs.failure import failure_of
from fedbm.runs.record_schemas import CONFIG, DETAILS, ENVIRONMENT, FEATURES, FEDERATION, PARTITION, ROUND, SUMMARY
from fedbm.utils.io import digest_of, read_json
from fedbm.utils.schema import Lengths, Schema, check

EDITED = (
    "was edited since the run began: put back the settings it was begun with, or remove its folder to start it over"
)
REWRITE = "; remove it: the command that made the run writes it again"  # of summary.json, from the last checkpoint


@dataclass(frozen=True)
class RunView:
    """One run. The files it may lack are None; only a finished run has a summary."""

    path: Path
    id: str
    method: str
    label: str  # the method and its options that are not the default
    data: str
    partition: str
    beta: float | None
    clients: int
    seed: int
    planned: int  # rounds asked for
    config: Mapping[str, Any]
    config_text: str
    rounds: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any] | None
    environment: Mapping[str, Any] | None
    client_partition: Mapping[str, Any] | None  # partition.json: how many samples of each class a client has
    checksum: str  # of the data, or "" where it is not on record
    details: Mapping[str, Any] | None
    generated: Path | None
    round_images: Mapping[int, Path] = field(default_factory=dict)  # round → generated/<round>.png
    strip: Path | None = None  # of a record, in place of *round_images*: the rounds side by side
    strip_rounds: tuple[int, ...] = ()
    edited: bool = False  # config.toml has other settings than the run began with
    failure: str = ""  # why it failed, where it did
    features: Mapping[str, Any] | None = None  # features.json
    last_quarter: Mapping[str, float | None] | None = None  # last_quarter_scores() of a finished run
    averaged_last_quarter: Mapping[str, float | None] | None = None  # the same of its averaged model, where it has one

    @property
    def finished(self) -> bool:
        return self.summary is not None

    def scores(self, moment: str) -> Mapping[str, Any] | None:
        """Return test scores at "best" (the round chosen on validation), "last", or over the "last_quarter".

        "averaged" and "averaged_last_quarter" are those of the averaged model; None if the run has none.
        """
        if self.summary is None:
            return None
        means = {"last_quarter": self.last_quarter, "averaged_last_quarter": self.averaged_last_quarter}
        return means[moment] if moment in means else self.summary.get(moment)

    @property
    def train_images(self) -> int:
        return sum(map(sum, self.client_partition["counts"])) if self.client_partition else 0

    @property
    def state(self) -> str:
        """In words, for lists of runs."""
        if self.finished:
            return "finished"
        done = f"{len(self.rounds)} of {self.planned} rounds"
        return f"failed after {done}: {self.failure}" if self.failure else f"unfinished, {done}"


def read_runs(folders: Sequence[Path]) -> list[RunView]:
    """Every run once, however often and by whichever name its folder was given; one that was edited is refused."""
    if not folders:
        raise FedBMError("no run was given; name at least one run folder, such as runs/*")
    return [unedited(read_run(folder)) for folder in {folder.resolve(): folder for folder in folders}.values()]


def unedited(run: RunView) -> RunView:
    """*run*, whose scores are then of the settings beside them."""
    if run.edited:
        raise FedBMError(f"{run.path / 'config.toml'} {EDITED}")
    return run


def check_resumable(folder: Path) -> None:
    """FedBMError where a run would go on, or be shown, beside a config.toml that does not tell of it."""
    if (folder / "summary.json").exists() or rounds_behind(folder):  # else it begins again, and so does its config.toml
        unedited(read_run(folder))


def read_run(path: str | Path) -> RunView:
    path = Path(path)
    text = _config_text(path)
    try:
        config = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FedBMError(f"cannot read {path / 'config.toml'}: {error}") from error
    check(config, CONFIG, path / "config.toml")
    lengths: Lengths = {}  # what the files of one run have as many of
    summary = _optional(path / "summary.json", SUMMARY, lengths, REWRITE)
    partition = _optional(path / "partition.json", PARTITION, lengths)
    if summary is not None:
        facts = identity(summary)
    else:
        facts = _asked_for(config) | _partition_facts(path, partition)
        facts["label"] = _label(config, facts["data"], partition)
    environment = _optional(path / "environment.json", ENVIRONMENT, lengths)
    kept = (environment or {}).get("settings")  # older versions kept none
    generated, rounds = path / "generated.png", read_rounds(path / "rounds.jsonl")
    _all_there(path / "rounds.jsonl", rounds, facts["planned"] if summary is not None else None)
    averages = [{"round": record["round"], **(record.get("averaged") or {})} for record in rounds]
    last_quarter, averaged_last_quarter = (
        last_quarter_scores(some, facts["planned"]) if summary is not None else None for some in (rounds, averages)
    )
    return RunView(
        **facts,
        path=path,
        id=path.name if summary is None else str(summary.get("id", path.name)),
        config=config,
        config_text=text,
        rounds=rounds,
        summary=summary,
        environment=environment,
        client_partition=partition,
        checksum=str(partition.get("of", {}).get("checksum", "")) if partition else "",
        details=_optional(path / "details.json", DETAILS, lengths),
        generated=generated if generated.is_file() else None,
        round_images={int(p.stem): p for p in sorted(path.glob("generated/*.png")) if p.stem.isdecimal()},
        edited=kept is not None and kept != settings_digest(config),
        failure=failure_of(path) if summary is None else "",
        features=_optional(path / "features.json", FEATURES, lengths),
        last_quarter=last_quarter,
        averaged_last_quarter=averaged_last_quarter,
    )


def last_quarter_scores(rounds: Sequence[Mapping[str, Any]], planned: int) -> dict[str, float | None] | None:
    """Mean test scores over the last quarter of the rounds planned: of a typical round, not of a lucky one.

    None where none of them was evaluated on test images; a score that one of them lacks is None.
    """
    found = [r["test"] for r in rounds if r["round"] > 0.75 * planned and r.get("test")]
    if not found:
        return None
    values = {name: [one[name] for one in found] for name in found[0]}
    return {name: None if None in some else fmean(some) for name, some in values.items()}


def partition_digest(partition: Mapping[str, Any]) -> str:
    """What is equal where clients hold the same samples; a record keeps it in place of the samples' numbers."""
    return str(partition.get("digest") or digest_of({"clients": partition["clients"]}))


def _config_text(path: Path) -> str:
    try:
        return (path / "config.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if not path.is_dir():
            raise FedBMError(f"{path} is no run: there is no such folder") from error
        inside = any(path.glob("*/config.toml"))
        hint = f"; it holds runs, so give {path}/*" if inside else "; a run folder is what 'fedbm run' writes"
        raise FedBMError(f"{path} is no run: it holds no readable config.toml{hint}") from error


def identity(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a summary says the run is."""
    same = ("method", "label", "data", "partition", "beta", "clients", "seed")
    return {key: summary[key] for key in same} | {"planned": summary["rounds"]}


def _all_there(source: Path, rounds: Sequence[Mapping[str, Any]], planned: int | None) -> None:
    """Of a finished run (*planned*) every round: a mean over those that happen to be left would pass for one of all."""
    for number, record in enumerate(rounds, 1):
        check(record, ROUND, f"line {number} of {source}")
    numbers = [record["round"] for record in rounds]
    if planned and source.is_file() and (len(numbers) != planned or numbers != list(range(1, planned + 1))):
        raise FedBMError(
            f"{source} should hold rounds 1 to {planned} of a finished run, but holds {len(rounds)} of them; put the "
            f"file back, or remove {source.parent} to start this run over"
        )


def _asked_for(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the summary of an unfinished run would say it is, as far as its configuration tells."""
    data, train, method = config["data"], config["train"], config["method"]
    return {
        "method": method["name"],
        "data": Path(data["name"]).stem,
        "partition": data["partition"],
        "beta": data["beta"] if data["partition"] in BY_BETA else None,
        "clients": data["clients"],
        "seed": train["seed"],
        "planned": train["rounds"],
    }


def _label(config: Mapping[str, Any], data: str, partition: Mapping[str, Any] | None) -> str:
    """The method and its options; its name alone where it was made in Python, or by another version."""
    if "own" in config:
        return str(config["method"]["name"])
    entry = CATALOG.get(data)
    known = entry is not None and list(entry.classes) == list((partition or {}).get("classes", entry.classes))
    asked = config["data"]
    recommends = at_beta(entry.recommends, asked["partition"], asked["beta"]) if entry and known else {}
    try:
        return method_label(make_config({"method": config["method"]}).method, recommends)
    except FedBMError:
        return str(config["method"]["name"])


def _partition_facts(path: Path, partition: Mapping[str, Any] | None) -> dict[str, Any]:
    """Who holds what in an unfinished run: a column, a file or nodes may make other clients than were configured."""
    if partition is not None:
        named = {"data": partition["of"]["data"]} if "of" in partition else {}
        of = {
            "partition": partition["kind"],
            "beta": partition["settings"].get("beta"),
            "clients": len(partition["counts"]),
        }
        return named | of
    federation = _optional(path / "federation.json", FEDERATION, {})
    return {"partition": "nodes", "beta": None, "clients": federation["options"]["nodes"]} if federation else {}


def _optional(path: Path, schema: Schema, lengths: Lengths, remedy: str = "") -> Mapping[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = read_json(path)
    except FedBMError as error:
        raise FedBMError(f"{error}{remedy}") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else None
        raise FedBMError(f"{path} has format {found}, this FedBM reads format {FORMAT}; use the one that wrote it")
    check(value, schema, path, remedy, lengths)
    return value
