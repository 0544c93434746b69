"""Raw text to symbols: what a dictionary shows of its text, words, sub-words, text that is in sub-words already."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from subword_nmt.apply_bpe import BPE

from embinit_fairseq.vocab import preparation
from embinit_fairseq.vocab.preparation import Preparation, Segmenter

pytest.importorskip("sacremoses")
pytest.importorskip("spacy")

CODES = "#version: 0.2\na n</w>\na n\no r\n"
#: what the text of scripts/wikibooks is made of, in sub-words
SYMBOLS = "the man dog went to on inc. he said an or@@ an@@ g@@ e 's 't isn . , <url> <mask>".split()
WIKIBOOKS = Preparation("wikibooks", lowercase=True, normalise=True)


@pytest.fixture
def segment() -> Segmenter:
    return Segmenter(SYMBOLS, WIKIBOOKS, CODES)


RAW = {
    "The Man went to the <mask>.": "the man went to the <mask> .",
    "An orange, the man said.": "an or@@ an@@ g@@ e , the man said .",
    "The DOG’s on www.x.org/a, isn't <MASK>?": "the dog 's on <url> , isn 't <mask> ?",
    "He went to the inc.": "he went to the i@@ n@@ c .",
    "he went to the inc.": "he went to the i@@ n@@ c .",
    "The inc. went. The dog, too.": "the i@@ n@@ c . went . the dog , t@@ o@@ o .",
    "\ue004 the\u200b": "the",
    "": "",
}
CUT = [
    "an or@@ an@@ g@@ e , the man said .",
    "the dog 's on <url> , he isn 't .",  # no sub-word is marked, and Moses would part the apostrophes again
    "he said the inc. went to the <mask> .",
    "un@@ known to th@@ e",
]


def test_raw_text_is_prepared_and_cut(segment):
    for text, symbols in RAW.items():
        assert " ".join(segment(text)) == symbols
        assert segment.join(segment(text)) == symbols.replace("@@ ", "")


def test_text_in_sub_words_stays_as_it_is(segment):
    for line in CUT:
        assert " ".join(segment(line)) == line


@settings(max_examples=100, deadline=None)
@given(st.text("lowernst", min_size=1, max_size=12), st.sampled_from(["#version: 0.2\n", "#version: 0.1\n"]))
def test_sub_words_are_those_of_subword_nmt(word, version):
    merges = "l o\nlo w</w>\ne r</w>\nlo w\nn e\nne w</w>\nlow er</w>\nlow est</w>\nl l\nll l\nlo lo\nlolo lo\nlo l\n"
    expected = BPE(io.StringIO(version + merges)).process_line(word).split()
    assert Segmenter((), Preparation(), version + merges).pieces(word) == expected


def test_words_of_the_dictionary_stay_whole():
    """New ones of expand-vocab, say, which the codes would cut."""
    segment = Segmenter([*SYMBOLS, "orange", "<u>"], WIKIBOOKS, CODES)
    assert segment("An ORANGE orang") == ["an", "orange", "or@@", "an@@", "g"]


MOSES = {"preparation": "moses", "lowercase": True}
SHOWN = [
    ("the man , . said", False, {"preparation": "wikibooks", "lowercase": True, "normalise": True}),
    ("The man , . said", False, {"preparation": "wikibooks", "lowercase": False}),
    ("the man , . said &apos;s", False, {**MOSES, "escape": True}),
    ("the man , . @-@", True, {**MOSES, "dashes": True, "escape": False}),
    ("der mann , . „", True, {**MOSES, "normalise": False}),
    ("der mann , . <file> <email> <url>", True, {"preparation": "wikibooks"}),
    ("the ma@@ n, , .", False, {"preparation": "none", "lowercase": True}),
    ("the man said", False, {"preparation": "none", "lowercase": True}),
    ("12 未 。", True, {"preparation": "none", "lowercase": False}),
]


@pytest.mark.parametrize(("symbols", "translation", "shown"), SHOWN)
def test_a_dictionary_shows_how_its_text_was_prepared(symbols, translation, shown):
    shows = Preparation.of(symbols.split(), translation=translation)
    assert {name: getattr(shows, name) for name in shown} == shown


def test_what_is_said_is_not_guessed():
    with pytest.raises(ValueError, match=r"spacy.*choose from wikibooks, moses, none"):
        Preparation.of("the , .".split(), preparation="spacy")
    shows = Preparation.of("the , .".split(), preparation="moses", lowercase=False, lang="de_DE", translation=True)
    assert (shows.preparation, shows.lowercase, shows.lang) == ("moses", False, "de")


def test_words_of_moses():
    moses = Preparation("moses", lowercase=True, lang="de", normalise=True, escape=True, dashes=True)
    assert moses("Der „gut-gelaunte“ <mask>.") == "der &quot; gut @-@ gelaunte &quot; <mask> ."
    assert moses("Er &quot; gut @-@ <mask> &quot; .") == "er &quot; gut @-@ <mask> &quot; ."  # Moses' words already
    assert Preparation("moses")("He's <mask>-like.") == "He 's <mask> -like ."
    assert Preparation(lowercase=True)(" The<mask>. Dog") == "the <mask> . dog"
    assert Preparation("moses")("a \ue004 b") == "a b", "a character of the text that would be a symbol"


def test_a_mask_in_a_pre_training_text_is_no_symbol():
    """The task appends `<mask>` to the dictionary: a number of its own in dict.txt would be another one."""
    assert preparation.Cleaner()("a <mask> b") == [["a", "<", "mask", ">", "b"]]


@pytest.mark.parametrize("name", ["sacremoses", "spacy"])
def test_a_missing_library_is_one_line(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    preparation.loaded.cache_clear()
    with pytest.raises(ImportError, match=rf"pip install {name}$"):
        Segmenter((), WIKIBOOKS)


def test_copies(segment):
    text = next(iter(RAW))
    assert pickle.loads(pickle.dumps(segment))(text) == segment(text)  # to another process


def test_it_stands_alone():
    """The file is written into exported folders."""
    text = Path(preparation.__file__).read_text()
    assert "import embinit_fairseq" not in text
    assert "from embinit_fairseq" not in text
