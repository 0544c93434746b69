"""scripts/glue on a few made-up examples and a tiny model that was pre-trained for two updates."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
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
    for task, file in ((task, file) for task in files for file in files[task]):
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


def test_a_grid_makes_a_table_and_goes_on(glue: Path, pretrained: Path, tmp_path: Path) -> None:
    """MNLI with a pre-trained and a random model; then a further task, without another run of what is finished."""
    checkpoint, output = pretrained / "checkpoint_last.pt", tmp_path / "out put"
    common = {"DATA": glue, "OUTPUT": output, "DICT": pretrained / "data/dict.txt", "RATES": "1e-3", "SEEDS": "1"}
    models = [f"roberta={checkpoint}", f"random=scratch:{checkpoint}"]
    bash("run.sh", *models, "--max-epoch", 1, TASKS="MNLI", JOBS=2, **common)
    first = {path: path.stat().st_mtime_ns for path in (output / "runs").rglob("result.json")}
    assert sorted(path.parent.name for path in first) == ["MNLI.random.1e-3.1", "MNLI.roberta.1e-3.1"]
    result, random = (json.loads((output / f"runs/MNLI.{m}.1e-3.1/result.json").read_text()) for m in ("roberta", "random"))
    command = shlex.split(result["command"])
    assert command[command.index("--finetune-from-model") + 1] == str(checkpoint)
    assert {"--pooler-dropout=0.2", "--max-positions=24"} <= set(command)
    assert "--finetune-from-model" not in random["command"]
    assert {key: result["labels"][key] for key in ("task", "model", "lr", "seed", "updates")} == {
        "task": "MNLI", "model": "roberta", "lr": "1e-3", "seed": "1", "updates": "2"
    }  # fmt: skip
    assert random["labels"]["updates"] == "0"
    assert not list(output.rglob("*.pt"))  # of finished runs

    bash("run.sh", models[0], "--max-epoch", 1, JOBS=2, **common)
    assert {path: path.stat().st_mtime_ns for path in first} == first
    lines = (output / "results.md").read_text().splitlines()
    rows = {row[1]: row[2:-1] for row in ([cell.strip() for cell in line.split("|")] for line in lines[:5])}
    assert rows["model"] == ["STS-B (Pearson / Spearman)", "MNLI (accuracy / mismatched)", "mean"]
    assert all(cell.endswith("(1e-3)") for cell in rows["roberta"][:2])
    assert rows["random"][0] == rows["random"][2] == "-"
    valid1 = (output / "runs/MNLI.roberta.1e-3.1/train.log").read_text().split("| valid1 | ")[1].splitlines()[0]
    mnli = json.loads((output / "results.json").read_text())["MNLI"]["roberta"]["rates"]["1e-3"]["median"]
    assert mnli["mismatched"] == float(json.loads(valid1)["valid1_accuracy"])


def test_one_training_ends_with_its_score_and_is_not_mixed_with_others(glue: Path, pretrained: Path, tmp_path: Path) -> None:
    data, checkpoint = tmp_path / "data", tmp_path / "c.pt"
    prepare = {"DATA": glue, "TASK": "STS-B", "OUTPUT": data}
    bash("prepare.sh", DICT=pretrained / "data/dict.txt", **prepare)
    assert "name another folder" in bash("prepare.sh", check=False, **prepare).stderr
    checkpoint.write_bytes((pretrained / "checkpoint_last.pt").read_bytes())
    train = {"DATA": data, "RUN": tmp_path / "run", "CHECKPOINT": checkpoint}
    done = bash("train.sh", "--max-epoch", 1, **train)
    assert done.stdout.splitlines()[-1].startswith("best valid_pearson ")
    assert (tmp_path / "run/checkpoints/checkpoint_best.pt").is_file()
    again = bash("train.sh", "--max-epoch", 1, **train)
    assert "finished before" in again.stderr
    assert "--lr" in bash("train.sh", "--max-epoch", 1, "--lr", "1e-4", check=False, **train).stderr
    # another file under the same name
    bash("run.sh", "--help")
    own = tmp_path / "words"
    bash("prepare.sh", MIN_COUNT=100, **{**prepare, "OUTPUT": own})
    refused = bash("train.sh", check=False, **{**train, "DATA": own, "RUN": tmp_path / "other"})
    assert "prepare.sh" in refused.stderr.splitlines()[-1]
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("script", "arguments", "environment", "named"),
    [
        ("prepare.sh", [], {"DATA": "{glue}", "TASK": "WNLI"}, ["TASK=WNLI", "CoLA"]),
        ("prepare.sh", [], {"DATA": "{glue}", "TASK": "RTE"}, ["RTE/train.tsv", "set DATA"]),
        ("prepare.sh", [], {"DATA": "{glue}", "TASK": "MNLI", "DICT": "/nowhere"}, ["DICT=/nowhere"]),
        ("train.sh", [], {"DATA": "{glue}", "RUN": "{out}", "ARCH": "roberta"}, ["run prepare.sh"]),
        ("run.sh", ["a=/nowhere"], {"DATA": "{glue}"}, ["a=/nowhere"]),
        ("run.sh", ["/nowhere"], {"DATA": "{glue}"}, ["NAME=FILE"]),
    ],
)
def test_what_is_missing_is_named(
    script: str, arguments: list[str], environment: dict[str, str], named: list[str], glue: Path, tmp_path: Path
) -> None:
    values = {name: value.format(glue=glue, out=tmp_path / "out") for name, value in environment.items()}
    refused = bash(script, *arguments, check=False, OUTPUT=tmp_path / "out", **values)
    assert refused.returncode != 0
    assert all(each in refused.stderr for each in named), refused.stderr
    assert not (tmp_path / "out").exists()
