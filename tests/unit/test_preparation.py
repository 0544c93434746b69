"""Raw text to symbols: what a dictionary shows of its text, words, subwords, text that is in subwords already."""

import pickle
import sys
from pathlib import Path

import pytest

from embinit_fairseq.vocab import preparation
from embinit_fairseq.vocab.preparation import Preparation, Segmenter

pytest.importorskip("sacremoses")
pytest.importorskip("spacy")

CODES = "#version: 0.2\na n</w>\na n\no r\n"
#: what the text of scripts/wikibooks is made of, in subwords
SYMBOLS = "the man dog went to on inc. he said an or@@ an@@ g@@ e 's 't isn . , <url> <mask>".split()
WIKIBOOKS = Preparation("wikibooks", lowercase=True, normalise=True)

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
SEGMENTED = [
    "an or@@ an@@ g@@ e , the man said .",
    "the dog 's on <url> , he isn 't .",  # no subword is marked, and Moses would split the apostrophes again
    "he said the inc. went to the <mask> .",
    "un@@ known to th@@ e",
]


def test_raw_text_is_prepared_and_segmented_once():
    segment = pickle.loads(pickle.dumps(Segmenter(SYMBOLS, WIKIBOOKS, CODES)))  # as for another process
    for text, symbols in {**RAW, **dict(zip(SEGMENTED, SEGMENTED))}.items():
        assert " ".join(segment(text)) == symbols
        assert segment.join(segment(text)) == symbols.replace("@@ ", "")
    # new words of expand-vocab stay whole, although the codes would segment them
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


def test_a_dictionary_shows_how_its_text_was_prepared():
    for symbols, translation, expected in SHOWN:
        shows = Preparation.of(symbols.split(), translation=translation)
        assert {name: getattr(shows, name) for name in expected} == expected, symbols
    with pytest.raises(ValueError, match=r"spacy.*choose from wikibooks, moses, none"):
        Preparation.of("the , .".split(), preparation="spacy")
    said = Preparation.of("the , .".split(), preparation="moses", lowercase=False, lang="de_DE", translation=True)
    assert (said.preparation, said.lowercase, said.lang) == ("moses", False, "de")


def test_words_of_moses():
    moses = Preparation("moses", lowercase=True, lang="de", normalise=True, escape=True, dashes=True)
    assert moses("Der „gut-gelaunte“ <mask>.") == "der &quot; gut @-@ gelaunte &quot; <mask> ."
    assert moses("Er &quot; gut @-@ <mask> &quot; .") == "er &quot; gut @-@ <mask> &quot; ."  # Moses' words already
    for raw in ("R&amp;D ran, too", "R&amp;D (too)", "R&amp;D ran."):  # an entity of raw text
        assert moses(raw).startswith("r &amp; amp ; d ")
    assert Preparation("moses")("He's <mask>-like.") == "He 's <mask> -like ."
    assert Preparation(lowercase=True)(" The<mask>. Dog") == "the <mask> . dog"
    assert Preparation("moses")("a \ue004 b") == "a b", "a character of the text that would be a symbol"
    # the task appends `<mask>` to the dictionary: in a pre-training text it would be a symbol of dict.txt
    assert preparation.Cleaner()("a <mask> b") == [["a", "<", "mask", ">", "b"]]


@pytest.mark.parametrize("name", ["sacremoses", "spacy", "subword-nmt"])
def test_a_missing_library_is_one_line(monkeypatch, name):
    """And the file, which is written into exported folders, imports nothing of this package."""
    monkeypatch.setitem(sys.modules, {"subword-nmt": "subword_nmt.apply_bpe"}.get(name, name), None)
    preparation.loaded.cache_clear()
    with pytest.raises(ImportError, match=rf"pip install {name}$"):
        Segmenter((), WIKIBOOKS, CODES)
    text = Path(preparation.__file__).read_text()
    assert "import embinit_fairseq" not in text
    assert "from embinit_fairseq" not in text
