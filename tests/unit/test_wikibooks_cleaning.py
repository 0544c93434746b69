"""scripts/wikibooks: what becomes of a line of text, and of a document."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sacremoses")
pytest.importorskip("spacy")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from wikibooks import clean, cleaning, joining


def shown(text: str) -> str:
    return "".join(cleaning.restore_symbols(character) for character in text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at http://www.x.org/a?b=c#d, or", "at <url>, or"),
        ("HTTPS://X.ORG.", "<url>."),
        ("(ftp://localhost/pub)", "(<url>)"),
        ("www.example.com/a.pdf!", "<url>!"),
        ("on amazon.com and bbc.co.uk", "on <url> and bbc.co.uk"),  # known endings only, as in the authors' code
        ("see en.wikipedia.org/wiki/X.", "see <url>."),
        ("joe.smith+x@mail.example.co.uk;", "<email>;"),
        ("joe@example.com", "<email>"),
        ("the file read_me.TXT is", "the file <file> is"),
        ("archive.old.zip, song.mp3", "<file>, <file>"),
        ("the end.The U.S. pays 1.5 e.g. for Node.js", "the end.The U.S. pays 1.5 e.g. for Node.js"),
        ("a.py", "a.py"),  # a name has two letters at least
        ("<URL> and <unk>", "<url> and <unk>"),
        ("a < b > c, http", "a < b > c, http"),
    ],
)
def test_addresses_and_files_become_symbols(text: str, expected: str) -> None:
    assert shown(cleaning.replace_patterns(text)) == expected


@pytest.fixture(scope="module")
def cleaner() -> cleaning.Cleaner:
    return cleaning.Cleaner()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Mr. Smith's “well-known” plan… failed! DID It?",
            ['mr. smith \'s " well-known " plan ... failed !', "did it ?"],
        ),
        ("Mail joe@x.org (or see www.x.org).", ["mail <email> ( or see <url> ) ."]),
        ("The <unk> won , <UNK> lost .", ["the <unk> won , <unk> lost ."]),
        ("`` No , '' he said -- and left .", ['" no , " he said -- and left .']),
        ("tab\there \u200bsoft\u00adhyphen\ue000\x07", ["tab here softhyphen"]),
        ("* * * ! ?", []),
        ("<url>", ["<url>"]),
        ("<s>a</s> &amp;", ["< s > a < / s > & amp ;"]),  # fairseq's own symbols cannot come from the text
        ("A" * 201 + " end", ["<unk> end"]),
        ("", []),
    ],
)
def test_a_line_becomes_tokenised_sentences(cleaner: cleaning.Cleaner, line: str, expected: list[str]) -> None:
    assert [" ".join(sentence) for sentence in cleaner(line)] == expected


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_tokens_are_lower_case_and_hold_no_blanks(cleaner: cleaning.Cleaner, line: str) -> None:
    for sentence in cleaner(line):
        assert sentence
        for token in sentence:
            assert token.split() == [token]
            assert token in (*cleaning.SYMBOLS, cleaning.UNKNOWN) or token not in ("<s>", "</s>", "<pad>", "<mask>")
            assert token == token.lower() or not token.isascii()  # a few letters change again when lowered twice


@pytest.mark.parametrize(
    "piece", ["a", "a.", "a@", "a-", "http://", "www.", "x.txt", "a.b@", ": ", "<", "\"'", "( ", "."]
)
def test_noise_takes_no_more_than_linear_time(cleaner: cleaning.Cleaner, piece: str) -> None:
    start = time.process_time()
    cleaner(piece * (100_000 // len(piece)))
    assert time.process_time() - start < 3  # quadratic in any of the steps: minutes


def test_passages_for_validation_are_cut_out_of_their_documents() -> None:
    lines = [(number, b"%d" % number) for number in range(450) if number != 120]
    # passages 7, 8, 9 and so on; every fifth is for validation, the first of them number 4
    found = list(clean.parts(lines, passage=7, valid_every=5))
    assert [split for split, _ in found] == ["train", "valid", "train"]
    assert [line for _, group in found for line in group] == [line for _, line in lines]
    assert found[1][1] == [b"%d" % number for number in range(200, 300)]


@pytest.mark.parametrize(("unit", "expected"), [("lines", [b"ac", b"", b"f"]), ("documents", [b"abc", b"de", b""])])
def test_duplicates_are_left_out(unit: str, expected: list[bytes]) -> None:
    documents = [[b"a", b"b", b"c"], [b"d", b"e"], [b"f"]]
    repeated = {1, 3, 4} if unit == "lines" else {2}
    found = list(clean.without_duplicates(iter(documents), repeated, unit))
    assert [size for size, _ in found] == [3, 2, 1]
    assert [b"".join(line for _, line in lines) for _, lines in found] == expected
    assert [number for number, _ in found[0][1]] == ([0, 2] if unit == "lines" else [0, 1, 2])


def test_documents_that_are_too_short_or_too_long_are_left_out(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(clean, "MAX_CHARS", 50)
    writer = clean.ShardWriter(tmp_path)
    for length in (3, 4, 10, 11):  # five characters a word
        writer.add("train", [["word"] * length])
    writer.add("valid", [["other", "<url>"] * 2, ["<unk>"]])
    writer.close()
    assert [len(line.split()) for line in (tmp_path / "train.txt").read_text().splitlines()] == [4, 0, 10, 0]
    assert (tmp_path / "valid.txt").read_text() == "other <url> other <url>\n<unk>\n\n"
    assert (tmp_path / "words.txt").read_text() == "word 14\n"  # neither symbols nor words of the validation text
    assert writer.stats["documents_out_of_length"] == 2
    assert (writer.stats["<url>"], writer.stats["<unk>"]) == (2, 1)


sentences = st.lists(
    st.integers(1, 300).flatmap(
        lambda n: st.sampled_from([["w"] * n, ["w"] * (n - 1) + ["."], ["w"] * min(n, 3), ["!"]])
    ),
    max_size=12,
)


@given(sentences)
def test_joining_keeps_words_and_leaves_no_short_sentence_that_could_be_joined(parts: list[list[str]]) -> None:
    joined = joining.join_short(parts)
    assert [word for part in joined for word in part] == [word for part in parts for word in part]
    assert all(len(part) <= joining.LONGEST or part in parts for part in joined)
    for first, second in zip(joined, joined[1:]):
        assert min(len(first), len(second)) >= joining.SHORT or len(first) + len(second) > joining.LONGEST


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b b b b b b", "a b b b b b b"),
        ("a a a a a a|no .|b b b b b", "a a a a a a no .|b b b b b"),  # behind a full stop: five words dearer
        ("a a a a a .|no|b b b b b b b", "a a a a a .|no b b b b b b b"),
        ("a a a a a a|no|b b b b b", "a a a a a a|no b b b b b"),
        ("a a a a a|no|b b b b b b", "a a a a a no|b b b b b b"),
        ("a a a a a|no|b b b b b", "a a a a a|no b b b b b"),  # both alike: the following one
        ("a|b|c", "a b c"),
    ],
)
def test_a_short_sentence_goes_to_the_shorter_neighbour(text: str, expected: str) -> None:
    joined = joining.join_short([part.split() for part in text.split("|")])
    assert "|".join(" ".join(part) for part in joined) == expected


@pytest.mark.parametrize("library", ["spacy", "sacremoses"])
def test_a_missing_library_is_named_with_the_remedy(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SystemExit, match=f"{library} is missing: pip install sacremoses spacy"):
        cleaning.Cleaner()
