"""The tasks of 'fedbm federation'. They need the flower extra."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from fedbm.cli.console_tables import result_table
from fedbm.cli.federation_progress import StatusLog, draw_status
from fedbm.cli.output import print_json
from fedbm.errors import FedBMError
from fedbm.federation.audit import verify
from fedbm.federation.deploy import federation_folders
from fedbm.federation.deploy.flower import SERVER_APP
from fedbm.federation.deploy.roles import run_all, run_node, run_server, watch
from fedbm.federation.deploy.run_control import end_active_runs, find_end, give_shares, start_run
from fedbm.federation.deploy.settings_files import (
    HERE,
    all_folders,
    node_folder,
    read_refusal,
    server_folder,
    whole_folder,
)
from fedbm.federation.deploy.supervisor import Child, check_up, end_all, running
from fedbm.federation.node import policy_checks
from fedbm.federation.server.run_status import read_status
from fedbm.federation.server.status_page import is_loopback, make_page_server
from fedbm.runs.run_view import read_run


def init(args: argparse.Namespace, console: Console) -> None:
    names = args.names.split(",") if args.names else ()
    made = federation_folders.create(
        args.folder, args.nodes, names, args.host, args.port, args.link_port, args.days, args.rehearsal
    )
    console.print(f"authority: {args.folder / 'authority'} (keep its ca.key private, and off the server)")
    console.print(f"server:    {made[0]} (RUNBOOK.md in it explains how to run it)")
    for site in made[1:]:
        console.print(f"node:      {site} (hand over the whole folder; its node.key is secret)")
    if args.host == HERE:
        place = shlex.quote(str(args.folder))
        console.print(f"to rehearse on this machine: fedbm federation partition {place} && fedbm federation up {place}")


def partition(args: argparse.Namespace, console: Console) -> None:
    whole = whole_folder(args.folder)
    for name, training in give_shares(whole, run_file(args, whole / "server"), args.images):
        console.print(f"{name}: {training:,} training images in {whole / name / 'data'}")


def add(args: argparse.Namespace, console: Console) -> None:
    site = federation_folders.add(whole_folder(args.folder), args.name)
    console.print(f"node: {site} (hand over the whole folder; its node.key is secret)")
    console.print("Restart the server to admit it. For runs that must wait for it, raise nodes in [federation].")


def rekey(args: argparse.Namespace, console: Console) -> None:
    site = federation_folders.rekey(whole_folder(args.folder), args.name)
    console.print(f"made: {site / 'node.key'} and node.pub; restart the server, and hand both to {args.name}")


def renew(args: argparse.Namespace, console: Console) -> None:
    end = federation_folders.renew(whole_folder(args.folder), args.days)
    console.print(f"made: {args.folder / 'server' / 'server.pem'}, valid until {end}; restart the server and nginx")


def up(args: argparse.Namespace, console: Console) -> None:
    home = whole_folder(args.folder) / "server"
    with run_all(args.folder, console.print) as children:
        follow(home, start_run(home, run_file(args, home)), children, console)


def server(args: argparse.Namespace, console: Console) -> None:
    folder, log = server_folder(args.folder), StatusLog(console)
    with run_server(folder, console.print) as children:
        for _ in watch(children, console.print):
            with suppress(FedBMError):  # the server serves nodes even if the record of a run is damaged
                log(read_status(folder))


def node(args: argparse.Namespace, console: Console) -> None:
    with run_node(node_folder(args.folder), args.images, console.print) as children:
        for _ in watch(children, console.print):
            pass


def approve(args: argparse.Namespace, console: Console) -> None:
    state = node_folder(args.folder) / "state"
    if args.digest:
        request = policy_checks.approve(state, args.digest, args.withdraw)
        console.print(f"{'withdrawn' if args.withdraw else 'approved'}: {request.text}", soft_wrap=True)
        return
    if args.withdraw:
        raise FedBMError("--withdraw needs a digest: fedbm federation approve DIR DIGEST --withdraw")
    for request in policy_checks.list_requests(state):
        word, digest = "approved" if request.approved else "waiting", request.digest[: policy_checks.DIGEST_LENGTH]
        console.print(f"{word} {digest}: {request.text}", soft_wrap=True)
    console.print(
        f"To approve a waiting run: fedbm federation approve {args.folder} DIGEST. "
        "A run asks within half a minute after its start.",
        soft_wrap=True,
    )


def run(args: argparse.Namespace, console: Console) -> None:
    home = server_folder(args.folder)
    started = start_run(home, run_file(args, home))
    console.print(f"The run has started. 'fedbm federation status {args.folder}' shows it as well.")
    if args.detach:
        return
    try:
        follow(home, started, [], console)
    except KeyboardInterrupt:
        console.print(f"\nThe run continues. 'fedbm federation stop {args.folder} --run' ends it.")


def status(args: argparse.Namespace, console: Console) -> None:
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
    page = make_page_server(server_folder(args.folder), args.address, args.page)
    host = f"[{args.address}]" if ":" in args.address else args.address
    console.print(f"page: http://{host}:{page.server_address[1]}/ (Ctrl-C ends it)")
    if not is_loopback(args.address):
        console.print("warning: everyone who can reach this address can read the page; it has no password")
    page.serve_forever()


def stop(args: argparse.Namespace, console: Console) -> None:
    if args.run:
        home = server_folder(args.folder)
        check_up(home)
        console.print(f"runs ended: {end_active_runs(home)}. 'fedbm federation run' continues a run.")
        return
    for folder in reversed(all_folders(args.folder)):  # nodes sign off, so the server must still be running
        processes = running(folder)
        end_all(folder)
        console.print(f"{folder.name}: processes ended: {', '.join(processes) or 'none'}")


def audit(args: argparse.Namespace, console: Console) -> None:
    paths = [folder / "state" / "audit.jsonl" for folder in all_folders(args.folder)]
    existing = [path for path in paths if path.exists()]
    for path in existing:
        checked = verify(path)
        console.print(f"== {path}: {len(checked.lines)} lines, unbroken chain, last hash {checked.head[:16]}")
        for line in path.read_text(encoding="utf-8").splitlines()[-args.lines :]:
            console.print(line, soft_wrap=True)
    if not existing:
        console.print("no audit yet")


def follow(home: Path, run: int, children: Sequence[Child], console: Console) -> None:
    """Show a run until it ends, then its folder and scores; raise FedBMError unless it was completed."""
    log = StatusLog(console)
    for _ in watch(children, console.print):
        end = find_end(home, run)
        log(found := read_status(home))  # after the question, so that the end of a run is shown
        if end is not None:
            break
    if end.sub_status != "completed":
        why = end.details or end.sub_status
        raise FedBMError(f"the run was not completed: {why}; the same command resumes it from its last checkpoint")
    if found:
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
