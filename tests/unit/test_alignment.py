"""Dictionaries, typed tokens and the rules that match a dictionary with a source."""

from __future__ import annotations

import html

import numpy as np
import pytest
from fairseq.data import Dictionary
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import CheckpointError, DataError
from embinit_fairseq.init.alignment import RULES, align, plan, spellings
from embinit_fairseq.init.report import coverage
from embinit_fairseq.vectors.fairseq_checkpoint import read_rows
from embinit_fairseq.vectors.table import Origin, VectorTable
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary, is_filler, read_dictionary, vocabulary_of
from embinit_fairseq.vocab.tokens import ENTITIES, Token, detect_style, spell, unescape

ROLES = dict(enumerate(SPECIAL_SYMBOLS.values()))


def vocabulary(*words, counts=None):
    counts = [1] * 4 + list(counts or [1] * len(words))
    return Vocabulary([*SPECIAL_SYMBOLS, *words], counts, dict(ROLES))


def test_a_mask_that_a_task_has_appended_is_no_word():
    dictionary = Dictionary()
    for symbol in ("a", "<mask>"):
        dictionary.add_symbol(symbol)
    found = vocabulary_of(dictionary)
    assert (found.roles[5], found.regular.tolist()) == ("mask", [False] * 4 + [True, False])


def table(*words, markers="none", specials=()):
    matrix = np.arange(len(words) * 2, dtype=np.float32).reshape(-1, 2)
    vectors = {role: np.full(2, -1.0 - at, dtype=np.float32) for at, role in enumerate(specials)}
    return VectorTable(list(words), matrix, Origin("x", "glove", len(words), 2, markers), vectors)


def rules_of(dictionary, source, **keywords):
    got = align(dictionary, source, **keywords)
    words = [source.words[row] if row >= 0 else None for row in got.source_row]
    return dict(zip(list(dictionary.symbols)[4:], list(zip(words, got.rule))[4:]))


ENTITY_SYMBOLS = "&apos;s &quot; &amp; &#124; &lt; &gt; &#91; &#93; at&amp;t n&apos;t"
PLAIN = "'s \" & | < > [ ] at&t n't"


