"""The state of a run on disk: a checkpoint, the best model so far, and the state of each client.

    checkpoint.safetensors        server state; its metadata names the round, the best round and client-state versions
    best-<round>.safetensors      the state with the best validation score
    clients/<client>-<round>.safetensors

The checkpoint names the other files. It is renamed into place last, and files that it does not name are removed
afterwards. The folder always contains one consistent state. A kill loses only the work after the last checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedbm.engine.round_record import Evaluation
from fedbm.errors import FedBMError
from fedbm.methods.base import State, size_of
from fedbm.utils.io import atomic_write
from fedbm.utils.json_records import decode

FORMAT = 1
CHECKSUM_KEY = "crc32"  # key in a file's metadata
OPTIMIZER_PREFIX = "optimizer."  # of the optimiser's tensors in a client's state


@dataclass
class Progress:
    """The progress of a run after a finished round."""

    round: int = 0
    best: Evaluation | None = None  # of the round chosen on validation
    last: Evaluation | None = None  # the latest
    client_rounds: dict[int, int] = field(default_factory=dict)  # client → round its state was last written
    holds: dict[int, dict[str, int]] = field(default_factory=dict)  # client → version of each piece it has
    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    # recent round → (n, norm) of each accepted update, if a server checks the updates of nodes
    accepted_norms: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    empty_rounds: int = 0  # consecutive rounds without a usable update

    @property
    def best_round(self) -> int:
        return self.best.round if self.best else 0


def save_tensors(path: Path, state: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> None:
    """Write a safetensors file atomically, with a checksum of its tensors. Metadata values are stored as JSON."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    notes = {"format": FORMAT, **metadata, CHECKSUM_KEY: checksum(tensors)}
    with atomic_write(path) as temporary:
        temporary.write_bytes(save(tensors, {key: json.dumps(value) for key, value in notes.items()}))


def load_tensors(path: Path, device: torch.device | str = "cpu") -> tuple[State, dict[str, Any]]:
    """Return the tensors and the metadata of a file. Raise FedBMError if the file is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            metadata = {key: json.loads(value) for key, value in (file.metadata() or {}).items()}
    except (OSError, SafetensorError, ValueError) as error:
        raise FedBMError(f"cannot read {path}: {error}") from error
    if (form := metadata.pop("format", "unknown")) != FORMAT:
        raise FedBMError(f"{path} has format {form}; this version of fedbm reads format {FORMAT}")
    if metadata.pop(CHECKSUM_KEY, None) not in (None, checksum(state)):
        raise FedBMError(f"cannot read {path}: the file is damaged, its checksum does not match")
    return {name: value.to(device) for name, value in state.items()}, metadata


def _load_saved(path: Path, device: torch.device | str, folder: Path) -> State:
    """Return the tensors of a file that the unfinished run in *folder* needs."""
    try:
        return load_tensors(path, device)[0]
    except FedBMError as error:
        raise FedBMError(f"{error}; put the file back, or remove {folder} to start this run over") from error


def checksum(state: State) -> int:
    """Return the CRC-32 of the tensors' bytes, in the order of their names."""
    found = 0
    for name in sorted(state):
        found = zlib.crc32(state[name].reshape(-1).view(torch.uint8).numpy().data, zlib.crc32(name.encode(), found))
    return found


