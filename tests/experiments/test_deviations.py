"""Notes on deviations from the paper: attached to the rows for which they are true, and to no others."""

from __future__ import annotations

import dataclasses

import pytest

from fedbm.experiments.paper_numbers import _deviations, find_deviations
from fedbm.experiments.spec import find_experiment, paper_experiments
from fedbm.experiments.trials import Trial, trials
from fedbm.methods import FedBM

WEIGHTED = ("fedavg", "fedprox", "fedrep", "fedrod", "fedetf", "fedbm")
NOT_TUNED = {"temperature": 12.5, "lambda_dis": 0.1, "pseudo_batch": 16}
TUNED_DATA = ("kvasir", "oct-c8")  # the paper's code has values for these


def expected(trial: Trial) -> set[str]:
    """The notes that are true of a run, from its settings."""
    config = trial.config
    method, data, train = config.method, config.data.name, config.train
    writers = data in ("femnist", "chars74k")
    notes = {"round", "writers" if writers else "seeds", "SGD"}
    notes |= {"images"} if not writers else set()
    notes |= {"bf16"} if train.precision == "bf16" else set()
    notes |= {"weights"} if method.name in WEIGHTED else set()
    notes |= {"objective"} if method.name in ("feddyn", "scaffold", "fednh") else set()
    notes |= {"missing classes"} if getattr(method, "missing_classes", "") == "mask" else set()
    notes |= {f"score of {type(method).__name__}"} if method.name in ("fedrep", "fedproto") else set()
    notes |= {"Kvasir version", "split of Kvasir"} if data == "kvasir" else set()
    notes |= {"split of HAM10000"} if data == "ham10000" else set()
    notes |= {"split of PBC"} if data == "pbc" else set()
    notes |= {"stand-in"} if data == "chars74k" else set()
    notes |= {"prompts"} if data == "oct-c8" else set()
    if isinstance(method, FedBM):
        notes |= {"text"} if method.needs_concepts and config.language.encoder == "minilm" else set()
        notes |= {"L_sem"} if method.generator and method.classifier == "distribution" else set()
        options = dataclasses.asdict(method)
        if data not in TUNED_DATA and all(options[key] == value for key, value in NOT_TUNED.items()):
            notes.add("not tuned")
    return notes


@pytest.mark.parametrize("name", paper_experiments())
def test_rows_have_the_notes_that_are_true_of_them(name: str) -> None:
    """A search chooses the tuned options, so that none of its rows is called not tuned."""
    for trial in trials(find_experiment(name), [0], {}):
        found = {title for title, _ in find_deviations(name, trial.row, trial.config.data.name)}
        assert found == expected(trial) - ({"not tuned"} if find_experiment(name).search else set()), trial.words


def test_every_note_is_used_and_every_key_is_a_row_or_a_data_set() -> None:
    notes, methods = _deviations()
    used = {note for names in methods.values() for note in names}
    for name in paper_experiments():
        experiment = find_experiment(name)
        planned = trials(experiment, [0], {})
        known = {"all"} | {trial.row for trial in planned} | {trial.config.data.name for trial in planned}
        assert set(experiment.deviations) <= known, name
        used |= {note for names in experiment.deviations.values() for note in names}
    assert used == set(notes)


def test_an_experiment_of_ones_own_has_none() -> None:
    assert find_deviations("mine", "FedBM", "ham10000") == []
