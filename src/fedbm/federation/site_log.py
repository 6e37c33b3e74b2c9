"""A site's own log: standard error, which the node's supervisor keeps at the site."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress


def tell(error: BaseException) -> None:
    """The whole story of *error*, for the site alone. It raises nothing: on a full disk the story is lost, since Flower
    would send whatever is raised to the server."""
    with suppress(OSError, ValueError):
        traceback.print_exception(error, file=sys.stderr)
        sys.stderr.flush()
