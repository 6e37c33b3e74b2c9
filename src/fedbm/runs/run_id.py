"""The id of a run: its method, data set and seed in words, and a hash of everything that determines the result.

Device, paths and machine are not part of the id. A run's folder can be moved, and the same command finds it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbm.methods import METHODS, is_plugin
from fedbm.methods.base import Method, Task
from fedbm.models.backbone import body_code
from fedbm.runs.run_config import Config
from fedbm.utils.fingerprint import changed_options, class_digest, fingerprint, package_digest
from fedbm.utils.io import digest_of, sha256_file

PROTOCOL = 4  # raised when the same configuration would give another result


def make_run_id(config: Config, task: Task, data: str, inputs: Mapping[str, Any], *, own_body: bool = False) -> str:
    """Return ``<method>-<data>-s<seed>-<12 hex digits>``.

    *inputs* is what the run reads, as plain values: checksums of data and partition, for example. A body made in
    Python (*own_body*) enters by its code and state instead of its options.
    """
    model = changed_options(config.model)
    weights = model.pop("init_weights", "")
    if own_body:
        model = {"body": fingerprint(task.body())}
    else:
        model |= body_code(config.model.body)
    if weights and not own_body:
        model["init_weights"] = sha256_file(Path(weights).expanduser())
    train = changed_options(config.train)
    train.pop("recipe", None)  # the values that it sets are there
    determines = {
        "protocol": PROTOCOL,
        **inputs,
        "concepts": task.concepts.checksum if task.concepts else None,
        "model": model,
        "method": {**changed_options(config.method), "name": config.method.name, **own_code(config.method)},
        "train": train,
    }
    words = [config.method.name, data, f"s{config.train.seed}", digest_of(determines)[:12]]
    return "-".join(re.sub(r"[^\w.]+", "_", word, flags=re.ASCII) for word in words)


def plugin_code(config: Config) -> dict[str, str]:
    """Return digests of the source of plug-ins that define the method and the body."""
    return own_code(config.method) | body_code(config.model.body)


def own_code(method: Method) -> dict[str, str]:
    """Return the digest of the code of a method that is not part of this package, else nothing."""
    kind = type(method)
    if METHODS.get(method.name) is kind:
        return {}
    return {"code": package_digest(kind) if is_plugin(method) else class_digest(kind)}
