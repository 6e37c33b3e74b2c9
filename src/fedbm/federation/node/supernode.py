"""Run Flower's SuperNode with shorter waits: python -m fedbm.federation.node.supernode, with Flower's own options."""

from __future__ import annotations

from fedbm.federation.flower_waits import shorten_supernode_waits, wait_for_own_reply


def main() -> None:
    from flwr.supernode.cli import flower_supernode

    shorten_supernode_waits()
    wait_for_own_reply()
    flower_supernode()


if __name__ == "__main__":
    main()
