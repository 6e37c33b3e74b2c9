"""Describe runs as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from fedbm.errors import FedBMError

if TYPE_CHECKING:
    from fedbm.runs.run_view import RunView

METRICS = ("accuracy", "f1", "auc", "recall", "precision")


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


def mean_and_std(values: Sequence[float | None]) -> str:
    """Return the mean ± standard deviation in percent.

    >>> mean_and_std([0.5, 0.6]), mean_and_std([0.5]), mean_and_std([])
    ('55.0 ± 7.1', '50.0', '–')
    """
    known = [100 * value for value in values if value is not None]
    if not known:
        return "–"
    return f"{fmean(known):.1f} ± {stdev(known):.1f}" if len(known) > 1 else f"{known[0]:.1f}"


def make_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a pandas data frame; raise FedBMError if pandas is not installed."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise FedBMError('to_pandas() needs pandas: pip install "fedbm[pandas]"') from error
    return pandas.DataFrame(rows)
