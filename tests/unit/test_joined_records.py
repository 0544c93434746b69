"""A joined dictionary has text in two languages: each side has the record of its own language, in every command."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
from expand_checkpoints import make

from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.checkpoints.trained_preparation import OPTION, find_preparation
from embinit_fairseq.vocab.preparation_options import parse_steps
from embinit_fairseq.vocab.preparation_record import entries_of, read_preparation, record_preparation

pytest.importorskip("sacremoses")

RAW = "it's l'eau"
#: Moses' words of RAW; only English splits before the apostrophe, only French after it, other languages on both sides
MOSES = {"de": "it &apos; s l &apos; eau", "en": "it &apos;s l &apos;eau", "fr": "it&apos; s l&apos; eau"}
WORDS = [*dict.fromkeys(" ".join(MOSES.values()).split())]


def write_joined(folder: Path, words=WORDS) -> Path:
    """Write a dictionary of German and English, with its record; return the German file."""
    folder.mkdir(exist_ok=True)
    names = {lang: f"dict.{lang}.txt" for lang in ("de", "en")}
    for name in names.values():
        (folder / name).write_text("".join(f"{word} 7\n" for word in words))
    steps = {name: parse_steps("moses", lang) for lang, name in names.items()}
    record_preparation(folder, steps, pairs={name: [(RAW, MOSES[lang])] for lang, name in names.items()})
    return folder / names["de"]


def languages_of(folder: Path) -> dict[str, str]:
    """Return dictionary -> language of its steps, as a folder's record says."""
    return {name: entry["steps"][0]["lang"] for name, entry in entries_of(folder).items()}


def texts(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).write_text(f"{RAW}\n")
    return [folder / name for name in names]


@pytest.mark.parametrize("sides", ["de en", "en de", "de fr", "fr en"])
@pytest.mark.parametrize("more", ["--joined-dictionary", "--target-dict"])
def test_prepare(sides, more, tmp_path, printed):
    """French has no record: the steps are the same, with its own rules."""
    joined, sides = write_joined(tmp_path / "joined"), sides.split()
    given = ["--dict", joined, more, *([joined] if more == "--target-dict" else [])]
    printed("prepare", *texts(tmp_path, *(f"test.{lang}" for lang in sides)), *given, "--output", tmp_path / "out")
    for lang in sides:
        assert (tmp_path / f"out/text/test.{lang}").read_text() == f"{MOSES[lang]}\n"
    assert languages_of(tmp_path / "out/bin") == {f"dict.{lang}.txt": lang for lang in sides}


@pytest.mark.parametrize("given", ["de", "en"])
def test_prepare_with_a_record_of_one_language(given, tmp_path, printed, refused):
    """Both dictionaries are there, as of `fairseq-preprocess --joined-dictionary`, and one has the record."""
    joined = write_joined(tmp_path / "joined").with_name(f"dict.{given}.txt")
    content = json.loads(joined.with_name("preparation.json").read_text())
    del content["dictionaries"]["dict.en.txt"]
    joined.with_name("preparation.json").write_text(json.dumps(content))
    call = ["prepare", *texts(tmp_path, "test.de", "test.en"), "--output", tmp_path / "out"]
    printed(*call, "--dict", joined, "--joined-dictionary")
    assert languages_of(tmp_path / "out/bin") == {"dict.de.txt": "de", "dict.en.txt": "en"}


def test_the_codes_of_one_side_are_not_those_of_the_other(tmp_path, refused):
    """The target has no record, so that the user says its steps, and its codes."""
    joined = write_joined(tmp_path / "joined")
    (tmp_path / "codes").write_text("#version: 0.2\ni t</w>\n")
    record_preparation(joined.parent, {joined.name: parse_steps("moses,bpe", "de")}, {"codes": tmp_path / "codes"})
    call = ["prepare", *texts(tmp_path, "test.de", "test.en"), "--output", tmp_path / "out", "--dict", joined]
    call += ["--target-dict", joined.with_name("dict.en.txt")]
    assert "--steps" in refused(*call)
    assert "--bpe-codes" in refused(*call, "--steps", "moses,bpe")


def test_dictionaries_of_the_wrong_side_are_refused(tmp_path, printed, refused):
    german = write_joined(tmp_path / "old")
    english = german.with_name("dict.en.txt")
    english.write_text("of 3\n" + english.read_text())
    call = ["prepare", *texts(tmp_path, "test.de", "test.en"), "--output", tmp_path / "out", "--steps", "moses"]
    assert "--target-dict" in refused(*call, "--dict", english, "--target-dict", german)
    assert not (tmp_path / "out").exists()


def test_prepare_one_text(tmp_path, printed):
    """The suffix says the language; without one, the dictionary that the user chose."""
    joined = write_joined(tmp_path / "joined")
    for name, lang in (("test.en", "en"), ("test.txt", "de")):
        printed("prepare", *texts(tmp_path, name), "--dict", joined, "--output", tmp_path / lang)
        assert languages_of(tmp_path / lang / "bin") == {"dict.txt": lang}


