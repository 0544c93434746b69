"""Models of the TUPE authors' code for tests: their forward stated plainly, and files as their train.py writes them.

Shares no code with the package. A model is its state dict, in their names.
"""

from __future__ import annotations

import contextlib
import math
import sys
import types
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch

ENCODER = "decoder.sentence_encoder."
HEAD = "classification_heads.sentence_classification_head."
NUM_HEADS = 2
PAD = 1


def make_weights(
    num_symbols=24, dim=8, ffn=12, layers=2, positions=16, rel_pos=True, emb_norm=True, pre_ln=False, classes=0, seed=0
) -> OrderedDict:
    """A state dict in single precision; every number is drawn, so that no two parameters can be exchanged unseen."""
    shapes = {"embed_tokens": [(num_symbols, dim)], "pos": [(positions + 1, dim)]}
    shapes |= {"pos_q_linear": [(dim, dim), (dim,)], "pos_k_linear": [(dim, dim), (dim,)], "pos_ln": [(dim,), (dim,)]}
    for number in range(layers):
        layer = f"layers.{number}."
        shapes[f"{layer}self_attn.in_proj"] = [(3 * dim, dim), (3 * dim,)]
        shapes[f"{layer}self_attn.out_proj"] = [(dim, dim), (dim,)]
        shapes[f"{layer}self_attn_layer_norm"] = [(dim,), (dim,)]
        shapes[f"{layer}fc1"] = [(ffn, dim), (ffn,)]
        shapes[f"{layer}fc2"] = [(dim, ffn), (dim,)]
        shapes[f"{layer}final_layer_norm"] = [(dim,), (dim,)]
    if emb_norm:
        shapes["emb_layer_norm"] = [(dim,), (dim,)]
    if pre_ln:
        shapes["emb_out_layer_norm"] = [(dim,), (dim,)]
    if rel_pos:
        shapes["relative_attention_bias"] = [(33, NUM_HEADS)]
    shapes = {ENCODER + name: shape for name, shape in shapes.items()}
    shapes["decoder.lm_head.dense"] = shapes["decoder.lm_head.layer_norm"] = [(dim,), (dim,)]
    shapes["decoder.lm_head.dense"] = [(dim, dim), (dim,)]
    if classes:
        shapes |= {HEAD + "dense": [(dim, dim), (dim,)], HEAD + "out_proj": [(classes, dim), (classes,)]}
    generator, state = torch.Generator().manual_seed(seed), OrderedDict()
    for name, (weight, *bias) in shapes.items():
        parts = {"weight": weight} | ({"bias": bias[0]} if bias else {})
        for part, shape in parts.items():
            key = f"{name}_{part}" if name.endswith("in_proj") else f"{name}.{part}"
            state[key] = torch.randn(shape, generator=generator) * 0.6 + 0.1
    state["decoder.lm_head.weight"] = state[ENCODER + "embed_tokens.weight"]
    state["decoder.lm_head.bias"] = torch.randn(num_symbols, generator=generator)
    return state


def linear(w, name, x):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def norm(w, name, x):
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred**2).mean(-1, keepdim=True)
    return centred / (variance + 1e-5).sqrt() * w[name + ".weight"] + w[name + ".bias"]


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def bucket(query, key):
    """The 32 buckets of T5 up to distance 128, with the two that stand for `<s>`."""
    if query == 0:
        return 16
    if key == 0:
        return 32
    distance, first = abs(key - query), 16 if key > query else 0
    if distance < 8:
        return first + distance
    return first + min(15, 8 + int(8 * math.log(distance / 8) / math.log(16) + 1e-9))


