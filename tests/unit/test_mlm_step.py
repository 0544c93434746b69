"""benchmarks/mlm_step.py: contestants of several types, and a peer that computes what ours does."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch

from embinit_fairseq.modules import encoder_layer as packing

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def mlm_step(monkeypatch):
    """The module; what a contestant changes in ours is undone."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    monkeypatch.setattr(packing, "WORTHWHILE", packing.WORTHWHILE)
    import mlm_step

    return mlm_step


def test_contestants_have_types_and_are_held_against_the_peak_of_theirs(mlm_step, monkeypatch, capsys) -> None:
    def in_its_own_process(job: str) -> dict:
        fast = job.endswith("bfloat16")
        return {
            "flops": 4e12 if fast else 1e12,
            "seconds": 0.5 if fast else 1.0,
            "tokens": 10,
            "peak_mb": 1,
            "kernels": [],
        }

    monkeypatch.setattr(mlm_step, "in_its_own_process", in_its_own_process)
    monkeypatch.setattr(sys, "argv", "mlm_step.py --size tiny --models tupe_r:bfloat16 tupe_r".split())
    mlm_step.main()
    report = json.loads(capsys.readouterr().out)
    assert report["seconds_relative_to"] == {"tupe_r:bfloat16": {"tupe_r:bfloat16": 1.0, "tupe_r:float32": 2.0}}
    half, single = report["results"].values()
    assert (half["tokens_per_second"], single["tokens_per_second"]) == (20, 10)
    assert half["share_of_peak"] == pytest.approx(single["share_of_peak"] / 2, abs=0.002)
    for text in ("tupe", "tupe_a:", "tupe_a:float16", "peak:float32"):
        with pytest.raises(argparse.ArgumentTypeError, match="NAME or NAME:DTYPE of tupe_r, "):
            mlm_step.contestant(text)


def test_the_peer_computes_what_ours_does_on_all_places(mlm_step) -> None:
    args = argparse.Namespace(dropout=0.0, attention_dropout=0.0, length=16, batch=4, padding=0.5, kernel="eager")
    batch, results, rows = mlm_step.example(args, 1, torch.device("cpu")), [], []
    for name in ("tupe_r", "bmm_tupe_r"):
        torch.manual_seed(1)
        model = mlm_step.build(name, mlm_step.SIZES["tiny"], args).double()
        layer = model.model.encoder.sentence_encoder.layers[0]
        layer.fc1.register_forward_hook(lambda _, inputs, output: rows.append(inputs[0].shape[:-1].numel()))
        logits = model(*batch[:2])
        torch.nn.functional.cross_entropy(logits, batch[2]).backward()
        results.append({"logits": logits} | {name: parameter.grad for name, parameter in model.named_parameters()})
    assert rows == [64 - 2 * 8, 64]
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)  # the peer's softmax is single precision
