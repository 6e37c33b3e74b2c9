"""ResNet-18: names and sizes as in torchvision, all options, and loading initial weights."""

import pytest
import torch
from safetensors.torch import save_file

from fedbm.config.options import ModelOptions
from fedbm.errors import FedBMError
from fedbm.models.backbone import body_factory, load_weights
from fedbm.models.heads import feature_dim
from fedbm.models.resnet import ResNet18
from fedbm.utils.tensor_files import read_tensors


def test_parameter_count_and_names_match_torchvision():
    body = ResNet18()
    # torchvision's resnet18 has 11,689,512 parameters, 513,000 of them in fc
    assert sum(p.numel() for p in body.parameters()) == 11_176_512
    names = set(body.state_dict())
    assert len(names) == 120
    assert {"conv1.weight", "bn1.running_var", "layer1.0.conv1.weight", "layer4.1.bn2.num_batches_tracked"} <= names
    assert {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.bias"} <= names
    assert body.layer3[0].conv1.weight.shape == (256, 128, 3, 3)


@pytest.mark.parametrize("stem", ["7x7", "3x3"])
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(("channels", "width", "size"), [(1, 4, 28), (3, 16, 32)])
def test_options_give_features_of_the_declared_size(stem, norm, channels, width, size):
    body = ResNet18(channels, width, stem, norm)
    assert body(torch.zeros(2, channels, size, size)).shape == (2, 8 * width)
    assert body.feature_dim == feature_dim(body, (channels, size, size)) == 8 * width
    has_batch_norm = any(isinstance(m, torch.nn.BatchNorm2d) for m in body.modules())
    assert has_batch_norm == (norm == "batch")


def test_bf16_gradients_of_one_pixel_do_not_come_from_unset_memory():
    """At 16 px the last stage starts from one pixel, of which eight of nine weights see only padding."""
    body, images = ResNet18(1, 8), torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        unset = [torch.full((4**n,), float("nan")) for n in range(2, 11) for _ in range(5)]
        del unset  # its memory is given out next
        body.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            body(images).float().square().sum().backward()
    gradient = body.layer4[0].conv1.weight.grad
    assert bool(gradient[:, :, 1, 1].any())
    padded = torch.ones(3, 3, dtype=torch.bool)
    padded[1, 1] = False
    assert not bool(gradient[:, :, padded].any())


def test_bf16_features_of_images_that_are_not_square_have_the_size_of_fp32():
    """The last stage starts from one column of two pixels here, where stride 1 would give two."""
    body, images = ResNet18(1, 8).eval(), torch.randn(4, 1, 32, 16, generator=torch.Generator().manual_seed(0))
    last = []
    body.layer4[0].conv2.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0].shape))
    body(images)
    with torch.autocast("cpu", torch.bfloat16):
        body(images)
    assert last[0] == last[1]


def test_feature_dim_is_measured_if_not_declared():
    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 7), torch.nn.BatchNorm1d(7))
    assert feature_dim(body, (1, 4, 4)) == 7
    assert body.training
    with pytest.raises(FedBMError, match=r"returned torch.float32 \[2, 1, 4, 4\], but"):
        feature_dim(torch.nn.Identity(), (1, 4, 4))


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ("tuple", lambda x: (x.flatten(1), 1)),
        (r"torch.float64 \[2, 16\]", lambda x: x.flatten(1).double()),
        (r"torch.float32 \[1, 16\]", lambda x: x.flatten(1)[:1]),
        (r"torch.float32 \[\]", lambda x: x.sum()),
    ],
)
def test_features_of_another_kind_are_refused(found, wrong):
    class Body(torch.nn.Module):
        def forward(self, x):
            return wrong(x)

    with pytest.raises(FedBMError, match=f"for 2 images, the body returned {found}, but"):
        feature_dim(Body(), (1, 4, 4))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_init_loads_a_torchvision_file_without_its_classifier(tmp_path, suffix):
    weights = {**ResNet18(3, 8).state_dict(), "fc.weight": torch.ones(5, 64), "fc.bias": torch.ones(5)}
    path = tmp_path / f"resnet18{suffix}"
    save_file(weights, path) if suffix == ".safetensors" else torch.save(weights, path)
    body = body_factory(ModelOptions(width=8, init_weights=str(path)), 3)()
    assert all(torch.equal(value, weights[name]) for name, value in body.state_dict().items())


def test_init_loads_the_body_of_a_saved_run():
    source, target = ResNet18(1, 4), ResNet18(1, 4)
    saved = {f"body.{name}": value for name, value in source.state_dict().items()} | {"head.weight": torch.ones(2, 32)}
    load_weights(target, saved, "run")
    assert torch.equal(target.conv1.weight, source.conv1.weight)


def test_unusable_init_files_are_refused(tmp_path):
    with pytest.raises(FedBMError, match="does not exist"):
        read_tensors(tmp_path / "missing.pth")
    bad = tmp_path / "bad.pth"
    bad.write_bytes(b"no weights at all")
    with pytest.raises(
        FedBMError, match="bad.pth is damaged, or neither a .safetensors file nor a PyTorch file of tensors"
    ):
        read_tensors(bad)
    torch.save([1, 2], bad)
    with pytest.raises(FedBMError, match="does not contain a dictionary of tensors"):
        read_tensors(bad)
    torch.save(ResNet18(3, 8).state_dict(), bad)
    with pytest.raises(FedBMError, match=r"of another shape: conv1.weight\. Check body, stem, width"):
        body_factory(ModelOptions(width=8, init_weights=str(bad)), 1)()
    with pytest.raises(FedBMError, match="Missing, .*: conv1.weight and"):
        load_weights(ResNet18(3, 8), {"fc.weight": torch.zeros(1)}, "x.pth")
    with pytest.raises(FedBMError, match="unknown .*: odd.name"):
        load_weights(ResNet18(3, 8), {**ResNet18(3, 8).state_dict(), "odd.name": torch.zeros(1)}, "x.pth")
