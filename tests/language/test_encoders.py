"""Encoding with small random checkpoints of each architecture and file layout."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import SIZES, TEXTS, perturb, save_bytelevel, save_wordpiece
from torch import Tensor

from fedbm.errors import FedBMError
from fedbm.language.concept_distribution import build_concepts
from fedbm.language.encoders.encode import ENCODERS, encode, find_encoder, masked_mean
from fedbm.utils.io import sha256_file


@pytest.fixture(scope="module")
def bert(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-bert")
    config = transformers.BertConfig(vocab_size=16, max_position_embeddings=40, **SIZES)
    perturb(transformers.BertModel(config), 1).save_pretrained(str(folder))
    save_wordpiece(folder)
    return folder


@pytest.fixture(scope="module")
def roberta(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-roberta")
    config = transformers.RobertaConfig(vocab_size=280, max_position_embeddings=66, **SIZES)
    # As published, RoBERTa's checkpoint has no pooler.
    perturb(transformers.RobertaModel(config, add_pooling_layer=False), 2).save_pretrained(str(folder))
    save_bytelevel(folder)
    return folder


def read_one(model: Any, tokenizer: Any, text: str) -> Tensor:
    """Return the last hidden states [T, D] of a single text, without padding."""
    with torch.no_grad():
        return model(**tokenizer([text], return_tensors="pt")).last_hidden_state[0]


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_mean_and_cls_pooling_equal_a_plain_loop(kind: str, transformers: Any, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(kind)
    model = transformers.AutoModel.from_pretrained(str(folder)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    states = [read_one(model, tokenizer, text) for text in TEXTS]
    assert len({len(state) for state in states}) > 1, "the texts must need padding"
    means, firsts = [], []
    for state in states:
        total = torch.zeros(32)
        for token in state:
            total += token
        means.append(total / total.norm())  # the count cancels in the normalisation
        firsts.append(state[0] / state[0].norm())
    mean, _ = encode(TEXTS, "own", folder)
    cls, made_by = encode(TEXTS, "own", folder, pooling="cls")
    torch.testing.assert_close(mean, torch.stack(means), atol=1e-5, rtol=0)
    torch.testing.assert_close(cls, torch.stack(firsts), atol=1e-5, rtol=0)
    assert made_by["pooling"] == "cls"


def test_masked_mean_by_hand() -> None:
    hidden = torch.tensor([[[1.0, 2], [3, 6], [100, 100]]])
    assert masked_mean(hidden, torch.tensor([[1, 1, 0]])).tolist() == [[2.0, 4.0]]


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_an_embedding_does_not_depend_on_the_batch(kind: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(kind)
    alone, _ = encode(["polyp"], "own", folder)
    padded, _ = encode(["polyp", *(["the photo shows a macular hole"] * 70)], "own", folder)  # two batches
    assert padded.shape == (71, 32)
    torch.testing.assert_close(padded[:1], alone, atol=1e-6, rtol=0)
    torch.testing.assert_close(padded.norm(dim=1), torch.ones(71))


def test_provenance_names_model_weights_and_versions(bert: Path, transformers: Any) -> None:
    _, made_by = encode(["polyp"], "own", bert)
    assert made_by == {
        "encoder": "own",
        "model": bert.name,
        "revision": None,
        "weights": {"model.safetensors": sha256_file(bert / "model.safetensors")},
        "pooling": "mean",
        "transformers": transformers.__version__,
        "torch": str(torch.__version__),
    }
    assert json.loads(json.dumps(made_by)) == made_by


def test_a_folder_needs_no_network_and_changes_no_global_state(
    roberta: Path, transformers: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    random, level = torch.get_rng_state(), transformers.utils.logging.get_verbosity()
    bars = transformers.utils.logging.is_progress_bar_enabled()
    first, _ = encode(TEXTS, "own", roberta)
    second, _ = encode(TEXTS, "own", roberta)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), random)
    assert transformers.utils.logging.get_verbosity() == level
    assert transformers.utils.logging.is_progress_bar_enabled() == bars
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def offline_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def test_a_cached_model_is_found_by_its_id(bert: Path, offline_cache: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    model = offline_cache / "models--owner--tiny"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(commit)
    shutil.copytree(bert, model / "snapshots" / commit)
    found, made_by = encode(["polyp"], "owner/tiny")
    assert torch.equal(found, encode(["polyp"], "own", bert)[0])
    assert (made_by["encoder"], made_by["model"], made_by["revision"]) == ("owner/tiny", "owner/tiny", commit)


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize("name", ["bert", "biomedclip", "owner/unknown"])
def test_offline_and_not_cached_is_refused(name: str, offline_cache: Path) -> None:
    with pytest.raises(FedBMError, match=r"not in the cache; check the name .* by --encoder-dir, .* by --concept-file"):
        encode(["polyp"], name)


def test_encoders_are_found_by_name() -> None:
    assert find_encoder("minilm").hub == "sentence-transformers/all-MiniLM-L6-v2"
    assert find_encoder("bert-base-uncased") == ENCODERS["bert"]
    assert find_encoder("roberta", pooling="cls").pooling == "cls"
    assert find_encoder("owner/name").pooling == "mean"
    with pytest.raises(FedBMError, match='"minlm" \\(did you mean "minilm"\\?\\)'):
        find_encoder("minlm")
    with pytest.raises(FedBMError, match='did you mean "mean"'):
        find_encoder("minilm", pooling="meen")


def test_wrong_folders_are_refused(bert: Path, tmp_path: Path) -> None:
    def refused(folder: Path, words: str, encoder: str = "own") -> None:
        with pytest.raises(FedBMError, match=words):
            encode(["polyp"], encoder, folder)

    def copy(name: str) -> Path:
        shutil.copytree(bert, tmp_path / name)
        return tmp_path / name

    refused(tmp_path / "nowhere", "nowhere is not the folder of a language model")
    refused(tmp_path, r"which contains weights .model\*.safetensors or pytorch_model\*.bin. and a vocabulary")
    refused(bert, "weights .open_clip_model.safetensors or open_clip_pytorch_model.bin.", "biomedclip")
    (copy("no-vocabulary") / "vocab.txt").unlink()
    refused(tmp_path / "no-vocabulary", "and a vocabulary .tokenizer.json, vocab.txt")
    (copy("no-config") / "config.json").write_text("{}")
    refused(tmp_path / "no-config", "no-config cannot be used as a text encoder")
    (copy("bad-tokenizer") / "tokenizer.json").write_text("{}")
    refused(tmp_path / "bad-tokenizer", "bad-tokenizer cannot be used as a text encoder")
    gap = copy("gap") / "model.safetensors"
    state = load_file(gap)
    del state["encoder.layer.1.output.dense.weight"]
    save_file(state, str(gap), {"format": "pt"})
    refused(tmp_path / "gap", "weights are missing .* encoder.layer.1.output.dense.weight")


def test_long_texts_are_refused_not_truncated(bert: Path) -> None:
    encode(["cell " * 38], "own", bert)
    with pytest.raises(FedBMError, match='has 41 tokens, but "own" reads at most 40; shorten'):
        encode(["polyp", "cell " * 39], "own", bert)


def test_without_transformers_the_error_says_how_to_install_it(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(FedBMError, match='pip install "fedbm\\[text\\]"'):
        encode(["polyp"], "own", bert)


def test_build_concepts_encodes_the_prompts(bert: Path) -> None:
    concepts = build_concepts(["p", "h"], ["polyp", "macular hole"], "cell", "own", bert)
    assert concepts.embeddings.shape == (2, 24, 32)
    assert concepts.provenance["prompts"][2] == "cell image of {c}"
    expected, _ = encode(["cell image of macular hole"], "own", bert)
    torch.testing.assert_close(concepts.embeddings[1, 2], expected[0], atol=1e-6, rtol=0)
