"""What every reader of vectors does, whatever the format: what was written comes back bit for bit, what is damaged,
cut, wrong or a bomb ends in one line that names file and remedy, and memory stays small.

A format joins by a line in SOURCES (source_files.py). What only one format has is in test_vectors_<format>.py.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_files import SOURCES, fasttext, in_zip, numbers, text, word2vec, write

from embinit_fairseq.errors import DimensionError, EmbinitError, OptionError, VectorFileError
from embinit_fairseq.expand.request import read_codes, read_words, segmenter
from embinit_fairseq.runs.score import read_translations
from embinit_fairseq.runs.tokens import Tokenizer, detokenizer
from embinit_fairseq.vectors import binary, fasttext_bin, npz, text_lines
from embinit_fairseq.vectors.hf_vocab import load_sentencepiece
from embinit_fairseq.vectors.open import open_vectors, recognise
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vectors.text import TextVectors
from embinit_fairseq.vocab.dictionary import read_dictionary

MB = 1 << 20
#: what a remedy is made of
REMEDY = re.compile(
    "again|unpack|name (it|the|one)|save |give |remove|choose |convert|break |check |repair|correct|another file"
    "|copy |take |use |write |pip install|export",
    re.IGNORECASE,
)
each_source = pytest.mark.parametrize("name", SOURCES)


def one_line(error: pytest.ExceptionInfo, path: str | Path) -> str:
    """The message, which names the path and a remedy."""
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 1000
    assert REMEDY.search(message), message
    return message


def refused(read, path: Path, most: int = 12 * MB) -> str:
    """The error of `read`, which takes at most so many bytes of Python's and NumPy's memory."""
    tracemalloc.start()
    try:
        with pytest.raises(EmbinitError) as error:
            read()
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    return one_line(error, path)


def sparse(path: Path, content: bytes, size: int) -> Path:
    path.write_bytes(content)
    os.truncate(path, size)
    return path


def small_blocks(patch: pytest.MonkeyPatch, size: int) -> None:
    """Split every line, record and array somewhere."""
    patch.setitem(TextVectors.__init__.__kwdefaults__, "chunk", size)
    patch.setattr(binary.RecordScan.__init__, "__defaults__", (size,))
    patch.setattr(npz, "_BLOCK", size)
    patch.setattr(fasttext_bin, "_CHUNK", 1 + size // 16)


# ---- what was written is read

# no <unk>, [CLS] or madeupword0000, which have a meaning of their own in some formats
LETTERS = st.characters(exclude_categories=("Cs", "Zs", "Zl", "Zp", "Cc"), exclude_characters="\ufeff<[")
WORDS = st.text(LETTERS, min_size=1, max_size=5) | st.sampled_from(["a", "A", "ß", "SS", "ss", "K", "k", "5"])


@pytest.mark.parametrize("block", [5, 16, 1024])
@each_source
@settings(max_examples=12, deadline=None)
@given(words=st.lists(WORDS, min_size=1, max_size=12), some=st.sets(st.integers(0, 11)), seed=st.integers(0, 99))
def test_what_was_written_is_read_bit_for_bit(tmp_path_factory, name, block, words, some, seed):
    source = SOURCES[name]
    words = words if source.repeats else list(dict.fromkeys(words))
    bits = (
        np.random.default_rng(seed).integers(0, 1 << 32, (len(words), 1 + seed % 4), dtype=np.uint32).view(np.float32)
    )
    matrix = np.where(np.isfinite(bits), bits, np.float32(0.5))
    path = source.make(tmp_path_factory.mktemp("source"), words, matrix)
    first = {word: words.index(word) for word in words}
    chosen = {words[at] for at in some if at < len(words)}
    folded = frozenset(word.casefold() for word in chosen)
    both = Wanted(frozenset(words[:1]), folded)
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch, block)
        reader = open_vectors(path, dim=matrix.shape[1])
        assert (reader.format, reader.dim, reader.path) == (source.format, matrix.shape[1], path)
        for wanted in (
            None,
            Wanted.words(chosen),
            Wanted(folded=folded),
            both,
            Wanted.words(["absent", "\ud800"]),
            None,
        ):
            table = reader.read(wanted)
            kept = [word for word in first if wanted is None or word in wanted]
            assert table.words == kept
            assert (table.matrix.dtype, table.matrix.shape) == (np.float32, (len(kept), matrix.shape[1]))
            assert table.matrix.flags.c_contiguous
            expected = matrix[[first[word] for word in kept]].view(np.uint32)
            np.testing.assert_array_equal(table.matrix.view(np.uint32), expected)
            origin = table.origin
            assert (origin.path, origin.format, origin.dim) == (path, source.format, matrix.shape[1])
            assert (origin.rows, origin.broken_lines) == (len(words) + source.specials, 0)
            counted = sum(word in (first if wanted is None else wanted) for word in words) - len(kept)
            if source.format != "huggingface" or wanted is None:  # there the vocabulary is counted, wanted or not
                assert origin.duplicates == counted
            assert len(table.specials) == source.specials


@each_source
def test_formats_are_recognised_by_content(tmp_path, name):
    path = SOURCES[name].make(tmp_path, ["a", "b"], numbers(2))
    assert recognise(path) == SOURCES[name].format
    assert open_vectors(path, SOURCES[name].format).read().words == ["a", "b"]


# ---- what is wrong with it


@each_source
@pytest.mark.parametrize("dim", [1, 4, 300])
def test_another_dimension_names_the_flags(tmp_path, name, dim):
    path = SOURCES[name].make(tmp_path, ["a", "b"], numbers(2))
    assert open_vectors(path, dim=3).dim == 3
    with pytest.raises(DimensionError, match=r"--encoder-embed-dim 3 .*--decoder-embed-dim 3") as error:
        open_vectors(path, dim=dim)
    one_line(error, path)
    assert str(dim) in str(error.value)


@each_source
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_matter_in_wanted_rows_only(tmp_path, name, value):
    matrix = np.full((30, 3), 3e38, np.float32)  # their sum is no number of float32, they are
    matrix[1, 2] = value
    words = [f"w{row}" for row in range(30)]
    path = SOURCES[name].make(tmp_path, words, matrix)
    reader = open_vectors(path, dim=3)
    assert reader.read(Wanted.words(["w0", "w2"])).words == ["w0", "w2"]
    for wanted in (None, Wanted.words(["w1"])):
        with pytest.raises(VectorFileError, match=r"'w1'.*NaN") as error:
            reader.read(wanted)
        one_line(error, path)


@pytest.mark.parametrize("name", sorted(SOURCES.keys() - {"huggingface"}))  # its pieces are BERT's
def test_words_cannot_be_composed_without_pieces(tmp_path, name):
    path = SOURCES[name].make(tmp_path, ["the", "house"], numbers(2))
    with pytest.raises(OptionError, match="--embed-init-oov") as error:
        open_vectors(path).compose(["houses"])
    assert str(Path(path).name) in str(error.value)


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.unreadable])
def test_words_that_are_no_text_are_counted_or_refused(tmp_path, name):
    path = SOURCES[name].unreadable(tmp_path, numbers(40))
    for wanted, count in ((None, 39), (Wanted.words(["w0", "w5"]), 2), (Wanted(folded=frozenset(["w5"])), 1)):
        table = open_vectors(path).read(wanted)
        assert len(table.words) == count
        if wanted is None or SOURCES[name].format.endswith("_bin"):  # lines of no interest are not looked at
            assert table.origin.broken_lines == 1
    with pytest.raises(VectorFileError, match=r"(row 4\b|v\.any:[45]:).*--embed-init-strict") as error:
        open_vectors(path, strict=True).read(Wanted.words(["w0"]))
    one_line(error, path)


@each_source
def test_what_is_not_there(tmp_path, name):
    format = SOURCES[name].format
    with pytest.raises(VectorFileError, match=r"no such|cannot be read") as error:
        open_vectors(str(tmp_path / "missing"), format)
    one_line(error, tmp_path / "missing")
    place = tmp_path if format != "huggingface" else Path(write(tmp_path / "file", "a 1\n"))
    with pytest.raises(VectorFileError) as error:
        open_vectors(str(place), format)
    one_line(error, place)


# ---- damaged


def use(path: str, format: str | None, wanted: Wanted | None = None) -> None:
    """Read and compose; only errors of one line may come out."""
    try:
        reader = open_vectors(path, format)
        table = reader.read(wanted)
        assert table.matrix.shape == (len(table.words), reader.dim)
        assert np.isfinite(table.matrix).all()
        assert all(row.shape == (reader.dim,) for row in reader.compose(["houses"]).values())
    except OptionError:
        pass  # of compose
    except EmbinitError as error:
        if "\n" in str(error) or str(Path(path).parent) not in str(error):
            raise AssertionError(f"no line that names the file: {error}") from error


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.notices])
def test_every_cut_is_noticed(tmp_path, name):
    source = SOURCES[name]
    path = source.make(tmp_path, ["house", "über"], numbers(2))
    file = Path(path) / source.file if source.file else Path(path)
    content = file.read_bytes()
    step = max(1, len(content) // (12 if "torch" in name or "fairseq" in name else 150))
    for length in {*range(0, len(content), step), len(content) - 1}:
        file.write_bytes(content[:length])
        for format in (None, source.format):
            with pytest.raises(EmbinitError) as error:
                open_vectors(path, format).read(Wanted.words(["house"]))
            one_line(error, tmp_path)
    file.write_bytes(content)
    assert open_vectors(path).read().words == ["house", "über"]


@each_source
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_read_or_refused(tmp_path, name, data):
    source = SOURCES[name]
    path = source.make(tmp_path, ["house", "▁über", "c", "d"], numbers(4))
    files = [file for file in tmp_path.iterdir() if file.is_file()]
    file = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        # heads stand in front: half of the damage goes there
        place = data.draw(st.integers(0, 130) | st.integers(0, 10**6)) % (len(content) + 1)
        new = data.draw(st.binary(max_size=4) | st.just(b"99999999"))
        content[place : place + data.draw(st.integers(0, 8))] = new
    file.write_bytes(content)
    use(path, data.draw(st.sampled_from([None, source.format])), data.draw(st.sampled_from([None, Wanted.words("cd")])))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.sampled_from([None, "glove", "word2vec", "word2vec_bin", "fasttext_bin", "npz"]))
def test_random_bytes_are_read_or_refused(tmp_path, content, format):
    use(write(tmp_path / "v.any", content), format)


# ---- bombs

GOOD = text([f"w{number}" for number in range(300)], np.ones((300, 3)))
ENDLESS = {
    "plain": lambda path: sparse(path, GOOD, 1 << 32),
    "gz": lambda path: path.write_bytes(gzip.compress(GOOD) + 20 * gzip.compress(b"x" * MB)),
    "bz2": lambda path: path.write_bytes(bz2.compress(GOOD + b"x" * 4 * MB)),
    "xz": lambda path: path.write_bytes(lzma.compress(GOOD) + 20 * lzma.compress(b"x" * MB, preset=0)),
    "zip": lambda path: in_zip(GOOD + b"x" * 20 * MB)(path),
}


@pytest.mark.parametrize("wanted", [None, Wanted.words(["w1"])], ids=["all", "some"])
@pytest.mark.parametrize("pack", ENDLESS.values(), ids=ENDLESS)
def test_no_line_break_behind_good_rows(tmp_path, pack, wanted):
    path = tmp_path / "v.txt"
    pack(path)
    reader = open_vectors(str(path))
    assert reader.format == "glove"
    assert refused(lambda: reader.read(wanted), path).startswith(f"{path}:301: longer than 1,048,576")
    refused(lambda: reader.compose(["word"]), path)


#: what each format is, at its beginning, and 4 GB of nothing behind it: format -> contents
HEADS = {
    None: [b"x", b""],
    "glove": [b"x", b"a 1 2\nb"],
    "word2vec": [b"x", b"2 3\nb", b"999999999999999999 3\na 1 2 3\n"],
    "word2vec_bin": [b"x", b"9" * 99 + b" 3\n", b"2 65537\n", b"2 " + b"9" * 90 + b"\n", b"2 3" + b" " * 200, b"2 3\n"],
    "fasttext_bin": [b"x", fasttext([b"a"], numbers(1), bucket=10**9)[:99], fasttext([b"a"], numbers(1), pruned=10**8)],
    "npz": [b"x", b"PK\x03\x04"],
    "fairseq": [b"x", b"PK\x03\x04", b"\x80\x02"],
}


@pytest.mark.parametrize(("format", "head"), [(format, head) for format in HEADS for head in HEADS[format]])
def test_a_head_and_gigabytes_of_nothing(tmp_path, format, head):
    path = sparse(tmp_path / "v.any", head, 1 << 32)
    refused(lambda: open_vectors(str(path), format).read(), path, most=20 * MB)


def test_a_header_that_promises_more_than_there_is(tmp_path):
    path = tmp_path / "v.txt"
    for content in (b"999999999999999999 3\n" + GOOD, b"300 999999999999999999\n" + GOOD):
        path.write_bytes(content)
        refused(lambda: open_vectors(str(path), "word2vec").read(), path, most=100 * MB)  # a constant, of any header


def test_a_word_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "LONGEST_WORD", 1000)
    path = sparse(tmp_path / "v.bin", b"2 3\n" + b"x" * 100, 1 << 32)
    assert "row 1 has no word" in refused(open_vectors(str(path), "word2vec_bin").read, path)


def test_more_columns_than_vectors_have(tmp_path, monkeypatch):
    for module in (text_lines, npz, binary):
        monkeypatch.setattr(module, "WIDEST", 100, raising=False)
    monkeypatch.setattr("embinit_fairseq.vectors.word2vec_bin.WIDEST", 100)
    monkeypatch.setattr(fasttext_bin, "WIDEST", 100)
    for name in ("glove", "word2vec", "gz", "word2vec_bin", "fasttext_bin", "npz compressed"):
        folder = tmp_path / name
        folder.mkdir()
        assert open_vectors(SOURCES[name].make(folder, ["a", "b"], numbers(2, 100))).read().matrix.shape == (2, 100)
        for columns in (101, 9000):
            path = SOURCES[name].make(folder, ["a", "b"], numbers(2, columns))
            refused(lambda path=path: open_vectors(path).read(), path)


def test_only_what_is_wanted_takes_memory(tmp_path):
    """One row of 20,000 x 100, which are 8 MB; of a checkpoint only torch's memory grows, which is not traced."""
    words = [f"w{row}" for row in range(20_000)]
    for name in ("npz compressed", "huggingface", "word2vec_bin", "fasttext_bin"):
        folder = tmp_path / name
        folder.mkdir()
        path = SOURCES[name].make(folder, words, np.full((20_000, 100), 0.5, np.float32))
        tracemalloc.start()
        table = open_vectors(path).read(Wanted.words(["w7", "none"]))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert table.matrix.tolist() == [[0.5] * 100]
        assert most < (6 if name == "huggingface" else 5) * MB  # it holds the vocabulary


