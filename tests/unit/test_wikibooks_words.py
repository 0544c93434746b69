"""scripts/wikibooks: counts of words over many files, the most frequent ones, BPE of words."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from wikibooks import encode, words
from wikibooks.joining import join_short

counters = st.lists(st.dictionaries(st.text("abé𝒳﷐z", min_size=1, max_size=3), st.integers(1, 9)), max_size=9)


@settings(max_examples=40, deadline=None)
@given(counters, st.integers(2, 4))
def test_merged_files_are_the_sum_of_all(tmp_path_factory, shards: list[dict[str, int]], at_once: int) -> None:
    folder = tmp_path_factory.mktemp("counts")
    for number, shard in enumerate(shards):
        words.write_counts(shard, folder / f"{number:05}.txt")
    expected: Counter[str] = Counter()
    for shard in shards:
        expected.update(shard)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "MERGED_AT_ONCE", at_once)
        histogram = words.merge_files(sorted(folder.glob("0*.txt")), folder / "all.txt")
    found = list(words.read_counts(folder / "all.txt"))
    assert found == sorted(expected.items())
    assert histogram == Counter(expected.values())


@given(st.dictionaries(st.text("abcd", min_size=1, max_size=3), st.integers(1, 4)), st.integers(0, 40))
def test_the_most_frequent_words_are_those_of_a_sorted_list(counts: dict[str, int], wanted: int) -> None:
    chosen = words.MostFrequent(Counter(counts.values()), wanted)
    found = {word for word in sorted(counts) if chosen.takes(counts[word])}
    assert found == set(sorted(counts, key=lambda word: (-counts[word], word))[:wanted])


def test_rare_words_are_unknown_and_bpe_learns_from_frequent_ones(tmp_path: Path, monkeypatch) -> None:
    counts = {f"w{number:03}": 1 + 1000 // (number + 1) for number in range(100)}
    (tmp_path / "clean" / "00000").mkdir(parents=True)
    words.write_counts(counts, tmp_path / "clean" / "00000" / "words.txt")
    monkeypatch.setattr(sys, "argv", ["words", "--work", str(tmp_path), "--frequent", "0.219", "--bpe-words", "5"])
    words.main()
    known = words.WordSet(tmp_path / "words" / "frequent.npy")
    assert {word for word in counts if word in known} == {f"w{number:03}" for number in range(21)}
    assert "other" not in known
    assert dict(words.read_counts(tmp_path / "words" / "bpe.txt")) == {f"w{n:03}": counts[f"w{n:03}"] for n in range(5)}
    stats = json.loads((tmp_path / "words" / "stats.json").read_text())
    assert stats == {"word_types": 100, "words": sum(counts.values()), "frequent_types": 21}


@pytest.fixture(scope="module")
def codes(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bpe") / "codes"
    with open(path, "w", encoding="utf-8") as file:
        learn_bpe(io.StringIO("lower lowest newer newest wide\n" * 5), file, 12)
    return path


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from("lower lowest newer slower wider x <url> <file> <email> <unk>".split()), min_size=1))
def test_pieces_are_those_of_subword_nmt_with_whole_symbols(codes: Path, sentence: list[str]) -> None:
    with open(codes, encoding="utf-8") as file:
        bpe = BPE(file, glossaries=["<url>", "<file>", "<email>", "<unk>"])
    encoder = encode.Encoder(codes, None)
    assert " ".join(map(encoder, sentence)) == bpe.segment(" ".join(sentence))


def test_the_memory_of_words_is_bounded(codes: Path, monkeypatch) -> None:
    monkeypatch.setattr(encode, "REMEMBERED", 20)
    encoder, fresh = encode.Encoder(codes, None), encode.Encoder(codes, None)
    for number in range(100):
        assert encoder(f"low{number}") == fresh(f"low{number}")
        assert len(encoder._known) <= 21
        assert len(encoder._bpe.cache) <= 21
    assert encoder("<url>") == "<url>"


def test_a_shard_is_encoded_document_by_document(codes: Path, tmp_path: Path) -> None:
    text = {"train": "the lower\nwidest of lower lower wide\n\nrare <url>\n\n", "valid": "newest\n\n"}
    shard = tmp_path / "clean" / "00007"
    shard.mkdir(parents=True)
    for split, content in text.items():
        (shard / f"{split}.txt").write_text(content)
    digests = np.array([words._digest(word) for word in ("lower", "wide", "newest")], dtype=np.uint64)
    np.save(tmp_path / "frequent.npy", np.sort(digests))
    encode.encode_shard(shard, tmp_path / "encoded", codes, tmp_path / "frequent.npy")
    output = tmp_path / "encoded" / "00007"
    encoder = encode.Encoder(codes, tmp_path / "frequent.npy")
    assert encoder("rare") == "<unk>"
    for split, content in text.items():
        documents = [[line.split() for line in part.splitlines()] for part in content.split("\n\n") if part]
        lines = [[" ".join(map(encoder, sentence)) for sentence in join_short(document)] for document in documents]
        assert (output / f"{split}.txt").read_text() == "".join("\n".join(part) + "\n\n" for part in lines)
    tokens = (output / "train.txt").read_text().split()
    assert dict(words.read_counts(output / "symbols.txt")) == Counter(tokens)
    stats = json.loads((output / "stats.json").read_text())
    assert (stats["train_documents"], stats["train_sentences"], stats["train_tokens"]) == (2, 2, len(tokens))
    assert stats["train_unknown"] == 4
