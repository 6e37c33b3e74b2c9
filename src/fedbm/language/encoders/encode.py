"""Encode texts as unit vectors [n, D] with any Hugging Face text encoder.

    mean        e = Σ_t m_t h_t / Σ_t m_t     m: attention mask, so padding does not count
    cls         e = h_0
    biomedclip  e = W₂ · GELU(W₁ · h_0)       see biomedclip.py

then e ← e / ‖e‖₂. A model is read from the given folder or from the Hugging Face cache. A cached model is used without
the network, so a run can be repeated offline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.language.encoders.biomedclip import load_tower
from fedbm.utils.io import sha256_file
from fedbm.utils.seeds import seeded_modules

POOLINGS = ("mean", "cls", "biomedclip")
BATCH = 64
# Pooling → names of weight files, in order of preference.
_WEIGHTS = {
    "mean": ("model*.safetensors", "pytorch_model*.bin"),
    "cls": ("model*.safetensors", "pytorch_model*.bin"),
    "biomedclip": ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
}
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_SMALL_FILES = ("*.json", "*.txt", "*.model")  # configuration and vocabulary


@dataclass(frozen=True)
class Encoder:
    """A language model and its pooling. *dim* and *context* are None if they are unknown before loading."""

    name: str
    hub: str
    pooling: str
    dim: int | None = None
    context: int | None = None


_KNOWN = (
    Encoder("minilm", "sentence-transformers/all-MiniLM-L6-v2", "mean", 384, 256),
    Encoder("bert", "bert-base-uncased", "mean", 768, 512),
    Encoder("roberta", "roberta-base", "mean", 768, 512),
    Encoder("biomedclip", "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224", "biomedclip", 512, 256),
)
ENCODERS = {encoder.name: encoder for encoder in _KNOWN}

Reader = Callable[[dict[str, Tensor]], Tensor]  # a tokenised batch → one vector per text


def encode(
    texts: Sequence[str], encoder: str, folder: Path | None = None, pooling: str | None = None
) -> tuple[Tensor, dict[str, Any]]:
    """Return unit embeddings [n, D] in float32 and their provenance.

    *encoder* is a name of ENCODERS or a Hugging Face id. With *folder* the model is read from there, and *encoder* is
    its name. The default *pooling* is the one in ENCODERS, and "mean" for other models.
    """
    if not texts:
        raise FedBMError("there are no texts to encode")
    chosen = find_encoder(encoder, folder, pooling)
    transformers = require_transformers()
    place = check_folder(Path(folder or fetch(chosen.hub, chosen.pooling)), chosen.pooling)
    weights = weight_files(place, chosen.pooling)
    # Building a model draws random weights before the saved ones replace them; keep the caller's generator unchanged.
    with quiet_transformers(), seeded_modules(0, "encoder"), torch.no_grad():
        tokenizer, read, context = _load_model(place, weights, chosen.pooling)
        limit = min(context, chosen.context or context)
        batches = [list(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        rows = [read(_tokenize(batch, tokenizer, limit, chosen.name)) for batch in batches]
    embeddings = normalize(torch.cat(rows).float(), dim=1)
    if chosen.dim not in (None, embeddings.shape[1]):
        raise FedBMError(
            f'the model in {place} has {embeddings.shape[1]} dimensions, but "{chosen.name}" has '
            f"{chosen.dim}; give the name of the model that is there"
        )
    return embeddings, {
        "encoder": chosen.name,
        "model": chosen.hub if folder is None else place.resolve().name,
        # The Hugging Face cache uses the commit hash as folder name.
        "revision": place.name if re.fullmatch(r"[0-9a-f]{40}", place.name) else None,
        "weights": {path.name: sha256_file(path) for path in weights},
        "pooling": chosen.pooling,
        "transformers": transformers.__version__,
        "torch": str(torch.__version__),
    }


def find_encoder(name: str, folder: Path | None = None, pooling: str | None = None) -> Encoder:
    """Return the encoder with this name or Hugging Face id. With a folder the name can be anything."""
    if pooling not in (None, *POOLINGS):
        near = did_you_mean(pooling, POOLINGS)
        raise FedBMError(f'unknown pooling "{pooling}"{near}; choose {join_words(POOLINGS)}')
    known = next((encoder for encoder in _KNOWN if name in (encoder.name, encoder.hub)), Encoder(name, name, "mean"))
    if known not in _KNOWN and folder is None and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        raise FedBMError(
            f'unknown encoder "{name}"{did_you_mean(name.lower(), ENCODERS)}; choose {join_words(ENCODERS)}, '
            'or give a Hugging Face id ("owner/name") or the folder of a model'
        )
    return replace(known, pooling=pooling) if pooling else known


def _load_model(folder: Path, weights: list[Path], pooling: str) -> tuple[Any, Reader, int]:
    """Return the tokenizer, a function that encodes a tokenised batch, and the largest number of tokens it accepts."""
    transformers = require_transformers()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True, padding_side="right")
    except Exception as error:  # the tokenizers library raises plain Exception for a damaged file
        raise FedBMError(f"transformers cannot read the tokenizer in {folder}") from error
    if pooling == "biomedclip":
        tower, context = load_tower(weights[0])
        return tokenizer, lambda ids: tower(ids["input_ids"], ids["input_ids"] != tokenizer.pad_token_id), context
    try:
        model, info = transformers.AutoModel.from_pretrained(
            str(folder), local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # every architecture fails in its own way
        raise FedBMError(f"transformers cannot load the model in {folder}") from error
    # transformers replaces missing weights by random ones. Only the pooler may be missing, because it is not used.
    if missing := sorted(key for key in info["missing_keys"] if not key.startswith("pooler.")):
        raise FedBMError(f"{len(missing)} weights are missing in {weights[0]}, the first is {missing[0]}")
    model.float().eval()

    def read(batch: dict[str, Tensor]) -> Tensor:
        try:
            hidden = model(**batch).last_hidden_state
        except (AttributeError, TypeError, ValueError) as error:
            raise FedBMError(f"the model in {folder} is a {type(model).__name__}, not a text encoder") from error
        return hidden[:, 0] if pooling == "cls" else masked_mean(hidden, batch["attention_mask"])

    return tokenizer, read, min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 512))


def masked_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return Σ_t m_t h_t / Σ_t m_t for hidden states [n,T,D] and a 0/1 mask [n,T]."""
    weights = mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


