"""Dictionaries, typed tokens and the rules that match a dictionary with a source."""

import html
from unicodedata import normalize

import numpy as np
import pytest
from fairseq.data import Dictionary
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from source_files import SOURCES

from embinit_fairseq.embeddings import Vectors
from embinit_fairseq.errors import CheckpointError, CoverageError, DataError
from embinit_fairseq.init.alignment import RULES, Matching, align, plan, read
from embinit_fairseq.init.init_report import coverage, shares, signature
from embinit_fairseq.vectors.fairseq_checkpoint import read_rows
from embinit_fairseq.vectors.open import parse_source
from embinit_fairseq.vectors.table import Origin, VectorTable
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary, is_filler, read_dictionary, vocabulary_of
from embinit_fairseq.vocab.matching import Matcher, Spelling, closeness, find_label, fold, readings
from embinit_fairseq.vocab.subword_styles import ENTITIES, STYLES, Token, as_text, in_bytes, parse, spell, unescape

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
        ("MAUS der", "maus der", "none", ("exact",), "- der=exact"),
        ("▁MAUS ▁der ▁die", "maus der die", "none", ("exact", "marker"), "- der=marker die=marker"),
        # the closest spelling, not the first: lower-cased, then case-folded
        ("maße Maße MASSE buße", "die Masse Maße masse Busse", "none", RULES,
         "Maße=casefold Maße=exact Masse=casefold Busse=casefold"),
        ("ΟΔΟΣ ﬁne ǅ οδοσ", "οδος fine ǆ", "none", RULES, "οδος=casefold fine=casefold ǆ=casefold οδος=casefold"),
        # Turkish: the capital of i is İ, of ı it is I; Python lower-cases İ to two letters
        ("İçin i̇zmir Işık IŞIK sık ISPARTA", "için İzmir ışık sik ısparta", "none", RULES,
         "için=casefold İzmir=casefold ışık=casefold ışık=casefold - ısparta=casefold"),
        # the first row of one spelling, and of one case
        ("haus MAUS", "haus haus Maus maus", "none", RULES, "haus=exact Maus=casefold"),
        # Moses' entities: after equal spelling and before another case
        (ENTITY_SYMBOLS, PLAIN, "none", RULES, "=entities ".join(PLAIN.split()) + "=entities"),
        ("&apos;s at&amp;t &apos;D", "&apos;s 's AT&amp;T at&t 'd", "none", RULES,
         "&apos;s=exact at&t=entities 'd=entities_casefold"),
        ("&apos;s house &apos;D", "'s 'd house", "none", ("entities",), "'s=entities - -"),
        # entities and markers. A dictionary of words, T5: word-initial
        ("&apos;s haus", "▁'s 's ▁haus", "sentencepiece", RULES, "▁'s=entities_marker ▁haus=marker"),
        ("&apos;S", "▁'s ▁haus", "sentencepiece", RULES, "▁'s=entities_marker_casefold"),
        # subword-nmt: the piece goes on, a word list's does not; punctuation is a word in any place
        ("&apos;@@ &apos;s go@@", "' 's go", "none", RULES, "'=entities_marker 's=entities -"),
        (",@@ -@@ 中@@ , s@@", "- , 中 s", "none", RULES, ",=marker -=marker 中=marker ,=exact -"),
        (", -@@", ", ,</w> - -</w>", "end_of_word", RULES, ",</w>=marker -=marker"),
        (", -@@ -", ",@@ -@@ -", "subword_nmt", RULES, ",@@=marker -@@=exact -=exact"),
        ("&quot;@@ go@@", '##" "', "wordpiece", RULES, '"=entities_marker -'),
        # an inner piece of sentencepiece is no word of BERT, except signs
        ("▁&quot; &quot; ▁x &apos;s", '" x \'s', "wordpiece", RULES, '"=entities_marker "=entities x=marker -'),
        # vectors of text that Moses has escaped, a dictionary of text that it has not
        ("' \" 's & - x", "&apos; &quot; &apos;s &amp; @-@ y", "none", RULES,
         "&apos;=entities &quot;=entities &apos;s=entities &amp;=entities @-@=entities -"),
        ("' ▁'s 's ▁x", "&apos; &apos;s ▁y", "none", RULES, "&apos;=entities &apos;s=entities_marker - -"),
        ("' 'S -", "' &apos; &apos;s - @-@", "none", RULES, "'=exact &apos;s=entities_casefold -=exact"),
        ("' ▁&lt;", "&apos; &amp;lt;", "none", ("exact", "marker"), "- -"),
        ("&lt; <", "&amp;lt; &lt;", "none", RULES, "&lt;=exact &lt;=entities"),
        # Moses' hyphen; `@@` of subword-nmt is none, nor is what stands between letters
        ("@-@ @/@ ▁@-@ @@@ @a@ x@-@y", "- / @ a x-y", "none", RULES, "-=entities /=entities - @=marker - -"),
        ("@-@ @-@@@ @-@@ go@@", "- @-@ @-", "none", RULES, "@-@=exact @-@=marker @-=marker -"),
        ("@-@ @@@ go@@", "- @@ @", "subword_nmt", RULES, "-=entities @=marker -"),
        # sentencepiece dictionary, GloVe: word-initial pieces are words, inner pieces are not
        ("▁haus ▁Maus ▁x", "haus maus", "none", RULES, "haus=marker maus=marker_casefold -"),
        ("▁eine m to In 2 's", "m to in 2 's eine", "none", RULES, "eine=marker - - - - -"),
        ("the ##s ##ing", "the s ing", "none", RULES, "the=exact - -"),
        ("the ing", "▁the ing", "sentencepiece", RULES, "▁the=marker -"),
        # ... unless the marker says nothing about words: signs, and scripts without spaces
        ("▁cat . ▁. ▁( ' 👍🏽 ❤️", "cat . ( ' 👍🏽 ❤️", "none", RULES,
         "cat=marker .=exact .=marker (=marker '=exact 👍🏽=exact ❤️=exact"),
        ("▁我 中国 の ไทย 한국 中2 ा", "我 中国 の ไทย 한국 中2 ा", "none", RULES,
         "我=marker 中国=exact の=exact ไทย=exact - - -"),
        ("中国 .", "▁中国 中国 ▁. .", "sentencepiece", RULES, "中国=exact .=exact"),
        ("▁国 国 ▁go", "##国 国 go", "wordpiece", RULES, "国=marker 国=exact go=marker"),
        # a list of words has no pieces
        ("##s ##ing the", "##s ##ing #### the a b c d e f g", "auto", RULES, "- - the=exact"),
        ("▁x ▁go go@@", "▁x go@@ x", "none", RULES, "x=marker - -"),
        # lower-cased sentencepiece: the word, not the piece inside one
        ("The", "the ▁the", "sentencepiece", RULES, "▁the=marker_casefold"),
        ("ing Ing go@@", "▁Ing ing go", "sentencepiece", RULES, "ing=exact ▁Ing=marker go=marker"),
        # `</w>` ends a word; CLIP has bytes before it
        ("café Café", "cafÃ© cafÃ©</w>", "end_of_word", RULES, "cafÃ©</w>=marker cafÃ©</w>=marker_casefold"),
        ("cat cat</w> the</w>", "cat the", "none", RULES, "- cat=marker the=marker"),
        ("cat cat</w> ing</w>", "▁cat cat ing", "sentencepiece", RULES, "▁cat=marker ▁cat=marker ing=marker"),
        ("cat##", "cat", "wordpiece", RULES, "-"),
        ("cat@@ cat", "cat cat</w>", "end_of_word", RULES, "cat=marker cat</w>=marker"),
        ("cat ##ing the", "cat cat</w> ing", "auto", RULES, "cat</w>=marker ing=marker -"),
        # a mark after the word: what has none goes on, as with `@@`
        ("hund▁ la uft▁ ,▁ .", "hund la uft , .", "none", RULES, "hund=marker - uft=marker ,=marker .=exact"),
        ("hund▁ la Uft▁", "▁hund la▁ ▁la uft", "sentencepiece", RULES, "▁hund=marker ▁la=marker uft=marker_casefold"),
        ("hund la@@ x", "hund la▁ la hund▁", "space_after", RULES, "hund▁=marker la=marker -"),
        # OpenNMT's joiner, at either of two neighbours
        ("hund la￭ ￭uft ￭, x￭ ￭en￭", "hund la uft , x en", "none", RULES, "hund=exact - - ,=marker - -"),
        ("hund la￭ uft ￭uft", "▁hund la uft ▁uft", "sentencepiece", RULES,
         "▁hund=marker la=marker ▁uft=marker uft=marker"),
        ("▁hund uft ,", "hund ￭hund ￭uft ￭,", "joiner", RULES, "hund=marker ￭uft=marker ￭,=marker"),
        # digits: a word with its digits comes first, a part of a word is no word
        ("1999 5 2.50 90s mp3", "#### 5 #.## ##s the", "none", RULES, "####=digits 5=exact #.##=digits ##s=digits -"),
        ("1999 5 MP3 90s", "0000 0 mp0 00", "none", RULES, "0000=digits 0=digits mp0=digits_casefold -"),
        ("▁1999 99", "▁0000 ▁00 00 0", "sentencepiece", RULES, "▁0000=digits 00=digits"),
        ("1999 2000 12", "#### ## 2000 0000 the", "none", RULES, "- 2000=exact -"),
        ("mp3", "#### mp# MP3", "none", RULES, "MP3=casefold"),
        ("99 the", "## the ##s ##ing", "wordpiece", RULES, "- the=exact"),
        ("1999 7", "0000 00 3 the", "none", RULES, "- -"),
        ("1999 the", "#### the", "none", ("exact",), "- the=exact"),
        ("the ##s ##ing 99", "the ##s ## ##ing s", "auto", RULES, "the=exact - - ##=digits"),
        ("19@@ 99 19", "## the", "none", RULES, "- ##=digits ##=digits"),
        # BERT: `ing` inside a word is `##ing`, never the word `ing`
        ("▁go ing", "go ing ##ing", "wordpiece", RULES, "go=marker ##ing=marker"),
        # subword-nmt says whether a piece goes on, not whether it begins a word
        ("go@@ ing", "▁go ing", "sentencepiece", RULES, "▁go=marker ing=exact"),
        ("go@@ ing", "go ing", "none", RULES, "- ing=exact"),
        # GPT-2
        ("▁haus es", "Ġhaus es haus", "bytelevel", RULES, "Ġhaus=marker es=exact"),
    ],
)  # fmt: skip
def test_rules_by_hand(symbols, words, markers, rules, expected):
    got = rules_of(vocabulary(*symbols.split()), table(*words.split(), markers=markers), rules=rules)
    pairs = [got[symbol] for symbol in symbols.split()]
    assert ["=".join(pair) if pair[0] else "-" for pair in pairs] == expected.split()
    assert all(rule == "" for word, rule in pairs if word is None)


