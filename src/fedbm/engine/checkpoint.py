"""A run's durable state: one checkpoint file, the best model so far, and each client's own state.

    checkpoint.safetensors        server state; its metadata names the round, the best round and client-state versions
    best-<round>.safetensors      the state scored best on validation
    clients/<client>-<round>.safetensors

The checkpoint is renamed into place last and names the others; what it does not name is removed afterwards. So at any
moment the folder holds one whole, consistent state, and a kill loses what came after the last checkpoint alone.
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

from fedbm.engine.records import Evaluation
from fedbm.errors import FedBMError
from fedbm.methods.base import State, size_of
from fedbm.utils.io import atomic_write
from fedbm.utils.typed_json import decode

FORMAT = 1
CHECKSUM = "crc32"  # its key in a file's metadata
OPTIMIZER = "optimizer."  # prefix of kept optimiser state within a client's state


@dataclass
class Progress:
    """Where a run stands after a whole round."""

    round: int = 0
    best: Evaluation | None = None  # of the round chosen on validation
    last: Evaluation | None = None  # the latest
    client_rounds: dict[int, int] = field(default_factory=dict)  # client → round its state was last written
    holds: dict[int, dict[str, int]] = field(default_factory=dict)  # client → version of each part it has
    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    accepted_norms: dict[int, list[tuple[int, float]]] = field(
        default_factory=dict
    )  # recent round → (n, norm) of each accepted update, where a server checks the updates of nodes
    empty_rounds: int = 0  # rounds running without one usable update

    @property
    def best_round(self) -> int:
        return self.best.round if self.best else 0


def save_tensors(path: Path, state: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> None:
    """A safetensors file, whole or not at all, with a checksum of its tensors; metadata values are stored as JSON."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    metadata = {**metadata, CHECKSUM: checksum(tensors)}
    notes = {"format": str(FORMAT), **{key: json.dumps(value) for key, value in metadata.items()}}
    with atomic_write(path) as temporary:
        temporary.write_bytes(save(tensors, notes))


def load_tensors(path: Path, device: torch.device | str = "cpu") -> tuple[State, dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            notes = dict(file.metadata() or {})
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise FedBMError(f"cannot read {path}: {error}") from error
    if (form := notes.pop("format", "")) != str(FORMAT):
        raise FedBMError(f"{path} has format {form or 'unknown'}; this version of fedbm reads format {FORMAT}")
    try:
        metadata = {key: json.loads(value) for key, value in notes.items()}
    except ValueError as error:
        raise FedBMError(f"cannot read {path}: its metadata is damaged ({error})") from error
    if (written := metadata.pop(CHECKSUM, None)) is not None and written != checksum(state):
        raise FedBMError(f"cannot read {path}: its tensors are not those that were written, the file is damaged")
    return {name: value.to(device) for name, value in state.items()}, metadata


def checksum(state: State) -> int:
    """CRC-32 over the tensors' bytes in the order of their names: a fault of the disk is not taken for a state."""
    found = 0
    for name in sorted(state):
        found = zlib.crc32(state[name].reshape(-1).view(torch.uint8).numpy().data, zlib.crc32(name.encode(), found))
    return found


class ClientStates(Mapping[int, State]):
    """Clients' states on disk, read when asked for: memory does not grow with clients.

    Up to *room* bytes of those last used are also held on the device; of these, new ones are written by save(), or when
    they make room for others. A state that a newer one replaces before a checkpoint has named it is removed.
    """

    def __init__(self, folder: Path, device: torch.device | str, rounds: dict[int, int], room: int = 0) -> None:
        self._folder, self._device, self._room, self.rounds = folder, device, room, rounds
        self._named = dict(rounds)  # as in the last checkpoint
        self._held: dict[int, State] = {}  # the one longest not used first
        self._size = 0  # bytes of those
        self._unsaved: set[int] = set()

    def __contains__(self, client: object) -> bool:
        return client in self.rounds

    def __getitem__(self, client: int) -> State:
        state = self._held.get(client)
        if state is None:
            state = load_tensors(self._path(client, self.rounds[client]), self._device)[0]
        if not self._room:
            return state
        self._hold(client, state)
        return {name: value.clone() for name, value in state.items()}  # to be changed at will

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.rounds))

    def __len__(self) -> int:
        return len(self.rounds)

    def without_optimizers(self) -> Mapping[int, State]:
        """The same states as methods know them: what the engine keeps of optimisers is left out."""
        return _MethodStates(self)

    def put(self, client: int, round_: int, state: State) -> None:
        copied = {name: value.detach().to(self._device, copy=True) for name, value in state.items()}
        before, self.rounds[client] = self.rounds.get(client), round_  # only now: there was memory for it
        self._unsaved.add(client)
        self._hold(client, copied)
        if before not in (None, round_, self._named.get(client)):
            self._path(client, before).unlink(missing_ok=True)

    def save(self) -> None:
        """Write what is new: the next checkpoint names it."""
        for client in sorted(self._unsaved):
            self._write(client)
        self._named = dict(self.rounds)

    def let_go(self) -> bool:
        """Hold none from now on; whether any was held."""
        held, self._room = bool(self._held), 0
        self._make_room()
        return held

    def _hold(self, client: int, state: State) -> None:
        self._drop(client)
        self._held[client] = state
        self._size += size_of(state)
        self._make_room()

    def _make_room(self) -> None:
        while self._held and (self._size > self._room or not self._room):
            oldest = next(iter(self._held))
            if oldest in self._unsaved:
                self._write(oldest)
            self._drop(oldest)

    def _drop(self, client: int) -> None:
        self._size -= size_of(self._held.pop(client, {}))

    def _write(self, client: int) -> None:
        save_tensors(self._path(client, self.rounds[client]), self._held[client], {})
        self._unsaved.remove(client)

    def _path(self, client: int, round_: int) -> Path:
        return self._folder / f"{client}-{round_}.safetensors"


