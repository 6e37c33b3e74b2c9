"""Load methods that are not part of the package (FILE.py:CLASS).

A file is imported only if the user names it or made the method's object. Configurations that come from elsewhere (a
server, a run folder) can only name installed methods.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fedbm.config.keys import build_options
from fedbm.errors import FedBMError, did_you_mean
from fedbm.methods import METHODS, Method

_SOURCES: dict[Path, bytes] = {}  # what the imported files contained


def load_method(reference: str, options: Mapping[str, Any] | None = None) -> Method:
    """Return a method of the class that FILE.py:CLASS names. *options* are values as in a configuration file."""
    kind = load_class(reference)
    try:
        return build_options(kind, options or {}, f"{reference} (fedbm.config.options.option declares options)")
    except TypeError as error:  # an abstract class, or a field without default
        raise FedBMError(f"{reference} cannot be made: {error}") from error


def load_class(reference: str) -> type[Method]:
    """Return the class that FILE.py:CLASS names; raise FedBMError if it is missing or not a method."""
    file, _, name = reference.rpartition(":")
    path = Path(file).expanduser()
    if path.suffix != ".py" or not name:
        raise FedBMError(f'a method of your own is named FILE.py:CLASS, such as fedper.py:FedPer, not "{reference}"')
    if not path.is_file():
        near = did_you_mean(path.name, (other.name for other in path.parent.glob("*.py")))
        raise FedBMError(f"there is no file {path}{near}")
    members = vars(import_file(path)).items()
    methods = {key: kind for key, kind in members if isinstance(kind, type) and issubclass(kind, Method)}
    if name not in methods:
        near = did_you_mean(name, methods)
        raise FedBMError(f'{path} has no class "{name}"{near}. A method is a subclass of fedbm.FedAvg or fedbm.Method.')
    check_name(methods[name])
    return methods[name]


def check_name(kind: type[Method]) -> None:
    """Raise FedBMError if a class has no name, or the name of another method of the package."""
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or METHODS.get(name, kind) is not kind:
        own = f'name = "{kind.__name__.lower()}"'
        raise FedBMError(f"{kind.__qualname__} needs a name that no method of the package has, such as {own}.")


def import_file(path: Path) -> ModuleType:
    """Import a file as `import` would if its folder, or the folder of its package, came first in sys.path."""
    path = path.resolve()
    root, name = path.parent, path.stem
    while (root / "__init__.py").is_file():
        root, name = root.parent, f"{root.name}.{name}"
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))  # processes that are started later inherit it
    try:
        module, text = importlib.import_module(name), path.read_bytes()
        if _SOURCES.setdefault(path, text) != text:  # edited since, as in a notebook
            module, _SOURCES[path] = importlib.reload(module), text
    except SyntaxError as error:
        raise FedBMError(f"{error.filename} is not valid Python: {error.msg}, line {error.lineno}") from error
    except (Exception, SystemExit) as error:
        raise FedBMError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    if Path(origin := module.__file__ or "built in").resolve() != path:
        raise FedBMError(f'{path} cannot be imported: the module "{name}" is already {origin}. Rename the file.')
    return module


def describe_class(kind: type) -> str:
    """Return FILE.py:CLASS without the folder, for environment.json; the class alone if it has no file."""
    try:
        file = Path(inspect.getsourcefile(kind) or "")
    except (OSError, TypeError):
        file = Path()
    return f"{file.name}:{kind.__qualname__}" if file.is_file() else kind.__qualname__


def is_importable(method: Method) -> bool:
    """Return whether other processes can import a method: its class is not in a script, notebook or function."""
    try:
        return b"__main__" not in pickle.dumps(method)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
