"""Read run folders, finished or not: read_run(folder) → RunView."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from fedbm.config.options import BY_BETA, EngineOptions
from fedbm.data.catalog.entries import CATALOG
from fedbm.data.partition import assignment_digest
from fedbm.engine.checkpoint import rounds_behind
from fedbm.engine.environment import settings_digest
from fedbm.engine.round_record import RoundRecord, Scores
from fedbm.engine.run_folder import FORMAT, RunFolder, find_run, read_rounds
from fedbm.errors import FedBMError
from fedbm.runs.failure import failure_of
from fedbm.runs.run_config import make_config, method_label, recommended_at_beta
from fedbm.runs.run_file_types import (
    FEDERATION_FILE,
    ConfigFile,
    Details,
    Environment,
    Features,
    PartitionRecord,
    ScoredRound,
    Summary,
)
from fedbm.utils.io import parse_toml, read_object, read_text
from fedbm.utils.json_records import decode
from fedbm.utils.metrics import NAMES
from fedbm.utils.statistics import spread_or_none
from fedbm.utils.text import make_html

EDITED = "was edited after the run began. Restore its settings, or remove its folder to start this run over."
REWRITE = ". Remove the file; the command that made the run writes it again."  # from the last checkpoint
METRICS = NAMES

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class RunView:
    """A run. Only a finished run has a summary; a file that is missing is None.

    `rounds` has a record of each round, `summary` the scores, and `path` the folder. A notebook shows a run as a table.

    Example:
        >>> import fedbm
        >>> run = fedbm.simulate("digits", method="fedavg", clients=5, rounds=1, size=16, width=8, batch=32)
        >>> run.method, len(run.rounds), run.finished
        ('fedavg', 1, True)
    """

    path: Path
    id: str
    method: str
    label: str  # the method and its options that are not the default
    data: str
    partition: str
    beta: float | None
    clients: int
    seed: int
    planned: int  # rounds in the configuration
    config: Mapping[str, Any]
    config_text: str
    rounds: tuple[RoundRecord, ...]
    summary: Summary | None
    environment: Mapping[str, Any] | None
    client_partition: PartitionRecord | None
    checksum: str  # of the data set; "" if it is not known
    details: Details | None
    generated: Path | None
    round_images: Mapping[int, Path] = field(default_factory=dict)  # round → generated/<round>.png
    strip: Path | None = None  # a record's picture of several rounds, in place of *round_images*
    strip_rounds: tuple[int, ...] = ()
    edited: bool = False  # config.toml was changed after the run began
    failure: str = ""  # why the run failed
    features: Features | None = None
    last_quarter: Scores | None = None  # mean test scores over the last quarter of the rounds
    averaged_last_quarter: Scores | None = None  # the same of the averaged model

    @property
    def final_round(self) -> int:
        """The last round of the run, which is earlier than planned if patience ended it."""
        return self.summary.rounds if self.summary else self.planned

    @property
    def finished(self) -> bool:
        """Whether the run has a summary."""
        return self.summary is not None

    def scores(self, moment: str) -> Mapping[str, Any] | None:
        """Return test scores, or None if the run does not have them.

        Args:
            moment: "best" (the round chosen on validation), "last", "last_quarter", "averaged" (the averaged model
                after the last round) or "averaged_last_quarter".
        """
        if self.summary is None:
            return None
        if moment.endswith("last_quarter"):
            return self.averaged_last_quarter if moment.startswith("averaged") else self.last_quarter
        found: ScoredRound | None = getattr(self.summary, moment)
        return found

    def __repr__(self) -> str:
        best = f", accuracy {format_percent([self.summary.best.accuracy])} %" if self.summary else ""
        return f"Run({self.id}: {self.label} on {self.data}, {self.state}{best})"

    def _repr_html_(self) -> str:
        moments = [(moment, self.scores(moment)) for moment in ("best", "last", "last_quarter", "averaged")]
        rows = [
            (moment.replace("_", " "), scores.get("round", ""), *(format_percent([scores[name]]) for name in METRICS))
            for moment, scores in moments
            if scores is not None
        ]
        return make_html(repr(self), ("test scores in %", "round", *METRICS), rows)

    @property
    def state(self) -> str:
        """The run's status in words, for lists."""
        if self.finished:
            return "finished"
        done = f"{len(self.rounds)} of {self.planned} rounds"
        return f"failed after {done}: {self.failure}" if self.failure else f"unfinished, {done}"


