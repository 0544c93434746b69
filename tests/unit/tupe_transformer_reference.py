"""`tupe_transformer` stated plainly: one sentence at a time, one head at a time, no padding, no cache.

Everything is read from the model's named parameters, so that gradients can be compared as well. Dropout is the visible
one of tupe_reference: a factor of 1 + p.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional
from tupe_reference import bucket


def reference(model, source, previous, layers=None):
    """source (S,) and previous (T,), lists of ids without padding -> logits (T, V), attention (heads, T, S) of the last
    layer, or of the last of so many."""
    cfg, weights = model.cfg, []
    w = _Part(dict(model.named_parameters(remove_duplicate=False)), "", cfg, model.training)
    memory = encoder(model, source)[0]
    x = _embedded(w, "decoder", previous)
    bias = _positions(w, "decoder", len(previous))
    future = torch.full((len(previous), len(previous)), -math.inf, dtype=x.dtype).triu(1)
    before = cfg.decoder_normalize_before
    for number in range(layers or cfg.decoder_layers):
        layer = w.below(f"decoder.layers.{number}.")
        x = _sublayer(layer, "self_attn_layer_norm", before, x, lambda y, w=layer: _self(w, y, bias + future))
        x = _sublayer(layer, "encoder_attn_layer_norm", before, x, lambda y, w=layer: _cross(w, y, memory, weights))
        x = _sublayer(layer, "final_layer_norm", before, x, lambda y, w=layer: _ffn(w, y))
    if before:
        x = w.norm("decoder.layer_norm", x)
    return x @ w["decoder.output_projection.weight"].T, torch.stack(weights[-cfg.decoder_attention_heads :])


def encoder(model, source):
    """The encoder's output (S, C), as the only stream of a list."""
    w = _Part(dict(model.named_parameters(remove_duplicate=False)), "", model.cfg, model.training)
    x, bias = _embedded(w, "encoder", source), _positions(w, "encoder", len(source))
    before = w.cfg.encoder_normalize_before
    for number in range(w.cfg.encoder_layers):
        layer = w.below(f"encoder.layers.{number}.")
        x = _sublayer(layer, "self_attn_layer_norm", before, x, lambda y, w=layer: _self(w, y, bias))
        x = _sublayer(layer, "final_layer_norm", before, x, lambda y, w=layer: _ffn(w, y))
    return [w.norm("encoder.layer_norm", x) if before else x]


class _Part:
    """Parameters below a prefix, and what is done with them."""

    def __init__(self, weights, prefix, cfg, training):
        self.weights, self.prefix, self.cfg, self.training = weights, prefix, cfg, training

    def below(self, prefix):
        return _Part(self.weights, self.prefix + prefix, self.cfg, self.training)

    def linear(self, name, x):
        return x @ self[f"{name}.weight"].T + self[f"{name}.bias"]

    def norm(self, name, x):
        return functional.layer_norm(x, x.shape[-1:], self[f"{name}.weight"], self[f"{name}.bias"])

    def drop(self, x, option="dropout"):
        return x * (1 + getattr(self.cfg, option)) if self.training else x

    def __getitem__(self, name):
        return self.weights[self.prefix + name]


def _sublayer(w, norm, normalize_before, x, block):
    if normalize_before:
        return x + w.drop(block(w.norm(norm, x)))
    return w.norm(norm, x + w.drop(block(x)))


def _embedded(w, side, tokens):
    table = w[f"{side}.embed_tokens.weight"]
    return w.drop(table[tokens] * (1.0 if w.cfg.no_scale_embedding else math.sqrt(table.shape[1])))


def _positions(w, side, length):
    """(heads, length, length): (LN(p_i) U_Q) (LN(p_j) U_K) / sqrt(2 d) + b_{j - i}."""
    cfg, heads = w.cfg, getattr(w.cfg, f"{side}_attention_heads")
    w = w.below(f"{side}.positions.absolute.")
    p = w.norm("layer_norm", w["embed_positions.weight"][:length])
    q, k = w.linear("q_proj", p).chunk(heads, dim=1), w.linear("k_proj", p).chunk(heads, dim=1)
    bias = torch.stack([q[h] @ k[h].T / math.sqrt(2 * q[h].shape[1]) for h in range(heads)])
    if not cfg.rel_pos:
        return bias
    table = w.weights[f"{side}.positions.relative.embed_buckets.weight"]
    sizes = cfg.rel_pos_bins, cfg.max_rel_pos, side == "encoder"
    buckets = [[bucket(j - i, *sizes) for j in range(length)] for i in range(length)]
    return bias + table[torch.tensor(buckets)].permute(2, 0, 1)


def _self(w, x, bias):
    q, k, v = (part.chunk(len(bias), dim=1) for part in w.linear("self_attn.qkv_proj", x).chunk(3, dim=1))
    outputs = []
    for h in range(len(bias)):
        scores = q[h] @ k[h].T / math.sqrt(2 * q[h].shape[1]) + bias[h]
        outputs.append(w.drop(scores.softmax(dim=1), "attention_dropout") @ v[h])
    return w.linear("self_attn.out_proj", torch.cat(outputs, dim=1))


def _cross(w, x, memory, weights):
    heads = w.cfg.decoder_attention_heads
    q = w.linear("encoder_attn.q_proj", x).chunk(heads, dim=1)
    k, v = (part.chunk(heads, dim=1) for part in w.linear("encoder_attn.kv_proj", memory).chunk(2, dim=1))
    outputs = []
    for h in range(heads):
        weights.append((q[h] @ k[h].T / math.sqrt(q[h].shape[1])).softmax(dim=1))
        outputs.append(w.drop(weights[-1], "attention_dropout") @ v[h])
    return w.linear("encoder_attn.out_proj", torch.cat(outputs, dim=1))


def _ffn(w, x):
    activation = {"relu": torch.relu, "gelu": functional.gelu}[w.cfg.activation_fn]
    return w.linear("fc2", w.drop(activation(w.linear("fc1", x)), "activation_dropout"))