def positional_bias(w, length, num_heads=NUM_HEADS):
    """(heads, length, length), the same for all layers and sentences."""
    p = norm(w, ENCODER + "pos_ln", w[ENCODER + "pos.weight"][: length + 1])
    q, k = linear(w, ENCODER + "pos_q_linear", p), linear(w, ENCODER + "pos_k_linear", p)
    size = p.shape[1] // num_heads
    bias = torch.zeros(num_heads, length, length, dtype=p.dtype)
    for head in range(num_heads):
        part = slice(head * size, (head + 1) * size)
        products = q[:, part] @ k[:, part].T / math.sqrt(2 * size)
        bias[head] = products[1:, 1:]  # column i has row i + 1
        bias[head, :, 0] = products[1, 1]
        bias[head, 0, :] = products[0, 0]
    table = w.get(ENCODER + "relative_attention_bias.weight")
    if table is not None:
        bias += torch.stack([table[[bucket(i, j) for j in range(length)]] for i in range(length)]).permute(2, 0, 1)
    return bias


def attention(w, name, x, bias, padding, num_heads):
    size = x.shape[-1] // num_heads
    matrix, offset = w[f"{name}.in_proj_weight"], w[f"{name}.in_proj_bias"]
    q, k, v = (x @ m.T + o for m, o in zip(matrix.chunk(3), offset.chunk(3)))
    outputs = []
    for head in range(num_heads):
        part = slice(head * size, (head + 1) * size)
        scores = (q[..., part] / math.sqrt(2 * size)) @ k[..., part].transpose(1, 2) + bias[head]
        scores = scores.masked_fill(padding[:, None, :], -math.inf)
        outputs.append(scores.softmax(-1) @ v[..., part])
    return linear(w, f"{name}.out_proj", torch.cat(outputs, -1))


def features(w, tokens, num_heads=NUM_HEADS):
    """tokens (batch, length), padded on the right -> (batch, length, width); no meaning at padding."""
    padding = tokens == PAD
    x = w[ENCODER + "embed_tokens.weight"][tokens]
    if ENCODER + "emb_layer_norm.weight" in w:
        x = norm(w, ENCODER + "emb_layer_norm", x)
    x = x * ~padding[..., None]
    bias = positional_bias(w, tokens.shape[1], num_heads)
    pre_ln, number = ENCODER + "emb_out_layer_norm.weight" in w, 0
    while f"{ENCODER}layers.{number}.fc1.weight" in w:
        layer = f"{ENCODER}layers.{number}."
        inner = norm(w, layer + "self_attn_layer_norm", x) if pre_ln else x
        x = x + attention(w, layer + "self_attn", inner, bias, padding, num_heads)
        x = x if pre_ln else norm(w, layer + "self_attn_layer_norm", x)
        inner = norm(w, layer + "final_layer_norm", x) if pre_ln else x
        x = x + linear(w, layer + "fc2", gelu(linear(w, layer + "fc1", inner)))
        x = x if pre_ln else norm(w, layer + "final_layer_norm", x)
        number += 1
    return norm(w, ENCODER + "emb_out_layer_norm", x) if pre_ln else x


def lm_logits(w, x):
    x = norm(w, "decoder.lm_head.layer_norm", gelu(linear(w, "decoder.lm_head.dense", x)))
    return x @ w["decoder.lm_head.weight"].T + w["decoder.lm_head.bias"]


def class_logits(w, x):
    return linear(w, HEAD + "out_proj", torch.tanh(linear(w, HEAD + "dense", x[:, 0])))


def words_of_dictionary(size=16):
    """Lines of their dict.txt for `size` symbols with the seven specials, rounded up by fillers that have no count."""
    words = [(f"w{number}", 100 - number) for number in range(size - 7 - 2)]
    return [*words, ("madeupword0000", 0), ("madeupword0001", 0)]


def write_dictionary(path: Path, entries) -> str:
    path.write_text("".join(f"{symbol} {count}\n" for symbol, count in entries), encoding="utf-8")
    return str(path)


