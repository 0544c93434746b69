"""scripts/wikibooks on a few hundred made-up documents, through bash and the real fairseq commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import VENV

pytest.importorskip("sacremoses")
pytest.importorskip("spacy")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from wikibooks import cleaning, synthetic
from wikibooks.split import PASSAGE_LINES

SCRIPTS = Path(synthetic.__file__).resolve().parent
EVERY = 7
PREPARE = ["--bpe-merges", 150, "--vocabulary", 160, "--frequent-types", 0.5, "--valid-every", EVERY]
MODEL = ["--encoder-layers", "1", "--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8"]
MODEL += ["--encoder-attention-heads", "2"]
TRAIN = ["--batch", "8", "--device-batch", "4", "--tokens", "32", "--lr", "0.01", "--save-every", "2"]

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def command(script: str, *arguments: object) -> list[str]:
    return ["bash", str(SCRIPTS / script), *map(str, arguments)]


ENVIRONMENT = {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1"}


def bash(script: str, *arguments: object, check: bool = True) -> subprocess.CompletedProcess:
    result = subprocess.run(command(script, *arguments), env=ENVIRONMENT, capture_output=True, text=True)
    if check and result.returncode != 0:
        pytest.fail(f"{script} {arguments}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 130 kB with repeated lines, addresses, and one document of several passages."""
    lines, size = [], 0
    for line in synthetic.lines(seed=1):
        lines.append(line)
        size += len(line)
        if size > 130_000:
            break
    lines[:0] = ["See http://www.example.org/a?b=1, or write to joe@example.org.", "Read notes.txt and www.x.org!", ""]
    middle = len(lines) // 2
    lines[middle : middle + 250] = [line or "No blank line here." for line in lines[middle : middle + 250]]
    path = tmp_path_factory.mktemp("a corpus") / "text"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pre pared") / "data"
    bash("prepare.sh", "--input", corpus, "--output", folder, "--jobs", 2, "--shard-mb", 0.03, *PREPARE)
    return folder


def joined(folder: Path, name: str) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob(f"[0-9]*/{name}")))


def test_the_text_is_that_of_a_plain_loop(corpus: Path, prepared: Path) -> None:
    cleaner, seen, passage = cleaning.Cleaner(), set(), 0
    expected = {"train": "", "valid": ""}
    for document in corpus.read_text(encoding="utf-8").strip("\n").split("\n\n"):
        lines, before = document.split("\n"), ""
        for begin in range(0, len(lines), PASSAGE_LINES):
            split = "valid" if passage % EVERY == EVERY - 1 else "train"
            sentences = []
            for line in lines[begin : begin + PASSAGE_LINES]:
                key = " ".join(line.lower().split())
                sentences += [] if key in seen else [" ".join(sentence) for sentence in cleaner(line)]
                seen.add(key)
            text = "\n".join(sentences) + "\n\n"
            # neighbouring passages of one document are one document, unless validation lies between them
            if split == before == "train":
                expected[split] = expected[split][:-1] + text
            elif len(text) > 20:
                expected[split] += text
            before, passage = split, passage + 1
    for split, text in expected.items():
        assert joined(prepared / "work" / "clean", f"{split}.txt") == text
    report = json.loads((prepared / "report.json").read_text())
    lines = [line for line in corpus.read_text(encoding="utf-8").split("\n") if line]
    assert report["clean"]["duplicate_lines"] == len(lines) - len(seen) > 5
    assert report["clean"]["<url>"] >= 2


