"""Ke et al. 2021 (TUPE) stated plainly, sentence by sentence and number by number: shares no code with the package.

`w` maps names of parameters to tensors; gradients come from PyTorch, which sees nothing but sums and products here.
"""

from __future__ import annotations

import math

import torch

#: correlation terms of each position encoding: the logits are divided by sqrt(terms * head_dim)
TERMS = {"none": 1, "added": 1, "relative": 1, "untied": 2, "four_terms": 4}


def randomise(module, seed=0):
    """The module in double precision with parameters that are all different: layer norms are not 1 and 0."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.7 + 0.1
    return module


def assert_same_values_and_gradients(module, ours, expected):
    """ours, expected: the same tensor computed in two ways from the module's parameters."""
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)
    direction = torch.randn(ours.shape, generator=torch.Generator().manual_seed(5), dtype=ours.dtype)
    names, parameters = zip(*module.named_parameters())
    gradients = [torch.autograd.grad((x * direction).sum(), parameters, allow_unused=True) for x in (ours, expected)]
    for name, *pair in zip(names, *gradients):
        one, other = (torch.zeros(()) if gradient is None else gradient for gradient in pair)
        error = (one - other).abs().max()
        assert error <= 1e-10 * (1 + other.abs().max()), f"gradient of {name}: {error}"


def visible_dropout(monkeypatch):
    """In the place of dropout: what it would act on is multiplied by 1 + p. Where it acts, and on what, can be seen."""

    def multiply(x, p=0.5, training=True, inplace=False):
        return x * (1 + p) if training else x

    monkeypatch.setattr(torch.nn.functional, "dropout", multiply)


def bucket(r, num_buckets=32, max_distance=128, bidirectional=True):
    """T5's bucket of r = key - query, in whole numbers: no logarithm, no rounding."""
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if r > 0 else 0
        distance = abs(r)
    else:
        distance = max(-r, 0)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    steps = num_buckets - exact
    # floor(steps ln(distance / exact) / ln(max_distance / exact)) is the largest k with
    # (distance / exact)^steps >= (max_distance / exact)^k
    reached = [k for k in range(steps) if distance**steps * exact**k >= max_distance**k * exact**steps]
    return first + exact + max(reached)


def layer_norm(row, gain, offset):
    mean = row.sum() / len(row)
    variance = ((row - mean) ** 2).sum() / len(row)
    return (row - mean) / torch.sqrt(variance + 1e-5) * gain + offset


def linear(w, name, x):
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def normed(w, name, x):
    return torch.stack([layer_norm(row, w[f"{name}.weight"], w[f"{name}.bias"]) for row in x])


def untied_bias(w, num_heads, length, reset=None, relative=False):
    """Equations (7) to (11), entry by entry; reset: None (tie-cls), "official" or "paper". (heads, length, length)."""
    table = normed(w, "absolute.layer_norm", w["absolute.embed_positions.weight"])
    q, k = linear(w, "absolute.q_proj", table), linear(w, "absolute.k_proj", table)
    head_dim = table.shape[1] // num_heads
    first = 0 if reset is None else 1  # with thetas, column i has row i + 1
    constants = w["relative.embed_buckets.weight"] if relative else None

    def correlation(head, row_i, row_j):
        total = 0
        for c in range(head * head_dim, (head + 1) * head_dim):
            total = total + q[row_i, c] * k[row_j, c]
        return total / math.sqrt(2 * head_dim)

    def entry(head, i, j):
        if reset and i == 0:
            theta_1 = correlation(head, 0, 0)
            return theta_1 + constants[16, head] if relative and reset == "official" else theta_1
        if reset and j == 0:
            theta_2 = correlation(head, 1, 1)
            return theta_2 + constants[32, head] if relative and reset == "official" else theta_2
        value = correlation(head, i + first, j + first)
        return value + constants[bucket(j - i), head] if relative else value

    return stacked(entry, num_heads, length)


def relative_bias(w, num_heads, length):
    """b_{j-i} alone, as in BERT-R."""
    return stacked(lambda head, i, j: w["relative.embed_buckets.weight"][bucket(j - i), head], num_heads, length)


