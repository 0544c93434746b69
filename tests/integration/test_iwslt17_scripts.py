"""scripts/iwslt17 on talks that are made up: the files of the campaign become the layout of Multi30k."""

from __future__ import annotations

import html
import sys
from collections import Counter
from pathlib import Path

import pytest
from recipes import SCRIPTS, lines, stamps, succeed

pytest.importorskip("sacremoses")

sys.path.insert(0, str(SCRIPTS))

from iwslt17 import convert

PREPARE, LANGS = "iwslt17/prepare.sh", ("de", "en")
HEAD = ["<url>http://www.ted.com/talks/x</url>", "<keywords>talks</keywords>", "<title>A title</title>"]
SIZES = {"train": 60, "dev2010": 8, "tst2010": 7, "tst2011": 5}


def sentences(name: str, lang: str) -> list[str]:
    people, place = {"de": (("Er", "Sie"), "zu Haus"), "en": (("He", "She"), "at  home")}[lang]
    return [f"{people[at % 2]} R&D-{at % 4} {place}, don't {name}." for at in range(SIZES[name])]


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """What the campaign's de-en.tgz holds; one training pair has an empty side."""
    folder = tmp_path / "iwslt 17" / "de-en"
    folder.mkdir(parents=True)
    for lang in LANGS:
        text = {name: [html.escape(line, quote=False) for line in sentences(name, lang)] for name in SIZES}
        text["train"][7] *= lang == "en"
        head = [*HEAD, *['<translator href="http://x">A B</translator>'] * (lang == "de")]  # as in the real files
        train = [*head, *text["train"][:20], *head, *text.pop("train")[20:]]
        (folder / f"train.tags.de-en.{lang}").write_text("".join(f"{line}\n" for line in train))
        for name, segments in text.items():
            body = "\n".join(f'<seg id="{n}"> {line} </seg>' for n, line in enumerate(segments, 1))
            whole = f'<mteval>\n<doc docid="1">\n<title>A title</title>\n{body}\n</doc>\n</mteval>\n'
            (folder / f"IWSLT17.TED.{name}.de-en.{lang}.xml").write_text(whole)
    return folder


@pytest.mark.end_to_end
def test_from_the_files_of_the_campaign_to_binarised_data(talks: Path, tmp_path: Path) -> None:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    out, how = tmp_path / "pre pared", {"DATA": talks.parent, "TEST": "tst2010 tst2011", "MIN_COUNT": 40}
    assert "training pairs with an empty side, left out: 1\n" in succeed(PREPARE, OUTPUT=out, **how)
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
    assert (out / "options").read_text() == "--batch-size 128\n"
    made = stamps(out.rglob("*.bin"))
    succeed(PREPARE, OUTPUT=out, **how)
    assert stamps(made) == made


def test_either_direction_and_damaged_files_and_sets_that_are_missing(talks: Path) -> None:
    assert convert.test_pairs(talks.parent, "en-de", ["tst2010"]) == convert.test_pairs(talks, "de-en", ["tst2010"])
    assert len(convert.training_pairs(talks, "en-de")) == SIZES["train"] - 1
    with pytest.raises(SystemExit, match=r"IWSLT17\.TED\.tst2016\.de-en\.de\.xml.*set DATA"):
        convert.test_pairs(talks, "de-en", ["tst2016"])
    with open(talks / "train.tags.de-en.en", "a") as file:
        file.write("one more\n")
    with pytest.raises(SystemExit, match=r"60 .* 61: they do not belong together"):
        convert.training_pairs(talks, "de-en")
    path = talks / "IWSLT17.TED.tst2010.de-en.de.xml"
    path.write_text(path.read_text()[:-200])
    with pytest.raises(SystemExit, match="get it again"):
        convert.test_pairs(talks, "de-en", ["tst2010"])


def test_a_sentence_that_begins_with_a_sign_is_not_a_tag(tmp_path: Path) -> None:
    """One line of each side would be left out, and all pairs between them would be sentences of different lines."""
    german, english = ["<3 sagte er.", "Zwei.", "Drei.", "Vier."], ["He said <3.", "Two.", "Three.", "<< Four >>"]
    for lang, text in (("de", german), ("en", english)):
        (tmp_path / f"train.tags.de-en.{lang}").write_text("\n".join([*HEAD, "</doc>", *text, ""]))
    assert convert.training_pairs(tmp_path, "de-en") == list(zip(german, english))
