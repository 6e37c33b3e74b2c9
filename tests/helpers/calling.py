"""Words for the command line, and what is expected of its complaints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Command = Callable[..., tuple[int, str, str]]


def flags(settings_: dict[str, Any]) -> list[Any]:
    return [word for flag, value in settings_.items() for word in (f"--{flag.replace('_', '-')}", value)]


def one_sentence(err: str) -> str:
    """What stands on standard error: a line that says who speaks, and no traceback."""
    assert err.startswith("fedbm: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.removeprefix("fedbm: ").rstrip("\n")
