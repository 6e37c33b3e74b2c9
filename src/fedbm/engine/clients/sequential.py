"""Clients trained one after the other, in this process. It is the base class of the parallel back ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fedbm.engine.clients.cohort import ClientResult, LocalSetup, find_nonfinite, merge_pieces
from fedbm.engine.local_training import Samples, train_client
from fedbm.methods.base import Facts, Pieces, State, Upload, size_of


class LocalCohort:
    """Train clients one after the other on one model in this process. Memory does not grow with the clients."""

    def __init__(self, setup: LocalSetup) -> None:
        self._method, self._task, self._train, self._model = setup.method, setup.task, setup.train, setup.model
        labels, classes = setup.labels, len(setup.task.classes)
        normalise = setup.task.normalise().to(labels.device)
        self._data = [Samples(setup.images, labels, indices, normalise) for indices in setup.clients]
        self._states, self._holds = setup.states, setup.progress.holds
        self._facts = {
            client: Facts(client, len(own), tuple(labels[own].bincount(minlength=classes).tolist()))
            for client, own in enumerate(setup.clients)
        }

    def census(self) -> Mapping[int, Facts]:
        return self._facts

    def exchange(self, round_: int, clients: Sequence[int], pieces: Pieces) -> Iterator[ClientResult | None]:
        received = merge_pieces(pieces)
        for client in clients:
            yield self._accept(round_, *self.train(round_, client, received), pieces)

    def close(self) -> None:
        pass

    def train(self, round_: int, client: int, received: State) -> tuple[Upload, State]:
        """Train one client for one round. Return its upload and its new state."""
        facts, data, state = self._facts[client], self._data[client], self._load_state(client)
        return train_client(self._method, self._model, self._task, self._train, round_, facts, data, received, state)

    def _load_state(self, client: int) -> State:
        if client in self._states:
            return self._states.load(client)
        return self._method.client_init(self._task, self._facts[client])

    def _accept(self, round_: int, upload: Upload, own: State, pieces: Pieces) -> ClientResult:
        """Check an upload, store the client's new state, and count the bytes sent and received."""
        rejection = find_nonfinite(upload.state) or find_nonfinite(own)
        if own and rejection is None:  # after a rejection the client continues from its former state
            self._states.put(upload.client, round_, own)
        held = self._holds.setdefault(upload.client, {})
        missing = [piece for name, piece in pieces.items() if held.get(name) != piece.version]
        held.update({name: piece.version for name, piece in pieces.items()})
        if self._method.central:
            return ClientResult(upload, rejection, 0, 0)
        return ClientResult(upload, rejection, sum(size_of(piece.state) for piece in missing), size_of(upload.state))
