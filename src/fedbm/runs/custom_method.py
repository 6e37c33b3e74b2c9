"""Load methods that are not part of the package (FILE.py:CLASS), and make them usable in other processes.

A file is imported only if the user names it or made the method's object. Configurations that come from elsewhere (a
server, a run folder) can only name installed methods.
"""

from __future__ import annotations

import ast
import dataclasses
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
from fedbm.runs.run_config import Config, make_config, method_values

OWN_FILE = "Put it in a file of its own and import it, then its runs are parallel."

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
    module = import_file(path)
    kind = vars(module).get(name)
    if kind is None:
        found = [n for n, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise FedBMError(f'{path} has no class "{name}"{did_you_mean(name, found)}')
    if not isinstance(kind, type) or not issubclass(kind, Method):
        raise FedBMError(f"{name} in {path} is not a method: it must be a subclass of fedbm.FedAvg or fedbm.Method")
    check_name(kind)
    return kind


def check_name(kind: type[Method]) -> None:
    """Raise FedBMError if a class has no name, or the name of another method of the package."""
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or METHODS.get(name, kind) is not kind:
        taken = f'is called "{name}", as a method of the package' if isinstance(name, str) else "has no name"
        raise FedBMError(f'{kind.__qualname__} {taken}. Name it: name = "{kind.__name__.lower()}".')


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


def make_custom_config(values: Mapping[str, Mapping[str, Any]], where: str) -> Config:
    """Return the configuration of nested values with [method] name = "FILE.py:CLASS"."""
    options = dict(values["method"])
    method = load_method(options.pop("name"), options)
    return with_method(make_config({k: v for k, v in values.items() if k != "method"}, where), method)


def with_method(config: Config, method: Method) -> Config:
    """Return *config* with a method object. Its options count as set by the user."""
    given = config.given | {f"method.{option}" for option in method_values(method)}
    return dataclasses.replace(config, method=method, given=given)


def describe_class(kind: type) -> str:
    """Return FILE.py:CLASS without the folder, for environment.json; the class alone if it has no file."""
    try:
        file = Path(inspect.getsourcefile(kind) or "")
    except (OSError, TypeError):
        file = Path()
    return f"{file.name}:{kind.__qualname__}" if file.is_file() else kind.__qualname__


def for_processes(method: Method) -> Method:
    """Return an equal method that another process can import; raise FedBMError with the reason if there is none."""
    kind = type(method)
    if METHODS.get(method.name) is kind:
        return method
    if kind.__module__ == "__main__":
        kind = _class_of_script(kind)
        moved = kind.__new__(kind)
        vars(moved).update(vars(method))
        method = moved
    try:
        if b"__main__" in pickle.dumps(method):
            raise FedBMError(f"an option of {method.name} is defined in a script or notebook")
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise FedBMError(f"{method.name} cannot be sent to other processes: {error}. {OWN_FILE}") from error
    parent, _, _ = kind.__module__.rpartition(".")
    path = sys.modules[parent].__path__ if parent else None
    found = (finder.find_spec(kind.__module__, path) for finder in sys.meta_path)
    if getattr(next(filter(None, found), None), "origin", None) != sys.modules[kind.__module__].__file__:
        raise FedBMError(f"other processes cannot import {kind.__module__}, which defines {method.name}. {OWN_FILE}")
    return method


def _class_of_script(kind: type[Method]) -> type[Method]:
    """Return the class of `__main__` from its file, imported under the file's name.

    A script without a guard would do its work again, so it is not imported.
    """
    file = getattr(sys.modules["__main__"], "__file__", None)
    tree = ast.parse(Path(file).read_text(encoding="utf-8")).body if file and Path(file).is_file() else []
    if kind.__qualname__ not in [node.name for node in tree if isinstance(node, ast.ClassDef)]:
        raise FedBMError(f"{kind.__name__} is not at the top level of a file. {OWN_FILE}")
    if not any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree):
        raise FedBMError(f'{Path(str(file)).name} has no `if __name__ == "__main__":` around its calls. {OWN_FILE}')
    found: type[Method] = vars(import_file(Path(str(file))))[kind.__qualname__]
    return found
