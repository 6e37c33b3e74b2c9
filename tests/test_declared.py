"""Every package that the code imports is declared: in the core, or in an extra that the error names."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOR_MAINTAINERS = {"all", "dev", "docs"}
INDIRECT = {  # modules that need another package, or have another name than their package
    "torch.utils.tensorboard": "tensorboard",
    "mlflow.entities": "mlflow-skinny",
    "mlflow.tracking": "mlflow-skinny",
}


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def imports() -> Iterator[tuple[Path, str, bool]]:
    """Yield (file, module, whether the import is at the top of the file)."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name, node in tree.body) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield path, node.module, node in tree.body
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                yield from ((path, str(one.value), False) for one in node.args[:1] if isinstance(one, ast.Constant))


def test_every_import_is_declared_and_errors_name_the_extra() -> None:
    distributions = packages_distributions()
    core = {name_of(one) for one in PROJECT["dependencies"]}
    extra_of = {name_of(one): name for name in EXTRAS.keys() - FOR_MAINTAINERS for one in EXTRAS[name]}
    texts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    undeclared = set()
    for path, module, at_top in imports():
        top = INDIRECT.get(module, module.partition(".")[0])
        if top in sys.stdlib_module_names or top in ("fedbm", "IPython"):  # IPython is imported only where it runs
            continue
        names = {name_of(one) for one in distributions.get(top, [top])}
        if names & core:
            continue
        extra = next((extra_of[name] for name in names if name in extra_of), None)
        if extra is None or (at_top and "federation" not in path.parts):  # the core must start without extras
            undeclared.add(f"{path.relative_to(ROOT)}: {module}")
        else:
            assert f'pip install "fedbm[{extra}]"' in texts, f"no error names the extra {extra}"
    assert undeclared == set()


def test_all_means_every_extra_of_users() -> None:
    (whole,) = EXTRAS["all"]
    assert set(re.findall(r"[\w-]+", whole.partition("[")[2])) == EXTRAS.keys() - FOR_MAINTAINERS


def test_every_direct_dependency_is_pinned() -> None:
    pinned = {name_of(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    declared = {name_of(one) for some in (PROJECT["dependencies"], *EXTRAS.values()) for one in some} - {"fedbm"}
    assert declared - pinned == set()
