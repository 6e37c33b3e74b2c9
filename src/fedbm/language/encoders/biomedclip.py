"""BiomedCLIP's text tower, read from its published files with transformers only.

    e = W₂ · GELU(W₁ · h_CLS)

h is the last hidden state of a BERT without pooler (keys `text.transformer.*`); W₁ and W₂ are
`text.proj.0.weight` and `text.proj.2.weight`, without bias. The image tower in the same file is not read.

Reference: Zhang et al., BiomedCLIP: a multimodal biomedical foundation model, 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from fedbm.errors import FedBMError, shorten_list
from fedbm.utils.io import read_json

_BERT = "text.transformer."
_PROJECTIONS = ("text.proj.0.weight", "text.proj.2.weight")
# A constant that only some versions of transformers save with the weights.
_OPTIONAL = "text.transformer.embeddings.position_ids"

Tower = Callable[[Tensor, Tensor], Tensor]  # token ids [n,T], mask [n,T] → embeddings [n,D], not yet normalised


def load_tower(weights: Path) -> tuple[Tower, int]:
    """Load the text tower of the file *weights* in float32; also return the number of tokens it can read."""
    description = weights.parent / "open_clip_config.json"
    try:
        settings = dict(read_json(description)["model_cfg"]["text_cfg"])
    except (KeyError, TypeError, ValueError) as error:
        raise FedBMError(f'{description} does not describe a text tower: "model_cfg.text_cfg" is missing') from error
    state = _read_text_weights(weights)
    bert = _build_bert(state, settings, weights)
    first, second = (state[key] for key in _PROJECTIONS)

    def tower(ids: Tensor, mask: Tensor) -> Tensor:
        cls = bert(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
        return linear(gelu(linear(cls, first)), second)

    return tower, min(settings.get("context_length", 256), bert.config.max_position_embeddings)


def _read_text_weights(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, framework="pt") as archive:
                keys = [key for key in archive.keys() if key.startswith("text.")]  # noqa: SIM118, not a mapping
                state = {key: archive.get_tensor(key) for key in keys}
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            state = {key: value for key, value in loaded.items() if key.startswith("text.")}
        return {key: value.float() for key, value in state.items() if key != _OPTIONAL}
    except Exception as error:  # for a damaged file both readers raise many kinds of errors
        raise FedBMError(f"cannot read {path}: it is damaged or not a BiomedCLIP checkpoint") from error


def _build_bert(state: dict[str, Tensor], settings: dict[str, Any], path: Path) -> Any:
    """Build a BertModel with the sizes and weights of the checkpoint. By default heads are 64 wide."""
    transformers: Any = import_module("transformers")  # the caller has checked that it is installed
    refusal = f"{path} is not BiomedCLIP's text tower: its"
    inner = {key.removeprefix(_BERT): value for key, value in state.items() if key.startswith(_BERT)}
    layers = {key.split(".")[2] for key in inner if key.startswith("encoder.layer.")}
    try:
        vocabulary, hidden = inner["embeddings.word_embeddings.weight"].shape
        config = transformers.BertConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            num_hidden_layers=len(layers),
            num_attention_heads=settings.get("heads", max(1, hidden // 64)),
            intermediate_size=inner["encoder.layer.0.intermediate.dense.weight"].shape[0],
            max_position_embeddings=inner["embeddings.position_embeddings.weight"].shape[0],
            type_vocab_size=inner["embeddings.token_type_embeddings.weight"].shape[0],
        )
        bert = transformers.BertModel(config, add_pooling_layer=False).eval()
    except KeyError as error:
        raise FedBMError(f"{refusal} weights do not contain {_BERT}{error.args[0]}") from error
    except (TypeError, ValueError) as error:
        raise FedBMError(f"{refusal} sizes are not those of a BERT model") from error
    expected = {f"{_BERT}{key}" for key in bert.state_dict()} - {_OPTIONAL} | set(_PROJECTIONS)
    if missing := expected - state.keys():
        raise FedBMError(f"{refusal} weights do not contain {shorten_list(sorted(missing), 1)}")
    if unknown := state.keys() - expected:
        raise FedBMError(f"{refusal} weights also contain {shorten_list(sorted(unknown), 1)}")
    try:
        bert.load_state_dict(inner, strict=False)  # the names were compared above
    except RuntimeError as error:
        raise FedBMError(f"{refusal} weights have the wrong shapes") from error
    return bert
