"""The steps from raw text to symbols against the libraries called one after the other, and the record of them."""

import contextlib
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.checkpoints.trained_preparation import (
    stated_steps,
)
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.vocab import preparation_record as record
from embinit_fairseq.vocab.preparation_options import parse_steps, suggested, written
from embinit_fairseq.vocab.preparation_steps import Preparation

sacremoses = pytest.importorskip("sacremoses")
pytest.importorskip("spacy")
apply_bpe = pytest.importorskip("subword_nmt.apply_bpe")

CODES = "#version: 0.2\na n</w>\na n\no r\n"
#: raw lines that a rule about the look of a line would take for something else
NASTY = (
    *(
        "Ein „gut-gelaunter“ Hund, so&so.",
        "an@@ or@@ e",
        "▁ein ▁Haus",
        "a </s> b <pad> <s>",
        "...",
        "<",
        "&",
        "&amp; @-@",
    ),
    'Am 3. Mai bzw. am 4. sagte er: "Aujourd\'hui," usw. 12\u00a0345 @-@ &quot;',
    *("e\u0301 é ﬁ ½ ２", "x" * 300, "  ", "", "\ue004 the\u200b\u00a0man", "an <unk> <mask> <MASK>", "😀 日本語。"),
)


def with_moses(line, lang="de", lower=True, normalise=True, escape=True, dashes=False):
    line = sacremoses.MosesPunctNormalizer(lang=lang).normalize(line) if normalise else line
    line = line.lower() if lower else line
    moses = sacremoses.MosesTokenizer(lang=lang)
    return moses.tokenize(line, return_str=True, escape=escape, aggressive_dash_splits=dashes)


@pytest.mark.parametrize("line", [line for line in NASTY if "\ue004" not in line])
def test_steps_are_the_libraries_one_after_the_other(line):
    steps = parse_steps("normalised,lowercase,moses", "de")
    words = with_moses(line)
    assert Preparation(steps)(line) == words.split()
    bpe = apply_bpe.BPE(__import__("io").StringIO(CODES), glossaries=["^(?:orange)$"])
    content = {"codes": CODES, "glossary": "^(?:orange)$"}
    assert Preparation([*steps, {"step": "bpe"}], content)(line) == bpe.segment_tokens(words.split())
    plain = with_moses(line, escape=False, dashes=True, normalise=False)
    assert Preparation(parse_steps("lowercase,moses:no-escape:dashes", "de"))(line) == plain.split()


@pytest.mark.parametrize("text", ["བོད་", "ខ្មែ", "မြန်", "ไทย", "カナ"])
def test_long_text_of_scripts_without_spaces_is_no_noise(text):
    assert Preparation(parse_steps("cleaned", "en"))(text * 80) == [text * 80]


def test_a_turkish_capital_is_one_letter_in_lower_case():
    """Python's has a dot of its own, U+0307, which Moses splits off: i, dot, stanbul."""
    words = Preparation(parse_steps("lowercase,moses", "tr"))("İstanbul I\u0307yi IŞIK Ï")
    assert words == ["istanbul", "iyi", "işik", "ï"]


def test_a_text_never_has_the_ends_of_a_sentence():
    assert Preparation(parse_steps("lowercase"))("a </s> b <PAD> <mask>") == ["a", "<unk>", "b", "<unk>", "<mask>"]
    assert Preparation()("a </s>") == ["a", "</s>"], "finished words are what fairseq makes of them"


def test_private_use_characters_of_a_text_are_no_symbols():
    assert Preparation(parse_steps("lowercase"))("\ue000A \ue001 \ue002b\ue003b \ue004", mask=True) == ["a", "bb"]


def test_an_end_of_a_line_inside_a_text_is_a_space():
    """As fairseq_compat reads lines; sentencepiece keeps U+2028."""
    ends = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    assert all(Preparation(parse_steps("lowercase")).parts(f"A{end}b") == ["a b"] for end in ends)


def test_a_mask_is_a_symbol_only_where_it_may_be():
    cleaned = Preparation([*parse_steps("wikibooks"), {"step": "bpe"}], {"codes": CODES})
    assert cleaned("An <mask>-like DOG.", mask=True) == [
        "an",
        "<mask>",
        "-@@",
        "l@@",
        "i@@",
        "k@@",
        "e",
        *"d@@ o@@ g .".split(),
    ]
    assert "<mask>" not in cleaned("An <mask> dog.")
    assert cleaned("See www.x.org/a, <URL>")[3:] == ["<url>", ",", "<url>"]


@settings(max_examples=15, deadline=None)
@given(st.text(max_size=40))
def test_symbols_have_no_space_and_come_back_by_themselves(line):
    steps = [*parse_steps("lowercase,moses", "en"), {"step": "bpe"}]
    prepare = Preparation(steps, {"codes": CODES})
    symbols = prepare(line)
    assert all(symbol.split() == [symbol] for symbol in symbols)
    assert pickle.loads(pickle.dumps(prepare))(line) == symbols, "as for another process"
    assert prepare.words(symbols).split() == Preparation(steps[:-1])(line)


def test_back_to_text():
    steps = [*parse_steps("moses:dashes", "en"), {"step": "bpe"}]
    prepare = Preparation(steps, {"codes": CODES})
    for text in ("The man's well-known orange, isn't it?", 'He said "so" to them.'):
        assert prepare.text(prepare(text)) == text
    assert Preparation(parse_steps("spacy"))("Dogs, too.") == ["Dogs", ",", "too", "."]


#: words of Moses, put together in German, French and Finnish, with and without escapes
JOINED = {
    "l' homme , c' est & amp ; &amp; &quot; ça ! &quot;": "fr",
    "EU : n 5 % : ssa": "fi",
    "well @-@ known @-@ @-@ x @-@": "en",
    "@-@ @-@ x John 's": "en",
    "so&amp;so &amp;amp; ' s": "de",
}


