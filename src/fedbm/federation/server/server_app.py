"""The Flower ServerApp: `flwr run` starts it with `config`, the run's TOML, and `folder`, the server's folder."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbm.errors import FedBMError

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    from fedbm.federation.server.serve import serve

    config, folder = (str(context.run_config.get(key, "")) for key in ("config", "folder"))
    for key, value in (("config", config), ("folder", folder)):
        if not Path(value).is_absolute():
            raise FedBMError(f"the app needs {key} as an absolute path: flwr run … -c '{key}=\"/…\"'")
    serve(grid, Path(config), Path(folder))
