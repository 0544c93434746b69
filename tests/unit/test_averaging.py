"""embinit average: the mean of checkpoints against numpy, which ones are chosen, what is refused."""

from __future__ import annotations

import json
import re
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

from embinit_fairseq.checkpoints.averaging import average, best_checkpoints, last_checkpoints
from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.checkpoints.trained_preparation import OPTION
from embinit_fairseq.errors import CheckpointError, DataError


def write(path: Path, model: dict[str, torch.Tensor], updates: int = 0, **more: object) -> Path:
    state = {
        "model": model,
        "args": None,
        "cfg": {"task": Namespace(name="translation")},
        "extra_state": {"epoch": 1, "ema": model},
    }
    state |= {"optimizer_history": [{"num_updates": updates}], "last_optimizer_state": {"state": torch.ones(9)}}
    torch.save({**state, **more}, path)
    return path


def weights(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(5, 3, generator=generator).to(dtype)
    numbers = {"decoder.bias": torch.randn(7, generator=generator).to(dtype) * 1e3}
    numbers |= {"decoder.counts": torch.tensor([seed, -seed]), "decoder.mask": torch.tensor([seed % 2 == 0])}
    return {"encoder.embed.weight": matrix, "decoder.embed.weight": matrix, **numbers}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_mean_is_that_of_numpy(dtype: torch.dtype, tmp_path: Path) -> None:
    """The newest, which the rest is taken from, need not be the last that is named. What is one tensor stays one.

    The file has no moving average: that of one checkpoint would be none of the mean.
    """
    models = [weights(seed, dtype) for seed in range(5)]
    paths = [write(tmp_path / f"{i}.pt", model, 10 * (i != 4), cfg={"seed": i}) for i, model in enumerate(models)]
    average(paths, tmp_path / "mean.pt")
    found = load_checkpoint(tmp_path / "mean.pt")
    for name in ("encoder.embed.weight", "decoder.embed.weight", "decoder.bias"):
        expected = np.mean([model[name].double().numpy() for model in models], axis=0)
        assert found["model"][name].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        np.testing.assert_allclose(found["model"][name].double().numpy(), expected, rtol=1e-6, atol=1e-9)
    table, other, bias = (found["model"][f"{name}"].data_ptr() for name in list(models[0])[:3])
    assert table == other != bias
    assert found["model"]["decoder.counts"].tolist() == [2, -2]
    assert found["model"]["decoder.mask"].tolist() == [True]
    assert (found["cfg"], found["extra_state"], found["last_optimizer_state"]) == ({"seed": 3}, {"epoch": 1}, None)
    average(paths[1:3], tmp_path / "two.pt")  # the floor, as by fairseq's script, also below zero
    assert load_checkpoint(tmp_path / "two.pt")["model"]["decoder.counts"].tolist() == [1, -2]


def test_the_newest_are_found_by_their_numbers(tmp_path: Path) -> None:
    numbers = ("_1_900", "_2_1000", "_2_1100", "_10_5000", "_9_2000", "_best", "_last", "3-shard0", "3", "9", "10")
    for number in (*numbers, "_10_9000.pt.part"):
        (tmp_path / f"checkpoint{number}.pt").touch()

    def names(*arguments) -> list[str]:
        return [path.stem.removeprefix("checkpoint") for path in last_checkpoints(tmp_path, *arguments)]

    assert names(3) == ["_2_1100", "_9_2000", "_10_5000"]
    assert names(2, "epochs") == ["9", "10"]
    for path in tmp_path.glob("checkpoint_*"):
        path.unlink()
    assert names(3) == ["3", "9", "10"]


@pytest.mark.parametrize("higher", [False, True])
def test_the_best_are_found_by_their_values(tmp_path: Path, higher: bool) -> None:
    """Those that --keep-best-checkpoints has kept (their name ends in a random digit), else the numbered ones; `args`
    is of a checkpoint earlier than fairseq 0.10."""
    options = Namespace(maximize_best_checkpoint_metric=higher)
    told = {"args": options, "cfg": None} if higher else {"cfg": {"checkpoint": options}}
    for number, value in ((1, 3.0), (2, 1.0), (3, 2.0)):
        write(tmp_path / f"checkpoint{number}.pt", {}, **told, extra_state={"val_loss": value})

    def names(number: int) -> list[str]:
        return [path.name.removesuffix(".pt") for path in best_checkpoints(tmp_path, number)]

    assert names(2) == (["checkpoint1", "checkpoint3"] if higher else ["checkpoint2", "checkpoint3"])
    for value in (2.5, 2.4):
        write(tmp_path / f"checkpoint.best_bleu_{value:.3f}7.pt", {}, **told, extra_state={"val_loss": value})
    expected = ["checkpoint.best_bleu_2.5007", "checkpoint.best_bleu_2.4007"]
    assert names(2) == (expected if higher else expected[::-1])
    for value in (None, float("nan")):
        write(tmp_path / "checkpoint.best_bleu_9.pt", {}, extra_state={"val_loss": value})
        with pytest.raises(CheckpointError, match=r"checkpoint\.best_bleu_9\.pt: saved without a validation.*--last"):
            names(2)


def test_a_training_that_kept_the_worst_is_refused(tmp_path: Path, refused) -> None:
    options = {"best_checkpoint_metric": "bleu", "maximize_best_checkpoint_metric": False}
    for number in (1, 2, 3):
        state = {"cfg": {"checkpoint": options}, "extra_state": {"val_loss": float(number)}}
        write(tmp_path / f"checkpoint{number}.pt", {}, **state)
    message = refused("average", tmp_path, "--best", "2", "--output", tmp_path / "mean.pt")
    assert all(part in message for part in ("lowest bleu", "--maximize-best-checkpoint-metric", "--last"))


def test_the_command(tmp_path: Path, printed) -> None:
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    files = [str(tmp_path / f"run/checkpoints/checkpoint{epoch}.pt") for epoch in (1, 2, 3)]
    for epoch, file in enumerate(files, 1):
        write(Path(file), {"w": torch.tensor([float(epoch)])})
    for given, used, mean in (([str(tmp_path / "run"), "--last", "2"], files[1:], 2.5), (files[::2], files[::2], 2.0)):
        assert printed("average", *given, "--output", tmp_path / "mean.pt", "--force")["checkpoints"] == used
        assert load_checkpoint(tmp_path / "mean.pt")["model"]["w"].tolist() == [mean]


def test_wrong_calls(tmp_path: Path, refused, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "one", "both", "none"):
        (tmp_path / folder).mkdir()
    both = [f"both/checkpoint{name}.pt" for name in ("1", "2", "_1_500")]
    for name in ("1.pt", "2.pt", "run/checkpoint1.pt", "run/checkpoint2.pt", "one/checkpoint1.pt", *both):
        write(tmp_path / name, weights(1), extra_state={"val_loss": 1.0})
    shutil.copy(tmp_path / "1.pt", tmp_path / "last.pt")
    write(tmp_path / "more.pt", {**weights(1), "a.more": torch.ones(1)})
    write(tmp_path / "shape.pt", {**weights(1), "decoder.bias": torch.ones(1)})  # torch would stretch it
    write(tmp_path / "fewer.pt", {name: value for name, value in weights(1).items() if name != "decoder.bias"})
    write(tmp_path / "integers.pt", {**weights(1), "decoder.bias": torch.ones(7, dtype=torch.int64)})
    write(tmp_path / "empty.pt", {})
    before = sorted(tmp_path.rglob("*"))
    different = {"more": "a.more", "fewer": "decoder.bias", "shape": "decoder.bias", "integers": "decoder.bias"}
    for arguments, said in (
        ("run", "run: a folder.*--last N or --best N"),
        ("run --last 1", "--last 1.*two checkpoints"),
        ("run --last 3", "2 checkpoints numbered by epochs.*give --last 2, or train with a larger --keep-last-epochs"),
        ("both --last 2", "1 checkpoint numbered by updates.*give --by epochs, "),
        ("both --last 3", "1 checkpoint numbered by updates.*take checkpoint_best.pt"),
        ("none --last 2", "none: no checkpoint .*folder of a training"),
        ("one --last 2", "1 checkpoint numbered by epochs.*checkpoint_best.pt"),
        ("run --best 3", "2 checkpoints.*smaller --best"),
        ("run 1.pt --last 2", "--last.*one folder"),
        ("run --best 2 --by epochs", "--by epochs.*--last N"),
        ("1.pt", "1.pt: one checkpoint"),
        ("1.pt 1.pt", "1.pt: given twice"),
        ("1.pt more.pt last.pt", "last.pt: a copy of 1.pt, as .* of the last"),
        ("1.pt 2.pt --output 2.pt", "--output 2.pt.*another --output"),
        ("empty.pt 1.pt", "empty.pt: holds no model"),
        *(
            (f"1.pt {name}.pt", f"1.pt and {name}.pt are of different models: {key} ")
            for name, key in different.items()
        ),
    ):
        assert re.search(
            said, refused("average", *arguments.split(), *(() if "--output" in arguments else ("--output", "m.pt")))
        )
    assert sorted(tmp_path.rglob("*")) == before


def test_texts_that_were_prepared_in_different_ways(tmp_path: Path) -> None:
    entry = {"symbols": "", "files": {}, "examples": []}
    paths = [
        write(tmp_path / f"{name}.pt", weights(0), cfg={"model": {OPTION: json.dumps({"dict.txt": entry | steps})}})
        for name, steps in (("a", {"steps": []}), ("b", {"steps": [{"step": "lowercase"}]}))
    ]
    with pytest.raises(DataError, match=r"by none .*a.pt says, by lowercase .*b.pt says"):
        average(paths, tmp_path / "mean.pt")
    assert not (tmp_path / "mean.pt").exists()
