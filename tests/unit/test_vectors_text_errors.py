"""Text vectors that are empty, cut short, broken or of another width: errors name file, line and remedy."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from embinit_fairseq.errors import DimensionError, VectorFileError
from embinit_fairseq.vectors.open import open_vectors
from embinit_fairseq.vectors.table import Wanted

PADDING = "".join(f"padding{n} 0 0\n" for n in range(30))


def write(path: Path, data: bytes | str) -> str:
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return str(path)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"  \n", gzip.compress(b"", mtime=0)])
@pytest.mark.parametrize("format", [None, "glove", "word2vec"])
def test_empty_file(tmp_path, content, format):
    with pytest.raises(VectorFileError, match=r"v.txt: the file is empty"):
        open_vectors(write(tmp_path / "v.txt", content), format)


@pytest.mark.parametrize("text", ["a 1 2 3\nb 4 5 6\n", "2 3\na 1 2 3\nb 4 5 6\n"])
@pytest.mark.parametrize("dim", [1, 2, 4, 300])
def test_wrong_dimension_names_the_flags(tmp_path, text, dim):
    with pytest.raises(
        DimensionError, match=r"have 3 dimensions, expected \d+.*--encoder-embed-dim 3 .*--decoder-embed-dim 3"
    ):
        open_vectors(write(tmp_path / "v.txt", text), dim=dim)


def test_dimension_resolves_doubt(tmp_path):
    """All words end in a number: only the expected width tells it from the vector."""
    path = write(tmp_path / "v.txt", "page 1 0.5 0.5\npage 2 0.25 0.5\na 1 2\n")
    assert open_vectors(path).dim == 3
    assert open_vectors(path, dim=2).read().words == ["page 1", "page 2", "a"]


@pytest.mark.parametrize("tail", ["z 1 2", "z 1 2\n", "z", "z 1 2 -", "z 1 2 1e-", "z 1 2\n\n"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("wanted", [None, Wanted.words("a")])
def test_truncated_last_line(tmp_path, tail, strict, wanted):
    path = write(tmp_path / "v.txt", "a 1 2 3\n" * 20 + tail)
    with pytest.raises(VectorFileError, match=r"v.txt:21: the last line .*Download it again"):
        open_vectors(path, strict=strict).read(wanted)


def test_header_and_rows_disagree(tmp_path, caplog):
    with pytest.raises(VectorFileError, match=r"announces 3 rows, but the file has 2.*cut short"):
        open_vectors(write(tmp_path / "v.txt", "3 2\na 1 2\nb 3 4\n")).read(Wanted.words("a"))
    with pytest.raises(VectorFileError, match=r"v.txt:1: the header announces 3 numbers a line, .* have 2"):
        open_vectors(write(tmp_path / "v.txt", "2 3\na 1 2\nb 3 4\n"))
    table = open_vectors(write(tmp_path / "v.txt", "1 2\na 1 2\nb 3 4\n")).read()
    assert table.words == ["a", "b"]
    assert "announces 1 row, read 2" in caplog.text
    with pytest.raises(VectorFileError, match=r"no header 'ROWS DIM'.*--embed-init-format glove"):
        open_vectors(write(tmp_path / "v.txt", "a 1 2\nb 3 4\n"), "word2vec")
    with pytest.raises(VectorFileError, match=r"no vectors follow the header"):
        open_vectors(write(tmp_path / "v.txt", "5 2\n"))


GOOD = [f"w{i} {i}.5 0.25 -1.0" for i in range(1200)]
BROKEN = {
    "few": ("w3 1 2", "3 fields instead of 4"),
    "word": ("w3 1 x 2", "is no number"),
    "blank": ("w3 1.5 2.5 ", "3 fields instead of 4"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_few_broken_lines_are_counted_or_refused(tmp_path, kind, caplog):
    line, reason = BROKEN[kind]
    path = write(tmp_path / "v.txt", "\n".join([*GOOD[:3], line, *GOOD[4:]]) + "\n")
    for wanted, count in ((None, 1199), (Wanted.words(["w3", "w4"]), 1)):
        caplog.clear()
        table = open_vectors(path).read(wanted)
        assert (len(table.words), table.origin.broken_lines, table.origin.rows) == (count, 1, 1199)
        assert "1 broken line ignored: line 4 (" in caplog.text
        assert reason in caplog.text
    with pytest.raises(VectorFileError, match=rf"v.txt:4: .*{reason}.*--embed-init-strict"):
        open_vectors(path, strict=True).read(Wanted.words(["w1"]))


def test_short_lines_of_unwanted_words_are_counted(tmp_path):
    path = write(tmp_path / "v.txt", "a 1 2\nx 1\nb 3 4\n" + PADDING)
    assert open_vectors(path).read(Wanted.words("ab")).origin.broken_lines == 1


def test_a_line_without_word_is_broken(tmp_path):
    table = open_vectors(write(tmp_path / "v.txt", "a 1 2\n 3 4\nb 5 6\n" + PADDING)).read()
    assert (table.words[:2], table.origin.broken_lines) == (["a", "b"], 1)


def test_words_that_are_not_utf8_are_broken_lines(tmp_path):
    path = write(tmp_path / "v.txt", b"a 1 2\n\xff\xfe 3 4\nb 5 6\n" + PADDING.encode())
    table = open_vectors(path).read()
    assert (table.words[:2], table.origin.broken_lines) == (["a", "b"], 1)
    with pytest.raises(VectorFileError, match=r"v.txt:2: .*not UTF-8"):
        open_vectors(path, strict=True).read()


@pytest.mark.parametrize("gap", [" ", "  "])
@pytest.mark.parametrize("number", ["nan", "NaN", "inf", "-Infinity", "1e39"])
@pytest.mark.parametrize("strict", [False, True])
def test_nan_and_infinity_in_a_wanted_row(tmp_path, number, strict, gap):
    path = write(tmp_path / "v.txt", f"a 1 2\nbad 1{gap}{number}\nb 3 4\n")
    with pytest.raises(VectorFileError, match=r"v.txt:2: the vector of 'bad' holds NaN, infinity"):
        open_vectors(path, strict=strict).read(Wanted.words(["bad"]))
    if not strict:
        assert open_vectors(path).read(Wanted.words("ab")).words == ["a", "b"]


@pytest.mark.parametrize(
    ("good", "broken", "tolerated"), [(4, 1, False), (19, 1, True), (300, 10, True), (300, 11, False)]
)
def test_how_many_broken_lines_are_a_few(tmp_path, good, broken, tolerated):
    text = "".join(f"w{n} 1 2\n" for n in range(good - 1)) + "short 1\n" * broken + "last 1 2\n"
    reader = open_vectors(write(tmp_path / "v.txt", text))
    if tolerated:
        assert reader.read().origin.broken_lines == broken
    else:
        verb = "is" if broken == 1 else "are"
        with pytest.raises(VectorFileError, match=rf"v.txt:{good}: {broken} of {good + broken} lines {verb} no word"):
            reader.read()


def test_many_broken_lines_mean_another_file(tmp_path):
    lines = [line if i % 50 else "w 1 2" for i, line in enumerate(GOOD)]
    with pytest.raises(
        VectorFileError, match=r"24 of 1,200 lines are no word with 3 numbers: lines 1 .*--embed-init-format"
    ):
        open_vectors(write(tmp_path / "v.txt", "\n".join(lines) + "\n"), dim=3).read()
    with pytest.raises(VectorFileError, match=r"3 of 4 lines are no word with 2 numbers"):
        open_vectors(write(tmp_path / "v.txt", "x 1 y\n" * 3 + "a 1 2\n")).read()
