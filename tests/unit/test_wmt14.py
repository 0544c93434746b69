"""scripts/wmt14: shards, whole test sets, cleaning, sentencepiece, tokenised BLEU."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sacremoses")

from sacrebleu.metrics import BLEU
from wmt14 import clean, encode, learn, sgm, tokenized_bleu

from embinit_fairseq.runs.detokenizers import detokenizer

pairs_of_lines = st.lists(st.tuples(st.text("aé ", max_size=4), st.text("bß\r\u2028", max_size=4)), min_size=1)


@settings(max_examples=40)
@given(pairs_of_lines, st.integers(1, 7), st.none() | st.integers(1, 9), st.booleans())
def test_shards_hold_every_pair_once(tmp_path: Path, pairs: list, size: int, limit: int | None, last: bool) -> None:
    paths = {lang: tmp_path / lang for lang in ("en", "de")}
    for path, side in zip(paths.values(), zip(*pairs)):
        path.write_bytes(("\n".join(side) + ("\n" if last or not side[-1] else "")).encode())
    found, expected = list(clean.cut(paths, 11, size, limit)), pairs[: limit or len(pairs)]
    numbers = [shard["first"] + i for shard in found for i in range(shard["pairs"])]
    assert numbers == list(range(11, 11 + len(expected)))
    assert max(shard["pairs"] for shard in found) <= size
    for lang, side in zip(paths, zip(*expected)):
        places = [shard[lang] for shard in found]
        held = b"".join(Path(path).read_bytes()[begin : begin + length] for path, begin, length in places)
        assert held.removesuffix(b"\n").decode().split("\n") == list(side)
        assert {path for path, _, _ in places} == {str(paths[lang])}
    paths["de"].write_bytes(paths["de"].read_bytes().removesuffix(b"\n") + b"\none more\n")
    if limit is None:
        with pytest.raises(SystemExit, match=rf"/de has more lines than .*/en \({len(pairs)}\): they do not belong"):
            list(clean.cut(paths, 1, size, None))


TALKS = """<mteval>
<doc docid="767" genre="lectures">
<title>A title</title>
<seg id="1"> Thank you. </seg>
<seg id="2"> Yes &amp; no. </seg>
</doc>
<doc docid="769">
<seg id="3"> Hello. </seg>
</doc>
</mteval>
"""
#: upper case, other quotes and orders, a segment over two lines, two in a line
OLD = """<DOC GENRE=news DOCID=first>
<SEG lang="en" ID = 'a1'>one
two</SEG> <Seg id=2>three</sEG>
<seg ID="3"/>
</DOC>
"""


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TALKS, [("767", "1", "Thank you."), ("767", "2", "Yes &amp; no."), ("769", "3", "Hello.")]),
        (OLD, [("first", "a1", "one two"), ("first", "2", "three"), ("first", "3", "")]),
        ("<seg>a</seg>\r\n<seg>b\u2028c\u0085</seg>", [(None, None, "a"), (None, None, "b c")]),
    ],
)
def test_segments_of_all_kinds_of_files_and_a_file_that_is_cut_anywhere(text, expected, tmp_path: Path) -> None:
    path, last = tmp_path / "file", text.rindex(">")  # without the line feed after the last tag nothing is lost
    for whole in (text, text[: last + 1]):
        assert sgm.read_sgm(written(path, whole)) == [sgm.Segment(*each) for each in expected]
    for size in range(last + 1) if expected[0][0] else ():
        with pytest.raises(SystemExit, match=rf"^error: {path}: "):
            sgm.read_sgm(written(path, text[:size]))


def test_what_is_damaged_or_does_not_belong_together_is_named(tmp_path: Path) -> None:
    whole, other = written(tmp_path / "a", TALKS), tmp_path / "b"
    for old, new, message in (
        (" Thank you. </seg>", "", "tags <seg>"),
        ("<mteval>\n", "", "tags <mteval>"),
        ('<seg id="3"> Hello', "Hello", "tags <seg>"),
        ('id="2"', 'id="4"', "segment 2 of .* has id 2 .* id 4 of document 767"),
        ('docid="769"', 'docid="770"', "segment 3 of .* document 769, .* document 770"),
        ('<seg id="3"> Hello. </seg>\n', "", "has 3 sentences, .* 2"),
    ):
        written(other, TALKS.replace(old, new))
        with pytest.raises(SystemExit, match=message + ".* get (it|them) again"):
            sgm.read_pair(whole, other)
    written(other, TALKS.replace(' docid="767" genre="lectures"', "").replace(' id="1"', ""))  # ids on one side only
    assert sgm.read_pair(whole, other) == (["Thank you.", "Yes &amp; no.", "Hello."],) * 2


def test_only_line_feeds_end_lines_and_other_encodings_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "text", "a\rb\r\nc\u2028d\u0085\n\nlast")
    assert list(sgm.utf8_lines(path)) == ["a\rb\r\n", "c\u2028d\u0085\n", "\n", "last"]
    with pytest.raises(SystemExit, match="no <seg"):
        sgm.read_sgm(path)
    with pytest.raises(SystemExit, match=f"{path}: line 2 is not UTF-8.*iconv -f"):
        sgm.read_sgm(written(path, "<doc>\n<seg>\u00e4</seg></doc>".encode("latin1")))


def test_a_line_becomes_moses_tokens_without_escapes() -> None:
    for lang, raw, expected in (
        ("en", "  It’s “well-known”\u00a0…\r\n", 'It \'s " well @-@ known " ...'),
        ("de", "„Das\u2028ist\u00ad gut“, sagte\ter.\n", '" Das ist gut " , sagte er .'),
        ("de", "10\u00a0000 Euro\n", "10,000 Euro"),  # Moses' rule sees the no-break space
        ("en", "one\rtwo.`\n", "one two . '"),  # as the recorded steps do; Moses' rules would join the words
    ):
        assert clean.cleaner(lang, "subword_nmt")(raw) == expected
    assert clean.cleaner("de", "sentencepiece")(" „Das \u2028 ist“ -\u200b gut. \n") == '"Das ist" - gut.'


def test_lines_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    sides = {"en": [b"a\n", b"x " * clean.MAX_CHARS + b"\n", b"bad \xff\n"], "de": [b"b\n"] * 3}
    shard: dict = {"first": 7, "pairs": 3}
    for lang, side in sides.items():
        path = written(tmp_path / lang, b"before\n" + b"".join(side))
        shard[lang] = [str(path), len(b"before\n"), len(b"".join(side))]
    clean.clean_shard(shard, ["en", "de"], tmp_path / "clean", "subword_nmt", valid_every=7)
    found = {path.name: path.read_text() for path in (tmp_path / "clean").iterdir()}
    assert (found["valid.en"], found["train.en"], found["train.de"]) == ("a\n", "bad\n", "b\n")
    assert found["words.txt"] == "b 1\nbad 1\n"  # of the training text alone
    assert found["stats.json"] == '{"pairs": 3, "not_utf8": 1, "too_many_characters": 1}\n'


def test_sentencepiece_is_learned_from_spaced_lines_and_undone(tmp_path: Path) -> None:
    texts, model = {lang: [f"{lang} Satz Nummer {n}." for n in range(40)] for lang in ("en", "de")}, tmp_path / "m"
    for folder, part in (("00000", slice(20)), ("00001", slice(20, 40))):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder / "stats.json", '{"pairs": 20}')
        for lang, lines in texts.items():
            written(tmp_path / folder / f"train.{lang}", "\n".join([*lines[part], ""]))
    taken = list(learn.spaced_lines(tmp_path, ["en", "de"], 8))
    assert taken == [texts[lang][n] for lang in ("en", "de") for n in (0, 10, 20, 30)]
    learn.learn_model(learn.spaced_lines(tmp_path, ["en", "de"], 1000), 40, "unigram", model, 1)
    pieces = encode.piece_encoder("sentencepiece", model)("de Satz Nummer 7.")
    assert detokenizer([f"sentencepiece={model}"], "de")(" ".join(pieces)) == "de Satz Nummer 7."


def test_the_tokenised_figures() -> None:
    text = ["Das ist eine ARD-Sendung , sagt er .", "Wer hat das Rhein-Main-Gebiet gesehen ?"]
    reference = [text[0].replace("ARD", "ZDF"), text[1]]
    found = tokenized_bleu.scores_of([line.replace(" ,", ",").replace(" .", ".") for line in text], reference, "de")
    # from left to right, as by s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g: what was matched once is not looked at again
    assert tokenized_bleu.split_compounds("a-b-c - d-e -f") == "a ##AT##-##AT## b-c - d ##AT##-##AT## e -f"
    for name, between in (("bleu_tokenized", "-"), ("bleu_tokenized_compound_split", " ##AT##-##AT## ")):
        sides = ([re.sub(r"(\S)-(\S)", rf"\1{between}\2", line) for line in side] for side in (text, reference))
        expected = BLEU(tokenize="none", force=True).corpus_score(next(sides), [next(sides)])
        assert found[name]["score"] == pytest.approx(expected.score)
        assert "tok:none" in found[name]["signature"]
