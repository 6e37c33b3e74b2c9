"""Small random language models with the architecture and file layout of the published ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

WORDS = ["image", "photo", "of", "the", "shows", "a", "polyp", "cell", "macular", "hole", "##s"]
TEXTS = ["polyp", "the photo shows a macular hole", "image of cells", "cell"]  # of different lengths: padded
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def save_wordpiece(folder: Path) -> None:
    """Write the tokenizer files of uncased BERT models: vocab.txt and its settings."""
    (folder / "vocab.txt").write_text("\n".join(BERT_SPECIAL + WORDS) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 40}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def save_bytelevel(folder: Path) -> None:
    """Write the tokenizer files of RoBERTa: a byte-level BPE in tokenizer.json."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(str(folder))


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


def perturb(model: Any, seed: int) -> Any:
    """Replace all weights and biases by large random values, so that every one of them matters."""
    rng = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=rng))
    return model.eval()
