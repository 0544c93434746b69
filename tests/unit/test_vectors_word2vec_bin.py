"""word2vec's binary format. Oracles: gensim's reader and writer, and files built by hand."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import DimensionError, OptionError, VectorFileError
from embinit_fairseq.vectors import binary as binary_scan
from embinit_fairseq.vectors import word2vec_bin
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vectors.word2vec_bin import Word2VecBinary

FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
DIM = 3


def pack(words: list[bytes], matrix: np.ndarray, newline: bytes = b"\n", header: bytes | None = None) -> bytes:
    rows = [word + b" " + row.astype("<f4").tobytes() + newline for word, row in zip(words, matrix)]
    return (header or b"%d %d\n" % matrix.shape) + b"".join(rows)


def numbers(rows: int, dim: int = DIM, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


def write(directory: Path, content: bytes) -> str:
    file = directory / "vectors.bin"
    file.write_bytes(content)
    return str(file)


@pytest.fixture(params=[5, 16, 1024], ids="block {}".format)
def block(request, monkeypatch):
    """Split every record somewhere."""

    class SmallBlocks(binary_scan.RecordScan):
        def __init__(self, *args):
            super().__init__(*args, block=request.param)

    monkeypatch.setattr(word2vec_bin, "RecordScan", SmallBlocks)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("newline", [b"\n", b""])
def test_rows_in_order(tmp_path, newline):
    matrix = numbers(4)
    matrix[1] = np.frombuffer(b"    \n\n\n\n \n\0 ", dtype="<f4")  # separators inside a vector
    path = write(tmp_path, pack([b"the", "über".encode(), b"New_York", b"<s>"], matrix, newline))
    table = Word2VecBinary(path, dim=DIM).read()
    assert table.words == ["the", "über", "New_York", "<s>"]
    np.testing.assert_array_equal(table.matrix, matrix)
    assert table.matrix.dtype == np.float32
    assert table.matrix.flags.c_contiguous
    assert table.matrix.flags.writeable
    assert (table.origin.rows, table.origin.dim, table.origin.broken_lines, table.specials) == (4, DIM, 0, {})


@FUZZ
@given(
    words=st.lists(st.text(st.characters(exclude_characters=" \n", exclude_categories=["Cs"]), min_size=1), max_size=9),
    wanted=st.sets(st.integers(0, 9)),
    newline=st.sampled_from([b"\n", b""]),
    folded=st.booleans(),
)
def test_any_words(tmp_path, words, wanted, newline, folded):
    words = [*words, "Last"]
    matrix = numbers(len(words))
    path = write(tmp_path, pack([word.encode() for word in words], matrix, newline))
    chosen = {words[number] for number in wanted if number < len(words)}
    want = Wanted(frozenset(chosen), frozenset(word.casefold() for word in chosen) if folded else frozenset())
    table = Word2VecBinary(path).read(want)
    first = {word: matrix[number] for number, word in reversed(list(enumerate(words))) if word in want}
    assert table.words == list(dict.fromkeys(word for word in words if word in want))
    for word, row in zip(table.words, table.matrix):
        np.testing.assert_array_equal(row, first[word])
    assert table.origin.duplicates == sum(word in want for word in words) - len(table.words)


def test_folded_words_are_found(tmp_path):
    path = write(tmp_path, pack([b"Haus", b"HOUSE", "ÜBER".encode(), b"x"], numbers(4)))
    table = Word2VecBinary(path).read(Wanted(frozenset({"Haus"}), frozenset({"house", "über"})))
    assert table.words == ["Haus", "HOUSE", "ÜBER"]


@pytest.mark.parametrize("packed", [False, True])
def test_gensim_agrees(tmp_path, packed):
    gensim = pytest.importorskip("gensim.models")
    path = str(tmp_path / ("v.bin.gz" if packed else "v.bin"))
    vectors = gensim.KeyedVectors(5)
    vectors.add_vectors([f"wort{n}" for n in range(40)] + ["ß"], numbers(41, 5))
    vectors.save_word2vec_format(path, binary=True)
    table = Word2VecBinary(path).read()
    reference = gensim.KeyedVectors.load_word2vec_format(path, binary=True)
    assert table.words == reference.index_to_key
    np.testing.assert_array_equal(table.matrix, reference.vectors)


@pytest.mark.usefixtures("block")
def test_words_that_are_no_text(tmp_path):
    words = [b"a", b"\xff\xfe", b"", b"b"]
    path = write(tmp_path, pack(words, numbers(4)))
    for wanted in (None, Wanted.words(["a", "b"])):
        table = Word2VecBinary(path).read(wanted)
        assert table.words == ["a", "b"]
        assert table.origin.broken_lines == 2
    with pytest.raises(VectorFileError, match=r"row 2.*UTF-8.*--embed-init-strict"):
        Word2VecBinary(path, strict=True).read(Wanted.words(["a"]))


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("newline", [b"\n", b""])
def test_every_truncation_is_noticed(tmp_path, newline):
    content = pack([b"aa", b"bb"], numbers(2), newline)
    end = len(content) - len(newline)  # the last newline may be missing
    record = len(b"aa ") + 4 * DIM + len(newline)
    for length in range(4, end):
        path = write(tmp_path, content[:length])
        with pytest.raises(VectorFileError, match="cut short") as caught:
            Word2VecBinary(path).read(Wanted.words(["aa"]))
        # the newline in front of a word counts to the word's row
        row = 1 if length < 4 + record - len(newline) else 2
        assert path in str(caught.value)
        assert f"row {row} " in str(caught.value)
    assert Word2VecBinary(write(tmp_path, content[:end])).read().words == ["aa", "bb"]


def test_the_missing_bytes_are_counted(tmp_path):
    path = write(tmp_path, pack([b"aa", b"bb"], numbers(2), b"")[:-5])
    with pytest.raises(VectorFileError, match=r"row 2 lacks 5 bytes.*announces 2 rows"):
        Word2VecBinary(path).read()


def test_a_truncated_gz_is_a_vector_file_error(tmp_path):
    file = tmp_path / "v.bin.gz"
    file.write_bytes(gzip.compress(pack([b"aa", b"bb"], numbers(2)))[:-12])
    with pytest.raises(VectorFileError, match=r"v\.bin\.gz"):
        Word2VecBinary(str(file)).read()


@pytest.mark.parametrize(
    "header", [b"", b"the 0.1 0.2\n", b"2\n", b"0 3\n", b"2 0\n", b"-2 3\n", b"2 99999999999\n", b"2 3"]
)
def test_no_header(tmp_path, header):
    with pytest.raises(VectorFileError, match=r"vectors\.bin"):
        Word2VecBinary(write(tmp_path, header))


def test_a_wrong_header_is_refused(tmp_path):
    matrix = numbers(6)
    names = [b"a", b"b", b"c", b"d", b"e", b"f"]
    with pytest.raises(VectorFileError, match="more bytes follow the 5 rows"):
        Word2VecBinary(write(tmp_path, pack(names, matrix, header=b"5 3\n"))).read(Wanted.words(["a"]))
    with pytest.raises(VectorFileError, match="cut short"):
        Word2VecBinary(write(tmp_path, pack(names, matrix, header=b"100000000000000000 3\n"))).read()
    with pytest.raises(VectorFileError):
        Word2VecBinary(write(tmp_path, pack(names, matrix, header=b"6 2\n"))).read()


def test_words_that_are_mostly_no_text_are_another_format(tmp_path):
    path = write(tmp_path, pack([b"a", b"\xff", b"\xfe"], numbers(3)))
    with pytest.raises(VectorFileError, match="2 of 3 words are not UTF-8"):
        Word2VecBinary(path).read()


def test_a_file_without_any_word(tmp_path):
    path = write(tmp_path, b"9 3\n" + b"x" * (binary_scan.LONGEST_WORD + 9))
    with pytest.raises(VectorFileError, match="row 1 has no word"):
        Word2VecBinary(path).read()


def test_not_a_number_is_refused_where_it_is_wanted(tmp_path):
    matrix = numbers(2)
    matrix[1, 0] = np.nan
    path = write(tmp_path, pack([b"a", b"b"], matrix))
    assert Word2VecBinary(path).read(Wanted.words(["a"])).words == ["a"]
    with pytest.raises(VectorFileError, match=r"'b'.*NaN"):
        Word2VecBinary(path).read()


def test_other_errors(tmp_path):
    with pytest.raises(VectorFileError, match="no such file"):
        Word2VecBinary(str(tmp_path / "missing.bin"))
    path = write(tmp_path, pack([b"a"], numbers(1)))
    with pytest.raises(DimensionError, match="--encoder-embed-dim"):
        Word2VecBinary(path, dim=4)
    with pytest.raises(OptionError, match="--embed-init-oov"):
        Word2VecBinary(path).compose(["a"])


@FUZZ
@given(data=st.data())
def test_damaged_files(tmp_path, data):
    content = bytearray(pack([b"haus", "über".encode(), b"c"], numbers(3), data.draw(st.sampled_from([b"\n", b""]))))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 12) | st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3) | st.just(b"999999"))
        content = content or bytearray(b" ")
    path = write(tmp_path, bytes(content))
    try:
        table = Word2VecBinary(path).read(data.draw(st.sampled_from([None, Wanted.words(["haus", "c"])])))
    except VectorFileError:
        return
    assert table.matrix.shape == (len(table.words), table.origin.dim)
    assert np.isfinite(table.matrix).all()
