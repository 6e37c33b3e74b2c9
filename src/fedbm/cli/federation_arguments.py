"""The tasks of `fedbm federation` and their flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

EXAMPLES = """the operator of the server:
  fedbm federation init study --nodes 3 --host fl.example.org     keys, certificates, services, front, runbooks
  fedbm federation server study                                   start it; study/server/RUNBOOK.md says the rest
  fedbm federation run study                                      start study/server/run.toml, or go on with it
  fedbm federation status study --page                            where it stands, as a page on this machine
a hospital, with the folder it was handed:
  fedbm federation node hospital-1 --data /srv/scans
all on this machine, to rehearse:
  fedbm federation init study --nodes 3
  fedbm federation deal study
  fedbm federation up study
Flower carries the messages; its telemetry, update checks and run-time installs are off.
"""

DIR = "the folder that init made, or one of the folders in it"
SERVER = "the folder that init made, or the server's in it"
TASKS = ("init", "deal", "up", "server", "node", "run", "status", "stop", "logs", "audit", "add", "rekey", "renew")


def add_tasks(tasks: Any, add: Callable[..., Any]) -> None:
    """Parsers of every task; *add* makes one of the house's kind."""
    init = add(tasks, "init", "make keys, certificates, settings, services, front and runbooks for a new federation")
    init.add_argument("folder", metavar="DIR", help="a folder that is not there yet")
    init.add_argument("--nodes", metavar="N", help="how many nodes (default: as many as names, or 3)")
    init.add_argument("--names", metavar="A,B,…", help="what they are called (default hospital-1, hospital-2, …)")
    init.add_argument(
        "--host", default="127.0.0.1", help="name or address at which nodes reach the server (default: this machine)"
    )
    init.add_argument("--port", metavar="N", help="its port there (default 443, the nginx front; without --host 8000)")
    init.add_argument("--link-port", default="8000", metavar="N", help="the SuperLink's loopback port (default 8000)")
    init.add_argument("--days", default="730", metavar="N", help="validity of the server's certificate (default 730)")

    deal = add(tasks, "deal", "deal a run's data set to the nodes of this machine, for a rehearsal")
    deal.add_argument("folder", metavar="DIR", help="the folder that init made")
    deal.add_argument("file", nargs="?", metavar="FILE.toml", help="the run (default DIR/server/run.toml)")

    deal.add_argument(
        "--data", dest="images", default="", metavar="PATH", help="where it is (default: as the run says)"
    )

    up = add(tasks, "up", "start server, nodes and a run on this machine, show it, and end everything with it")
    up.add_argument("folder", metavar="DIR", help="the folder that init made")
    up.add_argument("file", nargs="?", metavar="FILE.toml", help="the run (default DIR/server/run.toml)")

    server = add(tasks, "server", "start the server and keep it running until Ctrl-C")
    server.add_argument("folder", metavar="DIR", help=SERVER)

    node = add(tasks, "node", "check this node's data, versions, key and server, then take part until Ctrl-C")
    node.add_argument("folder", metavar="DIR", help="the node's folder")
    node.add_argument(
        "--data", dest="images", default="", metavar="PATH", help="its images (default: data in node.toml)"
    )

    run = add(tasks, "run", "start a run at the server, or go on with it, and show it; Ctrl-C leaves it going")
    run.add_argument("folder", metavar="DIR", help=SERVER)
    run.add_argument(
        "file",
        nargs="?",
        metavar="FILE.toml",
        help="the run: sections as of 'fedbm config', and [federation] (default run.toml in the server's folder)",
    )
    run.add_argument("--detach", action="store_true", help="return once it has started")

    status = add(tasks, "status", "show what runs, and where the run stands")
    status.add_argument("folder", metavar="DIR", help=DIR)
    status.add_argument(
        "--page", nargs="?", const="8080", metavar="PORT", help="serve it as a page (default port 8080)"
    )
    status.add_argument("--address", default="127.0.0.1", help="where to serve the page (default: this machine only)")

    stop = add(tasks, "stop", "end whatever runs in a folder, or only the run")
    stop.add_argument("folder", metavar="DIR", help=DIR)
    stop.add_argument("--run", action="store_true", help="end the run; server and nodes stay")

    logs = add(tasks, "logs", "show what the processes of a folder said")
    logs.add_argument("folder", metavar="DIR", help=DIR)
    logs.add_argument("--lines", default="40", metavar="N", help="of each, the last N lines (default 40)")

    audit = add(tasks, "audit", "check that no line of an audit was changed, and show what it says")
    audit.add_argument("folder", metavar="DIR", help=DIR)
    audit.add_argument("--lines", default="10", metavar="N", help="of each, the last N lines (default 10)")

    more = add(tasks, "add", "make one more node: its folder, and its key at the server")
    more.add_argument("folder", metavar="DIR", help="the folder that init made, with authority/ in it")
    more.add_argument("name", metavar="NAME", help="what the node is called")

    rekey = add(tasks, "rekey", "make a node a new key; the old one is refused from the server's next start")
    rekey.add_argument("folder", metavar="DIR", help="the folder that init made, with authority/ in it")
    rekey.add_argument("name", metavar="NAME", help="the node")

    renew = add(tasks, "renew", "make the server a new certificate; nodes need nothing new")
    renew.add_argument("folder", metavar="DIR", help="the folder that init made, with authority/ in it")
    renew.add_argument("--days", default="730", metavar="N", help="its validity (default 730)")
