"""`embinit bench` in this process: what it counts against formulas, every family of models, errors of one line."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.trainer import Trainer
from small_models import BOS, EOS, PAD, task_of

from embinit_fairseq.bench import process, report, train
from embinit_fairseq.bench.steps import SMALL, Sizes, model_options, random_batch
from embinit_fairseq.cli import bench
from embinit_fairseq.cli.main import _parse
from embinit_fairseq.errors import EmbinitError


def attention(dropout=0.0, fused=True):
    q, k, v = (torch.randn((2, 3, 8, 4), requires_grad=True) for _ in range(3))
    if fused:
        return lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).sum().backward()
    return lambda: (torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v).sum().backward()


def test_flops_are_counted_forward_and_backward_and_the_kernel_is_named():
    layer, x = torch.nn.Linear(7, 11, bias=False), torch.randn(5, 7, requires_grad=True)
    assert train.counted_flops(lambda: layer(x).sum().backward()) == 3 * 2 * 5 * 7 * 11
    plain, first, second = "eager (matrix products and softmax)", attention(), attention(fused=False)
    for step, names in (
        (first, ["sdpa (flash)"]),
        (second, [plain]),
        (lambda: (first(), second()), [plain, "sdpa (flash)"]),
        (attention(dropout=0.5), ["sdpa (matrix products and softmax)"]),  # the fused kernel of a CPU has none
        (lambda: torch.ones(3).sum(), []),
    ):
        assert train.kernel_names(train.attention_operations(step)) == names
        if len(names) == 1 and "sdpa (m" not in names[0]:
            assert train.counted_flops(step) == 3 * 2 * (2 * 2 * 3 * 8 * 8 * 4)


TINY = {"steps": 1, "warmup": 0, "batch": 2, "length": 8, "vocabulary": 32}


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


def noted(monkeypatch, owner, method, note) -> list:
    """What `note` makes of (self, result) of every call of the method."""
    seen, original = [], getattr(owner, method)

    def call(self, *arguments, **options):
        found = original(self, *arguments, **options)
        seen.append(note(self, found))
        return found

    monkeypatch.setattr(owner, method, call)
    return seen


def test_a_step_of_a_language_model_is_a_full_one(monkeypatch):
    """The weights move: forward, backward and the optimizer, by fairseq's trainer; FLOPs are those of its products."""
    weights = noted(monkeypatch, Trainer, "train_step", lambda it, _: next(it.get_model().parameters()).sum().item())
    flags = ("layers=2", "embed-dim=16", "input-dim=16", "output-dim=16", "ffn-embed-dim=24", "attention-heads=2")
    result = measured("transformer_lm", *(f"--decoder-{flag}" for flag in flags), steps=2, warmup=1)
    assert len(set(weights)) == 5, "warm-up, two timed steps, one for the FLOPs, one for the kernel"
    projections, attention, feed_forward = 4 * 2 * 16 * 16 * 16, 2 * (2 * 16 * 8 * 16), 2 * (2 * 16 * 16 * 24)
    layer = projections + attention + feed_forward
    assert result["flops"] == 3 * (2 * layer + 2 * 16 * 16 * 32)  # 16 tokens; backward: for input and weight


def test_flops_of_masked_language_models_leave_out_what_is_not_predicted():
    """More positions than the architecture has; the head sees 21 masked tokens of a row of 140."""
    narrow, wide = (measured("tupe_tiny", length=140, vocabulary=size) for size in (32, 132))
    assert wide["tokens"] == 280
    assert wide["flops"] - narrow["flops"] == 3 * 2 * 2 * 21 * 16 * 100  # two rows, dimension 16, 100 symbols
    assert wide["attention"]["kernels"] == ["eager (matrix products and softmax)"]
    assert "attention in training on cpu: eager (" in wide["attention"]["choice"][0]


def test_padding_is_not_counted_and_bf16_on_a_cpu_is_autocast(monkeypatch):
    seen = noted(monkeypatch, MaskedLmLoss, "forward", lambda *_: torch.is_autocast_cpu_enabled())
    found = measured("roberta", length=20, padding=0.5, precision="bf16")
    assert (found["tokens"], found["precision"], set(seen)) == (30, "bf16", {True})
    dtypes = [train._setting(request("roberta", precision=name)).dtype() for name in ("bf16", "amp", "fp32", None)]
    assert dtypes == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]


