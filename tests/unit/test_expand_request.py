"""Words, pieces and options of an expansion, and where new words go. Oracle: fairseq's own Dictionary."""

from __future__ import annotations

import bz2
import math
from pathlib import Path

import pytest
import sentencepiece
from fairseq.data import Dictionary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.expand.model import Texts, write_dictionaries
from embinit_fairseq.expand.request import ExpandRequest, check_options, cut_words, read_words, segmenter
from embinit_fairseq.expand.state import averaged_rows, new_dictionary, place_words
from embinit_fairseq.vocab.dictionary import read_dictionary

FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
APPENDED = ["<mask>", "[de]", "[en]", "[cs]"]
TAKEN = {*Dictionary().symbols, *APPENDED, "madeupword0000"}
LETTERS = st.characters(min_codepoint=33, max_codepoint=0x24F, exclude_characters="\x7f\x85\xa0\xad")
WORD = st.text(LETTERS, min_size=1, max_size=6).filter(lambda word: word not in TAKEN)


def with_appended(path: Path, appended: list[str]) -> Dictionary:
    """As a task makes it: the file, and symbols behind it."""
    dictionary = Dictionary.load(str(path))
    for symbol in appended:
        dictionary.add_symbol(symbol)
    return dictionary


@given(
    words=st.lists(WORD, min_size=1, max_size=8, unique=True),
    fillers=st.integers(0, 5),
    behind=st.lists(WORD, max_size=3, unique=True),
    appended=st.lists(st.sampled_from(APPENDED), max_size=4, unique=True),
    new=st.lists(WORD, min_size=1, max_size=7, unique=True),
    newline=st.booleans(),
)
@FUZZ
def test_every_symbol_finds_its_row(tmp_path, words, fillers, behind, appended, new, newline):
    """Old symbols go where `moved` says, new ones where `rows` says, and fillers are the only ones that are lost."""
    lines = [*words, *(f"madeupword{i:04d}" for i in range(fillers)), *(f"later-{word}" for word in behind)]
    if set(new) & set(lines):
        return
    path = tmp_path / "dict.txt"
    counts = [0 if line.startswith("madeupword") else 3 for line in lines]
    text = "\n".join(f"{word} {count}" for word, count in zip(lines, counts)) + "\n" * newline
    path.write_bytes(text.encode("utf-8"))
    before = with_appended(path, appended)
    placement = place_words(read_dictionary(path), len(appended), new)
    path.write_bytes(new_dictionary(str(path), placement).encode("utf-8"))
    after = with_appended(path, appended)
    assert (len(before), len(after)) == (placement.old_size, placement.new_size)
    assert [after[row] for row in placement.rows] == new
    for row, symbol in enumerate(before.symbols):
        became = after[placement.moved[row]]
        assert became == symbol if placement.kept[row] else became in new
    lost = [symbol for symbol in before.symbols if symbol not in after.symbols]
    assert lost == [f"madeupword{i:04d}" for i in range(min(fillers, len(new)))]
    assert sorted([*placement.rows, *placement.moved[placement.kept]]) == list(range(placement.new_size))


def test_lines_that_are_not_touched_stay_as_they_are(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_bytes("a b 7\n<s> 2 #fairseq:overwrite\nmadeupword0000 0\nmadeupword0001 5\nü 1".encode())
    vocabulary = read_dictionary(path)
    text = new_dictionary(str(path), place_words(vocabulary, 1, ["x", "y"]))
    assert text == "a b 7\n<s> 2 #fairseq:overwrite\nx 1\nmadeupword0001 5\nü 1\ny 1\n"


def test_what_is_averaged(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("a 7\n<mask> 1\nb 2\n<unk> 3 #fairseq:overwrite\nmadeupword0000 0\nmadeupword0001 0\n")
    vocabulary = read_dictionary(path)
    assert list(averaged_rows(vocabulary, 2, "all")) == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11]  # no fillers
    assert list(averaged_rows(vocabulary, 2, "words")) == [4, 6]
    path.write_text("madeupword0000 0\n")
    with pytest.raises(OptionError, match="--average-over words: the dictionary has no words"):
        averaged_rows(read_dictionary(path), 1, "words")


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return str(path)


def test_words_and_pieces(tmp_path):
    path = write(tmp_path / "new.txt", "\ufefffrodo\r\n\n  sam \nlothlórien\tloth@@ ló@@ rien\r\n")
    words = read_words(path, {"bilbo"})
    assert [(word.text, word.line, word.pieces) for word in words] == [
        ("frodo", 1, ()),
        ("sam", 3, ()),
        ("lothlórien", 4, ("loth@@", "ló@@", "rien")),
    ]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("sam\nbilbo\n", ["new.txt:2: ", "'bilbo'", "remove"]),
        ("<mask>\n", ["new.txt:1: ", "'<mask>'"]),
        ("sam\nfrodo\nsam\n", ["new.txt:3: ", "'sam'", "line 1"]),
        ("sam frodo\n", ["new.txt:1: ", "'sam frodo'", "one a line"]),
        ("a\u2009b\n", ["new.txt:1: ", "not one word"]),
        ("\tpiece\n", ["new.txt:1: ''"]),
        ("madeupword0012\n", ["new.txt:1: ", "another name"]),
        ("\n \n", ["--words", "one new word a line"]),
        ("", ["--words", "no word"]),
        (b"sam\n\xff\n", ["new.txt:2: not UTF-8"]),
        (None, ["--words", "new.txt: no such file"]),
    ],
)
def test_mistakes_in_the_list_name_the_line(tmp_path, text, parts):
    if text is not None:
        write(tmp_path / "new.txt", text)
    with pytest.raises(DataError) as error:
        read_words(str(tmp_path / "new.txt"), {"bilbo", "<mask>"})
    assert all(part in str(error.value) for part in parts), error.value


