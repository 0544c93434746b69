"""`embinit bench`: what it counts against formulas, every family of models, estimates, errors of one line.

Measured in this process; `integration/test_bench.py` has the processes.
"""

from __future__ import annotations

import json
import time

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer

from embinit_fairseq.bench import process, report, train
from embinit_fairseq.bench.steps import SMALL, model_options
from embinit_fairseq.cli import bench
from embinit_fairseq.cli.main import _parse, main
from embinit_fairseq.errors import EmbinitError, OptionError
from embinit_fairseq.machine import state as machine


def attention(shape=(2, 3, 8, 4), dropout=0.0):
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    return lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).sum().backward()


def eager(shape=(2, 3, 8, 4)):
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    return lambda: (torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v).sum().backward()


def test_flops_of_a_linear_layer_forward_and_backward():
    layer, x = torch.nn.Linear(7, 11, bias=False), torch.randn(5, 7, requires_grad=True)
    forward = 2 * 5 * 7 * 11
    assert train.counted_flops(lambda: layer(x)) == forward
    assert train.counted_flops(lambda: layer(x).sum().backward()) == 3 * forward


@pytest.mark.parametrize("step", [attention, eager])
def test_flops_of_attention_are_counted_whether_it_is_fused_or_not(step):
    batch, heads, length, width = 2, 3, 8, 4
    forward = 2 * (2 * batch * heads * length * length * width)
    assert train.counted_flops(step()) == 3 * forward


def test_the_kernel_is_named():
    def names(step):
        return train.kernel_names(train.attention_operations(step))

    plain = "eager (matrix products and softmax)"
    first, second = attention(), eager()
    assert names(attention()) == ["sdpa (flash)"]
    assert names(eager()) == [plain]
    assert names(lambda: (first(), second())) == [plain, "sdpa (flash)"]
    # the fused kernel of a CPU has no dropout
    assert names(attention(dropout=0.5)) == ["sdpa (matrix products and softmax)"]
    assert names(lambda: torch.ones(3).sum()) == []


def test_seconds_of_the_clock_and_of_the_processor():
    wall, cpu = train.timed(lambda: time.sleep(0.05), "cpu")
    assert wall >= 0.05
    assert cpu < 0.04


def test_the_peak_is_that_of_a_product_of_its_size(monkeypatch):
    """Work over seconds, with a clock that says how long."""
    ticks = iter(range(0, 1000))
    monkeypatch.setitem(train.PEAK_SIZE, "cpu", 32)
    monkeypatch.setattr(train, "clock", lambda device, threads: float(next(ticks)))
    assert train.matrix_peak("cpu", torch.float32) == 2 * 32**3


def test_the_machine_names_what_is_missing():
    record = machine(["torch", "no-such-package"])
    assert record["versions"]["no-such-package"] is None
    assert record["versions"]["torch"] == torch.__version__
    assert len(record["load"]) == 3


# --- steps of models

TINY = {"steps": 1, "warmup": 0, "batch": 2, "length": 8, "vocabulary": 32}
SIZES = ["--decoder-layers=2", "--decoder-embed-dim=16", "--decoder-input-dim=16", "--decoder-output-dim=16"]
SIZES += ["--decoder-ffn-embed-dim=24", "--decoder-attention-heads=2"]
FAMILIES = ["transformer", "roberta", "transformer_lm", "tupe_tiny", "electra_tiny", "tupe_transformer"]
FAMILIES += ["duo_transformer_tiny", "duo_classifier", "embinit_classifier"]


@pytest.fixture(autouse=True)
def small_peak(monkeypatch):
    monkeypatch.setitem(train.PEAK_SIZE, "cpu", 64)


def request(arch: str, *options: str, **changed) -> process.BenchRequest:
    asked = {"name": arch, "arch": arch, "options": options, "task": None, "padding": 0.0, "precision": None}
    asked |= {"device": "cpu", "decode": False, "beam": 2, "user_dir": None, **TINY, **changed}
    return process.BenchRequest(**asked)


