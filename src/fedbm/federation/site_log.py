"""A site's own log: standard error, which stays at the site."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress


def log_error(error: BaseException) -> None:
    """Print the traceback for the site only. Raise nothing: Flower would send any exception to the server."""
    with suppress(OSError, ValueError):
        traceback.print_exception(error, file=sys.stderr)
        sys.stderr.flush()