def test_data_are_what_fairseq_preprocess_makes_of_the_whole_text(prepared: Path, tmp_path: Path) -> None:
    for split in ("train", "valid"):
        text = joined(prepared / "work" / "encoded", f"{split}.txt")
        assert "@@" in text
        assert "<url>" in text or split == "valid"
        (tmp_path / split).write_text(text, encoding="utf-8")
    preprocess = [VENV / "bin" / "fairseq-preprocess", "--only-source", "--trainpref", tmp_path / "train"]

    def run(*options: object) -> None:
        subprocess.run([*map(str, [*preprocess, *options])], check=True, capture_output=True, env=ENVIRONMENT)

    dictionary = prepared / "bin" / "dict.txt"
    run("--validpref", tmp_path / "valid", "--srcdict", dictionary, "--destdir", tmp_path / "bin")
    for name in ("train.bin", "train.idx", "valid.bin", "valid.idx"):
        assert (prepared / "bin" / name).read_bytes() == (tmp_path / "bin" / name).read_bytes()
    run("--dict-only", "--nwordssrc", 160, "--destdir", tmp_path / "own")
    own = [line for line in (tmp_path / "own" / "dict.txt").read_text().splitlines() if line[0] != "<"]
    lines = dictionary.read_text().splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["<file>", "<email>", "<url>"]
    assert lines[3:] == own[: 160 - 7]
    assert len(lines) + 4 == 160


def test_a_killed_preparation_goes_on_and_ends_in_the_same_data(corpus: Path, prepared: Path, tmp_path: Path) -> None:
    output = tmp_path / "data"
    arguments = ["--input", corpus, "--output", output, "--jobs", 2, "--shard-mb", 0.02, *PREPARE]
    for stage in ("clean", "encoded"):
        process = subprocess.Popen(
            command("prepare.sh", *arguments),
            env={**ENVIRONMENT, "VENV": sys.prefix},
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        end = time.monotonic() + 300
        while not list(output.glob(f"work/{stage}/0000[0-9]")) and time.monotonic() < end:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        finished = list(output.glob(f"work/{stage}/0*"))
        assert finished
        assert all((path / "stats.json").read_text().endswith("}\n") for path in finished)
        assert not (output / "bin").exists()
    stamp = (output / "work" / "clean" / finished[0].name / "train.txt").stat().st_mtime_ns
    bash("prepare.sh", *arguments)
    assert (output / "work" / "clean" / finished[0].name / "train.txt").stat().st_mtime_ns == stamp
    # other shards, another order of the processes, two interruptions: the same bytes
    for name in ("dict.txt", "train.bin", "train.idx", "valid.bin", "valid.idx"):
        assert (output / "bin" / name).read_bytes() == (prepared / "bin" / name).read_bytes()


def test_a_finished_preparation_is_not_repeated_and_its_options_are_kept(corpus: Path, prepared: Path) -> None:
    again = ["--input", corpus, "--output", prepared, "--shard-mb", 0.03]
    assert "ready already" in bash("prepare.sh", *again, *PREPARE).stderr
    refused = bash("prepare.sh", *again, *PREPARE[:-1], 8, check=False)
    assert refused.returncode != 0
    assert "choose another --output" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "x"], "--input and --output are needed"),
        (["--input", "/nowhere/text", "--output", "x"], "/nowhere/text: no such file"),
        (["--duplicates", "words"], "lines documents none"),
        (["--frequent-types", "0"], "above 0"),
        (["--input", str(SCRIPTS / "prepare.sh"), "--output", "x", "--frequent-types", "21"], "at most 1"),
        (["--valid-every", "1"], "from 2"),
        (["--jobs", "0"], "from 1"),
        (["--colour", "1"], "--colour: no such option"),
        (["--bpe-merges"], "needs a value"),
    ],
)
def test_wrong_options_of_prepare(arguments: list[str], message: str) -> None:
    result = bash("prepare.sh", *arguments, check=False)
    assert result.returncode != 0
    assert message in result.stderr


