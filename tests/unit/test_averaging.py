"""embinit average: the mean of checkpoints against numpy, which ones are chosen, what is refused."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from run_folders import refused

from embinit_fairseq.checkpoints.averaging import average, best_checkpoints, last_checkpoints
from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import CheckpointError


def write(path: Path, model: dict[str, torch.Tensor], updates: int = 0, **more: object) -> Path:
    state = {
        "model": model,
        "args": None,
        "cfg": {"task": Namespace(name="translation")},
        "extra_state": {"epoch": 1},
        "optimizer_history": [{"num_updates": updates}],
        "last_optimizer_state": {"state": torch.ones(9)},
    }
    torch.save({**state, **more}, path)
    return path


def weights(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(5, 3, generator=generator).to(dtype)
    return {
        "encoder.embed.weight": matrix,
        "decoder.embed.weight": matrix,
        "decoder.bias": torch.randn(7, generator=generator).to(dtype) * 1e3,
        "decoder.version": torch.tensor([3]),
        "decoder.counts": torch.tensor([seed, -seed]),
        "decoder.mask": torch.tensor([seed % 2 == 0]),
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_mean_is_that_of_numpy(dtype: torch.dtype, tmp_path: Path) -> None:
    """The newest, which the rest is taken from, need not be the last that is named."""
    models = [weights(seed, dtype) for seed in range(5)]
    paths = [write(tmp_path / f"{i}.pt", model, 10 * (i != 4), cfg={"seed": i}) for i, model in enumerate(models)]
    average(paths, tmp_path / "mean.pt")
    found = load_checkpoint(tmp_path / "mean.pt")
    for name in ("encoder.embed.weight", "decoder.embed.weight", "decoder.bias"):
        expected = np.mean([model[name].double().numpy() for model in models], axis=0)
        assert found["model"][name].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        np.testing.assert_allclose(found["model"][name].double().numpy(), expected, rtol=1e-6, atol=1e-9)
    assert found["model"]["decoder.version"].tolist() == [3]
    assert found["model"]["decoder.counts"].tolist() == [2, -2]
    assert found["model"]["decoder.mask"].tolist() == [True]
    assert found["cfg"] == {"seed": 3}
    assert found["extra_state"] == {"epoch": 1}
    assert found["last_optimizer_state"] is None


def test_whole_numbers_and_tied_matrices(tmp_path: Path) -> None:
    """The floor, as by fairseq's script, also below zero. What is one tensor stays one."""
    paths = [write(tmp_path / f"{n}.pt", {**weights(n), "n": torch.tensor([n, -n])}) for n in (1, 2)]
    average(paths, tmp_path / "mean.pt")
    model = load_checkpoint(tmp_path / "mean.pt")["model"]
    assert model["n"].tolist() == [1, -2]
    assert model["encoder.embed.weight"].data_ptr() == model["decoder.embed.weight"].data_ptr()
    assert model["encoder.embed.weight"].data_ptr() != model["decoder.bias"].data_ptr()


@pytest.mark.parametrize("change", ["more", "fewer", "shape"])
def test_different_models_are_refused_by_the_first_name(change: str, tmp_path: Path) -> None:
    other = weights(2)
    if change == "more":
        other["decoder.more"] = torch.zeros(1)
    elif change == "fewer":
        del other["decoder.bias"], other["decoder.version"]
    else:
        other["decoder.bias"] = torch.zeros(1)  # torch would stretch it without a word
    first, second = write(tmp_path / "1.pt", weights(1)), write(tmp_path / "2.pt", other)
    name = "decoder.more" if change == "more" else "decoder.bias"
    with pytest.raises(CheckpointError, match=rf"1\.pt and .*2\.pt are of different models: {name} "):
        average([first, second], tmp_path / "mean.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.pt", "2.pt"]


def test_the_newest_are_found_by_their_numbers(tmp_path: Path) -> None:
    for name in ("1_900", "2_1000", "2_1100", "10_5000", "9_2000"):
        (tmp_path / f"checkpoint_{name}.pt").touch()
    for name in ("checkpoint_best.pt", "checkpoint_last.pt", "checkpoint_10_9000.pt.part", "checkpoint3-shard0.pt"):
        (tmp_path / name).touch()
    for epoch in (3, 9, 10):
        (tmp_path / f"checkpoint{epoch}.pt").touch()

    def names(*arguments) -> list[str]:
        return [path.name for path in last_checkpoints(tmp_path, *arguments)]

    assert names(3) == ["checkpoint_2_1100.pt", "checkpoint_9_2000.pt", "checkpoint_10_5000.pt"]
    assert names(2, "epochs") == ["checkpoint9.pt", "checkpoint10.pt"]
    for path in tmp_path.glob("checkpoint_*"):
        path.unlink()
    assert names(3) == ["checkpoint3.pt", "checkpoint9.pt", "checkpoint10.pt"]
    with pytest.raises(CheckpointError, match=r"3 numbered checkpoints .* 4 to be averaged; give a smaller --last"):
        names(4)


