"""Split the first attention of a trained BERT-A into its four correlations (Ke et al. 2021, equation (7), Figure 2).

    logit_ij = 1/sqrt(d) ((w_i + p_i) W^Q) ((w_j + p_j) W^K)^T
             = word-to-word + word-to-position + position-to-word + position-to-position (+ constants)

w: word vectors, p: position vectors, d: head_dim, T: tokens, C: dimension. A layer norm between the sum and the
attention (--embedding-normalize, --encoder-normalize-before) is split exactly: with the standard deviation s_i of
w_i + p_i,

    LN(w_i + p_i) = g (w_i - mean(w_i)) / s_i  +  g (p_i - mean(p_i)) / s_i  +  b

so that word and position have one part each, and b is a constant. The biases of the projections are constants, too. All
products with a constant belong to none of the four terms and are summed in a fifth term.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embinit_fairseq import figures
from embinit_fairseq.analysis.trained_model import TrainedModel
from embinit_fairseq.errors import CheckpointError, OptionError

#: names of query-to-key terms in the paper; then all products with a bias of a layer norm or a projection
TERMS = ("word-to-word", "word-to-position", "position-to-word", "position-to-position", "constants")
_ENCODER = "encoder.sentence_encoder."
#: epsilon of torch's and the model's layer norms
_EPS = 1e-5
#: longest sentence, in tokens, whose words label the axes
_READABLE = 24


@dataclass(frozen=True)
class FirstLayer:
    """Hold the parameters of the first layer's logits, in double precision except for the large embed_tokens.

    embed_tokens (V, C), embed_positions (L, C); norms: (gain, bias) of the layer norms before the attention, in order;
    weight (2C, C) and bias (2C,) of queries and keys.
    """

    embed_tokens: Tensor
    embed_positions: Tensor
    norms: tuple[tuple[Tensor, Tensor], ...]
    weight: Tensor
    bias: Tensor
    num_heads: int

    @property
    def max_positions(self) -> int:
        """Return the length of the longest sentence, in tokens."""
        return self.embed_positions.shape[0]

    def terms(self, tokens: Sequence[int], head: int | None = None) -> Tensor:
        """Return (5, T, T), the TERMS of T token ids, of one head (0-based) or as the mean over the heads."""
        length, width = len(tokens), self.embed_tokens.shape[1]
        words = self.embed_tokens[torch.tensor(tokens)].double()
        parts = torch.stack([words, self.embed_positions[:length], torch.zeros_like(words)])
        for gain, bias in self.norms:
            parts = _split_layer_norm(parts, gain, bias)
        projected = F.linear(parts, self.weight)
        projected[2] += self.bias
        q, k = projected.unflatten(-1, (2, self.num_heads, -1)).unbind(-3)  # (3, T, num_heads, d)
        if head is not None:
            q, k = q[:, :, [head]], k[:, :, [head]]
        scale = (width // self.num_heads) ** -0.5 / q.shape[2]
        pairs = torch.einsum("aihd,bjhd->abij", q, k) * scale  # (3, 3, T, T)
        constants = pairs[2].sum(0) + pairs[:2, 2].sum(0)
        return torch.stack([pairs[0, 0], pairs[0, 1], pairs[1, 0], pairs[1, 1], constants])


def first_layer(model: TrainedModel) -> FirstLayer:
    """Return the first layer of a bert_a_* model; CheckpointError for other models, which have no four correlations."""
    if model.options.get("position_encoding") != "added":
        hint = "; for its positions alone use embinit plot positions" if "position_encoding" in model.options else ""
        raise CheckpointError(
            f"{model.path} is a checkpoint of {model.arch}: only bert_a_* add positions to words and have no others, "
            f"so that there are four correlations{hint}"
        )
    embed_tokens = model.state[f"{_ENCODER}embed_tokens.weight"]
    embed_positions = model.parameters(f"{_ENCODER}positions.embed_positions.")["weight"]
    names = ["emb_layer_norm"] + ["layers.0.self_attn_layer_norm"] * bool(model.options["encoder_normalize_before"])
    norms = [model.parameters(f"{_ENCODER}{name}.") for name in names]
    used = tuple((norm["weight"], norm["bias"]) for norm in norms if norm)
    attention = model.parameters(f"{_ENCODER}layers.0.self_attn.qkv_proj.")
    weight, bias = (attention[name][: 2 * embed_tokens.shape[-1]] for name in ("weight", "bias"))
    return FirstLayer(embed_tokens, embed_positions, used, weight, bias, model.options["encoder_attention_heads"])


def _split_layer_norm(parts: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Return the parts of the layer norm of the sum of `parts` (3, T, C): word, position, constant."""
    centred = parts - parts.mean(-1, keepdim=True)
    deviation = (centred.sum(0).pow(2).mean(-1, keepdim=True) + _EPS).sqrt()
    parts = centred / deviation * gain
    parts[2] += bias
    return parts


