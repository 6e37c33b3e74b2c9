"""Compare methods under the same settings: methods × β × seeds, run in parallel.

compare("digits", ["fedavg", "fedbm"], betas=[0.05, 0.1], seeds=3, rounds=20) → Comparison
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from fedbm.config.keys import section_keys
from fedbm.data.dataset import Dataset
from fedbm.engine.round_loop import Event
from fedbm.errors import FedBMError, join_words
from fedbm.methods import METHODS, Method
from fedbm.runs.batch import BatchRun, plan_jobs, run_jobs
from fedbm.runs.callbacks import Callback, check_callbacks
from fedbm.runs.progress_display import print_notes, progress_console, show_decoding
from fedbm.runs.run_config import Config, check_method_options, configure, settings_for
from fedbm.runs.run_view import METRICS, RunView, describe_run, make_frame, mean_scores, read_run
from fedbm.runs.runner import check_engine, use_data
from fedbm.runs.seed_list import parse_seeds
from fedbm.utils.text import format_count, make_html

CAPTION = "Test scores in %, mean ± std over seeds"
HEADS = ("data", "partition", "β", "method", "seeds", *METRICS)


@dataclass(frozen=True, repr=False)
class Comparison:
    """The runs of a comparison.

    A notebook shows it as a table of means over seeds, and so does print(); `to_pandas()` has one row per run.

    Attributes:
        runs: the finished runs.
        failures: a sentence for each run that failed.

    Example:
        >>> import fedbm
        >>> data = fedbm.load("digits", size=16)
        >>> found = fedbm.compare(data, ["fedavg", "fednh"], beta=0.1, seeds=1, clients=5, rounds=1, width=8, batch=32)
        >>> [run.method for run in found.runs]
        ['fedavg', 'fednh']
    """

    runs: tuple[RunView, ...]
    failures: tuple[str, ...] = ()

    def __repr__(self) -> str:
        names = join_words(dict.fromkeys(run.label for run in self.runs), "and")
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"Comparison({format_count(len(self.runs), 'run')} of {names}{failed})"

    def to_pandas(self) -> Any:
        """Return a data frame with one row per run; raise FedBMError if pandas is not installed."""
        return make_frame([describe_run(run) for run in self.runs])

    def __str__(self) -> str:
        rows = [tuple(map(str, row)) for row in (HEADS, *self._rows())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([CAPTION, *lines, *self.failures])

    def _repr_html_(self) -> str:
        return make_html(CAPTION, HEADS, self._rows(), self.failures)

    def _rows(self) -> list[tuple[Any, ...]]:
        rows: dict[tuple[Any, ...], list[RunView]] = {}
        for run in self.runs:
            rows.setdefault((run.data, run.partition, run.beta, run.label), []).append(run)
        return [
            (data, partition, "" if beta is None else beta, label, len(runs), *mean_scores(runs))
            for (data, partition, beta, label), runs in rows.items()
        ]


def compare(
    data: str | Path | Dataset = "digits",
    methods: str | Method | Iterable[str | Method] = ("fedavg", "fedbm"),
    *,
    beta: float | None = None,
    betas: Iterable[float] | None = None,
    seeds: int | str | Iterable[int] = 3,
    on_event: Callable[[str, Event], None] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    **settings: Any,
) -> Comparison:
    """Run every method at every β and seed; finished runs are read, not computed again.

    Runs on named data run in parallel, as `fedbm compare` does. Runs on a data set that is already loaded, or of a
    method that other processes cannot import (made in a notebook), run one after the other in this process.

    Args:
        data: a catalogued name, a path, or what `fedbm.load()` returned.
        methods: names, objects such as `fedbm.FedBM(temperature=5)`, or classes of your own as "FILE.py:CLASS"; or
            one object, or one text, such as "fedavg,fedbm" or "all".
        beta: the β of the Dirichlet partition; by default the data set's.
        betas: several values of β, in place of `beta`.
        seeds: how many seeds, from 0; or which, such as [0, 1, 5] or "3-12".
        on_event: called with a run's title and each of its events.
        callbacks: objects of subclasses of `fedbm.Callback`, called in this process for the rounds of all runs. If one
            fails, all runs stop; the same call resumes them.
        progress: whether to print notes and progress. Default: in a terminal or a notebook only.
        settings: any key of `fedbm config`, such as rounds=20, clients=5, device="cuda", out="runs". An option of a
            method applies to the methods that have it.

    Returns:
        The runs. If some fail, `failures` has a sentence for each.

    Raises:
        FedBMError: if a setting is wrong, or if no run could be finished.

    Example:
        >>> import fedbm
        >>> data = fedbm.load("digits", size=16)
        >>> fedbm.compare(data, ["fedavg", "fednh"], beta=0.1, seeds=1, clients=5, rounds=1, width=8, batch=32)
        Comparison(2 runs of fedavg and fednh)
    """
    if beta is not None and betas is not None:
        raise FedBMError("beta and betas are both given. Give every β in betas.")
    if betas is not None and not isinstance(betas, Iterable):
        raise FedBMError(f"betas is {betas}, but it must be a list, such as [0.05, 0.1]. For one β, use beta.")
    for name, instead in (("method", "methods"), ("seed", "seeds")):
        if name in settings:
            raise FedBMError(f"compare() has no argument {name}. Use {instead}.")
    dataset = use_data(data, settings, partition=False, body=False)
    if isinstance(methods, str):
        methods = list_methods(methods)
    chosen = list(methods) if isinstance(methods, Iterable) else [methods]
    values = [beta] if betas is None else list(betas)
    configs = make_grid({}, settings, chosen, values, parse_seeds(seeds))
    jobs, failures = run_grid(configs, progress_console(progress), dataset, on_event, callbacks)
    runs = tuple(read_run(job.folder) for job in jobs if job.is_finished)
    if not runs:
        raise FedBMError(failures[0])
    return Comparison(runs, failures)


def run_grid(
    configs: Sequence[Config],
    console: Console,
    dataset: Dataset | None = None,
    on_event: Callable[[str, Event], None] | None = None,
    callbacks: Sequence[Callback] = (),
) -> tuple[list[BatchRun], tuple[str, ...]]:
    """Run every configuration that is not finished. Return the jobs, and a sentence for each that failed."""
    check_callbacks(callbacks)
    with show_decoding(console) as decoding:
        jobs = plan_jobs(configs, dataset, decoding)
    print_notes(console, (note for job in jobs for note in job.notes))
    if finished := sum(job.is_finished for job in jobs):
        console.print(f"{finished} of {len(jobs)} runs are finished already")
    return jobs, tuple(run_jobs(jobs, console, on_event=on_event, callbacks=callbacks).values())


def make_grid(
    base: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
    methods: Sequence[str | Method],
    betas: Sequence[Any],
    seeds: Sequence[int],
) -> list[Config]:
    """Return a configuration for every β, seed and method. None in *betas* keeps the configured β.

    *settings* are values by flag. They win over *base*, the values of a configuration file. A method takes only the
    options it has.
    """
    if not methods:
        raise FedBMError("no method is given; name at least one")
    if not betas:
        raise FedBMError("betas is empty; give at least one β, or remove it")
    configs: list[Config] = []
    for beta, seed, method in product(betas, seeds, methods):
        flags = settings_for(method if isinstance(method, str) else "", settings)
        configs.append(configure(method, {**flags, "seed": seed} | ({} if beta is None else {"beta": beta}), base))
    check_method_options(settings, [method for method in methods if isinstance(method, str)])
    check_engine(configs[0])
    if any(config.method.needs_concepts for config in configs):  # one method that reads them is enough
        language = {key.flag for key in section_keys() if key.section == "language"}
        configs = [replace(config, arguments=config.arguments - language) for config in configs]
    return configs


def list_methods(names: str) -> list[str]:
    """Return the methods in a text such as "fedavg,fedbm"; "all" means all methods of the package.

    >>> list_methods("fedavg, mine.py:Mine"), list_methods("all") == list(METHODS)
    (['fedavg', 'mine.py:Mine'], True)
    """
    parts = [part.strip() for part in names.split(",")]
    return [name for part in parts for name in (METHODS if part == "all" else [part])]
