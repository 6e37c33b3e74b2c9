"""[federation]: the options of a run between machines.

`compression` rounds uploads, and `dp_noise` adds noise to them after `dp_clip`: these change what a run learns and are
part of the run's id. `max_norm` and `max_norm_ratio` can refuse updates; an operator may change them and resume the
run. The audit records all options.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedbm.config.keys import build_options
from fedbm.config.options import option
from fedbm.errors import FedBMError, prefix_errors
from fedbm.federation.protocol.packing import Compression
from fedbm.runs.plan import find_weights
from fedbm.runs.run_config import Config, make_config, read_sections
from fedbm.utils.fingerprint import changed_options

SECTION = "federation"
RESULT_OPTIONS = ("compression", "dp_noise", "dp_clip")  # part of the run's id
SIMULATION_ONLY = {  # options without an effect here: there is one run, and nodes fail and differ by themselves
    "data": {"held_out", "held_out_values", "feature_shift"},
    "train": {"drop_rate"},
    "engine": {"out", "workers", "slots", "on", "runs_per_gpu", "processes_per_gpu", "track"},
}


@dataclass(frozen=True)
class FederationOptions:
    """Who takes part, how long the server waits, and what it accepts."""

    nodes: int = option(3, "number of nodes N; their clients are numbered 0 to N − 1", least=1)
    min_updates: int = option(2, "usable updates that a round needs, at most as many as nodes are selected", least=1)
    deadline_s: float = option(600.0, "seconds a node has to answer", above=0)
    max_round_attempts: int = option(20, "times a round is tried before the run stops; it can be resumed", least=1)
    max_missed_deadlines: int = option(2, "missed deadlines or refusals in a row; then a node rests a round", least=1)
    evaluate: Literal["nodes", "server"] = option(
        "nodes", "who scores the model: nodes on their own val and test images, or the server on the data set in [data]"
    )
    compression: Compression = option("none", "uploads: exact, in half precision, or differences in half precision")
    max_norm: float = option(1e6, "largest norm of an update, the difference to what the client received", above=0)
    max_norm_ratio: float = option(10.0, "the same, as a multiple of the usual norm for a site of its size", least=1)
    on_lost_state: Literal["refuse", "fresh"] = option(
        "refuse", "what to do with a node that lost its client's state: leave it out, or let it start afresh"
    )
    dp_noise: float = option(0.0, "noise multiplier z of client-side differential privacy; 0: none", least=0, most=1e6)
    dp_clip: float = option(1.0, "norm C to which updates are clipped before noise is added", least=1e-9, most=1e9)
    dp_delta: float = option(1e-5, "δ at which ε is reported", least=1e-30, most=1)


def read_run_file(path: Path) -> tuple[Config, FederationOptions]:
    """Read the TOML file of a run: the sections of every run, and [federation]."""
    values = read_sections(path)
    section = values.pop(SECTION, {})
    config = find_weights(make_config(values, str(path)))
    for name, known in SIMULATION_ONLY.items():
        if found := sorted(known & changed_options(getattr(config, name)).keys()):
            raise FedBMError(f"{found[0]} in [{name}] of {path} only applies to simulations. Remove it.")
    with prefix_errors(f"[{SECTION}] in {path}"):
        return config, build_options(FederationOptions, section, "it")
