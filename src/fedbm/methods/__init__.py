"""Every method by name. A new one needs one file and one line here, or is passed to `simulate(method=…)`."""

from fedbm.methods.base import Method
from fedbm.methods.ccvr import CCVR
from fedbm.methods.central import Central
from fedbm.methods.fedavg import FedAvg
from fedbm.methods.fedbm import FedBM
from fedbm.methods.fedbn import FedBN
from fedbm.methods.feddyn import FedDyn
from fedbm.methods.fedetf import FedETF
from fedbm.methods.fedgen import FedGen
from fedbm.methods.fedglcl import FedGLCL
from fedbm.methods.fedlc import FedLC
from fedbm.methods.fednh import FedNH
from fedbm.methods.fedntd import FedNTD
from fedbm.methods.fedproto import FedProto
from fedbm.methods.fedprox import FedProx
from fedbm.methods.fedrep import FedRep
from fedbm.methods.fedrod import FedROD
from fedbm.methods.moon import Moon
from fedbm.methods.scaffold import Scaffold

METHODS: dict[str, type[FedAvg]] = {
    method.name: method
    for method in (
        FedAvg,
        FedProx,
        FedDyn,
        Scaffold,
        Moon,
        FedNTD,
        FedLC,
        FedRep,
        FedBN,
        FedROD,
        FedNH,
        FedProto,
        FedETF,
        CCVR,
        FedGen,
        FedGLCL,
        FedBM,
        Central,
    )
}


def title_of(name: str) -> str:
    """Return the title of a method; a method of the user's own is shown by its name."""
    return METHODS[name].title if name in METHODS else name


def is_central(name: str) -> bool:
    """Return whether the method has all data in one place: an upper bound without clients."""
    return name in METHODS and METHODS[name].central


__all__ = [
    "CCVR",
    "METHODS",
    "Central",
    "FedAvg",
    "FedBM",
    "FedBN",
    "FedDyn",
    "FedETF",
    "FedGLCL",
    "FedGen",
    "FedLC",
    "FedNH",
    "FedNTD",
    "FedProto",
    "FedProx",
    "FedROD",
    "FedRep",
    "Method",
    "Moon",
    "Scaffold",
    "is_central",
    "title_of",
]
