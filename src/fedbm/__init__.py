"""FedBM: train image classifiers across hospitals that cannot share data and see different diseases.

import fedbm
data = fedbm.load("digits")
parts = fedbm.dirichlet(data, clients=10, beta=0.05, seed=0)
run = fedbm.simulate(data, parts, method="fedbm", rounds=20)
print(run.summary["best"])
fedbm.write_report(fedbm.compare("digits", ["fedavg", "fedbm"], beta=0.05, seeds=3), "report.html")
"""

from typing import TYPE_CHECKING, Any

from fedbm.version import __version__ as __version__

if TYPE_CHECKING:
    from fedbm.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """Import all public names on first use, because PyTorch takes seconds to import."""
        if name == "__all__" or not name.startswith("_"):
            import fedbm.public as public

            for each in public.__all__:
                globals().setdefault(each, getattr(public, each))  # keep a name that the user has replaced
            globals()["__all__"] = ["__version__", *public.__all__]
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Return only the public names."""
        return sorted(__getattr__("__all__"))