def describe_run(run: RunView) -> dict[str, Any]:
    """Return what a run is and its test scores at the round chosen on validation; None for missing scores."""
    best = run.summary.best if run.summary else None
    return {
        "run": run.id,
        "method": run.label,
        "data": run.data,
        "partition": run.partition,
        "beta": run.beta,
        "clients": run.clients,
        "seed": run.seed,
        "rounds": run.planned,
        "state": run.state,
        "best_round": best.round if best else None,
        **{metric: getattr(best, metric, None) for metric in METRICS},
    }


def format_percent(values: Sequence[float | None]) -> str:
    """Return the mean ± standard deviation in percent; a dash if a value is missing.

    >>> format_percent([0.5, 0.6]), format_percent([0.5]), format_percent([0.5, None])
    ('55.0 ± 7.1', '50.0', '–')
    """
    found = spread_or_none(values)
    if found is None:
        return "–"
    return f"{100 * found.mean:.1f}" + ("" if found.std is None else f" ± {100 * found.std:.1f}")


def mean_scores(runs: Sequence[RunView]) -> list[str]:
    """Return the mean ± standard deviation of each of METRICS at the round chosen on validation."""
    found = [describe_run(run) for run in runs]
    return [format_percent([one[metric] for one in found]) for metric in METRICS]


def make_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a pandas data frame; raise FedBMError if pandas is not installed."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise FedBMError('to_pandas() needs pandas: pip install "fedbm[pandas]"') from error
    return pandas.DataFrame(rows)


def read_runs(folders: Sequence[Path]) -> list[RunView]:
    """Return every run once, even if its folder is given twice; raise FedBMError if a config.toml was edited."""
    if not folders:
        raise FedBMError("no run was given; name at least one run folder, such as runs/*")
    return [check_unedited(read_run(folder)) for folder in {folder.resolve(): folder for folder in folders}.values()]


def check_unedited(run: RunView) -> RunView:
    """Return *run*; raise FedBMError if its config.toml no longer describes it."""
    if run.edited:
        raise FedBMError(f"{run.path / 'config.toml'} {EDITED}")
    return run


def check_resumable(folder: Path) -> None:
    """Raise FedBMError if the run in *folder* has begun and its config.toml was edited."""
    if RunFolder(folder).done or rounds_behind(folder):  # otherwise config.toml is written again
        check_unedited(read_run(folder))


def find_folder(run: RunView | str | Path) -> Path:
    """Return the folder of a run: a run object, a path, or a text that is a path or (a part of) an id in runs/."""
    if isinstance(run, RunView):
        return run.path
    if isinstance(run, str) and not Path(run).exists() and Path(run).name == run:
        return find_run(Path(EngineOptions.out), run)
    return Path(run)


def read_run(run: RunView | str | Path) -> RunView:
    """Read a run, or read it again.

    Args:
        run: the run, its folder, or its id if the folder is in runs/.

    Returns:
        The run.

    Raises:
        FedBMError: if there is no such run, or a file in it is damaged.

    Example:
        >>> import fedbm
        >>> run = fedbm.simulate("digits", method="fedavg", clients=5, rounds=1, size=16, width=8, batch=32)
        >>> fedbm.read_run(run.path).state
        'finished'
    """
    path = find_folder(run)
    if not (path / "config.toml").is_file():
        raise FedBMError(f"{path} is not the folder of a run, which has a config.toml. 'fedbm list FOLDER' lists runs.")
    text = read_text(path / "config.toml")
    config = parse_toml(text, str(path / "config.toml"))
    decode(ConfigFile, config, path / "config.toml")  # type: ignore[type-abstract]
    summary = _decode_file(Summary, path / "summary.json", REWRITE)
    partition = _decode_file(PartitionRecord, path / "partition.json")
    facts = facts_of(summary, config) if summary else _facts_of_unfinished(path, config, partition)
    details, features = _decode_file(Details, path / "details.json"), _decode_file(Features, path / "features.json")
    if len({len(part.classes) for part in (partition, details, features) if part is not None}) > 1:
        raise FedBMError(f"{path} has files of different runs: their numbers of classes differ. Restore its own files.")
    environment = _decode_file(Environment, path / "environment.json") or {}  # type: ignore[type-abstract]
    generated, rounds = path / "generated.png", read_rounds(path / "rounds.jsonl")
    if summary is not None:
        _check_complete(path / "rounds.jsonl", rounds, summary.rounds)
    failure = failure_of(path)
    tests = {record.round: record.test for record in rounds}
    averaged = {record.round: record.averaged.test for record in rounds if record.averaged}
    return RunView(
        **facts,
        path=path,
        id=summary.id if summary else path.name,
        config=config,
        config_text=text,
        rounds=rounds,
        summary=summary,
        environment=environment or None,
        client_partition=partition,
        checksum=partition.of.checksum if partition and partition.of else "",
        details=details,
        generated=generated if generated.is_file() else None,
        round_images={int(p.stem): p for p in sorted(path.glob("generated/*.png")) if p.stem.isdecimal()},
        edited=environment.get("settings") not in (None, settings_digest(config)),
        failure=failure.reason if failure and summary is None else "",
        features=features,
        last_quarter=last_quarter_scores(tests, summary.rounds) if summary else None,
        averaged_last_quarter=last_quarter_scores(averaged, summary.rounds) if summary else None,
    )


