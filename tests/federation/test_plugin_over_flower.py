"""A plug-in between hospitals: its name travels, each site runs what it installed, and other source is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from installing import forget_plugins, on_the_path, write_package
from one_process import deploy, digests_in_process, events_of, records_of

from fedbm.errors import FedBMError
from fedbm.federation.federation_options import read_run_file
from fedbm.federation.protocol import messages
from fedbm.federation.protocol.messages import Refusal, accept_terms
from fedbm.federation.server.run_setup import agree

HALF = """
import dataclasses
from typing import ClassVar
import fedbm

@dataclasses.dataclass(frozen=True)
class Half(fedbm.FedAvg):
    "Half of every loss."

    name: ClassVar[str] = "half"

    def loss(self, model, batch, context):
        return {name: value / 2 for name, value in super().loss(model, batch, context).items()}
"""


@pytest.fixture
def half(tmp_path: Path) -> Any:
    write_package(tmp_path / "site", "half-fl", {"half_fl.py": HALF}, {"fedbm.methods": {"half": "half_fl:Half"}})
    with on_the_path(tmp_path / "site"):
        yield tmp_path / "site"


def test_the_same_bits_as_in_one_process(half: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    settings = {**tiny, "method": "half", "clients": 3, "rounds": 2, "participation": 1.0, "beta": 0.5}
    deployed = deploy(tmp_path, settings)
    deployed.serve()
    assert [line["state"] for line in events_of(deployed.state, "round")] == digests_in_process(deployed.plan)
    assert [len(record["clients"]) for record in records_of(deployed)] == [3, 3]


def test_a_site_with_other_source_refuses(half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[data]\nname = "digits"\n[method]\nname = "half"\n')
    agreed = agree(*read_run_file(path))
    assert accept_terms(agreed.terms).config.method.name == "half"
    assert len(agreed.terms["code"]) == 64
    (half / "half_fl.py").write_text(HALF.replace("/ 2", "/ 3"))
    with pytest.raises(Refusal, match="has another version of a plug-in that the run uses, or none"):
        accept_terms(agreed.terms)
    (half / "half_fl-0.1.dist-info" / "entry_points.txt").unlink()
    forget_plugins()
    with pytest.raises(Refusal, match="cannot accept the run's terms"):
        accept_terms(agreed.terms)
    with pytest.raises(FedBMError, match='there is no method "half"'):
        agree(*read_run_file(path))


def test_terms_of_the_packages_methods_have_no_digest(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[data]\nname = "digits"\n[method]\nname = "fedavg"\n')
    terms = agree(*read_run_file(tmp_path / "run.toml")).terms
    assert "code" not in terms
    with pytest.raises(Refusal):
        accept_terms({**terms, "code": "0" * 64})
    assert "code" in messages.REFUSALS