@pytest.mark.parametrize(
    ("name", "left"),
    [("masked_lm", True), ("sentence_prediction", False), ("language_modeling", True), ("translation", True)],
)
def test_rows_end_in_eos_behind_padding_and_are_counted_without_it(name, left):
    task = task_of(25, masking=True, left_pad_source=left, left_pad_target=False)
    batch = random_batch(name, task, Sizes(sentences=5, length=40, vocabulary=30, padding=0.5), 1)
    tokens, lengths = batch["net_input"]["src_tokens"], batch["net_input"]["src_lengths"].tolist()
    assert lengths == tokens.ne(PAD).sum(1).tolist()
    assert (sorted(lengths), batch["ntokens"]) == ([20, 20, 40, 40, 40], 160)
    assert bool((tokens[:, 0] == PAD).any()) == (name == "translation")
    for row in tokens:
        row = row[row.ne(PAD)]
        assert (row[-1] == EOS, (row[:-1] == EOS).any()) == (True, False)
        assert (row[0] == BOS) == (name in ("masked_lm", "sentence_prediction"))
    if name == "masked_lm":
        assert batch["target"].ne(PAD).sum(1).tolist() == [6, 3, 6, 3, 6]  # 15 % of 40 and of 20
        assert torch.equal(tokens == 29, batch["target"].ne(PAD))


def test_peaks_are_those_of_data_sheets_and_others_are_not_guessed():
    peaks = {("NVIDIA H200", "bf16"): 989, ("NVIDIA H100 PCIe", "amp"): 756, ("NVIDIA A100-SXM4-80GB", "fp32"): 19.5}
    assert {key: report.vendor_peak(*key) / 1e12 for key in peaks} == peaks
    assert report.vendor_peak("Tesla V100-SXM2-32GB", "bf16") is report.vendor_peak("NVIDIA A10G", "fp16") is None


MEASURED = {
    **{"tokens": 10, "sentences": 2, "flops": 60e12, "threads": 2, "device": "cpu", "device_name": None},
    **{"precision": "bf16", "batch": {"sentences": 2, "length": 5, "padding": 0.0, "vocabulary": 100}},
    **{"attention": {"kernels": ["sdpa (flash)"], "choice": []}, "task": "masked_lm", "criterion": "masked_lm"},
    **{"parameters": 7, "flops_repeated": False, "seconds": [1.0, 2.0], "cpu_seconds": [2.0, 2.0]},
    "memory": {"peak_mb": 1.0, "libraries_mb": 1.0, "gpu_allocated_mb": None},
}


def test_turns_are_taken_together_and_hours_of_an_assumed_device():
    memory = {"peak_mb": 5.0, "libraries_mb": 1.0, "gpu_allocated_mb": None}
    other = {**MEASURED, "seconds": [3.0], "cpu_seconds": [8.0], "memory": memory}
    found = bench.result([MEASURED, other], peak=120e12)
    assert found["seconds"] == {"q1": 1.5, "median": 2.0, "q3": 2.5}
    assert [found[f"{name}_per_second"] for name in ("tokens", "flops", "sentences")] == [5.0, 30e12, 1.0]
    assert found["share_of_peak"] == 0.5, "by the seconds of the processor, of which each thread takes half"
    assert (found["memory"], found["vendor_peak"], found["flops_per_token"]) == (memory, None, 6e12)
    args = "--arch x --updates 1000 --tokens-per-update 3600 --assume-tflops 2 --gpus 4 --scaling 0.5"
    found = bench._estimate(_parse(["bench", *args.split()]), {"tokens_per_second": 1.0, "flops_per_token": 4e9})
    assert (found["tokens_per_second"], found["hours"], found["device_hours"]) == (500, 1, 4)


def test_errors_before_anything_is_measured(refused):
    for argv, said in (
        ("--max-tokens 100", "--max-tokens: .*--batch and --length"),
        ("--padding 1", "--padding 1.0: .*0 to 0.9"),
        ("--updates 3", "--updates and --tokens-per-update"),
        ("--gpus 3", "--gpus, .*add --updates"),
        ("--updates 3 --tokens-per-update 3 --assume-tflops inf", "--assume-tflops inf: .*finite"),
        ("--updates 3 --tokens-per-update 3 --decode", "--decode"),
        ("--turns 3", "--turns .*--compare"),
        ("--compare tupe_tiny", "--compare .*twice"),
        ("--compare 'tupe", "--compare .*quotation"),
    ):
        assert re.search(said, refused("bench", "--arch", "tupe_tiny", *argv.split()))


def test_errors_of_the_measuring_process():
    for command, changed, said in (
        ("tupe_tini", {}, "--arch tupe_tini: .*tupe_tiny"),
        ("tupe_tiny --rel-poss", {}, "--rel-poss .*--rel-pos,"),
        ("tupe_tiny --encoder-attention-heads=7", {}, "--encoder-attention-heads 7"),
        ("tupe_tiny", {"decode": True}, "--decode: .*does not translate"),
        ("tupe_tiny", {"precision": "fp16"}, "--precision fp16 .*bf16"),
        ("transformer_lm", {"batch": 10**7, "length": 10**4}, "--batch 10000000 of --length 10000 .*GiB"),
    ):
        with pytest.raises(EmbinitError, match=said):
            measured(*command.split(), **changed)
