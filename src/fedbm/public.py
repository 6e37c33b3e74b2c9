"""The public names of the package, available as `fedbm.NAME`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedbm.data.arrays import from_arrays, from_torch
from fedbm.data.column_partitioner import by_column
from fedbm.data.dataset import Dataset, load
from fedbm.data.feature_shift import shift_features
from fedbm.data.inspection.inspect import inspect
from fedbm.data.partition import Partition, hold_out, load_partition
from fedbm.data.partitioners import balanced, by_classes, dirichlet, iid, quantity, shards
from fedbm.errors import FedBMError
from fedbm.experiments.reproduction import Reproduction, reproduce
from fedbm.language.bundled import load_bundled
from fedbm.language.concept_distribution import ConceptDistribution, build_concepts, sample_concepts
from fedbm.methods import METHODS, FedAvg, FedBM, Method
from fedbm.models.generator import Generator
from fedbm.models.generator_loss import BatchNormGap, diversity_loss
from fedbm.models.heads import ConceptHead, concept_logits, concept_loss
from fedbm.models.resnet import ResNet18
from fedbm.report.experiments_report import experiments_report as _experiments_report
from fedbm.report.write import report_path as _report_path
from fedbm.report.write import save_report as _save_report
from fedbm.report.write import write_report as _write_runs
from fedbm.runs.callbacks import Callback, RunInfo
from fedbm.runs.method_comparison import Comparison, compare
from fedbm.runs.plan import find_runs as _find_runs
from fedbm.runs.prediction import load_model
from fedbm.runs.run_view import RunView, read_run
from fedbm.runs.runner import simulate

__all__ = [
    "METHODS",
    "BatchNormGap",
    "Callback",
    "Comparison",
    "ConceptDistribution",
    "ConceptHead",
    "Dataset",
    "FedAvg",
    "FedBM",
    "FedBMError",
    "Generator",
    "Method",
    "Partition",
    "Reproduction",
    "ResNet18",
    "RunInfo",
    "RunView",
    "balanced",
    "build_concepts",
    "by_classes",
    "by_column",
    "compare",
    "concept_logits",
    "concept_loss",
    "dirichlet",
    "diversity_loss",
    "from_arrays",
    "from_torch",
    "hold_out",
    "iid",
    "inspect",
    "load",
    "load_bundled",
    "load_model",
    "load_partition",
    "quantity",
    "read_run",
    "reproduce",
    "sample_concepts",
    "shards",
    "shift_features",
    "simulate",
    "write_report",
]


def write_report(
    runs: Comparison | Reproduction | RunView | str | Path | Iterable[RunView | str | Path],
    path: str | Path = "report.html",
    title: str = "",
) -> Path:
    """Write a report of runs or experiments.

    Args:
        runs: the result of `compare()`, `reproduce()`, `simulate()` or `read_run()`, a run's folder, a folder of runs,
            the id of a run in runs/, or a list of these.
        path: the file to write; .html, .md, .tex or .csv. In a folder, the file is report.html.
        title: the title of the page; by default it names the data.

    Returns:
        The path of the file.

    Raises:
        FedBMError: if a run is missing or damaged, or the file's ending is not one of these.

    Example:
        >>> import fedbm
        >>> run = fedbm.simulate("digits", method="fedavg", clients=5, rounds=1, size=16, width=8, batch=32)
        >>> fedbm.write_report(run, "report.html").name
        'report.html'
    """
    if isinstance(runs, Reproduction):
        return _save_report(_experiments_report(runs.outcomes), _report_path(Path(path)))
    found = runs.runs if isinstance(runs, Comparison) else [runs] if isinstance(runs, RunView | str | Path) else runs
    folders = [
        folder
        for run in found
        for folder in ([run.path] if isinstance(run, RunView) else _find_runs(Path("runs"), [str(run)]))
    ]
    return _write_runs(folders, Path(path), title)
