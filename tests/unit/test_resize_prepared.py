"""The record of how text is prepared goes with an expanded, a trimmed and a transferred model, and with checkpoints."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from expand_checkpoints import argv, make
from segmentations import KINDS, NEW_TEXT, TRAINING, mark_of, opened, subwords_of
from segmentations import files as files

from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.checkpoints.trained_preparation import (
    OPTION,
    find_preparation,
    records_for_checkpoints,
    records_in,
)
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import DataError
from embinit_fairseq.resize.carried_preparation import _missed
from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.preparation_options import parse_steps, written
from embinit_fairseq.vocab.preparation_record import read_preparation, record_preparation
from embinit_fairseq.vocab.preparation_steps import Preparation

pytest.importorskip("sacremoses")


@pytest.fixture(params=KINDS)
def recorded(request, files, tmp_path):
    """(kind, checkpoint whose data have a record, its segmentation): lower-cased Moses' words in subwords."""
    kind = request.param
    old = opened(files, kind)
    checkpoint = make(tmp_path, "lm_tied", words=[*subwords_of(old, [*TRAINING, *NEW_TEXT, ", ."]), "ℝ", "Q", "yahoo!"])
    option = "codes" if kind == "codes" else "model"
    steps = parse_steps(f"lowercase,moses,{'bpe' if kind == 'codes' else 'sentencepiece'}")
    pairs = [(f"{line.title()}.", " ".join(old.segment(f"{line} ."))) for line in TRAINING[:5]]
    name = Path(checkpoint.dictionary).name
    folder = Path(checkpoint.dictionary).parent
    record_preparation(folder, {name: steps}, {option: files[kind]}, {name: pairs})
    return kind, checkpoint, old


def prepared_by(folder: Path):
    """Return the preparation that a folder's record says, and the command's own record."""
    (dictionary,) = folder.glob("dict*.txt")
    record = read_preparation(dictionary)
    command = json.loads(next(folder.glob("[et]*.json")).read_text())
    return record.preparation(read_dictionary(dictionary).symbols), record, command


def test_new_words_are_looked_for_in_raw_text(recorded, tmp_path, capsys):
    """A word that prepared text has may never come out of raw text; old text is as it was."""
    kind, checkpoint, old = recorded
    mark = mark_of(kind)
    new = [f"{mark}bamulo", f"{mark}Bade", f"{mark}ki!"]
    (tmp_path / "new").write_text("".join(f"{word}\n" for word in new))
    words = argv(checkpoint)
    words[words.index("--words") + 1] = str(tmp_path / "new")
    assert main(words) == 0
    said = capsys.readouterr().out
    prepare, record, command = prepared_by(checkpoint.output)
    assert [*command["preparation"]["not_from_raw_text"]] == new[1:]
    assert "reachable      1 of 3 new words" in said
    assert command["segmentation"]["reachable"] == 1
    assert f"attention      raw text never has these words: {new[1]} (" in said
    assert prepare("Bamulo!")[:1] == new[:1]
    for line in TRAINING[:30]:
        assert prepare(line.upper()) == [p for w in line.split() for p in old.segment(w)], "old text is as before"
    assert written(record.steps) == command["preparation"]["steps"]
    assert len(record.examples) == 3
    assert "preparation.json" in command["files"]


def test_words_with_escapes_come_from_raw_text_without_them():
    prepare = Preparation(parse_steps("moses", "en"), {})
    reachable = ["&amp;", "&apos;s", "&apos;ll", "&quot;", "dog"]
    assert [*_missed(prepare, [*reachable, "yahoo!", "dog&apos;s"], None)] == ["yahoo!", "dog&apos;s"]


def test_words_of_scripts_without_spaces_come_from_the_inside_of_text():
    """A model with the piece ▁龍 has the word 龍鳳 only after other letters; a Latin word must begin with a space."""
    pieces = {"龍鳳": ["▁龍", "鳳"], "a龍鳳a": ["▁a", "龍鳳", "a"], "lo": ["▁l", "o"], "aloa": ["▁a", "lo", "a"]}
    assert _missed(lambda text: pieces.get(text, []), ["龍鳳", "lo"], None) == {"lo": ["▁l", "o"]}


def test_a_smaller_dictionary(recorded, tmp_path, capsys):
    _, checkpoint, old = recorded
    (tmp_path / "keep").write_text("".join(f"{' '.join(old.segment(line))}\n" for line in TRAINING[:12]))
    words = ["trim-vocab", "--checkpoint", checkpoint.path, "--dict", checkpoint.dictionary]
    assert main([*words, "--keep-text", str(tmp_path / "keep"), "--output", str(checkpoint.output)]) == 0
    assert "raw text       lowercase,moses," in capsys.readouterr().out
    prepare, _, command = prepared_by(checkpoint.output)
    assert command["segmentation"]["files"], "the record names the segmentation: no option is needed"
    symbols = {*read_dictionary(next(checkpoint.output.glob("dict*.txt"))).symbols}
    letters = {*"".join(TRAINING[:12])}
    for line in (*TRAINING[12:], *NEW_TEXT):
        if letters.issuperset(line):
            assert symbols.issuperset(prepare(line.title()))


