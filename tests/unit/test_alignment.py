"""Dictionaries, typed tokens and the rules that match a dictionary with a source."""

import html

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embinit_fairseq.errors import DataError
from embinit_fairseq.init.alignment import RULES, align, plan
from embinit_fairseq.init.report import coverage
from embinit_fairseq.vectors.table import Origin, VectorTable
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary, read_dictionary
from embinit_fairseq.vocab.tokens import ENTITIES, Token, compatible, detect_style, parse, spell, unescape

ROLES = dict(enumerate(SPECIAL_SYMBOLS.values()))


def vocabulary(*words, counts=None):
    counts = [1] * 4 + list(counts or [1] * len(words))
    return Vocabulary([*SPECIAL_SYMBOLS, *words], counts, dict(ROLES))


def table(*words, markers="none", specials=()):
    matrix = np.arange(len(words) * 2, dtype=np.float32).reshape(-1, 2)
    vectors = {role: np.full(2, -1.0 - at, dtype=np.float32) for at, role in enumerate(specials)}
    return VectorTable(list(words), matrix, Origin("x", "glove", len(words), 2, markers), vectors)


def rules_of(dictionary, source, **keywords):
    got = align(dictionary, source, **keywords)
    words = [source.words[row] if row >= 0 else None for row in got.source_row]
    return dict(zip(list(dictionary.symbols)[4:], list(zip(words, got.rule))[4:]))


def test_exact_comes_before_casefold():
    got = rules_of(vocabulary("haus", "Haus", "MAUS", "straße"), table("Haus", "haus", "maus", "Strasse"))
    assert got == {
        "haus": ("haus", "exact"),
        "Haus": ("Haus", "exact"),
        "MAUS": ("maus", "casefold"),
        "straße": ("Strasse", "casefold"),
    }


def test_rules_can_be_switched_off():
    words, source = vocabulary("MAUS", "▁der", "▁die", "▁das"), table("maus", "der", "die", "das")
    got = rules_of(words, source, rules=("exact", "casefold"))
    assert got["MAUS"] == ("maus", "casefold")
    assert got["▁der"] == (None, "")
    assert rules_of(words, source, rules=("exact", "marker"))["MAUS"] == (None, "")


def test_entities_match_their_plain_form():
    symbols = ["&apos;s", "&quot;", "&amp;", "&#124;", "&lt;", "&gt;", "&#91;", "&#93;", "at&amp;t", "n&apos;t"]
    words = ["'s", '"', "&", "|", "<", ">", "[", "]", "at&t", "n't"]
    got = rules_of(vocabulary(*symbols), table(*words))
    assert got == {symbol: (word, "entities") for symbol, word in zip(symbols, words)}


def test_entities_come_after_equal_spelling_and_before_another_case():
    got = rules_of(vocabulary("&apos;s", "at&amp;t", "&apos;D"), table("&apos;s", "'s", "AT&amp;T", "at&t", "'d"))
    assert got == {
        "&apos;s": ("&apos;s", "exact"),
        "at&amp;t": ("at&t", "entities"),
        "&apos;D": ("'d", "entities_casefold"),
    }


def test_entities_are_a_rule_like_the_others():
    words, source = vocabulary("&apos;s", "house", "&apos;D"), table("'s", "'d", "house")
    assert rules_of(words, source, rules=("exact", "casefold", "marker")) == {
        "&apos;s": (None, ""),
        "house": ("house", "exact"),
        "&apos;D": (None, ""),
    }
    assert rules_of(words, source, rules=("entities",)) == {
        "&apos;s": ("'s", "entities"),
        "house": (None, ""),
        "&apos;D": (None, ""),
    }
    counts = align(words, source).counts_by_rule()
    assert counts == {"exact": 1, "entities": 1, "entities_casefold": 1}


@pytest.mark.parametrize(
    ("symbols", "words", "markers", "expected"),
    [
        # a dictionary of words, T5: word-initial
        (
            ["&apos;s", "haus"],
            ["▁'s", "'s", "▁haus"],
            "sentencepiece",
            [("▁'s", "entities_marker"), ("▁haus", "marker")],
        ),
        (["&apos;S"], ["▁'s", "▁haus"], "sentencepiece", [("▁'s", "entities_marker_casefold")]),
        # subword-nmt: the piece goes on, a word list's does not
        (["&apos;@@", "&apos;s", "go@@"], ["'", "'s"], "none", [(None, ""), ("'s", "entities"), (None, "")]),
        (["&quot;@@", "go@@"], ['##"', '"'], "wordpiece", [('"', "entities_marker"), (None, "")]),
        # an inner piece of sentencepiece is no word of BERT
        (["▁&quot;", "&quot;", "▁x"], ['"', "x"], "wordpiece", [('"', "entities_marker"), (None, ""), ("x", "marker")]),
        # an exact match is never overridden, not even by a likelier piece of the plain form
        (
            ["&apos;s", "haus"],
            ["▁'s", "&apos;s", "▁haus"],
            "sentencepiece",
            [("&apos;s", "exact"), ("▁haus", "marker")],
        ),
    ],
)
def test_entities_together_with_markers(symbols, words, markers, expected):
    got = rules_of(vocabulary(*symbols), table(*words, markers=markers))
    assert [got[symbol] for symbol in symbols] == expected