class ClientStates(Mapping[int, State]):
    """Client states on disk, loaded on access, so that memory does not grow with the number of clients.

    New states are also kept on the device until they take more than *cache_bytes*; then all of them move to disk. A
    state on the device is written by save(). A state that is replaced before a checkpoint names it is removed.
    """

    def __init__(self, folder: Path, device: torch.device | str, rounds: dict[int, int], cache_bytes: int = 0) -> None:
        self._folder, self._device, self._cache_bytes, self.rounds = folder, device, cache_bytes, rounds
        self._checkpointed = dict(rounds)
        self._cached: dict[int, State] = {}
        self._size = 0  # bytes of the cached states
        self._unsaved: set[int] = set()

    def __contains__(self, client: object) -> bool:
        return client in self.rounds

    def __getitem__(self, client: int) -> State:
        """Return a client's state as methods know it, without the tensors of the optimiser."""
        return split_by_prefix(self.load(client), OPTIMIZER_PREFIX)[0]

    def load(self, client: int) -> State:
        """Return a client's state with the tensors of the optimiser."""
        if client in self._cached:
            return {name: value.clone() for name, value in self._cached[client].items()}  # the caller may change them
        return _load_saved(self._path(client, self.rounds[client]), self._device, self._folder.parent)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.rounds))

    def __len__(self) -> int:
        return len(self.rounds)

    def put(self, client: int, round_: int, state: State) -> None:
        """Replace the state of a client by its state after *round_*."""
        copied = {name: value.detach().to(self._device, copy=True) for name, value in state.items()}
        before, self.rounds[client] = self.rounds.get(client), round_  # after the copy, which may run out of memory
        self._unsaved.add(client)
        self._size += size_of(copied) - size_of(self._cached.get(client, {}))
        self._cached[client] = copied
        if self._size > self._cache_bytes or not self._cache_bytes:
            self.drop_from_memory()
        if before not in (None, round_, self._checkpointed.get(client)):
            self._path(client, before).unlink(missing_ok=True)

    def save(self) -> None:
        """Write all new states, which the next checkpoint names."""
        self._write_unsaved()
        self._checkpointed = dict(self.rounds)

    def drop_from_memory(self) -> bool:
        """Move all states to disk, and keep no more on the device. Return whether there was one."""
        self._write_unsaved()
        dropped, self._cache_bytes, self._cached, self._size = bool(self._cached), 0, {}, 0
        return dropped

    def _write_unsaved(self) -> None:
        for client in sorted(self._unsaved):
            save_tensors(self._path(client, self.rounds[client]), self._cached[client], {})
            self._unsaved.remove(client)

    def _path(self, client: int, round_: int) -> Path:
        return self._folder / f"{client}-{round_}.safetensors"


def split_by_prefix(state: State, prefix: str) -> tuple[State, State]:
    """Return the tensors without *prefix* and those with it, which lose it."""
    own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    return {name: value for name, value in state.items() if not name.startswith(prefix)}, own


def save_checkpoint(folder: Path, run_id: str, server: State, progress: Progress) -> None:
    """Write the checkpoint, then remove the files that it no longer names."""
    save_tensors(folder / "checkpoint.safetensors", server, {"run": run_id, "progress": dataclasses.asdict(progress)})
    remove_stale_files(folder, progress)


def remove_stale_files(folder: Path, progress: Progress) -> None:
    """Remove best models and client states of earlier or interrupted rounds, which *progress* does not name."""
    wanted = {f"{client}-{round_}.safetensors" for client, round_ in progress.client_rounds.items()}
    wanted.add(best_path(folder, progress.best_round).name)
    for path in [*folder.glob("best-*.safetensors"), *folder.glob("clients/*.safetensors")]:
        if path.name not in wanted:
            path.unlink(missing_ok=True)


def load_checkpoint(folder: Path, run_id: str, device: torch.device | str) -> tuple[State, Progress] | None:
    """Return the saved state and progress, or None if the run has no checkpoint yet."""
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return None
    try:
        server, notes = load_tensors(path, device)
        if notes.get("run") != run_id:
            raise FedBMError(f"it is not the checkpoint of {run_id}")
        values = notes["progress"]
        for name in ("client_rounds", "holds", "accepted_norms"):  # JSON keys are text
            values[name] = {int(number): value for number, value in values[name].items()}
        for name in ("best", "last"):
            if values[name] is not None:
                values[name] = decode(Evaluation, values[name], name)
        return server, Progress(**values)
    except (FedBMError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise FedBMError(
            f"cannot resume from {path}: {error}; put the file back, or remove it to start this run over"
        ) from error


def rounds_behind(folder: Path) -> int:
    """Return the round of the checkpoint, from which the run would continue; 0 if there is none or it is damaged.

    Only the metadata is read. The run itself reports what is wrong with a damaged file.
    """
    try:
        with safe_open(folder / "checkpoint.safetensors", framework="pt") as file:
            return int(json.loads((file.metadata() or {})["progress"])["round"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return 0


def load_best(folder: Path, round_: int) -> State:
    """Return the state of the best round, from its own file or, after the run, from model.safetensors."""
    path, model = best_path(folder, round_), folder / "model.safetensors"
    return _load_saved(path if path.exists() or not model.exists() else model, "cpu", folder)


def best_path(folder: Path, round_: int) -> Path:
    return folder / f"best-{round_}.safetensors"
