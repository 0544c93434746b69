"""dict.txt as fairseq reads it: what it loads is loaded here with the same rows, what it refuses is refused."""

from __future__ import annotations

import pytest
from fairseq.data import Dictionary
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import CheckpointError, DataError
from embinit_fairseq.vectors.fairseq_checkpoint import read_rows
from embinit_fairseq.vocab.dictionary import is_filler, read_dictionary
from embinit_fairseq.vocab.tokens import detect_style

SYMBOLS = st.sampled_from(["foo", "bar", "<s>", "<mask>", "madeupword0001", "a b", "#fairseq:overwrite", "é", "", "3"])
COUNTS = st.sampled_from(["3", "0", "-1", "+7", "1_0", "x", "", "3.5", "٣"])
ENDS = st.sampled_from(["\n", " \n", "\t\n", "\r\n", "\r", " #fairseq:overwrite\n", " #fairseq:overwrite  \n", "\n\n"])
LINES = st.lists(st.tuples(SYMBOLS, COUNTS, ENDS), min_size=1, max_size=5)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES)
@example(lines=[("foo", "3", " \n"), ("bar", "-1", "\n")])
def test_as_fairseq_reads_it(tmp_path, lines) -> None:
    path = tmp_path / "dict.txt"
    path.write_text("".join(f"{symbol} {count}{end}" for symbol, count, end in lines), encoding="utf-8", newline="")
    try:
        expected = Dictionary.load(str(path))
    except (ValueError, RuntimeError):
        for read, error in ((read_dictionary, DataError), (read_rows, CheckpointError)):
            with pytest.raises(error, match=r"dict\.txt:\d+: "):
                read(path)
        return
    vocabulary, rows = read_dictionary(path), read_rows(path)
    assert vocabulary.symbols == expected.symbols
    assert vocabulary.counts[4:].tolist() == [max(count, 0) for count in expected.count[4:]]
    assert rows.size == len(expected)
    names = {symbol for symbol in expected.symbols[4:] if not is_filler(symbol)} - {"<s>", "<mask>"}
    assert rows.words == {symbol: expected.indices[symbol] for symbol in names}


def test_a_file_without_a_symbol_is_no_dictionary(tmp_path) -> None:
    (tmp_path / "dict.txt").write_text("")
    with pytest.raises(DataError, match="no symbol in it"):
        read_dictionary(tmp_path / "dict.txt")


@pytest.mark.parametrize(("marked", "style"), [(1, "none"), (3, "wordpiece")])
def test_pieces_are_recognised_by_one_rule(marked: int, style: str) -> None:
    """Of 200 words: stray markers in word lists are fewer than one in fifty."""
    assert detect_style([f"##{i}" for i in range(marked * 2)] + [f"w{i}" for i in range(200 - marked * 2)]) == style
