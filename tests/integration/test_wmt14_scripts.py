"""scripts/wmt14 from the first to the last step, on made-up sentences laid out like WMT's files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from programs import VENV
from recipes import SCRIPTS, TRAINS, environment, lines, refused, sentence_pairs, stamps, succeed

pytest.importorskip("sacremoses")
pytest.importorskip("subword_nmt")

from fairseq.data import data_utils
from sacrebleu.metrics import BLEU
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from embinit_fairseq.vocab.preparation_options import written
from embinit_fairseq.vocab.preparation_record import read_preparation

pytestmark = TRAINS
PREPARE, TRAIN, GENERATE = (f"wmt14/{name}.sh" for name in ("prepare", "train", "generate"))
LANGS = ("en", "de")
EVERY, SIZE, RATIO = 10, 60, 1.2
HOW = {"BPE_SIZE": SIZE, "VALID_EVERY": EVERY, "MAX_RATIO": RATIO, "SHARD_PAIRS": 40, "JOBS": 1}
SHORT = {"UPDATES": 4, "SAVE_EVERY": 2, "MAX_TOKENS": 400, "UPDATE_TOKENS": 800, "KEEP": 2}
MODEL = "--arch duo_transformer_tiny --lr 0.01 --warmup-updates 2 --encoder-layers 1 --decoder-layers 1".split()
MODEL += "--encoder-embed-dim 8 --encoder-ffn-embed-dim 8".split()


@pytest.fixture(scope="module")
def sentences() -> dict[str, dict[str, list[str]]]:
    """Split -> language -> sentences."""
    pairs = sentence_pairs()
    pairs[100] = (pairs[100][0], "")  # to be left out
    pairs[-1] = ("AT&amp;T malt.", "AT&amp;T paints.")  # stays in the raw test set
    return {
        split: {lang: [pair[lang == "en"] for pair in part] for lang in LANGS}
        for split, part in {"train": pairs[:236], "test": pairs[236:]}.items()
    }


@pytest.fixture(scope="module")
def data(sentences: dict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with WMT's files: plain, compressed, and in an archive."""
    folder = tmp_path_factory.mktemp("wmt's files")
    for name in ("training", "test-full"):
        (folder / name).mkdir()
    with tarfile.open(folder / "training-parallel-commoncrawl.tgz", "w:gz") as tar:
        for lang, side in (("en", "src"), ("de", "ref")):
            train = [f"{line}\n".encode() for line in sentences["train"][lang]]
            (folder / f"training/europarl-v7.de-en.{lang}").write_bytes(b"".join(train[:110]))
            (folder / f"news-commentary-v9.de-en.{lang}.gz").write_bytes(gzip.compress(b"".join(train[180:])))
            info = tarfile.TarInfo(f"commoncrawl.de-en.{lang}")
            info.size = sum(map(len, train[110:180]))
            tar.addfile(info, io.BytesIO(b"".join(train[110:180])))
            test = "".join(f'<seg id="{n}">{line}</seg>\n' for n, line in enumerate(sentences["test"][lang]))
            (folder / f"test-full/newstest2014-deen-{side}.{lang}.sgm").write_text(f"<doc>\n{test}</doc>\n")
    return folder


