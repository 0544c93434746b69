"""scripts/multi30k on a corpus of a few hundred made-up sentences, through bash and the real fairseq commands."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import itertools
import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from programs import PYTHON, VENV
from sacrebleu.metrics import BLEU

REPO = Path(__file__).resolve().parents[2]
SCRIPTS = REPO / "scripts" / "multi30k"
TINY = ["--dim", "16", "--heads", "2", "--ffn", "16", "--batch", "32", "--lr", "5e-3"]
LAYERS = ["--", "--encoder-layers", "1", "--decoder-layers", "1"]

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def bash(script: Path | str, *arguments: object, check: bool = True, **environment: str) -> subprocess.CompletedProcess:
    variables = {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1", "DATA": "", **environment}
    result = subprocess.run(
        ["bash", str(script), *map(str, arguments)], env=variables, capture_output=True, text=True, check=False
    )
    if check and result.returncode != 0:
        pytest.fail(f"{script} {arguments}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result


def sentences() -> list[tuple[str, str]]:
    """German and English pairs; one English subject has the apostrophe that Moses escapes."""
    subjects = [("Ein Mann", "A man"), ("Die Frau", "The woman"), ("Peters Hund", "Peter's dog"), ("Er", "He")]
    verbs = [("sieht", "sees"), ("malt", "paints"), ("trägt", "carries"), ("findet", "finds")]
    objects = [("ein Haus", "a house"), ("den Ball", "the ball"), ("ein Buch", "a book"), ("das Rad", "the wheel")]
    places = [("im Park", "in the park"), ("am Strand", "at the beach"), ("heute", "today"), ("dort", "there")]
    chosen = itertools.product(subjects, verbs, objects, places)
    return [(" ".join(p[0] for p in parts) + ".", " ".join(p[1] for p in parts) + ".") for parts in chosen]


def moses(text: str) -> str:
    return text.lower().replace(".", " .").replace("'s", " &apos;s")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of Multi30k's layout: 200 training, 26 validation and 30 test sentences."""
    folder = tmp_path_factory.mktemp("multi 30k")
    pairs = sentences()
    pairs = [pairs[(index * 101) % len(pairs)] for index in range(len(pairs))]
    splits = {"train": pairs[:200], "val": pairs[200:226], "test_2016_flickr": pairs[226:]}
    splits["train"][0] = (splits["train"][0][0] + " Einmal.", splits["train"][0][1] + " Once.")
    for name, part in splits.items():
        for column, lang in enumerate(("de", "en")):
            raw, tok = f"raw/{name}.{lang}.gz", f"tok/{name}.lc.norm.tok.{lang}.gz"
            for path, lines in ((raw, [p[column] for p in part]), (tok, [moses(p[column]) for p in part])):
                (folder / path).parent.mkdir(exist_ok=True)
                (folder / path).write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return folder


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("some words") / "de-en"
    bash(SCRIPTS / "prepare.sh", "--output", folder, DATA=str(corpus))
    return folder


@pytest.fixture(scope="module")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("all runs") / "run"
    bash(SCRIPTS / "train.sh", "--data", prepared, "--output", run, "--epochs", 2, *TINY, *LAYERS)
    bash(SCRIPTS / "generate.sh", "--data", prepared, "--run", run, "--beam", 2)
    return run


def test_words_are_unescaped_and_the_dictionary_holds_those_seen_twice(prepared: Path, corpus: Path) -> None:
    text = gzip.decompress((corpus / "tok/train.lc.norm.tok.en.gz").read_bytes()).decode().replace("&apos;", "'")
    expected = {word: count for word, count in Counter(text.split()).items() if count >= 2}
    lines = (prepared / "bin/dict.en.txt").read_text(encoding="utf-8").splitlines()
    found = {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in lines}
    assert {word: count for word, count in found.items() if not word.startswith("madeupword")} == expected
    assert "'s" in found
    assert "once" not in found


