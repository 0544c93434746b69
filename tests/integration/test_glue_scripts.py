"""scripts/glue on a few made-up examples and a tiny model that was pre-trained for two updates."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from programs import PYTHON, VENV

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "glue"
WORDS = [f"w{index}" for index in range(20)]
SMALL = "--encoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-attention-heads 2".split()

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def bash(script: str, *arguments: object, check: bool = True, **environment: object) -> subprocess.CompletedProcess:
    variables = {**os.environ, "VENV": str(VENV), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    variables.update((name, str(value)) for name, value in environment.items())
    command = ["bash", SCRIPTS / script, *map(str, arguments)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's folders STS-B and MNLI with 40 examples to train on and 14 in each development set."""
    folder, generator = tmp_path_factory.mktemp("a copy of glue"), np.random.default_rng(0)
    columns = {"STS-B": "sentence1\tsentence2\tscore\n", "MNLI": "sentence1\tsentence2\tgold_label\n"}
    files = {"STS-B": ["train", "dev"], "MNLI": ["train", "dev_matched", "dev_mismatched"]}
    for task, file in ((task, file) for task, each in files.items() for file in each):
        (folder / task).mkdir(exist_ok=True)
        with (folder / task / f"{file}.tsv").open("w") as text:
            text.write(columns[task])
            for index in range(40 if file == "train" else 14):
                pair = "\t".join(" ".join(WORDS[at] for at in generator.integers(20, size=5)) for _ in range(2))
                label = {"STS-B": index % 26 / 5, "MNLI": ["contradiction", "neutral", "entailment"][index % 3]}[task]
                text.write(f"{pair}\t{label}\n")
    return folder


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/dict.txt and a RoBERTa of two updates, checkpoint_last.pt."""
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
    return folder


@pytest.fixture(scope="module")
def grid(glue: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """The folder of a finished grid, MNLI with the pre-trained model, and the variables of its call."""
    output = tmp_path_factory.mktemp("a grid") / "out put"
    variables = {"DATA": glue, "OUTPUT": output, "DICT": pretrained / "data/dict.txt", "JOBS": 1}
    variables |= {"TASKS": "MNLI", "RATES": "1e-3", "SEEDS": "1"}
    bash("run.sh", f"roberta={pretrained / 'checkpoint_last.pt'}", "--max-epoch", 1, **variables)
    return output, variables


def test_a_grid_goes_on_with_a_further_model(grid: tuple[Path, dict], pretrained: Path) -> None:
    (output, variables), checkpoint = grid, pretrained / "checkpoint_last.pt"
    first = output / "runs/MNLI.roberta.1e-3.1/result.json"
    before = first.stat().st_mtime_ns
    bash("run.sh", f"roberta={checkpoint}", f"random=scratch:{checkpoint}", "--max-epoch", 1, **variables)
    assert first.stat().st_mtime_ns == before
    result = json.loads(first.read_text())
    random = json.loads((output / "runs/MNLI.random.1e-3.1/result.json").read_text())
    command = shlex.split(result["command"])
    assert command[command.index("--finetune-from-model") + 1] == str(checkpoint)
    assert {"--pooler-dropout=0.2", "--max-positions=24"} <= set(command)
    assert "--finetune-from-model" not in random["command"]
    assert [result["labels"][key] for key in ("task", "model", "lr", "updates")] == ["MNLI", "roberta", "1e-3", "2"]
    assert random["labels"]["updates"] == "0"
    assert not list(output.rglob("*.pt"))  # of finished runs
    lines = (output / "results.md").read_text().splitlines()
    rows = {row[1]: row[2:-1] for row in ([cell.strip() for cell in line.split("|")] for line in lines[:5])}
    assert rows["model"] == ["MNLI (accuracy / mismatched)", "mean"]
    valid1 = json.loads((first.parent / "train.log").read_text().split("| valid1 | ")[1].splitlines()[0])
    accuracies = result["best"]["valid_accuracy"], float(valid1["valid1_accuracy"])
    assert rows["roberta"][0] == f"{accuracies[0]:.1f} / {accuracies[1]:.1f} (1e-3)"


def test_a_run_ends_with_its_score_and_is_not_mixed_with_another(
    grid: tuple[Path, dict], pretrained: Path, tmp_path: Path
) -> None:
    output, checkpoint = grid[0], pretrained / "checkpoint_last.pt"
    train = {"DATA": output / "data/MNLI", "RUN": output / "runs/MNLI.roberta.1e-3.1", "CHECKPOINT": checkpoint}
    again = bash("train.sh", "--lr", "1e-3", "--seed", 1, "--max-epoch", 1, **train)
    assert "finished before" in again.stderr
    assert again.stdout.splitlines()[-1].startswith("best valid_accuracy ")
    other = bash("train.sh", "--lr", "1e-4", "--seed", 1, "--max-epoch", 1, check=False, **train)
    assert "--lr was 1e-3, is 1e-4" in other.stderr
    state = torch.load(checkpoint, weights_only=False)
    state["optimizer_history"][-1]["num_updates"] = 3  # pre-trained for longer, under the same name
    torch.save(state, tmp_path / "c.pt")
    longer = bash("train.sh", check=False, **{**train, "CHECKPOINT": tmp_path / "c.pt"})
    assert "updates=2" in longer.stderr
    assert "another folder" in longer.stderr


def test_a_dictionary_of_its_own_is_for_models_from_scratch(glue: Path, pretrained: Path, tmp_path: Path) -> None:
    prepare = {"DATA": glue, "TASK": "STS-B", "OUTPUT": tmp_path / "data"}
    bash("prepare.sh", MIN_COUNT=100, **prepare)
    assert (tmp_path / "data/bin/label/valid.label").read_text().split()[:3] == ["0", "0.04", "0.08"]
    assert "another folder" in bash("prepare.sh", check=False, **prepare).stderr  # MIN_COUNT
    train = {"DATA": tmp_path / "data", "RUN": tmp_path / "run", "CHECKPOINT": pretrained / "checkpoint_last.pt"}
    refused = bash("train.sh", check=False, **train)
    assert refused.returncode != 0
    assert "prepare.sh" in refused.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_what_is_missing_is_named(glue: Path, tmp_path: Path) -> None:
    cases = [
        ("prepare.sh", [], {"TASK": "WNLI"}, "TASK=WNLI"),
        ("prepare.sh", [], {"TASK": "RTE"}, "set DATA"),
        ("prepare.sh", [], {"TASK": "MNLI", "DICT": "/nowhere"}, "DICT=/nowhere"),
        ("train.sh", [], {"RUN": tmp_path / "out", "ARCH": "roberta"}, "run prepare.sh"),
        ("run.sh", ["a=/nowhere"], {}, "a=/nowhere"),
        ("run.sh", ["/nowhere"], {}, "NAME=FILE"),
    ]
    for script, arguments, variables, named in cases:
        refused = bash(script, *arguments, check=False, DATA=glue, OUTPUT=tmp_path / "out", **variables)
        assert refused.returncode != 0
        assert named in refused.stderr
    assert not (tmp_path / "out").exists()
