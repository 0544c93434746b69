"""The steps from raw text to symbols against the libraries called one after the other, and the record of them."""

import contextlib
import json
import pickle
import re
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.checkpoints.trained_preparation import (
    OPTION,
    check_same_preparation,
    find_preparation,
    records_for_checkpoints,
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
DICT = "the man dog , . an or@@ an@@ g@@ e n@@ o@@ r@@ t@@ h orange".split()
PAIRS = [("An orange, the DOG.", "an or@@ an@@ g@@ e , t@@ h@@ e d@@ o@@ g ."), ("", "")]
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


# ---- The record -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "bin"
    place.mkdir()
    (place / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in DICT))
    (tmp_path / "bpe.codes").write_text(CODES)
    steps = {"dict.txt": [*parse_steps("lowercase,moses"), {"step": "bpe"}]}
    record.record_preparation(place, steps, {"codes": tmp_path / "bpe.codes"}, {"dict.txt": PAIRS})
    return place


def test_a_record_comes_back(folder):
    recorded = record.read_preparation(folder / "dict.txt")
    assert recorded.examples == (("An orange, the DOG.", "an or@@ an@@ g@@ e , t@@ h@@ e d@@ o@@ g ."),)
    assert recorded.preparation(DICT)("An orange") == ["an", "or@@", "an@@", "g@@", "e"]
    assert record.recorded_in(json.loads(json.dumps(recorded.entry())), "x").steps == recorded.steps
    (folder / "dict.txt").write_text((folder / "dict.txt").read_text() + "madeupword0000 0\n")
    assert record.read_preparation(folder / "dict.txt") is not None, "fairseq-preprocess has padded it"
    assert record.read_preparation(folder / "dict.de.txt") is None


def break_dictionary(folder):
    (folder / "dict.txt").write_text((folder / "dict.txt").read_text() + "ℝ 1\n")


def move_symbols(folder):
    """The symbols are the same, their rows are not."""
    first, *rest = (folder / "dict.txt").read_text().splitlines(keepends=True)
    (folder / "dict.txt").write_text("".join([*rest, first]))


def break_codes(folder):
    (folder.parent / "bpe.codes").write_text(CODES + "r o\n")


def lose_codes(folder):
    (folder.parent / "bpe.codes").unlink()


def add_glossary(folder):
    (folder.parent / "glossary.txt").write_text("^(?:orange)$\n")


def break_example(folder):
    text = (folder / "preparation.json").read_text()
    (folder / "preparation.json").write_text(text.replace("d@@ o@@ g .", "dog ."))


def break_record(folder):
    text = (folder / "preparation.json").read_text()
    (folder / "preparation.json").write_text(text.replace('"moses"', '"mosses"'))


def edited(entry):
    """Return a damage: the record after somebody edited it."""

    def edit(folder):
        content = json.loads((folder / "preparation.json").read_text())
        content["dictionaries"]["dict.txt"] |= entry
        (folder / "preparation.json").write_text(json.dumps(content))

    return edit


def later_version(folder):
    (folder / "preparation.json").write_text('{"preparation": 2}')


BROKEN = {
    break_dictionary: "another dict.txt",
    move_symbols: "another dict.txt",
    break_codes: "segmented with.*give that one",
    lose_codes: "bpe.codes.*give it by --bpe-codes.*bpe_codes=FILE",
    add_glossary: "segmented with",
    break_example: "prepare the text again",
    break_record: "damaged.*mosses",
    later_version: "not a record of version 1",
    edited({"files": {}}): "damaged",
    edited({"files": {"codes": {"path": 5, "sha256": "x"}}}): "damaged.*5",
    edited({"files": {"codes": {"path": "../bpe.codes", "sha256": "x"}, "more": {"path": "a", "sha256": "x"}}}): "more",
    edited({"steps": [{"step": "moses", "lang": 5}, {"step": "bpe"}]}): "damaged.*5",
    edited({"steps": [{"step": "moses", "escape": "no"}, {"step": "bpe"}]}): "damaged.*no",
}


@pytest.mark.parametrize("damage", BROKEN)
def test_a_record_that_does_not_fit_is_refused(folder, damage):
    damage(folder)
    with pytest.raises(DataError, match=re.compile(BROKEN[damage], re.DOTALL)):
        record.read_preparation(folder / "dict.txt").preparation(DICT)


def test_two_percent_of_the_lines_may_come_out_otherwise(folder):
    """And one, of the first lines."""
    for others, lines in ((1, 1), (2, 50), (3, 100), (2, 49), (4, 100)):
        pairs = [("Dog", "dog")] * (lines - others) + [("Dog", "man")] * others
        steps = {"dict.txt": parse_steps("lowercase")}
        if others <= 1 + 0.02 * lines:
            recorded = record.record_preparation(folder, steps, None, {"dict.txt": pairs})["dict.txt"]
            assert recorded.lines == {"tried": lines, "equal": lines - others}
        else:
            with pytest.raises(DataError, match="name those"):
                record.record_preparation(folder, steps, None, {"dict.txt": pairs})


