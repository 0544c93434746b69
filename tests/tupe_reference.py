"""Ke et al. 2021 (TUPE), rotary positions (Su et al. 2021) and ALiBi (Press et al. 2022) stated plainly, sentence by
sentence and number by number: shares no code with the package.

`w` maps names of parameters to tensors; gradients come from PyTorch, which sees nothing but sums and products here.
"""

import math

import torch

#: correlation terms of each position encoding: the logits are divided by sqrt(terms * head_dim)
TERMS = {"none": 1, "added": 1, "added_relative": 1, "relative": 1, "untied": 2, "four_terms": 4}
TERMS |= {"rope": 1, "alibi": 1}


def randomise(module, seed=0):
    """The module in double precision with parameters that are all different: layer norms are not 1 and 0."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.7 + 0.1
    return module


def assert_same_values_and_gradients(module, ours, expected):
    """ours, expected: the same tensor computed in two ways from the module's parameters, if it has any."""
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)
    direction = torch.randn(ours.shape, generator=torch.Generator().manual_seed(5), dtype=ours.dtype)
    parameters, gradients = dict(module.named_parameters()), []
    assert ours.requires_grad == expected.requires_grad == bool(parameters)
    for x in (ours, expected) if parameters else ():
        gradients.append(torch.autograd.grad((x * direction).sum(), parameters.values(), allow_unused=True))
    for name, *pair in zip(parameters, *gradients):
        one, other = (torch.zeros(()) if gradient is None else gradient for gradient in pair)
        error = (one - other).abs().max()
        assert error <= 1e-10 * (1 + other.abs().max()), f"gradient of {name}: {error}"


def assert_are_best(fillings, text, logits, dictionary):
    """fillings: (text, probability, symbol), the most probable symbols of logits (symbols,) first."""
    chances = torch.exp(logits) / torch.exp(logits).sum()
    order = sorted(range(len(chances)), key=lambda symbol: -chances[symbol])[: len(fillings)]
    assert [symbol for _, _, symbol in fillings] == [dictionary[symbol] for symbol in order]
    assert [filled for filled, _, _ in fillings] == [text.format(dictionary[symbol]) for symbol in order]
    torch.testing.assert_close([chance for _, chance, _ in fillings], chances[order].tolist(), rtol=1e-5, atol=0)


def visible_dropout(monkeypatch):
    """Replace dropout by a factor of 1 + p, which shows where dropout acts."""

    def multiply(x, p=0.5, training=True, inplace=False):
        return x * (1 + p) if training else x

    monkeypatch.setattr(torch.nn.functional, "dropout", multiply)


def bucket(r, num_buckets=32, max_distance=128, bidirectional=True):
    """T5's bucket of r = key - query, in integers: no logarithm, no rounding."""
    first, distance = 0, max(-r, 0)
    if bidirectional:
        num_buckets //= 2
        first, distance = num_buckets * (r > 0), abs(r)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    steps = num_buckets - exact
    # floor(steps ln(distance / exact) / ln(max_distance / exact)) is the largest k with
    # (distance / exact)^steps >= (max_distance / exact)^k
    reached = [k for k in range(steps) if distance**steps * exact**k >= max_distance**k * exact**steps]
    return first + exact + max(reached)


def linear(w, name, x):
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def normed(w, name, x):
    centred = x - x.sum(-1, keepdim=True) / x.shape[-1]
    variance = (centred**2).sum(-1, keepdim=True) / x.shape[-1]
    return centred / torch.sqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def untied_bias(w, num_heads, length, reset=None, relative=False, sizes=(32, 128), bidirectional=True):
    """Equations (7) to (11), entry by entry; reset: None (tie-cls), "official" or "paper". (heads, length, length)."""
    table = normed(w, "absolute.layer_norm", w["absolute.embed_positions.weight"])
    q, k = (linear(w, f"absolute.{letter}_proj", table).chunk(num_heads, dim=1) for letter in "qk")
    first = 0 if reset is None else 1  # with thetas, column i has row i + 1

    def entry(head, i, j):
        row_i, row_j, constant = i + first, j + first, bucket(j - i, *sizes, bidirectional)
        if reset and 0 in (i, j):  # theta_1 and theta_2
            row_i = row_j = 0 if i == 0 else 1
            constant = None if reset == "paper" else sizes[0] // 2 if i == 0 else sizes[0]
        value = q[head][row_i] @ k[head][row_j] / math.sqrt(2 * q[head].shape[1])
        return (
            value + w["relative.embed_buckets.weight"][constant, head] if relative and constant is not None else value
        )

    return stacked(entry, num_heads, length)


def relative_bias(w, num_heads, length):
    """b_{j-i} alone, as in BERT-R."""
    return stacked(lambda head, i, j: w["relative.embed_buckets.weight"][bucket(j - i), head], num_heads, length)


def slopes(num_heads):
    """2^(-8/H) and its powers; if H is no power of two: of the next smaller one, and every second one of its double."""
    smaller = 1
    while 2 * smaller <= num_heads:
        smaller *= 2
    if smaller == num_heads:
        first = 2 ** (-8 / num_heads)
        return [first ** (head + 1) for head in range(num_heads)]
    return slopes(smaller) + slopes(2 * smaller)[0::2][: num_heads - smaller]


