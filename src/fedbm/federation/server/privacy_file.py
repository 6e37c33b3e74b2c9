"""runs/<id>/privacy.json at the server: the privacy loss of each site, as its node last reported it.

It is written with every answer, so that a killed server forgets no reported loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbm.engine.run_folder import FORMAT
from fedbm.federation.protocol.reply_checks import read_privacy
from fedbm.runs.run_files import Privacy
from fedbm.utils.io import read_json, write_json
from fedbm.utils.schema import check
from fedbm.utils.typed_json import schema_of


class PrivacyFile:
    """Losses at one δ, by client."""

    def __init__(self, path: Path, delta: float) -> None:
        self._path = path
        self.values: dict[str, Any] = {"delta": delta, "clients": {}}
        if path.exists():
            found = read_json(path)
            check(found, schema_of(Privacy), path, "; remove it: nodes report their losses again")
            if found["delta"] == delta:
                self.values["clients"] = found["clients"]

    def keep(self, client: int, body: Mapping[str, Any]) -> dict[str, Any]:
        """Save and return the loss in a node's answer; raise FedBMError if it cannot be read."""
        found = read_privacy(body)
        self.values["clients"][str(client)] = found
        write_json(self._path, {"format": FORMAT, **self.values})
        return found