@pytest.mark.parametrize("higher", [False, True])
def test_the_best_are_found_by_their_values(tmp_path: Path, higher: bool) -> None:
    """Those that --keep-best-checkpoints has kept; else the numbered ones. (The name has a random digit at its end.)"""
    cfg = {"checkpoint": Namespace(maximize_best_checkpoint_metric=higher)}
    values = {"checkpoint1": 3.0, "checkpoint2": 1.0, "checkpoint3": 2.0}
    for name, value in values.items():
        write(tmp_path / f"{name}.pt", {}, cfg=cfg, extra_state={"val_loss": value})

    def names(number: int) -> list[str]:
        return [path.name.removesuffix(".pt") for path in best_checkpoints(tmp_path, number)]

    assert names(2) == (["checkpoint1", "checkpoint3"] if higher else ["checkpoint2", "checkpoint3"])
    for value in (2.5, 2.4):
        write(tmp_path / f"checkpoint.best_bleu_{value:.3f}7.pt", {}, cfg=cfg, extra_state={"val_loss": value})
    expected = ["checkpoint.best_bleu_2.5007", "checkpoint.best_bleu_2.4007"]
    assert names(2) == (expected if higher else expected[::-1])
    with pytest.raises(CheckpointError, match=r"2 checkpoints .* 3 to be averaged; give a smaller --best"):
        names(3)
    write(tmp_path / "checkpoint.best_bleu_9.pt", {}, extra_state={"val_loss": None})
    with pytest.raises(CheckpointError, match=r"checkpoint\.best_bleu_9\.pt: saved without a validation"):
        names(2)


def test_the_command(tmp_path: Path, capsys) -> None:
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    for epoch in (1, 2, 3):
        write(tmp_path / f"run/checkpoints/checkpoint{epoch}.pt", {"w": torch.tensor([float(epoch)])})
    output = tmp_path / "mean.pt"
    assert main(["average", str(tmp_path / "run"), "--last", "2", "--output", str(output), "--json"]) == 0
    names = [Path(path).name for path in json.loads(capsys.readouterr().out)["checkpoints"]]
    assert names == ["checkpoint2.pt", "checkpoint3.pt"]
    assert load_checkpoint(output)["model"]["w"].tolist() == [2.5]
    files = [str(tmp_path / f"run/checkpoints/checkpoint{epoch}.pt") for epoch in (1, 3)]
    assert main(["average", *files, "--output", str(output), "--force"]) == 0
    assert load_checkpoint(output)["model"]["w"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["run", "--output", "m.pt"], ["run: a folder", "--last N or --best N"]),
        (["run", "--last", "1", "--output", "m.pt"], ["--last 1", "two checkpoints"]),
        (["run", "--last", "3", "--output", "m.pt"], ["2 numbered checkpoints", "smaller --last"]),
        (["run", "1.pt", "--last", "2", "--output", "m.pt"], ["--last", "one folder"]),
        (["run", "--best", "2", "--by", "epochs", "--output", "m.pt"], ["--by epochs", "--last N"]),
        (["1.pt", "--output", "m.pt"], ["1.pt: one checkpoint"]),
        (["1.pt", "1.pt", "--output", "m.pt"], ["1.pt: given twice"]),
        (["1.pt", "nowhere.pt", "--output", "m.pt"], ["nowhere.pt: no such checkpoint"]),
        (["1.pt", "2.pt", "--output", "2.pt"], ["--output 2.pt", "another name"]),
        (["1.pt", "2.pt", "--output", "nowhere/m.pt"], ["--output nowhere/m.pt", "mkdir -p"]),
        (["1.pt", "cut.pt", "--output", "m.pt"], ["cut.pt"]),
        (["1.pt", "no_model.pt", "--output", "m.pt"], ["no_model.pt: holds no model"]),
    ],
)
def test_wrong_calls(tmp_path: Path, capsys, monkeypatch, arguments, messages) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for name in ("1.pt", "2.pt", "run/checkpoint1.pt", "run/checkpoint2.pt"):
        write(tmp_path / name, weights(1))
    (tmp_path / "cut.pt").write_bytes((tmp_path / "1.pt").read_bytes()[:500])
    torch.save({"w": torch.ones(1)}, tmp_path / "no_model.pt")
    before = sorted(tmp_path.rglob("*"))
    message = refused(capsys, "average", *arguments)
    assert all(text in message for text in messages), message
    assert sorted(tmp_path.rglob("*")) == before