CHINESE, RUSSIAN, GERMAN = ["我", "中国", "Ġ中国", "人民"], ["Ġпривет", "ов", "Ġмир"], ["Ġüber", "ß", "Ġdie", "Ġé"]


@pytest.mark.parametrize("text", [CHINESE, RUSSIAN, GERMAN])
def test_pieces_of_bytes_are_compared_as_text(text):
    """Of dictionaries and checkpoints, which have bytes, of models' folders, which are read as text, and of words."""
    pieces, words = list(map(in_bytes, text)), [piece.removeprefix("Ġ") for piece in text]
    for symbols, source, markers in ((pieces, text, "bytelevel"), (pieces, pieces, "auto"), (text, pieces, "auto")):
        got = rules_of(vocabulary(*symbols), table(*source, markers=markers))
        assert got == dict(zip(symbols, ((word, "exact") for word in source)))
        assert all(word in plan(vocabulary(*symbols)) for word in source)
    got = rules_of(vocabulary(*pieces), table(*words))
    inner = [] if text is CHINESE else [text[1]]
    assert got == {
        symbol: (None, "") if piece in inner else (word, "marker" if piece[0] == "Ġ" else "exact")
        for symbol, piece, word in zip(pieces, text, words)
    }


def test_a_part_of_a_character_is_no_letter():
    """`é` is the first byte of many Chinese characters, and a letter in a model's folder."""
    symbols = [*map(in_bytes, CHINESE), "é", "ä¸", "Ġé"]
    got = rules_of(vocabulary(*symbols), table("é", "ä¸", "Ġé", "中国", markers="bytelevel"))
    assert [symbol for symbol, (word, _) in got.items() if word] == [in_bytes("中国"), in_bytes("Ġ中国")]
    got = rules_of(vocabulary(*symbols), table(*reversed(symbols), markers="auto"))
    assert got == {symbol: (symbol, "exact") for symbol in symbols}


