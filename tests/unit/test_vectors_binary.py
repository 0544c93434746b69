"""word2vec's and fastText's binaries. Oracles: gensim, fastText where installed, a naive n-gram loop, files by hand."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_files import fasttext, numbers, word2vec, write

from embinit_fairseq.errors import OptionError, VectorFileError
from embinit_fairseq.vectors.fasttext import FastTextBinary, ngram_buckets
from embinit_fairseq.vectors.open import open_vectors, recognise
from embinit_fairseq.vectors.table import Wanted

# ---- fastText


def naive_buckets(word: str, minn: int, maxn: int, bucket: int) -> list[int]:
    """fastText's rule, character by character, with Python's integers."""
    whole = f"<{word}>"
    buckets = []
    for start in range(len(whole)):
        for end in range(start + 1, min(start + maxn, len(whole)) + 1):
            if end - start < minn or (end - start == 1 and (start == 0 or end == len(whole))):
                continue
            value = 2166136261
            for byte in whole[start:end].encode():
                signed = byte - 256 if byte > 127 else byte
                value = ((value ^ (signed & 0xFFFFFFFF)) * 16777619) & 0xFFFFFFFF
            buckets.append(value % bucket)
    return buckets


@settings(max_examples=30)
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
    # "a" of the FNV authors' test vectors (32-bit FNV-1a)
    assert ngram_buckets(["a"], 1, 1, 2**32 - 1)[1].tolist() == [0xE40C292C]


def made(tmp_path: Path, *args, **options) -> FastTextBinary:
    """fastText writes more after the matrix."""
    return FastTextBinary(write(tmp_path / "model.bin", fasttext(*args, **options) + b"output"))


def mean_of(matrix: np.ndarray, words: list[str], word: str, minn: int = 2, maxn: int = 3) -> np.ndarray:
    rows = [words.index(word)] if word in words else []
    buckets = naive_buckets(word, minn, maxn, len(matrix) - len(words))
    return matrix[rows + [len(words) + n for n in buckets]].mean(axis=0)


@pytest.mark.parametrize("chunk", [2, 4096])
def test_words_and_unknown_words_by_hand(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr("embinit_fairseq.vectors.fasttext._CHUNK", chunk)
    words = ["haus", "über", "a", "bb", "ccccc"]
    matrix = numbers(5 + 11)
    source = made(tmp_path, words, matrix)
    table = source.read()
    assert (table.words, table.origin.rows) == (words, 5)
    composed = source.compose(["hausa", "ü", "", "\udc80", "hausa"])
    assert list(composed) == ["hausa", "ü", ""]  # "" has the n-gram "<>"
    for word, row in [*zip(words, table.matrix), *composed.items()]:
        np.testing.assert_allclose(row, mean_of(matrix, words, word), rtol=1e-5, atol=1e-6)
    matrix[5:] = np.nan
    with pytest.raises(VectorFileError, match=r"'xyz'.*NaN"):
        made(tmp_path, words, matrix).compose(["xyz"])


@pytest.mark.parametrize(
    ("content", "format"),
    [
        # words that are numbers, with vectors of line ends and zeros: they could be text
        *((word2vec(["7", "8"], np.frombuffer(sign * 24, "<f4").reshape(2, 3), newline), "word2vec_bin")
          for sign in (b"\n", b"\0") for newline in (b"", b"\n")),
        (b"1 3\nw \n\x01\x02 7\nxxxxxx", "word2vec_bin"),  # a vector with a line break, a space, a digit, a line break
        (b"2 3\n7 1 2 3\n8 4 5 6\n", "word2vec"),
        (b"2 3\na\1 1 2 3\n8 4 5 6\n", "word2vec"),
        (b"2 3\n7 1 2\n8 4 5\n", "word2vec"),  # whose header is wrong
        (b"2 1\nnew york 1\na  2\n", "word2vec"),
        (b"broken\na 1 2", "glove"),
    ],
)  # fmt: skip
def test_binaries_and_texts_of_numbers_are_told_apart(tmp_path, content, format):
    assert recognise(write(tmp_path / "v.any", content)) == format


@pytest.mark.parametrize("newline", [b"", b"\n"])
@pytest.mark.parametrize("block", [16, 1 << 18])
def test_words_with_spaces(tmp_path, monkeypatch, newline, block):
    """gensim writes them into word2vec's binary: no row may begin within the word, and no row after it be lost."""
    monkeypatch.setattr("embinit_fairseq.vectors.binary_records.BLOCK", block)
    words = ["a", "new york", "b", "vitamin C", "c", "the end", "rio de janeiro", "d", "e 7", "são tomé", "e", "f g"]
    words = words[: 11 if block == 16 else 12]  # what follows the last row is not read in parts
    matrix = numbers(len(words), 20)
    matrix[:, -3:] = np.frombuffer(b"  \x20\x3e" * 3, "<f4")  # whose bytes are spaces, too
    reader = open_vectors(write(tmp_path / "v.bin", word2vec(words, matrix, newline)))
    asked = {"a", "b", "c", "d", "e", "new", "vitamin", "the", "rio", "são", "f"}
    for wanted in (None, Wanted.words(asked), Wanted(folded=frozenset(asked))):
        table = reader.read(wanted)
        assert table.words == (words if wanted is None else list("abcde"))
        np.testing.assert_array_equal(table.matrix, matrix[[words.index(word) for word in table.words]])
        assert table.origin.broken_lines == 0


