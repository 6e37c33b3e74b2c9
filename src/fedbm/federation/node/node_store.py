"""What a node keeps of a run between messages: the parts it was sent, and its client's own state.

    <state>/<run>/parts/<part>.safetensors              the latest of each part; its digest says which
    <state>/<run>/clients/<client>-<round>.safetensors  the client's state after that round

A round may be lost or repeated, and a killed server goes back to its last checkpoint. So the state after round r does
not replace the one it was made from: every request names the round that last *counted* for this client and the one that
is *durable* at the server, and the node resumes from the first and keeps all from the second on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from fedbm.engine.checkpoint import ClientStates, load_tensors, save_tensors
from fedbm.engine.run_folder import RunFolder
from fedbm.errors import FedBMError
from fedbm.federation.protocol.messages import Refusal, safe_name
from fedbm.federation.protocol.packing import Packed, pack, unpack
from fedbm.methods.base import State


class NodeStore:
    """One run's folder at a node."""

    def __init__(self, folder: Path, client: int, device: torch.device) -> None:
        self._folder, self._client, self._device = folder, client, device

    def held(self) -> AbstractContextManager[None]:
        """Keep a second process out: a message that comes while the one before is still worked on."""
        return RunFolder(self._folder).held()

    def holds(self) -> dict[str, str]:
        """Part → digest, of those that are whole on this disk."""
        found = {}
        for path in sorted((self._folder / "parts").glob("*.safetensors")):
            if (state := _read(path)) is not None:
                found[path.stem] = pack(state).digest
        return found

    def parts(self, wanted: Sequence[Mapping[str, Any]], sent: Mapping[str, Packed]) -> dict[str, State]:
        """The parts a request names: those it brought, which are kept, and those kept before."""
        found, lacking = {}, []
        for item in wanted:
            name, digest = item["name"], item["digest"]
            if not safe_name(name):
                raise Refusal("terms")
            path = self._folder / "parts" / f"{name}.safetensors"
            if name in sent:
                state = unpack(sent[name])
                if sent[name].digest != digest:
                    raise Refusal("terms")
                save_tensors(path, state, {})
            else:
                kept = _read(path)
                if kept is None or pack(kept).digest != digest:
                    lacking.append(name)
                    continue
                state = kept
            found[name] = {key: value.to(self._device) for key, value in state.items()}
        if lacking:
            raise Refusal("lacks", parts=lacking)
        return found

    def state(self, counted: int, durable: int, fresh: bool) -> State | None:
        """The client's state after round *counted*, or None for one that has none; what cannot be needed again goes."""
        states = self._states()
        for round_ in self._rounds():
            if round_ < durable or round_ > counted:
                self._path(round_).unlink(missing_ok=True)
        if counted == 0:
            return None
        states.rounds[self._client] = counted
        try:
            return states[self._client]
        except FedBMError as error:
            if fresh:
                return None
            raise Refusal("lost") from error

    def keep(self, round_: int, state: State) -> None:
        self._states().put(self._client, round_, state)

    def _states(self) -> ClientStates:
        return ClientStates(self._folder / "clients", self._device, {})

    def _rounds(self) -> list[int]:
        names = [path.stem.split("-") for path in (self._folder / "clients").glob(f"{self._client}-*.safetensors")]
        return [int(number) for _, number in names if number.isdecimal()]

    def _path(self, round_: int) -> Path:
        return self._folder / "clients" / f"{self._client}-{round_}.safetensors"


def _read(path: Path) -> State | None:
    """A kept part, or None where it is not there or not whole: the server then sends it again."""
    if not path.is_file():
        return None
    try:
        return load_tensors(path)[0]
    except FedBMError:
        return None