def test_words_that_a_tokenizer_was_given_later_have_no_marker():
    symbols, later = ["▁the", "ing", "covid"], frozenset([6])
    dictionary = Vocabulary([*SPECIAL_SYMBOLS, *symbols], np.ones(7), ROLES, later)
    assert rules_of(dictionary, table("covid", "ing", "the"))["covid"] == ("covid", "exact")
    own = table("▁the", "ing", "covid", markers="sentencepiece")
    assert rules_of(dictionary, own)["covid"] == ("covid", "exact")
    own.added = ["covid"]
    assert rules_of(vocabulary("the", "covid", "ing"), own)["covid"] == ("covid", "exact")
    assert rules_of(vocabulary("the", "covid", "ing"), own)["ing"] == (None, "")


ESCAPED = st.lists(st.sampled_from([*ENTITIES, "a", "B", "'", '"', " ", "-"]), min_size=1, max_size=6).map("".join)


@given(ESCAPED)
@settings(max_examples=50)
def test_entities_mean_what_they_mean_in_html(symbol):
    assert unescape(symbol) == html.unescape(symbol)
    token = Token(symbol, True, True)
    forms = [each.surface for each, _ in readings(token, {"entities"})]
    assert forms == list(dict.fromkeys([symbol, html.unescape(symbol)]))
    assert readings(token, {"casefold"}) == [(token, ())]


