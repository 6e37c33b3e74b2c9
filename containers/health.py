"""Exit with 0 if the role in this container works: a SuperLink answers GET /health, and a node's worker is running."""

import sys
from pathlib import Path

from fedbm.federation.deploy.flower import is_healthy
from fedbm.federation.deploy.settings_files import ServerSettings, read_settings
from fedbm.federation.deploy.supervisor import running


def check(home: Path) -> bool:
    """Return whether the role that is mounted under *home* works."""
    for file in home.glob("*/server.toml"):
        return is_healthy(read_settings(file.parent, ServerSettings).link_port, file.with_name("ca.crt"))
    return any("worker" in running(file.parent) for file in home.glob("*/node.toml"))


if __name__ == "__main__":
    sys.exit(not check(Path("/srv/fedbm")))
