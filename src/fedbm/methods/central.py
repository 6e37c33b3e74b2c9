"""Central training: what one hospital with everybody's data would reach. A ceiling, not a competitor.

    ⌊E·participation·n/B⌋ steps a round, about as many as the federation makes; a pass over the data may span rounds;
    momentum and Adam's moments are kept between rounds

Equal to FedAvg with one client that holds all data, at participation 1, with kept optimiser state, where B divides n (a
client's last batch wraps around, so it makes ⌈n/B⌉ steps a pass).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbm.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Central(FedAvg):
    """All training data in one place. Nothing is sent."""

    name: ClassVar[str] = "central"
    title: ClassVar[str] = "Central"
    colour: ClassVar[int | None] = 6
    shares: ClassVar[tuple[str, ...]] = ()
    central: ClassVar[bool] = True