def test_only_what_moses_writes_is_read_as_moses_writes_it():
    assert [len(readings(Token(text, True, True))) for text in ("@-@", "@_@", "@@@", "@a@", "@-@-")] == [2, 2, 1, 1, 1]
    assert unescape("&amp;lt; R&amp;D &nbsp; &amp &#39;") == "&lt; R&D &nbsp; &amp &#39;"


def test_specials_take_the_formats_own_rows_never_words_spelled_so():
    got = align(vocabulary("a"), table("<s>", "</s>", "<unk>", "<pad>", "a"))
    assert got.rule == ["", "", "", "", "exact"]
    source = table("a", specials=("bos", "eos", "unk", "pad"))
    got = align(vocabulary("a"), source)
    assert got.rule == ["special", "", "special", "special", "exact"]  # <s> <pad> </s> <unk> a
    rows, vectors = got.gather(source, vocabulary("a"))
    assert rows.tolist() == [0, 2, 3, 4]
    assert vectors.tolist() == [[-1, -1], [-2, -2], [-3, -3], [0, 1]]


SURFACES = st.text("abäßİı\u0308中", min_size=1, max_size=5) | st.lists(
    st.sampled_from(["&apos;", "&#91;", "'", "[", "S", "s", "@", "-"]), min_size=1, max_size=3
).map("".join)


def forms_of(surface: str) -> tuple[str, ...]:
    """Return a text with and without Moses' escapes."""
    return surface, unescape(surface), surface.strip("@"), surface.replace("'", "&apos;"), f"@{surface}@"


@given(
    st.lists(SURFACES, min_size=1, max_size=8, unique=True),
    st.sampled_from(STYLES),
    st.sampled_from(STYLES),
    st.sets(st.sampled_from(RULES), min_size=1),
)
@example(["'["], "none", "none", {"entities"})  # `&apos;[`, which Moses does not write
@settings(max_examples=60)
def test_every_row_a_plan_misses_could_not_have_matched(surfaces, style, source_style, rules):
    """Reading only the planned rows gives the same alignment as reading everything."""
    symbols = sorted({s for surface in surfaces for s in spell(Token(surface, True, None), style)})
    forms = {form for surface in surfaces for form in forms_of(surface)} - {""}
    cases = {case for form in forms for case in (form, form.upper(), normalize("NFC", form), normalize("NFD", form))}
    words = sorted({word for case in cases for each in STYLES for word in spell(Token(case, None, None), each)})
    dictionary = vocabulary(*symbols)
    wanted = plan(dictionary, style)
    planned = [word for word in words if word in wanted]
    for spelled, how in ((symbols, style), (words, source_style), (planned, source_style)):
        assume(as_text(spelled, how) is spelled)  # `ßİ` happens to be a character in GPT-2's spelling of bytes
    everything, filtered = table(*words, markers=source_style), table(*planned, markers=source_style)
    full, part = (rules_of(dictionary, source, rules=rules, markers=style) for source in (everything, filtered))
    assert full == part