def make_args(w, **changes) -> Namespace:
    """Options as their train.py stores them, after the model was built."""
    layer = ENCODER + "layers.0.fc1.weight"
    values = {
        "arch": "bert_base",
        "task": "masked_lm",
        "criterion": "masked_lm",
        "data": "data-bin",
        "seed": 3,
        "encoder_layers": sum(key.endswith("fc1.weight") for key in w),
        "encoder_embed_dim": w[layer].shape[1],
        "encoder_ffn_embed_dim": w[layer].shape[0],
        "encoder_attention_heads": NUM_HEADS,
        "encoder_normalize_before": ENCODER + "emb_out_layer_norm.weight" in w,
        "embedding_normalize": ENCODER + "emb_layer_norm.weight" in w,
        "rel_pos": ENCODER + "relative_attention_bias.weight" in w,
        "activation_fn": "gelu",
        "pooler_activation_fn": "tanh",
        "dropout": 0.2,
        "attention_dropout": 0.15,
        "activation_dropout": 0.0,
        "pooler_dropout": 0.05,
        "max_positions": w[ENCODER + "pos.weight"].shape[0] - 1,
        "tokens_per_sample": 12,
        "sample_break_mode": "complete",
        "mask_prob": 0.15,
        "lr": [0.0001],
        "adam_betas": "(0.9, 0.999)",
        "fp16": True,
        "keep_updates_list": [100000],
        "save_dir": "checkpoints",
    }
    return Namespace(**{**values, **changes})


def fine_tuned(**changes) -> dict:
    """What differs in the options of a fine-tuned model."""
    options = {"task": "sentence_prediction", "criterion": "sentence_prediction", "num_classes": 3, "init_token": 0}
    options |= {"separator_token": 2, "truncate_sequence": True, "regression_target": False}
    return {**options, **changes}


@contextlib.contextmanager
def their_meters():
    """Objects of the class AverageMeter, TimeMeter and StopwatchMeter of a module fairseq.meters, as pickle sees it."""
    module = types.ModuleType("fairseq.meters")
    for name in ("AverageMeter", "TimeMeter", "StopwatchMeter"):
        setattr(module, name, type(name, (), {"__module__": "fairseq.meters"}))
    before = {name: sys.modules.get(name) for name in ("fairseq", "fairseq.meters")}
    sys.modules.update({"fairseq": before["fairseq"] or types.ModuleType("fairseq"), "fairseq.meters": module})
    try:
        yield module
    finally:
        for name, old in before.items():
            sys.modules.pop(name)
            if old is not None:
                sys.modules[name] = old


def _meters(module) -> OrderedDict:
    values = {
        "train_loss": (module.AverageMeter, {"val": 2.5, "avg": np.float64(2.5), "sum": 5.0, "count": 2}),
        "gnorm": (module.AverageMeter, {"val": torch.tensor(1.5), "avg": 1.5, "sum": torch.tensor(3.0), "count": 2}),
        "wps": (module.TimeMeter, {"init": 0, "start": 1.6e9, "n": 512}),
        "train_wall": (module.StopwatchMeter, {"sum": 1.0, "n": 3, "start_time": None}),
    }
    meters = OrderedDict()
    for name, (kind, attributes) in values.items():
        meters[name] = kind()
        vars(meters[name]).update(attributes)
    return meters


def save(path, w, args, fp16=False, legacy=False, **changes) -> str:
    """A checkpoint as their train.py writes it. legacy: the format of PyTorch before 1.6. changes: of its content."""
    if fp16:
        w = OrderedDict((name, value.half()) for name, value in w.items())
        w["decoder.lm_head.weight"] = w[ENCODER + "embed_tokens.weight"]  # stored once
    history = {"criterion_name": "MaskedLmLoss", "optimizer_name": "FP16Optimizer" if fp16 else "FairseqAdam"}
    flat = {"step": 7, "exp_avg": torch.zeros(40), "exp_avg_sq": torch.ones(40)}
    with their_meters() as module:
        state = {
            "args": args,
            "model": w,
            "optimizer_history": [{**history, "lr_scheduler_state": {"best": None}, "num_updates": 7}],
            "extra_state": {
                "train_iterator": {"epoch": 1, "iterations_in_epoch": 7},
                "val_loss": np.float64(2.25),
                "best": 2.25,
                "train_meters": _meters(module),
            },
            "last_optimizer_state": OrderedDict(
                state=OrderedDict({140213: OrderedDict(flat)}), param_groups=[{"lr": 1e-4, "params": [140213]}]
            ),
        }
        torch.save({**state, **changes}, path, _use_new_zipfile_serialization=not legacy)
    return str(path)
