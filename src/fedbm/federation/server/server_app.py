"""The Flower ServerApp. `flwr run` starts it with `config`, the run's TOML file, and `folder`, the server's folder."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbm.errors import FedBMError

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    from fedbm.federation.server.serve import serve

    paths = {key: Path(str(context.run_config.get(key, ""))) for key in ("config", "folder")}
    for key, path in paths.items():
        if not path.is_absolute():
            raise FedBMError(f"{key} must be an absolute path: flwr run … -c '{key}=\"/…\"'")
    serve(grid, paths["config"], paths["folder"])
