"""[federation]: how a run is run between machines. Nothing here changes what it learns, nor the run's id.

The exceptions are those one would expect: `compression` rounds what clients send, `dp_noise` blurs it, and `max_norm`
and `max_norm_ratio` may refuse it. They stand in the audit with the other options.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedbm.config.options import check, option
from fedbm.errors import FedBMError, did_you_mean
from fedbm.federation.protocol.packing import Compression
from fedbm.runs.config import Config, make_config, read_toml

SECTION = "federation"


@dataclass(frozen=True)
class FederationOptions:
    """Who takes part, how long the server waits for them, and what it accepts."""

    nodes: int = option(3, "number of nodes N; their clients are numbered 0 to N − 1", least=1)
    min_updates: int = option(
        2, "usable updates that a round needs (all that were asked for, if fewer); otherwise it is repeated", least=1
    )
    deadline_s: float = option(600.0, "seconds a node has to answer", above=0)
    max_round_attempts: int = option(
        20, "times a round is tried before the run stops; the same command resumes it", least=1
    )
    max_missed_deadlines: int = option(
        2, "missed deadlines or refusals in a row after which a node is left out of a round", least=1
    )
    evaluate: Literal["nodes", "server"] = option(
        "nodes", "who scores the model: nodes on their own val and test images, or the server on the data it names"
    )
    compression: Compression = option("none", "of what clients send: bit for bit, half precision, or half differences")
    max_norm: float = option(
        1e6, "largest Euclidean norm of the difference between what a client got and sends", above=0
    )
    max_norm_ratio: float = option(
        10.0,
        "largest such norm, as a multiple of the median of the five rounds before; more for a site with more images",
        least=1,
    )
    on_lost_state: Literal["refuse", "fresh"] = option(
        "refuse", "a node that lost its client's state: leave it out, or let it start afresh"
    )
    dp_noise: float = option(0.0, "noise multiplier z of client-side differential privacy; 0: none", least=0)
    dp_clip: float = option(1.0, "norm C to which a client's update is then clipped", above=0)
    dp_delta: float = option(1e-5, "δ at which ε is told", above=0, most=1)


def read_run_file(path: Path) -> tuple[Config, FederationOptions]:
    """A run's TOML file: the sections every run has, and [federation]."""
    values = read_toml(path)
    asked = values.pop(SECTION, {})
    return make_config(values, str(path)), make_options(asked, str(path))


def make_options(values: dict[str, Any], where: str = "the configuration") -> FederationOptions:
    known = [field.name for field in dataclasses.fields(FederationOptions)]
    for key in values:
        if key not in known:
            raise FedBMError(f'[{SECTION}] in {where} has no key "{key}"{did_you_mean(key, known)}')
    return FederationOptions(**{key: check(FederationOptions, key, value) for key, value in values.items()})