def test_spellings_of_a_word_have_one_key():
    """Every letter that has several cases or forms; the capitals of eight Greek letters have no composed form."""
    for letter in filter(str.isalpha, map(chr, range(0x80, 0x2C80))):
        forms = {letter.lower(), letter.casefold(), normalize("NFD", letter)}
        for form in forms | ({letter.upper()} if normalize("NFC", letter) not in "ΐΰῒῗῢῧ" else set()):
            assert closeness(letter, form) is not None
            assert fold(letter) == fold(form)


# ---- dict.txt, as fairseq reads it

SYMBOLS = st.sampled_from(["foo", "bar", "<s>", "<mask>", "madeupword0001", "a b", "#fairseq:overwrite", "é", "", "3"])
COUNTS = st.sampled_from(["3", "0", "-1", "+7", "1_0", "x", "", "3.5", "٣", str(2**63 - 1)])
ENDS = st.sampled_from(["\n", " \n", "\t\n", "\r\n", "\r", " #fairseq:overwrite\n", " #fairseq:overwrite  \n", "\n\n"])


@settings(max_examples=60)
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
    assert vocabulary.counts[4:].tolist() == expected.count[4:]
    assert (vocabulary.pad_row, len(rows.symbols)) == (1, len(expected))
    names = {symbol for symbol in expected.symbols[4:] if not is_filler(symbol)} - {"<mask>", *SPECIAL_SYMBOLS}
    assert rows.words == {symbol: expected.indices[symbol] for symbol in names}
    specials = {"bos": expected.bos(), "pad": expected.pad(), "eos": expected.eos(), "unk": expected.unk()}
    assert rows.specials == specials | ({"mask": expected.index("<mask>")} if "<mask>" in expected else {})
    assert vocabulary.regular.tolist() == [symbol in names for symbol in expected.symbols], "for `embinit stats`"
    assert vocabulary_of(expected).regular.tolist() == vocabulary.regular.tolist(), "for --embed-init"


def test_a_line_for_the_mask_is_no_word_among_ids(tmp_path):
    """RoBERTa's dictionary, saved after its task has appended `<mask>`: all other symbols are ids of subwords."""
    path = tmp_path / "dict.txt"
    path.write_text("".join(f"{number} 1\n" for number in range(100, 120)) + "<mask> 1\nmadeupword0000 0\n")
    assert read_dictionary(path).has_ids


def test_counts_are_of_text_and_in_the_order_of_the_rules():
    got = align(vocabulary("haus", "maus", ".", "&quot;"), table("▁haus", "▁maus", ".", '"', markers="auto"))
    assert (got.source_style, got.style) == ("sentencepiece", "none")
    assert list(got.counts_by_rule().items()) == [("exact", 1), ("entities", 1), ("marker", 2)]
    words = vocabulary("a", "b", "c", "madeupword0000", counts=[6, 3, 1, 0])
    got = coverage(words, align(words, table("a", "c", "madeupword0000", specials=("bos", "eos"))).matched)
    assert got == {"found": 2, "coverage_types": pytest.approx(2 / 3), "coverage_tokens": pytest.approx(0.7)}
    nothing = vocabulary("madeupword0000", counts=[0])
    assert coverage(nothing, np.ones(5, bool)) == {"found": 0, "coverage_types": 0.0, "coverage_tokens": None}