def mean_terms(
    layer: FirstLayer, sentences: Iterable[Sequence[int]], head: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Average the terms over sentences; at (i, j) the mean is over the sentences with both positions.

    Args:
        layer: the model's first layer.
        sentences: token ids.
        head: 0-based; None: the mean over the heads.

    Returns:
        (5, T, T) TERMS for the longest sentence's T, and (T, T), the number of sentences at (i, j).

    Raises:
        OptionError: the model does not have this head.
    """
    if head is not None and not 0 <= head < layer.num_heads:
        raise OptionError(f"--head {head + 1}: the model has heads 1 to {layer.num_heads}")
    total = np.zeros((len(TERMS), layer.max_positions, layer.max_positions))
    count = np.zeros((layer.max_positions, layer.max_positions), dtype=np.int64)
    for tokens in sentences:
        length = len(tokens)
        total[:, :length, :length] += layer.terms(tokens, head).numpy()
        count[:length, :length] += 1
    longest = int((count[0] > 0).sum())
    count = count[:longest, :longest]
    return total[:, :longest, :longest] / count, count


def term_statistics(terms: np.ndarray) -> dict[str, dict[str, float]]:
    """Return mean, std and std_over_keys of each term.

    Args:
        terms: (5, T, T). A softmax over the keys sees only std_over_keys, the root of the mean over the queries of the
            variance over the keys.
    """
    return {
        name: {
            "mean": float(term.mean()),
            "std": float(term.std()),
            "std_over_keys": float(np.sqrt(term.var(axis=1).mean())),
        }
        for name, term in zip(TERMS, terms)
    }


def draw_correlations(
    model: TrainedModel,
    terms: np.ndarray,
    sentences: Sequence[Sequence[str]],
    path: str,
    head: int | None = None,
    own_scale: bool = False,
) -> None:
    """Draw the first four terms as two rows of panels.

    Args:
        model: name of the model, for the title.
        terms: (5, T, T).
        sentences: the symbols of each sentence; the words of a single short one label the axes.
        path: the PNG.
        head: 1-based, for the title; None: the mean over the heads.
        own_scale: True for one colour scale per term.
    """
    figure, panels = figures.new_figure(2, 2)
    shared = figures.limits(terms[:4, 1:, 1:])
    for axes, name, term in zip(panels, TERMS, terms):
        scale = figures.limits(term[1:, 1:]) if own_scale else shared
        image = figures.draw_map(axes, term, name, **figures.colours(*scale))
        figures.mark_cls(axes)
        if own_scale:
            figures.colour_bar(figure, image, axes, "", term)
    length = terms.shape[-1]
    if len(sentences) == 1 and length <= _READABLE:
        ticks: tuple[list[int], list[str]] = list(range(length)), ["[CLS]", *sentences[0][1:]]
    else:
        ticks = figures.position_ticks(length, has_cls=True)
    figures.label_axes(panels, 2, "query", "key", *ticks)
    if not own_scale:
        figures.colour_bar(figure, image, panels, "part of the logit", terms[:4])
    heads = "mean over the heads" if head is None else f"head {head}"
    texts = "one sentence" if len(sentences) == 1 else f"mean over {len(sentences)} sentences"
    figures.title(figure, model.path, f"{model.arch}, layer 1, {heads}, {texts}")
    figures.save(figure, path)