@pytest.mark.parametrize("recorded", ["codes"], indirect=True)
def test_another_dictionary_brings_its_own_record(recorded, tmp_path):
    _, checkpoint, _ = recorded
    other = tmp_path / "other"
    other.mkdir()
    (other / "dict.txt").write_text("yahoo! 1\nbade 1\n")
    record_preparation(other, {"dict.txt": parse_steps("lowercase")}, pairs={"dict.txt": [("Bade", "bade")]})
    words = ["transfer-vocab", "--checkpoint", checkpoint.path, "--dict", checkpoint.dictionary, "--method", "copy"]
    assert main([*words, "--new-dict", str(other / "dict.txt"), "--output", str(checkpoint.output)]) == 0
    prepare, record, _ = prepared_by(checkpoint.output)
    assert written(record.steps) == "lowercase"
    assert prepare("BADE Yahoo!") == ["bade", "yahoo!"]


def test_codes_of_another_run_and_unknown_preparations(recorded, tmp_path, capsys):
    _, checkpoint, _ = recorded
    foreign = tmp_path / "codes"
    foreign.write_text("#version: 0.2\nb a</w>\n")
    flag = ["--bpe-codes", str(foreign)]
    call = argv(checkpoint)
    assert main([*call, *flag]) == 2
    assert "--bpe-codes" in capsys.readouterr().err
    assert main([*call, *flag, "--preparation", "lowercase,moses,bpe"]) == 2
    assert "--bpe-codes" in capsys.readouterr().err
    assert not checkpoint.output.exists()
    (Path(checkpoint.dictionary).parent / "preparation.json").unlink()
    assert main(call) == 0
    assert "raw text       unknown" in capsys.readouterr().out
    assert not (checkpoint.output / "preparation.json").exists()


@pytest.mark.parametrize("recorded", ["codes"], indirect=True)
def test_checkpoints_have_the_record_of_the_new_dictionary(recorded, tmp_path):
    """The new checkpoint has the new record; the old one's is refused with the new dictionary."""
    _, checkpoint, _ = recorded
    old = json.loads((Path(checkpoint.dictionary).parent / "preparation.json").read_text())["dictionaries"]
    other = {"dict.xx.txt": {**old["dict.txt"], "symbols": "of the other side"}}
    checkpoint.state["cfg"]["embed_init_options"] = {OPTION: json.dumps(old | other)}
    checkpoint.save()
    assert main(argv(checkpoint)) == 0
    state = load_checkpoint(checkpoint.output / "model.pt")
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(checkpoint.output / "dict.txt", bare)
    found, expected = find_preparation(bare / "dict.txt", state), read_preparation(checkpoint.output / "dict.txt")
    assert found.entry() == expected.entry() != old["dict.txt"]
    assert records_in(state["cfg"]["embed_init_options"][OPTION]) == {"dict.txt": found.entry(), **other}
    with pytest.raises(DataError, match=r"another dict.txt; copy preparation\.json"):
        find_preparation(bare / "dict.txt", checkpoint.state)
    shutil.copy(bare / "dict.txt", bare / "dict.yy.txt")
    assert find_preparation(bare / "dict.yy.txt", checkpoint.state) is None, "of the side without a record"
    shutil.rmtree(checkpoint.output)
    (bare / "dict.txt").write_text("yahoo! 1\nbade 1\n")  # a dictionary without a record takes the old one's away
    words = ["transfer-vocab", "--checkpoint", checkpoint.path, "--dict", checkpoint.dictionary, "--method", "copy"]
    assert main([*words, "--new-dict", str(bare / "dict.txt"), "--output", str(checkpoint.output)]) == 0
    state = load_checkpoint(checkpoint.output / "model.pt")
    assert records_in(state["cfg"]["embed_init_options"][OPTION]) == other


@pytest.mark.parametrize("recorded", ["codes"], indirect=True)
def test_a_record_next_to_another_dictionary_is_refused_until_its_own_is_copied(recorded):
    """A training would write it into its checkpoints."""
    _, checkpoint, _ = recorded
    data = Path(checkpoint.dictionary).parent
    assert main(argv(checkpoint)) == 0
    shutil.copy(checkpoint.output / "dict.txt", data)
    task = SimpleNamespace(cfg=SimpleNamespace(data=str(data)))
    with pytest.raises(DataError, match=r"another dict.txt.*copy preparation\.json and the files"):
        records_for_checkpoints(task)
    for name in json.loads((checkpoint.output / "expansion.json").read_text())["files"]:
        if "/" not in name:
            shutil.copy(checkpoint.output / name, data)
    (entry,) = json.loads(records_for_checkpoints(task)).values()
    assert entry == read_preparation(data / "dict.txt").entry()
    read_preparation(data / "dict.txt").preparation(read_dictionary(data / "dict.txt").symbols)


