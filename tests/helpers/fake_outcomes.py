"""Outcomes of experiments with made-up runs, for the tests of what is said and drawn of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fake_runs import fake_run

from fedbm.experiments.outcomes import Outcome, with_results
from fedbm.experiments.spec import Experiment, find_experiment
from fedbm.experiments.trials import Trial, trials
from fedbm.runs.run_view import read_run

CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")


def fake_outcome(
    root: Path,
    name: str | Experiment,
    *,
    seeds: int | Sequence[int] = 3,
    missing: dict[tuple[str, int], tuple[str, str]] | None = None,
    absent: dict[str, str] | None = None,
    **more: Any,
) -> Outcome:
    """*missing*: (row, seed) → (state, why); *absent*: data set → why; the rest is finished with made-up scores."""
    experiment = find_experiment(name) if isinstance(name, str) else name
    results, made = [], {}
    for trial in trials(experiment, range(seeds) if isinstance(seeds, int) else seeds, {}):
        data = trial.config.data.name
        state, why = (missing or {}).get((trial.row, trial.seed), ("finished", ""))
        if data in (absent or {}):
            state, why = "absent", (absent or {})[data]
        run = None
        if state == "finished":
            key = (data, trial.config.data.beta, trial.config.data.clients, trial.row, trial.seed)
            if key not in made:
                made[key] = fake_run(
                    root / f"{trial.row.replace('/', '_')}-{len(made)}",
                    trial.config.method.name,
                    trial.seed,
                    data=data,
                    beta=trial.config.data.beta,
                    clients=trial.config.data.clients,
                    **{"classes": CLASSES, "rounds": 20, **more},
                )
            run = read_run(made[key])
        results.append(Trial(trial.row, trial.at, trial.seed, state, why, run))
    return with_results(experiment, results)
