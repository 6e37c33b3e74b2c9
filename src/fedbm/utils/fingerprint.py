"""What a value is, in plain data that is alike in every process and differs where the value would compute otherwise.

A run's id is made of it, so that two runs never share one: code by its text, arrays by their bytes, objects by their
class and what they hold, functions by what they captured as well.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import re
import types
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

PUBLISHED = ("builtins", "torch", "numpy", "typing", "abc", "collections", "functools", "dataclasses", "enum", "fedbm")


def described(value: Any, within: tuple[int, ...] = ()) -> Any:
    """*value* as JSON could hold it. *within*: the objects it was reached through, which may hold each other."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) in within:
        return "itself"
    inside = functools.partial(described, within=(*within, id(value)))
    if isinstance(value, torch.Tensor | np.ndarray):
        array = value.detach().cpu().contiguous().view(-1) if isinstance(value, torch.Tensor) else value
        held = array.view(torch.uint8).numpy() if isinstance(array, torch.Tensor) else np.ascontiguousarray(array)
        return [str(value.dtype), list(value.shape), hashlib.sha256(held.tobytes()).hexdigest()]
    if isinstance(value, Mapping):
        return [[inside(key), inside(item)] for key, item in value.items()]
    if isinstance(value, Set):
        return sorted(map(str, map(inside, value)))
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [inside(item) for item in value]
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, type):
        return class_digest(value)
    if isinstance(value, functools.partial):
        return ["partial", inside(value.func), inside(value.args), inside(value.keywords)]
    if isinstance(value, types.MethodType):
        return [value.__qualname__, inside(value.__self__), code_digest(value.__func__)]
    if isinstance(value, types.FunctionType):
        if _published(value):
            return value.__qualname__
        captured = [_cell(cell) for cell in value.__closure__ or ()]
        given = [value.__defaults__, value.__kwdefaults__]
        return [value.__qualname__, value.__code__.co_firstlineno, code_digest(value), inside(captured), inside(given)]
    if isinstance(value, nn.Module):
        own = {name: held for name, held in vars(value).items() if not name.startswith("_") and name != "training"}
        state = {**value._parameters, **value._buffers}
        return [class_digest(type(value)), inside(own), inside(state), inside(dict(value.named_children()))]
    if hasattr(value, "__dict__"):
        return [class_digest(type(value)), inside(vars(value))]
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def changed(options: Any) -> dict[str, Any]:
    """What differs from the defaults: an option added later, left at its default, changes no id."""
    defaults = {}
    if dataclasses.is_dataclass(options):
        defaults = {field.name: field.default for field in dataclasses.fields(options)}
    return {
        name: described(value)
        for name, value in vars(options).items()
        if name not in defaults or not _same(value, defaults[name])
    }


def class_digest(kind: type) -> str:
    """A class by name and, as far as it is not a published one, by the text of it and of those it is made from."""
    own = [base for base in kind.__mro__ if not _published(base)]
    return " ".join([kind.__qualname__, *map(code_digest, own)])


def code_digest(thing: Any) -> str:
    """SHA-256 of the file in which a class or function stands, since it may use what else stands there.

    Of its own text where there is no such file (a notebook), of its compiled code where that is not to be had either.
    """
    try:
        file = inspect.getsourcefile(thing)
        text = Path(file).read_text(encoding="utf-8") if file and Path(file).is_file() else inspect.getsource(thing)
        return hashlib.sha256(text.encode()).hexdigest()
    except (OSError, TypeError):
        functions = [
            f for f in (vars(thing).values() if isinstance(thing, type) else [thing]) if hasattr(f, "__code__")
        ]
        return hashlib.sha256(repr([_compiled(f.__code__) for f in functions]).encode()).hexdigest()


def _published(thing: Any) -> bool:
    return str(thing.__module__).partition(".")[0] in PUBLISHED


def _compiled(code: types.CodeType) -> list[Any]:
    consts = [_compiled(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return [code.co_name, code.co_code, code.co_names, consts]


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return "nothing"


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (ValueError, RuntimeError, TypeError):  # arrays say it for each of their elements
        return False
