"""Where the images of a run are, with the same results; and runs that a GPU repeats bit for bit."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from small import TinyBody, image_data
from whole_runs import assert_same_run

import fedbm
from fedbm.engine.device import explain_memory_errors, find_device, gather_rows, place_images
from fedbm.errors import FedBMError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def test_rows_are_gathered_for_one_step_and_for_several():
    [data] = image_data(1)
    for chosen in (torch.tensor([2, 0, 2]), torch.tensor([[1, 0], [0, 2]])):
        assert torch.equal(gather_rows(data.images, chosen, pin=False), data.images[chosen])


@pytest.mark.parametrize(("data_on", "free"), [("auto", 199), ("host", 10**9)])
def test_images_stay_in_host_memory_if_asked_or_larger_than_half_of_the_free_memory(data_on, free, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    images = np.arange(100, dtype=np.uint8)
    found = place_images(images, CUDA, data_on, "some images")
    assert found.is_cpu
    assert found.data_ptr() == images.ctypes.data, "and are not copied"


def test_images_on_a_gpu_need_one(tmp_path):
    with pytest.raises(
        FedBMError, match="^data_on = gpu needs a CUDA device, but the device is cpu; use data_on = auto"
    ):
        fedbm.simulate("digits", method="fedavg", body=TinyBody, device="cpu", data_on="gpu", out=str(tmp_path / "out"))
    assert not list(tmp_path.glob("out/*/config.toml"))


def test_a_gpu_with_a_driver_that_pytorch_cannot_use(monkeypatch):
    """Its driver is too old: the system counts it, but CUDA does not start."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(FedBMError, match="^there is no device cuda: CUDA devices that PyTorch can use here: 0$"):
        find_device("cuda")


@pytest.mark.gpu
@needs_gpu
def test_full_memory_while_the_images_are_on_the_gpu():
    images = place_images(np.zeros(10**8, dtype=np.uint8), CUDA, "gpu", "zeros")
    assert images.is_cuda
    message = "width or size, or data_on = host on a GPU$"
    with pytest.raises(FedBMError, match=message), explain_memory_errors(CUDA):
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("method", ["fedavg", "fedbm", "fedgen"])
@pytest.mark.parametrize("engine", ["reference", "captured"])
def test_a_run_gives_the_same_bits_with_its_images_in_host_memory(engine, method, tmp_path, monkeypatch):
    """Training and evaluation; "auto" chooses the host if memory is short.

    Without deterministic kernels, an atomic sum differs in its last bit if other programs use the GPU.
    """
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 1000))
    own = {"generator_steps": 3, "generator_width": 4, "generator_every": 2} if method == "fedbm" else {}
    settings = {"size": 16, "batch": 8, "clients": 4, "beta": 0.5, "rounds": 3, "device": "cuda", "engine": engine}
    settings["deterministic"] = True
    runs = [
        fedbm.simulate(
            "digits", method=method, body=TinyBody, data_on=place, out=str(tmp_path / place), **settings, **own
        )
        for place in ("gpu", "auto")
    ]
    assert_same_run(runs[0].path, runs[1].path)
    assert not any("host memory" in note for note in runs[0].rounds[0]["notes"])
    assert any("stay in host memory" in note for note in runs[1].rounds[0]["notes"])


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("engine", ["reference", "captured"])
def test_deterministic_runs_of_two_processes_give_the_same_bits(engine, tmp_path):
    options = "--width 4 --size 16 --clients 4 --beta 0.5 --rounds 3 --generator-steps 3 --generator-every 2"
    command = f"run --data digits --method fedbm {options} --device cuda --engine {engine} --deterministic yes --out"
    for name in ("one", "two"):
        subprocess.run([sys.executable, "-m", "fedbm", *command.split(), str(tmp_path / name)], check=True)
    (one,), (two,) = ((tmp_path / name).iterdir() for name in ("one", "two"))
    assert_same_run(one, two)
