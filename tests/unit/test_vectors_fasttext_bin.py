"""fastText's binary models. Oracles: fastText and gensim where installed, a naive n-gram loop, hand-made files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import DimensionError, OptionError, VectorFileError
from embinit_fairseq.vectors.fasttext_bin import FastTextBinary, ngram_buckets
from embinit_fairseq.vectors.table import Wanted

FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SENTENCES = ["der große Hund läuft über die Straße", "日本 語 a 🦑🦑 Häuser", "the house is a big house"] * 5
UNKNOWN = ["Hunde", "Überstraße", "日本語", "🦑", "ab", "b", "", "</s>"]


def naive_buckets(word: str, minn: int, maxn: int, bucket: int) -> list[int]:
    """fastText's rule, character by character, with Python's integers."""
    text = f"<{word}>"
    found = []
    for start in range(len(text)):
        for end in range(start + 1, min(start + maxn, len(text)) + 1):
            if end - start < minn or (end - start == 1 and (start == 0 or end == len(text))):
                continue
            value = 2166136261
            for byte in text[start:end].encode():
                signed = byte - 256 if byte > 127 else byte
                value = ((value ^ (signed & 0xFFFFFFFF)) * 16777619) & 0xFFFFFFFF
            found.append(value % bucket)
    return found


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=5),
    st.integers(0, 4),
    st.integers(0, 7),
    st.integers(1, 3_000_000_000),
)
def test_buckets_equal_a_naive_loop(words, minn, maxn, bucket):
    owner, buckets = ngram_buckets(words, minn, maxn, bucket)
    assert owner.tolist() == sorted(owner.tolist())
    for index, word in enumerate(words):
        assert sorted(buckets[owner == index].tolist()) == sorted(naive_buckets(word, minn, maxn, bucket))


def test_fnv_1a_by_its_published_values():
    # one-byte and six-byte strings of the FNV authors' test vectors (32-bit FNV-1a): "a" and "foobar"
    inside = ngram_buckets(["a"], 1, 1, 2**32 - 1)[1].tolist()
    assert inside == [0xE40C292C]
    assert 0xBF9CF968 in ngram_buckets(["foobar"], 6, 6, 2**32 - 1)[1].tolist()


def head(dim: int, words: int, bucket: int, minn: int = 2, maxn: int = 3, labels: int = 0, **other: int) -> bytes:
    args = (dim, 5, 5, 1, 5, 1, 2, other.get("model", 2), bucket, minn, maxn, 100)
    counts = (words + labels, words, labels, 99, other.get("pruned", -1))
    magic = (other.get("magic", 793712314), other.get("version", 12))
    return struct.pack("<2i12id3i2q", *magic, *args, 1e-4, *counts)


def model(words: list[bytes], matrix: np.ndarray, pairs: tuple = (), quantised: bool = False, **options: int) -> bytes:
    """A file as fastText writes it: head, dictionary, kept buckets, flag, matrix, (something else)."""
    labels = [b"__label__x"] * options.get("labels", 0)
    bucket = options.pop("bucket", len(matrix) - len(words))
    content = head(matrix.shape[1], len(words), bucket, **options)
    for word in words:
        content += word + b"\0" + struct.pack("<qb", 7, 0)
    for label in labels:
        content += label + b"\0" + struct.pack("<qb", 7, 1)
    for pair in pairs:
        content += struct.pack("<2i", *pair)
    return content + struct.pack("<?2q", quantised, *matrix.shape) + matrix.astype("<f4").tobytes() + b"output"


def numbers(rows: int, dim: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


def write(directory: Path, content: bytes) -> str:
    file = directory / "model.bin"
    file.write_bytes(content)
    return str(file)


def expected(matrix: np.ndarray, words: list[str], word: str, minn: int = 2, maxn: int = 3) -> np.ndarray:
    rows = [words.index(word)] if word in words else []
    bucket = len(matrix) - len(words)
    return matrix[rows + [len(words) + n for n in naive_buckets(word, minn, maxn, bucket)]].mean(axis=0)


def test_words_and_unknown_words_by_hand(tmp_path):
    words = ["haus", "über", "a"]
    matrix = numbers(3 + 11)
    source = FastTextBinary(write(tmp_path, model([w.encode() for w in words], matrix)), dim=3)
    table = source.read()
    assert table.words == words
    assert (table.origin.rows, table.origin.dim, table.specials) == (3, 3, {})
    for word, row in zip(words, table.matrix):
        np.testing.assert_allclose(row, expected(matrix, words, word), rtol=1e-5, atol=1e-6)
    composed = source.compose(["hausa", "ü"])
    for word, row in composed.items():
        np.testing.assert_allclose(row, expected(matrix, words, word), rtol=1e-5, atol=1e-6)
    assert set(composed) == {"hausa", "ü"}
    assert source.read(Wanted(folded=frozenset({"a"}))).words == ["a"]
    assert FastTextBinary(source.path).compose(["hausa"])["hausa"].tolist() == composed["hausa"].tolist()


def test_more_words_than_one_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr("embinit_fairseq.vectors.fasttext_bin._CHUNK", 2)
    words = ["a", "bb", "ccc", "dddd", "eeeee"]
    matrix = numbers(5 + 7)
    source = FastTextBinary(write(tmp_path, model([w.encode() for w in words], matrix)))
    for word, row in zip(words, source.read().matrix):
        np.testing.assert_allclose(row, expected(matrix, words, word), rtol=1e-5, atol=1e-6)
    assert set(source.compose(["ab", "", "cd", "ef", "\udc80"])) == {"ab", "", "cd", "ef"}  # "" has the n-gram "<>"


def test_the_end_of_sentence_has_its_own_row_only(tmp_path):
    matrix = numbers(2 + 5)
    source = FastTextBinary(write(tmp_path, model([b"</s>", b"x"], matrix)))
    np.testing.assert_array_equal(source.read(Wanted.words(["</s>"])).matrix, matrix[:1])
    assert source.compose(["</s>"]) == {}


def test_labels_are_no_words(tmp_path):
    matrix = numbers(2 + 4)
    source = FastTextBinary(write(tmp_path, model([b"x", b"y"], matrix, labels=2, model=3)))
    assert source.read().words == ["x", "y"]


def test_version_11_classifiers_have_no_ngrams(tmp_path):
    matrix = numbers(2 + 4)
    source = FastTextBinary(write(tmp_path, model([b"x", b"y"], matrix, version=11, model=3)))
    np.testing.assert_array_equal(source.read().matrix, matrix[:2])


@pytest.mark.parametrize("options", [{"maxn": 0}, {"bucket": 0}])
def test_a_model_without_ngrams(tmp_path, options):
    matrix = numbers(2)
    source = FastTextBinary(write(tmp_path, model([b"x", b"y"], matrix, **{"bucket": 0, **options})))
    np.testing.assert_array_equal(source.read().matrix, matrix)
    with pytest.raises(OptionError, match=r"-maxn 0.*--embed-init-oov"):
        source.compose(["z"])


def test_pruned_buckets(tmp_path):
    kept = naive_buckets("ab", 2, 2, 1000)[1:]  # of <a, ab, b> the first was pruned
    matrix = numbers(1 + 2)
    pairs = ((kept[0], 1), (kept[1], 0))
    content = model([b"ab"], matrix, pairs, bucket=1000, minn=2, maxn=2, pruned=2)
    source = FastTextBinary(write(tmp_path, content))
    np.testing.assert_allclose(source.read().matrix[0], matrix.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(source.compose(["xb"])["xb"], matrix[1], rtol=1e-6)  # only "b>"
    with pytest.raises(VectorFileError, match="outside"):
        FastTextBinary(write(tmp_path, content.replace(struct.pack("<2i", *pairs[0]), struct.pack("<2i", 0, 9)))).read()
    nothing = FastTextBinary(write(tmp_path, model([b"ab"], matrix[:1], bucket=1000, pruned=0)))
    np.testing.assert_array_equal(nothing.read().matrix, matrix[:1])


@pytest.mark.parametrize(("minn", "maxn"), [(3, 6), (1, 2), (2, 4), (0, 0)])
def test_fasttext_agrees(tmp_path, minn, maxn):
    fasttext = pytest.importorskip("fasttext")
    (tmp_path / "text").write_text("\n".join(SENTENCES), encoding="utf-8")
    options = {"dim": 6, "minCount": 1, "bucket": 301, "epoch": 1, "thread": 1, "verbose": 0}
    trained = fasttext.train_unsupervised(str(tmp_path / "text"), minn=minn, maxn=maxn, **options)
    trained.save_model(str(tmp_path / "model.bin"))
    source = FastTextBinary(str(tmp_path / "model.bin"))
    table = source.read()
    assert table.words == trained.get_words()
    for word, row in zip(table.words, table.matrix):
        np.testing.assert_allclose(row, trained.get_word_vector(word), rtol=1e-5, atol=1e-7)
    if maxn:
        for word, row in source.compose(UNKNOWN).items():
            if word not in trained.words:
                np.testing.assert_allclose(row, trained.get_word_vector(word), rtol=1e-5, atol=1e-7)


def test_a_quantised_model_of_fasttext(tmp_path):
    fasttext = pytest.importorskip("fasttext")
    lines = [f"__label__{n % 2} {sentence}" for n, sentence in enumerate(SENTENCES * 100)]
    (tmp_path / "text").write_text("\n".join(lines), encoding="utf-8")
    options = {"dim": 4, "minn": 2, "maxn": 3, "bucket": 400, "epoch": 1, "thread": 1, "verbose": 0}
    trained = fasttext.train_supervised(str(tmp_path / "text"), **options)
    trained.quantize(input=str(tmp_path / "text"), cutoff=260, verbose=0)
    trained.save_model(str(tmp_path / "model.ftz"))
    with pytest.raises(VectorFileError, match="quantised"):
        FastTextBinary(str(tmp_path / "model.ftz")).read()


def test_gensim_agrees(tmp_path):
    gensim = pytest.importorskip("gensim.models.fasttext")
    sentences = [sentence.split() for sentence in SENTENCES]
    trained = gensim.FastText(sentences, vector_size=5, min_count=1, epochs=1, bucket=200, seed=1, workers=1)
    path = str(tmp_path / "model.bin")
    gensim.save_facebook_model(trained, path)
    source = FastTextBinary(path)
    table = source.read()
    reference = gensim.load_facebook_vectors(path)
    assert table.words == reference.index_to_key
    np.testing.assert_allclose(table.matrix, reference.vectors, rtol=1e-5, atol=1e-7)
    words = [word for word in UNKNOWN if word and word != "</s>"]
    composed = source.compose(words)
    assert len(composed) > 2
    for word, row in composed.items():
        np.testing.assert_allclose(row, reference[word], rtol=1e-5, atol=1e-7)


def test_words_that_are_no_text(tmp_path):
    path = write(tmp_path, model([b"x", b"\xff", b"y"], numbers(3 + 4)))
    table = FastTextBinary(path).read(Wanted.words(["y"]))
    assert (table.words, table.origin.broken_lines) == (["y"], 1)
    with pytest.raises(VectorFileError, match=r"row 2.*--embed-init-strict"):
        FastTextBinary(path, strict=True).read()


def test_not_a_number_is_refused_where_it_is_wanted(tmp_path):
    matrix = numbers(2)
    matrix[1, 0] = np.inf
    path = write(tmp_path, model([b"x", b"y"], matrix, maxn=0))
    assert FastTextBinary(path).read(Wanted.words(["x"])).words == ["x"]
    with pytest.raises(VectorFileError, match=r"'y'.*NaN"):
        FastTextBinary(path).read()


def test_every_truncation_is_noticed(tmp_path):
    content = model([b"x", b"haus"], numbers(2 + 3))[: -len(b"output")]
    for length in range(len(content)):
        path = write(tmp_path, content[:length])
        with pytest.raises(VectorFileError, match=r"model\.bin.*(cut short|empty)"):
            FastTextBinary(path).read(Wanted.words(["x"]))
    assert FastTextBinary(write(tmp_path, content)).read().words == ["x", "haus"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"magic": 1}, "no fastText binary"),
        ({"version": 13}, "version 13"),
        ({"bucket": -1}, "damaged"),
        ({"labels": -1}, "damaged"),
        ({"pruned": -2}, "damaged"),
        ({"pruned": 10**15}, "damaged"),
        ({"bucket": 9}, "does not fit"),
    ],
)
def test_absurd_heads(tmp_path, options, message):
    with pytest.raises(VectorFileError, match=message):
        FastTextBinary(write(tmp_path, model([b"x"], numbers(4), **options))).read()


def test_other_errors(tmp_path):
    with pytest.raises(VectorFileError, match="no such file"):
        FastTextBinary(str(tmp_path / "missing.bin"))
    with pytest.raises(VectorFileError, match="directory"):
        FastTextBinary(str(tmp_path))
    content = model([b"x"], numbers(4))
    with pytest.raises(DimensionError, match="--encoder-embed-dim"):
        FastTextBinary(write(tmp_path, content), dim=4)
    with pytest.raises(VectorFileError, match="gunzip"):
        FastTextBinary(write(tmp_path, gzip.compress(content)))
    with pytest.raises(VectorFileError, match="quantised"):
        FastTextBinary(write(tmp_path, model([b"x"], numbers(4), quantised=True))).read()


@settings(FUZZ, max_examples=200)
@given(data=st.data())
def test_damaged_files(tmp_path, data):
    content = bytearray(
        model([b"haus", "über".encode(), b"c"], numbers(3 + 4), ((5, 0),) * data.draw(st.integers(0, 1)))
    )
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, 130) | st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        source = FastTextBinary(write(tmp_path, bytes(content)))
        table = source.read(data.draw(st.sampled_from([None, Wanted.words(["haus", "c"])])))
        composed = source.compose(["hausen"])
    except (VectorFileError, OptionError):
        return
    assert table.matrix.shape == (len(table.words), source.dim)
    assert np.isfinite(table.matrix).all()
    assert all(row.shape == (source.dim,) for row in composed.values())
