"""Texts → unit vectors [n, D], by any Hugging Face text encoder.

    mean        e = Σ_t m_t h_t / Σ_t m_t     m: attention mask, so padding never counts
    cls         e = h_0
    biomedclip  e = W₂ · GELU(W₁ · h_0)       see biomedclip.py

then e ← e / ‖e‖₂. A model is always read from a folder: the one given, and then nothing is asked of the
network, or the Hugging Face cache (hub.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.language.encoders.biomedclip import load_tower
from fedbm.language.encoders.hub import (
    check_folder,
    fetch,
    quiet_transformers,
    require_transformers,
    revision,
    weight_files,
)
from fedbm.utils.io import sha256_file
from fedbm.utils.seeds import seeded_modules

POOLINGS = ("mean", "cls", "biomedclip")
BATCH = 64


@dataclass(frozen=True)
class Encoder:
    """A language model and how a sentence is read from it. Unknown until loaded: dim and context."""

    name: str
    hub: str
    pooling: str
    dim: int | None = None
    context: int | None = None
    licence: str = "as stated by its publisher"


ENCODERS = {
    entry.name: entry
    for entry in (
        Encoder("minilm", "sentence-transformers/all-MiniLM-L6-v2", "mean", 384, 256, "Apache-2.0"),
        Encoder("bert", "bert-base-uncased", "mean", 768, 512, "Apache-2.0"),
        Encoder("roberta", "roberta-base", "mean", 768, 512, "MIT"),
        Encoder(
            "biomedclip",
            "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224",
            "biomedclip",
            512,
            256,
            "MIT; its publisher intends it for research",
        ),
    )
}

Reader = Callable[[dict[str, Tensor]], Tensor]  # a tokenised batch → one vector per text


def encode(
    texts: Sequence[str], encoder: str, folder: Path | None = None, pooling: str | None = None
) -> tuple[Tensor, dict[str, Any]]:
    """Unit-length embeddings [n, D] in float32, and what made them.

    *encoder* is a name of ENCODERS or a Hugging Face id; with *folder* the model is read from there and the
    name says what it is. *pooling* is the catalogue's for a catalogued model and "mean" for any other.
    """
    if not texts:
        raise FedBMError("there are no texts to encode")
    chosen = find_encoder(encoder, folder, pooling)
    transformers = require_transformers()
    place = check_folder(Path(folder or fetch(chosen.hub, chosen.pooling)), chosen.pooling)
    weights = weight_files(place, chosen.pooling)
    # Building a model draws weights before the saved ones replace them; the caller's generator is left alone.
    with quiet_transformers(), seeded_modules(0, "encoder"), torch.no_grad():
        tokenizer = _load_tokenizer(place)
        read, context = _load_reader(place, weights, chosen.pooling, tokenizer)
        limit = min(context, chosen.context or context)
        batches = [list(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        rows = [read(_tokenize(batch, tokenizer, limit, chosen.name)) for batch in batches]
    embeddings = normalize(torch.cat(rows).float(), dim=1)
    if chosen.dim not in (None, embeddings.shape[1]):
        raise FedBMError(
            f'{place} holds a model of {embeddings.shape[1]} dimensions, but "{chosen.name}" has '
            f"{chosen.dim}; name the encoder that it is"
        )
    return embeddings, {
        "encoder": chosen.name,
        "model": chosen.hub if folder is None else place.resolve().name,
        "revision": revision(place),
        "weights": {path.name: sha256_file(path) for path in weights},
        "pooling": chosen.pooling,
        "transformers": transformers.__version__,
        "torch": str(torch.__version__),
    }


def find_encoder(name: str, folder: Path | None = None, pooling: str | None = None) -> Encoder:
    """The catalogued encoder of this name or Hugging Face id, or a new one; a folder may bear any name."""
    if pooling is not None and pooling not in POOLINGS:
        near = did_you_mean(pooling, POOLINGS)
        raise FedBMError(f'no pooling is called "{pooling}"{near}; choose {join_words(POOLINGS)}')
    by_hub = {entry.hub: entry for entry in ENCODERS.values()}
    known = ENCODERS.get(name) or by_hub.get(name)
    if known is None:
        if folder is None and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
            near = did_you_mean(name.lower(), ENCODERS)
            raise FedBMError(
                f'no encoder is called "{name}"{near}; choose {join_words(ENCODERS)}, '
                'or give a Hugging Face id ("owner/name") or the folder of a model'
            )
        known = Encoder(name, name, "mean")
    return replace(known, pooling=pooling) if pooling else known


def _load_tokenizer(folder: Path) -> Any:
    auto = require_transformers().AutoTokenizer
    try:
        return auto.from_pretrained(str(folder), local_files_only=True, padding_side="right")
    except Exception as error:  # the tokenizers library raises plain Exception for a damaged file
        raise FedBMError(f"{folder} holds no tokenizer that transformers can read") from error


def _load_reader(folder: Path, weights: list[Path], pooling: str, tokenizer: Any) -> tuple[Reader, int]:
    """What turns a tokenised batch into vectors, and the most tokens it can take."""
    if pooling == "biomedclip":
        tower, context = load_tower(weights[0])
        return lambda batch: tower(batch["input_ids"], batch["input_ids"] != tokenizer.pad_token_id), context

    auto = require_transformers().AutoModel
    try:
        model, info = auto.from_pretrained(str(folder), local_files_only=True, output_loading_info=True)
    except Exception as error:  # a checkpoint can fail in as many ways as there are architectures
        raise FedBMError(f"{folder} holds no model that transformers can load") from error
    # transformers fills gaps with random weights. Only the pooler, which is never read here, may be missing.
    if missing := sorted(key for key in info["missing_keys"] if not key.startswith("pooler.")):
        raise FedBMError(f"{weights[0]} lacks weights of its own architecture, the first is {missing[0]}")
    model.float().eval()

    def read(batch: dict[str, Tensor]) -> Tensor:
        try:
            hidden = model(**batch).last_hidden_state
        except (AttributeError, TypeError, ValueError) as error:
            raise FedBMError(f"{folder} holds no text encoder but a {type(model).__name__}") from error
        return hidden[:, 0] if pooling == "cls" else masked_mean(hidden, batch["attention_mask"])

    return read, min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 512))


def masked_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Σ_t m_t h_t / Σ_t m_t over hidden states [n,T,D] and a 0/1 mask [n,T]."""
    weights = mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


def _tokenize(texts: list[str], tokenizer: Any, limit: int, name: str) -> dict[str, Tensor]:
    """Padded to the longest. A text the model cannot read to its end is refused, never cut."""
    try:
        batch = dict(tokenizer(texts, padding=True, truncation=False, return_tensors="pt"))
    except ValueError as error:
        raise FedBMError(f'the tokenizer of "{name}" cannot pad, so it is not a text encoder\'s') from error
    lengths = batch["attention_mask"].sum(dim=1)
    if int(lengths.max()) > limit:
        text = texts[int(lengths.argmax())]
        raise FedBMError(
            f'"{text[:60]}…" has {int(lengths.max())} tokens but "{name}" reads {limit}; shorten the concept'
        )
    return batch