def test_a_quotation_mark_at_the_end_is_normalised_as_by_mosess_script():
    """Its lines end with a line feed, so that `(\\.+)"(\\s*[^<])` also finds the last quotation mark of a line."""
    for lang, expected in (("de", 'Er sagte "Hallo".'), ("en", 'Er sagte "Hallo."')):
        prepare = Preparation(parse_steps("normalised", lang))
        for text in ("Er sagte „Hallo.“", "Er sagte „Hallo.“\n", "Er sagte  „Hallo.“  "):
            assert "".join(prepare.parts(text)) == expected


@pytest.mark.parametrize("words", JOINED)
def test_words_are_put_together_as_moses_does(words):
    lang, moses = JOINED[words], sacremoses.MosesDetokenizer(lang=JOINED[words])
    for options, unescape in (("", True), (":no-escape", False), (":no-escape:dashes", False)):
        expected = moses.detokenize(words.split(), unescape=unescape)
        assert Preparation(parse_steps(f"moses{options}", lang)).text(words.split()) == expected


def test_a_tokenizer_is_used_without_what_it_does_to_batches():
    """It is set to cut and to fill texts, and has an unknown token and special tokens of its own."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(("[UNK]", "[CLS]", "[PAD]", "the", "man", "dog"))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $0", special_tokens=[("[CLS]", 1)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=6, pad_id=2, pad_token="[PAD]")
    prepare = Preparation([{"step": "huggingface"}], {"tokenizer": tokenizer.to_str()})
    assert prepare("the cat the man the dog the") == ["the", "<unk>", "the", "man", "the", "dog", "the"]
    assert prepare("the dog") == ["the", "dog"]


def test_tokens_that_take_the_space_before_them():
    """RoBERTa's `<mask>` does, and is written in some texts; in `tokens` of the library it has that space."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    prepare = Preparation([{"step": "huggingface"}], {"tokenizer": tokenizer.to_str()})
    assert prepare("a  <mask> b") == ["a", "<mask>", "<unk>"]


@pytest.mark.parametrize("content", [b"[PAD]\n[UNK]\n", b"\n\x0e\n\x80", b"{}"])
def test_files_that_are_no_tokenizer_and_no_model(content, tmp_path):
    pytest.importorskip("tokenizers")
    pytest.importorskip("sentencepiece")
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    for option, flag, remedy in (
        ("tokenizer", "--tokenizer", "save_pretrained"),
        ("model", "--sent", "give"),
    ):
        with pytest.raises(DataError, match=f"{flag}.*vocab.txt: not .*{remedy}"):
            record.contents({option: str(path)}, ())


@pytest.mark.parametrize("lang", ["ja", "kk"])
def test_a_language_without_words_in_spacy(lang):
    """Whose library is missing, or which spaCy does not know."""
    spacy = pytest.importorskip("spacy")
    with contextlib.suppress(ImportError):
        spacy.blank(lang)
        pytest.skip("it has what the language needs")
    with pytest.raises(ImportError, match=f"the language {lang} .*; take moses"):
        Preparation(parse_steps("spacy", lang))("a")


def test_what_a_user_says():
    assert written(parse_steps("wikibooks,bpe")) == "cleaned,lowercase,moses:no-escape,bpe"
    assert parse_steps("none") == []
    assert written([]) == "none"
    assert [step["lang"] for step in parse_steps("normalised,moses", "deu_Latn")] == ["de", "de"]
    assert parse_steps("lowercase,moses:dashes", "de")[1] == {"step": "moses", "lang": "de", "dashes": True}
    for text, remedy in {
        "lower": r"--preparation lower.*choose from .*lowercase",
        "moses:fast": "no-escape",
        "bpe,moses": "subwords are the last step",
        "moses,moses": "once",
        "": "name is empty; choose from .*none",
        "lowercase, ,bpe": "name is empty",
    }.items():
        with pytest.raises(OptionError, match=remedy):
            parse_steps(text)


def test_lower_case_is_before_words_and_after_punctuation():
    """What `--lowercase` and its opposite do to the named steps."""
    for text, lowercase, expected in (
        ("normalised,moses", True, "normalised,lowercase,moses"),
        ("moses,lowercase,bpe", True, "lowercase,moses,bpe"),
        ("cleaned", True, "cleaned,lowercase"),
        ("lowercase,moses", None, "lowercase,moses"),
        ("lowercase,moses", False, "moses"),
        ("moses", False, "moses"),
    ):
        assert written(stated_steps(text, "de", lowercase, {"codes"} if "bpe" in text else ())) == expected


SUGGESTED = [
    ("the man , . said", False, "cleaned,lowercase,moses:no-escape"),
    ("The man , . said", False, "cleaned,moses:no-escape"),
    ("the man , . said &apos;s", False, "lowercase,normalised,moses"),
    ("the man , . @-@", True, "lowercase,normalised,moses:no-escape:dashes"),
    ("der mann , . „", True, "lowercase,moses:no-escape"),
    ("der mann , . <file> <email> <url>", True, "cleaned,lowercase,moses:no-escape"),
    ("the ma@@ n, , . ", False, "lowercase,bpe"),
    ("▁the ▁man , ▁ s", False, "lowercase,sentencepiece"),
    ("12 未 。", True, "none"),
]


def test_a_dictionary_suggests_steps_that_can_be_given():
    for symbols, is_translation, expected in SUGGESTED:
        assert suggested(symbols.split(), is_translation) == expected
        assert written(parse_steps(expected)) == expected