def test_preparing_again_does_only_what_is_missing(prepared: Path, corpus: Path) -> None:
    before = (prepared / "bin/train.de-en.de.bin").stat().st_mtime_ns
    again = bash(SCRIPTS / "prepare.sh", "--output", prepared, DATA=str(corpus))
    assert (prepared / "bin/train.de-en.de.bin").stat().st_mtime_ns == before
    assert "binarising: there already" in again.stderr
    (prepared / "text/valid.en").unlink()
    bash(SCRIPTS / "prepare.sh", "--output", prepared, DATA=str(corpus))
    assert (prepared / "text/valid.en").read_text(encoding="utf-8").count("\n") == 26


def test_other_options_in_the_same_folder_are_refused(prepared: Path, corpus: Path) -> None:
    result = bash(SCRIPTS / "prepare.sh", "--output", prepared, "--min-count", 3, check=False, DATA=str(corpus))
    assert result.returncode != 0
    assert "choose another --output" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "letters"], "moses spacy subword_nmt sentencepiece huggingface"),
        (["--tokens", "huggingface"], "--hf DIR"),
        (["--source", "en"], "both en"),
        (["--colour"], "--colour"),
        (["--min-count"], "needs a value"),
    ],
)
def test_wrong_options_of_prepare(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = bash(SCRIPTS / "prepare.sh", *arguments, check=False)
    assert result.returncode != 0
    assert message in result.stderr


def test_incomplete_and_damaged_copies_are_named(corpus: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "raw").mkdir(parents=True)
    result = bash(SCRIPTS / "prepare.sh", "--output", tmp_path / "out", check=False, DATA=str(copy))
    assert result.returncode != 0
    assert "raw/train.de.gz" in result.stderr
    whole = (corpus / "raw/train.de.gz").read_bytes()
    (copy / "raw/train.de.gz").write_bytes(whole[: len(whole) // 2])
    result = bash(SCRIPTS / "prepare.sh", "--output", tmp_path / "out", check=False, DATA=str(copy))
    assert result.returncode != 0
    assert "damaged" in result.stderr
    assert not list(tmp_path.rglob("*.part"))


def test_an_archive_that_does_not_fit_on_the_disk_is_not_damaged(corpus: Path, tmp_path: Path) -> None:
    """Files may have 1 KB; the text of 200 sentences has more."""
    command = f'ulimit -f 1; exec bash "{SCRIPTS}/prepare.sh" --output "$1"'
    environment = {**os.environ, "VENV": str(VENV), "DATA": str(corpus)}
    result = subprocess.run(
        ["bash", "-c", command, "-", tmp_path / "out"], env=environment, capture_output=True, text=True
    )
    assert result.returncode != 0
    assert f"{tmp_path}/out/corpus/raw/train.de cannot be written" in result.stderr
    assert "free some space, or choose another --output" in result.stderr
    assert "damaged" not in result.stderr
    assert not list(tmp_path.rglob("*.part"))
    assert not (tmp_path / "out/corpus/raw/train.de").exists()


def test_result_records_the_run(trained: Path, prepared: Path) -> None:
    result = json.loads((trained / "result.json").read_text(encoding="utf-8"))
    assert result["labels"] == {"direction": "de-en", "arch": "transformer", "init": "none", "seed": "1"}
    losses = {epoch: values["valid_loss"] for epoch, values in result["epochs"].items()}
    assert set(losses) == {"1", "2"}
    assert losses[str(result["best"]["epoch"])] == min(losses.values()) == result["best"]["valid_loss_bits"]
    assert result["best"]["valid_loss_nats"] == pytest.approx(min(losses.values()) * 0.693147, rel=1e-5)
    dictionary = (prepared / "bin/dict.en.txt").read_bytes()
    assert result["data"]["dict.en.txt"] == hashlib.sha256(dictionary).hexdigest()
    assert result["versions"]["fairseq"] == "0.12.2"
    assert result["parameters"]["all"] > 0
    assert "--seed 1" in result["command"]


def test_scores_agree_with_sacrebleu(trained: Path, corpus: Path) -> None:
    scores = json.loads((trained / "result.json").read_text(encoding="utf-8"))["scores"]
    raw = gzip.decompress((corpus / "raw/test_2016_flickr.en.gz").read_bytes()).decode().splitlines()
    text = (trained / "test.hypothesis.text").read_text(encoding="utf-8").splitlines()
    assert scores["bleu"]["score"] == pytest.approx(BLEU(lowercase=True).corpus_score(text, [raw]).score)
    tokens = (trained / "test.hypothesis.tokens").read_text(encoding="utf-8").splitlines()
    words = [moses(line).replace("&apos;", "'") for line in raw]
    expected = BLEU(tokenize="none", force=True).corpus_score(tokens, [words]).score
    assert scores["bleu_tokenized"]["score"] == pytest.approx(expected)
    assert "tok:13a" in scores["bleu"]["signature"]
    assert "tok:none" in scores["bleu_tokenized"]["signature"]
    assert expected > 5  # two epochs teach it the commonest words; shuffled lines would not reach it


def test_a_run_continues_but_not_with_other_options(trained: Path, prepared: Path) -> None:
    first = json.loads((trained / "result.json").read_text(encoding="utf-8"))["epochs"]
    bash(SCRIPTS / "train.sh", "--data", prepared, "--output", trained, "--epochs", 3, *TINY, *LAYERS)
    bash(REPO / "scripts/common.sh")  # sourcing it alone must do nothing
    result = json.loads((trained / "result.json").read_text(encoding="utf-8"))
    assert set(result["epochs"]) == {"1", "2", "3"}
    assert result["epochs"]["2"]["valid_loss"] == first["2"]["valid_loss"]
    assert result["time"]["sessions"] == 2
    assert result["scores"] == {}, "they were those of the model after two epochs"
    other = [*TINY, "--seed", "2", *LAYERS]
    refused = bash(SCRIPTS / "train.sh", "--data", prepared, "--output", trained, *other, check=False)
    assert refused.returncode != 0
    assert "other options" in refused.stderr


def test_grid_makes_a_table_and_curves_and_does_nothing_twice(corpus: Path, tmp_path: Path) -> None:
    grid = ["--output", tmp_path, "--directions", "en-de", "--inits", "none", "shuffled", "--seeds", "1"]
    grid += ["--epochs", "1", "--jobs", "2", "--dim", "16", "--", *TINY[2:], *LAYERS]
    bash(SCRIPTS / "run.sh", *grid, DATA=str(corpus))
    table = (tmp_path / "results.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
    assert rows == ["", "---", "none", "shuffled", "against none", "---", "shuffled"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((tmp_path / "runs/en-de.shuffled.seed1/result.json").read_text(encoding="utf-8"))
    assert result["init"]["strategy"] == "shuffled"
    assert result["init"]["slots"]["decoder"]["source"]["name"] == "de.txt"
    logs = (tmp_path / "runs/en-de.none.seed1/train.log").stat().st_mtime_ns
    bash(SCRIPTS / "run.sh", *grid, DATA=str(corpus))
    assert (tmp_path / "runs/en-de.none.seed1/train.log").stat().st_mtime_ns == logs
    refused = bash(SCRIPTS / "run.sh", *grid, "--lr", "0.5", DATA=str(corpus), check=False)  # else the old table
    assert refused.returncode != 0
    assert "error: 2 runs failed" in refused.stderr
    assert "--lr was 5e-3, is 0.5" in (tmp_path / "logs/1.en-de.transformer.none.log").read_text()


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """A Hugging Face folder with a small WordPiece vocabulary that knows no "strand"."""
    letters = "abcdefghiklmnoprstuvwyzäöü"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "ein", "mann", "haus", "die", "frau", "the", "man", ".", "'", "##s"]
    pieces = [*words, *letters, *(f"##{letter}" for letter in letters if letter not in "ds")]
    folder = tmp_path_factory.mktemp("a hf folder")
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    return folder


def decode(kind: str, model: Path, tokens: Path, lang: str) -> list[str]:
    command = [
        PYTHON,
        REPO / "scripts/tokens.py",
        "decode",
        "--kind",
        kind,
        "--lang",
        lang,
        "--model",
        model,
    ]
    return (
        subprocess.run(command, input=tokens.read_bytes(), capture_output=True, check=True).stdout.decode().splitlines()
    )


@pytest.mark.parametrize("kind", ["moses", "spacy", "subword_nmt", "sentencepiece"])
def test_tokens_are_put_back_together(kind: str, corpus: Path, tmp_path: Path) -> None:
    if kind == "spacy":
        pytest.importorskip("spacy")
    bash(SCRIPTS / "prepare.sh", "--tokens", kind, "--bpe-size", 60, "--output", tmp_path / "out", DATA=str(corpus))
    for lang in ("de", "en"):
        raw = gzip.decompress((corpus / f"raw/test_2016_flickr.{lang}.gz").read_bytes()).decode().splitlines()
        tokens = tmp_path / f"out/text/test.{lang}"
        assert decode(kind, tmp_path / "out/spm.model", tokens, lang) == [line.lower() for line in raw]
    pieces = (tmp_path / "out/text/test.de").read_text(encoding="utf-8")
    assert ("@@" in pieces) == (kind == "subword_nmt")
    assert ("▁" in pieces) == (kind == "sentencepiece")


def test_pieces_of_a_hugging_face_tokenizer_are_the_dictionary(corpus: Path, wordpiece: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    bash(SCRIPTS / "prepare.sh", "--tokens", "huggingface", "--hf", wordpiece, "--output", out, DATA=str(corpus))
    known = set((wordpiece / "vocab.txt").read_text(encoding="utf-8").splitlines())
    symbols = {line.rsplit(" ", 1)[0] for line in (out / "bin/dict.en.txt").read_text(encoding="utf-8").splitlines()}
    symbols = {symbol for symbol in symbols if not symbol.startswith("madeupword")}
    assert symbols <= known
    assert {"man", "the", "."} <= symbols
    text = (out / "text/train.de").read_text(encoding="utf-8")
    assert "<unk>" in text  # capital letters are not in the vocabulary
    assert "[UNK]" not in text
    assert "[CLS]" not in text


def test_only_the_data_of_the_training_are_translated(trained: Path, prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path / "other")
    path = tmp_path / "other/bin/dict.en.txt"
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))  # of the same length
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    refused = bash(SCRIPTS / "generate.sh", "--data", tmp_path / "other", "--run", trained, check=False)
    assert refused.returncode == 1
    assert f"error: --data {tmp_path / 'other'}: bin/dict.en.txt (" in refused.stderr
    assert f"is not the dictionary that --run {trained} was trained with (" in refused.stderr
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


@pytest.mark.skipif(shutil.which("flock") is None, reason="the program flock is missing (util-linux)")
def test_two_that_translate_with_one_run_take_turns(trained: Path, prepared: Path) -> None:
    command = ["bash", SCRIPTS / "generate.sh", "--data", prepared, "--run", trained, "--subset", "valid"]
    environment = {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1"}
    turn = os.open(trained, os.O_RDONLY)
    fcntl.flock(turn, fcntl.LOCK_EX)
    waiting = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert f"translating: waiting for another script that works in {trained}" in waiting.stderr.readline()
    assert not list(trained.glob("valid.*"))
    os.close(turn)
    assert "translating valid" in waiting.communicate()[1]
    assert waiting.returncode == 0
    assert json.loads((trained / "valid.scores.json").read_text())["sentences"] == 26