def measured(arch: str, *options: str, **changed) -> dict:
    """With options that make it small; a step is announced for each that is timed, and each before those."""
    if not options and arch in train.ARCH_MODEL_REGISTRY:
        known = model_options(arch)
        options = tuple(f"{flag}={value}" for flag, value in SMALL.items() if known.get(flag) is int)
    asked, steps = request(arch, *options, **changed), []
    result = train.measure(asked, lambda: steps.append(1))
    assert len(steps) == len(result["seconds"]) + asked.warmup
    return result


@pytest.mark.parametrize("arch", FAMILIES)
def test_every_family_is_measured(arch):
    result = measured(arch, *(SIZES if arch == "transformer_lm" else ()), batch=3)
    assert min(result["seconds"][0], result["flops"], result["parameters"]) > 0
    assert (result["tokens"], result["sentences"], result["precision"]) == (24, 3, "fp32")
    if arch == "tupe_tiny":
        assert result["attention"]["kernels"] == ["eager (matrix products and softmax)"]
        assert "attention in training on cpu: eager (" in result["attention"]["choice"][0]
    elif arch != "duo_classifier":  # which attends by products of its own
        assert result["attention"]["kernels"]
    if arch == "transformer_lm":
        assert result["flops"] == flops_of_a_language_model(3, 8, 16, 24, 32, 2)


def flops_of_a_language_model(sentences, length, dim, inner, vocabulary, layers) -> int:
    """Multiplications and additions of every matrix product; backward has two of each: for its input and its weight."""
    tokens = sentences * length
    projections = 4 * 2 * tokens * dim * dim
    attention = 2 * (2 * sentences * length * length * dim)
    feed_forward = 2 * (2 * tokens * dim * inner)
    return 3 * (layers * (projections + attention + feed_forward) + 2 * tokens * dim * vocabulary)


def test_flops_of_masked_language_models_leave_out_what_is_not_predicted():
    """The head sees one masked token of a row of 8; a larger vocabulary costs by that."""
    narrow, wide = (measured("tupe_tiny", vocabulary=size)["flops"] for size in (32, 132))
    assert wide - narrow == 3 * 2 * 2 * 16 * 100  # forward and backward, two rows, dimension 16, 100 symbols


def test_padding_is_not_counted_and_bf16_on_a_cpu_is_autocast(monkeypatch):
    seen, original = [], MaskedLmLoss.forward

    def forward(self, *arguments, **options):
        seen.append(torch.is_autocast_cpu_enabled())
        return original(self, *arguments, **options)

    monkeypatch.setattr(MaskedLmLoss, "forward", forward)
    found = measured("roberta", length=20, padding=0.5, precision="bf16")
    assert (found["tokens"], found["precision"], set(seen)) == (30, "bf16", {True})
    dtypes = [train._setting(request("roberta", precision=name)).dtype() for name in ("bf16", "amp", "fp32", None)]
    assert dtypes == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]


def test_a_step_is_a_full_one(monkeypatch):
    """The weights move: forward, backward and the optimizer, by fairseq's trainer."""
    moved, original = [], Trainer.train_step

    def train_step(self, *arguments, **options):
        before = [parameter.detach().clone() for parameter in self.get_model().parameters()]
        original(self, *arguments, **options)
        after = list(self.get_model().parameters())
        moved.append(any(not torch.equal(old, new) for old, new in zip(before, after)))

    monkeypatch.setattr(Trainer, "train_step", train_step)
    measured("transformer_lm", *SIZES, steps=2, warmup=1)
    assert moved == [True] * 5, "warm-up, two timed steps, one for the FLOPs, one for the kernel"


def test_more_positions_where_the_architecture_has_too_few():
    assert measured("tupe_tiny", length=140)["tokens"] == 280
    with pytest.raises(Exception, match="--max-positions"):
        measured("tupe_tiny", "--max-positions=100", length=140)


