"""Find the folder of a language model: a given one, or one in the Hugging Face cache.

A cached model is used without the network, so a run can be repeated offline.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError, join_words

# Pooling → names of weight files, in order of preference.
_WEIGHTS = {
    "mean": ("model*.safetensors", "pytorch_model*.bin"),
    "cls": ("model*.safetensors", "pytorch_model*.bin"),
    "biomedclip": ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
}
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_SMALL_FILES = ("*.json", "*.txt", "*.model")  # configuration and vocabulary


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
