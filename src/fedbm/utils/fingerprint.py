"""Describe values as JSON data for run ids. Values that compute the same have the same description in every process.

Code is described by its source, arrays by their bytes, objects by class and attributes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import math
import re
import sys
import types
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

# Code of these packages is described by name, because the run records their versions.
PUBLISHED = ("builtins", "torch", "numpy", "typing", "abc", "collections", "functools", "dataclasses", "enum", "fedbm")


def fingerprint(value: Any, parents: tuple[int, ...] = ()) -> Any:
    """Return *value* as JSON data. *parents* are the ids of the objects that contain it, to stop at cycles."""
    if value is None or isinstance(value, bool | int | float | str):
        return value if not isinstance(value, float) or math.isfinite(value) else repr(value)
    if id(value) in parents:
        return "itself"
    inside = functools.partial(fingerprint, parents=(*parents, id(value)))
    if isinstance(value, torch.Tensor | np.ndarray):
        array = value.detach().cpu().contiguous().view(-1) if isinstance(value, torch.Tensor) else value
        content = array.view(torch.uint8).numpy() if isinstance(array, torch.Tensor) else np.ascontiguousarray(array)
        return [str(value.dtype), list(value.shape), hashlib.sha256(content.tobytes()).hexdigest()]
    if isinstance(value, Mapping):
        return [[inside(key), inside(item)] for key, item in value.items()]
    if isinstance(value, Set):
        return sorted(map(str, map(inside, value)))
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [inside(item) for item in value]
    if isinstance(value, type):
        return class_digest(value)
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, types.FunctionType | types.MethodType):
        if _is_published(value):
            return value.__qualname__
        return [value.__qualname__, value.__code__.co_firstlineno, code_digest(value)]
    if isinstance(value, nn.Module):
        own = {name: item for name, item in vars(value).items() if not name.startswith("_") and name != "training"}
        state = {**value._parameters, **value._buffers}
        return [class_digest(type(value)), inside(own), inside(state), inside(dict(value.named_children()))]
    if hasattr(value, "__dict__") and not isinstance(value, functools.partial):
        return [class_digest(type(value)), inside(vars(value))]
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def changed_options(options: Any) -> dict[str, Any]:
    """Return the options that differ from their defaults. So an option added later does not change old run ids."""
    defaults = {field.name: fingerprint(field.default) for field in dataclasses.fields(options)}
    described = {name: fingerprint(value) for name, value in vars(options).items()}
    return {name: value for name, value in described.items() if name not in defaults or value != defaults[name]}


def class_digest(cls: type) -> str:
    """Return the name of a class, followed by code digests of it and its bases outside of published packages."""
    return " ".join([cls.__qualname__, *(code_digest(base) for base in cls.__mro__ if not _is_published(base))])


def code_digest(definition: Any) -> str:
    """Return the SHA-256 of the file that defines a class or function, since it may use other code of that file.

    Without a file (a notebook) use the source of the definition, and without source (a console) its compiled code.
    """
    try:
        file = Path(inspect.getsourcefile(definition) or "")
        text = file.read_text(encoding="utf-8") if file.is_file() else inspect.getsource(definition)
    except (OSError, TypeError):
        members = vars(definition).values() if isinstance(definition, type) else [definition]
        text = repr([_describe_code(member.__code__) for member in members if hasattr(member, "__code__")])
    return hashlib.sha256(text.encode()).hexdigest()


def package_digest(definition: Any) -> str:
    """Return the SHA-256 of all Python files of the package, or of the file, that defines a class or function."""
    top = sys.modules[str(definition.__module__).partition(".")[0]]
    found = hashlib.sha256()
    for folder in sorted(map(Path, getattr(top, "__path__", ()))) or [Path(str(top.__file__))]:
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
            found.update(f"{path.relative_to(folder.parent).as_posix()}\n".encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _is_published(definition: Any) -> bool:
    return str(definition.__module__).partition(".")[0] in PUBLISHED


def _describe_code(code: types.CodeType) -> list[Any]:
    consts = [_describe_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return [code.co_name, code.co_code, code.co_names, consts]
