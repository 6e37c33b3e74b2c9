"""A finished run's model classifies as it did when the run scored it; what was the user's own is asked for again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import fedbm
from fedbm.errors import FedBMError
from fedbm.utils.metrics import score


class Flat(nn.Module):
    """A body of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(256, 4)
        self.feature_dim = 4

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x.flatten(1)).relu()


@dataclass(frozen=True)
class Mine(fedbm.FedAvg):
    """A method of the user's own."""

    name: ClassVar[str] = "mine"


def trained(tiny: dict[str, Any], out: Path, **more: Any) -> Path:
    own = {key: value for key, value in tiny.items() if key not in ("data", "method")}
    return fedbm.simulate(tiny["data"], out=str(out), **{**own, "rounds": 2, "method": "fedavg", **more}).path


def test_the_loaded_model_scores_as_the_run_says(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder = trained(tiny, tmp_path, device=torch.device("cpu"))
    model = fedbm.load_model(folder, torch.device("cpu"))
    data = fedbm.load(tiny["data"], size=16, channels=1)
    test = data.indices("test")
    probabilities = model.predict(np.asarray(data.images[test]))
    assert probabilities.sum(axis=1) == pytest.approx(1)
    summary = json.loads((folder / "summary.json").read_text())
    found = score(data.labels[test], probabilities)[0]
    assert found == pytest.approx({name: summary["best"][name] for name in found})
    grey = np.asarray(data.images[test])[..., 0]
    for same in (grey, grey[:, None], grey / 255, torch.from_numpy(grey), grey.tolist()):
        if isinstance(same, list):
            with pytest.raises(FedBMError, match="images has int64 values: use uint8 from 0 to 255"):
                model.predict(same)
        else:
            assert (model.predict(same) == probabilities).all()
    with pytest.raises(FedBMError, match=r"images must be \[n, 16, 16, 1\], not \[2, 8, 16, 1\]"):
        model.predict(np.zeros((2, 8, 16, 1)))


def test_the_averaged_model_scores_as_the_run_says(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder = trained(tiny, tmp_path, server_average=0.9, rounds=3)
    data = fedbm.load(tiny["data"], size=16, channels=1)
    test = data.indices("test")
    images = np.asarray(data.images[test])
    chosen, averaged = (fedbm.load_model(folder, "cpu", averaged=which).predict(images) for which in (False, True))
    summary = json.loads((folder / "summary.json").read_text())
    found = score(data.labels[test], averaged)[0]
    assert found == pytest.approx({name: summary["averaged"][name] for name in found})
    assert not np.allclose(chosen, averaged)
    with pytest.raises(FedBMError, match="has no averaged.safetensors: a finished run has model.safetensors and, with"):
        fedbm.load_model(trained(tiny, tmp_path), "cpu", averaged=True)


def test_a_common_model_is_there_however_few_clients_have_trained(tiny: dict[str, Any], tmp_path: Path) -> None:
    """FedROD's is the server's alone; FedRep's would be the head of the one client that trained, which stays."""
    one = {"clients": 2, "participation": 0.5, "rounds": 1}
    model = fedbm.load_model(trained(tiny, tmp_path, **one, method="fedrod"), "cpu")
    assert model.classes == ("cyst", "normal", "polyp")
    with pytest.raises(FedBMError, match="has no common model: with fedrep, every client keeps its own head"):
        fedbm.load_model(trained(tiny, tmp_path, **one, method="fedrep"), "cpu")
    with pytest.raises(FedBMError, match="has no common model: with fedbn, every client keeps its own body"):
        fedbm.load_model(trained(tiny, tmp_path, **one, method="fedbn", freeze="1"), "cpu")  # as in its init_weights


def test_parts_that_only_clients_in_training_need_are_not_saved(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder = trained(tiny, tmp_path, method="moon")
    assert {name.partition(".")[0] for name in load_file(folder / "model.safetensors")} == {"body", "head"}
    assert fedbm.load_model(folder, "cpu").classes == ("cyst", "normal", "polyp")


def test_a_body_of_ones_own_is_given_again(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder = trained({key: value for key, value in tiny.items() if key != "width"}, tmp_path, body=Flat)
    assert fedbm.load_model(folder, "cpu", make_body=Flat).classes == ("cyst", "normal", "polyp")
    with pytest.raises(FedBMError, match="do not fit the model in its config.toml"):
        fedbm.load_model(folder, "cpu")


def test_a_method_of_ones_own_is_given_again(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder = trained(tiny, tmp_path, method=Mine())
    assert fedbm.load_model(folder, "cpu", method=Mine()).method == Mine()
    with pytest.raises(FedBMError, match=r"was trained by mine, which is your own method"):
        fedbm.load_model(folder, "cpu")


def test_another_file_in_place_of_the_model_is_refused(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder = trained(tiny, tmp_path)
    (folder / "checkpoint.safetensors").replace(folder / "model.safetensors")
    with pytest.raises(FedBMError, match=r"model\.safetensors is not the model of a run\. Restore the file\."):
        fedbm.load_model(folder, "cpu")


@pytest.mark.parametrize("in_python", [False, True])
def test_new_images_are_read_with_the_value_range_of_the_run(tmp_path: Path, in_python: bool) -> None:
    for level, name in ((500, "ill"), (3500, "well")):
        (tmp_path / "ct" / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(np.full((16, 16), level + i, dtype=np.uint16)).save(tmp_path / "ct" / name / f"{i}.png")
    settings = {"method": "fedavg", "clients": 2, "beta": 5.0, "rounds": 1, "width": 4, "out": str(tmp_path / "runs")}
    if in_python:
        run = fedbm.simulate(fedbm.load(tmp_path / "ct", size=16, value_range=(0, 4095)), **settings)
    else:
        run = fedbm.simulate(str(tmp_path / "ct"), size=16, value_range="0,4095", **settings)
    model = fedbm.load_model(run.path, "cpu")
    files = [tmp_path / "ct" / "ill" / "0.png", tmp_path / "ct" / "well" / "0.png"]
    seen = np.stack([np.full((16, 16, 3), round(255 * level / 4095), dtype=np.uint8) for level in (500, 3500)])
    found = np.stack([probabilities for _, probabilities in model.classify(files)])
    assert (found == model.predict(seen)).all()
    (tmp_path / "new").mkdir()
    files[0].rename(tmp_path / "new" / "scan.png")
    [(path, alone)] = model.classify(str(tmp_path / "new"))
    assert path.name == "scan.png"
    assert (alone == model.predict(seen[:1])[0]).all()