def test_training_continues_keeps_checkpoints_and_is_not_repeated(prepared: Path, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    arguments = ["--data", prepared, "--output", run, "--arch", "roberta_base", "--updates", 24, *TRAIN, "--", *MODEL]
    bash("train.sh", *arguments, "--max-update", "11")  # as if it had been stopped there
    bash("train.sh", *arguments)
    names = sorted(path.name for path in (run / "checkpoints").glob("*.pt"))
    assert names == ["checkpoint_1_20.pt", "checkpoint_1_24.pt", "checkpoint_best.pt", "checkpoint_last.pt"]
    result = json.loads((run / "result.json").read_text())
    assert result["labels"]["model"] == "roberta_base"
    assert result["time"]["sessions"] == 2
    words = result["command"].split()
    for option, value in {"--adam-eps": "1e-6", "--update-freq": "2", "--warmup-updates": "0"}.items():
        assert words[words.index(option) + 1] == value
    log = (run / "train.log").read_text()
    bash("train.sh", *arguments)
    assert (run / "train.log").read_text() == log
    refused = bash("train.sh", *arguments[:4], "--seed", 2, *arguments[4:], check=False)
    assert refused.returncode != 0
    assert "other options" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "roberta_base"], "--data, --output and --arch"),
        (["--data", "/nowhere", "--output", "x", "--arch", "roberta_base"], "run prepare.sh"),
        (["--precision", "fp8"], "fp16 bf16 fp32"),
        (["--updates", "many"], "whole number"),
    ],
)
def test_wrong_options_of_train(arguments: list[str], message: str) -> None:
    result = bash("train.sh", *arguments, check=False)
    assert result.returncode != 0
    assert message in result.stderr


def test_batches_must_fit_the_devices(prepared: Path, tmp_path: Path) -> None:
    arguments = ["--data", prepared, "--output", tmp_path / "run", "--arch", "roberta_base", "--batch", 10]
    result = bash("train.sh", *arguments, "--device-batch", 4, check=False)
    assert result.returncode != 0
    assert "--batch 10: must be a multiple of --device-batch 4" in result.stderr
    result = bash("train.sh", *arguments, "--devices", 3, check=False)  # a share is less than the default of 16
    assert (
        "--batch 10: must be a multiple of --device-batch 3 times the number of devices (together 9)" in result.stderr
    )


def test_the_folder_inside_the_data_folder_is_recognised(prepared: Path, tmp_path: Path) -> None:
    arguments = ["--data", prepared / "bin", "--output", tmp_path / "run", "--arch", "roberta_base"]
    result = bash("train.sh", *arguments, check=False)
    assert result.returncode != 0
    assert f"this is the folder bin itself; give the one around it, {prepared}" in result.stderr


def others_are_refused(grid: list, settings: Path) -> None:
    """At once, naming what the folder was made with; of a folder without this file every run says it."""
    runs = settings.parent
    for changed in ([*grid, "--updates", 6, "--", *TRAIN], [*grid, "--", *TRAIN, "--lr", "0.02"]):
        refused = bash("run.sh", *changed, check=False)
        assert refused.returncode != 0
        assert f"{runs} was made with other options (data=" in refused.stderr
        assert "updates=4 options=--batch 8 --device-batch 4 --tokens 32 --lr 0.01): choose another" in refused.stderr
        assert "FAILED" not in refused.stderr
    kept = settings.read_text()
    settings.unlink()
    refused = bash("run.sh", *grid, "--updates", 6, "--", *TRAIN, check=False)
    assert "FAILED: 1.wide" in refused.stderr
    assert not settings.exists()
    settings.write_text(kept)


def test_grid_makes_a_table_and_curves(prepared: Path, tmp_path: Path) -> None:
    options = " ".join(MODEL)
    models = [f"wide=roberta_base {options} --encoder-ffn-embed-dim 16", f"narrow=roberta_base {options}"]
    grid = ["--data", prepared, "--output", tmp_path, "--models", *models, "--seeds", 1, "--updates", 4, "--jobs", 2]
    settings = tmp_path / "runs" / "settings"
    settings.parent.mkdir()
    settings.write_text("updates=5\n")  # of a grid that failed before it saved anything
    bash("run.sh", *grid, "--", *TRAIN)
    rows = [line.split("|") for line in (tmp_path / "results.md").read_text().splitlines() if line.startswith("|")]
    assert [row[1].strip() for row in rows] == ["model", "---", "narrow", "wide"]
    parameters = [int(row[2].replace(",", "")) for row in rows[2:]]
    assert parameters[1] - parameters[0] == 8 * (8 + 8 + 1)  # eight more inner units: two matrices and a bias
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "results.json").read_text())
    assert set(record["wide"]["losses"]["wide.seed1"]) == {"2", "4"}
    others_are_refused(grid, settings)
    twice = bash("run.sh", *grid[:4], "--models", "a=b", "a=c", check=False)
    assert twice.returncode != 0
    assert "occurs twice" in twice.stderr