@dataclass(frozen=True)
class _MethodStates(Mapping[int, State]):
    states: ClientStates

    def __getitem__(self, client: int) -> State:
        return {name: value for name, value in self.states[client].items() if not name.startswith(OPTIMIZER)}

    def __iter__(self) -> Iterator[int]:
        return iter(self.states)

    def __len__(self) -> int:
        return len(self.states)


def save_checkpoint(folder: Path, run_id: str, server: State, progress: Progress) -> None:
    """Write the checkpoint, then remove what it no longer names."""
    save_tensors(folder / "checkpoint.safetensors", server, {"run": run_id, "progress": dataclasses.asdict(progress)})
    remove_unnamed(folder, progress)


def remove_unnamed(folder: Path, progress: Progress) -> None:
    """Remove best models and client states that are not this progress's: of rounds before, or of a round cut short."""
    wanted = {f"{client}-{round_}.safetensors" for client, round_ in progress.client_rounds.items()}
    wanted.add(best_path(folder, progress.best_round).name)
    for path in [*folder.glob("best-*.safetensors"), *folder.glob("clients/*.safetensors")]:
        if path.name not in wanted:
            path.unlink(missing_ok=True)


def load_checkpoint(folder: Path, run_id: str, device: torch.device | str) -> tuple[State, Progress] | None:
    """The state it holds, or None where the run has not written one."""
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return None
    try:
        server, notes = load_tensors(path, device)
    except FedBMError as error:
        raise FedBMError(f"{error}; put the file back, or remove it to start this run over") from error
    if notes.get("run") != run_id or "progress" not in notes:
        raise FedBMError(f"{path} is not the checkpoint of {run_id}; remove it to start this run over")
    values = notes["progress"]
    for name in ("client_rounds", "holds", "accepted_norms"):  # JSON keys are text
        values[name] = {int(number): value for number, value in values[name].items()}
    for name in ("best", "last"):
        if values[name] is not None:
            values[name] = decode(Evaluation, values[name], path, "; remove it to start this run over")
    return server, Progress(**values)


def rounds_behind(folder: Path) -> int:
    """The round a run would go on after; 0 where it would begin again, or has to: its checkpoint cannot be read.

    Only the file's metadata is read: this is for plans, and the run itself says what is wrong with a damaged file.
    """
    try:
        with safe_open(folder / "checkpoint.safetensors", framework="pt") as file:
            return int(json.loads((file.metadata() or {})["progress"])["round"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return 0


def load_best(folder: Path, round_: int) -> State:
    """The state of the best round: from its own file or, once the run was finished, from model.safetensors."""
    path = best_path(folder, round_)
    return load_tensors(path if path.exists() else folder / "model.safetensors")[0]


def best_path(folder: Path, round_: int) -> Path:
    return folder / f"best-{round_}.safetensors"
