"""The Duo transformer stated plainly: sentence by sentence, head by head, no padding, no cache.

Streams are two variables, s and p, not an axis. Everything is read from the model's named parameters, so that gradients
can be compared as well. Dropout is the visible one of tupe_reference: a factor of 1 + p.
"""

from __future__ import annotations

import math

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from tupe_reference import gelu, linear, normed

S, P = 0, 1


def reference(model, source, previous, layers=None):
    """source (S,) and previous (T,), lists of ids without padding -> logits (T, V), attention (heads, T, S) of the last
    layer, or of the last of so many: the mean of both streams."""
    w = Weights(model)
    memory = encoder(model, source)
    x, attention = embedded(w, "decoder", previous), None
    for number in range(layers or w.cfg.decoder_layers):
        layer = w.below("decoder", number)
        x = attended(layer, "self_attn", "decoder", x, lambda x, w=layer: self_attention(w, x, causal=True))
        x, attention = attended(layer, "encoder_attn", "decoder", x, lambda x, w=layer: cross_attention(w, x, memory))
        x = feed_forward(layer, "decoder", x)
    if w.cfg.decoder_normalize_before:
        x = [normed(w, "decoder.layer_norm", one) for one in x]
    return logits(w, x), torch.stack(attention).mean(0)


def encoder(model, source):
    """The streams of the encoder's output, (S, C) each."""
    w = Weights(model)
    x = embedded(w, "encoder", source)
    for number in range(w.cfg.encoder_layers):
        layer = w.below("encoder", number)
        x = attended(layer, "self_attn", "encoder", x, lambda x, w=layer: self_attention(w, x, causal=False))
        x = feed_forward(layer, "encoder", x)
    return [normed(w, "encoder.layer_norm", one) for one in x] if w.cfg.encoder_normalize_before else x


class Weights(dict):
    """Parameters by name, those of one layer with `below`; the options; visible dropout."""

    def __init__(self, model, named=None, cfg=None):
        super().__init__(named if named is not None else model.named_parameters(remove_duplicate=False))
        self.model, self.cfg = model, cfg or model.cfg

    def below(self, side, number):
        prefix = f"{side}.layers.{number}."
        return Weights(self.model, {k[len(prefix) :]: v for k, v in self.items() if k.startswith(prefix)}, self.cfg)

    def drop(self, x, option="dropout"):
        return x * (1 + getattr(self.cfg, option)) if self.model.training else x

    def heads(self, side):
        return getattr(self.cfg, f"{side}_attention_heads")


def embedded(w, side, tokens):
    """sqrt(C) (E_s[token] M_s^T + b_s) + position, for each stream."""
    cfg, streams = w.cfg, []
    width = (cfg.decoder_embed_dim if side == "decoder" else None) or cfg.encoder_embed_dim
    for suffix in ["", "_p"][: cfg.duo_streams]:
        x = w[f"{side}.embedding.embed_tokens{suffix}.weight"][tokens]
        if f"{side}.embedding.embed_map{suffix}.weight" in w:
            x = linear(w, f"{side}.embedding.embed_map{suffix}", x)
        if not cfg.no_scale_embedding:
            x = x * math.sqrt(width)
        if not cfg.no_token_positional_embeddings:
            x = x + positions(w, side, len(tokens), width)
        streams.append(w.drop(x))
    return streams


def positions(w, side, length, width):
    """The first word has position 2: rows 0 and 1 are <s> and <pad> in fairseq's count."""
    if getattr(w.cfg, f"{side}_learned_pos"):
        return w[f"{side}.embedding.embed_positions.weight"][2 : 2 + length]
    return SinusoidalPositionalEmbedding.get_embedding(2 + length, width)[2:].double()


def attended(w, name, side, x, attention):
    """Attention with residual and norm. attention(streams) -> A^S, A^P, and what else it has to say."""
    norm, before = f"{name}_layer_norm", getattr(w.cfg, f"{side}_normalize_before")
    inside = [normed(w, norm, one) for one in x] if before else x
    (a_s, *a_p), *more = attention(inside)
    if len(x) == 1:
        x = [x[S] + w.drop(a_s)]
    elif w.cfg.duo_norm in ("all", side):
        x = [x[S] + w.drop(a_s), x[P] + w.drop(a_p[0])]
    else:  # A^S was asked for by P
        x = [x[S] + w.drop(a_p[0]), x[P] + w.drop(a_s)]
    x = x if before else [normed(w, norm, one) for one in x]
    return (x, *more) if more else x


def self_attention(w, x, causal):
    """Equations (4) and (5) -> ([A^S, A^P],)."""
    if "self_attn.q_proj.weight" in w:
        q, (k, v) = queries(w, "self_attn", x), keys_and_values(w, "self_attn", x, x[S].shape[1])
    else:
        matrix, bias, width = w["self_attn.in_proj.weight"], w["self_attn.in_proj.bias"], x[S].shape[1]
        parts = [(one @ matrix[at].T + bias[at]).split(width, dim=1) for at, one in enumerate(x)]
        q, k, v = ([part[at] for part in parts] for at in (0, 1, -1))  # two parts: keys and values are the same
    side = "decoder" if causal else "encoder"
    return (crossed(w, w.heads(side), "self_attn", q, k, v, causal)[0],)


