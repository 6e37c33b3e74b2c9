"""Every method by name. A new one needs one file and one line here, or is passed to `simulate(method=…)`.

Other packages add methods as plug-ins.
"""

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from fedbm.methods.base import Method as Method
from fedbm.methods.ccvr import CCVR
from fedbm.methods.central import Central
from fedbm.methods.fedavg import FedAvg as FedAvg
from fedbm.methods.fedbm import FedBM as FedBM
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
from fedbm.utils.plugins import Plugin, load_plugins, usable

RIVALS = (  # a new method goes to the end: figures take colours in this order
    *(FedAvg, FedProx, FedDyn, Scaffold, FedRep, FedROD, FedNH, FedProto, FedETF),
    *(Moon, FedNTD, FedLC, FedBN, CCVR, FedGen, FedGLCL),
)
METHODS: dict[str, type[FedAvg]] = {method.name: method for method in (*RIVALS, FedBM, Central)}


@cache
def method_plugins() -> dict[str, Plugin]:
    """Return the methods that other installed packages declare in the entry points "fedbm.methods"."""
    return load_plugins("fedbm.methods", METHODS, _check_plugin)


def all_methods() -> dict[str, type[FedAvg]]:
    """Return the methods of this package and of the plug-ins."""
    return METHODS | usable(method_plugins())


def is_plugin(method: Method) -> bool:
    """Return whether the method is the one of a plug-in."""
    return method.name not in METHODS and all_methods().get(method.name) is type(method)


def _check_plugin(name: str, kind: Any) -> str:
    is_method = isinstance(kind, type) and issubclass(kind, Method) and is_dataclass(kind)
    if not is_method or kind.name != name or not all("meaning" in field.metadata for field in fields(kind)):
        return f'it must be a dataclass, a subclass of fedbm.FedAvg, with name = "{name}" and fields made by option()'
    kind()  # an abstract class raises TypeError
    return ""


def title_of(name: str) -> str:
    """Return the title of a method; a method of the user's own is shown by its name."""
    return METHODS[name].title if name in METHODS else name


def is_central(name: str) -> bool:
    """Return whether the method has all data in one place: an upper bound without clients."""
    return name in METHODS and METHODS[name].central
