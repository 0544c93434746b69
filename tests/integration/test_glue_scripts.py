"""scripts/glue on a few made-up examples and a tiny model that was pre-trained for a few updates."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from programs import PYTHON, VENV

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "glue"
WORDS = [f"w{index}" for index in range(20)]
SMALL = "--encoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-attention-heads 2".split()

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def bash(script: str, *arguments: object, check: bool = True, **environment: object) -> subprocess.CompletedProcess:
    variables = {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1", "DATA": ""}
    variables.update((name, str(value)) for name, value in environment.items())
    command = ["bash", SCRIPTS / script, *map(str, arguments)]
    result = subprocess.run(command, env=variables, capture_output=True, text=True)
    if check and result.returncode != 0:
        pytest.fail(f"{script} {arguments}: exit code {result.returncode}\n{result.stdout}\n{result.stderr[-3000:]}")
    return result


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's folders CoLA, STS-B and MNLI with 40 examples to train on and 14 in each development set."""
    folder, generator = tmp_path_factory.mktemp("a copy of glue"), np.random.default_rng(0)
    headings = {
        "CoLA": "",
        "STS-B": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n",
        "MNLI": "index\tsentence1\tsentence2\tgold_label\n",
    }
    files = {"CoLA": ["train", "dev"], "STS-B": ["train", "dev"], "MNLI": ["train", "dev_matched", "dev_mismatched"]}
    for task, heading in headings.items():
        (folder / task).mkdir()
        for file in files[task]:
            text = heading
            for index in range(40 if file == "train" else 14):
                a, b = (" ".join(WORDS[at] for at in generator.integers(20, size=5)) for _ in range(2))
                label = int(generator.integers(2))
                text += {
                    "CoLA": f"made\t{label}\t{'' if label else '*'}\t{a}\n",
                    "STS-B": f"{index}\t" + "none\t" * 6 + f"{a}\t{b}\t{generator.integers(26) / 5}\n",
                    "MNLI": f"{index}\t{a}\t{b}\t{['contradiction', 'neutral', 'entailment'][index % 3]}\n",
                }[task]
            (folder / task / f"{file}.tsv").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with dict.txt and a RoBERTa of two updates, checkpoint_last.pt."""
    folder, generator = tmp_path_factory.mktemp("pre trained"), np.random.default_rng(1)
    text = "".join(" ".join(WORDS[at] for at in generator.integers(20, size=8)) + "\n" for _ in range(60))
    (folder / "text").write_text(text)
    data = folder / "data"
    preprocess = ["--only-source", "--trainpref", folder / "text", "--validpref", folder / "text", "--destdir", data]
    train = [data, "--task", "masked_lm", "--criterion", "masked_lm", "--arch", "roberta", *SMALL, "--max-update", "2"]
    train += ["--tokens-per-sample", "24", "--batch-size", "8", "--optimizer", "adam", "--lr", "1e-3", "--cpu"]
    train += ["--pooler-dropout", "0.2", "--no-epoch-checkpoints", "--save-dir", folder, "--num-workers", "0"]
    for command in (["preprocess", *preprocess], ["train", *train]):
        words = [PYTHON, "-m", f"fairseq_cli.{command[0]}", *map(str, command[1:])]
        subprocess.run(words, check=True, capture_output=True)
    (folder / "dict.txt").write_bytes((data / "dict.txt").read_bytes())
    return folder


def test_a_grid_makes_a_table_and_goes_on(glue: Path, pretrained: Path, tmp_path: Path) -> None:
    """MNLI with a pre-trained and a random model; then another task, without another run of what is there."""
    checkpoint, output, two_tasks = pretrained / "checkpoint_last.pt", tmp_path / "out put", tmp_path / "two tasks"
    two_tasks.mkdir()
    for task in ("STS-B", "MNLI"):
        (two_tasks / task).symlink_to(glue / task)
    common = ["--output", output, "--dict", pretrained / "dict.txt", "--rates", "1e-3", "--seeds", "1"]
    common += ["--epochs", "1", "--jobs", "2"]
    models = [f"roberta={checkpoint}", f"random=scratch:{checkpoint}"]
    bash("run.sh", *common, "--tasks", "MNLI", "--checkpoints", *models, DATA=glue)
    first = {path: path.stat().st_mtime_ns for path in (output / "runs").rglob("result.json")}
    assert sorted(path.parent.name for path in first) == ["MNLI.random.1e-3.1", "MNLI.roberta.1e-3.1"]
    result = json.loads((output / "runs/MNLI.roberta.1e-3.1/result.json").read_text())
    command = shlex.split(result["command"])
    assert command[command.index("--finetune-from-model") + 1] == str(checkpoint)
    assert {"--pooler-dropout=0.2", "--max-positions=24"} <= set(command)
    assert result["labels"]["updates"] == "2"
    assert "valid_accuracy" in result["epochs"]["1"]
    random = json.loads((output / "runs/MNLI.random.1e-3.1/result.json").read_text())
    assert random["labels"]["updates"] == "0"
    assert "--finetune-from-model" not in random["command"]
    assert not list(output.rglob("*.pt"))

    bash("run.sh", *common, "--checkpoints", models[0], DATA=two_tasks)
    assert {path: path.stat().st_mtime_ns for path in first} == first
    lines = (output / "results.md").read_text().splitlines()
    rows = {row[1]: row[2:-1] for row in ([cell.strip() for cell in line.split("|")] for line in lines[:5])}
    assert rows["model"] == ["STS-B (Pearson / Spearman)", "MNLI (accuracy / mismatched)", "mean"]
    assert all(cell.endswith("(1e-3)") for cell in rows["roberta"][:2])
    assert rows["random"][0] == rows["random"][2] == "-"
    scores = json.loads((output / "results.json").read_text())
    assert {"pearson", "spearman"} <= set(scores["STS-B"]["roberta"]["rates"]["1e-3"]["median"])
    mnli = scores["MNLI"]["roberta"]["rates"]["1e-3"]["median"]
    assert {"accuracy", "mismatched"} <= set(mnli)
    valid1 = (output / "runs/MNLI.roberta.1e-3.1/train.log").read_text().split("| valid1 | ")[1].splitlines()[0]
    assert mnli["mismatched"] == float(json.loads(valid1)["valid1_accuracy"])


@pytest.fixture(scope="module")
def prepared(glue: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pre pared") / "CoLA"
    bash("prepare.sh", "--task", "CoLA", "--dict", pretrained / "dict.txt", "--output", folder, DATA=glue)
    return folder


def test_a_killed_run_goes_on_and_other_options_are_refused(prepared: Path, pretrained: Path, tmp_path: Path) -> None:
    run, epochs = tmp_path / "a run", 40
    options = ["--data", prepared, "--output", run, "--checkpoint", pretrained / "checkpoint_last.pt"]
    options += ["--epochs", epochs, "--batch", 20]
    command = ["bash", str(SCRIPTS / "train.sh"), *map(str, options)]
    environment = {**os.environ, "VENV": sys.prefix, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (run / "checkpoints" / "checkpoint_last.pt").is_file():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (run / "result.json").exists()

    other = bash("train.sh", *options, "--lr", "1e-4", check=False)
    assert other.returncode != 0
    assert "made with other options" in other.stderr
    bash("train.sh", *options)
    log = (run / "train.log").read_text()
    assert re.search(r"Loaded checkpoint .*/a run/checkpoints/checkpoint_last.pt .epoch \d+ @ [1-9]", log)
    assert log.count(f"learning rate: {2 * epochs} updates, 4 of them warm-up") == 2
    result = json.loads((run / "result.json").read_text())
    assert result["time"]["sessions"] == 2
    assert set(result["epochs"]) == {str(epoch) for epoch in range(1, epochs + 1)}
    assert not (run / "checkpoints").exists()
    assert "finished before" in bash("train.sh", *options).stderr


def test_a_foreign_dictionary_is_refused(glue: Path, pretrained: Path, tmp_path: Path) -> None:
    """Without --dict one is made of the task's own text."""
    bash("prepare.sh", "--task", "CoLA", "--min-count", "100", "--output", tmp_path / "data", DATA=glue)
    options = ["--data", tmp_path / "data", "--output", tmp_path / "run"]
    result = bash("train.sh", *options, "--checkpoint", pretrained / "checkpoint_last.pt", check=False)
    assert result.returncode != 0
    assert "prepare the data with the dict.txt and the codes of its pre-training" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("train.sh: error: ")
    assert result.stderr.count("error:") == 1
    assert not (tmp_path / "run").exists()


