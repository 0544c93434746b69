"""Text with ends of lines of every kind, from preparation to translation, and the work divided among shards."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fairseq_commands import hypotheses, logged, run, script

pytest.importorskip("fairseq")

#: eight pairs of four words; a CR inside a line, one before the LF, and others at which str.splitlines splits
GERMAN = "d1 d2\rd3 d4\nd5 d6 d7 d8\r\n" + "".join(f"d{n} d2 d3 d{n + 1}\n" for n in range(10, 16))
ENGLISH = "e4 e3 e2 e1\ne8\u2028e7 e6\x85e5\n" + "".join(f"e{n + 1} e3 e2 e{n}\n" for n in range(10, 16))
PLAIN = GERMAN.replace("\r\n", "\n").replace("\r", " ")


@pytest.fixture(scope="module")
def data(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarised by three processes, with the dictionaries of the trained model; the text is beside it."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "test.de").write_text(GERMAN, newline="")
    (folder / "test.en").write_text(ENGLISH, newline="")
    dictionaries = ["--srcdict", pairs / "dict.de.txt", "--tgtdict", pairs / "dict.en.txt"]
    prefixes = ["--validpref", folder / "test", "--testpref", folder / "test", "--workers", "3"]
    command = [*script("fairseq-preprocess"), "-s", "de", "-t", "en", *dictionaries, *prefixes]
    done = run([*command, "--destdir", folder / "data-bin"])
    assert (done.stdout + done.stderr).count(": 8 sents, 40 tokens, 0.0% replaced") == 4, done
    return folder / "data-bin"


def test_two_shards_translate_every_sentence_once(data, trained, tmp_path) -> None:
    command = [*script("fairseq-generate"), data, "--cpu", "--beam", "2", "--max-len-b", "6", "--path"]
    command += [trained[0] / "checkpoint_last.pt", "--batch-size", "3"]
    whole = run(command).stdout
    for shard in "01":
        run([*command, "--num-shards", "2", "--shard-id", shard, "--results-path", tmp_path])
    parts = [(tmp_path / f"generate-test.shard{shard}.txt").read_text() for shard in "01"]
    assert [len(hypotheses(part)) for part in parts] == [5, 3]
    assert hypotheses("".join(parts)) == hypotheses(whole)
    assert sorted(line for line in whole.splitlines() if line.startswith("S-")) == [
        f"S-{number}\t{' '.join(line.split())}" for number, line in enumerate(PLAIN.splitlines())
    ]


def test_lines_are_shared_between_two_shards(data, trained) -> None:
    command = [*script("fairseq-interactive"), data, "--cpu", "-s", "de", "-t", "en", "--path"]
    command += [trained[0] / "checkpoint_last.pt", "--beam", "2", "--buffer-size", "3", "--batch-size", "2"]
    output = run([*command, "--input", data.parent / "test.de", "--num-shards", "2", "--shard-id", "1"]).stdout
    sources = [line for line in output.splitlines() if line.startswith("S-")]
    assert sources == [f"S-{number}\t{PLAIN.splitlines()[number]}" for number in (1, 3, 5, 7)]


def test_shards_evaluate_their_part(data, trained) -> None:
    command = [*script("fairseq-validate"), data, "--task", "translation", "--cpu", "--batch-size", "1", "--path"]
    command += [trained[0] / "checkpoint_last.pt", "--log-format", "json", "--num-workers", "0", "--num-shards", "2"]
    first, second = (logged(run([*command, "--shard-id", shard]).stdout, "valid", "valid_loss") for shard in "01")
    assert first != second


def test_sacremoses_keeps_the_number_of_lines() -> None:
    pytest.importorskip("sacremoses")
    assert prepared(["sacremoses", "-q", "-l", "de", "tokenize"], GERMAN).split("\n") == PLAIN.split("\n")


@pytest.mark.parametrize("by_name", [False, True])
def test_subword_nmt_takes_ends_of_lines_for_spaces(by_name: bool, tmp_path: Path) -> None:
    pytest.importorskip("subword_nmt")
    (tmp_path / "codes").write_text("#version: 0.2\ne 1\n")
    (tmp_path / "text").write_text(ENGLISH, newline="")
    command = ["subword-nmt", "apply-bpe", "-c", tmp_path / "codes"]
    if by_name:
        command += ["--input", tmp_path / "text"]
    cut = prepared(command, ENGLISH).replace("@@ ", "")
    assert cut.split("\n") == ENGLISH.replace("\u2028", " ").replace("\x85", " ").split("\n")


def prepared(command: list, text: str) -> str:
    """What a program makes of a text."""
    words = [*script(command[0]), *map(str, command[1:])]
    return subprocess.run(words, input=text.encode(), stdout=subprocess.PIPE, check=True).stdout.decode()