def alibi_bias(num_heads, length):
    """-m |i - j|."""
    each = slopes(num_heads)
    return stacked(lambda h, i, j: torch.tensor(-each[h] * abs(i - j), dtype=torch.float64), num_heads, length)


def rotation_matrix(m, dim):
    """Su et al., equation (15), in double precision."""
    matrix = torch.zeros(dim, dim, dtype=torch.float64)
    for n in range(0, dim, 2):
        angle = m * 10000 ** (-n / dim)
        matrix[n, n] = matrix[n + 1, n + 1] = math.cos(angle)
        matrix[n, n + 1], matrix[n + 1, n] = -math.sin(angle), math.sin(angle)
    return matrix


def token_scores(q, k, rotated=False, untied_cls=False):
    """q k^T of one head, (length, length); rotated: equation (16), without the row and column of an untied `[CLS]`."""
    if not rotated:
        return q @ k.T
    columns, dim = range(len(q)), q.shape[1]
    turns = {r: rotation_matrix(r, dim) for r in range(-len(q), len(q))}
    still = torch.eye(dim, dtype=torch.float64)
    entries = [q[i] @ (still if untied_cls and 0 in (i, j) else turns[j - i]) @ k[j] for i in columns for j in columns]
    return torch.stack(entries).view(len(q), len(q))


def stacked(entry, num_heads, length):
    entries = [entry(h, i, j) for h in range(num_heads) for i in range(length) for j in range(length)]
    return torch.stack(entries).view(num_heads, length, length)


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def attention(w, name, x, num_heads, kind, bias=None, positions=None, factor=1.0, **rotation):
    """One sentence x (length, C). positions: (p U^Q, p U^K) of the four terms. factor: in place of dropout. rotation:
    options of `token_scores`."""
    q, k, v = (part.chunk(num_heads, dim=1) for part in linear(w, f"{name}.qkv_proj", x).chunk(3, dim=1))
    outputs = []
    for head in range(num_heads):
        scores = token_scores(q[head], k[head], **rotation)
        if positions is not None:
            p_q, p_k = (projected.chunk(num_heads, dim=1)[head] for projected in positions)
            scores = scores + q[head] @ p_k.T + p_q @ k[head].T + p_q @ p_k.T
        scores = scores / math.sqrt(TERMS[kind] * q[head].shape[1])
        if bias is not None:
            scores = scores + bias[head]
        outputs.append(scores.softmax(dim=1) * factor @ v[head])
    return linear(w, f"{name}.out_proj", torch.cat(outputs, dim=1))


def below(w, prefix):
    """The parameters whose names begin so, without it."""
    return {name[len(prefix) :]: value for name, value in w.items() if name.startswith(prefix)}


def encode(
    w, tokens, num_heads, kind, *, pre_ln=False, relative=False, reset=None, rotary=False, factors=None, act=gelu
):
    """One sentence without padding, tokens (length,) -> hidden states, each (length, C).

    factors in place of dropout: `hidden`, `attention`, `activation` (see `visible_dropout`).
    """
    factors = {"hidden": 1.0, "attention": 1.0, "activation": 1.0, **(factors or {})}
    length, p = len(tokens), below(w, "positions.")
    x = w["embed_tokens.weight"][tokens]
    bias = projections = None
    if kind.startswith("added"):
        x = x + p["embed_positions.weight"][:length]
    if kind.endswith("relative"):
        bias = relative_bias(p, num_heads, length)
    elif kind == "alibi":
        bias = alibi_bias(num_heads, length)
    elif kind == "untied":
        bias = untied_bias(p, num_heads, length, reset, relative)
    elif kind == "four_terms":
        table = normed(p, "layer_norm", p["embed_positions.weight"][:length])
        projections = linear(p, "q_proj", table), linear(p, "k_proj", table)
    if "emb_layer_norm.weight" in w:
        x = normed(w, "emb_layer_norm", x)
    x = x * factors["hidden"]
    hiddens = [x if x.shape[1] == w["layers.0.fc1.weight"].shape[1] else linear(w, "embed_proj", x)]
    while f"layers.{len(hiddens) - 1}.fc1.weight" in w:
        layer, x = below(w, f"layers.{len(hiddens) - 1}."), hiddens[-1]
        inside = normed(layer, "self_attn_layer_norm", x) if pre_ln else x
        given = layer, "self_attn", inside, num_heads, kind, bias, projections, factors["attention"]
        y = attention(*given, rotated=rotary or kind == "rope", untied_cls=reset is not None)
        x = x + y * factors["hidden"]
        x = x if pre_ln else normed(layer, "self_attn_layer_norm", x)
        inside = normed(layer, "final_layer_norm", x) if pre_ln else x
        y = linear(layer, "fc2", act(linear(layer, "fc1", inside)) * factors["activation"])
        x = x + y * factors["hidden"]
        hiddens.append(x if pre_ln else normed(layer, "final_layer_norm", x))
    if pre_ln:
        hiddens[-1] = normed(w, "layer_norm", hiddens[-1])
    return hiddens


def lm_logits(w, features, embeddings):
    return normed(w, "layer_norm", gelu(linear(w, "dense", features))) @ embeddings.T + w["bias"]


def class_logits(w, features, factor=1.0):
    """Of one sentence: its first feature counts."""
    return linear(w, "out_proj", torch.tanh(linear(w, "dense", features[0])) * factor)
