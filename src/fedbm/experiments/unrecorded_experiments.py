"""List the paper's experiments that have no record, and expand recorded experiments into trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbm.errors import join_words
from fedbm.experiments.outcomes import Outcome, command_of
from fedbm.experiments.spec import find_experiment, shipped_experiments
from fedbm.experiments.trials import Trial, trials
from fedbm.language.bundled import ENCODER


@dataclass(frozen=True)
class Unrecorded:
    """A shipped experiment that has no record."""

    name: str
    needs: str  # "It needs the images of kvasir."
    sentence: str  # what it shows, how many runs it has, and what it needs
    command: str


def list_unrecorded(outcomes: Sequence[Outcome]) -> list[Unrecorded]:
    """Return the shipped experiments that are not among *outcomes*, if at least one is."""
    names, shipped = {outcome.name for outcome in outcomes}, shipped_experiments()
    return [_unrecorded(name) for name in shipped if name not in names] if names & set(shipped) else []


def trials_of(outcome: Outcome) -> list[Trial]:
    """Return the trials of a shipped experiment; [] for others, because records do not contain their settings."""
    if outcome.name not in shipped_experiments() or not outcome.results:
        return []
    return trials(find_experiment(outcome.name), sorted({result.seed for result in outcome.results}), {})


def _unrecorded(name: str) -> Unrecorded:
    experiment = find_experiment(name)
    configs = [trial.config for trial in trials(experiment, experiment.seeds, {})]
    data = join_words(dict.fromkeys(config.data.name for config in configs), "and")
    models = [name for name in dict.fromkeys(config.language.encoder for config in configs) if name != ENCODER]
    weights = f", and the weights of {join_words(models, 'and')}, which are not part of the package" if models else ""
    needs = f"It needs the images of {data}{weights}."
    runs = len(set(map(repr, configs)))  # equal settings are one run
    sentence = f"{experiment.title.rstrip('?')}: {experiment.shows}. Not run: {runs} runs. {needs}"
    return Unrecorded(name, needs, sentence, command_of(name))
