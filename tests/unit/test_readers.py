"""The contract of all readers of vectors: written numbers come back bit for bit, files that are damaged, cut or wrong
end in one line with file and remedy, and memory grows with the wanted rows.

A format joins by a line in SOURCES (source_files.py). Peculiarities of one format are in test_vectors_<format>.py.
"""

import gzip
import io
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_files import MB, SOURCES, fasttext, in_zip, numbers, one_line, use, word2vec, write

from embinit_fairseq.errors import DimensionError, EmbinitError, OptionError, VectorFileError
from embinit_fairseq.vectors import binary_records
from embinit_fairseq.vectors.open import FORMATS, open_vectors, recognise
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vocab.matching import fold

each_source = pytest.mark.parametrize("name", SOURCES)


def each_source_with(field: str):
    return pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if getattr(source, field)])


# no <unk>, [CLS] or madeupword0000, which have a meaning of their own in some formats
LETTERS = st.characters(exclude_categories=("Cs", "Zs", "Zl", "Zp", "Cc"), exclude_characters="\ufeff<[")
WORDS = st.text(LETTERS, min_size=1, max_size=5) | st.sampled_from(
    [*"aAßKk5éİıi\u212a", "SS", "ss", "e\u0301", "i\u0307"]
)
SOME_WORDS = st.lists(WORDS, min_size=1, max_size=12)


@each_source
@settings(max_examples=10)
@given(words=SOME_WORDS, some=st.sets(st.integers(0, 11)), seed=st.integers(0, 99), block=st.sampled_from([5, 16, 999]))
def test_what_was_written_is_read_bit_for_bit(tmp_path_factory, name, words, some, seed, block):
    """However little is read at a time: every line, record and array is split somewhere; also at its line breaks."""
    source, generator = SOURCES[name], np.random.default_rng(seed)
    words = words if source.repeats else list(dict.fromkeys(words))
    shape = len(words), 1 + seed % 4
    of_any, of_blanks = generator.bytes(4 * len(words) * shape[1]), generator.choice(list(b" \n\n\0"), (*shape, 4))
    bits = np.frombuffer(of_any if seed % 3 else of_blanks.astype(np.uint8).tobytes(), np.float32).reshape(shape)
    matrix = np.where(np.isfinite(bits), bits, np.float32(0.5))
    if source.format == "word2vec_bin":  # a vector of text and a space may be the rest of the word
        matrix.view(np.uint8)[:, 0] = 0
    path = source.make(tmp_path_factory.mktemp("source"), words, matrix)
    first = {word: words.index(word) for word in words}
    chosen = {words[at] for at in some if at < len(words)}
    keys = frozenset(map(fold, chosen))
    filters = {None: first, Wanted.words(chosen): chosen, Wanted.words(["absent", "\ud800"]): ()}
    filters[Wanted(folded=keys)] = {word for word in words if fold(word) in keys}
    with pytest.MonkeyPatch.context() as patch:
        source.blocks(patch, block)
        # named: vectors whose bytes are all blanks and line breaks look like text
        reader = open_vectors(path, source.format, dim=shape[1])
        assert (reader.format, reader.dim, reader.path) == (source.format, shape[1], path)
        for wanted, expected in filters.items():
            table, origin = (read := reader.read(wanted)), read.origin
            assert table.words == [word for word in first if word in expected]
            assert (table.matrix.dtype, table.matrix.shape) == (np.float32, (len(table.words), shape[1]))
            assert table.matrix.flags.c_contiguous
            rows = matrix[[first[word] for word in table.words]]
            np.testing.assert_array_equal(table.matrix.view(np.uint32), rows.view(np.uint32))
            assert (origin.path, origin.format, origin.dim) == (path, source.format, shape[1])
            assert (origin.rows, origin.broken_lines) == (len(words) + source.specials, 0)
            assert origin.duplicates == sum(word in expected for word in words) - len(table.words)
            assert len(table.specials) == source.specials


# ---- what is wrong with it


