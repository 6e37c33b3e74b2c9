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
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedbm.errors import FedBMError, did_you_mean, join_words, shorten_list
from fedbm.language.encoders.biomedclip import load_tower
from fedbm.utils.io import sha256_file
from fedbm.utils.seeds import seeded_modules

BATCH = 64
_TRANSFORMERS_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
# Pooling → names of weight files, in order of preference.
_WEIGHTS = {
    "mean": _TRANSFORMERS_WEIGHTS,
    "cls": _TRANSFORMERS_WEIGHTS,
    "biomedclip": ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
}
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_SMALL_FILES = ("*.json", "*.txt", "*.model")  # configuration and vocabulary


class Encoder(NamedTuple):
    """A language model and its pooling."""

    name: str
    hub: str
    pooling: str


_KNOWN = (
    Encoder("minilm", "sentence-transformers/all-MiniLM-L6-v2", "mean"),
    Encoder("bert", "bert-base-uncased", "mean"),
    Encoder("roberta", "roberta-base", "mean"),
    Encoder("biomedclip", "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224", "biomedclip"),
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
    chosen = find_encoder(encoder, folder, pooling)
    transformers = require_transformers()
    place = Path(folder or fetch(chosen.hub, chosen.pooling))
    weights = find_files(place, chosen.pooling)
    # Building a model draws random weights before the saved ones replace them; keep the caller's generator unchanged.
    with quiet_transformers(), seeded_modules(0, "encoder"), torch.no_grad():
        try:
            rows = _encode_batches(texts, chosen, place, weights)
        except FedBMError:
            raise
        except Exception as error:  # for a damaged file or another architecture, libraries raise many kinds of errors
            problem = f"{type(error).__name__}: {error}"
            raise FedBMError(f"the model in {place} cannot be used as a text encoder ({problem})") from error
    return normalize(torch.cat(rows).float(), dim=1), {
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
    if pooling is not None and pooling not in _WEIGHTS:
        near = did_you_mean(pooling, _WEIGHTS)
        raise FedBMError(f'unknown pooling "{pooling}"{near}; choose {join_words(_WEIGHTS)}')
    known = next((encoder for encoder in _KNOWN if name in (encoder.name, encoder.hub)), Encoder(name, name, "mean"))
    if known not in _KNOWN and folder is None and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        raise FedBMError(
            f'unknown encoder "{name}"{did_you_mean(name.lower(), ENCODERS)}; choose {join_words(ENCODERS)}, '
            'or give a Hugging Face id ("owner/name") or the folder of a model'
        )
    return known._replace(pooling=pooling) if pooling else known


def _encode_batches(texts: Sequence[str], encoder: Encoder, folder: Path, weights: list[Path]) -> list[Tensor]:
    """Return the vectors of each batch. Raise FedBMError for a text that is too long; never truncate it."""
    load = require_transformers().AutoTokenizer.from_pretrained
    tokenizer = load(str(folder), local_files_only=True, padding_side="right")
    if encoder.pooling == "biomedclip":
        read, limit = load_tower(tokenizer, weights[0])
    else:
        read, limit = _load_model(tokenizer, folder, encoder.pooling)
    rows = []
    for start in range(0, len(texts), BATCH):
        some = list(texts[start : start + BATCH])
        batch = dict(tokenizer(some, padding=True, truncation=False, return_tensors="pt"))
        lengths = batch["attention_mask"].sum(dim=1)
        if int(lengths.max()) > limit:
            raise FedBMError(
                f'"{some[int(lengths.argmax())][:60]}…" has {int(lengths.max())} tokens, but "{encoder.name}" reads at '
                f"most {limit}; shorten the concept"
            )
        rows.append(read(batch))
    return rows


def _load_model(tokenizer: Any, folder: Path, pooling: str) -> tuple[Reader, int]:
    """Return a function that encodes a tokenised batch, and the largest number of tokens it accepts."""
    load = require_transformers().AutoModel.from_pretrained
    model, info = load(str(folder), local_files_only=True, output_loading_info=True)
    # transformers replaces missing weights by random ones. Only the pooler may be missing, because it is not used.
    if missing := sorted(key for key in info["missing_keys"] if not key.startswith("pooler.")):
        raise FedBMError(f"weights are missing in {folder}: {shorten_list(missing, 1)}")
    model.float().eval()

    def read(batch: dict[str, Tensor]) -> Tensor:
        hidden: Tensor = model(**batch).last_hidden_state
        return hidden[:, 0] if pooling == "cls" else masked_mean(hidden, batch["attention_mask"])

    return read, min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 512))


def masked_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return Σ_t m_t h_t / Σ_t m_t for hidden states [n,T,D] and a 0/1 mask [n,T]."""
    weights = mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


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


def find_files(folder: Path, pooling: str) -> list[Path]:
    """Return the weight files of *folder*, all of one kind; raise FedBMError if there are none or no vocabulary.

    Without a vocabulary transformers creates an empty one and reads every word as unknown.
    """
    kinds = (sorted(folder.glob(pattern)) for pattern in _WEIGHTS[pooling])
    weights = next((found for found in kinds if found), [])
    if not weights or not any(next(folder.glob(pattern), None) for pattern in _VOCABULARIES):
        raise FedBMError(
            f"{folder} is not the folder of a language model, which contains weights ({join_words(_WEIGHTS[pooling])}) "
            f"and a vocabulary ({join_words(_VOCABULARIES)})"
        )
    return weights


def fetch(hub: str, pooling: str) -> Path:
    """Return the folder of the model *hub* ("owner/name") in the Hugging Face cache; download it if necessary."""
    download = import_module("huggingface_hub").snapshot_download  # it is installed with transformers
    for cached in (True, False):
        for weights in _WEIGHTS[pooling]:
            with suppress(Exception):  # hub, proxy, disk and network raise different errors with the same remedy
                found = Path(download(hub, allow_patterns=[*_SMALL_FILES, weights], local_files_only=cached))
                find_files(found, pooling)
                return found
    raise FedBMError(
        f'cannot download "{hub}" from Hugging Face, and it is not in the cache; check the name and the network, '
        "or give a downloaded copy by --encoder-dir, or saved concepts by --concept-file"
    )
