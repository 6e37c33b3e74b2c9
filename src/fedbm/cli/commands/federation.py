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
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedbm.cli.flags import add_json
from fedbm.cli.parser import add_command
from fedbm.federation.deploy.settings_files import HERE

UNTIL_STOPPED = ("server", "node", "status")  # Ctrl-C ends these without an error
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
    from fedbm.cli.federation_tasks import TASKS

    before = os.umask(0o077)  # no other account reads what this writes and starts: images, models, messages, logs
    try:
        TASKS[args.task](args, console)
    except KeyboardInterrupt:
        if args.task not in UNTIL_STOPPED:
            raise
        console.print("stopped")
    finally:
        os.umask(before)