@pytest.mark.parametrize(
    ("counts", "share"),
    [
        ([3, 1], 0.75),
        ([1, 0], 1.0),
        ([2**63 - 1, 2**63 - 1 - 2**20], 0.5),  # more than an int64 holds together
        *((counts, None) for counts in ([0, 0], [1, 1], [100, 100], [-1, -3], [5, -3])),
    ],
)
def test_numbers_that_are_no_counts_weigh_nothing(counts, share, caplog):
    """Tools that have no text write 1 or 100 for each symbol, or the logarithms of a sentencepiece model."""
    words = vocabulary("a", "b", counts=counts)
    found = coverage(words, np.array([False] * 4 + [True, False]))
    assert (found["coverage_types"], found["coverage_tokens"]) == (0.5, pytest.approx(share))
    slot = {"strategy": "pretrained", "source": {"name": "v"}, "dim": 3, "seed": 1, **found}
    assert ("|cov:" in signature(slot, "0")) == (share is not None)
    assert ("|cov_types:0.500" in signature(slot, "0")) == (share is None)
    assert ("no counts" in shares(found)) == (share is None)


def test_no_warning_without_counts(tmp_path, caplog):
    (tmp_path / "v.txt").write_text("w0 1 2\nw1 3 4\n")
    for counts, warned in (([1] * 30, False), (range(1, 31), True)):
        read(parse_source(str(tmp_path / "v.txt")), vocabulary(*(f"w{n}" for n in range(30)), counts=counts))
        assert ("LOW COVERAGE" in caplog.text) == warned


def test_files_of_two_languages_cover_a_joined_dictionary_together(tmp_path, caplog):
    (tmp_path / "de.txt").write_text("der 1 2\n")
    (tmp_path / "en.txt").write_text("the 3 4\n")
    words, files = vocabulary("the", "der", "x", "y", counts=[10, 9, 2, 1]), f"{tmp_path}/de.txt,{tmp_path}/en.txt"
    read(parse_source(f"avg:{files}"), words)
    assert "LOW COVERAGE" not in caplog.text
    read(parse_source(f"concat:{files}"), words)
    assert caplog.text.count("LOW COVERAGE") == 2
    caplog.clear()
    read(parse_source(f"avg:{files}"), vocabulary("the", "der", "x", "y", counts=[1, 2, 9, 10]))
    assert caplog.text.count("LOW COVERAGE") == 2


@pytest.mark.parametrize("kind", ["txt", "huggingface", "fairseq"])
def test_ids_of_subwords_are_no_words(tmp_path, kind):
    """The numbers of word vectors are not GPT-2's or sentencepiece's ids; the symbols of a model with ids are."""
    ids = [str(number) for number in range(300, 320)]

    def vectors(name, first):
        folder = tmp_path / name
        folder.mkdir()
        matrix = np.arange(2 * len(first + ids), dtype=np.float32).reshape(-1, 2)
        if kind == "txt":
            Vectors(first + ids, matrix).save(folder / "v.txt")
            return folder / "v.txt"
        return SOURCES[kind].make(folder, first + ids, matrix)

    words = str(vectors("words", ["the", "of"]))
    with pytest.raises(CoverageError, match=r"numbers \(300, .*output_format=piece.*npz"):
        read(parse_source(words), vocabulary(*ids, "madeupword0000"))
    assert read(parse_source(words), vocabulary("the", *ids)).coverage["found"] == 21
    assert read(parse_source(words), vocabulary(*ids[:10])).coverage["found"] == 10  # of ten digits
    if kind != "huggingface":
        of_ids = str(vectors("ids", ["[MASK]", "<extra>"]))
        assert read(parse_source(of_ids), vocabulary(*ids)).coverage["found"] == 20


# ---- What the tools that made the vectors did to words


LABELLED = {
    "/c/{}/{}": ["/c/de/hund", "/c/en/dog", "/c/en/hund", "/c/de/haus", "/c/de/##"],
    "{}:{}": ["de:hund", "en:dog", "en:hund", "de:haus", "de:##"],
    "{}_{}": ["de_hund", "en_dog", "en_hund", "de_haus", "de_##"],
    "{1}@{0}": ["hund@de", "dog@en", "hund@en", "haus@de", "##@de"],
}


