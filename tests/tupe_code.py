"""Models of TUPE's code for tests: its forward stated plainly, and files as its train.py writes them.

This file shares no code with the package. A model is its state dict, with TUPE's names.
"""

import contextlib
import sys
import types
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import tupe_reference as tupe

ENCODER = "decoder.sentence_encoder."
HEAD = "classification_heads.sentence_classification_head."
NUM_HEADS = 2
PAD = 1
#: their names of parameters in the encoder, and those of tupe_reference
NAMES = {
    **{"pos.": "positions.absolute.embed_positions.", "pos_ln.": "positions.absolute.layer_norm."},
    **{f"pos_{letter}_linear.": f"positions.absolute.{letter}_proj." for letter in "qk"},
    **{"relative_attention_bias.": "positions.relative.embed_buckets.", "emb_out_layer_norm.": "layer_norm."},
    "in_proj_": "qkv_proj.",
}


def make_weights(
    num_symbols=24, dim=8, ffn=12, layers=2, positions=16, rel_pos=True, emb_norm=True, pre_ln=False, classes=0, seed=0
) -> OrderedDict:
    """A state dict in single precision; every number is drawn, so that no two parameters can be exchanged unseen."""
    norm, square = [(dim,), (dim,)], [(dim, dim), (dim,)]
    shapes = {"embed_tokens": [(num_symbols, dim)], "pos": [(positions + 1, dim)]}
    shapes |= {"pos_q_linear": square, "pos_k_linear": square, "pos_ln": norm}
    for layer in (f"layers.{number}." for number in range(layers)):
        shapes |= {f"{layer}self_attn.in_proj": [(3 * dim, dim), (3 * dim,)], f"{layer}self_attn.out_proj": square}
        shapes |= {f"{layer}fc1": [(ffn, dim), (ffn,)], f"{layer}fc2": [(dim, ffn), (dim,)]}
        shapes |= {f"{layer}self_attn_layer_norm": norm, f"{layer}final_layer_norm": norm}
    shapes |= {"emb_layer_norm": norm} if emb_norm else {}
    shapes |= {"emb_out_layer_norm": norm} if pre_ln else {}
    shapes |= {"relative_attention_bias": [(33, NUM_HEADS)]} if rel_pos else {}
    shapes = {ENCODER + name: shape for name, shape in shapes.items()}
    shapes |= {"decoder.lm_head.dense": square, "decoder.lm_head.layer_norm": norm}
    if classes:
        shapes |= {HEAD + "dense": square, HEAD + "out_proj": [(classes, dim), (classes,)]}
    generator, state = torch.Generator().manual_seed(seed), OrderedDict()
    for name, of_parts in shapes.items():
        for part, shape in zip(("weight", "bias"), of_parts):
            key = f"{name}_{part}" if name.endswith("in_proj") else f"{name}.{part}"
            state[key] = torch.randn(shape, generator=generator) * 0.6 + 0.1
    state["decoder.lm_head.weight"] = state[ENCODER + "embed_tokens.weight"]
    state["decoder.lm_head.bias"] = torch.randn(num_symbols, generator=generator)
    return state


def features(w, tokens, num_heads=NUM_HEADS):
    """tokens (batch, length), padded on the right -> (batch, length, width), zero at padding."""
    encoder = tupe.below(w, ENCODER)
    for theirs, ours in NAMES.items():
        encoder = {name.replace(theirs, ours): value for name, value in encoder.items()}
    kind = {"kind": "untied", "reset": "official", "relative": "positions.relative.embed_buckets.weight" in encoder}
    kind["pre_ln"] = "layer_norm.weight" in encoder
    rows = [tupe.encode(encoder, row[row != PAD], num_heads, **kind)[-1] for row in tokens]
    return torch.stack([torch.nn.functional.pad(x, (0, 0, 0, tokens.shape[1] - len(x))) for x in rows])


def lm_logits(w, x):
    head = tupe.below(w, "decoder.lm_head.")
    return tupe.lm_logits(head, x, head["weight"])


def class_logits(w, x):
    return torch.stack([tupe.class_logits(tupe.below(w, HEAD), sentence) for sentence in x])