@pytest.fixture(scope="module")
def prepared(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pre pared") / "data"
    succeed(PREPARE, DATA=data, OUTPUT=folder, **HOW)
    return folder


@pytest.fixture(scope="module")
def parts(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same by datatrove, in parts."""
    pytest.importorskip("datatrove")
    folder = tmp_path_factory.mktemp("parts") / "data"
    succeed(PREPARE, DATA=data, OUTPUT=folder, PART_GB=0.000003, EXECUTOR="local", RANKS=2, **HOW)
    return folder


@pytest.fixture(scope="module")
def trained(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on parts, translated and scored."""
    run = tmp_path_factory.mktemp("runs") / "a run"
    succeed(TRAIN, *MODEL, DATA=parts, RUN=run, **SHORT)
    succeed(GENERATE, "--max-len-b", 10, DATA=parts, RUN=run, AVERAGE=2)
    return run


def sentences_of(prefix: Path) -> list[list[int]]:
    dataset = data_utils.load_indexed_dataset(str(prefix), None, "mmap")
    return [dataset[number].tolist() for number in range(len(dataset))]


def test_the_text_is_that_of_a_plain_loop(prepared: Path, sentences: dict) -> None:
    tokens, numbers = {}, range(1, len(sentences["train"]["en"]) + 1)
    for lang, text in sentences["train"].items():
        normalise, words = MosesPunctNormalizer(lang=lang).normalize, MosesTokenizer(lang=lang).tokenize
        tokens[lang] = [" ".join(words(normalise(line), aggressive_dash_splits=True, escape=False)) for line in text]
    joined, codes = [tokens[lang][n - 1] for lang in LANGS for n in numbers if n % EVERY], io.StringIO()
    learn_bpe(io.StringIO("\n".join(joined) + "\n"), codes, SIZE)
    assert (prepared / "bpe.codes").read_text() == codes.getvalue()

    bpe, left_out = BPE(io.StringIO(codes.getvalue())), 0
    expected: dict[str, list[str]] = {f"{split}.{lang}": [] for split in ("train", "valid") for lang in LANGS}
    for number in numbers:
        pair = [bpe.process_line(tokens[lang][number - 1]) for lang in LANGS]
        short, long = sorted(len(side.split()) for side in pair)
        if short == 0 or long / short > RATIO:
            left_out += 1
            continue
        for lang, side in zip(LANGS, pair):
            expected[f"{'train' if number % EVERY else 'valid'}.{lang}"].append(side)
    encoded = {name: [] for name in expected}
    for shard in sorted((prepared / "work/encoded").iterdir()):
        for name, side in encoded.items():
            side += lines(shard / name)
    assert encoded == expected
    report = json.loads((prepared / "report.json").read_text())
    assert sum(n for key, n in report["encoded"].items() if key.endswith(("ratio", "empty"))) == left_out > 10
    assert report["encoded"]["train_empty"] == 1
    assert report["corpora"] == {"europarl": 110, "commoncrawl": 70, "news-v9": 56}
    recorded = read_preparation(prepared / "bin" / "dict.de.txt")
    assert written(recorded.steps) == "normalised,moses:no-escape:dashes,bpe"
    assert recorded.lines["tried"] == recorded.lines["equal"] > 0
    for lang in LANGS:
        assert lines(prepared / f"test.{lang}") == sentences["test"][lang]
        pieces = lines(prepared / f"work/test/test.{lang}")
        assert (len(pieces), pieces[-1].startswith("A@@ T & T ")) == (20, True)
    assert (prepared / "bin/dict.en.txt").read_bytes() == (prepared / "bin/dict.de.txt").read_bytes()


def test_data_are_what_fairseq_preprocess_makes_of_the_whole_text(prepared: Path, tmp_path: Path) -> None:
    for name in [f"{split}.{lang}" for split in ("train", "valid") for lang in LANGS]:
        shards = sorted((prepared / "work/encoded").iterdir())
        (tmp_path / name).write_text("".join((shard / name).read_text() for shard in shards))
    command = [VENV / "bin" / "fairseq-preprocess", "--source-lang", "en", "--target-lang", "de", "--joined-dictionary"]
    command += ["--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid"]
    command += ["--testpref", prepared / "work/test/test", "--destdir", tmp_path / "bin"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, env=environment())
    (tmp_path / "bin/preprocess.log").unlink()
    for path in (tmp_path / "bin").iterdir():
        assert (prepared / "bin" / path.name).read_bytes() == path.read_bytes(), path.name


def test_parts_made_by_datatrove_hold_the_same_pairs(prepared: Path, parts: Path) -> None:
    folders = sorted(parts.glob("bin.*"))
    assert [folder.name for folder in folders] == ["bin.00", "bin.01", "bin.02"]
    assert json.loads((parts / "report.json").read_text())["parts"] == 3
    for lang in LANGS:
        whole = sentences_of(prepared / "bin" / f"train.en-de.{lang}")
        assert [pair for folder in folders for pair in sentences_of(folder / f"train.en-de.{lang}")] == whole
        for name in (f"dict.{lang}.txt", f"valid.en-de.{lang}.bin", f"test.en-de.{lang}.bin"):
            assert (folders[0] / name).read_bytes() == (prepared / "bin" / name).read_bytes()


def test_what_is_done_is_kept_and_other_settings_are_refused(prepared: Path, data: Path, tmp_path: Path) -> None:
    folder, again = tmp_path / "data", {**HOW, "DATA": data}
    shutil.copytree(prepared, folder)
    assert "ready before" in succeed(PREPARE, OUTPUT=folder, **again)
    (folder / "report.json").unlink()
    shutil.rmtree(folder / "bin")
    shutil.rmtree(folder / "work/clean/00002")  # as if it had been stopped there, and in the last step
    before = stamps(path for path in folder.rglob("*") if path.name != "settings")
    succeed(PREPARE, OUTPUT=folder, **again)
    assert stamps(before) == before
    for name in ("bin/train.en-de.de.bin", "report.json", "work/clean/00002/train.en"):
        assert (folder / name).read_bytes() == (prepared / name).read_bytes()
    assert "name another folder" in refused(PREPARE, OUTPUT=folder, **{**again, "BPE_SIZE": SIZE + 1})


def test_a_training_with_the_settings_of_the_paper_and_its_scores(trained: Path, sentences: dict) -> None:
    result = json.loads((trained / "result.json").read_text())
    assert result["labels"] == {"direction": "en-de", "arch": "duo_transformer_tiny", "init": "none", "seed": "1"}
    options = "--adam-eps 1e-9, --lr-scheduler inverse_sqrt, --label-smoothing 0.1, --dropout 0.1, --update-freq 2"
    for option in [*options.split(", "), "--keep-interval-updates 2", "--share-all-embeddings"]:
        assert f"{option} " in result["command"]
    scores, text = result["scores"], lines(trained / "test.hypothesis.text")
    assert scores["bleu"]["score"] == pytest.approx(BLEU().corpus_score(text, [sentences["test"]["de"]]).score)
    assert {"bleu", "chrf", "bleu_tokenized", "bleu_tokenized_compound_split"} <= set(scores)
    assert (scores["sentences"], scores["beam"]) == (20, 4)
    assert "bin.00:" in result["command"]
    assert all(any(f"bin.0{part}" in path for path in result["data"]) for part in range(3))
    assert json.loads((trained / "test.scores.json").read_text()) == scores
    saved = {path.stem.rpartition("_")[2] for path in (trained / "checkpoints").glob("checkpoint_*_?.pt")}
    assert saved == {"2", "4"}  # averaged.2.pt is the mean of both
    assert "averaged.2.pt" in (trained / "test.generate.log").read_text()


def test_mistakes_are_named(trained: Path, prepared: Path, parts: Path, tmp_path: Path) -> None:
    shutil.copytree(parts, tmp_path / "parts", ignore=shutil.ignore_patterns("work"))
    (tmp_path / "parts/bin.01/dict.de.txt").write_text("other 1\n")
    incomplete = {"DATA": tmp_path / "parts", "RUN": tmp_path / "run"}
    assert "bin.01: missing, or made with another dictionary" in refused(TRAIN, **incomplete)
    shutil.rmtree(tmp_path / "parts/bin.02")
    shutil.copytree(parts / "bin.01", tmp_path / "parts/bin.01", dirs_exist_ok=True)
    assert "bin.02: missing" in refused(TRAIN, **incomplete)
    uneven = refused(TRAIN, DATA=prepared, RUN=tmp_path / "run", MAX_TOKENS=500)
    assert "UPDATE_TOKENS=32768: set it to a multiple of MAX_TOKENS" in uneven
    shutil.copytree(prepared / "bin", tmp_path / "bin")
    words = lines(tmp_path / "bin/dict.de.txt")
    for lang in LANGS:  # as long as the right ones
        (tmp_path / f"bin/dict.{lang}.txt").write_text("\n".join([words[1], words[0], *words[2:], ""]))
    shutil.copy(prepared / "test.de", tmp_path)
    assert "test.generate.log" in refused(GENERATE, "--max-len-b", 1, DATA=tmp_path, RUN=trained, AVERAGE=0)
    assert "of another dict.en.txt" in (trained / "test.generate.log").read_text()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not there")
def test_a_download_is_continued_and_is_right_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    from wmt14.collect import download
    from wmt14.corpora import Archive

    content, path = bytes(range(256)) * 9000, tmp_path / "new" / "archive.tgz"
    (tmp_path / "there").write_bytes(content)
    url, digest = f"file://{tmp_path}/there", hashlib.sha256(content).hexdigest()
    with pytest.raises(SystemExit, match=r"cannot download .*/missing: .* set DATA"):
        download(Archive(f"file://{tmp_path}/missing", len(content), digest), path)
    with pytest.raises(SystemExit, match=rf"SHA-256 {digest} instead of 0000: .* set DATA"):
        download(Archive(url, len(content), "0000"), path)
    assert not list(path.parent.iterdir())
    part = path.with_name("archive.tgz.part")
    part.write_bytes(content[:1_500_000])
    for _ in range(2):  # the second call finds the file
        download(Archive(url, len(content), digest), path)
        assert path.read_bytes() == content
        assert not part.exists()