def _tokenize(texts: list[str], tokenizer: Any, limit: int, name: str) -> dict[str, Tensor]:
    """Tokenise and pad the texts. Raise FedBMError for a text that is too long; never truncate it."""
    try:
        batch = dict(tokenizer(texts, padding=True, truncation=False, return_tensors="pt"))
    except ValueError as error:
        raise FedBMError(f'the tokenizer of "{name}" cannot pad, so the model is not a text encoder') from error
    lengths = batch["attention_mask"].sum(dim=1)
    if int(lengths.max()) > limit:
        text = texts[int(lengths.argmax())]
        raise FedBMError(
            f'"{text[:60]}…" has {int(lengths.max())} tokens, but "{name}" reads at most {limit}; shorten the concept'
        )
    return batch


def require_transformers() -> Any:
    try:
        return import_module("transformers")
    except ImportError as error:
        raise FedBMError('encoding texts needs transformers: pip install "fedbm[text]"') from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the progress bars and log messages of transformers; restore both afterwards."""
    logging = require_transformers().utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def weight_files(folder: Path, pooling: str) -> list[Path]:
    """Return the weight files of *folder*, all of the preferred kind that exists, or []."""
    kinds = (sorted(folder.glob(pattern)) for pattern in _WEIGHTS[pooling])
    return next((found for found in kinds if found), [])


def check_folder(folder: Path, pooling: str) -> Path:
    """Return *folder*; raise FedBMError if it does not contain weights and a vocabulary."""
    if not folder.is_dir():
        raise FedBMError(f"the folder {folder} does not exist; give the folder of the language model")
    if not weight_files(folder, pooling):
        wanted = join_words(_WEIGHTS[pooling]).replace("*", "")
        raise FedBMError(f"{folder} does not contain a language model: {wanted} is missing")
    # Without a vocabulary transformers creates an empty one and reads every word as unknown.
    if not any(next(folder.glob(pattern), None) for pattern in _VOCABULARIES):
        raise FedBMError(f"{folder} does not contain a tokenizer: {join_words(_VOCABULARIES)} is missing")
    return folder


def fetch(hub: str, pooling: str) -> Path:
    """Return the folder of the model *hub* ("owner/name") in the Hugging Face cache; download it if necessary."""
    require_transformers()  # huggingface_hub is installed with it
    download = import_module("huggingface_hub").snapshot_download
    failure: Exception | None = None
    for cached in (True, False):
        for weights in _WEIGHTS[pooling]:
            try:
                found = download(hub, allow_patterns=[*_SMALL_FILES, weights], local_files_only=cached)
            except Exception as error:  # hub, proxy, disk and network raise different errors with the same remedy
                failure = error
                continue
            if weight_files(Path(found), pooling):
                return Path(found)
    raise FedBMError(
        f'cannot download "{hub}" from Hugging Face, and it is not in the cache; check the name and the network, '
        "or give a downloaded copy by --encoder-dir, or saved concepts by --concept-file"
    ) from failure
