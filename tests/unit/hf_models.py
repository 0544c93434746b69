"""Small Hugging Face directories for tests, made with the libraries that real ones are made with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

BERT = [
    "[PAD]",
    "[unused0]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "house",
    "un",
    "##believ",
    "##able",
    "!",
    "##s",
]


BERT_EMBEDDING = "bert.embeddings.word_embeddings.weight"


TEXT = ["the house is old", "für die Häuser", "the old houses are big", "日本 语 the house", "der große Hund läuft"] * 4


def table(rows: int, dim: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


def save_weights(directory: Path, name: str, matrix: np.ndarray, **others: np.ndarray) -> None:
    directory.mkdir(exist_ok=True)
    from safetensors.numpy import save_file

    save_file({name: matrix, **others}, directory / "model.safetensors")


def bert(directory: Path, matrix: np.ndarray | None = None, vocabulary: list[str] = BERT) -> np.ndarray:
    matrix = table(len(vocabulary)) if matrix is None else matrix
    position = table(len(vocabulary) + 7, matrix.shape[1], 1)
    save_weights(directory, BERT_EMBEDDING, matrix, **{"bert.embeddings.position_embeddings.weight": position})
    (directory / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return matrix


def gpt2(directory: Path) -> tuple[np.ndarray, object]:
    directory.mkdir(exist_ok=True)
    import tokenizers

    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXT, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    trained.save_model(str(directory))
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    (directory / "special_tokens_map.json").write_text(json.dumps(special))
    matrix = table(trained.get_vocab_size())
    save_weights(directory, "transformer.wte.weight", matrix)
    return matrix, trained


def sentencepiece_model(file: Path, **options) -> object:
    import sentencepiece

    with open(file, "wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT), model_writer=stream, vocab_size=45, hard_vocab_limit=False, **options
        )
    processor = sentencepiece.SentencePieceProcessor()
    processor.load(str(file))
    return processor
