"""What is measured of a step: FLOPs against a formula, the kernel of attention, memory, seconds."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F

from embinit_fairseq.bench import train as bench_measure
from embinit_fairseq.machine import peak_mb
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
    assert bench_measure.counted_flops(lambda: layer(x)) == forward
    assert bench_measure.counted_flops(lambda: layer(x).sum().backward()) == 3 * forward


@pytest.mark.parametrize("step", [attention, eager])
def test_flops_of_attention_are_counted_whether_it_is_fused_or_not(step):
    batch, heads, length, width = 2, 3, 8, 4
    forward = 2 * (2 * batch * heads * length * length * width)
    assert bench_measure.counted_flops(step()) == 3 * forward


def test_the_kernel_is_named():
    for step, name in ((attention(), "sdpa (flash)"), (eager(), "eager (matrix products and softmax)")):
        assert bench_measure.kernel_names(bench_measure.attention_operations(step)) == [name]
    plain = bench_measure.attention_operations(attention(dropout=0.5))  # the fused kernel of a CPU has no dropout
    assert bench_measure.kernel_names(plain) == ["sdpa (matrix products and softmax)"]


def test_two_kernels_in_one_step_are_both_named():
    first, second = attention(), eager()
    names = bench_measure.kernel_names(bench_measure.attention_operations(lambda: (first(), second())))
    assert names == ["eager (matrix products and softmax)", "sdpa (flash)"]


def test_a_step_without_attention_has_no_kernel():
    assert bench_measure.kernel_names(bench_measure.attention_operations(lambda: torch.ones(3).sum())) == []


def test_seconds_of_the_clock_and_of_the_processor():
    wall, cpu = bench_measure.timed(lambda: time.sleep(0.2), "cpu")
    assert wall >= 0.2
    assert cpu < 0.1


def test_the_peak_is_that_of_a_product_of_its_size(monkeypatch):
    """Work over seconds, with a clock that says how long."""
    ticks = iter(range(0, 1000))
    monkeypatch.setitem(bench_measure.PEAK_SIZE, "cpu", 32)
    monkeypatch.setattr(bench_measure, "clock", lambda device, threads: float(next(ticks)))
    assert bench_measure.matrix_peak("cpu", torch.float32) == 2 * 32**3


def test_memory_at_its_peak_grows_with_what_is_held():
    before = peak_mb()
    held = torch.ones(64 * 2**20 // 4 + int(before * 2**20) // 4)
    assert peak_mb() > before + 32
    assert held.numel()


def test_the_machine_names_what_is_missing():
    record = machine(["torch", "no-such-package"])
    assert record["versions"]["no-such-package"] is None
    assert record["versions"]["torch"] == torch.__version__
    assert len(record["load"]) == 3
