"""`preparation.json`: written, read, compared with dictionaries, data, checkpoints and fairseq's options."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
from test_preparation_steps import CODES, with_moses

from embinit_fairseq.checkpoints.trained_preparation import (
    OPTION,
    check_same_preparation,
    find_preparation,
    records_for_checkpoints,
)
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.vocab import preparation_record as record
from embinit_fairseq.vocab.preparation_options import parse_steps
from embinit_fairseq.vocab.preparation_steps import Preparation

apply_bpe = pytest.importorskip("subword_nmt.apply_bpe")

DICT = "the man dog , . an or@@ an@@ g@@ e n@@ o@@ r@@ t@@ h orange".split()
PAIRS = [("An orange, the DOG.", "an or@@ an@@ g@@ e , t@@ h@@ e d@@ o@@ g ."), ("", "")]


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