def test_every_format_is_in_this_contract():
    assert {source.format for source in SOURCES.values()} == set(FORMATS)


@each_source
def test_what_does_not_fit_the_request(tmp_path, name):
    source = SOURCES[name]
    path = source.make(tmp_path, ["the", "house"], numbers(2))
    assert recognise(path) == source.format
    assert open_vectors(path, source.format, dim=3).read().words == ["the", "house"]
    for dim in (1, 4):
        with pytest.raises(DimensionError, match=f"have 3 dimensions, expected {dim}.*choose") as error:
            open_vectors(path, dim=dim)
        assert error.value.dim == 3
        one_line(error, path)
    folder = source.format == "huggingface"
    if not folder:  # its pieces are BERT's
        with pytest.raises(OptionError, match=rf"{Path(path).name}.*no subwords.*xavier"):
            open_vectors(path).compose(["houses"])
    for wrong in (tmp_path / "missing", Path(write(tmp_path / "file", "a 1\n")) if folder else tmp_path):
        with pytest.raises(VectorFileError) as error:
            open_vectors(str(wrong), source.format)
        one_line(error, wrong)


def test_what_is_missing_or_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # it cannot be read twice, and would silently lose its beginning
    path = write(tmp_path / "glove.6B.300d.txt", "a 1 2\n")
    for name, message in {
        "pipe": r"pipe.*save",
        "glove.6b.300d.txt": r"did you mean glove.6B.300d.txt.*check the path",
        "nowhere/v.txt": r"folder .*nowhere does not exist",
    }.items():
        with pytest.raises(VectorFileError, match=message):
            open_vectors(str(tmp_path / name))
    for name, said in (
        ("v.txt", "v.txt: .*absolute one$"),
        ("org/bert-base", "hub, download"),
    ):  # hydra changes the folder
        with pytest.raises(VectorFileError, match=said) as error:
            open_vectors(name)
        assert os.getcwd() in str(error.value)
    with pytest.raises(OptionError, match=f"format glvoe.*{', '.join(FORMATS)}"):
        open_vectors(path, format="glvoe")


def packed(write: Callable[[io.BytesIO], object]) -> bytes:
    """Return what a function writes into a stream."""
    write(stream := io.BytesIO())
    return stream.getvalue()


def npz(words: object = ("a", "b"), matrix: object = ((1.0, 2.0), (3.0, 4.0)), **options: object) -> bytes:
    arrays = {"words": words, "matrix": matrix}
    kept = {name: np.array(array, **options) for name, array in arrays.items() if array is not None}
    return packed(lambda stream: np.savez(stream, **kept))


def encrypted() -> bytes:
    """Return a zip archive that says it is encrypted, in the local header and in the central directory."""
    content = bytearray(packed(lambda stream: in_zip(stream, {"v.txt": b"a 1 2\n"})))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def in_tar(stream: io.BytesIO, mode: str) -> None:
    (info := tarfile.TarInfo("v.txt")).size = 600
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        archive.addfile(info, io.BytesIO(b"a 1 2\n" * 100))


def two(header: bytes) -> bytes:
    return word2vec(["a", "b"], numbers(2), header=header)


