"""scripts/expansion: which words become new, and text in which they are whole."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from expansion.pieces import Cutter, read_words
from expansion.segment import segment
from expansion.words import choose

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
#: "ab" at the start or in the middle of a word, "ab" as a word or at its end, "cd" at the end
CODES = "#version: 0.2\na b\na b</w>\nc d</w>\n"
PIECES = {"ab": ["ab"], "abcd": ["ab@@", "cd"], "dab": ["d@@", "ab"], "aba": ["ab@@", "a"], "dd": ["d@@", "d"]}


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("codes") / "bpe.codes"
    file.write_text(CODES)
    return file


def run(module: str, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", f"expansion.{module}", *map(str, arguments)]
    return subprocess.run(command, cwd=SCRIPTS, capture_output=True, text=True, check=False)


def test_words_are_cut_by_the_codes_but_not_the_unknown_one(codes: Path) -> None:
    cut = Cutter(codes)
    assert {word: cut(word) for word in PIECES} == PIECES
    assert cut("<unk>") == ["<unk>"]
    assert Cutter(codes, ["abcd"])("abcd") == ["abcd"]


def test_the_most_frequent_words_that_are_split_and_that_the_validation_text_has() -> None:
    train = Counter({"ab": 90, "abcd": 50, "aba": 70, "dab": 50, "dd": 80, "never": 60})
    valid = Counter({"ab": 1, "abcd": 2, "aba": 3, "dab": 4})
    found = choose(train, valid, lambda word: PIECES.get(word, [f"{word[0]}@@", word[1:]]), 2)
    # dd and never are not in the validation text, ab is not split; abcd and dab: alphabetical order
    assert [(word.text, word.pieces, word.train, word.valid) for word in found] == [
        ("aba", ["ab@@", "a"], 70, 3),
        ("abcd", ["ab@@", "cd"], 50, 2),
    ]
    assert [word.text for word in choose(train, valid, lambda word: PIECES.get(word, [word]), 9)] == [
        "aba",
        "abcd",
        "dab",
    ]


def test_a_word_that_is_a_piece_of_another_is_no_new_symbol() -> None:
    pieces = {"house": ["ho@@", "use"], "reuse": ["re@@", "use"], "use": ["u@@", "se"], "x@@": ["x@@@", "@"]}
    counts = Counter(dict.fromkeys(pieces, 5))
    assert [word.text for word in choose(counts, counts, pieces.__getitem__, 9)] == ["house", "reuse"]


texts = st.lists(st.sampled_from([*PIECES, "<unk>", "é", "cab"]), max_size=12)


@given(texts, st.sets(st.sampled_from(["abcd", "aba", "dab"])))
def test_segmented_text_is_the_same_text(codes: Path, words: list[str], whole: set[str]) -> None:
    line = segment(" ".join(words), Cutter(codes, whole))
    assert f"{line} ".replace("@@ ", "").split() == words
    assert [piece for piece in line.split() if piece in whole] == [word for word in words if word in whole]


def test_the_programs_read_and_write_files(codes: Path, tmp_path: Path) -> None:
    (tmp_path / "train").write_text("abcd abcd dab ab dab\naba dd dab\n")
    (tmp_path / "valid").write_text("abcd dab ab\n")
    texts = ["--codes", codes, "--train", tmp_path / "train", "--valid", tmp_path / "valid"]
    chosen = run("words", *texts, "--count", 2, "--output", tmp_path / "table", tmp_path / "list")
    assert chosen.returncode == 0, chosen.stderr
    assert (tmp_path / "table").read_text() == ("word\tpieces\ttrain\tvalid\ndab\td@@ ab\t3\t1\nabcd\tab@@ cd\t2\t1\n")
    assert (tmp_path / "list").read_text() == "dab\td@@ ab\nabcd\tab@@ cd\n"
    assert read_words(tmp_path / "list") == ["dab", "abcd"]
    files = ["--codes", codes, "--words", tmp_path / "list", "--input", tmp_path / "train"]
    assert run("segment", *files, "--output", tmp_path / "new").returncode == 0
    assert (tmp_path / "new").read_text() == "abcd abcd dab ab dab\nab@@ a d@@ d dab\n"

    few = run("words", *texts, "--count", 3, "--output", tmp_path / "other", tmp_path / "others")
    assert few.returncode != 0
    assert few.stderr.startswith("error: only 2 words")
    assert "--bpe-size" in few.stderr
    assert not (tmp_path / "other").exists()
