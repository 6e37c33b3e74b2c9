"""The public names of the package, available as `fedbm.NAME`."""

from __future__ import annotations

from fedbm.data.arrays import from_arrays, from_torch
from fedbm.data.dataset import Dataset, load
from fedbm.data.feature_shift import shift_features
from fedbm.data.inspection.inspect import inspect
from fedbm.data.partition import Partition, hold_out, load_partition
from fedbm.data.partitioners import balanced, by_classes, by_column, dirichlet, iid, quantity, shards
from fedbm.errors import FedBMError
from fedbm.experiments.reproduction import Reproduction, reproduce
from fedbm.language.bundled import load_bundled
from fedbm.language.concept_distribution import ConceptDistribution, build_concepts, sample_concepts
from fedbm.methods import METHODS, FedAvg, FedBM, Method
from fedbm.models.generator import Generator
from fedbm.models.generator_loss import BatchNormGap, diversity_loss
from fedbm.models.heads import ConceptHead, concept_logits, concept_loss
from fedbm.models.resnet import ResNet18
from fedbm.report.write import write_report
from fedbm.runs.callbacks import Callback, RunInfo
from fedbm.runs.method_comparison import Comparison, compare
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
