"""Both translation models stated plainly: sentence by sentence, head by head, no padding, no cache.

The Duo transformer's streams are two variables, s and p, not an axis; `tupe_transformer` has one, and positions as a
bias or a rotation. Everything is read from the model's named parameters, so that gradients can be compared as well.
Dropout is the visible one of tupe_reference: a factor of 1 + p.
"""

import math

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from tupe_reference import alibi_bias, below, gelu, linear, normed, token_scores, untied_bias

S, P = 0, 1
ACTIVATIONS = {"relu": lambda x: x.clamp(min=0), "gelu": gelu}


class Weights(dict):
    """Parameters by name, those of one layer with `layer`; the options; visible dropout."""

    def __init__(self, model, named=None):
        super().__init__(named or model.named_parameters(remove_duplicate=False))
        self.model, self.cfg = model, model.cfg
        self.streams = getattr(model.cfg, "duo_streams", 1)

    def layer(self, side, number):
        return Weights(self.model, below(self, f"{side}.layers.{number}."))

    def drop(self, x, option="dropout"):
        return x * (1 + getattr(self.cfg, option)) if self.model.training else x


def reference(model, source, previous, layers=None):
    """source (S,) and previous (T,), lists of ids without padding -> logits (T, V), attention (heads, T, S) of the last
    layer, or of the last of so many: the mean of both streams."""
    w, memory = Weights(model), encoder(model, source)
    x, bias = embedded(w, "decoder", previous), positional_bias(w, "decoder", len(previous))
    for number in range(layers or w.cfg.decoder_layers):
        layer = w.layer("decoder", number)
        x, _ = attended(layer, "decoder", x, bias=bias)
        x, attention = attended(layer, "decoder", x, memory)
        x = feed_forward(layer, "decoder", x)
    if w.cfg.decoder_normalize_before:
        x = [normed(w, "decoder.layer_norm", one) for one in x]
    return logits(w, x), attention


def encoder(model, source):
    """The streams of the encoder's output, (S, C) each."""
    w = Weights(model)
    x, bias = embedded(w, "encoder", source), positional_bias(w, "encoder", len(source))
    for number in range(w.cfg.encoder_layers):
        layer = w.layer("encoder", number)
        x = feed_forward(layer, "encoder", attended(layer, "encoder", x, bias=bias)[0])
    return [normed(w, "encoder.layer_norm", one) for one in x] if w.cfg.encoder_normalize_before else x


def embedded(w, side, tokens):
    """sqrt(C) (E_s[token] M_s^T + b_s) + position, for each stream."""
    cfg, streams = w.cfg, []
    width = (cfg.decoder_embed_dim if side == "decoder" else None) or cfg.encoder_embed_dim
    inside = below(w, f"{side}.embedding.") or below(w, f"{side}.")
    for suffix in ["", "_p"][: w.streams]:
        x = inside[f"embed_tokens{suffix}.weight"][tokens]
        if f"embed_map{suffix}.weight" in inside:
            x = linear(inside, f"embed_map{suffix}", x)
        x = x if cfg.no_scale_embedding else x * math.sqrt(width)
        if not getattr(cfg, "no_token_positional_embeddings", True):
            if "embed_positions.weight" in inside:  # row 2 is the first word's: 0 and 1 are <s> and <pad> in fairseq
                x = x + inside["embed_positions.weight"][2 : 2 + len(tokens)]
            else:
                x = x + SinusoidalPositionalEmbedding.get_embedding(2 + len(tokens), width)[2:].double()
        streams.append(w.drop(x))
    return streams


def positional_bias(w, side, length):
    """(heads, length, length) of tupe_transformer: (LN(p_i) U_Q) (LN(p_j) U_K) / sqrt(2 d) + b_{j - i}, or ALiBi."""
    positions = below(w, f"{side}.positions.")
    if getattr(w.cfg, "positions", None) == "alibi":
        return alibi_bias(getattr(w.cfg, f"{side}_attention_heads"), length)
    if not positions:
        return None
    heads, sizes = getattr(w.cfg, f"{side}_attention_heads"), (w.cfg.rel_pos_bins, w.cfg.max_rel_pos)
    relative = {"relative": w.cfg.rel_pos, "sizes": sizes, "bidirectional": side == "encoder"}
    return untied_bias(positions, heads, length, **relative)


def attended(w, side, x, memory=None, bias=None):
    """Equations (4) and (5), or with a memory C^S = MultiHead(y^P, h^P, h^S) and C^P = MultiHead(y^S, h^S, h^P); with
    residual and norm. Also the mean of both streams' probabilities."""
    name, before = "encoder_attn" if memory else "self_attn", getattr(w.cfg, f"{side}_normalize_before")
    norm = f"{name}_layer_norm"
    inside = [normed(w, norm, one) for one in x] if before else x
    q, k, v = projected(w, name, inside, memory or inside)
    pairs = [(S, S)] if len(x) == 1 else [(P, S), (S, P)]  # who asks, whose values
    causal = side == "decoder" and not memory
    rotated = not memory and getattr(w.cfg, "positions", None) == "rope"
    found = [multi_head(w, side, q[asks], k[asks], v[values], causal, bias, rotated) for asks, values in pairs]
    results = [w.drop(linear(w, f"{name}.out_proj", y)) for y, _ in found]
    if len(x) == 2 and w.cfg.duo_norm not in ("all", side):
        results.reverse()  # A^S was asked for by P
    x = [one + y for one, y in zip(x, results)]
    x = x if before else [normed(w, norm, one) for one in x]
    return x, torch.stack([probabilities for _, probabilities in found]).mean(0)