@pytest.fixture
def translation(files, tmp_path):
    """A checkpoint whose two dictionaries have the same codes, which are above the folder of the data."""
    old = opened(files, "codes")
    shutil.copy(files["codes"], tmp_path / "bpe.codes")
    checkpoint = make(tmp_path, "transformer", words=subwords_of(old, TRAINING))
    pairs = [(f"{line.title()}", " ".join(old.segment(line))) for line in TRAINING[:5]]
    names = ("dict.de.txt", "dict.en.txt")
    steps = dict.fromkeys(names, parse_steps("lowercase,bpe"))
    data = Path(checkpoint.dictionary).parent
    record_preparation(data, steps, {"codes": tmp_path / "bpe.codes"}, dict.fromkeys(names, pairs))
    return checkpoint


@pytest.mark.parametrize("where", ["data", "checkpoint"])
def test_the_new_folder_is_whole_after_it_was_moved(translation, where, tmp_path):
    """The codes of both sides are in it, the old ones in a folder of their own: the new ones have a glossary."""
    data, given = Path(translation.dictionary).parent, []
    if where == "checkpoint":
        entries = json.loads((data / "preparation.json").read_text())["dictionaries"]
        translation.state["cfg"]["embed_init_options"] = {OPTION: json.dumps(entries)}
        translation.save()
        (data / "preparation.json").unlink()
        shutil.move(tmp_path / "bpe.codes", tmp_path / "codes")
        given = ["--bpe-codes", str(tmp_path / "codes")]
    assert main([*argv(translation, words=["bamulo", "Xyz"]), *given]) == 0
    moved = shutil.move(translation.output, tmp_path / "elsewhere" / "new")
    shutil.rmtree(data)
    for codes in tmp_path.glob("*codes"):
        codes.unlink()
    of_side = {}
    for lang in ("de", "en"):
        dictionary = Path(moved, f"dict.{lang}.txt")
        of_side[lang] = read_preparation(dictionary).preparation(read_dictionary(dictionary).symbols)("BAMULO bamuloba")
    assert of_side["en"][0] == "bamulo"
    assert "".join(of_side["de"]).replace("@@", "") == "bamulobamuloba"
    assert "bamulo" not in of_side["de"]
    made = json.loads(Path(moved, "expansion.json").read_text())["files"]
    assert {*made} == {str(path.relative_to(moved)) for path in Path(moved).rglob("*") if path.is_file()}


def test_a_side_whose_codes_are_nowhere(translation, tmp_path, caplog):
    """The change of one side does not need the other's codes; where they are expected is said."""
    record = Path(translation.dictionary).with_name("preparation.json")
    content = json.loads(record.read_text())
    content["dictionaries"]["dict.de.txt"]["files"]["codes"] |= {"path": "../gone.codes", "sha256": "of others"}
    record.write_text(json.dumps(content))
    assert main(argv(translation, words=["bamulo"])) == 0
    assert "../gone.codes" in caplog.text
    assert read_preparation(translation.output / "dict.de.txt").files["codes"]["path"] in caplog.text


def test_a_classifier_has_its_record_next_to_both_copies_of_its_dictionary(tmp_path, printed, shown):
    checkpoint = make(tmp_path, "roberta_fine_tuned")
    data, new = Path(checkpoint.dictionary).parent, checkpoint.output
    steps, pairs = parse_steps("lowercase"), [("W0 w1", "w0 w1")]
    record_preparation(data / "input0", {"dict.txt": steps}, pairs={"dict.txt": pairs})
    checkpoint.dictionary = str(data / "input0" / "dict.txt")
    shown(*argv(checkpoint))
    (tmp_path / "test.tsv").write_text("text\tlabel\nW2 X\tc\nw3\ta\n")
    for number, file in enumerate(("dict.txt", "input0/dict.txt")):
        call = ["prepare", tmp_path / "test.tsv", "--text-columns", "text", "--label-column", "label"]
        record = printed(*call, "--dict", new / file, "--output", tmp_path / f"out{number}")
        assert record["classes"] == ["a", "b", "c"]
        assert (tmp_path / f"out{number}/text/test.input0").read_text() == "w2 x\nw3\n"


@pytest.mark.parametrize("recorded", ["codes"], indirect=True)
@pytest.mark.parametrize("command", ["expand", "trim"])
def test_a_missing_library_is_said_in_one_line(recorded, command, tmp_path, refused, monkeypatch):
    _, checkpoint, old = recorded
    (tmp_path / "keep").write_text("".join(f"{' '.join(old.segment(line))}\n" for line in TRAINING[:12]))
    words = argv(checkpoint)
    if command == "trim":
        words = ["trim-vocab", "--checkpoint", checkpoint.path, "--dict", checkpoint.dictionary]
        words += ["--keep-text", tmp_path / "keep", "--output", checkpoint.output]
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    assert "pip install sacremoses" in refused(*words)
    assert not checkpoint.output.exists()