def test_pieces_of_subword_nmt(tmp_path):
    codes = write(tmp_path / "codes", "#version: 0.2\nf r\nfr o\nd o</w>\n")
    cut = segmenter(codes, None)
    assert cut("frodo") == ["fro@@", "do"]
    path = write(tmp_path / "new.txt", "frodo\nfrodofro\tdo fro@@\n")
    assert cut_words(path, read_words(path, ()), cut, {"fro@@", "do"}) == [["fro@@", "do"], ["do", "fro@@"]]
    path = write(tmp_path / "new.txt", "frodo\nfro@@\n")
    with pytest.raises(DataError, match=r"new\.txt:2: --method subword needs the pieces of 'fro@@'; write them behind"):
        cut_words(path, read_words(path, ()), cut, {"fro@@", "do"})


def test_pieces_of_sentencepiece(tmp_path):
    text = tmp_path / "text"
    text.write_text("the ring and the king sing of the thing\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "sp"), vocab_size=25, minloglevel=2, hard_vocab_limit=False
    )
    cut = segmenter(None, str(tmp_path / "sp.model"))
    initial, inside = cut("▁theking"), cut("king")
    assert "".join(initial) == "▁theking"
    assert "".join(inside) == "king"
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sp.model"))
    assert all(processor.piece_to_id(piece) != processor.unk_id() for piece in initial)


def test_pieces_that_are_missing_name_the_word_and_the_line(tmp_path):
    path = write(tmp_path / "new.txt", "sam\ts@@ am\nfrodo\tfro@@ do\n")
    with pytest.raises(DataError, match=r"new\.txt:2: 'do', a piece of 'frodo', is not in the dictionary"):
        cut_words(path, read_words(path, ()), None, {"s@@", "am", "fro@@"})
    path = write(tmp_path / "new.txt", "sam\n")
    with pytest.raises(DataError, match=r"needs the pieces of 'sam'.*--bpe-codes or --sentencepiece-model"):
        cut_words(path, read_words(path, ()), None, set())


def test_files_that_cut_nothing(tmp_path):
    broken = write(tmp_path / "broken", bz2.compress(b"not codes"))
    for options in ((broken, None), (None, broken), ("/nowhere", None), (None, "/nowhere")):
        with pytest.raises(DataError, match="--bpe-codes" if options[0] else "--sentencepiece-model"):
            segmenter(*options)
    bad_codes = write(tmp_path / "codes", "#version: 0.2\nonlyone\n")
    with pytest.raises(DataError, match=r"--bpe-codes .*give the codes of subword-nmt"):
        segmenter(bad_codes, None)
    with pytest.raises(OptionError, match="give the one"):
        segmenter(broken, broken)
    assert segmenter(None, None) is None


# --- options


def request(**options):
    return ExpandRequest("c.pt", "dict.txt", "new.txt", **{"method": "gaussian", "output": "out", **options})


@pytest.mark.parametrize(
    "options",
    [
        {"method": "avg", "noise_scale": 0.1},
        {"noise_scale": -1e-9},
        {"noise_scale": 1e10},
        {"noise_scale": math.nan},
        {"seed": -1},
        {"seed": 2**64},
        {"average_over": "none"},
        {"method": "mean"},
    ],
    ids=str,
)
def test_options_that_cannot_be_used(options):
    flag, value = list(options.items())[-1]
    with pytest.raises(OptionError, match=f"--{flag.replace('_', '-')} {value}".replace("+", r"\+")):
        check_options(request(**options))


def test_options_at_their_limits():
    for options in ({"noise_scale": 0.0}, {"noise_scale": 9.9e9}, {"seed": 0}, {"seed": 2**64 - 1}):
        check_options(request(**options))


# --- where tasks look for their dictionaries


@pytest.mark.parametrize(
    ("options", "languages", "files", "folders"),
    [
        ({"_name": "translation"}, ("de", "en"), {"dict.de.txt": "a 1\n", "dict.en.txt": "b 1\n"}, set()),
        ({"_name": "masked_lm", "data": "{}"}, None, {"dict.txt": "a 1\n"}, set()),
        ({"_name": "multilingual_denoising", "langs": "de,en,de,../x"}, None, {"dict.txt": "a 1\n"}, {"de", "en"}),
        ({"_name": "multilingual_denoising", "langs": None, "data": "{}"}, None, {"dict.txt": "a 1\n"}, {"fr", "it"}),
        ({"_name": "multilingual_denoising", "langs": "de", "data": "{}"}, None, {"dict.txt": "a 1\n"}, {"de"}),
        ({"_name": "multilingual_denoising", "langs": ""}, None, {"dict.txt": "a 1\n"}, set()),
        (
            {"task": "sentence_prediction", "num_classes": 2},
            None,
            {"dict.txt": "a 1\n", "input0/dict.txt": "a 1\n", "label/dict.txt": "class0 1\nclass1 1\n"},
            {"input0", "label"},
        ),
    ],
)
def test_the_files_and_folders_of_a_task(tmp_path, options, languages, files, folders):
    """Some multilingual tasks append a tag for every folder that they find in the data."""
    data, folder = tmp_path / "data", tmp_path / "out"
    for name in ("data/fr", "data/it", "data/.git", "out"):
        (tmp_path / name).mkdir(parents=True)
    (data / "train.bin").touch()
    given = {key: str(data) if value == "{}" else value for key, value in options.items()}
    assert write_dictionaries(folder, given, Texts("a 1\n", "b 1\n"), languages) == files
    assert {name: (folder / name).read_text() for name in files} == files
    assert {path.name for path in folder.iterdir() if path.is_dir()} == folders