def test_bad_arguments_are_named(glue: Path, tmp_path: Path) -> None:
    out = ["--output", tmp_path / "out"]
    cases = [
        ("prepare.sh", ["--task", "CoLA", *out], {}, "DATA is not set"),
        ("prepare.sh", ["--task", "WNLI", *out], {"DATA": glue}, "--task WNLI: not known; choose one of: CoLA SST-2"),
        ("prepare.sh", ["--task", "RTE", *out], {"DATA": glue}, "has no folder RTE"),
        ("prepare.sh", ["--task", "CoLA", "--dict", "/nowhere", *out], {"DATA": glue}, "--dict /nowhere: no such file"),
        ("train.sh", ["--data", tmp_path, *out], {}, "--checkpoint FILE is needed"),
        ("train.sh", ["--data", tmp_path, "--arch", "roberta", *out], {}, "not prepared; run prepare.sh"),
        ("run.sh", ["--checkpoints", "a=/nowhere", *out], {"DATA": glue}, "--checkpoints a=/nowhere: no such file"),
        ("run.sh", ["--checkpoints", "/nowhere", *out], {"DATA": glue}, "NAME=FILE is needed"),
    ]
    for script, arguments, environment, message in cases:
        result = bash(script, *arguments, check=False, **environment)
        assert result.returncode != 0
        assert message in result.stderr, result.stderr
    assert not (tmp_path / "out").exists()
