"""fedbm federation: run the same methods between machines, over Flower.

the operator of the server:
  fedbm federation init study --nodes 3 --host fl.example.org     keys, certificates, services, runbooks
  fedbm federation server study                                   start it; see study/server/RUNBOOK.md
  fedbm federation run study                                      start study/server/run.toml, or continue it
  fedbm federation status study --page                            its state, as a page on this machine
a hospital, with the folder it received:
  fedbm federation node hospital-1 --data /srv/scans
  fedbm federation approve hospital-1                             runs that wait for an approval here
all on this machine, to rehearse:
  fedbm federation init study --nodes 3
  fedbm federation partition study
  fedbm federation up study
Messages travel over Flower, without its telemetry, update checks and installs at run time.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from fedbm.cli.flags import add_json
from fedbm.cli.output import print_json
from fedbm.cli.parser import add_command
from fedbm.errors import FedBMError
from fedbm.federation.deploy.settings_files import all_folders, node_folder, read_refusal, server_folder, whole_folder

HERE = "127.0.0.1"
UNTIL_STOPPED = ("server", "node", "status")  # Ctrl-C and SIGTERM end these without an error
WHOLE = "the folder that init made"
WITH_AUTHORITY = f"{WHOLE}, with authority/ in it"
SERVER = f"{WHOLE}, or the server's folder in it"
ANY = f"{WHOLE}, or a folder in it"
RUN = "the run's settings: as in 'fedbm config', with [federation] (default run.toml in the server's folder)"


def expand(words: Sequence[str]) -> list[str]:
    """Complete the short form: 'federation' alone asks for help."""
    return list(words) if len(words) > 1 else [*words, "--help"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_subparsers(dest="task", metavar="TASK")

    def add_task(name: str, folder: str, help_: str) -> argparse.ArgumentParser:
        task = add_command(tasks, name, help_)
        task.add_argument("folder", metavar="DIR", type=lambda text: Path(text).expanduser(), help=folder)
        return task

    def add_count(task: argparse.ArgumentParser, flag: str, help_: str, default: int | None = None) -> None:
        shown = f"{help_} (default {default})" if default else help_
        task.add_argument(flag, type=read_count, default=default, metavar="N", help=shown)

    text = "make keys, certificates, settings, services, nginx.conf and runbooks for a new federation"
    task = add_task("init", "a folder that does not exist yet", text)
    add_count(task, "--nodes", "number of nodes (default: the number of names, or 3)")
    task.add_argument("--names", metavar="A,B,…", help="names of the nodes (default hospital-1, hospital-2, …)")
    task.add_argument("--host", default=HERE, help="where nodes reach the server (default: this machine)")
    add_count(task, "--port", "the server's port for nodes (default 443, the nginx proxy; without --host 8000)")
    add_count(task, "--link-port", "the SuperLink's loopback port (default 8000; without --host as --port)")
    add_count(task, "--days", "validity of the server's certificate in days", 730)
    text = "let nodes accept every run without an approval; this is the default without --host"
    task.add_argument("--rehearsal", action="store_true", help=text)

    task = add_task("partition", WHOLE, "partition a run's data set among the nodes of this machine, for a rehearsal")
    task.add_argument("file", nargs="?", metavar="FILE.toml", help=RUN)
    task.add_argument("--data", dest="images", default="", metavar="PATH", help="the data set (default: the run's)")

    task = add_task(
        "up", WHOLE, "start server, nodes and a run on this machine, show the run, and stop all when it ends"
    )
    task.add_argument("file", nargs="?", metavar="FILE.toml", help=RUN)

    add_task("server", SERVER, "start the server and keep it running until Ctrl-C")

    text = "check this node's data, versions, key and server, then take part until Ctrl-C"
    task = add_task("node", "the node's folder", text)
    text = "the node's images (default: data in node.toml)"
    task.add_argument("--data", dest="images", default="", metavar="PATH", help=text)

    task = add_task("approve", "the node's folder", "show the runs that wait for this site's approval, or approve one")
    text = "as shown with a request (default: show all requests)"
    task.add_argument("digest", nargs="?", metavar="DIGEST", help=text)
    task.add_argument("--withdraw", action="store_true", help="withdraw the approval: the next request is refused")

    task = add_task("run", SERVER, "start or continue a run at the server, and show it; Ctrl-C does not stop the run")
    task.add_argument("file", nargs="?", metavar="FILE.toml", help=RUN)
    task.add_argument("--detach", action="store_true", help="return as soon as the run has started")

    task = add_task("status", ANY, "show the processes and the state of the run")
    text = "serve the state as a web page (default port 8080)"
    formats = task.add_mutually_exclusive_group()
    formats.add_argument("--page", nargs="?", const=8080, type=read_count, metavar="PORT", help=text)
    add_json(formats)
    task.add_argument("--address", default=HERE, help="where to serve the page (default: this machine only)")

    task = add_task("stop", ANY, "end all processes of a folder, or only the run")
    task.add_argument("--run", action="store_true", help="end only the run; server and nodes continue")

    task = add_task("audit", ANY, "check that no line of an audit was changed, and show it")
    add_count(task, "--lines", "the last N lines of each audit", 10)

    for task in (
        add_task("add", WITH_AUTHORITY, "make one more node: its folder, and its key at the server"),
        add_task("rekey", WITH_AUTHORITY, "make a new key for a node; a restarted server refuses the old one"),
    ):
        task.add_argument("name", metavar="NAME", help="the node's name")

    task = add_task("renew", WITH_AUTHORITY, "make a new certificate for the server; nodes need no change")
    add_count(task, "--days", "validity of the certificate in days", 730)


def read_count(text: str) -> int:
    """Return a number from the command line; raise ArgumentTypeError if it is not one."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 65535, not {text}")
    return int(text)


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.flower import check_flower

    check_flower()
    before = os.umask(0o077)  # no other account reads what this writes and starts: images, models, messages, logs
    try:
        TASKS[args.task](args, console)
    except KeyboardInterrupt:
        if args.task not in UNTIL_STOPPED:
            raise
        console.print("stopped")
    finally:
        os.umask(before)


