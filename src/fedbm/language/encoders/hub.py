"""Language models as folders: given ones, or those of the Hugging Face cache.

A cached model is used without asking the network, so a run repeats where the network is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError, join_words

# What can hold the weights, in the order in which it is looked for.
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_BIOMEDCLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_SMALL_FILES = (
    *_VOCABULARIES,
    "merges.txt",
    "config.json",
    "open_clip_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "*.index.json",
)


def require_transformers() -> Any:
    try:
        return import_module("transformers")
    except ImportError as error:
        raise FedBMError('encoding texts needs transformers: pip install "fedbm[text]"') from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no log lines of transformers inside; both as they were afterwards."""
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
    """The files of *folder* that hold the weights, of the first kind that is there, or []."""
    kinds = (sorted(folder.glob(pattern)) for pattern in _weight_patterns(pooling))
    return next((found for found in kinds if found), [])


def check_folder(folder: Path, pooling: str) -> Path:
    """*folder*, if it holds weights and a vocabulary."""
    if not folder.is_dir():
        raise FedBMError(f"there is no folder {folder}; give the folder that holds the language model")
    if not weight_files(folder, pooling):
        wanted = join_words(_weight_patterns(pooling)).replace("*", "")
        raise FedBMError(f"{folder} holds no language model: it lacks {wanted}")
    # Without a vocabulary transformers makes an empty one and reads every word as unknown.
    if not any(next(folder.glob(pattern), None) for pattern in _VOCABULARIES):
        raise FedBMError(f"{folder} holds no tokenizer: it lacks {join_words(_VOCABULARIES)}")
    return folder


def fetch(hub: str, pooling: str) -> Path:
    """The folder of the model *hub* ("owner/name") in the Hugging Face cache, filled first if need be."""
    require_transformers()  # brings huggingface_hub with it
    download = import_module("huggingface_hub").snapshot_download
    failure: Exception | None = None
    for cached in (True, False):
        for weights in _weight_patterns(pooling):
            try:
                found = download(hub, allow_patterns=[*_SMALL_FILES, weights], local_files_only=cached)
            # Hub, proxy, disk and network each raise their own kind; the user's way out is the same for all.
            except Exception as error:
                failure = error
                continue
            if weight_files(Path(found), pooling):
                return Path(found)
    raise FedBMError(
        f'cannot get "{hub}" from Hugging Face and it is not cached; check the name and the network, '
        "or give the folder of a downloaded copy by --encoder-folder, or saved concepts by --concept-file"
    ) from failure


def revision(folder: Path) -> str | None:
    """The commit hash, by which the Hugging Face cache names a folder; None for any other folder."""
    return folder.name if re.fullmatch(r"[0-9a-f]{40}", folder.name) else None


def _weight_patterns(pooling: str) -> tuple[str, ...]:
    return _BIOMEDCLIP_WEIGHTS if pooling == "biomedclip" else _WEIGHTS
