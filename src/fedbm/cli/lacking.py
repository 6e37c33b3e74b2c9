"""What the package needs but cannot be imported here: not installed or, as PyTorch may be, beside wrong libraries."""

from __future__ import annotations

import sys
from traceback import walk_tb

INSTALL = "install FedBM with all it needs, in its own folder: pip install -c constraints.txt -e ."


def lacking(error: Exception) -> str:
    """A sentence where *error* says that a package is not installed or that PyTorch cannot be imported; else ''."""
    name = (error.name or "" if isinstance(error, ModuleNotFoundError) else "").partition(".")[0]
    if not name and "torch" not in sys.modules and "torch" in _passed(error):
        name = "torch"  # with whatever error its libraries raised: an import that failed leaves no module behind
    if name in ("", "fedbm"):
        return ""
    return f"{'PyTorch' if name == 'torch' else name} cannot be imported ({error}); {INSTALL}"


def _passed(error: Exception) -> set[str]:
    """The packages whose code *error* was raised in or came through."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