def init(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.federation_folders import create

    names = args.names.split(",") if args.names else ()
    made = create(args.folder, args.nodes, names, args.host, args.port, args.link_port, args.days, args.rehearsal)
    console.print(f"authority: {args.folder / 'authority'} (keep its ca.key private, and off the server)")
    console.print(f"server:    {made[0]} (RUNBOOK.md in it explains how to run it)")
    for site in made[1:]:
        console.print(f"node:      {site} (hand over the whole folder; its node.key is secret)")
    if args.host == HERE:
        place = shlex.quote(str(args.folder))
        console.print(f"to rehearse on this machine: fedbm federation partition {place} && fedbm federation up {place}")


def partition(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.run_control import give_shares

    whole = whole_folder(args.folder)
    for name, training in give_shares(whole, run_file(args, whole / "server"), args.images):
        console.print(f"{name}: {training:,} training images in {whole / name / 'data'}")


def add(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy import federation_folders

    site = federation_folders.add(whole_folder(args.folder), args.name)
    console.print(f"node: {site} (hand over the whole folder; its node.key is secret)")
    console.print("Restart the server to admit it. For runs that must wait for it, raise nodes in [federation].")


def rekey(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy import federation_folders

    site = federation_folders.rekey(whole_folder(args.folder), args.name)
    console.print(f"made: {site / 'node.key'} and node.pub; restart the server, and hand both to {args.name}")


def renew(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy import federation_folders

    end = federation_folders.renew(whole_folder(args.folder), args.days)
    console.print(f"made: {args.folder / 'server' / 'server.pem'}, valid until {end}; restart the server and nginx")


def up(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.federation_progress import StatusLog
    from fedbm.federation.deploy.roles import run_all, watch
    from fedbm.federation.deploy.run_control import Follower, start_run

    home = whole_folder(args.folder) / "server"
    with run_all(args.folder, console.print) as children:
        follower = Follower(home, start_run(home, run_file(args, home)), StatusLog(console))
        watch(children, console.print, follower)
        follower.check_completed()
    print_result(home, console)


def server(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.federation_progress import StatusLog
    from fedbm.federation.deploy.roles import run_server
    from fedbm.federation.server.run_status import read_status

    folder, log = server_folder(args.folder), StatusLog(console)

    def tick() -> bool:
        with suppress(FedBMError):  # the server serves nodes even if the record of a run is damaged
            log(read_status(folder))
        return True

    run_server(folder, console.print, tick)


def node(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.roles import run_node

    run_node(node_folder(args.folder), args.images, console.print, lambda: True)


def approve(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.node import policy_checks

    state = node_folder(args.folder) / "state"
    if args.digest:
        request = policy_checks.approve(state, args.digest, args.withdraw)
        console.print(f"{'withdrawn' if args.withdraw else 'approved'}: {request.text}", soft_wrap=True)
        return
    if args.withdraw:
        raise FedBMError("--withdraw needs a digest: fedbm federation approve DIR DIGEST --withdraw")
    for request in policy_checks.list_requests(state):
        state_word, digest = (
            "approved" if request.approved else "waiting",
            request.digest[: policy_checks.DIGEST_LENGTH],
        )
        console.print(f"{state_word} {digest}: {request.text}", soft_wrap=True)
    console.print(
        f"To approve a waiting run: fedbm federation approve {args.folder} DIGEST. "
        "A run asks within half a minute after its start.",
        soft_wrap=True,
    )


def run(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.federation_progress import StatusLog
    from fedbm.federation.deploy.roles import watch
    from fedbm.federation.deploy.run_control import Follower, start_run

    home = server_folder(args.folder)
    started = start_run(home, run_file(args, home))
    console.print(f"The run has started. 'fedbm federation status {args.folder}' shows it as well.")
    if args.detach:
        return
    try:
        follower = Follower(home, started, StatusLog(console))
        watch([], console.print, follower)
    except KeyboardInterrupt:
        console.print(f"\nThe run continues. 'fedbm federation stop {args.folder} --run' ends it.")
        return
    follower.check_completed()
    print_result(home, console)


def status(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.federation_progress import draw_status
    from fedbm.federation.deploy.flower import SERVER_APP
    from fedbm.federation.deploy.supervisor import running
    from fedbm.federation.server.run_status import read_status

    if args.page:
        serve_page(args, console)
        return
    sites, found, remark = [], None, ""
    for folder in all_folders(args.folder):
        processes, why = running(folder), read_refusal(folder / "state")
        sites.append({"name": folder.name, "path": str(folder), "processes": processes, "refused": why or None})
        words = ", ".join(f"{role} ({pid})" for role, pid in processes.items())
        console.print(f"{folder.name}: {words or 'nothing runs'}")
        if why:
            console.print(f"{folder.name}: not admitted: {why}")
    if not (args.folder / "node.toml").is_file():
        home = server_folder(args.folder)
        found = read_status(home)
        remark = found.remark(SERVER_APP in running(home)) if found else ""
        console.print(draw_status(found) if found else "no run yet")
        if remark:
            console.print(remark)
    if args.json:
        print_json({"sites": sites, "run": found and {**found.to_json(), "remark": remark or None}})


def serve_page(args: argparse.Namespace, console: Console) -> None:
    """Serve the state of the run as a page until Ctrl-C."""
    from fedbm.federation.server.status_page import is_loopback, make_page_server

    page = make_page_server(server_folder(args.folder), args.address, args.page)
    host = f"[{args.address}]" if ":" in args.address else args.address
    console.print(f"page: http://{host}:{page.server_address[1]}/ (Ctrl-C ends it)")
    if not is_loopback(args.address):
        console.print("warning: everyone who can reach this address can read the page; it has no password")
    page.serve_forever()


def stop(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.flower import end_active_runs
    from fedbm.federation.deploy.supervisor import check_up, end_all, running

    if args.run:
        home = server_folder(args.folder)
        check_up(home)
        console.print(f"runs ended: {end_active_runs(home)}. 'fedbm federation run' continues a run.")
        return
    for folder in all_folders(args.folder):
        processes = running(folder)
        end_all(folder)
        console.print(f"{folder.name}: processes ended: {', '.join(processes) or 'none'}")


def audit(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.audit import verify

    paths = [folder / "state" / "audit.jsonl" for folder in all_folders(args.folder)]
    existing = [path for path in paths if path.exists()]
    for path in existing:
        checked = verify(path)
        console.print(f"== {path}: {len(checked.lines)} lines, unbroken chain, last hash {checked.head[:16]}")
        for line in path.read_text(encoding="utf-8").splitlines()[-args.lines :]:
            console.print(line, soft_wrap=True)
    if not existing:
        console.print("no audit yet")


def print_result(home: Path, console: Console) -> None:
    """Print the folder and the scores of the server's latest run."""
    from fedbm.cli.console_tables import result_table
    from fedbm.federation.server.run_status import read_status
    from fedbm.runs.run_view import read_run

    if found := read_status(home):
        path = home / "state" / "runs" / str(found.status["run"])
        console.print(f"run: {path}")
        console.print(result_table([read_run(path)]))


def run_file(args: argparse.Namespace, home: Path) -> Path:
    """Return the run's file: FILE.toml, or else run.toml in the server's folder."""
    return Path(args.file).expanduser() if args.file else home / "run.toml"


TASKS: dict[str, Callable[[argparse.Namespace, Console], None]] = {
    task.__name__: task
    for task in (init, partition, up, server, node, approve, run, status, stop, audit, add, rekey, renew)
}
