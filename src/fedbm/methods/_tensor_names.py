"""Selection and renaming of tensors by the start of their names."""

from __future__ import annotations

from torch import Tensor


def with_prefix(state: dict[str, Tensor], prefix: str, new: str | None = None) -> dict[str, Tensor]:
    """Return the tensors with names that start with *prefix*; if given, *new* replaces the prefix.

    >>> with_prefix({"body.a": Tensor([1]), "head.a": Tensor([0])}, "body.", "previous.")
    {'previous.a': tensor([1.])}
    """
    new = prefix if new is None else new
    return {new + name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