@pytest.mark.parametrize(
    ("symbols", "words", "markers", "rules", "expected"),
    [
        # equal spelling before another case
        ("haus Haus MAUS straße", "Haus haus maus Strasse", "none", RULES,
         "haus=exact Haus=exact maus=casefold Strasse=casefold"),
        ("MAUS ▁der ▁die", "maus der die", "none", ("exact", "casefold"), "maus=casefold - -"),
        ("MAUS ▁der ▁die", "maus der die", "none", ("exact", "marker"), "- der=marker die=marker"),
        # the first row of one spelling, and of one case
        ("haus MAUS", "haus haus Maus maus", "none", RULES, "haus=exact Maus=casefold"),
        # Moses' entities: after equal spelling and before another case
        (ENTITY_SYMBOLS, PLAIN, "none", RULES, "=entities ".join(PLAIN.split()) + "=entities"),
        ("&apos;s at&amp;t &apos;D", "&apos;s 's AT&amp;T at&t 'd", "none", RULES,
         "&apos;s=exact at&t=entities 'd=entities_casefold"),
        ("&apos;s house &apos;D", "'s 'd house", "none", ("exact", "casefold", "marker"), "- house=exact -"),
        ("&apos;s house &apos;D", "'s 'd house", "none", ("entities",), "'s=entities - -"),
        # entities and markers. A dictionary of words, T5: word-initial
        ("&apos;s haus", "▁'s 's ▁haus", "sentencepiece", RULES, "▁'s=entities_marker ▁haus=marker"),
        ("&apos;S", "▁'s ▁haus", "sentencepiece", RULES, "▁'s=entities_marker_casefold"),
        # subword-nmt: the piece goes on, a word list's does not
        ("&apos;@@ &apos;s go@@", "' 's", "none", RULES, "- 's=entities -"),
        ("&quot;@@ go@@", '##" "', "wordpiece", RULES, '"=entities_marker -'),
        # an inner piece of sentencepiece is no word of BERT
        ("▁&quot; &quot; ▁x", '" x', "wordpiece", RULES, '"=entities_marker - x=marker'),
        # an exact match is never overridden, not even by a likelier piece of the plain form
        ("&apos;s haus", "▁'s &apos;s ▁haus", "sentencepiece", RULES, "&apos;s=exact ▁haus=marker"),
        # sentencepiece dictionary, GloVe: word-initial pieces are words; inner pieces only by equal spelling
        ("▁haus ▁Maus ▁x", "haus maus", "none", RULES, "haus=marker maus=marker_casefold -"),
        # BERT: `ing` inside a word is `##ing`, never the word `ing`
        ("▁go ing", "go ing ##ing", "wordpiece", RULES, "go=marker ##ing=marker"),
        ("▁go ing", "go ing", "wordpiece", RULES, "go=marker -"),
        # subword-nmt says whether a piece goes on, not whether it begins a word
        ("go@@ ing", "▁go ing", "sentencepiece", RULES, "▁go=marker ing=exact"),
        ("go@@ ing", "go ing", "none", RULES, "- ing=exact"),
        # GPT-2; words, T5
        ("▁haus es", "Ġhaus es haus", "bytelevel", RULES, "Ġhaus=marker es=exact"),
        ("haus Maus", "▁haus haus ▁maus", "sentencepiece", RULES, "▁haus=marker ▁maus=marker_casefold"),
    ],
)  # fmt: skip
def test_rules_by_hand(symbols, words, markers, rules, expected):
    got = rules_of(vocabulary(*symbols.split()), table(*words.split(), markers=markers), rules=rules)
    pairs = [got[symbol] for symbol in symbols.split()]
    assert ["=".join(pair) if pair[0] else "-" for pair in pairs] == expected.split()
    assert all(rule == "" for word, rule in pairs if word is None)


ESCAPED = st.lists(st.sampled_from([*ENTITIES, "a", "B", "'", '"', " ", "-"]), min_size=1, max_size=6).map("".join)


@given(ESCAPED)
@settings(max_examples=50)
def test_entities_mean_what_they_mean_in_html(symbol):
    assert unescape(symbol) == html.unescape(symbol)
    assert spellings(symbol, {"entities"}) == list(dict.fromkeys([symbol, html.unescape(symbol)]))
    assert spellings(symbol, {"lower"}) == [symbol]
    assert (
        unescape("&amp;lt; R&amp;D &nbsp; &amp &#39;") == "&lt; R&D &nbsp; &amp &#39;"
    )  # nothing else that Moses writes


def test_specials_take_the_formats_own_rows_never_words_spelled_so():
    got = align(vocabulary("a"), table("<s>", "</s>", "<unk>", "<pad>", "a"))
    assert got.rule == ["", "", "", "", "exact"]
    source = table("a", specials=("bos", "eos", "unk", "pad"))
    got = align(vocabulary("a"), source)
    assert got.rule == ["special", "", "special", "special", "exact"]  # <s> <pad> </s> <unk> a
    rows, vectors = got.gather(source, vocabulary("a"))
    assert rows.tolist() == [0, 2, 3, 4]
    assert vectors.tolist() == [[-1, -1], [-2, -2], [-3, -3], [0, 1]]


STYLES = ["none", "subword_nmt", "sentencepiece", "wordpiece", "bytelevel"]
SURFACES = st.text("abcäß", min_size=1, max_size=5) | st.lists(
    st.sampled_from(["&apos;", "&#91;", "'", "[", "S", "s"]), min_size=1, max_size=3
).map("".join)


@given(
    st.lists(SURFACES, min_size=1, max_size=8, unique=True),
    st.sampled_from(STYLES),
    st.sampled_from(STYLES),
    st.sets(st.sampled_from(RULES), min_size=1),
)
@settings(max_examples=60, deadline=None)
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


