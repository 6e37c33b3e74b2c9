"""Plug-ins: methods, bodies and readers that other installed packages declare as entry points.

    [project.entry-points."fedbm.methods"]
    fedavgm = "fedbm_fedavgm:FedAvgM"

A plug-in is imported when a name is not one of this package, or when all names are listed. A plug-in that cannot be
used does not affect the others. It is listed with the reason, and using its name raises FedBMError with that reason.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fedbm.errors import FedBMError, join_words


@dataclass(frozen=True)
class Plugin:
    """A plug-in that can be used, or the reason why it cannot."""

    name: str
    package: str  # name and version of the distribution
    value: Any = None
    problem: str = ""


def load_plugins(group: str, taken: Collection[str], check: Callable[[str, Any], str]) -> dict[str, Plugin]:
    """Import all plug-ins of a group of entry points, such as "fedbm.methods", and return them by name.

    A plug-in cannot have one of the names that are *taken*. *check* is called with a name and the object, and returns
    what is wrong with it, or "".
    """
    declared: dict[str, dict[str, EntryPoint]] = defaultdict(dict)
    for entry in entry_points(group=group):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        declared[entry.name][package] = entry
    return {name: _load(name, entries, taken, check) for name, entries in sorted(declared.items())}


def usable(plugins: dict[str, Plugin]) -> dict[str, Any]:
    """Return name → object of the plug-ins without a problem."""
    return {name: plugin.value for name, plugin in plugins.items() if not plugin.problem}


def check_usable(plugins: dict[str, Plugin], name: str) -> None:
    """Raise FedBMError if there is a plug-in of this name that cannot be used."""
    if name in plugins and plugins[name].problem:
        raise FedBMError(plugins[name].problem)


def _load(
    name: str, entries: dict[str, EntryPoint], taken: Collection[str], check: Callable[[str, Any], str]
) -> Plugin:
    package, value, problem = join_words(sorted(entries), "and"), None, ""
    if name in taken:
        problem = "its name is one of fedbm's own"
    elif len(entries) > 1:
        problem = "more than one package declares it"
    elif not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        problem = "its name must start with a letter and have only lower-case letters, digits and underscores"
    else:
        [entry] = entries.values()
        try:
            value = entry.load()
            problem = check(name, value)
        except (Exception, SystemExit) as error:
            problem = f"{type(error).__name__}: {error}"
    words = f'the plug-in "{name}" of {package} cannot be used: {problem}. Correct or uninstall it.'
    return Plugin(name, package, value, words if problem else "")
