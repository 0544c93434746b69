"""benchmarks/train_step.py: FLOPs against formulas, the names of kernels, batches without their padding."""

import argparse

import pytest
import torch
import torch.nn.functional as F
import train_step
from small_models import PAD, task_of

from embinit_fairseq.models._random_step import Sizes, random_batch


def attention(dropout=0.0, fused=True):
    q, k, v = (torch.randn((2, 3, 8, 4), requires_grad=True) for _ in range(3))
    if fused:
        return lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).sum().backward()
    return lambda: (torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v).sum().backward()


def test_flops_are_counted_forward_and_backward_and_the_kernel_is_named():
    layer, x = torch.nn.Linear(7, 11, bias=False), torch.randn(5, 7, requires_grad=True)
    assert train_step.counted_flops(lambda: layer(x).sum().backward()) == 3 * 2 * 5 * 7 * 11
    eager = "eager (matrix products and softmax)"
    for step, name in ((attention(), "sdpa (flash)"), (attention(fused=False), eager)):
        assert train_step.kernel_names(train_step.attention_operations(step)) == [name]
        assert train_step.counted_flops(step) == 3 * 2 * (2 * 2 * 3 * 8 * 8 * 4)


def test_flops_of_a_language_model_are_those_of_its_products_and_the_table_has_its_rates(monkeypatch):
    monkeypatch.setitem(train_step.PEAK_SIZE, "cpu", 64)
    sizes = {"batch": 2, "length": 8, "vocabulary": 32, "padding": 0.0, "steps": 1, "warmup": 0}
    flags = ("layers=2", "embed-dim=16", "input-dim=16", "output-dim=16", "ffn-embed-dim=24", "attention-heads=2")
    options = [f"--decoder-{flag}" for flag in flags]
    found = train_step.measure("transformer_lm", options, argparse.Namespace(precision="fp32", **sizes))
    projections, products, feed_forward = 4 * 2 * 16 * 16 * 16, 2 * (2 * 16 * 8 * 16), 2 * (2 * 16 * 16 * 24)
    assert found["flops"] == 3 * (2 * (projections + products + feed_forward) + 2 * 16 * 16 * 32)
    result = train_step.merged([found, found])
    assert len(result["seconds"]) == 2
    text = train_step.render([result], argparse.Namespace(updates=10, tokens_per_update=240, gpus=2))
    assert f"{10 * 240 / (result['tokens_per_second'] * 2) / 3600:,.4g} hours" in text


@pytest.mark.parametrize("name", ["masked_lm", "sentence_prediction", "language_modeling", "translation"])
def test_batches_are_counted_without_their_padding(name):
    task = task_of(25, masking=True, left_pad_source=name == "translation", left_pad_target=False)
    batch = random_batch(name, task, Sizes(sentences=5, length=40, vocabulary=30, padding=0.5), 1)
    tokens, lengths = batch["net_input"]["src_tokens"], batch["net_input"]["src_lengths"].tolist()
    assert lengths == tokens.ne(PAD).sum(1).tolist()
    assert (sorted(lengths), batch["ntokens"]) == ([20, 20, 40, 40, 40], 160)
