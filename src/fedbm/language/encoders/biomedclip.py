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
from textwrap import shorten
from typing import Any

from torch import Tensor
from torch.nn.functional import gelu, linear

from fedbm.errors import FedBMError
from fedbm.utils.io import read_json
from fedbm.utils.tensor_files import read_tensors

_BERT = "text.transformer."
_PROJECTIONS = ("text.proj.0.weight", "text.proj.2.weight")


def load_tower(tokenizer: Any, weights: Path) -> tuple[Callable[[dict[str, Tensor]], Tensor], int]:
    """Return a function that encodes a tokenised batch by the text tower of *weights*, and its number of tokens."""
    description = read_json(weights.parent / "open_clip_config.json")
    state = {key: value.float() for key, value in read_tensors(weights).items() if key.startswith("text.")}
    try:
        settings = description["model_cfg"]["text_cfg"]
        first, second = (state.pop(key) for key in _PROJECTIONS)
        bert = _build_bert({key.removeprefix(_BERT): value for key, value in state.items()}, settings)
        limit = min(settings.get("context_length", 256), bert.config.max_position_embeddings)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        problem = shorten(str(error), 200, placeholder=" …")
        raise FedBMError(f"{weights.parent} does not contain BiomedCLIP's text tower: {problem}") from error

    def read(batch: dict[str, Tensor]) -> Tensor:
        ids = batch["input_ids"]
        cls = bert(input_ids=ids, attention_mask=ids != tokenizer.pad_token_id).last_hidden_state[:, 0]
        return linear(gelu(linear(cls, first)), second)

    return read, limit


def _build_bert(state: dict[str, Tensor], settings: dict[str, Any]) -> Any:
    """Build a BertModel with the sizes and weights of the checkpoint. By default heads are 64 wide."""
    transformers: Any = import_module("transformers")  # the caller has checked that it is installed
    state.pop("embeddings.position_ids", None)  # a constant that only some versions of transformers save
    vocabulary, hidden = state["embeddings.word_embeddings.weight"].shape
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=len({key.split(".")[2] for key in state if key.startswith("encoder.layer.")}),
        num_attention_heads=settings.get("heads", max(1, hidden // 64)),
        intermediate_size=state["encoder.layer.0.intermediate.dense.weight"].shape[0],
        max_position_embeddings=state["embeddings.position_embeddings.weight"].shape[0],
        type_vocab_size=state["embeddings.token_type_embeddings.weight"].shape[0],
    )
    bert = transformers.BertModel(config, add_pooling_layer=False).eval()
    bert.load_state_dict(state)
    return bert
