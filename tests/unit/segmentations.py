"""Segmentations of subword-nmt and sentencepiece, learned on made-up text, for the tests of grown and trimmed ones."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import strategies as st
from subword_nmt.learn_bpe import learn_bpe

from embinit_fairseq.vocab.segmentation import Segmentation, Sentencepiece, SubwordNmt

SYLLABLES = "ba de ki lo mu na".split()
KINDS = ("codes", "unigram", "bpe")
words = st.lists(st.sampled_from(SYLLABLES), min_size=1, max_size=5).map("".join)


def sentences(seed: int, count: int) -> list[str]:
    generator = random.Random(seed)
    made = ["".join(generator.choices(SYLLABLES, k=generator.randint(1, 4))) for _ in range(60)]
    return [" ".join(generator.choices(made, k=6)) for _ in range(count)]


TRAINING, NEW_TEXT = sentences(0, 300), sentences(1, 60)


def train(path: Path, kind: str, **more) -> Path:
    """Train sentencepiece on TRAINING."""
    options = {"hard_vocab_limit": False, "minloglevel": 3, "model_type": kind, "vocab_size": 50, **more}
    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TRAINING), model_writer=file, **options)
    return path


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> dict[str, Path]:
    """A file per kind of segmentation."""
    folder = tmp_path_factory.mktemp("segmentation")
    paths = {kind: train(folder / kind, kind) for kind in ("unigram", "bpe", "word", "char")}
    paths["bytes"] = train(folder / "bytes", "unigram", byte_fallback=True, vocab_size=300)
    paths["codes"] = folder / "codes"
    with open(paths["codes"], "w") as codes:
        learn_bpe(io.StringIO("\n".join(TRAINING)), codes, 30)
    return paths


def opened(files: dict[str, Path], kind: str) -> Segmentation:
    return SubwordNmt(str(files[kind])) if kind == "codes" else Sentencepiece(str(files[kind]))


def mark_of(kind: str) -> str:
    """Return what a symbol begins with that begins a word."""
    return "" if kind == "codes" else "▁"


def subwords_of(segmentation: Segmentation, lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(subword for line in lines for subword in segmentation.segment(line)))