def test_a_checkpoint_has_the_records_of_a_classifiers_text(folder):
    """It is in input0/; of several folders the first one counts."""
    expected = json.loads((folder / "preparation.json").read_text())["dictionaries"]
    assert expected
    data = folder.with_name("data")
    (data / "other").mkdir(parents=True)
    folder.rename(data / "input0")
    for name in ("cfg", "args"):
        task = SimpleNamespace(**{name: SimpleNamespace(data=f"{data}:{data}/other")})
        assert json.loads(records_for_checkpoints(task)) == expected
    assert records_for_checkpoints(SimpleNamespace(cfg=SimpleNamespace(data=str(data / "other")))) is None


def test_what_is_next_to_codes_belongs_to_them(folder):
    """Words that stay whole, as far as the dictionary has them; of a smaller dictionary, its subwords."""
    codes = folder.parent / "bpe.codes"
    (folder.parent / "glossary.txt").write_text("^(?:north|orange)$\n")
    prepare = Preparation([{"step": "bpe"}], record.contents({"codes": str(codes)}, DICT))
    assert prepare("orange north") == ["orange", "n@@", "or@@", "t@@", "h"]
    (folder.parent / "glossary.txt").unlink()
    recorded = record.read_preparation(folder / "dict.txt")
    recorded.preparation(DICT)
    (folder.parent / "bpe.codes.vocabulary").write_text("a@@ 1\n")
    with pytest.raises(DataError, match="other files next to it"):
        recorded.preparation(DICT)