@pytest.mark.parametrize("format", ["txt", "npz", "bin"])
@pytest.mark.parametrize("pattern", LABELLED)
def test_words_with_a_language(tmp_path, pattern, format):
    """Of several languages the dictionary's counts, whatever is first in the file."""
    words, matrix = LABELLED[pattern], np.arange(10, dtype=np.float32).reshape(5, 2)
    path = tmp_path / f"v.{format}"
    if format == "bin":
        path.write_bytes(
            b"5 2\n" + b"".join(w.encode() + b" " + row.tobytes() + b"\n" for w, row in zip(words, matrix))
        )
    else:
        Vectors(words, matrix).save(path)
    for symbols, counts, expected in (
        (("Hund", "haus", "dog", "10"), (5, 2, 1, 1), [0, 3, -1, 4]),
        (("hund", "haus", "dog", words[3]), (5, 2, 9, 1), [2, -1, 1, -1]),
        ((words[3], "hund"), (5, 2), [3, 0]),
    ):
        reading = read(parse_source(str(path)), vocabulary(*symbols, counts=counts))
        got = {row: int(vector[0]) // 2 for row, vector in zip(reading.source.rows, reading.source.vectors)}
        assert [got.get(4 + at, -1) for at in range(len(symbols))] == expected
        assert reading.parts[0].origin.language == pattern.format("de" if 3 in expected else "en", "")
    rules = reading.rows_by_rule()
    assert rules == {"exact": 1, "label": 1}
    with pytest.raises(CoverageError):
        read(parse_source(str(path)), vocabulary("hund"), Matching(rules=("exact", "casefold")))


def test_words_with_a_part_of_speech(tmp_path):
    (tmp_path / "v.txt").write_text("hund_NOUN 1 2\nlaufen_VERB 3 4\nlaufen_NOUN 5 6\n")
    reading = read(parse_source(str(tmp_path / "v.txt")), vocabulary("laufen", "Hund"))
    assert (reading.source.vectors[:, 0].tolist(), reading.rows_by_rule()) == (
        [3, 1],
        {"label": 1, "label_casefold": 1},
    )


def test_words_with_a_colon_or_an_underscore_have_no_label(tmp_path):
    (tmp_path / "v.txt").write_text("the 1 2\nde:hund 1 2\nNew_YORK 5 6\n")
    with pytest.raises(CoverageError, match=r"'hund'.*'de:hund'"):  # words of both
        read(parse_source(str(tmp_path / "v.txt")), vocabulary("hund", "New"))


def test_a_file_with_labels_has_them_at_more_than_nine_of_ten_words():
    """Symbols do not count; a word without a label comes before one with it."""
    words = ["</s>", "<unk>", *(f"de:{number}" for number in range(20))]
    assert [find_label([*words, *"x" * others]) is not None for others in (0, 2, 3, 12)] == [True, True, False, False]
    matcher = Matcher(["de:hund", "hund"], "none", spelling=Spelling(label=find_label(words)))
    assert matcher.match(parse("hund", "none")) == (1, "exact")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("haus 1\nhaus 2\n", "dict.txt:2: .*'haus'.*remove"),
        (f"a 1\nb {2**63}\n", "dict.txt:2: 9223"),
        ("", "no symbol"),
        ("a 1\n<unk> 0\n", r"dict.txt:2: .*grep -vE '\^\(<pad>\|<unk>\|</\?s>\) ' FILE"),
        ("<unk>\t0\n<s>\t0\n▁a\t-2.5\n", r"dict.txt:1: .*cut -f1 FILE \| grep .*sed 's/\$/ 1/'"),
        ("▁a\t-2.5\n", "cut -f1 FILE"),
        ("a\t5\n", r"tr '\\t' ' ' <"),
        ("a b,5\n", "give the dict.txt"),
        ("a,5\n", "dict.txt:1: .*sed -E 's/.,;"),
        ("▁a -2.5\n", r"sed -E 's/ \[\^ \]\+\$/ 1/'"),
        ("a 5.0\n", r"sed -E 's/ \[\^ \]\+\$/ 1/'"),
        ("a\nb\n", r"sed 's/\$/ 1/'"),
        ('{"a": 5}\n', "give the dict.txt"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "dict.txt: .*git lfs pull"),
    ],
)
def test_broken_dictionaries_are_named(tmp_path, text, message):
    (tmp_path / "dict.txt").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_dictionary(tmp_path / "dict.txt")
