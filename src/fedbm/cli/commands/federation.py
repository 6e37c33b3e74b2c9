"""fedbm federation: run the same methods between machines, over Flower."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbm.cli.commands import federation_setup as setup
from fedbm.cli.commands.federation_setup import check_whole, count, printer, run_file
from fedbm.cli.parser import Parser, add_command
from fedbm.errors import FedBMError, did_you_mean
from fedbm.federation.deploy.site_files import all_folders, kind_of, node_folder, server_folder

if TYPE_CHECKING:
    from rich.console import Console

HELP = "run the same methods between machines, over Flower"
EXAMPLES = """the operator of the server:
  fedbm federation init study --nodes 3 --host fl.example.org     keys, certificates, services, front, runbooks
  fedbm federation server study                                   start it; see study/server/RUNBOOK.md
  fedbm federation run study                                      start study/server/run.toml, or continue it
  fedbm federation status study --page                            its state, as a page on this machine
a hospital, with the folder it received:
  fedbm federation node hospital-1 --data /srv/scans
all on this machine, to rehearse:
  fedbm federation init study --nodes 3
  fedbm federation deal study
  fedbm federation up study
Flower carries the messages; its telemetry, update checks and run-time installs are off.
"""
DIR = "the folder that init made, or one of the folders in it"
SERVER = "the folder that init made, or the server's in it"


def expand(words: Sequence[str]) -> list[str]:
    """Check the task; 'federation' alone asks for help."""
    if len(words) > 1 and words[1] not in (*TASKS, "-h", "--help"):
        near = did_you_mean(words[1], TASKS)
        raise FedBMError(f"fedbm federation has no task \"{words[1]}\"{near}. See 'fedbm federation --help'.")
    return list(words) if len(words) > 1 else [*words, "--help"]


def add_arguments(parser: Parser) -> None:
    tasks = parser.add_subparsers(dest="task", metavar="TASK", parser_class=Parser)
    setup.add_tasks(tasks)

    up = add_command(tasks, "up", "start server, nodes and a run on this machine, show it, and stop all at its end")
    up.add_argument("folder", metavar="DIR", help="the folder that init made")
    up.add_argument("file", nargs="?", metavar="FILE.toml", help="the run (default DIR/server/run.toml)")

    server = add_command(tasks, "server", "start the server and keep it running until Ctrl-C")
    server.add_argument("folder", metavar="DIR", help=SERVER)

    node = add_command(tasks, "node", "check this node's data, versions, key and server, then take part until Ctrl-C")
    node.add_argument("folder", metavar="DIR", help="the node's folder")
    node.add_argument(
        "--data", dest="images", default="", metavar="PATH", help="its images (default: data in node.toml)"
    )

    run = add_command(tasks, "run", "start or continue a run at the server, and show it; Ctrl-C does not stop the run")
    run.add_argument("folder", metavar="DIR", help=SERVER)
    run.add_argument(
        "file",
        nargs="?",
        metavar="FILE.toml",
        help="the run: sections as of 'fedbm config', and [federation] (default run.toml in the server's folder)",
    )
    run.add_argument("--detach", action="store_true", help="return once it has started")

    status = add_command(tasks, "status", "show which processes run, and the state of the run")
    status.add_argument("folder", metavar="DIR", help=DIR)
    status.add_argument(
        "--page", nargs="?", const="8080", metavar="PORT", help="serve it as a page (default port 8080)"
    )
    status.add_argument("--address", default="127.0.0.1", help="where to serve the page (default: this machine only)")

    stop = add_command(tasks, "stop", "end all processes of a folder, or only the run")
    stop.add_argument("folder", metavar="DIR", help=DIR)
    stop.add_argument("--run", action="store_true", help="end only the run; server and nodes continue")

    logs = add_command(tasks, "logs", "show the logs of a folder's processes")
    logs.add_argument("folder", metavar="DIR", help=DIR)
    logs.add_argument("--lines", default="40", metavar="N", help="of each, the last N lines (default 40)")

    audit = add_command(tasks, "audit", "check that no line of an audit was changed, and show it")
    audit.add_argument("folder", metavar="DIR", help=DIR)
    audit.add_argument("--lines", default="10", metavar="N", help="of each, the last N lines (default 10)")


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.flower import check_flower

    check_flower()
    args.folder = Path(args.folder).expanduser()
    TASKS[args.task](args, console)


def up(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.federation_progress import following
    from fedbm.federation.deploy.roles import run_all, watch
    from fedbm.federation.deploy.run_control import Follower, end_run_on_error, start_run

    check_whole(args.folder)
    home = args.folder / "server"
    say = printer(console)
    with run_all(args.folder, say) as children:
        run = start_run(home, run_file(args, home))
        with following(console) as show, end_run_on_error(home, run):
            follower = Follower(home, run, show)
            watch(children, say, follower)
        follower.check_completed()
    print_result(home, console)


def server(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.federation_progress import following
    from fedbm.federation.deploy.roles import run_server
    from fedbm.federation.server.run_status import read_status

    folder = server_folder(args.folder)
    with following(console) as show:

        def tick() -> bool:
            show(read_status(folder))
            return True

        until_stopped(lambda: run_server(folder, printer(console), tick), console)


def node(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.roles import run_node

    folder = node_folder(args.folder)
    until_stopped(lambda: run_node(folder, args.images, printer(console), lambda: True), console)


def run(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.federation_progress import following
    from fedbm.federation.deploy.run_control import Follower, start_run

    home = server_folder(args.folder)
    started = start_run(home, run_file(args, home))
    console.print(f"The run has started. 'fedbm federation status {args.folder}' shows it as well.")
    if args.detach:
        return
    try:
        with following(console) as show:
            follower = Follower(home, started, show)
            while follower():
                time.sleep(0.5)
    except KeyboardInterrupt:
        console.print(f"\nThe run continues. 'fedbm federation stop {args.folder} --run' ends it.", soft_wrap=True)
        return
    follower.check_completed()
    print_result(home, console)


def status(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.federation_progress import drawn
    from fedbm.federation.deploy.flower import has_server_app
    from fedbm.federation.deploy.processes import running
    from fedbm.federation.node.refusal_file import read_refusal
    from fedbm.federation.server.run_status import read_status

    if args.page:
        show_page(args, console)
        return
    for folder in all_folders(args.folder):
        seen = running(folder)
        what = ", ".join(f"{role} ({pid})" for role, pid in seen.items()) or "nothing runs"
        console.print(f"{folder.name}: {what}", soft_wrap=True)
        if why := read_refusal(folder / "state"):
            console.print(f"{folder.name}: the server refused this node: {why}", soft_wrap=True)
    if kind_of(args.folder) != "node":
        home = server_folder(args.folder)
        standing = read_status(home)
        console.print(drawn(standing) if standing else "no run yet")
        if standing and (remark := standing.remark(has_server_app(home))):
            console.print(remark, soft_wrap=True)


def show_page(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.server.status_page import is_loopback, make_page_server

    page = make_page_server(server_folder(args.folder), args.address, count(args.page, "--page"))
    host = f"[{args.address}]" if ":" in args.address else args.address
    console.print(f"page: http://{host}:{page.server_address[1]}/ (Ctrl-C ends it)")
    if not is_loopback(args.address):
        console.print("warning: everyone who can reach this address can read the page; it has no password")
    until_stopped(page.serve_forever, console)


def stop(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.flower import active_runs, end_run
    from fedbm.federation.deploy.processes import check_up, end_all

    if args.run:
        home = server_folder(args.folder)
        check_up(home)
        active = active_runs(home)
        for started in active:
            end_run(home, started)
        console.print("The run is ended. 'fedbm federation run' continues it." if active else "No run is active.")
        return
    for folder in all_folders(args.folder):
        ended = end_all(folder)
        console.print(f"{folder.name}: {ended} processes ended" if ended else f"{folder.name}: nothing ran")


def logs(args: argparse.Namespace, console: Console) -> None:
    lines = count(args.lines, "--lines")
    for folder in all_folders(args.folder):
        for path in sorted((folder / "logs").glob("*.log")):
            console.print(f"== {path}", soft_wrap=True)
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]:
                console.print(line, soft_wrap=True)


def audit(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.audit import verify

    lines = count(args.lines, "--lines")
    paths = [folder / "state" / "audit.jsonl" for folder in all_folders(args.folder)]
    for path in [path for path in paths if path.exists()]:
        chain = verify(path)
        console.print(
            f"== {path}: {len(chain.lines)} lines, unbroken chain, last hash {chain.head[:16]}", soft_wrap=True
        )
        for line in path.read_text(encoding="utf-8").splitlines()[-lines:]:
            console.print(line, soft_wrap=True)
    if not any(path.exists() for path in paths):
        console.print("no audit yet")


def until_stopped(work: Callable[[], None], console: Console) -> None:
    """Run *work* until Ctrl-C or SIGTERM, which are not failures here."""
    try:
        work()
    except KeyboardInterrupt:
        console.print("stopped")


def print_result(home: Path, console: Console) -> None:
    from fedbm.cli.tables import result_table
    from fedbm.federation.server.run_status import read_status
    from fedbm.runs.reader import read_run

    standing = read_status(home)
    if standing is not None:
        path = home / "state" / "runs" / str(standing.status["run"])
        console.print(f"run: {path}", soft_wrap=True)
        console.print(result_table([read_run(path)]))


TASKS: dict[str, Callable[[argparse.Namespace, Console], None]] = {
    "init": setup.init,
    "deal": setup.deal,
    "up": up,
    "server": server,
    "node": node,
    "run": run,
    "status": status,
    "stop": stop,
    "logs": logs,
    "audit": audit,
    "add": setup.add,
    "rekey": setup.rekey,
    "renew": setup.renew,
}
