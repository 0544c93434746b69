"""A joined dictionary has text in two languages: each side has the record of its own language, in every command."""

from __future__ import annotations

from pathlib import Path

import pytest

from embinit_fairseq.vocab.preparation_options import parse_steps
from embinit_fairseq.vocab.preparation_record import entries_of, record_preparation

pytest.importorskip("sacremoses")

RAW = "it's l'eau"
#: Moses' words of RAW; only English splits before the apostrophe, only French after it, other languages on both sides
MOSES = {"de": "it &apos; s l &apos; eau", "en": "it &apos;s l &apos;eau", "fr": "it&apos; s l&apos; eau"}
WORDS = [*dict.fromkeys(" ".join(MOSES.values()).split())]


def write_joined(folder: Path, languages=("de", "en")) -> Path:
    """Write a dictionary of these languages, with its record; return it with the name of the first."""
    folder.mkdir(exist_ok=True)
    names = {lang: f"dict.{lang}.txt" for lang in languages}
    for name in names.values():
        (folder / name).write_text("".join(f"{word} 7\n" for word in WORDS))
    steps = {name: parse_steps("moses", lang) for lang, name in names.items()}
    record_preparation(folder, steps, pairs={name: [(RAW, MOSES[lang])] for lang, name in names.items()})
    return folder / names[languages[0]]


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
