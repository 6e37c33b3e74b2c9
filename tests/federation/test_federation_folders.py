"""What init makes, for whom, and what it refuses; and how the folders are read again."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fedbm.errors import FedBMError

pytest.importorskip("flwr", reason="needs the flower extra")

from fedbm.federation.deploy.certificates import check_node_key
from fedbm.federation.deploy.federation_folders import add, create, rekey, renew
from fedbm.federation.deploy.flower import explain_exit
from fedbm.federation.deploy.settings_files import (
    OPEN_POLICY,
    NodeSettings,
    ServerSettings,
    all_folders,
    is_host,
    node_folder,
    read_settings,
    server_folder,
    to_text,
    whole_folder,
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "study"
    create(folder, nodes=2, names=["north", "south"], host="fl.example.org", link_port=8100)
    return folder


def test_every_role_has_one_whole_folder(study: Path) -> None:
    def files(folder: Path) -> set[str]:
        return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}

    node = {"RUNBOOK.md", "ca.crt", "fedbm-node.service", "node.key", "node.pub", "node.toml"}
    assert files(study / "north") == files(study / "south") == node
    assert files(study / "server") == {
        *("RUNBOOK.md", "ca.crt", "fedbm-server.service", "nginx.conf", "run.toml", "server.key"),
        *("server.pem", "server.toml", "nodes/north.pub", "nodes/south.pub"),
    }
    assert files(study / "authority") == {"ca.key", "ca.crt"}


def test_what_is_handed_over_holds_no_other_secret(study: Path) -> None:
    secrets = [(study / place).read_text() for place in ("authority/ca.key", "server/server.key", "south/node.key")]
    handed = "".join(p.read_text() for p in (study / "north").rglob("*") if p.is_file())
    assert not any(secret in handed for secret in secrets)
    assert not any(secrets[0] in p.read_text() for p in (study / "server").rglob("*") if p.is_file())


def test_settings_come_back_as_they_were_written(study: Path, tmp_path: Path) -> None:
    assert read_settings(study / "server", ServerSettings) == ServerSettings("fl.example.org", 443, 8100, "north,south")
    assert not read_settings(study / "server", ServerSettings).rehearsal
    assert read_settings(study / "south", NodeSettings) == NodeSettings(1, "south", "fl.example.org:443")
    odd = NodeSettings(0, "x", "h:1", data='a "b"\\c', size=64, channels=3)
    (tmp_path / "node.toml").write_text(to_text(odd))
    assert read_settings(tmp_path, NodeSettings) == odd


def test_nothing_is_overwritten(study: Path, tmp_path: Path) -> None:
    before = (study / "authority" / "ca.key").read_bytes()
    with pytest.raises(FedBMError, match="exists already and is not overwritten"):
        create(study)
    assert (study / "authority" / "ca.key").read_bytes() == before
    create(tmp_path)  # empty is as good as new


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["a", "a", "b"], "two nodes have the same name"),
        (["a", "b"], "2 names were given for 3 nodes"),
        (["a", "b", "server"], 'cannot be called "server"'),
        (["a", "b", "../c"], 'cannot be called "../c"'),
    ],
)
def test_names_are_checked_before_anything_is_made(names: list[str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(FedBMError, match=re.escape(sentence)):
        create(tmp_path / "x", nodes=3, names=names)
    assert not (tmp_path / "x").exists()


def test_nodes_of_this_machine_connect_to_the_port_that_was_asked_for(tmp_path: Path) -> None:
    for number, ports in enumerate([{"port": 9000}, {"link_port": 9000}, {"port": 9000, "link_port": 9000}]):
        create(tmp_path / str(number), nodes=1, **ports)
        server = read_settings(tmp_path / str(number) / "server", ServerSettings)
        node = read_settings(tmp_path / str(number) / "hospital-1", NodeSettings)
        assert (server.port, server.link_port, node.server) == (9000, 9000, "127.0.0.1:9000")


@pytest.mark.parametrize("ports", [{"port": 8000}, {"link_port": 443}])
def test_the_proxy_and_the_superlink_have_two_ports(ports: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(FedBMError, match="nginx and the SuperLink cannot both use port"):
        create(tmp_path / "x", nodes=1, host="fl.example.org", **ports)


def test_there_are_as_many_nodes_as_names(tmp_path: Path) -> None:
    assert [made.name for made in create(tmp_path / "x", names=["north", "south"])] == ["server", "north", "south"]
    assert "nodes = 2" in (tmp_path / "x" / "server" / "run.toml").read_text()


@pytest.mark.parametrize(
    "host",
    [
        *(
            "",
            "https://fl.example.org",
            "fl.example.org:8443",
            "fl example.org",
            "x;y",
            "fl..org",
            ".fl.org",
        ),
        *("[2001:db8::1]", "fe80::1%eth0", "fl.example.org\n", "klinik.ö", f"{'a' * 63}.org"),
    ],
)
def test_a_host_that_is_no_name_or_address_is_refused_before_anything_is_made(host: str, tmp_path: Path) -> None:
    with pytest.raises(FedBMError, match="must be a DNS name or an IP address, without a port, not"):
        create(tmp_path / "x", host=host)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("host", ["localhost", "FL-1.example.org", "3com.org", "10.0.0.3", "2001:db8::1"])
def test_names_and_addresses_are_hosts(host: str) -> None:
    assert is_host(host)


def test_a_command_finds_its_role_s_folder(study: Path, tmp_path: Path) -> None:
    assert whole_folder(study) == study
    assert server_folder(study) == server_folder(study / "server") == study / "server"
    assert node_folder(study / "north") == study / "north"
    assert all_folders(study) == [study / "server", study / "north", study / "south"]
    with pytest.raises(FedBMError, match="there is no .*node.toml; give the folder of one node"):
        node_folder(study)
    with pytest.raises(FedBMError, match="there is no .*node.toml"):
        node_folder(study / "server")
    with pytest.raises(FedBMError, match="give the server's folder"):
        server_folder(study / "north")
    for place in (tmp_path, study / "server"):
        with pytest.raises(FedBMError, match="server.toml; give the folder that 'fedbm federation init' made"):
            whole_folder(place)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("format = 2", "has format 2; this version of fedbm reads format 1"),
        ("format = 1\nclinet = 3", 'has no key "clinet" \\(did you mean "client"\\?\\)'),
        ("format = 1\nthreads = 99999", "threads must be at most 1024, not 99999"),
        ("format = ", "is not valid TOML"),
    ],
)
def test_mistakes_in_node_toml_are_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(text)
    with pytest.raises(FedBMError, match=sentence):
        read_settings(tmp_path, NodeSettings)


def test_relative_images_are_the_folder_s_own_or_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scans").mkdir()
    assert NodeSettings(data="scans").images(tmp_path) == str(tmp_path / "scans")
    (tmp_path / "here" / "scans").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert NodeSettings(data="scans").images(tmp_path, "scans") == str(tmp_path / "here" / "scans")
    assert NodeSettings(data="digits").images(tmp_path) == "digits"
    assert NodeSettings(data="scans").images(tmp_path, "/else/where") == "/else/where"
    with pytest.raises(FedBMError, match="has no images: set data in .*node.toml, use --data"):
        NodeSettings(name="north").images(tmp_path)


def test_a_node_joins_and_another_gets_a_new_key(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    create(folder, nodes=2, names=["north", "south"], link_port=8200)
    add(folder, "west")
    assert read_settings(folder / "west", NodeSettings) == NodeSettings(2, "west", "127.0.0.1:8200", policy=OPEN_POLICY)
    assert read_settings(folder / "server", ServerSettings).names == ["north", "south", "west"]
    assert all_folders(folder)[-1] == folder / "west"
    with pytest.raises(FedBMError, match="two nodes have the same name"):
        add(folder, "west")
    (folder / "authority").rename(tmp_path / "kept elsewhere")
    with pytest.raises(FedBMError, match="cannot read .*ca.crt"):
        add(folder, "east")
    assert read_settings(folder / "server", ServerSettings).names == ["north", "south", "west"]
    before = (folder / "server" / "nodes" / "south.pub").read_bytes()
    rekey(folder, "south")
    after = (folder / "server" / "nodes" / "south.pub").read_bytes()
    assert after == (folder / "south" / "node.pub").read_bytes() != before
    check_node_key(folder / "south")
    with pytest.raises(FedBMError, match='there is no node "sowth" in .*server.toml'):
        rekey(folder, "sowth")


@pytest.mark.parametrize(("host", "rehearsal"), [("server", True), ("server", False), ("localhost", False)])
def test_a_node_that_joins_has_the_same_rules_as_the_others(host: str, rehearsal: bool, tmp_path: Path) -> None:
    create(tmp_path / "x", nodes=1, host=host, rehearsal=rehearsal)
    sites = (add(tmp_path / "x", "west"), tmp_path / "x" / "hospital-1")
    first, second = (read_settings(site, NodeSettings).policy for site in sites)
    assert first == second


def test_a_node_that_left_keeps_its_place_so_that_numbers_stay(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    create(folder, nodes=3, names=["north", "south", "west"])
    server = read_settings(folder / "server", ServerSettings)
    (folder / "server" / "server.toml").write_text(to_text(replace(server, nodes=",south,")))
    add(folder, "east")
    server = read_settings(folder / "server", ServerSettings)
    assert server.places == {1: "south", 3: "east"}
    assert (
        read_settings(folder / "south", NodeSettings).client,
        read_settings(folder / "east", NodeSettings).client,
    ) == (1, 3)


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        ("north, south", 'server.toml: a node cannot be called " south"'),
        ("north,../south", 'server.toml: a node cannot be called "../south"'),
        ("north,north", "server.toml: two nodes have the same name"),
    ],
)
def test_names_that_an_operator_wrote_are_checked(nodes: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text(to_text(ServerSettings(nodes=nodes)))
    with pytest.raises(FedBMError, match=re.escape(sentence)):
        read_settings(tmp_path, ServerSettings)


def test_renewal_keeps_the_authority(tmp_path: Path) -> None:
    create(tmp_path / "x", nodes=1, days=1)
    before, authority = ((tmp_path / "x" / name).read_bytes() for name in ("server/server.pem", "authority/ca.crt"))
    renew(tmp_path / "x", days=20)
    assert (tmp_path / "x/server/server.pem").read_bytes() != before
    assert (tmp_path / "x/authority/ca.crt").read_bytes() == authority


def test_the_front_passes_the_fleet_path_alone(study: Path) -> None:
    text = (study / "server" / "nginx.conf").read_text()
    assert re.findall(r"location (.*) \{", text) == ["~ ^/v1/fleet/[a-z-]+$", "/"]
    assert re.findall(r"proxy_pass (.*);", text) == ["https://fedbm_superlink"]
    assert "server 127.0.0.1:8100;" in text
    assert "client_max_body_size 16m;" in text


def test_the_front_of_an_ipv6_server_listens_on_ipv6(tmp_path: Path) -> None:
    for name, host, lines in (
        ("six", "2001:db8::1", ["listen [::]:443 ssl", "server_name [2001:db8::1]"]),
        ("four", "192.0.2.1", ["listen 443 ssl", "server_name 192.0.2.1"]),
    ):
        create(tmp_path / name, 1, host=host)
        text = (tmp_path / name / "server" / "nginx.conf").read_text()
        node = read_settings(tmp_path / name / "hospital-1", NodeSettings)
        assert node.server == (f"[{host}]:443" if name == "six" else f"{host}:443")
        assert re.findall(r"^    ((?:listen|server_name) .*);", text, re.MULTILINE) == lines


def test_services_restart_and_end_all_that_they_started(study: Path) -> None:
    for path in (study / "server" / "fedbm-server.service", study / "north" / "fedbm-node.service"):
        lines = path.read_text().splitlines()
        assert {"Restart=always", "KillMode=control-group", "NoNewPrivileges=yes", "ProtectSystem=strict"} <= {*lines}
    assert "ExecStart=/srv/fedbm/venv/bin/fedbm federation node /srv/fedbm/north" in lines


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_understands_the_services(study: Path, tmp_path: Path) -> None:
    for path in (study / "server" / "fedbm-server.service", study / "north" / "fedbm-node.service"):
        unit = tmp_path / path.name
        unit.write_text(path.read_text().replace("/srv/fedbm/venv/bin/fedbm", "/bin/true"))
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
        assert path.name not in done.stderr


def test_runbooks_name_what_is_in_the_folder_and_fit_a_page(study: Path) -> None:
    for folder in (study / "server", study / "north"):
        text = (folder / "RUNBOOK.md").read_text()
        for name in re.findall(r"^\| `([\w.-]+)` \|", text, re.MULTILINE):
            assert (folder / name).exists(), name
        assert len(text.splitlines()) < 100
        assert "valid until 20" in text


def test_what_flower_says_is_put_in_words() -> None:
    assert "was refused by the server" in (explain_exit("[code: 2004] Failed to activate SuperNode.") or "")
    assert explain_exit("all is well") is None