def last_quarter_scores(tests: Mapping[int, Scores | None], rounds: int) -> Scores | None:
    """Return the mean test scores over the last quarter of the run's rounds, from the scores by round.

    Return None if none of these rounds was evaluated. A score that one of them does not have is None.
    """
    found = [scores for round_, scores in tests.items() if round_ > 0.75 * rounds and scores]
    if not found:
        return None
    columns = {name: [scores[name] for scores in found] for name in found[0]}
    return {
        name: None if None in values else fmean(value for value in values if value is not None)
        for name, values in columns.items()
    }


def partition_digest(partition: PartitionRecord) -> str:
    """Return a digest that is equal if the clients have the same samples."""
    return partition.digest or assignment_digest(partition.clients, partition.held_out, partition.shift)


def facts_of(summary: Summary, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of RunView that a summary and the configuration contain."""
    same = ("method", "label", "data", "partition", "beta", "clients", "seed")
    return {key: getattr(summary, key) for key in same} | {"planned": config["train"]["rounds"]}


def _check_complete(source: Path, rounds: Sequence[RoundRecord], last: int) -> None:
    """Raise FedBMError if rounds of a finished run are missing: means over the others would be wrong."""
    if source.is_file() and [record.round for record in rounds] != list(range(1, last + 1)):
        raise FedBMError(
            f"{source} must contain rounds 1 to {last} of a finished run, but has {len(rounds)} of them. Restore "
            f"the file, or remove {source.parent} to start this run over."
        )


def _facts_of_unfinished(path: Path, config: Mapping[str, Any], partition: PartitionRecord | None) -> dict[str, Any]:
    """Return the fields of facts_of() for an unfinished run. The partition or the nodes define the clients."""
    data, train = config["data"], config["train"]
    facts: dict[str, Any] = {
        "method": config["method"]["name"],
        "data": Path(data["name"]).stem,
        "partition": data["partition"],
        "beta": data["beta"] if data["partition"] in BY_BETA else None,
        "clients": data["clients"],
        "seed": train["seed"],
        "planned": train["rounds"],
    }
    if partition is not None:
        beta = partition.settings.get("beta")
        facts |= {"partition": partition.kind, "beta": beta, "clients": len(partition.counts)}
        facts |= {"data": partition.of.data} if partition.of else {}
    elif (federation := _decode_file(FEDERATION_FILE, path / "federation.json")) is not None:
        facts |= {"partition": "nodes", "beta": None, "clients": federation["options"]["nodes"]}
    recommends = CATALOG[facts["data"]].recommends if facts["data"] in CATALOG else {}
    recommends = recommended_at_beta(recommends, data["partition"], data["beta"])
    try:
        label = method_label(make_config({"method": config["method"]}).method, recommends)
    except FedBMError:  # it was made in Python, or by another version
        label = facts["method"]
    return {**facts, "label": label}


def _decode_file(kind: type[T], path: Path, remedy: str = "") -> T | None:
    """Return what a JSON file contains, or None if there is no such file."""
    return decode(kind, read_object(path, FORMAT, remedy), path, remedy) if path.is_file() else None
