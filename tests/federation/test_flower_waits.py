"""Flower's waits and limits, which this package changes. A failure means that the installed Flower has changed."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from flwr.supercore.inflatable import inflatable_utils
from flwr.superlink.grid import http_grid

from fedbm.errors import FedBMError
from fedbm.federation.protocol.flower_records import limit_messages


def test_a_missing_object_is_looked_for_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_messages(1000, 7200.0)
    waits: list[float] = []
    monkeypatch.setattr("threading.Event.wait", lambda event, timeout=None: waits.append(timeout) or True)
    tries = iter([False, True])

    def pull(name: str) -> bytes:
        if next(tries):
            return b"content"
        raise inflatable_utils.ObjectUnavailableError(name)

    assert http_grid.pull_objects(["a"], pull) == {"a": b"content"}
    assert any(wait is not None and 0.08 <= wait <= 0.12 for wait in waits)


def test_an_object_that_never_arrives_is_not_waited_for_long() -> None:
    def pull(name: str) -> bytes:
        raise inflatable_utils.ObjectUnavailableError(name)

    limit_messages(1000, 0.3)
    with pytest.raises(inflatable_utils.ObjectPullError, match="timeout"):
        http_grid.pull_objects(["a"], pull)


def test_a_message_that_is_too_large_is_not_pulled_to_its_end() -> None:
    assert "= pull_objects(" in inspect.getsource(http_grid.HttpGrid.pull_messages)
    limit_messages(1000, 60.0)
    pulled: list[str] = []

    def pull(name: str) -> bytes:
        pulled.append(name)
        return bytes(300)

    assert len(http_grid.pull_objects(["a", "b", "c"], pull)) == 3
    with pytest.raises(FedBMError, match="its message has more than 1,000 bytes, the most that this run needs"):
        http_grid.pull_objects([str(number) for number in range(1000)], pull)
    assert len(pulled) < 500