def test_styles_are_recognised():
    words = [f"w{i}" for i in range(200)]
    assert detect_style(["the", "house", "##/##", *words]) == detect_style([]) == "none"
    pieces = {"subword_nmt": "hou@@ se", "sentencepiece": "▁hou se", "wordpiece": "hou ##se", "bytelevel": "Ġhou se"}
    for style, spelled in pieces.items():
        assert detect_style(spelled.split()) == style
    # stray markers in word lists are fewer than one in fifty
    assert detect_style(["##0", "##1", *words[:198]]) == "none"
    assert detect_style([*(f"##{i}" for i in range(6)), *words[:194]]) == "wordpiece"


# ---- dict.txt, as fairseq reads it

SYMBOLS = st.sampled_from(["foo", "bar", "<s>", "<mask>", "madeupword0001", "a b", "#fairseq:overwrite", "é", "", "3"])
COUNTS = st.sampled_from(["3", "0", "-1", "+7", "1_0", "x", "", "3.5", "٣", str(2**63 - 1)])
ENDS = st.sampled_from(["\n", " \n", "\t\n", "\r\n", "\r", " #fairseq:overwrite\n", " #fairseq:overwrite  \n", "\n\n"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.tuples(SYMBOLS, COUNTS, ENDS), min_size=1, max_size=5))
@example(lines=[("foo", "3", " \n"), ("bar", "-1", "\n")])
@example(lines=[("foo", "3", "\r"), ("<unk>", "2", " #fairseq:overwrite\n")])
def test_what_fairseq_loads_is_loaded_and_what_it_refuses_is_refused(tmp_path, lines):
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
    assert (vocabulary.pad_row, rows.size) == (1, len(expected))
    names = {symbol for symbol in expected.symbols[4:] if not is_filler(symbol)} - {"<mask>", *SPECIAL_SYMBOLS}
    assert rows.words == {symbol: expected.indices[symbol] for symbol in names}
    specials = {"bos": expected.bos(), "pad": expected.pad(), "eos": expected.eos(), "unk": expected.unk()}
    assert rows.specials == specials | ({"mask": expected.index("<mask>")} if "<mask>" in expected else {})
    fillers = [is_filler(symbol) for symbol in expected.symbols]
    assert vocabulary.regular.tolist() == [row > 3 and not filler for row, filler in enumerate(fillers)]


def test_counts_are_of_text_and_in_the_order_of_the_rules():
    got = align(vocabulary("haus", "maus", "es", "&apos;s"), table("▁haus", "▁maus", "es", "'s", markers="auto"))
    assert (got.source_style, got.style) == ("sentencepiece", "none")
    assert list(got.counts_by_rule().items()) == [("exact", 1), ("entities", 1), ("marker", 2)]
    words = vocabulary("a", "b", "c", "madeupword0000", counts=[6, 3, 1, 0])
    got = coverage(words, align(words, table("a", "c", "madeupword0000", specials=("bos", "eos"))).found)
    assert got == {"found": 2, "coverage_types": pytest.approx(2 / 3), "coverage_tokens": pytest.approx(0.7)}
    nothing = vocabulary("madeupword0000", counts=[0])
    assert coverage(nothing, np.ones(5, bool)) == {"found": 0, "coverage_types": 0.0, "coverage_tokens": 0.0}
    assert coverage(vocabulary("a", counts=[0]), np.ones(5, bool))["coverage_tokens"] == 0.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("haus 1\nhaus 2\n", "dict.txt:2: .*'haus'.*remove"),
        (f"a 1\nb {2**63}\n", "dict.txt:2: 9223"),
        ("", "no symbol"),
    ],
)
def test_broken_dictionaries_are_named(tmp_path, text, message):
    (tmp_path / "dict.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        read_dictionary(tmp_path / "dict.txt")
