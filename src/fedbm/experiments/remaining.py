"""What of the paper's experiments is not finished: how many runs, by which command, and the time they would take.

time = Σ rounds × seconds a round of runs like them on record, on the device most records are of. A run's seconds are
its share of that device; where no share was measured they are by the clock, which counts what other runs beside it
took of the device as well, and that is said. Nothing alike on record: no number. Of a run that was begun, what was told
where its checkpoint is goes before that: records hold none, so that by them all its rounds would count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedbm.data.catalog.lookup import CATALOG
from fedbm.errors import listed
from fedbm.experiments.estimate import Rates, kind_of, rates_of
from fedbm.experiments.outcomes import Outcome, Result, command_of
from fedbm.experiments.spec import find_experiment, shipped
from fedbm.experiments.trials import Trial, trials
from fedbm.language.bundled import ENCODER
from fedbm.report.cost import show_seconds
from fedbm.runs.config import Config, recommend
from fedbm.runs.reader import RunView


@dataclass(frozen=True)
class Measured:
    """Seconds a round, by the kind of run, on the device most records are of."""

    device: str
    rates: Rates
    by_clock: Set[Any]  # the kinds of which no share of the device was measured


@dataclass(frozen=True)
class Left:
    """The runs of one experiment that are not finished, each once; *seconds* are those of *known* of them.

    *by_clock*: how many of these by the clock. *told*: of others, how many take what, as was said where they were
    recorded: "about 20 min on cpu".
    """

    runs: int
    known: int
    seconds: float
    device: str
    told: Mapping[str, int] = field(default_factory=dict)
    by_clock: int = 0

    @property
    def words(self) -> str:
        """'54 runs. 9 of them would take about 26 min on NVIDIA H200, …; nothing like the other 45 is on record, …'.

        >>> Left(1, 1, 104.0, "NVIDIA H200").words
        '1 run. It would take about 1 min 44 s on NVIDIA H200, by the times of runs like it.'
        """
        they, them, their = ("it", "it", "its") if self.runs == 1 else ("they", "them", "their")
        said = []
        if self.known:
            which = they if self.known == self.runs else f"{self.known} of them"
            takes = f"about {show_seconds(self.seconds)} on {self.device}"
            said.append(f"{which} would take {takes}, by the times of runs like {them}{self._long}")
        for takes, count in self.told.items():
            which = they if count == self.runs == 1 else f"{count} of them"
            said.append(f"{which} would take {takes}{' each' * (count > 1)}")
        unknown = self.runs - self.known - sum(self.told.values())
        if unknown:
            which = f"nothing like {them}" if unknown == self.runs else f"nothing like the other {unknown}"
            said.append(f"{which} is on record, so {their} time is not known; --budget 2m measures it")
        words = "; ".join(said)
        return f"{self.runs} run{'s' * (self.runs != 1)}. {words[0].upper()}{words[1:]}."

    @property
    def _long(self) -> str:
        if not self.by_clock:
            return ""
        which = "" if self.by_clock == self.known else f"for {self.by_clock} of these "
        return f" ({which}by the clock, perhaps shared with other runs and so too long)"


@dataclass(frozen=True)
class Unrecorded:
    """One of the paper's experiments of which nothing is on record."""

    name: str
    title: str
    printed: str  # which of its tables and figures; "": none
    shows: str
    needs: str  # 'it needs the images of kvasir, …'
    takes: str  # how many runs it is, and what they would take
    command: str

    @property
    def sentence(self) -> str:
        return f"{self.shows[0].upper()}{self.shows[1:]}. Not run; {self.needs}. {self.takes}"


def measured_in(outcomes: Sequence[Outcome]) -> Measured:
    runs = [result.run for outcome in outcomes for result in outcome.results if result.run is not None]
    devices = Counter(str((run.environment or {}).get("device")) for run in runs)
    device = devices.most_common(1)[0][0] if devices else ""
    shares = rates_of([_by_share(run) for run in runs if run.own_seconds is not None], device)
    clock = rates_of(runs, device)
    return Measured(device, {**clock, **shares}, clock.keys() - shares.keys())