def test_beam_search_writes_as_many_tokens_as_asked_for(monkeypatch):
    lengths, original = [], TranslationTask.inference_step

    def inference_step(self, *arguments, **options):
        found = original(self, *arguments, **options)
        lengths.extend(len(sentence[0]["tokens"]) for sentence in found)
        return found

    monkeypatch.setattr(TranslationTask, "inference_step", inference_step)
    result = measured("tupe_transformer", decode=True)
    assert set(lengths) == {TINY["length"]}
    assert (result["tokens"], result["flops"], result["criterion"]) == (16, None, None)


# --- what follows from measurements


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
    text = report.render({"machine": machine, "mode": "train", "warmup": 2, "turns": 1, "results": {"a": found}})
    for expected in (
        "50.0% of the 600 T",
        "30.3% of the 989 T in the data sheet",
        "2,048 MiB of the GPU",
        "sdpa (flash)",
    ):
        assert expected in text


def test_the_command_compares_and_estimates(capfd, monkeypatch):
    monkeypatch.setattr(bench, "measured", train.measure)
    sizes = ["--length", "8", "--batch", "2", "--vocabulary", "32", "--steps", "2", "--warmup", "1", "--turns", "1"]
    shape = "--encoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2"
    training = ["--updates", "100", "--tokens-per-update", "1600", "--gpus", "4", "--scaling", "0.5"]
    other = f"tupe_tiny {shape} --rel-pos"
    archs = ["--arch", f"roberta {shape}", "--dropout", "0.0", "--compare", other]
    assert main(["bench", *archs, *sizes, *training, "--device", "cpu", "--json"]) == 0
    record = json.loads(capfd.readouterr().out)
    first, second = record["results"].values()
    assert list(record["results"])[1] == other
    assert (record["options"], len(first["all_seconds"])) == (["--dropout", "0.0"], 2)
    median = first["seconds"]["median"]
    assert first["tokens_per_second"] == pytest.approx(16 / median)
    assert record["relative"]["seconds"][other] == pytest.approx(second["seconds"]["median"] / median)
    hours = 100 * 1600 / (second["tokens_per_second"] * 4 * 0.5) / 3600
    assert record["estimate"][other]["hours"] == pytest.approx(hours)
    assert first["memory"]["peak_mb"] >= first["memory"]["libraries_mb"] > 0
    text = report.render(record)
    for expected in ("tokens/s", "measured here", "estimate, not a measurement", "eager", "against roberta"):
        assert expected in text


def test_an_assumed_device():
    args = _parse(["bench", *"--arch x --updates 10 --tokens-per-update 50 --assume-tflops 2".split()])
    found = bench._estimate(args, {"tokens_per_second": 1.0, "flops_per_token": 4e9})
    assert (found["tokens_per_second"], found["assumed"]) == (500, True)
    with pytest.raises(OptionError, match="--assume-tflops"):
        bench._estimate(args, {"tokens_per_second": 1.0, "flops_per_token": None})


