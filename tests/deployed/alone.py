"""Run a command in a network namespace that has loopback and nothing else, where this machine allows it.

    python tests/deployed/alone.py COMMAND …

Where it does not, that is said, and the command runs as it is.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys

INSIDE = "FEDBM_LOOPBACK_ONLY"
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


def raise_loopback() -> None:
    """What `ip link set lo up` does, without needing ip."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = fcntl.ioctl(probe, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        flags = struct.unpack("16sH14x", found)[1]
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def main(command: list[str]) -> None:
    if os.environ.get(INSIDE) == "1":
        raise_loopback()
        print("network: a namespace with loopback only", flush=True)
        os.execvp(command[0], command)
    tool = shutil.which("unshare")
    allowed = tool and subprocess.run([tool, "-rn", "true"], capture_output=True, check=False).returncode == 0
    if tool and allowed:
        os.environ[INSIDE] = "1"
        os.execv(tool, [tool, "-rn", sys.executable, __file__, *command])
    why = "its kernel or its policy does not allow it" if tool else "it has no unshare"
    print(f"network: as it is; this machine makes no namespace for us ({why})", flush=True)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