def cross_attention(w, x, memory):
    """C^S = MultiHead(y^P, h^P, h^S), C^P = MultiHead(y^S, h^S, h^P) -> [C^S, C^P], their probabilities."""
    k, v = keys_and_values(w, "encoder_attn", memory, x[S].shape[1])
    return crossed(w, w.heads("decoder"), "encoder_attn", queries(w, "encoder_attn", x), k, v, False)


def queries(w, name, x):
    """Each stream by its own matrix."""
    matrix, bias = w[f"{name}.q_proj.weight"], w[f"{name}.q_proj.bias"]
    return [one @ matrix[at].T + bias[at] for at, one in enumerate(x)]


def keys_and_values(w, name, x, width):
    """pair: all streams by the same W_K and W_V; else each by its own, which may be one for both."""
    matrix, bias = w[f"{name}.kv_proj.weight"], w[f"{name}.kv_proj.bias"]
    if w.cfg.duo_share_weights == "pair":
        w_k, w_v, b_k, b_v = matrix[:width], matrix[width:], bias[:width], bias[width:]
        return [one @ w_k.T + b_k for one in x], [one @ w_v.T + b_v for one in x]
    parts = [(one @ matrix[at].T + bias[at]).split(width, dim=1) for at, one in enumerate(x)]
    return [part[0] for part in parts], [part[-1] for part in parts]


def crossed(w, heads, name, q, k, v, causal):
    """-> results [A^S, A^P] (or one) behind the output projection; the probabilities (heads, T, S) of each."""
    pairs = [(S, S)] if len(q) == 1 else [(P, S), (S, P)]  # who asks, whose values
    found = [multi_head(w, heads, q[asks], k[asks], v[values], causal) for asks, values in pairs]
    return [linear(w, f"{name}.out_proj", y) for y, _ in found], [weights for _, weights in found]


def multi_head(w, heads, q, k, v, causal):
    outputs, probabilities = [], []
    for q_h, k_h, v_h in zip(*(x.chunk(heads, dim=1) for x in (q, k, v))):
        rows = []
        for i in range(len(q)):
            seen = i + 1 if causal else len(k)
            scores = torch.stack([q_h[i] @ k_h[j] / math.sqrt(q_h.shape[1]) for j in range(seen)])
            exponentials = (scores - scores.max()).exp()  # some are over 709, whose exponential is infinite
            rest = exponentials.new_zeros(len(k) - seen)
            rows.append(torch.cat([exponentials / exponentials.sum(), rest]))
        probabilities.append(torch.stack(rows))
        outputs.append(w.drop(probabilities[-1], "attention_dropout") @ v_h)
    return torch.cat(outputs, dim=1), torch.stack(probabilities)


def feed_forward(w, side, x):
    """The same network and norm for each stream."""
    activation = {"relu": lambda x: x.clamp(min=0), "gelu": gelu}[w.cfg.activation_fn]
    before, results = getattr(w.cfg, f"{side}_normalize_before"), []
    for one in x:
        inside = normed(w, "final_layer_norm", one) if before else one
        hidden = w.drop(activation(linear(w, "fc1", inside)), "activation_dropout")
        one = one + w.drop(linear(w, "fc2", hidden))
        results.append(one if before else normed(w, "final_layer_norm", one))
    return results


def logits(w, y):
    """f = [y^S, y^P] W_F against O = [E_S, E_P] W_O, or each stream against its mapped table; or one matrix."""
    if len(y) == 2 and w.cfg.duo_fusion == "on":
        f = torch.cat(y, dim=1) @ w["decoder.fusion.proj.weight"].T
    else:
        f = torch.cat(y, dim=1)
    if "decoder.output_projection.weight" in w:
        return f @ w["decoder.output_projection.weight"].T
    tables = [w[f"decoder.embedding.embed_tokens{suffix}.weight"] for suffix in ["", "_p"][: len(y)]]
    if len(y) == 2 and w.cfg.duo_fusion == "on":
        return f @ (torch.cat(tables, dim=1) @ w["decoder.fused_tables.proj.weight"].T).T
    total = 0
    for suffix, one, table in zip(["", "_p"], y, tables):
        matrix = w.get(f"decoder.embedding.embed_map{suffix}.weight")
        total = total + one @ (table if matrix is None else table @ matrix.T).T
    return total


def count(layers, d, ffn, words, *, streams=2, shared=False, fusion=False, tables="one", dims=None):
    """Parameters by hand. `tables` one: of encoder, decoder and output; two: of the encoder, and of decoder and output;
    three: each its own. dims: of the tables.
    """
    projection, norm = d * d + d, 2 * d
    # Q, K, V of each stream. Shared: Q of each, and one for its K and V, or W_K and W_V of both: as many either way
    inputs = streams * ((2 if shared else 3) * projection)
    block = inputs + projection + norm
    feed_forward = d * ffn + ffn + ffn * d + d + norm
    total = layers * (block + feed_forward) + layers * (2 * block + feed_forward)
    dims = dims or [d] * streams
    total += words * sum(dims) * (1 if tables == "one" else 2)
    total += 2 * sum(dim * d + d for dim in dims if dim != d)  # encoder and decoder have maps of their own
    if fusion:
        total += 2 * d * d
    if tables == "three":
        total += words * d * (1 if fusion else streams)
    elif fusion:
        total += sum(dims) * d
    return total
