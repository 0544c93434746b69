"""`embinit bench`: what it counts against a formula, every architecture, estimates, errors of one line."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("fairseq", reason="bench measures steps of fairseq; install it with scripts/setup.sh")

from bench_requests import LM, TINY, measured, request, small

from embinit_fairseq.bench import report as bench_report
from embinit_fairseq.bench import train as bench_measure
from embinit_fairseq.bench import train as bench_train
from embinit_fairseq.cli import bench
from embinit_fairseq.cli import doctor as checks
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import OptionError

STOCK = ["transformer", "transformer_wmt_en_de", "roberta", "roberta_base", "transformer_lm", "transformer_lm_gpt"]


@pytest.fixture
def measure(monkeypatch):
    monkeypatch.setitem(bench_measure.PEAK_SIZE, "cpu", 64)
    return measured


@pytest.mark.parametrize("arch", [*STOCK, *checks.own_architectures()])
def test_every_architecture_is_measured(arch, measure):
    result = measure(arch, *small(arch))
    assert result["seconds"][0] > 0
    assert result["tokens"] == 16
    assert result["flops"] > 0
    assert result["parameters"] > 0
    if arch != "duo_classifier":  # which attends by products of its own
        assert result["attention"]["kernels"], result["attention"]


def test_flops_of_a_language_model_are_those_of_the_formula(measure):
    """Multiplications and additions of every matrix product; backward has two of each: for its input and its weight."""
    sentences, length, width, inner, vocabulary, layers = 3, 8, 16, 24, 32, 2
    tokens = sentences * length
    projections = 4 * 2 * tokens * width * width
    attention = 2 * (2 * sentences * length * length * width)
    feed_forward = 2 * (2 * tokens * width * inner)
    logits = 2 * tokens * width * vocabulary
    expected = 3 * (layers * (projections + attention + feed_forward) + logits)
    assert measure("transformer_lm", *LM, batch=sentences)["flops"] == expected


def test_flops_of_masked_language_models_leave_out_what_is_not_predicted(measure):
    """The head sees one masked token of a row of 8; a larger vocabulary costs by that."""
    narrow, wide = (measure("tupe_tiny", *small("tupe_tiny"), vocabulary=size)["flops"] for size in (32, 132))
    assert wide - narrow == 3 * 2 * 2 * 16 * 100  # forward and backward, two rows, width 16, 100 symbols


def test_tokens_are_counted_without_padding(measure):
    assert measure("roberta", *small("roberta"), length=20, padding=0.5)["tokens"] == 30


def test_our_models_say_why_they_take_a_kernel(measure):
    attention = measure("tupe_tiny", *small("tupe_tiny"))["attention"]
    assert attention["kernels"] == ["eager (matrix products and softmax)"]
    assert "attention in training on cpu: eager (" in attention["choice"][0]


def test_a_step_is_a_full_one(measure, monkeypatch):
    """The weights move: forward, backward and the optimizer, by fairseq's trainer."""
    from fairseq.trainer import Trainer

    moved = []
    original = Trainer.train_step

    def train_step(self, *arguments, **options):
        before = [parameter.detach().clone() for parameter in self.get_model().parameters()]
        original(self, *arguments, **options)
        after = list(self.get_model().parameters())
        moved.append(any(not torch.equal(old, new) for old, new in zip(before, after)))

    monkeypatch.setattr(Trainer, "train_step", train_step)
    measure("transformer_lm", *LM, steps=2, warmup=1)
    assert len(moved) == 5, "warm-up, two timed steps, one for the FLOPs, one for the kernel"
    assert all(moved)


def test_more_positions_where_the_architecture_has_too_few(measure):
    assert measure("tupe_tiny", *small("tupe_tiny"), length=140)["tokens"] == 280
    with pytest.raises(Exception, match="--max-positions"):
        measure("tupe_tiny", *small("tupe_tiny"), "--max-positions=100", length=140)


def test_bf16_on_a_cpu_is_autocast(measure, monkeypatch):
    from fairseq.criterions.masked_lm import MaskedLmLoss

    seen = []
    original = MaskedLmLoss.forward

    def forward(self, *arguments, **options):
        seen.append(torch.is_autocast_cpu_enabled())
        return original(self, *arguments, **options)

    monkeypatch.setattr(MaskedLmLoss, "forward", forward)
    assert measure("roberta", *small("roberta"), precision="bf16")["precision"] == "bf16"
    assert set(seen) == {True}
    setting = bench_train._setting(request("roberta", precision="bf16"))
    assert setting.dtype() == torch.bfloat16


