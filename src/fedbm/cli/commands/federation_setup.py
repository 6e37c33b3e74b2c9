"""The tasks of `fedbm federation` that write folders: init, deal, add, rekey, renew."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbm.cli.parser import add_command
from fedbm.errors import FedBMError
from fedbm.federation.deploy.site_files import FILES, kind_of

if TYPE_CHECKING:
    from rich.console import Console


def add_tasks(tasks: Any) -> None:
    """Add the parsers of these tasks."""
    init = add_command(
        tasks, "init", "make keys, certificates, settings, services, front and runbooks for a new federation"
    )
    init.add_argument("folder", metavar="DIR", help="a folder that is not there yet")
    init.add_argument("--nodes", metavar="N", help="how many nodes (default: as many as names, or 3)")
    init.add_argument("--names", metavar="A,B,…", help="what they are called (default hospital-1, hospital-2, …)")
    init.add_argument(
        "--host", default="127.0.0.1", help="name or address at which nodes reach the server (default: this machine)"
    )
    init.add_argument("--port", metavar="N", help="its port there (default 443, the nginx front; without --host 8000)")
    init.add_argument("--link-port", default="8000", metavar="N", help="the SuperLink's loopback port (default 8000)")
    init.add_argument("--days", default="730", metavar="N", help="validity of the server's certificate (default 730)")

    deal = add_command(tasks, "deal", "deal a run's data set to the nodes of this machine, for a rehearsal")
    deal.add_argument("folder", metavar="DIR", help="the folder that init made")
    deal.add_argument("file", nargs="?", metavar="FILE.toml", help="the run (default DIR/server/run.toml)")

    deal.add_argument(
        "--data", dest="images", default="", metavar="PATH", help="where it is (default: as the run says)"
    )

    more = add_command(tasks, "add", "make one more node: its folder, and its key at the server")
    more.add_argument("folder", metavar="DIR", help="the folder that init made, with authority/ in it")
    more.add_argument("name", metavar="NAME", help="what the node is called")

    rekey = add_command(tasks, "rekey", "make a node a new key; the old one is refused from the server's next start")
    rekey.add_argument("folder", metavar="DIR", help="the folder that init made, with authority/ in it")
    rekey.add_argument("name", metavar="NAME", help="the node")

    renew = add_command(tasks, "renew", "make the server a new certificate; nodes need nothing new")
    renew.add_argument("folder", metavar="DIR", help="the folder that init made, with authority/ in it")
    renew.add_argument("--days", default="730", metavar="N", help="its validity (default 730)")


def init(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.init import create

    made = create(
        args.folder,
        nodes=count(args.nodes, "--nodes") if args.nodes is not None else None,
        names=args.names.split(",") if args.names else (),
        host=args.host,
        port=count(args.port, "--port") if args.port else None,
        link_port=count(args.link_port, "--link-port"),
        days=count(args.days, "--days"),
    )
    say = printer(console)
    say(f"authority: {args.folder / 'authority'} (keep its ca.key private, and off the server)")
    say(f"server:    {made[0]} (RUNBOOK.md in it explains how to run it)")
    for site in made[1:]:
        say(f"node:      {site} (hand over the whole folder; its node.key is secret)")
    say(f"to rehearse on this machine: fedbm federation deal {args.folder} && fedbm federation up {args.folder}")


def deal(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.run_control import give_shares

    check_whole(args.folder)
    for name, training in give_shares(args.folder, run_file(args, args.folder / "server"), args.images):
        console.print(f"{name}: {training:,} training images in {args.folder / name / 'data'}", soft_wrap=True)


def add(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.init import add as add_node

    check_whole(args.folder)
    say = printer(console)
    say(f"node: {add_node(args.folder, args.name)} (hand over the whole folder; its node.key is secret)")
    say("Restart the server to admit it. For runs that must wait for it, raise nodes in [federation].")


def rekey(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.init import rekey as make_key

    check_whole(args.folder)
    site = make_key(args.folder, args.name)
    printer(console)(f"made: {site / 'node.key'} and node.pub; restart the server, and hand both to {args.name}")


def renew(args: argparse.Namespace, console: Console) -> None:
    from fedbm.federation.deploy.init import renew as make_certificate

    check_whole(args.folder)
    end = make_certificate(args.folder, count(args.days, "--days"))
    console.print(f"made: {args.folder / 'server' / 'server.pem'}, valid until {end}; restart the server and nginx")


def printer(console: Console) -> Callable[[str], None]:
    return lambda sentence: console.print(sentence, soft_wrap=True)


def run_file(args: argparse.Namespace, home: Path) -> Path:
    """Return the run's file: the one given, or the one that init put into the server's folder."""
    return Path(args.file).expanduser() if args.file else home / "run.toml"


def check_whole(folder: Path) -> None:
    if kind_of(folder) != "federation":
        raise FedBMError(
            f"{folder} is the folder of one role. Give the folder of the whole federation, with {FILES['federation']}."
        )


def count(text: str, flag: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise FedBMError(f"{flag} must be a whole number from 1 to 65535, not {text}")
    return int(text)
