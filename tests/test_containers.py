"""The image and the rehearsal in containers agree with the package: commands, folders, ports and health checks."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedbm.cli.main import make_parser
from fedbm.federation.deploy.federation_folders import HOME, create
from fedbm.federation.deploy.settings_files import NodeSettings, ServerSettings, read_settings

ROOT = Path(__file__).parents[1]
CONTAINERS = ROOT / "containers"
DOCKERFILE = (CONTAINERS / "Dockerfile").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the page makes: its init command, read from the page."""
    [words] = re.findall(r"^fedbm-init (init .*)$", PAGE, re.MULTILINE)
    args = make_parser().parse_args(["federation", *words.split()])
    folder = tmp_path_factory.mktemp("containers") / args.folder
    create(folder, args.nodes, host=args.host, port=args.port)
    return folder


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    found: dict[str, Any] = yaml.safe_load((CONTAINERS / "compose.yaml").read_text(encoding="utf-8"))["services"]
    return found


def mounts(service: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Path in the container → path here, and whether it can be written."""
    parts = [volume.split(":") for volume in service["volumes"]]
    return {inside: (outside, not more) for outside, inside, *more in parts}


def test_the_image() -> None:
    """It starts the package's own command, without rights, from files that the build may read."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)[1])  # type: ignore[index]
    assert entry[0] in scripts
    assert re.search(r"^USER [1-9][0-9]*:[1-9][0-9]*$", DOCKERFILE, re.MULTILINE)
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = re.findall(r"^COPY ((?!--from)\S.*) \S+$", DOCKERFILE, re.MULTILINE)
    for path in " ".join(copied).split():
        assert (ROOT / path).exists()
        assert f"!{path}" in allowed
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert re.search(r'"\.\[(\w+)\]"', DOCKERFILE)[1] in extra  # type: ignore[index]


def test_every_container_is_confined(services: dict[str, Any]) -> None:
    for service in services.values():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"] == "${FEDBM_USER:-1000:1000}"
        assert "ports" not in service


def test_roles_have_their_commands_and_folders(services: dict[str, Any], study: Path) -> None:
    roles = {name: service for name, service in services.items() if name != "proxy"}
    assert sorted(roles) == sorted(path.name for path in study.iterdir() if path.is_dir() and path.name != "authority")
    for name, service in roles.items():
        args = make_parser().parse_args(["federation", *service["command"]])
        folder = str(args.folder)
        assert (args.task, folder) == ("server" if name == "server" else "node", f"{HOME}/{name}")
        found = mounts(service)
        assert found[folder] == (f"./study/{name}", True)
        assert service["environment"] == {"HOME": folder, "FEDBM_HOME": f"{folder}/cache"}
        assert found.get(f"{folder}/data") == (None if name == "server" else (f"./study/{name}/data", False))


def test_the_front_is_the_only_way_to_the_server(services: dict[str, Any], study: Path) -> None:
    """It shares the server's loopback, and reads only the files that its configuration names."""
    proxy, server = services["proxy"], read_settings(study / "server", ServerSettings)
    assert proxy["network_mode"] == "service:server"
    assert server.host in services
    text = (study / "server" / "nginx.conf").read_text(encoding="utf-8")
    files = set(re.findall(rf"{HOME}/server/\S+?(?=;)", text))
    assert mounts(proxy) == {
        **{path: (f"./study/server/{Path(path).name}", False) for path in files},
        "/etc/nginx/conf.d/default.conf": ("./study/server/nginx.conf", False),
    }
    assert proxy["healthcheck"]["test"][-1] == str(server.port)
    assert server.port >= 1024, "the proxy is not root"
    assert {read_settings(study / name, NodeSettings).server for name in services if name.startswith("hospital")} == {
        f"{server.host}:{server.port}"
    }


def test_health(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check asks the SuperLink's port, or whether a node's worker is running, and fails where no role is."""
    health = runpy.run_path(str(CONTAINERS / "health.py"))
    asked: list[tuple[int, Path]] = []
    health["check"].__globals__["is_healthy"] = lambda port, authority: asked.append((port, authority)) or True
    health["check"].__globals__["running"] = lambda folder: {"worker": 7} if "hospital-2" in str(folder) else {}
    for name in ("server", "hospital-1", "hospital-2"):
        home = tmp_path / name
        home.mkdir()
        (home / name).symlink_to(study / name)
        assert health["check"](home) == (name != "hospital-1")
    port = read_settings(study / "server", ServerSettings).link_port
    assert asked == [(port, tmp_path / "server" / "server" / "ca.crt")]
    assert not health["check"](tmp_path / "nothing")
