"""The dictionary of the TUPE authors' code and fairseq's: the same symbol at the same id."""

from __future__ import annotations

import io

import authors_tupe as authors
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embinit_fairseq.convert_tupe.convert import convert_dictionary
from embinit_fairseq.errors import DataError

FUZZ = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<file>", "<email>", "<url>"]
# what a line of text can hold as one token; fairseq cuts lines at \n and \r only
SYMBOL = st.text(st.characters(blacklist_categories=("Cs", "Zs", "Zl", "Zp", "Cc")), min_size=1, max_size=4)


def their_ids(entries) -> dict[str, int]:
    """Their Dictionary: seven specials, the lines (of a symbol that stands twice the last counts), `<mask>`."""
    symbols = [*SPECIALS, *(symbol for symbol, _ in entries)]
    if "<mask>" not in symbols:
        symbols.append("<mask>")
    return {symbol: number for number, symbol in enumerate(symbols)}, len(symbols)


def fairseq_ids(text) -> dict[str, int]:
    dictionary = pytest.importorskip("fairseq.data").Dictionary()
    dictionary.add_from_file(io.StringIO(text))
    dictionary.add_symbol("<mask>")  # as masked_lm and sentence_prediction do
    return dictionary.indices, len(dictionary)


@FUZZ
@given(
    st.lists(
        st.tuples(SYMBOL | st.sampled_from([*SPECIALS, "<mask>", "a", "madeupword0000"]), st.integers(0, 10**9)),
        min_size=1,
        max_size=12,
    )
)
def test_ids_agree(tmp_path, entries):
    ids, size = their_ids(entries)
    path = authors.write_dictionary(tmp_path / "theirs.txt", entries)
    converted = convert_dictionary(path, size)
    assert converted.added == 3
    assert fairseq_ids(converted.text) == (ids, size)


def test_the_usual_file_gets_three_lines(tmp_path):
    entries = authors.words_of_dictionary(24)
    path = authors.write_dictionary(tmp_path / "theirs.txt", entries)
    converted = convert_dictionary(path, 25)
    lines = converted.text.splitlines()
    assert lines[:4] == ["<file> 1", "<email> 1", "<url> 1", "w0 100"]
    assert lines[-2:] == ["madeupword0000 0", "madeupword0001 0"]
    assert (len(lines), converted.added) == (len(entries) + 3, 3)


def test_a_converted_file_is_not_shifted_again(tmp_path):
    entries = [*((symbol, 1) for symbol in SPECIALS[4:]), *authors.words_of_dictionary(24)]
    path = authors.write_dictionary(tmp_path / "dict.txt", entries)
    converted = convert_dictionary(path, 25)
    assert converted.added == 0
    assert converted.text == (tmp_path / "dict.txt").read_text()
    assert fairseq_ids(converted.text)[0]["w0"] == 7


def test_the_number_of_rows_decides_what_a_file_is(tmp_path):
    """Words that are spelled like the specials: with three rows more, the file is theirs as it stands."""
    entries = [*((symbol, 1) for symbol in SPECIALS[4:]), *authors.words_of_dictionary(24)]
    path = authors.write_dictionary(tmp_path / "dict.txt", entries)
    converted = convert_dictionary(path, 28)
    assert converted.added == 3
    assert converted.text.splitlines()[3] == "<file> 1 #fairseq:overwrite"
    assert fairseq_ids(converted.text) == their_ids(entries)
    # and what comes out is recognised
    (tmp_path / "again.txt").write_text(converted.text)
    assert convert_dictionary(str(tmp_path / "again.txt"), 28).text == converted.text


@pytest.mark.parametrize("change", [-4, -3, -1, 1, 3])
def test_a_dictionary_of_another_model(tmp_path, change):
    path = authors.write_dictionary(tmp_path / "theirs.txt", authors.words_of_dictionary(24))
    with pytest.raises(DataError, match=r"theirs\.txt: 17 lines make 25 symbols.*has \d+ rows; give --dict"):
        convert_dictionary(path, 25 + change)


@pytest.mark.parametrize("content", ["word\n", "the 1\n\na 1\n", "the x\n", "the 1.5\n", "the \u00b2\n", "the cat\n"])
def test_malformed_lines(tmp_path, content):
    (tmp_path / "dict.txt").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"dict\.txt:[12]: "):
        convert_dictionary(str(tmp_path / "dict.txt"), 9)


def test_other_files(tmp_path):
    (tmp_path / "dict.txt").write_bytes(b"\xff 1\n")
    with pytest.raises(DataError, match=r"dict.txt:1: not UTF-8"):
        convert_dictionary(str(tmp_path / "dict.txt"), 9)
    (tmp_path / "dict.txt").write_bytes(b"")
    with pytest.raises(DataError, match="no symbol in it"):
        convert_dictionary(str(tmp_path / "dict.txt"), 8)
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        convert_dictionary(str(tmp_path), 8)
    (tmp_path / "dict.txt").write_bytes(b"a 1\r\nb 1")  # Windows, no last newline
    assert convert_dictionary(str(tmp_path / "dict.txt"), 10).text.endswith("\na 1\nb 1\n")
