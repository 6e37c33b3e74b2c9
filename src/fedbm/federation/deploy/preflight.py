"""Check a role before it reports that it is ready; each error message explains what to do."""

from __future__ import annotations

import json
from pathlib import Path

from fedbm.errors import FedBMError, did_you_mean
from fedbm.federation.deploy.flower import ASK_ERRORS, ask, check_flower
from fedbm.federation.deploy.settings_files import NodeSettings
from fedbm.methods import all_methods
from fedbm.version import __version__

SUPERLINK_STATUS = 415  # the answer of a SuperLink to a message without content


def describe_policy(node: NodeSettings) -> str:
    """Return this site's rules in one line; raise FedBMError if they name a method that is not installed."""
    known = all_methods()
    for name in node.policy.method_names:
        if name not in (*known, "all"):
            raise FedBMError(f'methods in [policy] of node.toml: there is no "{name}"{did_you_mean(name, known)}')
    rules = [f"{key} = {json.dumps(value)}" for key, value in vars(node.policy).items() if value is not None]
    waits = "; each run waits for 'fedbm federation approve'" if node.policy.approval else ""
    return f"policy: {', '.join(rules)}{waits}"


def describe_versions() -> str:
    return f"fedbm {__version__}, flwr {check_flower()}"


def check_data(node: NodeSettings, data: str) -> str:
    """Read the node's images, prepare them if necessary, and return a line with their numbers."""
    from fedbm.federation.node.node_data import open_images

    try:
        found = open_images(data, node.size, node.channels, verify=True)
    except FedBMError as error:
        remedy = f"If an option helps, run 'fedbm data prepare {data}' with it, and use the folder that it prints"
        raise FedBMError(f"{error}. {remedy}") from error
    train = int((found.split == 0).sum())
    if train == 0:
        raise FedBMError(f"{data} has no training images")
    side, depth = found.images.shape[2:]
    return (
        f"images: {len(found.labels):,} of {len(found.classes)} classes, {train:,} of them for training, "
        f"{side} pixels, {'colour' if depth == 3 else 'grey'}"
    )


def check_server(node: NodeSettings, authority: Path) -> str:
    """Check that a SuperLink with a certificate of our authority answers at the node's server address."""
    try:
        status, _ = ask(node.server, authority, "POST", "/v1/fleet/activate-node")
    except ASK_ERRORS as error:
        raise FedBMError(
            f"no trusted server answers at {node.server}: {error}. Check server in node.toml, which must be host:port, "
            "and this machine's clock; RUNBOOK.md lists more causes"
        ) from error
    if status != SUPERLINK_STATUS:
        remedy = "check server in node.toml, or ask the operator to start the SuperLink"
        raise FedBMError(f"the program at {node.server} is not a SuperLink (it answered {status}); {remedy}")
    return f"server {node.server}: reached, its certificate is trusted"
