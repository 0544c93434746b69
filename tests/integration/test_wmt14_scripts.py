"""scripts/wmt14_en_de from the first to the last step, on sentences of Multi30k laid out like WMT's files."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from programs import VENV

pytest.importorskip("sacremoses")
pytest.importorskip("subword_nmt")

from sacrebleu.metrics import BLEU
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from embinit_fairseq.checkpoints.reading import load_checkpoint

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
LANGS = ("en", "de")
EVERY, SIZE, RATIO = 10, 300, 1.2
PREPARE = {"BPE_SIZE": SIZE, "VALID_EVERY": EVERY, "MAX_RATIO": RATIO, "SHARD_PAIRS": 40, "JOBS": 1}
TRAIN = {"UPDATES": 4, "SAVE_EVERY": 2, "MAX_TOKENS": 400, "UPDATE_TOKENS": 800, "KEEP": 2}
MODEL = "--arch duo_transformer_tiny --lr 0.01 --warmup-updates 2 --encoder-layers 1 --decoder-layers 1".split()
MODEL += "--encoder-embed-dim 8 --encoder-ffn-embed-dim 8".split()

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.data,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def environment(**variables: object) -> dict[str, str]:
    return {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in variables.items()}}


def bash(script: str, *arguments: object, pair: str = "wmt14_en_de", **variables: object) -> str:
    command = ["bash", str(SCRIPTS / pair / script), *map(str, arguments)]
    done = subprocess.run(command, env=environment(**variables), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def refused(script: str, *arguments: object, pair: str = "wmt14_en_de", **variables: object) -> str:
    command = ["bash", str(SCRIPTS / pair / script), *map(str, arguments)]
    done = subprocess.run(command, env=environment(**variables), capture_output=True, text=True)
    assert done.returncode != 0
    return done.stderr


@pytest.fixture(scope="module")
def sentences(data_dir: Path) -> dict[str, dict[str, list[str]]]:
    """Split -> language -> sentences of Multi30k."""
    found: dict[str, dict[str, list[str]]] = {}
    for split, name, number in (("train", "train", 300), ("test", "test_2016_flickr", 20)):
        raw = {lang: (data_dir / f"multi30k/raw/{name}.{lang}.gz").read_bytes() for lang in LANGS}
        found[split] = {lang: gzip.decompress(raw[lang]).decode().split("\n")[:number] for lang in LANGS}
    found["train"]["en"][100] = ""  # a pair that is to be left out
    return found


@pytest.fixture(scope="module")
def data(sentences: dict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with WMT's files: plain, compressed, and in an archive."""
    folder = tmp_path_factory.mktemp("wmt's files")
    for name in ("training", "test-full"):
        (folder / name).mkdir()
    text = {lang: [line + "\n" for line in lines] for lang, lines in sentences["train"].items()}
    with tarfile.open(folder / "training-parallel-commoncrawl.tgz", "w:gz") as tar:
        for lang, lines in text.items():
            (folder / f"training/europarl-v7.de-en.{lang}").write_text("".join(lines[:130]))
            (folder / f"news-commentary-v9.de-en.{lang}.gz").write_bytes(gzip.compress("".join(lines[220:]).encode()))
            content = "".join(lines[130:220]).encode()
            info = tarfile.TarInfo(f"commoncrawl.de-en.{lang}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    for side, lang in (("src", "en"), ("ref", "de")):
        segments = [f'<seg id="{n}">{line}</seg>\n' for n, line in enumerate(sentences["test"][lang], 1)]
        path = folder / f"test-full/newstest2014-deen-{side}.{lang}.sgm"
        path.write_text("<refset>\n<doc>\n" + "".join(segments) + "</doc>\n</refset>\n")
    return folder


@pytest.fixture(scope="module")
def prepared(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared with one interruption, by kill -9."""
    folder = tmp_path_factory.mktemp("pre pared") / "data"
    process = subprocess.Popen(
        ["bash", str(SCRIPTS / "wmt14_en_de" / "prepare.sh")],
        env=environment(**{**PREPARE, "DATA": data, "OUTPUT": folder, "VENV": sys.prefix}),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + 300
    while not (folder / "work/clean/00000").is_dir() and time.monotonic() < end:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "bin").exists()
    stamp = (folder / "work/clean/00000/train.en").stat().st_mtime_ns
    bash("prepare.sh", DATA=data, OUTPUT=folder, **PREPARE)
    assert (folder / "work/clean/00000/train.en").stat().st_mtime_ns == stamp
    return folder


@pytest.fixture(scope="module")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained, translated and scored."""
    run = tmp_path_factory.mktemp("runs") / "a run"
    bash("train.sh", *MODEL, DATA=prepared, RUN=run, **TRAIN)
    bash("generate.sh", DATA=prepared, RUN=run, AVERAGE=2)
    return run


def test_the_text_is_that_of_a_plain_loop(prepared: Path, sentences: dict) -> None:
    tokens = {}
    for lang, lines in sentences["train"].items():
        normalise, words = MosesPunctNormalizer(lang=lang).normalize, MosesTokenizer(lang=lang).tokenize
        tokens[lang] = [" ".join(words(normalise(line), aggressive_dash_splits=True, escape=False)) for line in lines]
    train = [number for number in range(1, 301) if number % EVERY]
    joined = io.StringIO("".join(tokens[lang][n - 1] + "\n" for lang in LANGS for n in train))
    codes = io.StringIO()
    learn_bpe(joined, codes, SIZE)
    assert (prepared / "bpe.codes").read_text() == codes.getvalue()

    bpe = BPE(io.StringIO(codes.getvalue()))
    expected = {name: "" for name in ("train.en", "train.de", "valid.en", "valid.de")}
    left_out = 0
    for number in range(1, 301):
        pair = [bpe.process_line(tokens[lang][number - 1]) for lang in LANGS]
        short, long = sorted(len(side.split()) for side in pair)
        if short == 0 or long / short > RATIO:
            left_out += 1
            continue
        for lang, side in zip(LANGS, pair):
            expected[f"{'train' if number % EVERY else 'valid'}.{lang}"] += side + "\n"
    for name, text in expected.items():
        assert (prepared / "text" / name).read_text() == text
    report = json.loads((prepared / "report.json").read_text())
    assert sum(n for key, n in report["encoded"].items() if key.endswith(("ratio", "empty"))) == left_out > 10
    assert report["encoded"]["train_empty"] == 1
    assert report["corpora"] == {"europarl": 130, "commoncrawl": 90, "news-v9": 80}


def test_the_test_set_is_whole_and_the_dictionary_joined(prepared: Path, sentences: dict) -> None:
    for lang in LANGS:
        assert (prepared / f"test.{lang}").read_text().split("\n")[:-1] == sentences["test"][lang]
        assert (prepared / f"text/test.{lang}").read_text().count("\n") == 20
    assert (prepared / "bin/dict.en.txt").read_bytes() == (prepared / "bin/dict.de.txt").read_bytes()


def test_preparing_again_does_nothing_and_others_are_refused(prepared: Path, data: Path, tmp_path: Path) -> None:
    stamps = {path: path.stat().st_mtime_ns for path in prepared.rglob("*") if path.name != "settings"}
    again = {**PREPARE, "DATA": data, "OUTPUT": prepared}
    assert "ready before" in bash("prepare.sh", **again)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    for change in ({"BPE_SIZE": SIZE + 1}, {"DATA": tmp_path}):
        assert "name another folder" in refused("prepare.sh", **{**again, **change})
    assert f"DATA={prepared}: no data of en-fr" in refused(
        "train.sh", pair="wmt14_en_fr", DATA=prepared, RUN=tmp_path / "run"
    )
    assert "PAIR=wmt14" in refused("prepare.sh", pair="wmt14", OUTPUT=tmp_path / "out")
    known = refused("prepare.sh", OUTPUT=tmp_path / "out", DATA=data, CORPORA="europarl giga")
    assert "CORPORA: en-de has no giga" in known
    assert "news-v12" in known


def test_the_settings_of_the_paper(trained: Path) -> None:
    result = json.loads((trained / "result.json").read_text())
    assert result["labels"] == {"direction": "en-de", "arch": "duo_transformer_tiny", "init": "none", "seed": "1"}
    words = result["command"].split()
    settings = {"--adam-eps": "1e-9", "--lr-scheduler": "inverse_sqrt", "--label-smoothing": "0.1", "--dropout": "0.1"}
    for option, value in {**settings, "--update-freq": "2", "--keep-interval-updates": "2"}.items():
        assert words[words.index(option) + 1] == value
    assert "--share-all-embeddings" in words


def test_the_mean_of_the_last_checkpoints_is_translated_with(trained: Path) -> None:
    paths = [path for n in (2, 4) for path in (trained / "checkpoints").glob(f"checkpoint_*_{n}.pt")]
    models = [load_checkpoint(path)["model"] for path in paths]
    mean = load_checkpoint(trained / "averaged.2.pt")["model"]
    assert len(models) == 2
    for name, value in mean.items():
        if value.is_floating_point():
            assert (value - (models[0][name] + models[1][name]) / 2).abs().max() < 1e-6
    log = (trained / "test.generate.log").read_text()
    assert "Generate test with beam=4" in log
    assert "averaged.2.pt" in log


def test_scores_agree_with_sacrebleu(trained: Path, sentences: dict) -> None:
    scores = json.loads((trained / "result.json").read_text())["scores"]
    text = (trained / "test.hypothesis.text").read_text().split("\n")[:-1]
    assert scores["bleu"]["score"] == pytest.approx(BLEU().corpus_score(text, [sentences["test"]["de"]]).score)
    assert {"bleu", "chrf", "bleu_tokenized", "bleu_tokenized_compound_split"} <= set(scores)
    assert (scores["sentences"], scores["beam"]) == (20, 4)
    assert json.loads((trained / "test.scores.json").read_text()) == scores


def test_a_finished_run_is_left_alone_and_mistakes_are_named(trained: Path, prepared: Path, tmp_path: Path) -> None:
    log = (trained / "train.log").read_bytes()
    assert "finished before" in bash("train.sh", *MODEL, DATA=prepared, RUN=trained, **TRAIN)
    assert (trained / "train.log").read_bytes() == log
    assert "2 numbered checkpoints" in refused("generate.sh", DATA=prepared, RUN=trained, AVERAGE=3)
    uneven = refused("train.sh", DATA=prepared, RUN=tmp_path / "run", MAX_TOKENS=500)
    assert "UPDATE_TOKENS=32768: set it to a multiple of MAX_TOKENS" in uneven
    other = tmp_path / "other"
    shutil.copytree(prepared / "bin", other / "bin")
    lines = (other / "bin/dict.de.txt").read_text().splitlines(keepends=True)
    for lang in LANGS:  # as long as the right ones
        (other / f"bin/dict.{lang}.txt").write_text("".join([lines[1], lines[0], *lines[2:]]))
    shutil.copy(prepared / "test.de", other)
    assert "is not the dictionary that" in refused("generate.sh", DATA=other, RUN=trained, AVERAGE=0)