def test_beam_search_writes_as_many_tokens_as_asked_for(measure, monkeypatch):
    from fairseq.tasks.translation import TranslationTask

    lengths = []
    original = TranslationTask.inference_step

    def inference_step(self, *arguments, **options):
        found = original(self, *arguments, **options)
        lengths.extend(len(sentence[0]["tokens"]) for sentence in found)
        return found

    monkeypatch.setattr(TranslationTask, "inference_step", inference_step)
    result = measure("tupe_transformer", *small("tupe_transformer"), decode=True)
    assert set(lengths) == {TINY["length"]}
    assert (result["tokens"], result["flops"], result["criterion"]) == (16, None, None)


def test_turns_are_taken_together():
    run = {"tokens": 10, "sentences": 2, "flops": 60, "threads": 2, "device": "cpu", "device_name": None}
    run |= {"precision": "fp32", "memory": {"peak_mb": 1.0, "gpu_allocated_mb": None}}
    turns = [{**run, "seconds": [1.0, 2.0], "cpu_seconds": [2.0, 2.0]}, {**run, "seconds": [3.0], "cpu_seconds": [8.0]}]
    turns[1]["memory"] = {"peak_mb": 5.0, "gpu_allocated_mb": None}
    found = bench.result(turns, peak=120.0)
    assert (found["seconds"]["median"], found["tokens_per_second"], found["flops_per_second"]) == (2.0, 5.0, 30.0)
    assert found["share_of_peak"] == 0.5, "by the seconds of the processor, of which each thread takes half"
    assert found["memory"] == {"peak_mb": 5.0, "gpu_allocated_mb": None}
    assert (found["vendor_peak"], found["sentences_per_second"]) == (None, 1.0)


def test_a_gpu_is_reported_beside_its_data_sheet():
    run = {"tokens": 10, "sentences": 2, "flops": 60e12, "threads": 1, "device": "cuda", "device_name": "NVIDIA H200"}
    run |= {"precision": "bf16", "memory": {"peak_mb": 1.0, "libraries_mb": 1.0, "gpu_allocated_mb": 2048.0}}
    run |= {"seconds": [0.2], "cpu_seconds": [0.1], "batch": {"sentences": 2, "length": 5, "padding": 0.0}}
    run |= {"attention": {"kernels": ["sdpa (flash)"], "choice": []}, "task": "masked_lm", "criterion": "masked_lm"}
    run |= {"parameters": 7, "flops_repeated": False}
    run["batch"]["vocabulary"] = 100
    found = bench.result([run], peak=600e12)
    assert found["share_of_vendor_peak"] == pytest.approx(300 / 989)
    machine = {"cpu": "x", "cpus": 2, "load": [0.0], "versions": {}}
    text = bench_report.render({"machine": machine, "mode": "train", "warmup": 2, "turns": 1, "results": {"a": found}})
    for expected in (
        "50.0% of the 600 T",
        "30.3% of the 989 T in the data sheet",
        "2,048 MiB of the GPU",
        "sdpa (flash)",
    ):
        assert expected in text


def run_json(capfd, *argv: str) -> dict:
    assert main(["bench", *argv, "--device", "cpu", "--json"]) == 0
    return json.loads(capfd.readouterr().out)


def test_the_command_compares_and_estimates(capfd):
    sizes = ["--length", "8", "--batch", "2", "--vocabulary", "32", "--steps", "2", "--warmup", "1", "--turns", "1"]
    shape = "--encoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2"
    training = ["--updates", "100", "--tokens-per-update", "1600", "--gpus", "4", "--scaling", "0.5"]
    other = f"tupe_tiny {shape} --rel-pos"
    record = run_json(capfd, "--arch", f"roberta {shape}", "--dropout", "0.0", "--compare", other, *sizes, *training)
    first, second = record["results"].values()
    assert list(record["results"])[1] == other
    assert (record["options"], len(first["all_seconds"])) == (["--dropout", "0.0"], 2)
    assert first["tokens_per_second"] == pytest.approx(16 / first["seconds"]["median"])
    assert record["relative"]["seconds"][other] == pytest.approx(
        second["seconds"]["median"] / first["seconds"]["median"]
    )
    hours = 100 * 1600 / (second["tokens_per_second"] * 4 * 0.5) / 3600
    assert record["estimate"][other]["hours"] == pytest.approx(hours)
    assert second["memory"]["peak_mb"] > second["memory"]["libraries_mb"] > 0
    text = bench_report.render(record)
    for expected in ("tokens/s", "measured here", "estimate, not a measurement", "eager", "against roberta"):
        assert expected in text


def test_an_assumed_device(monkeypatch):
    args = parsed("--arch", "x", "--updates", "10", "--tokens-per-update", "50", "--assume-tflops", "2")
    found = bench._estimate(args, {"tokens_per_second": 1.0, "flops_per_token": 4e9})
    assert (found["tokens_per_second"], found["assumed"]) == (500, True)
    with pytest.raises(OptionError, match="--assume-tflops"):
        bench._estimate(args, {"tokens_per_second": 1.0, "flops_per_token": None})


def parsed(*argv: str):
    from embinit_fairseq.cli.main import _parse

    return _parse(["bench", *argv])
