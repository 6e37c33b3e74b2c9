"""The names of `import fedbm`."""

from fedbm.data.dataset import Dataset, load
from fedbm.data.inspection.inspect import inspect
from fedbm.data.partition import Partition, from_file
from fedbm.data.partitioners import by_classes, by_column, dirichlet, iid, quantity
from fedbm.errors import FedBMError
from fedbm.language.bundled import load_shipped
from fedbm.language.concepts import ConceptDistribution, sample_concepts
from fedbm.language.concepts import build as build_concepts
from fedbm.methods import METHODS, FedAvg, FedBM, Method
from fedbm.models.generator import Generator
from fedbm.models.generator_loss import BatchNormGap, diversity_loss
from fedbm.models.heads import ConceptHead, concept_logits, concept_loss
from fedbm.models.resnet import ResNet18
from fedbm.report.write import write_report
from fedbm.runs.predict import load_model
from fedbm.runs.reader import read_run
from fedbm.runs.runner import simulate

__all__ = [
    "METHODS",
    "BatchNormGap",
    "ConceptDistribution",
    "ConceptHead",
    "Dataset",
    "FedAvg",
    "FedBM",
    "FedBMError",
    "Generator",
    "Method",
    "Partition",
    "ResNet18",
    "build_concepts",
    "by_classes",
    "by_column",
    "concept_logits",
    "concept_loss",
    "dirichlet",
    "diversity_loss",
    "from_file",
    "iid",
    "inspect",
    "load",
    "load_model",
    "load_shipped",
    "quantity",
    "read_run",
    "sample_concepts",
    "simulate",
    "write_report",
]