def left_of(outcome: Outcome, measured: Measured) -> Left | None:
    """What is left of *outcome*; None: nothing, or it is none of the paper's."""
    missing = {result.key: result for result in outcome.results if result.run is None}
    planned = [trial for trial in trials_of(outcome) if trial.key in missing]
    return _left(planned, measured, missing) if planned else None


def timed(outcome: Outcome, measured: Measured) -> Outcome:
    """*outcome*, in which a run that is not finished says what it would take, where runs like it are on record."""
    takes = {trial.key: words for trial in trials_of(outcome) if (words := _takes(trial, measured))}
    results = [
        replace(result, takes=takes[result.key])
        if result.run is None and result.key in takes and not _rest_told(result)
        else result
        for result in outcome.results
    ]
    return replace(outcome, results=tuple(results))


def unrecorded(outcomes: Sequence[Outcome], measured: Measured) -> list[Unrecorded]:
    """The paper's experiments that are not among *outcomes*, where any of these is the paper's."""
    there = {outcome.name for outcome in outcomes}
    return [_unrecorded(name, measured) for name in shipped() if name not in there] if there & set(shipped()) else []


def _unrecorded(name: str, measured: Measured) -> Unrecorded:
    experiment = find_experiment(name)
    planned = trials(experiment, experiment.seeds, {})
    needs, takes = f"it needs {_needs(planned)}", _left(planned, measured).words
    return Unrecorded(name, experiment.title, experiment.printed, experiment.shows, needs, takes, command_of(name))


def trials_of(outcome: Outcome) -> list[Trial]:
    """None for an experiment of one's own: records do not hold all its settings."""
    if outcome.name not in shipped() or not outcome.results:
        return []
    return trials(find_experiment(outcome.name), sorted({result.seed for result in outcome.results}), {})


def _rest_told(result: Result | None) -> bool:
    """Whether it was told what the rounds after its checkpoint take."""
    return result is not None and result.state in ("unfinished", "failed") and bool(result.takes)


def _left(planned: Sequence[Trial], measured: Measured, missing: Mapping[Any, Result] = MappingProxyType({})) -> Left:
    once = {repr(trial.config): trial for trial in planned}
    known = {
        name: seconds
        for name, trial in once.items()
        if not _rest_told(missing.get(trial.key)) and (seconds := _seconds(trial, measured)) is not None
    }
    others = Counter(
        result.takes
        for name, trial in once.items()
        if name not in known and (result := missing.get(trial.key)) and result.takes
    )
    by_clock = sum(_kind(once[name]) in measured.by_clock for name in known)
    return Left(len(once), len(known), sum(known.values()), measured.device, others, by_clock)


def _by_share(run: RunView) -> RunView:
    return replace(run, summary={**(run.summary or {}), "seconds": run.own_seconds})


def _takes(trial: Trial, measured: Measured) -> str:
    """'about 2 min 24 s on NVIDIA H200'; "" where nothing like it is on record."""
    seconds = _seconds(trial, measured)
    if seconds is None:
        return ""
    clock = " by the clock, perhaps shared" if _kind(trial) in measured.by_clock else ""
    return f"about {show_seconds(seconds)} on {measured.device}{clock}"


def _seconds(trial: Trial, measured: Measured) -> float | None:
    rate = measured.rates.get(_kind(trial))
    return None if rate is None else rate * _complete(trial.config).train.rounds


def _kind(trial: Trial) -> tuple[Any, ...]:
    return kind_of(_complete(trial.config))


def _complete(config: Config) -> Config:
    """With what the catalogue recommends, as far as that is known without the images."""
    entry = CATALOG.get(Path(config.data.name).stem)
    return recommend(config, entry.recommends) if entry else config


def _needs(planned: Sequence[Trial]) -> str:
    """'the images of kvasir and oct-c8, and the weights of bert, which do not come with the package'."""

    def named(of: Callable[[Config], str]) -> list[str]:
        return list(dict.fromkeys(of(trial.config) for trial in planned))

    data = listed(named(lambda config: config.data.name), "and")
    models = [name for name in named(lambda config: config.language.encoder) if name != ENCODER]
    weights = f", and the weights of {listed(models, 'and')}, which do not come with the package" if models else ""
    return f"the images of {data}{weights}"
