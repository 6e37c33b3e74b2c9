"""List what is not finished of the paper's experiments: missing runs, and experiments without any record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedbm.errors import join_words
from fedbm.experiments.outcomes import Outcome, command_of
from fedbm.experiments.spec import find_experiment, shipped
from fedbm.experiments.trials import Trial, trials
from fedbm.language.bundled import ENCODER
from fedbm.runs.config import Config


@dataclass(frozen=True)
class Unrecorded:
    """One of the paper's experiments that has no record."""

    name: str
    title: str
    printed: str  # which of the paper's tables and figures; "" if none
    shows: str
    needs: str  # "It needs the images of kvasir."
    runs: int
    command: str

    @property
    def sentence(self) -> str:
        return f"{self.shows}. Not run: {self.runs} runs. {self.needs}"


def count_remaining(outcome: Outcome) -> int:
    """Return how many different runs of one of the paper's experiments are not finished; 0 for other experiments."""
    missing = {result.key for result in outcome.results if result.run is None}
    return _count_runs([trial for trial in trials_of(outcome) if trial.key in missing])


def list_unrecorded(outcomes: Sequence[Outcome]) -> list[Unrecorded]:
    """Return the paper's experiments that are not among *outcomes*, if any of these is the paper's."""
    names = {outcome.name for outcome in outcomes}
    return [_unrecorded(name) for name in shipped() if name not in names] if names & set(shipped()) else []


def trials_of(outcome: Outcome) -> list[Trial]:
    """Return the trials of one of the paper's experiments; [] for others, because records lack their settings."""
    if outcome.name not in shipped() or not outcome.results:
        return []
    return trials(find_experiment(outcome.name), sorted({result.seed for result in outcome.results}), {})


def _unrecorded(name: str) -> Unrecorded:
    experiment = find_experiment(name)
    planned = trials(experiment, experiment.seeds, {})
    return Unrecorded(
        name=name,
        title=experiment.title,
        printed=experiment.printed,
        shows=experiment.shows,
        needs=f"It needs {_needs(planned)}.",
        runs=_count_runs(planned),
        command=command_of(name),
    )


def _count_runs(planned: Sequence[Trial]) -> int:
    """Count runs with equal settings once."""
    return len({repr(trial.config) for trial in planned})


def _needs(planned: Sequence[Trial]) -> str:
    """Return words such as "the images of kvasir and oct-c8, and the weights of bert"."""

    def distinct(of: Callable[[Config], str]) -> list[str]:
        return list(dict.fromkeys(of(trial.config) for trial in planned))

    data = join_words(distinct(lambda config: config.data.name), "and")
    models = [name for name in distinct(lambda config: config.language.encoder) if name != ENCODER]
    weights = f", and the weights of {join_words(models, 'and')}, which are not part of the package" if models else ""
    return f"the images of {data}{weights}"
