"""scripts/glue on a few made-up examples and the small model that other tests have pre-trained."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from recipes import TRAINS, lines, refused, stamps, succeed

pytestmark = TRAINS


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's folders STS-B and MNLI with 40 examples to train on and 14 in each development set."""
    folder, generator = tmp_path_factory.mktemp("a copy of glue"), np.random.default_rng(0)
    labels = {"STS-B": ("score", np.arange(26) / 5), "MNLI": ("gold_label", ["contradiction", "neutral", "entailment"])}
    for task, file in (("STS-B", "train dev"), ("MNLI", "train dev_matched dev_mismatched")):
        (folder / task).mkdir()
        title, known = labels[task]
        for name in file.split():
            rows = [f"sentence1\tsentence2\t{title}"]
            for index in range(40 if name == "train" else 14):
                pair = [" ".join(f"w{word}" for word in generator.integers(12, size=5)) for _ in range(2)]
                rows.append(f"{pair[0]}\t{pair[1]}\t{known[index % len(known)]}")
            (folder / task / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def grid(glue: Path, trained, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object], Path]:
    """The folder of a finished grid, MNLI with the pre-trained model; the variables of its call; the checkpoint."""
    output, run = tmp_path_factory.mktemp("a grid") / "out put", trained("tupe")
    variables = {"DATA": glue, "OUTPUT": output, "DICT": run.data / "text/dict.txt", "JOBS": 1}
    variables |= {"TASKS": "MNLI", "RATES": "1e-3", "SEEDS": "1"}
    checkpoint = run.folder / "checkpoint_last.pt"
    succeed("glue/run.sh", f"tupe={checkpoint}", "--max-epoch", 1, **variables)
    return output, variables, checkpoint


def test_a_grid_goes_on_with_a_further_model(grid) -> None:
    output, variables, checkpoint = grid
    before = stamps(output.glob("runs/*/result.json"))
    succeed("glue/run.sh", f"tupe={checkpoint}", f"random=scratch:{checkpoint}", "--max-epoch", 1, **variables)
    (first, stamp), *_ = before.items()
    assert first.stat().st_mtime_ns == stamp
    result, random = (
        json.loads((output / f"runs/MNLI.{model}.1e-3.1/result.json").read_text()) for model in ("tupe", "random")
    )
    command, updates = shlex.split(result["command"]), torch.load(checkpoint, weights_only=False)["optimizer_history"]
    assert command[command.index("--finetune-from-model") + 1] == str(checkpoint)
    assert {"--rel-pos", "--max-positions=32"} <= set(command)
    assert "--finetune-from-model" not in random["command"]
    expected = ["MNLI", "tupe", "1e-3", str(updates[-1]["num_updates"])]
    assert [result["labels"][key] for key in ("task", "model", "lr", "updates")] == expected
    assert random["labels"]["updates"] == "0"
    assert not list(output.rglob("*.pt"))  # of finished runs
    rows = {
        row[1]: row[2:-1]
        for row in ([cell.strip() for cell in line.split("|")] for line in lines(output / "results.md")[:5])
    }
    assert rows["model"] == ["MNLI (accuracy / mismatched)", "mean"]
    valid1 = json.loads((first.parent / "train.log").read_text().split("| valid1 | ")[1].splitlines()[0])
    accuracies = result["best"]["valid_accuracy"], float(valid1["valid1_accuracy"])
    assert rows["tupe"][0] == f"{accuracies[0]:.1f} / {accuracies[1]:.1f} (1e-3)"


def test_a_run_ends_with_its_score_and_is_not_mixed_with_another(grid, tmp_path: Path) -> None:
    output, _, checkpoint = grid
    train = {"DATA": output / "data/MNLI", "RUN": output / "runs/MNLI.tupe.1e-3.1", "CHECKPOINT": checkpoint}
    again = succeed("glue/train.sh", "--lr", "1e-3", "--seed", 1, "--max-epoch", 1, **train)
    assert "finished before" in again
    assert "best valid_accuracy " in again
    state = torch.load(checkpoint, weights_only=False)
    state["optimizer_history"][-1]["num_updates"] = 3  # pre-trained for less long, under the same name
    torch.save(state, tmp_path / "c.pt")
    other = refused("glue/train.sh", **{**train, "CHECKPOINT": tmp_path / "c.pt"})
    assert "updates=3" in other
    assert "another folder" in other


def test_a_dictionary_of_its_own_is_for_models_from_scratch(glue: Path, grid, tmp_path: Path) -> None:
    prepare = {"DATA": glue, "TASK": "STS-B", "OUTPUT": tmp_path / "data"}
    succeed("glue/prepare.sh", MIN_COUNT=100, **prepare)
    assert lines(tmp_path / "data/bin/label/valid.label")[:3] == ["0", "0.04", "0.08"]
    assert "another folder" in refused("glue/prepare.sh", **prepare)  # MIN_COUNT
    train = {"DATA": tmp_path / "data", "RUN": tmp_path / "run", "CHECKPOINT": grid[2]}
    assert "prepare.sh" in refused("glue/train.sh", **train).splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("script", "arguments", "variables", "named"),
    [
        ("prepare", [], {"TASK": "WNLI"}, "TASK=WNLI"),
        ("prepare", [], {"TASK": "MNLI", "DICT": "/nowhere"}, "DICT=/nowhere"),
        ("train", [], {"RUN": "/nowhere", "ARCH": "roberta"}, "run prepare.sh"),
        ("run", ["a=/nowhere"], {}, "a=/nowhere"),
        ("run", ["/nowhere"], {}, "NAME=FILE"),
    ],
)
def test_what_is_missing_is_named(script, arguments, variables, named, glue: Path, tmp_path: Path) -> None:
    assert named in refused(f"glue/{script}.sh", *arguments, DATA=glue, OUTPUT=tmp_path / "out", **variables)
    assert not (tmp_path / "out").exists()
