"""scripts/iwslt17 on talks that are made up: the files of the campaign become the layout of Multi30k."""

from __future__ import annotations

import html
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from programs import VENV

pytest.importorskip("sacremoses")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from iwslt17 import corpus

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

LANGS = ("de", "en")
TAGS = {
    "de": ["<url>http://www.ted.com/talks/lang/de/x</url>", "<keywords>talks</keywords>", "<title>Ein Titel</title>"],
    "en": ["<url>http://www.ted.com/talks/x</url>", "<keywords>talks</keywords>", "<title>A title</title>"],
}
TAGS["de"] += ['<translator href="http://x">A B</translator>']  # on one side only, as in the real files
SIZES = {"train": 60, "dev2010": 8, "tst2010": 7, "tst2011": 5}
XML = "IWSLT17.TED.tst2010.de-en.{}.xml"


def sentences(name: str, lang: str) -> list[str]:
    people, place = ({"de": ("Er", "Sie"), "en": ("He", "She")}[lang], {"de": "zu Haus", "en": "at  home"}[lang])
    return [f"{people[at % 2]} R&D-{at % 4} {place}, don't {name}." for at in range(SIZES[name])]


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """What the campaign's de-en.tgz holds; one training pair has an empty side."""
    folder = tmp_path / "iwslt 17" / "de-en"
    folder.mkdir(parents=True)
    for lang in LANGS:
        lines = [html.escape(line, quote=False) for line in sentences("train", lang)]
        lines[7] = lines[7] if lang == "en" else ""
        text = [*TAGS[lang], *lines[:20], *TAGS[lang], *lines[20:]]
        (folder / f"train.tags.de-en.{lang}").write_text("".join(f"{line}\n" for line in text))
        for name in list(SIZES)[1:]:
            segments = [
                f'<seg id="{n}"> {html.escape(line, quote=False)} </seg>'
                for n, line in enumerate(sentences(name, lang), 1)
            ]
            text = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>", '<doc docid="1">', "<title>A title</title>"]
            path = folder / f"IWSLT17.TED.{name}.de-en.{lang}.xml"
            path.write_text("\n".join([*text, *segments, "</doc>", "</mteval>"]) + "\n")
    return folder


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def prepare(**variables: object) -> subprocess.CompletedProcess:
    environment = {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in variables.items()}}
    return subprocess.run(["bash", SCRIPTS / "iwslt17/prepare.sh"], env=environment, capture_output=True, text=True)


@pytest.mark.end_to_end
def test_from_the_files_of_the_campaign_to_binarised_data(talks: Path, tmp_path: Path) -> None:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    out, call = tmp_path / "pre pared", {"DATA": talks.parent, "TEST": "tst2010 tst2011", "MIN_COUNT": 40}
    done = prepare(OUTPUT=out, **call)
    assert done.returncode == 0, done.stderr
    assert "training pairs with an empty side, left out: 1\n" in done.stderr
    for lang in LANGS:
        plain = {name: [" ".join(line.split()) for line in sentences(name, lang)] for name in SIZES}
        raw, tok = out / "corpus/raw", out / "text"
        assert lines(raw / f"train.{lang}") == plain["train"][:7] + plain["train"][8:]
        assert lines(raw / f"valid.{lang}") == plain["dev2010"]
        assert lines(raw / f"test.{lang}") == plain["tst2010"] + plain["tst2011"]
        normalise, moses = MosesPunctNormalizer(lang=lang).normalize, MosesTokenizer(lang=lang)
        expected = [" ".join(moses.tokenize(normalise(s).lower(), escape=False)) for s in lines(raw / f"test.{lang}")]
        assert lines(tok / f"test.{lang}") == expected
        counts = Counter(word for line in lines(tok / f"train.{lang}") for word in line.split())
        symbols = {line.split()[0] for line in lines(out / f"bin/dict.{lang}.txt")}
        assert {s for s in symbols if not s.startswith("madeupword")} == {w for w, n in counts.items() if n >= 40}
    made = (out / "bin/train.de-en.de.bin").stat().st_mtime_ns
    assert prepare(OUTPUT=out, **call).returncode == 0
    assert (out / "bin/train.de-en.de.bin").stat().st_mtime_ns == made
    for other in ({"TEST": "tst2010"}, {"DATA": talks}, {"MIN_COUNT": 5}):
        refused = prepare(OUTPUT=out, **{**call, **other})
        assert refused.returncode != 0
        assert "name another folder" in refused.stderr
        assert next(iter(other)) in refused.stderr


def convert(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str, test: str = "tst2010") -> None:
    words = ["corpus.py", "--pair", "de-en", "--valid", "dev2010", "--test", test, "--data", str(folder), *options]
    monkeypatch.setattr(sys, "argv", [*words, str(folder.parent / "source")])
    corpus.main()


def test_the_other_direction_takes_the_same_files(talks: Path) -> None:
    assert corpus.test_pairs(talks.parent, "en-de", ["tst2010"]) == corpus.test_pairs(talks, "de-en", ["tst2010"])
    assert len(corpus.training_pairs(talks, "en-de")) == SIZES["train"] - 1


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("train.tags.de-en.en", lambda text: text + "one more\n", ["60", "61", "do not belong together"]),
        (XML.format("de"), lambda text: text[: text.index('<seg id="5">') + 20], ["segment 5 (", "has no </seg>"]),
        (XML.format("en"), lambda text: text.replace("</doc>", ""), [XML.format("en"), "</doc>", "get it again"]),
        (XML.format("en"), lambda text: text.replace('id="7"', 'id="70"'), [XML.format("de"), "segment 7", "id 70"]),
        (XML.format("en"), lambda text: text.encode("utf-16"), [XML.format("en"), "not UTF-8", "iconv -f UTF-16"]),
    ],
)
def test_damaged_files_are_refused(talks, monkeypatch, name, change, expected) -> None:
    changed = change((talks / name).read_text())
    (talks / name).write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    with pytest.raises((SystemExit, ValueError)) as refused:
        convert(monkeypatch, talks)
    for part in expected:
        assert part in str(refused.value)
    assert not (talks.parent / "source").exists()


def test_sets_that_are_missing_or_named_twice(talks, monkeypatch, capsys) -> None:
    with pytest.raises(SystemExit, match=r"IWSLT17\.TED\.tst2016\.de-en\.de\.xml.*set DATA"):
        convert(monkeypatch, talks, test="tst2016")
    with pytest.raises(SystemExit):
        convert(monkeypatch, talks, test="dev2010")
    assert "dev2010 more than once" in capsys.readouterr().err
