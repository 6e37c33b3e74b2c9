"""Central training: what one hospital with all data would reach. It is an upper bound, not a competing method.

    ⌊E·participation·n/B⌋ steps a round, about as many as the federation makes; a pass over the data may span rounds;
    momentum and Adam's moments are kept between rounds

It equals FedAvg with one client that has all data, at participation 1 with kept optimiser state, if B divides n (a
client's last batch wraps around, so it makes ⌈n/B⌉ steps a pass).
"""

from __future__ import annotations

from dataclasses import dataclass

from fedbm.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Central(FedAvg):
    """All training data in one place. Nothing is sent."""

    name = "central"
    title = "Central"
    shares = ()
    central = True