def stacked(entry, num_heads, length):
    rows = [[torch.stack([entry(h, i, j) for j in range(length)]) for i in range(length)] for h in range(num_heads)]
    return torch.stack([torch.stack(head) for head in rows])


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def attention(w, name, x, num_heads, kind, bias=None, positions=None, factor=1.0):
    """One sentence x (length, C). positions: (p U^Q, p U^K) of the four terms. factor: stands for dropout."""
    dim = x.shape[1]
    head_dim = dim // num_heads
    matrix, offset = w[f"{name}.qkv_proj.weight"], w[f"{name}.qkv_proj.bias"]
    q, k, v = (x @ matrix[n * dim : (n + 1) * dim].T + offset[n * dim : (n + 1) * dim] for n in range(3))
    outputs = []
    for head in range(num_heads):
        part = slice(head * head_dim, (head + 1) * head_dim)
        scores = q[:, part] @ k[:, part].T
        if positions is not None:
            p_q, p_k = positions
            scores = scores + q[:, part] @ p_k[:, part].T + p_q[:, part] @ k[:, part].T + p_q[:, part] @ p_k[:, part].T
        scores = scores / math.sqrt(TERMS[kind] * head_dim)
        if bias is not None:
            scores = scores + bias[head]
        weights = scores.exp() / scores.exp().sum(1, keepdim=True)
        outputs.append(weights * factor @ v[:, part])
    return linear(w, f"{name}.out_proj", torch.cat(outputs, dim=1))


def encode(w, tokens, num_heads, kind, *, pre_ln=False, relative=False, reset=None, factors=None, act=gelu):
    """One sentence without padding, tokens (length,) -> hidden states, each (length, C).

    factors: what stands for dropout: `hidden`, `attention`, `activation` (see `visible_dropout`).
    """
    factors = {"hidden": 1.0, "attention": 1.0, "activation": 1.0, **(factors or {})}
    length = len(tokens)
    of_positions = {key.removeprefix("positions."): value for key, value in w.items() if key.startswith("positions.")}
    x = w["embed_tokens.weight"][tokens]
    bias = projections = None
    if kind == "added":
        x = x + of_positions["embed_positions.weight"][:length]
    elif kind == "relative":
        bias = relative_bias(of_positions, num_heads, length)
    elif kind == "untied":
        bias = untied_bias(of_positions, num_heads, length, reset, relative)
    elif kind == "four_terms":
        table = normed(of_positions, "layer_norm", of_positions["embed_positions.weight"][:length])
        projections = linear(of_positions, "q_proj", table), linear(of_positions, "k_proj", table)
    if "emb_layer_norm.weight" in w:
        x = normed(w, "emb_layer_norm", x)
    x = x * factors["hidden"]
    hiddens = [x]
    for layer in range(1 + max(int(key.split(".")[1]) for key in w if key.startswith("layers."))):
        name = f"layers.{layer}"

        def attend(x, name=name):
            y = attention(w, f"{name}.self_attn", x, num_heads, kind, bias, projections, factors["attention"])
            return y * factors["hidden"]

        def feed_forward(x, name=name):
            return (
                linear(w, f"{name}.fc2", act(linear(w, f"{name}.fc1", x)) * factors["activation"]) * factors["hidden"]
            )

        if pre_ln:
            x = x + attend(normed(w, f"{name}.self_attn_layer_norm", x))
            x = x + feed_forward(normed(w, f"{name}.final_layer_norm", x))
        else:
            x = normed(w, f"{name}.self_attn_layer_norm", x + attend(x))
            x = normed(w, f"{name}.final_layer_norm", x + feed_forward(x))
        hiddens.append(x)
    if pre_ln:
        hiddens[-1] = normed(w, "layer_norm", x)
    return hiddens


def lm_logits(w, features, embeddings):
    return normed(w, "layer_norm", gelu(linear(w, "dense", features))) @ embeddings.T + w["bias"]


def class_logits(w, features, factor=1.0):
    """Of one sentence: its first feature counts."""
    return linear(w, "out_proj", torch.tanh(linear(w, "dense", features[0])) * factor)
