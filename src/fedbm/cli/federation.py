"""fedbm federation init | deal | up | server | node | run | status | stop | logs | audit | add | rekey | renew."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from fedbm.errors import FedBMError
from fedbm.federation.deploy.site_files import FILES, all_folders, kind_of, node_folder, server_folder


def federation(found: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.flower import check_flower

    check_flower()
    found.folder = Path(found.folder).expanduser()
    TASKS[found.task](found, console)


def init(found: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.init import create

    made = create(
        found.folder,
        nodes=count(found.nodes, "--nodes") if found.nodes is not None else None,
        names=found.names.split(",") if found.names else (),
        host=found.host,
        port=count(found.port, "--port") if found.port else None,
        link_port=count(found.link_port, "--link-port"),
        days=count(found.days, "--days"),
    )
    say = teller(console)
    say(f"authority: {found.folder / 'authority'} (keep its ca.key to yourself, off the server)")
    say(f"server:    {made[0]} (RUNBOOK.md in it says how to run it)")
    for site in made[1:]:
        say(f"node:      {site} (hand it over as a whole: node.key in it is a secret)")
    say(f"to rehearse on this machine: fedbm federation deal {found.folder} && fedbm federation up {found.folder}")


def deal(found: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.run_control import deal as deal_to_nodes

    check_whole(found.folder)
    for name, training in deal_to_nodes(found.folder, run_file(found, found.folder / "server"), found.images):
        console.print(f"{name}: {training:,} training images in {found.folder / name / 'data'}", soft_wrap=True)


def up(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.federation_live import following
    from fedbm.federation.deploy.run_control import Follower, begin, end_run
    from fedbm.federation.deploy.supervise import everything, work

    check_whole(found.folder)
    home = found.folder / "server"
    say = teller(console)
    with everything(found.folder, say) as children:
        run = begin(home, run_file(found, home))
        with following(console) as show, end_run(home, run):
            follower = Follower(home, run, show)
            work(children, say, follower)
        follower.must_be_done()
    tell_result(home, console)


def server(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.federation_live import following
    from fedbm.federation.deploy.supervise import serve
    from fedbm.federation.server.run_status import read_standing

    folder = server_folder(found.folder)
    with following(console) as show:

        def tick() -> bool:
            show(read_standing(folder))
            return True

        until_stopped(lambda: serve(folder, teller(console), tick), console)


def node(found: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.supervise import attend

    folder = node_folder(found.folder)
    until_stopped(lambda: attend(folder, found.images, teller(console), lambda: True), console)


def run(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.federation_live import following
    from fedbm.federation.deploy.run_control import Follower, begin

    home = server_folder(found.folder)
    started = begin(home, run_file(found, home))
    console.print(f"the run has begun; 'fedbm federation status {found.folder}' shows it from elsewhere too")
    if found.detach:
        return
    try:
        with following(console) as show:
            follower = Follower(home, started, show)
            while follower():
                time.sleep(0.5)
    except KeyboardInterrupt:
        console.print(f"\nthe run goes on; 'fedbm federation stop {found.folder} --run' ends it", soft_wrap=True)
        return
    follower.must_be_done()
    tell_result(home, console)


def status(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.federation_live import drawn
    from fedbm.federation.deploy.flower import is_alive
    from fedbm.federation.deploy.processes import running
    from fedbm.federation.node.refusal_file import read_refusal
    from fedbm.federation.server.run_status import read_standing

    if found.page:
        show_page(found, console)
        return
    for folder in all_folders(found.folder):
        seen = running(folder)
        what = ", ".join(f"{role} ({pid})" for role, pid in seen.items()) or "nothing runs"
        console.print(f"{folder.name}: {what}", soft_wrap=True)
        if why := read_refusal(folder / "state"):
            console.print(f"{folder.name}: the server refused this node: {why}", soft_wrap=True)
    if kind_of(found.folder) != "node":
        home = server_folder(found.folder)
        standing = read_standing(home)
        console.print(drawn(standing) if standing else "no run yet")
        if standing and (remark := standing.remark(at_work=is_alive(home))):
            console.print(remark, soft_wrap=True)


def show_page(found: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.server.status_page import is_loopback, make_page_server

    page = make_page_server(server_folder(found.folder), found.address, count(found.page, "--page"))
    host = f"[{found.address}]" if ":" in found.address else found.address
    console.print(f"page: http://{host}:{page.server_address[1]}/ (Ctrl-C ends it)")
    if not is_loopback(found.address):
        console.print("warning: others who reach this address can read it too; it asks for no password")
    until_stopped(page.serve_forever, console)


def stop(found: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.flower import OVER, end_run, runs
    from fedbm.federation.deploy.processes import check_up, end_all

    if found.run:
        home = server_folder(found.folder)
        check_up(home)
        going = [str(r["run-id"]) for r in runs(home) if r["status"] not in OVER]
        for started in going:
            end_run(home, started)
        console.print("the run is ended; 'fedbm federation run' goes on with it" if going else "no run is going on")
        return
    for folder in all_folders(found.folder):
        ended = end_all(folder)
        console.print(f"{folder.name}: {ended} processes ended" if ended else f"{folder.name}: nothing ran")


def logs(found: argparse.Namespace, console: Console) -> None:
    lines = count(found.lines, "--lines")
    for folder in all_folders(found.folder):
        for path in sorted((folder / "logs").glob("*.log")):
            console.print(f"== {path}", soft_wrap=True)
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]:
                console.print(line, soft_wrap=True)


def audit(found: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.audit import verify

    lines = count(found.lines, "--lines")
    paths = [folder / "state" / "audit.jsonl" for folder in all_folders(found.folder)]
    for path in [path for path in paths if path.exists()]:
        checked = verify(path)
        console.print(f"== {path}: {checked.lines} lines, whole, ends in {checked.head[:16]}", soft_wrap=True)
        for line in path.read_text(encoding="utf-8").splitlines()[-lines:]:
            console.print(line, soft_wrap=True)
    if not any(path.exists() for path in paths):
        console.print("no audit yet")


def add(found: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.init import add as add_node

    check_whole(found.folder)
    say = teller(console)
    say(f"node: {add_node(found.folder, found.name)} (hand it over as a whole: node.key in it is a secret)")
    say("the server learns of it at its next start; runs that are to wait for it say so by nodes in [federation]")


def rekey(found: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.init import rekey as make_anew

    check_whole(found.folder)
    site = make_anew(found.folder, found.name)
    teller(console)(f"made: {site / 'node.key'} and node.pub; restart the server, and hand both to {found.name}")


def renew(found: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.init import renew as make_anew

    check_whole(found.folder)
    end = make_anew(found.folder, count(found.days, "--days"))
    console.print(f"made: {found.folder / 'server' / 'server.pem'}, valid until {end}; restart the server and nginx")


def until_stopped(work: Callable[[], None], console: Console) -> None:
    """Ctrl-C and SIGTERM are how such a command ends, and no failure."""
    try:
        work()
    except KeyboardInterrupt:
        console.print("stopped")


def teller(console: Console) -> Callable[[str], None]:
    return lambda sentence: console.print(sentence, soft_wrap=True)


def tell_result(home: Path, console: Console) -> None:
    from fedbm.cli.tables import result_table
    from fedbm.federation.server.run_status import read_standing
    from fedbm.runs.reader import read_run

    standing = read_standing(home)
    if standing is not None:
        path = home / "state" / "runs" / str(standing.status["run"])
        console.print(f"run: {path}", soft_wrap=True)
        console.print(result_table([read_run(path)]))


def run_file(found: argparse.Namespace, home: Path) -> Path:
    """The run that was named, or the one that init put into the server's folder."""
    return Path(found.file).expanduser() if found.file else home / "run.toml"


def check_whole(folder: Path) -> None:
    if kind_of(folder) != "federation":
        raise FedBMError(
            f"{folder} is one role's folder; this needs the one that holds them all, with {FILES['federation']}"
        )


def count(text: str, flag: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise FedBMError(f"{flag} must be a whole number from 1 to 65535, not {text}")
    return int(text)


TASKS: dict[str, Callable[[argparse.Namespace, Console], None]] = {
    "init": init,
    "deal": deal,
    "up": up,
    "server": server,
    "node": node,
    "run": run,
    "status": status,
    "stop": stop,
    "logs": logs,
    "audit": audit,
    "add": add,
    "rekey": rekey,
    "renew": renew,
}
