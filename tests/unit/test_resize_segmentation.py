"""New words that a segmenter produces, and old text that it segments as before: subword-nmt and sentencepiece."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import sentencepiece
from expand_checkpoints import argv, make
from hypothesis import given, settings
from hypothesis import strategies as st
from segmentations import KINDS, TRAINING, mark_of, opened, train, words
from segmentations import files as files
from subword_nmt.apply_bpe import BPE

from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import DataError, EmbinitError
from embinit_fairseq.resize.expand import NewWord, check_words
from embinit_fairseq.resize.new_segmentation import compare, is_reachable, only_joined, write_segmentation
from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.segmentation import Sentencepiece, SubwordNmt, check_segmentation, read_segmentation


@settings(max_examples=30)
@given(st.lists(words, max_size=12), st.sets(words, min_size=1, max_size=4), st.sampled_from(KINDS))
def test_old_text_is_segmented_as_before(files, text: list[str], new: set[str], kind: str) -> None:
    """Word by word: a new one is one piece; of sentencepiece longer words may begin with it."""
    old, mark = opened(files, kind), mark_of(kind)
    symbols = [mark + word for word in sorted(new) if len(old.segment(word)) > 1]
    with tempfile.TemporaryDirectory() as folder:  # a glossary of another example would be read, too
        grown = old.write(symbols, Path(folder))
    kept = [
        word for word in text if mark + word in symbols or not (mark and f"{mark}{word}".startswith((*symbols, " ")))
    ]
    pieces = [[mark + word] if mark + word in symbols else old.segment(word) for word in kept]
    assert grown.segment(" ".join(kept)) == [piece for each in pieces for piece in each]
    assert only_joined(old.segment(" ".join(text)), grown.segment(" ".join(text)), symbols, old)
    assert all(is_reachable(grown, symbol, "ba") for symbol in symbols)
    assert all(grown.segment_symbol(symbol) == [symbol] for symbol in symbols)


def test_more_than_new_words_has_changed(files) -> None:
    before, old = "a@@ b c@@ d@@ e a".split(), opened(files, "codes")
    assert only_joined(before, "ab cde a".split(), ["ab", "cde"], old)
    others = {"ab cde a": "ab", "a@@ b c@@ d@@ e": "", "a@@ b c@@ d@@ e a a": "a", "a@@ bc@@ d@@ e a": "bc@@"}
    for after, new in others.items():
        assert not only_joined(before, after.split(), new.split(), old), after


def test_words_that_are_regular_expressions(files, tmp_path) -> None:
    """Each matches itself only, `cat` not in `category`; a later expansion keeps those that are in its dictionary."""
    words = ["cat", "c++", "a.b", "(x", "x|y", "[a-z]", "b\\", "^$", "日本"]
    other = "category bobcat cats c+++ axb x y (x| c 日本語"
    old = SubwordNmt(str(files["codes"]))
    first = old.write(words, tmp_path)
    assert first.segment(" ".join(words)) == words
    assert first.segment(other) == old.segment(other)
    second = SubwordNmt(first.path, symbols={*words} - {"a.b"})
    assert second.segment("cat a.b x|y") == ["cat", *old.segment("a.b"), "x|y"]
    (tmp_path / "more").mkdir()
    assert second.write(["dog"], tmp_path / "more").segment("cat dog dogs") == ["cat", "dog", *old.segment("dogs")]
    command = "subword-nmt apply-bpe --codes 'the folder/bpe.codes' --glossaries \"$(cat 'the folder/gl"
    assert first.command("the folder").startswith(command)
    (tmp_path / "more" / "glossary.txt").write_text("cat|dog\n")
    with pytest.raises(DataError, match=r"glossary.txt: .*move it"):
        SubwordNmt(str(tmp_path / "more" / "bpe.codes"))
    with pytest.raises(DataError, match=r"--words: .* 131,071; add fewer"):
        old.write([f"word{number}" for number in range(15_000)], tmp_path)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "word", "bytes"])
def test_a_grown_model_of_sentencepiece(files, tmp_path, kind: str) -> None:
    """Old numbers stay; unknown characters; a word inside of words; a word that is a piece already; a word twice."""
    old = opened(files, kind)
    (first, *_), processor = old.segment("ba"), sentencepiece.SentencePieceProcessor(str(files[kind]))
    words = ["▁龍鳳x", "▁qu", "▁ba▁qu", "▁quz"]
    new = old.write([*words, first], tmp_path)
    grown = sentencepiece.SentencePieceProcessor(new.path)
    size = processor.get_piece_size()
    assert [grown.id_to_piece(row) for row in range(size)] == [processor.id_to_piece(row) for row in range(size)]
    assert grown.get_piece_size() - size == len(words) + (5 if kind == "bpe" else 0)  # and what lies between
    reached = [word for word in words if kind != "word" or word != "▁ba▁qu"]
    assert [word for word in words if is_reachable(new, word, "lona")] == reached
    assert grown.encode("lo  龍鳳x quz ", out_type=str)[-2:] == ["▁龍鳳x", "▁quz"]
    assert (old.is_unknown("龍鳳未"), old.is_unknown("▁ba")) == (kind not in ("word", "bytes"), False)
    text = "鳳 龍鳳xy qu, quba é"
    assert only_joined(old.segment(text), new.segment(text), words, old)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "bytes", "codes"])
def test_words_of_scripts_without_spaces_are_reached_inside_of_text(files, tmp_path, kind: str) -> None:
    """Without ▁, as most words of Chinese or Thai are in text; Latin words are not. subword-nmt has no such words."""
    old, words = opened(files, kind), ["龍鳳", "ที่นี่", "😂😂", "lolo"]
    new = old.write(words, tmp_path)
    inside = [word for word in words[:3] if word in new.segment(f"lona{word}")]
    assert inside == ([] if kind == "codes" else words[:3])
    assert [word for word in words if is_reachable(new, word, "ba")] == (inside or words)


def test_a_word_whose_first_letter_is_a_subword_with_the_space(tmp_path) -> None:
    """Between spaces text gives ▁龍 and 鳳, and the word after other letters."""
    with mock.patch("segmentations.TRAINING", ["龍 龍x 龍虎"] * 200):
        old = Sentencepiece(str(train(tmp_path / "old", "bpe")))
    new = old.write(["龍鳳"], tmp_path)
    assert (new.segment("龍鳳"), new.segment("x龍鳳")[-1]) == (["▁龍", "鳳"], "龍鳳")
    assert is_reachable(new, "龍鳳", "x")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_new_words_that_begin_with_new_words(files, tmp_path, kind: str) -> None:
    old = opened(files, kind)
    for parts in filter(lambda parts: len(parts) > 2, map(old.segment, sorted(set(" ".join(TRAINING).split())))):
        nested = ["".join(parts[:end]) for end in range(2, len(parts) + 1)]
        new = old.write(nested, tmp_path)
        assert [word for word in nested if is_reachable(new, word, "ba")] == nested


def test_the_command_that_segments_a_text(files, tmp_path, capsys) -> None:
    """A wheel of sentencepiece brings no programs: then the command is one of Python."""
    new = opened(files, "unigram").write(["▁quz"], tmp_path)
    with mock.patch("shutil.which", bool):
        assert new.command("a b").startswith("spm_encode --model='a b/sentencepiece.model' --output_format=piece")
    with mock.patch("shutil.which", return_value=None):
        _, flag, program, model, *_ = shlex.split(new.command(str(Path(new.path).parent)))
    (text := tmp_path / "text").write_text("quz ba\u2028x\n\nlona\n", encoding="utf-8")
    with mock.patch("sys.argv", [flag, model]):
        exec(program, {"open": lambda file, **how: text.open(**how)})
    expected = [" ".join(new.segment(line)) for line in ("quz ba\u2028x", "", "lona")]
    assert capsys.readouterr().out.split("\n")[:-1] == expected


# ---- Which segmentation a dictionary is of


class Some:
    """A segmentation that makes some subwords, and leaves runs of characters that it does not know."""

    flag, path = "--sentencepiece-model", "model"

    def __init__(self, made: set[str], unknown: set[str]) -> None:
        self.made, self.makes, self.is_unknown = made, made.__contains__, unknown.__contains__


@pytest.mark.parametrize(("own", "others", "unknown", "unused", "count", "taken"), [
    (8, 2, 0, 9, 1, True),  # four fifths of the subwords, even if it makes many more
    (7, 2, 0, 9, 1, False),
    (8, 2, 9, 9, 2, True),  # runs of unknown characters do not count,
    (4, 0, 9, 9, 1, False),  # unless they are most of the text: of another script
    (9, 9, 0, 1, 1, True),  # a dictionary of two segmentations has nearly all that each of them makes,
    (9, 9, 0, 2, 1, False),
    (8, 13, 0, 0, 1, False),  # and two fifths of its text are of it
])  # fmt: skip
def test_the_shares_that_a_segmentation_must_have(tmp_path, own, others, unknown, unused, count, taken) -> None:
    kinds = {"own": own, "other": others, "unknown": unknown, "unused": unused}
    symbols = {kind: {f"{kind}{row}" for row in range(number)} for kind, number in kinds.items()}
    lines = [
        f"{symbol} {count if kind == 'own' else 1}" for kind in ("own", "other", "unknown") for symbol in symbols[kind]
    ]
    lines += ["▁a 40"]  # single characters are everywhere, and do not count
    (tmp_path / "dict.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    segmentation = Some(symbols["own"] | symbols["unused"], symbols["unknown"])
    with contextlib.nullcontext() if taken else pytest.raises(DataError, match="can make only"):
        check_segmentation(segmentation, read_dictionary(tmp_path / "dict.txt"), "dict.txt")


# ---- Files of codes

#: one file of codes (0.2), as other programs write it
CODES = {
    "tabs": lambda pairs: ["#version: 0.2", *(pair.replace(" ", "\t") for pair in pairs)],
    "fastBPE": lambda pairs: [f"{pair} {1000 - row}" for row, pair in enumerate(pairs)],
    "two columns of fastBPE": lambda pairs: pairs,
    "Hugging Face": lambda pairs: ["#version: 0.2 - Trained by `huggingface/tokenizers`", *pairs],
    "Windows": lambda pairs: ["\ufeff#version: 0.2\r", *(f"{pair}\r" for pair in pairs)],
}


@pytest.mark.parametrize("program", CODES)
def test_codes_of_other_programs_segment_as_the_same_codes(files, tmp_path, program) -> None:
    """And what is written for a grown dictionary is codes of subword-nmt."""
    pairs, text = files["codes"].read_text().splitlines()[1:], " ".join(TRAINING[:50])
    (tmp_path / "codes").write_text("\n".join([*CODES[program](pairs), ""]), encoding="utf-8")
    old = SubwordNmt(str(tmp_path / "codes"))
    assert old.segment(text) == opened(files, "codes").segment(text)
    old.write(["lolo"], tmp_path)
    assert (tmp_path / "bpe.codes").read_bytes() == files["codes"].read_bytes()


@pytest.mark.parametrize("header", ["#version: 0.1\n", ""])
def test_codes_in_which_the_end_of_a_word_is_a_piece(tmp_path, header: str) -> None:
    """Version 0.1: `lo` ends a word by the second merge only, as subword-nmt itself reads it."""
    (tmp_path / "codes").write_text(f"{header}l o\nlo </w>\no </w>\n")
    with open(tmp_path / "codes") as codes:
        expected = BPE(codes).process_line("lo lolo ol").split()
    old = SubwordNmt(str(tmp_path / "codes"))
    assert old.segment("lo lolo ol") == expected == ["lo", "lo@@", "lo", "o@@", "l"]
    assert old.makes("lo")
    assert old.write(["x"], tmp_path).segment("lo lolo ol") == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("the 900\nof 800\n", "found subwords with their counts, .*give the codes"),
        ("#version: 0.2\nĠ t\nh e\n", "found byte-level merges, .*--gpt2-bpe"),
        ("▁ t\n▁t he\n", "found merges of sentencepiece, .*give its model"),
        ("#version: 0.3\na b</w>\n", "found version 0.3, .*give codes of version"),
        ("#version: 0.2\n", "found no pair, .*learn-bpe"),
        ("a b\n\nc d\n", "codes:2: found an empty line, .*fastBPE"),
        ("a b\na b c\n", "codes:2: found 'a b c', .*fastBPE"),
    ],
)
def test_files_that_are_no_segmentation(tmp_path, text, said) -> None:
    file = str(tmp_path / "codes")
    Path(file).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"--bpe-codes .*{said}"):
        SubwordNmt(file)
    for options, expected in (((None, file), "--sentencepiece-model"), ((file, file), "give the one")):
        with pytest.raises(EmbinitError, match=expected):
            read_segmentation(*options)


@pytest.mark.parametrize(
    ("kind", "word", "said"),
    [
        ("codes", "ba@@", "new.txt:7: 'ba@@' cannot be reached: .*write one, or leave"),
        ("unigram", "▁½", "new.txt:7: '▁½' .* normaliser of .* makes '▁1⁄2' of it; write that"),
        ("char", "▁ba", "new.txt:7: .*char is a model of characters.*leave --sentencepiece-model out"),
        ("bpe", "\x02", "new.txt:7: .* removes it; leave it out"),
    ],
)
def test_words_that_cannot_be_reached(files, kind, word, said) -> None:
    with pytest.raises(DataError, match=said):
        check_words("new.txt", [NewWord(word, 7)], opened(files, kind))


# ---- The command


@pytest.mark.parametrize("kind", ["codes", "unigram"])
def test_counts_in_old_text(files, tmp_path, kind: str) -> None:
    """Of each word before and after, and at the beginning of longer words."""
    old, mark = opened(files, kind), mark_of(kind)
    word = next(word for word in " ".join(TRAINING).split() if len(old.segment(word)) > 2)
    (tmp_path / "text").write_text(f"{word} lo {word} lo\n\n{word}q {word}\nlo\n", encoding="utf-8")
    known = [*old.segment("lo"), *old.segment(word)]
    record = write_segmentation(old, [mark + word], known, [str(tmp_path / "text")], tmp_path, "out")
    longer = {} if kind == "codes" else {mark + word: 1}
    occurrences = {mark + word: 3 + len(longer)}
    numbers = {"sentences": 3, "changed": 2, "before": {}, "after": occurrences, "inside_longer_words": longer}
    pieces = [piece for line in (f"{word} lo {word} lo", f"{word}q {word}", "lo") for piece in old.segment(line)]
    numbers["known"] = sum(piece in known for piece in pieces) / len(pieces)
    assert record["text"] == {"files": [str(tmp_path / "text")], **numbers}
    assert (record["reachable"], record["unreachable"]) == (1, {})


class Another(SubwordNmt):
    """Segments the last word otherwise."""

    def segment(self, text: str) -> list[str]:
        return [*super().segment(text)[:-1], "q"]


def test_old_text_that_is_not_segmented_as_before_or_is_none(files, tmp_path) -> None:
    old, other = opened(files, "codes"), Another(str(files["codes"]))
    segmented = "\n".join(" ".join(old.segment(line)) for line in TRAINING)
    for text, new, said in (
        ("lo ba\n", other, r"text:1: .*leave out the word"),
        ("\n", old, "no sentence"),
        (segmented, old, "text: found subwords .* of 300 lines, .*before its"),
    ):
        (tmp_path / "text").write_text(text)
        with pytest.raises(DataError, match=f"--segment-text .*{said}"):
            compare(old, new, [], [str(tmp_path / "text")], old.segment("lo ba"))


@pytest.mark.parametrize("kind", ["codes", "unigram"])
def test_the_command(files, tmp_path, shown, refused, kind: str) -> None:
    """Also with a method that needs subwords; without codes what to do; for another dictionary it is refused."""
    old, mark = opened(files, kind), mark_of(kind)
    text = tmp_path / "text"
    text.write_text("\n".join(TRAINING), encoding="utf-8")
    checkpoint = make(tmp_path, "lm_tied", words=list(dict.fromkeys(old.segment(text.read_text()))))
    words = [mark + word for word in dict.fromkeys(text.read_text().split()) if len(old.segment(word)) > 2][:3]
    unreachable = ["lolo"] if mark else []
    options = [old.flag, files[kind], "--segment-text", text, "--method", "subword"]
    said = shown(*argv(checkpoint, *map(str, options), words=[*words, *unreachable]))
    record = json.loads((checkpoint.output / "expansion.json").read_text())
    found = record["segmentation"]
    assert f"reachable      3 of {3 + len(unreachable)}" in said
    assert list(found["unreachable"]) == unreachable
    assert re.search(r"not reachable  lolo \(", said) if unreachable else "not reachable" not in said
    assert f"segment by     {found['command']}" in said
    assert str(checkpoint.output) in found["command"]
    assert f"300 sentences segmented as before but for new words ({found['text']['changed']} have some)" in said
    assert {*found["files"]} <= {*record["files"]} == {path.name for path in checkpoint.output.iterdir()}
    assert "segment_text 1" in record["sha256"]

    advice = shown(*argv(checkpoint, "--force", words=words))
    assert "attention      the dictionary has subwords: " in advice
    assert f"give {old.flag} " in advice
    assert not {*found["files"]} & {path.name for path in checkpoint.output.iterdir()}
    plain = make(tmp_path / "plain", "lm_tied")
    assert "attention" not in shown(*argv(plain))
    assert f"{old.flag} {files[kind]}: " in refused(*argv(plain, "--force", old.flag, str(files[kind])))


@pytest.mark.parametrize("kind", KINDS)
def test_words_whose_subwords_the_dictionary_lacks_are_split_further(files, tmp_path, capsys, kind) -> None:
    """As of codes of two languages and a dictionary of one: into its own subwords, as `apply-bpe --vocabulary`."""
    old, mark = opened(files, kind), mark_of(kind)
    new = [mark + word for word in ("badeki", "lomunaki")]
    lacking = {subword for word in new for subword in old.segment_symbol(word) if len(subword.strip("▁@")) > 1}
    letters = sorted({*"".join(TRAINING)} - {" "})
    letters += ["▁"] if mark else [f"{letter}@@" for letter in letters]
    made = (subword for line in TRAINING for subword in old.segment(line) if subword not in lacking)
    symbols = dict.fromkeys([*letters, *made])
    checkpoint = make(tmp_path, "lm_tied", words=list(symbols))
    option = "--bpe-codes" if kind == "codes" else "--sentencepiece-model"
    assert main(argv(checkpoint, "--method", "subword", option, files[kind], words=new)) == 0
    said = capsys.readouterr().out
    record = json.loads((checkpoint.output / "expansion.json").read_text())
    found = {word["word"]: word["subwords"] for word in record["words"]}
    if kind == "codes":
        with open(files[kind]) as codes:
            split = BPE(codes, vocab={*symbols}).process_line
        assert found == {word: split(word).split() for word in new}
    assert record["split_further"] == {word: [old.segment_symbol(word), found[word]] for word in new}
    for word in new:
        assert "".join(found[word]).replace("@@", "") == word
        assert symbols.keys() >= {*found[word]}
        assert f"{word} ({' '.join(found[word])}, not " in said
    assert record["segmentation"]["reachable"] == 2
