"""Refuse an update that is far larger than the updates accepted before it.

A site with more images than the median site takes more steps in a round, so it may send a larger update. The factor
for its size is at most ten, whatever number of images it claims.

    bound(n) = ratio · median norm · size(n)
    size(n)  = n / median n, at least 1 and at most 10

Both medians are over the updates that were accepted in the last five rounds. In the first round there are none, so only
`max_norm` applies.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from statistics import median

from fedbm.errors import FedBMError

MAX_SIZE = 10.0
ROUNDS = 5

Accepted = MutableMapping[int, list[tuple[int, float]]]  # round → (n, norm) of each accepted update


class NormHistory:
    """The norms of accepted updates. The checkpoint contains *accepted*."""

    def __init__(self, accepted: Accepted, ratio: float) -> None:
        self._accepted, self._ratio = accepted, ratio

    def begin(self, round_: int) -> None:
        """Start a round, and drop the updates that an earlier attempt at this round accepted."""
        for other in list(self._accepted):
            if not round_ - ROUNDS <= other < round_:
                del self._accepted[other]

    def bound(self, round_: int, n: int) -> float:
        """Return the largest norm that a site with *n* images may send in this round."""
        known = [pair for other, pairs in self._accepted.items() if other < round_ for pair in pairs]
        if not known:
            return math.inf
        size = n / median(count for count, _ in known)
        return self._ratio * median(norm for _, norm in known) * min(max(size, 1.0), MAX_SIZE)

    def accept(self, round_: int, n: int, norm: float) -> None:
        """Remember an update, or raise FedBMError if its norm is above the bound."""
        if norm > (bound := self.bound(round_, n)):
            raise FedBMError(
                f"the norm of its update is {norm:.3g}, above the bound {bound:.3g}: {self._ratio:g} times the usual "
                "norm for a site of its size. If you trust this site, raise max_norm_ratio"
            )
        self._accepted.setdefault(round_, []).append((n, norm))