@pytest.mark.parametrize("change", ["symbols", "codes", "steps"])
def test_parts_of_a_training_have_one_preparation(folder, tmp_path, change):
    """fairseq reads the dictionary of the first part alone."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "dict.txt").write_text((folder / "dict.txt").read_text() + ("zz 1\n" if change == "symbols" else ""))
    (other / "codes").write_text(CODES + ("r o\n" if change == "codes" else ""))
    steps = {"dict.txt": [*parse_steps("moses" if change == "steps" else "lowercase,moses"), {"step": "bpe"}]}
    record.record_preparation(other, steps, {"codes": other / "codes"})
    for part in (folder, other):
        assert record.records_of_data([part])
    with pytest.raises(DataError, match="of one preparation"):
        record.records_of_data([folder, other])


def test_codes_that_the_user_names_must_be_those_of_the_record(folder, tmp_path):
    recorded = record.read_preparation(folder / "dict.txt")
    other, same = tmp_path / "other" / "codes", tmp_path / "same" / "codes"
    for path, text in ((other, CODES + "r o\n"), (same, CODES)):
        path.parent.mkdir()
        path.write_text(text)
    assert recorded.preparation(DICT, {"codes": str(same)})("an") == ["an"]
    for path in (other, tmp_path / "none"):
        with pytest.raises(DataError, match="--bpe-codes"):
            recorded.preparation(DICT, {"codes": str(path)})


@pytest.mark.parametrize("name", ["sacremoses", "spacy", "subword-nmt"])
def test_a_missing_library_is_one_line(monkeypatch, name):
    monkeypatch.setitem(sys.modules, {"subword-nmt": "subword_nmt.apply_bpe"}.get(name, name), None)
    prepare = Preparation([*parse_steps("wikibooks"), {"step": "bpe"}], {"codes": CODES})
    with pytest.raises(ImportError, match=rf"pip install {name}$"):
        prepare("a")


# ---- Two statements about one text ----------------------------------------------------------------------------------


def state_of(entries):
    return {"cfg": {"model": {OPTION: json.dumps(entries)}}}


def entries_in(folder):
    return json.loads((folder / "preparation.json").read_text())["dictionaries"]


def without_lowercase(entry):
    entry["steps"] = entry["steps"][1:]


def other_codes(entry):
    entry["files"]["codes"]["sha256"] = "0" * 64


@pytest.fixture(params=[without_lowercase, other_codes])
def differing(folder, request):
    """The folder of a record, and a checkpoint of the same dictionary whose record is another one."""
    entries = entries_in(folder)
    request.param(entries["dict.txt"])
    return folder, state_of(entries)


def task_of(*folders):
    return SimpleNamespace(cfg=SimpleNamespace(data=":".join(map(str, folders))))


def test_data_and_checkpoint_that_differ_are_refused(differing):
    folder, state = differing
    both = rf"lowercase,moses,bpe as {folder}/preparation.json says.*the preparation.json in (the checkpoint|m.pt) says"
    with pytest.raises(DataError, match=both):
        find_preparation(folder / "dict.txt", state)
    with pytest.raises(DataError, match=both):
        records_for_checkpoints(task_of(folder), {"m.pt": state})


def test_data_and_checkpoint_that_agree(folder):
    """A default that is written and a file at another place make no difference; a checkpoint may have no record."""
    entries = entries_in(folder)
    entries["dict.txt"]["steps"][1]["escape"] = True
    entries["dict.txt"]["files"]["codes"]["path"] = "elsewhere"
    for state in (state_of(entries), state_of({}), {"args": None}):
        assert find_preparation(folder / "dict.txt", state).folder == folder


def test_a_continued_training_keeps_the_record_of_its_checkpoint(folder):
    """If its data have lost it, and the dictionary is the same."""
    entries, (dictionary, task) = entries_in(folder), (folder / "dict.txt", task_of(folder))
    (folder / "preparation.json").unlink()
    assert json.loads(records_for_checkpoints(task, {"m.pt": state_of(entries)})) == entries
    assert records_for_checkpoints(task, {"m.pt": {}}) is None
    break_dictionary(folder)
    with pytest.raises(DataError, match=r"in m\.pt is of another dict.txt"):
        records_for_checkpoints(task, {"m.pt": state_of(entries)})
    dictionary.rename(folder / "dict.xx.txt")
    assert records_for_checkpoints(task, {"m.pt": state_of(entries)}) is None


def test_checkpoints_that_differ_are_refused(differing):
    folder, state = differing
    own = state_of(entries_in(folder))
    check_same_preparation({"a.pt": own, "b.pt": {}, "c.pt": own})
    with pytest.raises(DataError, match=r"in a.pt says.*in b.pt says"):
        check_same_preparation({"a.pt": own, "b.pt": state})


def test_a_part_of_the_data_without_a_record_is_named(folder, caplog):
    other = folder.with_name("more")
    other.mkdir()
    for parts in ((folder, other), (other, folder)):
        assert record.records_of_data(parts)["dict.txt"].folder == folder
    assert not caplog.text, "a part need not have the dictionary"
    (other / "dict.txt").write_bytes((folder / "dict.txt").read_bytes())
    assert record.records_of_data([folder, other])["dict.txt"].folder == folder
    assert f"{other}: no preparation.json" in caplog.text


# ---- fairseq-interactive --------------------------------------------------------------------------------------------


class Words:
    """What a task knows of a dictionary."""

    symbols = DICT


@pytest.fixture
def task(folder):
    """A task whose data have a record, as it is after checkpoints were loaded."""
    pytest.importorskip("fairseq")  # it registers the plugin
    records = record.records_of_data([folder])
    return SimpleNamespace(
        cfg=SimpleNamespace(data=str(folder)),
        source_dictionary=Words(),
        target_dictionary=Words(),
        preparation_records=records,
    )


def test_the_recorded_tokenizer_makes_all_steps_and_takes_them_back(task, folder):
    from embinit_fairseq.embed_init import raw_text

    cfg = raw_text.RecordedTokenizerConfig()
    tokenizer = raw_text.build_tokenizer(lambda task, cfg: raw_text.RecordedTokenizer(cfg), task, cfg)
    for line in ("An orange, the DOG.", "Ain't it, no?"):
        symbols = apply_bpe.BPE(__import__("io").StringIO(CODES)).process_line(with_moses(line, "en", normalise=False))
        assert tokenizer.encode(line) == symbols
        assert tokenizer.decode(symbols) == line.lower()
    task.preparation_records = {}
    with pytest.raises(OptionError, match=r"--tokenizer recorded.*--tokenizer and --bpe"):
        raw_text.build_tokenizer(lambda task, cfg: raw_text.RecordedTokenizer(cfg), task, cfg)


def test_codes_of_fairseqs_options_must_be_those_of_the_record(task, folder):
    from embinit_fairseq.embed_init import raw_text

    codes = folder.parent / "bpe.codes"
    for path in (codes, None):
        assert raw_text.build_bpe(lambda task, cfg: "built", task, SimpleNamespace(bpe_codes=path)) == "built"
    break_codes(folder)
    with pytest.raises(DataError, match=r"--bpe-codes .*give that one"):
        raw_text.build_bpe(lambda task, cfg: "built", task, SimpleNamespace(bpe_codes=str(codes)))


@pytest.mark.parametrize(
    ("encode", "warns"),
    [
        (lambda line: line, False),
        (lambda line: " ".join(Preparation(parse_steps("moses"))(line)), True),
        (lambda line: PAIRS[0][1] if line == PAIRS[0][0] else line, False),
    ],
    ids=["finished words", "no lower case", "all steps"],
)
def test_fairseqs_options_are_compared_with_the_record_once(task, caplog, encode, warns):
    from embinit_fairseq.embed_init import raw_text

    for _ in range(2):
        assert raw_text.encode_lines(lambda task, lines, encode: lines, task, ["a"], encode) == ["a"]
    assert caplog.text.count("lowercase,moses,bpe): give --tokenizer recorded") == warns
