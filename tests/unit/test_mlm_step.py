"""benchmarks/mlm_step.py: contestants of several types, and a peer that computes what ours does."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq", reason="the contestants are models of fairseq; install it with scripts/setup.sh")

from embinit_fairseq.modules import encoder_layer as packing

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = ["--size", "tiny", "--length", "16", "--batch", "2", "--steps", "1", "--warmup", "0", "--threads", "1"]


@pytest.fixture
def mlm_step(monkeypatch):
    """The module; what a contestant changes in ours is undone."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    monkeypatch.setattr(packing, "WORTHWHILE", packing.WORTHWHILE)
    import mlm_step

    return mlm_step


def printed(monkeypatch, capsys, mlm_step, *options: str) -> dict:
    """What the program prints, called with SMALL and these options."""
    monkeypatch.setattr(sys, "argv", ["mlm_step.py", *SMALL, *options])
    mlm_step.main()
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_names_and_types(mlm_step) -> None:
    assert [mlm_step.contestant(text) for text in ("tupe_a", "tupe_a:bfloat16")] == ["tupe_a", "tupe_a:bfloat16"]
    for text in ("tupe", "tupe_a:", "tupe_a:float16", "peak:float32"):
        with pytest.raises(argparse.ArgumentTypeError, match="NAME or NAME:DTYPE of tupe_r, "):
            mlm_step.contestant(text)


def test_every_contestant_has_its_type_and_is_held_against_the_peak_of_it(monkeypatch, capsys, mlm_step) -> None:
    jobs = []

    def in_its_own_process(job: str) -> dict:
        jobs.append(job)
        if job.startswith("peak:"):
            return {"flops": {"float32": 1e12, "bfloat16": 4e12}[job.partition(":")[2]]}
        return {"seconds": 0.5 if job.endswith("bfloat16") else 1.0, "tokens": 10, "peak_mb": 1, "kernels": []}

    monkeypatch.setattr(mlm_step, "in_its_own_process", in_its_own_process)
    monkeypatch.setattr(sys, "argv", ["mlm_step.py", *SMALL, "--turns", "2", "--models", "tupe_r:bfloat16", "tupe_r"])
    mlm_step.main()
    report = json.loads(capsys.readouterr().out)
    assert jobs == ["peak:bfloat16", "peak:float32", *["tupe_r:bfloat16", "tupe_r:float32"] * 2]
    assert report["seconds_relative_to"] == {"tupe_r:bfloat16": {"tupe_r:bfloat16": 1.0, "tupe_r:float32": 2.0}}
    half, single = (report["results"][name] for name in ("tupe_r:bfloat16", "tupe_r:float32"))
    assert (half["tokens_per_second"], single["tokens_per_second"]) == (20, 10)
    assert half["tflops_per_second"] == pytest.approx(2 * single["tflops_per_second"], abs=0.002)
    assert half["share_of_peak"] == pytest.approx(single["share_of_peak"] / 2, abs=0.002)


@pytest.mark.parametrize(
    ("mode", "job"), [("features", "tupe_r:float32"), ("train", "tupe_r:bfloat16"), ("features", "bmm_tupe_r:float32")]
)
def test_a_job_measures_its_contestant_in_its_type(monkeypatch, capsys, mlm_step, job, mode) -> None:
    linear, types = torch.nn.functional.linear, set()

    def noted(*arguments, **options):
        y = linear(*arguments, **options)
        types.add(y.dtype)
        return y

    monkeypatch.setattr(torch.nn.functional, "linear", noted)
    measured = printed(monkeypatch, capsys, mlm_step, "--mode", mode, "--padding", "0.5", "--job", job)
    assert measured["seconds"] > 0
    assert measured["tokens"] == 16 + 8
    assert types == {getattr(torch, job.partition(":")[2])}


@pytest.mark.parametrize("padding", [0.0, 0.5])
def test_the_peer_computes_what_ours_does_on_all_places(mlm_step, padding) -> None:
    args = argparse.Namespace(dropout=0.0, attention_dropout=0.0, length=16, batch=4, padding=padding, kernel="eager")
    batch = mlm_step.example(args, 1, torch.device("cpu"))
    results = []
    for name in ("tupe_r", "bmm_tupe_r"):
        torch.manual_seed(1)
        model = mlm_step.build(name, mlm_step.SIZES["tiny"], args).double()
        rows = []
        layer = model.model.encoder.sentence_encoder.layers[0]
        layer.fc1.register_forward_hook(lambda _, inputs, output, rows=rows: rows.append(inputs[0].shape[:-1].numel()))
        logits = model(*batch[:2])
        torch.nn.functional.cross_entropy(logits, batch[2]).backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        results.append((rows[0], logits.detach(), gradients))
    (ours, logits, gradients), (theirs, their_logits, their_gradients) = results
    assert (ours, theirs) == (64 - int(2 * 16 * padding), 64)
    torch.testing.assert_close(their_logits, logits, rtol=1e-5, atol=1e-5)  # the peer's softmax is single precision
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            their_gradients[name], gradient, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