# --- errors


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--max-tokens", "100"], ["--max-tokens", "--batch and --length"]),
        (["--fp16"], ["--fp16", "--precision fp16"]),
        (["--padding", "1"], ["--padding 1.0", "0 to 0.9"]),
        (["--length", "3"], ["--length 3", "at least 4"]),
        (["--vocabulary", "9"], ["--vocabulary 9", "at least 16"]),
        (["--steps", "0"], ["--steps", "whole number from 1"]),
        (["--warmup", "-1"], ["--warmup", "--help"]),
        (["--updates", "3"], ["--updates and --tokens-per-update"]),
        (["--gpus", "3"], ["--gpus", "add --updates"]),
        (["--updates", "3", "--tokens-per-update", "3", "--scaling", "2"], ["--scaling 2.0"]),
        (["--updates", "3", "--tokens-per-update", "3", "--assume-tflops", "0"], ["--assume-tflops 0"]),
        (["--updates", "3", "--tokens-per-update", "3", "--assume-tflops", "inf"], ["--assume-tflops inf", "finite"]),
        (["--updates", "3", "--tokens-per-update", "1" + 400 * "0"], ["--tokens-per-update", "18 digits"]),
        (["--updates", "3", "--tokens-per-update", "3", "--decode"], ["--decode"]),
        (["--turns", "3"], ["--turns", "--compare"]),
        (["--compare", "tupe_tiny"], ["--compare", "twice"]),
        (["--compare", "'tupe"], ["--compare", "quotation"]),
        (["--decode", "--train"], ["not allowed with"]),
        (["--precision", "fp8"], ["--precision", "bf16"]),
    ],
)
def test_errors_before_anything_is_measured(capfd, argv, expected):
    assert main(["bench", "--arch", "tupe_tiny", *argv]) == 2
    captured = capfd.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1), captured.err
    for part in expected:
        assert part in captured.err


@pytest.mark.parametrize(
    ("arch", "options", "changed", "expected"),
    [
        ("tupe_tini", [], {}, ["--arch tupe_tini", "tupe_tiny"]),
        ("tupe_tiny", ["--rel-poss"], {}, ["--rel-poss", "--rel-pos"]),
        ("roberta", ["--zzz"], {}, ["--zzz", "--compare 'NAME --option'"]),
        ("tupe_tiny", ["--encoder-layers=many"], {}, ["--encoder-layers", "many"]),
        ("tupe_tiny", ["--encoder-attention-heads=7"], {}, ["--encoder-attention-heads 7"]),
        ("tupe_tiny", [], {"decode": True}, ["--decode", "does not translate"]),
        ("transformer", [], {"decode": True, "precision": "bf16"}, ["--decode --precision bf16", "fp16"]),
        ("tupe_tiny", [], {"precision": "fp16"}, ["--precision fp16", "bf16"]),
        ("transformer_lm", [], {"batch": 10**7, "length": 10**4}, ["--batch 10000000", "--length 10000", "GiB"]),
    ],
)
def test_errors_of_the_measuring_process(arch, options, changed, expected):
    with pytest.raises(EmbinitError) as error:
        measured(arch, *options, **changed)
    for part in expected:
        assert part in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(OptionError, match=r"--device cuda.*--device cpu"):
        measured("tupe_tiny", device="cuda")


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (MemoryError(), ["does not fit into the memory", "--batch or --length", "--precision bf16"]),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), ["does not fit", "--batch or --length"]),
        (AssertionError("embed_dim must be divisible"), ["fairseq refuses it", "AssertionError: embed_dim", "--task"]),
        (SystemExit(2), ["fairseq refuses it"]),
        (ImportError("no x"), ["no x", "embinit doctor"]),
        (OptionError("--beam 7"), ["--beam 7"]),
    ],
    ids=str,
)
def test_whatever_fails_in_the_process_is_one_line(monkeypatch, error, parts):
    def fails(*_):
        raise error

    monkeypatch.setattr(train, "measure", fails)
    answer = process._answer(request("roberta"), None)
    assert isinstance(answer, EmbinitError)
    assert all(part in str(answer) for part in parts), answer
    assert "\n" not in str(answer)


@pytest.mark.parametrize(
    ("code", "text", "parts"),
    [
        (-9, "", ["x: the process was killed", "a smaller --batch or --length"]),
        (-11, "a\nb\nc\nd\n", ["code -11 after: b | c | d", "--precision"]),
        (1, None, ["code 1. Try a smaller --batch"]),
    ],
)
def test_a_process_that_dies_is_one_line(tmp_path, code, text, parts):
    if text is not None:
        (tmp_path / "output").write_text(text)
    found = process._death(request("roberta", name="x"), code, tmp_path / "output")
    assert all(part in found for part in parts), found