def test_prepare_texts_whose_names_say_no_language(tmp_path, printed, refused):
    joined = write_joined(tmp_path / "joined")
    call = ["prepare", *texts(tmp_path, "test.src", "test.tgt"), "--output", tmp_path / "out", "--dict", joined]
    assert "--target-dict" in refused(*call, "--joined-dictionary")
    printed(*call, "--target-dict", joined.with_name("dict.en.txt"))
    assert languages_of(tmp_path / "out/bin") == {"dict.src.txt": "de", "dict.tgt.txt": "en"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("-s de -t en --joined-dictionary", "de en"),
        ("-s en -t de --joined-dictionary", "en de"),
        ("-s de -t en --tgtdict JOINED", "de en"),
        ("-s de -t fr --joined-dictionary", "de"),
        ("-s en -t de --joined-dictionary --only-source", "en"),
        ("-s de -t en", "de"),
    ],
)
def test_preprocess(flags, expected, tmp_path, monkeypatch):
    """Of a language without a record nothing is copied: embinit asks for it."""
    from fairseq import options
    from fairseq_cli import preprocess

    joined = write_joined(tmp_path / "joined")
    texts(tmp_path, "test.de", "test.en", "test.fr")
    words = f"{flags.replace('JOINED', str(joined))} --srcdict {joined} --workers 1 --destdir {tmp_path}/bin"
    words += f" --trainpref {tmp_path}/test"
    args = options.get_preprocessing_parser().parse_args(words.split())
    preprocess.main(args)
    assert languages_of(tmp_path / "bin") == {f"dict.{lang}.txt": lang for lang in expected.split()}


@pytest.fixture
def trained(tmp_path):
    """A checkpoint with shared embeddings whose data have the record; the checkpoint has it, too."""
    checkpoint = make(tmp_path, "transformer_shared", words=WORDS)
    write_joined(tmp_path / "data")
    options = vars(checkpoint.state["cfg"]["model"])  # other checkpoints of the family have the same object
    record = {OPTION: json.dumps(entries_of(tmp_path / "data"))}
    checkpoint.state["cfg"]["model"] = Namespace(**{**options, **record})
    checkpoint.save()
    return checkpoint


@pytest.mark.parametrize(
    ("command", "given", "alone"),
    [
        ("expand-vocab", "de", False),
        ("expand-vocab", "en", True),
        ("trim-vocab", "en", False),
        ("transfer-vocab", "en", False),
        ("stated", "en", True),
    ],
)
def test_vocabulary_commands(trained, command, given, alone, tmp_path, shown):
    data, out, name = tmp_path / "data", trained.output, f"dict.{given}.txt"
    new = write_joined(tmp_path / "new", [*WORDS, "x"]).with_name(name)
    if alone:
        (data / "preparation.json").unlink()
    (tmp_path / "words").write_text("it'll\nx\n")
    (tmp_path / "keep").write_text("it &apos;s\n")
    more = {
        "expand-vocab": ["--words", tmp_path / "words", "--method", "avg"],
        "stated": ["--words", tmp_path / "words", "--method", "avg", "--preparation", "moses"],
        "trim-vocab": ["--keep-text", tmp_path / "keep"],
        "transfer-vocab": ["--new-dict", new, "--method", "copy"],
    }[command]
    call = "expand-vocab" if command == "stated" else command
    shown(call, "--checkpoint", trained.path, "--dict", data / name, *more, "--output", out)
    assert languages_of(out) == {"dict.de.txt": "de", "dict.en.txt": "en"}
    for lang in ("de", "en"):
        recorded = read_preparation(out / f"dict.{lang}.txt")
        assert " ".join(recorded.preparation(())(RAW)) == MOSES[lang]
    record = json.loads(next(out.glob("[et]*.json")).read_text())
    if call == "expand-vocab":
        assert [*record["preparation"]["not_from_raw_text"]] == ["it'll"]


def test_a_record_in_the_checkpoint_alone(trained, tmp_path):
    """The name of the dictionary says the language; a renamed one has no record if languages differ."""
    data, state = tmp_path / "data", load_checkpoint(trained.path)
    (data / "preparation.json").unlink()
    for name, lang in (("dict.de.txt", "de"), ("dict.en.txt", "en"), ("dict.fr.txt", None), ("dict.txt", None)):
        (data / name).write_bytes((data / "dict.de.txt").read_bytes())
        found = find_preparation(data / name, state)
        assert (found and found.steps[0]["lang"]) == lang
    german = entries_of(write_joined(tmp_path / "german").parent)["dict.de.txt"]
    state = {"cfg": {"model": {OPTION: json.dumps({"dict.de.txt": german})}}}
    for name, lang in (("dict.fr.txt", None), ("dict.txt", "de")):
        found = find_preparation(data / name, state)
        assert (found and found.steps[0]["lang"]) == lang
