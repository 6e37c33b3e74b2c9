"""The folder that `flwr run` takes: no code, only which parts of the installed package Flower is to start.

So a node runs what its own engineers installed; what travels with a run is this one page of names.
"""

from __future__ import annotations

from pathlib import Path

from fedbm.utils.io import write_text
from fedbm.version import __version__

_PYPROJECT = f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedbm-app"
version = "{__version__}"
description = "Starts the installed fedbm package; holds no code of its own"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedbm"

[tool.flwr.app.components]
serverapp = "fedbm.federation.server.server_app:app"
clientapp = "fedbm.federation.node.client_app:app"

[tool.flwr.app.config]
config = ""
folder = ""
"""


def write_app(folder: Path) -> None:
    """Write the app into *folder*, whose name Flower wants to be of letters, digits and hyphens."""
    write_text(folder / "pyproject.toml", _PYPROJECT)
