"""What a node keeps of a run on the disk: its client's own state, which is never sent.

    <state>/runs/<run>/<digest>/clients/<client>-<round>.safetensors    the client's state after that round

The digest is that of method, training, model, task and concepts. The server chooses a run's name, and with the name
alone, another method could load and send a client's state.

A round can be lost or repeated, and a killed server resumes from its last checkpoint. So a new state does not replace
the one before it. Every request names the round that last *counted* for this client, and the round that is *durable* at
the server. The node continues from the counted round, and keeps every state since the durable round.
"""

from __future__ import annotations

from pathlib import Path

import torch

from fedbm.engine.checkpoint import load_tensors, save_tensors
from fedbm.errors import FedBMError
from fedbm.federation.protocol.messages import Refusal, Terms
from fedbm.methods.base import State
from fedbm.utils.io import digest_of


class NodeStore:
    """One run's folder at a node."""

    def __init__(self, state: Path, terms: Terms, client: int) -> None:
        training = digest_of({key: terms.values[key] for key in ("method", "train", "model", "task", "concepts")})
        self.folder, self._client = state / "runs" / terms.run / training, client

    def load(self, counted: int, durable: int, fresh: bool, device: torch.device) -> State | None:
        """Return the client's state after round *counted*, or None if it has none. Remove states no longer needed."""
        for path in (self.folder / "clients").glob(f"{self._client}-*.safetensors"):
            number = path.stem.partition("-")[2]
            if number.isdecimal() and not durable <= int(number) <= counted:
                path.unlink(missing_ok=True)
        if counted == 0:
            return None
        try:
            return load_tensors(self._path(counted), device)[0]
        except FedBMError as error:
            if fresh:
                return None
            raise Refusal("lost") from error

    def save(self, round_: int, state: State) -> None:
        save_tensors(self._path(round_), state, {})

    def _path(self, round_: int) -> Path:
        return self.folder / "clients" / f"{self._client}-{round_}.safetensors"
