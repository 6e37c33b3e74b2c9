"""The Flower ServerApp: `flwr run` starts it with `config`, the run's TOML, and `state`, the server's folder."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbm.errors import FedBMError

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    from fedbm.federation.server.serve import serve

    config, state = (str(context.run_config.get(key, "")) for key in ("config", "state"))
    for key, value in (("config", config), ("state", state)):
        if not Path(value).is_absolute():
            raise FedBMError(f"the app needs {key} as an absolute path: flwr run … -c '{key}=\"/…\"'")
    serve(grid, Path(config), Path(state))