LINES = b"a 1 2 3\n" * 20
#: format (None: recognised), content, what is said of it with the remedy
REFUSED = [
    # text
    (None, b"\n\n", "the file is empty"),
    (None, gzip.compress(b""), "the file is empty"),
    (None, gzip.compress(b"a 1 2\n")[:-8] + bytes(8), "damaged.*download it again"),  # its checksum
    (None, b"3 2\na 1 2\nb 3 4\n", r"3 rows, .* 2;.*download it again"),
    (None, b"2 3\na 1 2\nb 3 4\n", r":1: .* 3 numbers a line, .* 2.*correct its header"),
    ("word2vec", b"a 1 2\nb 3 4\n", r":1: .*format glove"),
    (None, b"5 2\n", "name its format"),
    *((format, b"this is a sentence\nand another one\n", "name (the|its) format") for format in (None, "glove")),
    # text of other kinds, whose lines end with numbers, too
    *(
        (None, each, "one number .*; give word vectors")
        for each in (b"the 12\nhouse 3\n", "▁a\t-3.2\nb\t-4\n".encode())
    ),
    (None, b"t h 900\nth e</w> 80\n", "one number .*; give word vectors"),
    *(
        (None, b"a b c" + s + b"0.1" + s + b"2\nd e f" + s + b"0.1" + s + b"2\n", "several words")
        for s in (b" ", b"\t")
    ),
    (None, b"the 0.1, 0.2, 3\nof 0.1, 0.2, 3.5\n", r"sed 's/\\\(\[0-9\]\\\),/\\1 /g' FILE"),
    (None, b"0.1\t0.2\t0.3\n-1e-3\t0.2\t0.3\n", "paste WORDS FILE"),
    (None, b"0.1\t0.2\t3\n0\t0.5\t3\n-1.5\t1\t3\n", "paste WORDS FILE"),
    (None, b"12 5 7 9\n3 14 9 2\n12 3\n", "numbers of symbols"),
    (None, b"word 0 1 2\nthe 0.1 0.2 0.3\n", r"tail -n \+2"),
    (None, b"2 3 4 5 2 2166136261 < >\n0 0.1 0.2 0.3\n1 0.1 0.2 0.3\n", "floret.*give"),
    (None, b"2024 | INFO | x\nS-0\tthe\nP-0\t-0.1 -0.2\nP-1\t-0.1 -0.2\n", "fairseq-generate.*checkpoint"),
    (None, b"\\data\\\nngram 1=2\n\n\\1-grams:\n-1.5\tthe\t-0.3\n-1.5\ta\t-0.3\n", "one number per word.*give"),
    (None, b'"word","a","b"\n"the","[0.1","0.2]"\n', r"tail -n \+2 FILE \| tr -d '\"\[\]\(\)' \| tr ',;'"),
    # other tools
    *(
        (None, head + bytes(90), said)
        for head, said in (
            (b"GGUF", "llama.cpp; give the folder"),
            (b"\x08\x07\x12\x07pytorch", "ONNX.*give the folder"),
            (b'\x40\0\0\0\0\0\0\0{"a"', "safetensors.*give the folder"),
            (b"SQLite format 3\0", "Magnitude.*give"),
            (b"\n\x0e\n\x05<unk>", "sentencepiece model.*give vectors"),
            (b"7z\xbc\xaf'\x1c", "unpack"),
            (b"\x89HDF\r\n\x1a\n", r"if pandas wrote it.*read_hdf\('.*v.any'\).*v.any.npz'"),
        )
    ),
    (None, np.linspace(-1, 1, 900).tobytes(), "GloVe.*give vectors.txt"),
    (None, packed(lambda stream: in_zip(stream, {"config.json": b"{}", "w.h5": b""})), "2 files.*unpack it"),
    (None, b"\n<!DOCTYPE html>\n<p>error 404</p>\n", "web page.*download"),
    (None, b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7\nsize 123\n", "git lfs pull"),
    (None, "a 1 2\nb 3 4\n".encode("utf-16"), "iconv"),
    *((None, f"a {s} [1{s}2]\nb {s} [3{s}4]\n".encode(), "tr ',;'") for s in ",;"),
    (None, LINES.replace(b"\n", b"\r"), r"tr '\\r' '\\n'"),
    *((None, head + b"a [0.1 0.2]\nb [0.1 0.2]\n", r"cat FILE \| tr -d '\"\[\]") for head in (b"", b"2 2\n")),
    *(
        (None, head + b"a f4.x(0.1) f(2)\nb f(0.1) f(0.2)\n", r"'a f4.*write .*cat FILE \| sed 's/.*\(/\(/g' \| tr")
        for head in (b"", b"2 2\n")
    ),
    (None, b"2 9\na 1:0.2 5:0.3\nb 1:0.2 5:0.3\n", "'a 1:0.2 5:0.3', .* 9 numbers .*write"),
    (None, b"a 1:0.2 5:0.3\nb 1:0.2 5:0.3\n", "'a 1:0.2 5:0.3'.*name the format"),
    (None, LINES + b">>>>>>> 1234\n", ":21: .*'>>>>>>> 1234.*remove"),
    (None, b"x 1 y\n" * 3 + b"a 1 2\n", r"3 of 4 lines .*name the format"),
    *((None, b"a 1 2\nbad 1 " + number + b"\n", ":2: .*'bad'.*delete the line") for number in (b"NaN", b"1e39")),
    *((None, LINES + end, ":21: .*download it again") for end in (b"z 1 2", b"z 1 2\n\n", b"z 1 2 1e-")),
    # word2vec's binary
    ("word2vec_bin", b"", ":1: .*download"),
    ("word2vec_bin", b"the 0.1 0.2\n", ":1: .*name the file's format"),
    *(("word2vec_bin", header, ":1: ") for header in (b"0 3\n", b"2 0\n", b"-2 3\n", b"2 3")),
    ("word2vec_bin", two(b"1 3\n"), "more bytes follow the 1 row .*export"),
    ("word2vec_bin", two(b"100000000000000000 3\n"), "cut short: row 3 is missing"),
    ("word2vec_bin", two(b"2 3\n")[:-6], "row 2 lacks 5 bytes.*again"),
    ("word2vec_bin", word2vec(["a", "\udcff", "\udcfe"], numbers(3)), "2 words are not UTF-8 text among the 3 rows"),
    ("word2vec_bin", b"9 3\n" + b"x" * (binary_records.LONGEST_WORD + 9), "row 1 has no word"),
    # fastText's binary
    *(
        ("fasttext_bin", fasttext(["x"], numbers(4), **head), said)
        for head, said in (
            ({"magic": 1}, "name the file's format"),
            ({"version": 13}, "version 13.*save"),
            ({"bucket": -1}, "damaged"),
            ({"bucket": 9}, "does not fit"),
            ({"pruned": 0}, r"\.ftz"),
            ({"quantised": True}, r"\.ftz.*\.vec"),
        )
    ),
    ("fasttext_bin", fasttext([], np.ones((4, 3))) + bytes(8), "damaged"),
    ("fasttext_bin", gzip.compress(fasttext(["x"], numbers(4))), "gunzip"),
    # npz
    (None, npz(words=None), "holds matrix.*numpy.savez"),
    ("npz", npz(matrix=None), "holds words.*numpy.savez"),
    ("npz", npz(dtype=object), "allow_pickle"),
    *(("npz", npz(words), "`words` has shape.*numpy.savez") for words in ((1, 2), (("a", "b"),))),
    *(("npz", npz(matrix=matrix), "`matrix` shape.*savez") for matrix in ((1.0, 2.0), ((1, 2), (3, 4)), ((1.0, 2.0),))),
    ("npz", npz(np.array([], "U1"), np.ones((0, 3))), r"`matrix` shape \(0, 3\)"),
    ("npz", npz((b"\xff", b"a")), "`words` is not Unicode text"),
    ("npz", npz(matrix=((1e39, 0.0), (0.0, 0.0))), "'a'.*infinity"),
    # containers
    *((format, encrypted(), "encrypted") for format in (None, "glove")),
    (None, packed(lambda stream: in_zip(stream, {})), "empty"),
    *((form, packed(partial(in_tar, mode=m)), "tar -xf") for form in (None, "word2vec_bin") for m in ("w", "w:gz")),
    (None, gzip.compress(LINES)[:-6] + bytes(6), "CRC check failed"),
    (None, b"\x28\xb5\x2f\xfd" + bytes(9), "zstd.*unpack|again"),  # which Python reads from 3.14
]


@pytest.mark.parametrize(("format", "content", "said"), REFUSED, ids=range(len(REFUSED)))
def test_a_file_that_cannot_be_read_is_one_line_with_a_remedy(tmp_path, format, content, said):
    with pytest.raises(VectorFileError, match=said) as error:
        open_vectors(path := write(tmp_path / "v.any", content), format).read()
    one_line(error, path)


@each_source
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_numbers_that_are_none_matter_in_wanted_rows_only(tmp_path, name, value):
    matrix = np.full((30, 3), 3e38, np.float32)  # their sum is no number of float32, they are
    matrix[1, 2] = value
    path = SOURCES[name].make(tmp_path, [f"w{row}" for row in range(30)], matrix)
    reader = open_vectors(path, dim=3)
    assert reader.read(Wanted.words(["w0", "w2"])).words == ["w0", "w2"]
    for wanted in (None, Wanted.words(["w1"])):
        with pytest.raises(VectorFileError, match=r"'w1'.*NaN") as error:
            reader.read(wanted)
        one_line(error, path)


@each_source_with("unreadable")
def test_words_that_are_no_text_are_counted_or_refused(tmp_path, name):
    words = ["w0", "w1", "w2", "\udcff", *(f"w{row}" for row in range(4, 40))]
    path = SOURCES[name].make(tmp_path, words, numbers(40))
    for wanted, count in ((None, 39), (Wanted.words(["w0", "w5"]), 2), (Wanted(folded=frozenset(["w5"])), 1)):
        table = open_vectors(path).read(wanted)
        assert len(table.words) == count
        if wanted is None or SOURCES[name].format.endswith("_bin"):  # lines of no interest are not looked at
            assert table.origin.broken_lines == 1
    with pytest.raises(VectorFileError, match=r"(row 4\b|v\.any:[45]:).*strict") as error:
        open_vectors(path, strict=True).read(Wanted.words(["w0"]))
    one_line(error, path)


# ---- damaged


@each_source_with("notices")
def test_every_cut_is_noticed(tmp_path, name):
    source = SOURCES[name]
    path = source.make(tmp_path, ["house", "über"], numbers(2))
    file = Path(path) / (source.file or "")
    content = file.read_bytes()
    step = max(1, len(content) // (8 if "torch" in name or "fairseq" in name else 25))
    for length in {*range(0, len(content), step), len(content) - 1}:
        file.write_bytes(content[:length])
        for format in (None, source.format):
            with pytest.raises(EmbinitError) as error:
                open_vectors(path, format).read(Wanted.words(["house"]))
            one_line(error, tmp_path)


@each_source
@settings(max_examples=10)
@given(data=st.data())
def test_damaged_files_are_read_or_refused(tmp_path, name, data):
    source = SOURCES[name]
    path = source.make(tmp_path, ["house", "▁über", "c", "d"], numbers(4))
    file = data.draw(st.sampled_from(sorted(file for file in tmp_path.iterdir() if file.is_file())))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        # heads stand in front: half of the damage goes there
        place = data.draw(st.integers(0, 130) | st.integers(0, 10**6)) % (len(content) + 1)
        new = data.draw(st.binary(max_size=4) | st.just(b"99999999"))
        content[place : place + data.draw(st.integers(0, 8))] = new
    file.write_bytes(content)
    use(path, data.draw(st.sampled_from([None, source.format])), data.draw(st.sampled_from([None, Wanted.words("cd")])))


# ---- memory


@each_source_with("sparing")
def test_only_what_is_wanted_takes_memory(tmp_path, name):
    """One row of 20,000 x 100, which are 8 MB; of a checkpoint only torch's memory grows, which is not traced."""
    words = [f"w{row}" for row in range(20_000)]
    path = SOURCES[name].make(tmp_path, words, np.full((20_000, 100), 0.5, np.float32))
    open_vectors(path).read(Wanted.words(["w7"]))  # imports libraries
    tracemalloc.start()
    table = open_vectors(path).read(Wanted.words(["w7", "none"]))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert table.matrix.tolist() == [[0.5] * 100]
    assert most < SOURCES[name].sparing * MB