def test_word2vec_with_line_breaks_inside_vectors(tmp_path):
    matrix = numbers(4)
    matrix[1] = np.frombuffer(b"    \n\n\n\n \n\0 ", dtype="<f4")
    for block in (5, 16, 1024):
        for newline in (b"\n", b""):
            path = write(tmp_path / "v.bin", word2vec([b"the", b"New_York", b"", b"<s>"], matrix, newline))
            with pytest.MonkeyPatch.context() as patch:
                small_blocks(patch, block)
                table = open_vectors(path, "word2vec_bin").read()
            assert (table.words, table.origin.broken_lines) == (["the", "New_York", "<s>"], 1)
            np.testing.assert_array_equal(table.matrix, matrix[[0, 1, 3]])


# ---- what is read beside vectors


@pytest.mark.parametrize(
    "read",
    [
        read_dictionary,
        lambda path: read_words(str(path), ()),
        lambda path: read_codes(str(path), "--model"),
        lambda path: segmenter(str(path), None),
        lambda path: segmenter(None, str(path)),
        read_translations,
        load_sentencepiece,
        lambda path: detokenizer([f"sentencepiece={path}"], None),
    ],
)
def test_texts_without_a_line_break(tmp_path, read):
    path = sparse(tmp_path / "file", b"", 1 << 32)
    refused(lambda: read(path), path, most=80 * MB)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "spiece.model"])
def test_tokenizers_of_translations(tmp_path, monkeypatch, name):
    monkeypatch.setattr("embinit_fairseq.runs.tokens._LARGEST", 1000)
    damaged = [b"\xff"] if name == "vocab.txt" else [b"{}", b'{"model": ' + b"[" * 900, b"\xff"]
    for content in damaged:
        (tmp_path / name).write_bytes(content)
        refused(lambda: detokenizer([f"huggingface={tmp_path}"], None), tmp_path / name, most=80 * MB)
    sparse(tmp_path / name, b"", 1 << 33)
    refused(lambda: Tokenizer(str(tmp_path)), tmp_path / name, most=80 * MB)
    (tmp_path / name).unlink()
    with pytest.raises(OptionError, match="give a Hugging Face folder"):
        Tokenizer(str(tmp_path))


def test_the_settings_of_a_tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\na\n")
    assert Tokenizer(str(tmp_path)).encode("A") == ["a"]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert Tokenizer(str(tmp_path)).encode("A") == ["[UNK]"]
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    refused(lambda: Tokenizer(str(tmp_path)), tmp_path / "tokenizer_config.json")