#: tokens that gensim writes, whose parts are words too
SPACED = [
    " ",
    "  ",
    "a ",
    " a",
    "a b",
    "a  b",
    "- -",
    ". .",
    "— —",
    "à la",
    "x 1",
    "1999 2000",
    "the end",
    "日本 語",
    " \n",
    "a\tb c",
]
#: kind of numbers -> the numbers that a row is made of
SIZES = {
    "usual": lambda m, g: m,
    "halves": lambda m, g: (m / 20).astype(np.float16).astype(np.float32),
    "zeros": lambda m, g: m * (g.random((len(m), 1)) < 0.6),
    "huge": lambda m, g: m * 1e30,
    "tiny": lambda m, g: m * 1e-30,
    "any": lambda m, g: np.sign(m) * 10 ** g.uniform(-38, 38, m.shape),
    "equal": lambda m, g: np.broadcast_to(10 ** g.uniform(-30, 30, (len(m), 1)), m.shape),
}


@pytest.mark.parametrize("dim", [2, 10, 50, 300])
@pytest.mark.parametrize("size", SIZES)
def test_tokens_with_spaces_have_their_own_rows_or_the_file_is_refused(tmp_path, size, dim):
    messages: list[str] = []
    for seed in range(12):
        generator = np.random.default_rng(seed)
        words = ["a", "-", ".", "—", "the", "x", "1", "=a", ":)", ")", *(f"w{row}" for row in range(8))]
        for token in generator.choice(SPACED, 3, replace=False).tolist():
            place = (0, len(words), int(generator.integers(len(words))))[seed % 3]
            words.insert(place, token)
        matrix = SIZES[size](generator.normal(0, 0.3, (len(words), dim)), generator).astype(np.float32)
        path = write(tmp_path / "v.bin", word2vec(words, matrix, b"\n" if seed % 4 == 0 else b""))
        try:
            table = open_vectors(path, "word2vec_bin").read(None if seed % 2 else Wanted.words(words))
        except VectorFileError as error:
            if dim < 16 or size in ("huge", "tiny", "any", "equal"):
                messages.append(str(error))
                continue
            raise
        assert table.words == words
        np.testing.assert_array_equal(table.matrix.view(np.uint32), matrix.view(np.uint32))
    assert all("binary=False" in message for message in messages)


@pytest.mark.parametrize("options", [{"version": 11, "model": 3}, {"maxn": 0, "bucket": 0}, {"bucket": 0}])
def test_models_without_ngrams_have_rows_of_words_only(tmp_path, options):
    matrix = numbers(2 + (0 if "bucket" in options else 5))
    source = made(tmp_path, ["x", "y"], matrix, **options)
    np.testing.assert_array_equal(source.read().matrix, matrix[:2])
    with pytest.raises(OptionError, match="no subwords"):
        source.compose(["z"])


def test_the_end_of_a_sentence_has_its_own_row_only(tmp_path):
    source = made(tmp_path, ["</s>", "x"], matrix := numbers(7))
    np.testing.assert_array_equal(source.read().matrix[0], matrix[0])
    assert source.compose(["</s>"]) == {}


def test_labels_of_a_classifier_are_no_words(tmp_path):
    assert made(tmp_path, ["x", "y"], numbers(6), labels=2, model=3).read().words == ["x", "y"]


def test_gensim_agrees_on_fasttext(tmp_path):
    gensim, path = pytest.importorskip("gensim.models.fasttext"), str(tmp_path / "model.bin")
    sentences = [line.split() for line in ("der große Hund läuft über die Straße", "日本 語 a 🦑🦑 Häuser") * 5]
    trained = gensim.FastText(sentences, vector_size=5, min_count=1, epochs=1, bucket=200, seed=1, workers=1)
    gensim.save_facebook_model(trained, path)
    source, reference = FastTextBinary(path), gensim.load_facebook_vectors(path)
    table, composed = source.read(), source.compose(["Hunde", "Überstraße", "日本語", "🦑", "ab", "b"])
    assert table.words == reference.index_to_key
    assert len(composed) > 2
    for word, row in [*zip(table.words, table.matrix), *composed.items()]:
        np.testing.assert_allclose(row, reference[word], rtol=1e-5, atol=1e-7)