ESCAPED = st.lists(st.sampled_from([*ENTITIES, "a", "B", "'", '"', " ", "-"]), min_size=1, max_size=6).map("".join)


@given(ESCAPED)
def test_entities_mean_what_they_mean_in_html(symbol):
    assert unescape(symbol) == html.unescape(symbol)


def test_an_escaped_entity_is_text():
    assert unescape("&amp;lt;") == "&lt;"
    assert unescape("&nbsp; &amp &#39;") == "&nbsp; &amp &#39;"  # nothing that Moses writes


@given(st.lists(ESCAPED, min_size=1, max_size=6, unique=True), st.lists(ESCAPED, max_size=8, unique=True), st.data())
def test_entities_add_matches_and_change_none_by_spelling(symbols, words, data):
    """Against the definition: first the symbol among the words, then its plain form, both as they are."""
    dictionary, source = vocabulary(*symbols), table(*words)
    got = rules_of(dictionary, source, rules=("exact", "entities"))
    for symbol in symbols:
        plain = html.unescape(symbol)
        if symbol in words:
            assert got[symbol] == (symbol, "exact")
        elif plain in words and plain != symbol:
            assert got[symbol] == (plain, "entities")
        else:
            assert got[symbol] == (None, "")
    rules = data.draw(st.sets(st.sampled_from(["casefold", "marker"]))) | {"exact"}
    without, with_entities = (rules_of(dictionary, source, rules=r) for r in (rules, rules | {"entities"}))
    for symbol in symbols:
        if without[symbol][1] in ("exact", "marker") or unescape(symbol) == symbol:
            assert with_entities[symbol] == without[symbol]
        assert bool(with_entities[symbol][1]) >= bool(without[symbol][1])


@pytest.mark.parametrize(
    ("symbols", "words", "markers", "expected"),
    [
        # sentencepiece dictionary, GloVe: word-initial pieces are words; inner pieces only by equal spelling
        (["▁haus", "▁Maus", "▁x"], ["haus", "maus"], "none", ["haus", "maus", None]),
        # BERT source: `ing` inside a word is `##ing`, never the word `ing`
        (["▁go", "ing"], ["go", "ing", "##ing"], "wordpiece", ["go", "##ing"]),
        (["▁go", "ing"], ["go", "ing"], "wordpiece", ["go", None]),
        # subword-nmt says whether a piece goes on, not whether it begins a word
        (["go@@", "ing"], ["▁go", "ing"], "sentencepiece", ["▁go", "ing"]),
        (["go@@", "ing"], ["go", "ing"], "none", [None, "ing"]),
        # GPT-2
        (["▁haus", "es"], ["Ġhaus", "es", "haus"], "bytelevel", ["Ġhaus", "es"]),
        # words, T5
        (["haus", "Maus"], ["▁haus", "haus", "▁maus"], "sentencepiece", ["▁haus", "▁maus"]),
    ],
)
def test_markers_are_translated(symbols, words, markers, expected):
    got = rules_of(vocabulary(*symbols), table(*words, markers=markers))
    assert [got[symbol][0] for symbol in symbols] == expected


def test_marker_style_of_a_text_source_is_recognised():
    got = align(vocabulary("haus", "maus", "es"), table("▁haus", "▁maus", "es", markers="auto"))
    assert got.source_style == "sentencepiece"
    assert got.counts_by_rule() == {"marker": 2, "exact": 1}


def test_specials_take_the_formats_own_rows_never_words_spelled_so():
    got = align(vocabulary("a"), table("<s>", "</s>", "<unk>", "<pad>", "a"))
    assert got.rule == ["", "", "", "", "exact"]
    source = table("a", specials=("bos", "eos", "unk", "pad"))
    got = align(vocabulary("a"), source)
    assert got.rule == ["special", "", "special", "special", "exact"]  # <s> <pad> </s> <unk> a
    rows, vectors = got.gather(source, vocabulary("a"))
    assert rows.tolist() == [0, 2, 3, 4]
    assert vectors[:, 0].tolist() == [-1.0, -2.0, -3.0, 0.0]


