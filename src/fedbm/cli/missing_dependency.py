"""Explain a package that cannot be imported: it is not installed or, as PyTorch may be, its libraries are missing."""

from __future__ import annotations

import sys
from traceback import walk_tb

INSTALL = "Install FedBM with its dependencies, in its own folder: pip install -c constraints.txt -e ."


def explain_missing(error: Exception) -> str:
    """Return a sentence if a package is not installed or PyTorch cannot be imported; "" for other errors."""
    name = (error.name or "" if isinstance(error, ModuleNotFoundError) else "").partition(".")[0]
    if not name and "torch" not in sys.modules and "torch" in _packages(error):
        name = "torch"  # its libraries may raise any error; a failed import leaves no module behind
    if name in ("", "fedbm"):
        return ""
    return f"{'PyTorch' if name == 'torch' else name} cannot be imported ({error}). {INSTALL}"


def _packages(error: Exception) -> set[str]:
    """Return the packages in the error's traceback."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
