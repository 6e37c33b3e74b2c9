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
        """Import the public names on first use, because PyTorch takes seconds to import."""
        if name == "__all__" or not name.startswith("_"):
            import fedbm.public as public

            names = [each for each in dir(public) if not each.startswith("_")]
            if name == "__all__":
                return ["__version__", *names]
            if name in names:
                return getattr(public, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Return only the public names."""
        return sorted(__getattr__("__all__"))
