"""BiomedCLIP's text tower compared with a forward pass by hand, on small random checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import BERT_SPECIAL, TEXTS, WORDS, perturb, save_wordpiece
from torch import Tensor

from fedbm.errors import FedBMError
from fedbm.language.encoders.encode import encode
from fedbm.utils.io import sha256_file


@pytest.fixture(scope="module")
def clip_state(transformers: Any) -> dict[str, Tensor]:
    config = transformers.BertConfig(
        vocab_size=16, hidden_size=128, num_hidden_layers=2, intermediate_size=40, max_position_embeddings=30,
        num_attention_heads=2,
    )  # fmt: skip
    inner = perturb(transformers.BertModel(config, add_pooling_layer=False), 3).state_dict()
    rng = torch.Generator().manual_seed(4)
    return {
        **{f"text.transformer.{key}": value.clone() for key, value in inner.items()},
        "text.proj.0.weight": torch.randn(74, 128, generator=rng),
        "text.proj.2.weight": torch.randn(20, 74, generator=rng),
        "visual.trunk.cls_token": torch.zeros(1, 1, 8),
        "logit_scale": torch.tensor(4.6),
    }


def save_clip(folder: Path, state: dict[str, Tensor], text: dict[str, Any], weights: str) -> Path:
    folder.mkdir()
    save_wordpiece(folder)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": {"embed_dim": 20, "text_cfg": text}}))
    if weights.endswith(".bin"):
        torch.save(state, folder / weights)
    else:
        save_file(state, str(folder / weights))
    return folder


def bert_by_hand(state: dict[str, Tensor], ids: list[int], heads: int) -> Tensor:
    """Return BERT's last hidden states [T, D], computed from the checkpoint's tensors."""

    def dense(x: Tensor, name: str) -> Tensor:
        return x @ state[f"text.transformer.{name}.weight"].T + state[f"text.transformer.{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        scaled = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-12).sqrt()
        return scaled * state[f"text.transformer.{name}.weight"] + state[f"text.transformer.{name}.bias"]

    tables = {
        kind: state[f"text.transformer.embeddings.{kind}_embeddings.weight"]
        for kind in ("word", "position", "token_type")
    }
    x = norm(tables["word"][ids] + tables["position"][: len(ids)] + tables["token_type"][0], "embeddings.LayerNorm")
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        query, key, value = (
            dense(x, f"{layer}.attention.self.{part}").view(len(ids), heads, -1).transpose(0, 1)
            for part in ("query", "key", "value")
        )
        weights = (query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])).softmax(dim=-1)
        mixed = (weights @ value).transpose(0, 1).reshape(len(ids), -1)
        x = norm(x + dense(mixed, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
        wide = gelu_by_hand(dense(x, f"{layer}.intermediate.dense"))
        x = norm(x + dense(wide, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    return x


def gelu_by_hand(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


@pytest.mark.parametrize(
    ("weights", "text", "heads"),
    [
        ("open_clip_pytorch_model.bin", {"context_length": 256}, 2),  # 128 / 64
        ("open_clip_model.safetensors", {"heads": 4}, 4),
    ],
)
def test_biomedclip_equals_a_forward_pass_by_hand(
    weights: str, text: dict[str, Any], heads: int, clip_state: dict[str, Tensor], tmp_path: Path
) -> None:
    position_ids = {"text.transformer.embeddings.position_ids": torch.arange(30)[None]}
    extra = position_ids if weights.endswith(".bin") else {}  # an old checkpoint has it, a new one does not
    folder = save_clip(tmp_path / "clip", clip_state | extra, text, weights)
    found, made_by = encode(TEXTS, "tiny", folder, pooling="biomedclip")
    vocabulary = {word: index for index, word in enumerate(BERT_SPECIAL + WORDS)}
    pieces = [
        ["polyp"],
        ["the", "photo", "shows", "a", "macular", "hole"],
        ["image", "of", "cell", "##s"],
        ["cell"],
    ]
    expected = []
    for words in pieces:
        ids = [vocabulary[word] for word in ["[CLS]", *words, "[SEP]"]]
        cls = bert_by_hand(clip_state, ids, heads)[0]
        out = clip_state["text.proj.2.weight"] @ gelu_by_hand(clip_state["text.proj.0.weight"] @ cls)
        expected.append(out / out.norm())
    torch.testing.assert_close(found, torch.stack(expected), atol=2e-5, rtol=0)
    assert made_by["weights"] == {weights: sha256_file(folder / weights)}


def test_wrong_keys_are_named(clip_state: dict[str, Tensor], tmp_path: Path) -> None:
    def refused(name: str, state: dict[str, Tensor], words: str) -> None:
        folder = save_clip(tmp_path / name, state, {}, "open_clip_model.safetensors")
        with pytest.raises(FedBMError, match=words):
            encode(["polyp"], "tiny", folder, pooling="biomedclip")

    def without(part: str) -> dict[str, Tensor]:
        return {key: value for key, value in clip_state.items() if part not in key}

    refused("projection", without("proj.2"), "does not contain BiomedCLIP's text tower: 'text.proj.2.weight'")
    refused("words", without("word_embeddings"), "embeddings.word_embeddings.weight")
    refused("bias", without("output.dense.bias"), "Missing .*encoder.layer.0.attention.output.dense.bias")
    refused("extra", clip_state | {"text.logit": torch.ones(1)}, "Unexpected .*text.logit")
    refused("shape", clip_state | {"text.transformer.embeddings.LayerNorm.bias": torch.ones(3)}, "LayerNorm.bias")
    refused("empty", {"visual.x": torch.ones(1)}, "text.proj.0.weight")


def test_damaged_files_are_named(clip_state: dict[str, Tensor], tmp_path: Path) -> None:
    folder = save_clip(tmp_path / "clip", clip_state, {}, "open_clip_pytorch_model.bin")
    (folder / "open_clip_config.json").write_text('{"model_cfg": {}}')
    with pytest.raises(FedBMError, match="text_cfg"):
        encode(["polyp"], "tiny", folder, pooling="biomedclip")
    (folder / "open_clip_config.json").write_text('{"model_cfg": {"text_cfg": {"heads": 3}}}')
    with pytest.raises(FedBMError, match="text tower: .* heads"):
        encode(["polyp"], "tiny", folder, pooling="biomedclip")
    (folder / "open_clip_config.json").write_text('{"model_cfg": {"text_cfg": {}}}')
    with pytest.raises(FedBMError, match="reads at most 30; shorten"):
        encode(["cell " * 40], "tiny", folder, pooling="biomedclip")
    (folder / "open_clip_pytorch_model.bin").write_bytes(b"not weights")
    with pytest.raises(FedBMError, match="damaged"):
        encode(["polyp"], "tiny", folder, pooling="biomedclip")