def projected(w, name, x, memory):
    """Queries, keys and values of each stream. One matrix may be the streams' (pair), or keys' and values' (stream)."""
    for whole in (f"{name}.in_proj", f"{name}.qkv_proj"):
        if f"{whole}.weight" in w:
            parts = [y.split(x[S].shape[1], dim=1) for y in by_stream(w, whole, x)]
            return [[part[at] for part in parts] for at in (0, 1, -1)]
    parts = [y.split(x[S].shape[1], dim=1) for y in by_stream(w, f"{name}.kv_proj", memory)]
    return by_stream(w, f"{name}.q_proj", x), [part[0] for part in parts], [part[-1] for part in parts]


def by_stream(w, name, x):
    """Each stream by its own matrix, or all by one."""
    matrix, bias = w[f"{name}.weight"], w[f"{name}.bias"]
    if matrix.dim() == 2:
        return [one @ matrix.T + bias for one in x]
    return [one @ matrix[at].T + bias[at] for at, one in enumerate(x)]


def multi_head(w, side, q, k, v, causal, bias, rotated):
    terms = 2 if bias is not None and w.cfg.positions == "untied" else 1
    heads, outputs, probabilities = getattr(w.cfg, f"{side}_attention_heads"), [], []
    future = torch.full((len(q), len(k)), -math.inf, dtype=q.dtype).triu(1) if causal else 0
    for head, (q_h, k_h, v_h) in enumerate(zip(*(x.chunk(heads, dim=1) for x in (q, k, v)))):
        scores = token_scores(q_h, k_h, rotated) / math.sqrt(terms * q_h.shape[1])
        scores = scores if bias is None else scores + bias[head]
        probabilities.append((scores + future).softmax(dim=1))
        outputs.append(w.drop(probabilities[-1], "attention_dropout") @ v_h)
    return torch.cat(outputs, dim=1), torch.stack(probabilities)


def feed_forward(w, side, x):
    """The same network and norm for each stream."""
    before, results = getattr(w.cfg, f"{side}_normalize_before"), []
    for one in x:
        inside = normed(w, "final_layer_norm", one) if before else one
        hidden = ACTIVATIONS[w.cfg.activation_fn](linear(w, "fc1", inside))
        one = one + w.drop(linear(w, "fc2", w.drop(hidden, "activation_dropout")))
        results.append(one if before else normed(w, "final_layer_norm", one))
    return results


def logits(w, y):
    """f = [y^S, y^P] W_F against O = [E_S, E_P] W_O, or each stream against its mapped table; or one matrix."""
    fusion = len(y) == 2 and w.cfg.duo_fusion == "on"
    f = linear(w, "decoder.fusion.proj", torch.cat(y, dim=1)) if fusion else torch.cat(y, dim=1)
    if "decoder.output_projection.weight" in w:
        return f @ w["decoder.output_projection.weight"].T
    tables = [w[f"decoder.embedding.embed_tokens{suffix}.weight"] for suffix in ["", "_p"][: len(y)]]
    if fusion:
        return f @ (torch.cat(tables, dim=1) @ w["decoder.fused_tables.proj.weight"].T).T
    maps = [w.get(f"decoder.embedding.embed_map{suffix}.weight") for suffix in ["", "_p"]]
    return sum(one @ (table if m is None else table @ m.T).T for one, table, m in zip(y, tables, maps))


def count(layers, d, ffn, words, *, streams=2, shared=False, fusion=False, tables="one", dims=None):
    """Parameters by hand. `tables` one: of encoder, decoder and output; two: of the encoder, and of decoder and output;
    three: each its own. dims: of the tables."""
    projection, norm, dims = d * d + d, 2 * d, dims or [d] * streams
    # Q, K, V of each stream. Shared: Q of each, and one for its K and V, or W_K and W_V of both: as many either way
    block = streams * (2 if shared else 3) * projection + projection + norm
    feed_forward = d * ffn + ffn + ffn * d + d + norm
    total = layers * (3 * block + 2 * feed_forward) + words * sum(dims) * (1 if tables == "one" else 2)
    total += 2 * sum(dim * d + d for dim in dims if dim != d)  # encoder and decoder have maps of their own
    total += 2 * d * d if fusion else 0
    if tables == "three":
        return total + words * d * (1 if fusion else streams)
    return total + (sum(dims) * d if fusion else 0)
