"""scripts/wmt14_en_de from the first to the last step, on sentences of Multi30k laid out like WMT's files."""

from __future__ import annotations

import gzip
import hashlib
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from sacrebleu.metrics import BLEU
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from embinit_fairseq.checkpoints.reading import load_checkpoint

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "wmt14_en_de"
LANGS = ("en", "de")
EVERY, SIZE, RATIO = 10, 300, 1.2
PREPARE = ["--bpe-size", SIZE, "--valid-every", EVERY, "--max-ratio", RATIO, "--shard-pairs", 40, "--jobs", 1]
TRAIN = ["--arch", "duo_transformer_tiny", "--updates", 6, "--warmup", 2, "--lr", 0.01, "--save-every", 2]
TRAIN += ["--max-tokens", 400, "--update-tokens", 800, "--keep", 2, "--"]
TRAIN += ["--encoder-embed-dim", 8, "--encoder-ffn-embed-dim", 8, "--encoder-layers", 1, "--decoder-layers", 1]

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.data,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


needs_flock = pytest.mark.skipif(shutil.which("flock") is None, reason="the program flock is missing (util-linux)")


def command(script: str, *arguments: object) -> list[str]:
    return ["bash", str(SCRIPTS / script), *map(str, arguments)]


def environment(data: Path | None = None) -> dict[str, str]:
    return {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1", "DATA": str(data or "")}


def bash(script: str, *arguments: object, data: Path | None = None, check: bool = True) -> subprocess.CompletedProcess:
    result = subprocess.run(command(script, *arguments), env=environment(data), capture_output=True, text=True)
    if check and result.returncode != 0:
        pytest.fail(f"{script} {arguments}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result


def at_once(*commands: list[str], data: Path | None = None) -> list[str]:
    """What several commands that were started together said; all of them must end well."""
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = [subprocess.Popen(each, env=environment(data), **pipe) for each in commands]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(commands), said
    return said


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
    folder = tmp_path_factory.mktemp("wmt")
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
    folder = tmp_path_factory.mktemp("prepared") / "data"
    arguments = ["--output", folder, *PREPARE]
    process = subprocess.Popen(
        command("prepare.sh", *arguments),
        env={**environment(data), "VENV": sys.prefix},
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
    bash("prepare.sh", *arguments, data=data)
    assert (folder / "work/clean/00000/train.en").stat().st_mtime_ns == stamp
    return folder


@pytest.fixture(scope="module")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained with one interruption, translated and scored."""
    run = tmp_path_factory.mktemp("runs") / "run"
    arguments = ["--data", prepared, "--output", run, *TRAIN]
    bash("train.sh", *arguments, "--max-update", 3)  # as if it had been stopped there
    bash("train.sh", *arguments)
    bash("generate.sh", "--data", prepared, "--run", run, "--average", 2)
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
    words = {line.split()[0] for line in (prepared / "bin/dict.en.txt").read_text().splitlines()}
    assert {"the", "die", "."} <= words


def test_preparing_again_does_nothing_and_other_options_are_refused(prepared: Path) -> None:
    stamps = {path: path.stat().st_mtime_ns for path in prepared.rglob("*")}
    assert "ready already" in bash("prepare.sh", "--output", prepared, *PREPARE).stderr  # nor is DATA needed again
    assert {path: path.stat().st_mtime_ns for path in prepared.rglob("*")} == stamps
    refused = bash("prepare.sh", "--output", prepared, *PREPARE, "--bpe-size", SIZE + 1, check=False)
    assert refused.returncode == 1
    assert "was made with other options" in refused.stderr
    other = subprocess.run(
        ["bash", str(SCRIPTS.parent / "wmt14_en_fr/train.sh"), "--data", str(prepared), "--output", "x"],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert other.returncode == 1
    assert f"--data {prepared}: holds no data of en-fr; run prepare.sh" in other.stderr


def test_another_copy_of_the_data_is_refused(prepared: Path, data: Path, tmp_path: Path) -> None:
    refused = bash("prepare.sh", "--output", prepared, *PREPARE, data=tmp_path, check=False)
    assert refused.returncode == 1
    assert f" data={data.resolve()}): choose another --output, or remove that folder" in refused.stderr
    assert "ready already" in bash("prepare.sh", "--output", prepared, *PREPARE, data=data / "." / "training/..").stderr


@needs_flock
def test_two_that_prepare_one_folder_take_turns(data: Path, tmp_path: Path) -> None:
    both = command("prepare.sh", "--output", tmp_path / "out", *PREPARE, "--corpora", "europarl")
    said = at_once(both, both, data=data)
    for words in ("waiting for another script that works in", "ready already"):
        assert sorted(words in each for each in said) == [False, True]
    assert sum(each.count("] binarising") for each in said) == 1
    assert not list(tmp_path.rglob("*.part"))


def test_training_continues_with_the_settings_of_the_paper(trained: Path) -> None:
    names = sorted(path.name for path in (trained / "checkpoints").glob("*.pt"))
    assert [name.split("_")[-1] for name in names] == ["4.pt", "6.pt", "best.pt", "last.pt"]
    result = json.loads((trained / "result.json").read_text())
    assert result["time"]["sessions"] == 2
    assert result["labels"] == {"direction": "en-de", "arch": "duo_transformer_tiny", "init": "none", "seed": "1"}
    words = result["command"].split()
    settings = {"--adam-eps": "1e-9", "--lr-scheduler": "inverse_sqrt", "--label-smoothing": "0.1", "--dropout": "0.1"}
    for option, value in {**settings, "--update-freq": "2", "--keep-interval-updates": "2"}.items():
        assert words[words.index(option) + 1] == value
    assert "--share-all-embeddings" in words


def test_the_mean_of_the_last_checkpoints_is_translated_with(trained: Path) -> None:
    paths = [*(trained / "checkpoints").glob("checkpoint_*_4.pt"), *(trained / "checkpoints").glob("checkpoint_*_6.pt")]
    models = [load_checkpoint(path)["model"] for path in paths]
    mean = load_checkpoint(trained / "averaged.2.6.pt")["model"]
    assert mean.keys() == models[0].keys()
    for name, value in mean.items():
        if value.is_floating_point():
            assert (value - (models[0][name] + models[1][name]) / 2).abs().max() < 1e-6
    assert "Generate test with beam=4" in (trained / "test/generate.log").read_text()
    assert "averaged.2.6.pt" in (trained / "test/settings").read_text()


def test_scores_agree_with_sacrebleu(trained: Path, sentences: dict) -> None:
    scores = json.loads((trained / "result.json").read_text())["scores"]
    text = (trained / "test/hypothesis.text").read_text().split("\n")[:-1]
    assert scores["bleu"]["score"] == pytest.approx(BLEU().corpus_score(text, [sentences["test"]["de"]]).score)
    assert {name for name in scores if name.startswith("bleu")} == {
        "bleu",
        "bleu_tokenized",
        "bleu_tokenized_compound_split",
    }
    assert (scores["sentences"], scores["beam"], scores["lenpen"]) == (20, "4", "0.6")


def test_nothing_is_done_twice(trained: Path, prepared: Path) -> None:
    stamps = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.name != "training.json"}
    assert "trained before" in bash("train.sh", "--data", prepared, "--output", trained, *TRAIN).stderr
    again = bash("generate.sh", "--data", prepared, "--run", trained, "--average", 2)
    assert again.stderr.count("there already") == 3
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    few = bash("generate.sh", "--data", prepared, "--run", trained, check=False)
    assert few.returncode == 1
    assert "2 numbered checkpoints" in few.stderr
    assert "give a smaller --" in few.stderr


def test_data_of_another_preparation_are_refused(trained: Path, prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    lines = (tmp_path / "bin/dict.de.txt").read_text().splitlines(keepends=True)
    (tmp_path / "bin/dict.de.txt").write_text("".join([lines[1], lines[0], *lines[2:]]))  # of the same length
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    refused = bash("generate.sh", "--data", tmp_path, "--run", trained, "--average", 2, check=False)
    assert refused.returncode == 1
    assert f"error: --data {tmp_path}: bin/dict.de.txt (" in refused.stderr
    assert f"is not the dictionary that --run {trained} was trained with (" in refused.stderr
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


@needs_flock
def test_two_that_translate_with_one_run_take_turns(trained: Path, prepared: Path) -> None:
    both = ["generate.sh", "--data", prepared, "--run", trained, "--average", 2, "--beam"]
    said = at_once(command(*both, 1), command(*both, 2))
    assert sorted("waiting for another script that works in" in each for each in said) == [False, True]
    settings, scores = trained / "test/settings", json.loads((trained / "test/scores.json").read_text())
    last = settings.read_text().split("\n--beam\n")[1][0]
    assert f"Generate test with beam={last}" in (trained / "test/generate.log").read_text()
    assert (scores["beam"], scores["settings"]) == (last, hashlib.sha256(settings.read_bytes()).hexdigest())
    assert json.loads((trained / "result.json").read_text())["scores"] == scores


def test_scores_of_other_settings_are_made_anew(trained: Path, prepared: Path) -> None:
    path, arguments = (
        trained / "test/scores.json",
        ["generate.sh", "--data", prepared, "--run", trained, "--average", 2],
    )
    bash(*arguments)
    right = path.read_text()
    bash(*arguments, "--beam", 1)
    other = path.read_text()
    assert bash(*arguments).stderr.count("there already") == 1  # the mean of the checkpoints
    path.write_text(other)  # as if two had mixed up their files
    assert bash(*arguments).stderr.count("there already") == 2
    assert path.read_text() == right
    assert json.loads((trained / "result.json").read_text())["scores"] == json.loads(right)
