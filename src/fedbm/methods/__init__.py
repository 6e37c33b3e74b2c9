"""Every method by name. A new one is one file and one line here, or any object handed to `simulate(method=…)`."""

from fedbm.methods.base import Method
from fedbm.methods.fedavg import FedAvg
from fedbm.methods.fedbm import FedBM

METHODS: dict[str, type[FedAvg]] = {method.name: method for method in (FedAvg, FedBM)}

__all__ = ["METHODS", "FedAvg", "FedBM", "Method"]
