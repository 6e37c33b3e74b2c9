"""fedbm completion: print a script that completes commands and flags in a shell.

examples:
  eval "$(fedbm completion bash)"                             in ~/.bashrc
  fedbm completion zsh > ~/.zfunc/_fedbm                      in a folder of $fpath
Options of methods, such as --mu, are not completed.
"""

from __future__ import annotations

import argparse

from rich.console import Console

NUMBERS = ("N", "X", "PORT")  # metavars of values that are not paths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell")


def execute(args: argparse.Namespace, console: Console) -> None:
    import shtab

    from fedbm.cli.main import make_parser

    parser = make_parser()
    actions = list(parser._actions)
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                actions += command._actions  # this loop reaches them, too
            continue
        metavar = str(action.metavar or "")
        if "|" in metavar:
            action.choices = [word for word in metavar.split("|") if word]
        elif action.nargs != 0 and not action.choices and metavar not in NUMBERS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=args.shell))