def words_of_dictionary(size=16):
    """Lines of their dict.txt for `size` symbols with the seven specials, rounded up by fillers that have no count."""
    words = [(f"w{number}", 100 - number) for number in range(size - 7 - 2)]
    return [*words, ("madeupword0000", 0), ("madeupword0001", 0)]


def write_dictionary(path: Path, entries) -> str:
    path.write_text("".join(f"{symbol} {count}\n" for symbol, count in entries), encoding="utf-8")
    return str(path)


def make_args(w, **changes) -> Namespace:
    """Options as their train.py stores them, after the model was built."""
    ffn, dim = w[ENCODER + "layers.0.fc1.weight"].shape
    values = {
        **{"arch": "bert_base", "task": "masked_lm", "criterion": "masked_lm", "data": "data-bin", "seed": 3},
        **{"encoder_layers": sum(key.endswith("fc1.weight") for key in w), "encoder_attention_heads": NUM_HEADS},
        **{"encoder_embed_dim": dim, "encoder_ffn_embed_dim": ffn},
        "encoder_normalize_before": ENCODER + "emb_out_layer_norm.weight" in w,
        "embedding_normalize": ENCODER + "emb_layer_norm.weight" in w,
        "rel_pos": ENCODER + "relative_attention_bias.weight" in w,
        **{"activation_fn": "gelu", "pooler_activation_fn": "tanh"},
        **{"dropout": 0.2, "attention_dropout": 0.15, "activation_dropout": 0.0, "pooler_dropout": 0.05},
        **{"max_positions": len(w[ENCODER + "pos.weight"]) - 1, "tokens_per_sample": 12},
        **{"sample_break_mode": "complete", "mask_prob": 0.15, "lr": [0.0001], "adam_betas": "(0.9, 0.999)"},
        **{"fp16": True, "keep_updates_list": [100000], "save_dir": "checkpoints"},
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
    package = sys.modules.get("fairseq") or types.ModuleType("fairseq")
    with mock.patch.dict(sys.modules, {"fairseq": package, "fairseq.meters": module}):
        yield module


def _meters(module) -> OrderedDict:
    meters = OrderedDict()
    for name, kind, attributes in (
        ("train_loss", "AverageMeter", {"val": 2.5, "avg": np.float64(2.5), "sum": 5.0, "count": 2}),
        ("gnorm", "AverageMeter", {"val": torch.tensor(1.5), "avg": 1.5, "sum": torch.tensor(3.0), "count": 2}),
        ("wps", "TimeMeter", {"init": 0, "start": 1.6e9, "n": 512}),
        ("train_wall", "StopwatchMeter", {"sum": 1.0, "n": 3, "start_time": None}),
    ):
        meters[name] = getattr(module, kind)()
        vars(meters[name]).update(attributes)
    return meters


def save(path, w, args, fp16=False, legacy=False, **changes) -> str:
    """A checkpoint as their train.py writes it. legacy: the format of PyTorch before 1.6. changes: of its content."""
    if fp16:
        w = OrderedDict((name, value.half()) for name, value in w.items())
        w["decoder.lm_head.weight"] = w[ENCODER + "embed_tokens.weight"]  # stored once
    history = {"criterion_name": "MaskedLmLoss", "optimizer_name": "FP16Optimizer" if fp16 else "FairseqAdam"}
    flat = OrderedDict({"step": 7, "exp_avg": torch.zeros(40), "exp_avg_sq": torch.ones(40)})
    with their_meters() as module:
        extra = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 7}, "train_meters": _meters(module)}
        groups = [{"lr": 1e-4, "params": [140213]}]
        state = {
            **{"args": args, "model": w, "extra_state": {**extra, "val_loss": np.float64(2.25), "best": 2.25}},
            "optimizer_history": [{**history, "lr_scheduler_state": {"best": None}, "num_updates": 7}],
            "last_optimizer_state": OrderedDict(state=OrderedDict({140213: flat}), param_groups=groups),
        }
        torch.save({**state, **changes}, path, _use_new_zipfile_serialization=not legacy)
    return str(path)
