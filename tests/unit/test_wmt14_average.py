"""scripts/wmt14/average.py: the mean of checkpoints, against numpy."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from wmt14 import average

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def write(path: Path, model: dict[str, torch.Tensor], **more: object) -> Path:
    state = {"model": model, "args": None, "cfg": {"task": Namespace(name="translation")}, "extra_state": {"epoch": 1}}
    torch.save({**state, "last_optimizer_state": {"state": torch.ones(9)}, **more}, path)
    return path


def weights(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(5, 3, generator=generator).to(dtype)
    return {
        "encoder.embed.weight": table,
        "decoder.embed.weight": table,
        "decoder.bias": torch.randn(7, generator=generator).to(dtype) * 1e3,
        "decoder.version": torch.tensor([seed]),
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_mean_is_that_of_numpy(dtype: torch.dtype, tmp_path: Path) -> None:
    models = [weights(seed, dtype) for seed in range(5)]
    paths = [write(tmp_path / f"{i}.pt", model, cfg={"seed": i}) for i, model in enumerate(models)]
    average.average(paths, tmp_path / "mean.pt")
    found = load_checkpoint(tmp_path / "mean.pt")
    for name in ("encoder.embed.weight", "decoder.embed.weight", "decoder.bias"):
        expected = np.mean([model[name].double().numpy() for model in models], axis=0)
        assert found["model"][name].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        np.testing.assert_allclose(found["model"][name].double().numpy(), expected, rtol=1e-6, atol=1e-9)
    assert found["model"]["decoder.version"].tolist() == [4]
    assert found["cfg"] == {"seed": 4}
    assert found["extra_state"] == {"epoch": 1}
    assert found["last_optimizer_state"] is None


def test_tied_tables_are_stored_once(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{seed}.pt", weights(seed)) for seed in (1, 2)]
    average.average(paths, tmp_path / "mean.pt")
    model = load_checkpoint(tmp_path / "mean.pt")["model"]
    assert model["encoder.embed.weight"].data_ptr() == model["decoder.embed.weight"].data_ptr()
    assert model["encoder.embed.weight"].data_ptr() != model["decoder.bias"].data_ptr()


def test_one_checkpoint_is_its_own_mean(tmp_path: Path) -> None:
    average.average([write(tmp_path / "1.pt", weights(3))], tmp_path / "mean.pt")
    for name, value in load_checkpoint(tmp_path / "mean.pt")["model"].items():
        assert torch.equal(value, weights(3)[name])


@pytest.mark.parametrize("change", ["more", "fewer", "shape"])
def test_different_models_are_refused(change: str, tmp_path: Path) -> None:
    other = weights(2)
    if change == "more":
        other["decoder.more"] = torch.zeros(1)
    elif change == "fewer":
        del other["decoder.bias"]
    else:
        other["decoder.bias"] = torch.zeros(1)  # torch would stretch it without a word
    first, second = write(tmp_path / "1.pt", weights(1)), write(tmp_path / "2.pt", other)
    with pytest.raises(CheckpointError, match=r"1\.pt and .*2\.pt are of different models: decoder\.(more|bias)"):
        average.average([first, second], tmp_path / "mean.pt")
    assert not (tmp_path / "mean.pt").exists()


def test_the_newest_are_found_by_their_updates(tmp_path: Path) -> None:
    for name in ("1_900", "2_1000", "2_1100", "10_5000", "9_2000"):
        (tmp_path / f"checkpoint_{name}.pt").touch()
    for name in ("checkpoint_best.pt", "checkpoint_last.pt", "checkpoint3.pt", "checkpoint_10_9000.pt.part"):
        (tmp_path / name).touch()
    found = [path.name for path in average.last_checkpoints(tmp_path, 3)]
    assert found == ["checkpoint_2_1100.pt", "checkpoint_9_2000.pt", "checkpoint_10_5000.pt"]


def program(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "wmt14.average", *map(str, arguments)]
    return subprocess.run(command, cwd=SCRIPTS, capture_output=True, text=True)


def test_too_few_and_damaged_checkpoints_are_named(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint_1_10.pt", weights(1))
    result = program("--checkpoints", tmp_path, "--number", 2, "--list")
    assert result.returncode == 1
    assert f"error: {tmp_path}: checkpoints by number of updates: 1, to be averaged: 2; give a smaller" in result.stderr
    (tmp_path / "checkpoint_1_20.pt").write_bytes((tmp_path / "checkpoint_1_10.pt").read_bytes()[:500])
    result = program("--checkpoints", tmp_path, "--number", 2, tmp_path / "mean.pt")
    assert result.returncode == 1
    assert "error:" in result.stderr
    assert "checkpoint_1_20.pt" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "mean.pt").exists()
