"""What a node keeps of a run between messages: the pieces it received, and its client's own state.

    <folder>/parts/<piece>.safetensors              the latest version of each piece
    <folder>/clients/<client>-<round>.safetensors  the client's state after that round

The folder is <state>/runs/<run>/<digest>, with the digest of method, training, model, task and concepts.

A round can be lost or repeated, and a killed server resumes from its last checkpoint. So a new state does not replace
the one before it. Every request names the round that last *counted* for this client, and the round that is *durable* at
the server. The node continues from the counted round, and keeps every state since the durable round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedbm.engine.checkpoint import load_tensors, save_tensors
from fedbm.errors import FedBMError
from fedbm.federation.protocol.messages import Refusal, is_safe_name
from fedbm.federation.protocol.packing import Packed, digest, unpack
from fedbm.methods.base import State


class NodeStore:
    """One run's folder at a node."""

    def __init__(self, folder: Path, client: int, device: torch.device) -> None:
        self._folder, self._client, self._device = folder, client, device

    def digests(self) -> dict[str, str]:
        """Return piece → digest of the pieces on this disk that are not damaged."""
        paths = sorted((self._folder / "parts").glob("*.safetensors"))
        return {path.stem: digest(state) for path in paths if (state := _read(path)) is not None}

    def pieces(self, wanted: Sequence[Mapping[str, Any]], sent: Mapping[str, Packed]) -> dict[str, State]:
        """Return the pieces that a request names. Save those that it contains, and read the others from the disk.

        Pieces that it does not name are removed, because a server could send any number of them.
        """
        found, missing = {}, []
        names = {str(item["name"]) for item in wanted}
        for path in (self._folder / "parts").glob("*.safetensors"):
            if path.stem not in names:
                path.unlink(missing_ok=True)
        for item in wanted:
            name, expected = item["name"], item["digest"]
            if not is_safe_name(name):
                raise Refusal("terms")
            path = self._folder / "parts" / f"{name}.safetensors"
            if name in sent:
                state = unpack(sent[name])
                if sent[name].digest != expected:
                    raise Refusal("terms")
                save_tensors(path, state, {})
            elif (saved := _read(path)) is not None and digest(saved) == expected:
                state = saved
            else:
                missing.append(name)
                continue
            found[name] = {key: value.to(self._device) for key, value in state.items()}
        if missing:
            raise Refusal("lacks", parts=missing)
        return found

    def state(self, counted: int, durable: int, fresh: bool) -> State | None:
        """Return the client's state after round *counted*, or None if it has none. Remove states no longer needed."""
        for path in (self._folder / "clients").glob(f"{self._client}-*.safetensors"):
            number = path.stem.partition("-")[2]
            if number.isdecimal() and not durable <= int(number) <= counted:
                path.unlink(missing_ok=True)
        if counted == 0:
            return None
        try:
            return load_tensors(self._path(counted), self._device)[0]
        except FedBMError as error:
            if fresh:
                return None
            raise Refusal("lost") from error

    def keep(self, round_: int, state: State) -> None:
        save_tensors(self._path(round_), state, {})

    def _path(self, round_: int) -> Path:
        return self._folder / "clients" / f"{self._client}-{round_}.safetensors"


def _read(path: Path) -> State | None:
    """Return a saved piece, or None if it is missing or damaged, so that the server sends it again."""
    try:
        return load_tensors(path)[0] if path.is_file() else None
    except FedBMError:
        return None
