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
PREPARE = {
    "BPE_MERGES": 150,
    "VOCABULARY": 160,
    "FREQUENT_TYPES": 0.5,
    "VALID_EVERY": EVERY,
    "SHARD_MB": 0.03,
    "JOBS": 2,
}
TRAIN = {
    "MODELS": "tupe_r",
    "SIZE": "tiny",
    "UPDATES": 4,
    "SAVE_EVERY": 2,
    "BATCH": 8,
    "DEVICE_BATCH": 4,
    "JOBS": 2,
}
MODEL = "--tokens-per-sample 32 --lr 0.01 --encoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8"

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def environment(venv: Path = VENV, **variables: object) -> dict[str, str]:
    return {**os.environ, "VENV": str(venv), "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in variables.items()}}


def bash(script: str, *arguments: object, **variables: object) -> subprocess.CompletedProcess:
    command = ["bash", str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, env=environment(**variables), capture_output=True, text=True)


def succeed(script: str, *arguments: object, **variables: object) -> str:
    done = bash(script, *arguments, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 100 kB with repeated lines, addresses, and one document of several passages."""
    lines, size = [], 0
    for line in synthetic.lines(seed=1):
        lines.append(line)
        size += len(line)
        if size > 100_000:
            break
    lines[:0] = ["See http://www.example.org/a?b=1, or write to joe@example.org.", "Read notes.txt and www.x.org!", ""]
    middle = len(lines) // 2
    lines[middle : middle + 250] = [line or "No blank line here." for line in lines[middle : middle + 250]]
    path = tmp_path_factory.mktemp("a corpus") / "text"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared with one interruption, by kill -9."""
    folder = tmp_path_factory.mktemp("pre pared") / "data"
    process = subprocess.Popen(
        ["bash", str(SCRIPTS / "prepare.sh"), str(corpus)],
        env=environment(Path(sys.prefix), OUTPUT=folder, **PREPARE),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + 300
    while not list(folder.glob("work/clean/0000[0-9]")) and time.monotonic() < end:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = list(folder.glob("work/clean/0*"))
    assert finished
    assert all((path / "stats.json").read_text().endswith("}\n") for path in finished)
    stamp = (finished[0] / "train.txt").stat().st_mtime_ns
    succeed("prepare.sh", corpus, OUTPUT=folder, **{**PREPARE, "JOBS": 1})
    assert (finished[0] / "train.txt").stat().st_mtime_ns == stamp
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
    assert len(list((prepared / "work" / "encoded").glob("0*"))) > 1  # shards
    for split in ("train", "valid"):
        (tmp_path / split).write_text(joined(prepared / "work" / "encoded", f"{split}.txt"), encoding="utf-8")
    dictionary = prepared / "bin" / "dict.txt"
    command = [VENV / "bin" / "fairseq-preprocess", "--only-source", "--srcdict", dictionary]
    command += ["--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid", "--destdir", tmp_path / "bin"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, env=environment())
    for name in ("train.bin", "train.idx", "valid.bin", "valid.idx"):
        assert (prepared / "bin" / name).read_bytes() == (tmp_path / "bin" / name).read_bytes()
    lines = dictionary.read_text().splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["<file>", "<email>", "<url>"]
    assert len(lines) + 4 == 160


def test_a_finished_preparation_is_not_repeated_and_its_options_are_kept(corpus: Path, prepared: Path) -> None:
    assert "ready before" in succeed("prepare.sh", corpus, OUTPUT=prepared, **PREPARE)
    refused = bash("prepare.sh", corpus, OUTPUT=prepared, **{**PREPARE, "VALID_EVERY": 8})
    assert refused.returncode == 2
    assert "valid_every=7" in refused.stderr
    assert "name another folder" in refused.stderr


def test_the_grid_ends_in_a_table_and_is_not_repeated(prepared: Path, tmp_path: Path) -> None:
    grid = {"DATA": prepared, "OUTPUT": tmp_path / "a grid", **TRAIN}
    succeed("run.sh", *MODEL.split(), "--encoder-attention-heads", 2, **grid)
    text = (tmp_path / "a grid" / "results.md").read_text()
    assert sum(line.startswith("|") for line in text.splitlines()) == 3  # title, rule, one row
    assert "* model: `tupe_r`" in text
    assert (tmp_path / "a grid" / "curves.png").read_bytes().startswith(b"\x89PNG")
    run = tmp_path / "a grid" / "runs" / "tupe_r.seed1"
    result = json.loads((run / "result.json").read_text())
    words = result["command"].split()
    assert (result["labels"]["model"], result["labels"]["arch"]) == ("tupe_r", "tupe_tiny")
    assert {"--rel-pos", "--embedding-normalize"} <= set(words)
    for option, value in {"--adam-eps": "1e-6", "--update-freq": "2", "--max-update": "4"}.items():
        assert words[words.index(option) + 1] == value
    log = (run / "train.log").read_bytes()
    assert "done before" in succeed("run.sh", *MODEL.split(), "--encoder-attention-heads", 2, **grid)
    assert (run / "train.log").read_bytes() == log


@pytest.mark.parametrize(
    ("script", "variables", "arguments", "messages"),
    [
        ("prepare.sh", {"OUTPUT": "x"}, [], ["no text"]),
        ("prepare.sh", {"OUTPUT": "x"}, ["/nowhere/text"], ["/nowhere/text: no such file"]),
        ("prepare.sh", {"OUTPUT": "x", "FREQUENT_TYPES": 21}, ["-"], ["FREQUENT_TYPES=21", "at most 1"]),
        ("prepare.sh", {"OUTPUT": "x", "VOCABULARY": "many"}, ["-"], ["VOCABULARY=many", "whole number"]),
        ("train.sh", {"RUN": "x", "DATA": "/nowhere"}, [], ["DATA=/nowhere", "OUTPUT of prepare.sh"]),
        ("train.sh", {"RUN": "x", "BATCH": 10, "DEVICE_BATCH": 4}, [], ["BATCH=10", "multiple of DEVICE_BATCH"]),
        ("train.sh", {"RUN": "x", "UPDATES": "1e6"}, [], ["UPDATES=1e6", "whole number"]),
        ("train.sh", {"RUN": "x", "WORKER": 1}, [], ["LAUNCH"]),
        ("run.sh", {"OUTPUT": "x", "MODELS": "gpt"}, [], ["MODELS: gpt", "tupe_r"]),
    ],
)
def test_mistakes_are_named(script, variables, arguments, messages, prepared: Path, tmp_path: Path) -> None:
    done = bash(script, *arguments, **{"DATA": prepared, **variables})
    assert done.returncode != 0
    assert all(message in done.stderr for message in messages), done.stderr


def test_a_killed_process_of_a_step_is_reported() -> None:
    program = "import os, signal\nfrom wikibooks.pool import run_tasks\n"
    program += "if __name__ == '__main__':\n    run_tasks('tasks', os.getpgid, [(1, (0,))], 1)\n"
    program += "    run_tasks('tasks', os.abort, [(1, ()), (1, ())], 2)\n"
    paths = os.pathsep.join(map(str, [SCRIPTS.parent, SCRIPTS.parents[1]]))
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(PYTHONPATH=paths), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "fewer --jobs" in done.stderr