def test_coverage_counts_text_only():
    words = vocabulary("a", "b", "c", "madeupword0000", counts=[6, 3, 1, 0])
    got = coverage(words, align(words, table("a", "c", specials=("bos", "eos"))).found)
    assert got == {"found": 2, "coverage_types": pytest.approx(2 / 3), "coverage_tokens": pytest.approx(0.7)}
    assert not align(words, table("madeupword0000")).found.any()


STYLES = ["none", "subword_nmt", "sentencepiece", "wordpiece", "bytelevel"]
SURFACES = st.text("abcäß", min_size=1, max_size=5) | st.lists(
    st.sampled_from(["&apos;", "&#91;", "'", "[", "S", "s"]), min_size=1, max_size=3
).map("".join)


@given(SURFACES, st.sampled_from(STYLES))
def test_what_a_style_spells_it_reads_back(surface, style):
    for token in (Token(surface, True, True), Token(surface, False, True), Token(surface, True, False)):
        for spelling in spell(token, style):
            assert compatible(parse(spelling, style), token)


@given(
    st.lists(SURFACES, min_size=1, max_size=8, unique=True),
    st.sampled_from(STYLES),
    st.sampled_from(STYLES),
    st.sets(st.sampled_from(RULES), min_size=1),
)
def test_every_row_a_plan_misses_could_not_have_matched(surfaces, style, source_style, rules):
    """Reading only the planned rows gives the same alignment as reading everything."""
    symbols = sorted({s for surface in surfaces for s in spell(Token(surface, True, None), style)})
    forms = {form for surface in surfaces for form in (surface, unescape(surface))}
    words = sorted({w for form in forms for w in (form, form.upper(), "##" + form, "▁" + form, form + "@@")})
    dictionary = vocabulary(*symbols)
    wanted = plan(dictionary, rules, style)
    everything = table(*words, markers=source_style)
    filtered = table(*[word for word in words if word in wanted], markers=source_style)
    full, part = (rules_of(dictionary, source, rules=rules, markers=style) for source in (everything, filtered))
    assert full == part


@pytest.mark.parametrize(
    ("symbols", "style"),
    [
        (["the", "house", "##/##"] + [f"w{i}" for i in range(200)], "none"),
        (["the", "hou@@", "se"], "subword_nmt"),
        (["▁the", "▁hou", "se"], "sentencepiece"),
        (["the", "hou", "##se"], "wordpiece"),
        (["Ġthe", "Ġhou", "se"], "bytelevel"),
        ([], "none"),
    ],
)
def test_styles_are_recognised(symbols, style):
    assert detect_style(symbols) == style


def test_dictionary_files(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("haus 10\nam stück 3\n<unk> 2 #fairseq:overwrite\nmadeupword0000 0\n", encoding="utf-8")
    got = read_dictionary(path)
    assert list(got.symbols) == ["<s>", "<pad>", "</s>", "<unk>", "haus", "am stück", "<unk>", "madeupword0000"]
    assert got.counts.tolist()[4:] == [10, 3, 2, 0]
    assert got.pad_row == 1
    assert got.regular.tolist() == [False] * 4 + [True, True, True, False]
    path.write_bytes(f"haus 1\rmaus {2**63 - 1}\r\nende 3".encode())  # all of them end a line for fairseq
    got = read_dictionary(path)
    assert list(zip(got.symbols, got.counts))[4:] == [("haus", 1), ("maus", 2**63 - 1), ("ende", 3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("haus\n", "dict.txt:1: expected 'symbol count'"),
        ("haus 1\nmaus x\n", "dict.txt:2"),
        ("haus 1\nhaus 2\n", "dict.txt:2: the symbol 'haus' stands here twice"),
        ("haus 1\n\nmaus 1\n", "dict.txt:2: an empty line, which fairseq refuses"),
        ("haus 1\n \t\n", "dict.txt:2: an empty line"),
        (f"haus 1\nmaus {2**63}\n", r"dict.txt:2: 9223372036854775808\.\.\. is no count of words"),
        ("haus " + 40 * "9", "dict.txt:1: 99999999999999999999... is no count"),
        ("", "no symbol"),
    ],
)
def test_broken_dictionaries_are_named(tmp_path, text, message):
    path = tmp_path / "dict.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_dictionary(path)


def test_a_missing_dictionary_is_named(tmp_path):
    with pytest.raises(DataError, match=r"--dict .*nowhere\.txt: no such file; check the path$"):
        read_dictionary(tmp_path / "nowhere.txt")
