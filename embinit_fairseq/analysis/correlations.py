"""The four correlations in the first attention of a trained BERT-A (Ke et al. 2021, equation (7), Figure 2).

    logit_ij = 1/sqrt(d) ((w_i + p_i) W^Q) ((w_j + p_j) W^K)^T
             = word-to-word + word-to-position + position-to-word + position-to-position (+ constants)

w: word vectors, p: position vectors, d: head_dim, T: tokens, C: dimension. A layer norm between the sum and the
attention (--embedding-normalize, --encoder-normalize-before) is split exactly: with the standard deviation s_i that the
sum w_i + p_i has,

    LN(w_i + p_i) = g (w_i - mean(w_i)) / s_i  +  g (p_i - mean(p_i)) / s_i  +  b

so that the word keeps a part, the position keeps a part, and b is a constant. The projections' biases are constants
too. Whatever involves a constant belongs to none of the four terms and is summed in a fifth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embinit_fairseq.analysis.trained_model import TrainedModel
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.modules.position_encoding import POSITION_ENCODINGS

#: query-to-key, as the paper writes them; then everything with a layer norm's or a projection's bias in it
TERMS = ("word-to-word", "word-to-position", "position-to-word", "position-to-position", "constants")
_ENCODER = "encoder.sentence_encoder."
_EPS = 1e-5  # of torch's and the model's layer norms


@dataclass(frozen=True)
class FirstLayer:
    """embed_tokens (V, C), embed_positions (L, C); norms: (gain, bias) of the layer norms before the attention, in
    order; weight (2C, C) and bias (2C,) of queries and keys. In double precision, but for embed_tokens, of which few
    rows are needed."""

    embed_tokens: Tensor
    embed_positions: Tensor
    norms: tuple[tuple[Tensor, Tensor], ...]
    weight: Tensor
    bias: Tensor
    num_heads: int

    @property
    def max_positions(self) -> int:
        """Longest sentence in tokens."""
        return self.embed_positions.shape[0]

    def terms(self, tokens: Sequence[int], head: int | None = None) -> Tensor:
        """Token ids (T,) -> (5, T, T): TERMS of head number `head` (from 0), or their mean over the heads."""
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
    """The parts of a bert_a_* checkpoint that make the logits of its first layer; CheckpointError for other models."""
    if model.options.get("position_encoding") != "added":
        raise CheckpointError(_not_added(model))
    attention = model.parameters(f"{_ENCODER}layers.0.self_attn.qkv_proj.")
    names = ["emb_layer_norm"] + ["layers.0.self_attn_layer_norm"] * bool(model.option("encoder_normalize_before"))
    norms = [model.parameters(f"{_ENCODER}{name}.") for name in names]
    try:
        embed_tokens = model.table(f"{_ENCODER}embed_tokens.weight")
        embed_positions = model.parameters(f"{_ENCODER}positions.embed_positions.")["weight"]
        weight, bias = (attention[name][: 2 * embed_tokens.shape[-1]] for name in ("weight", "bias"))
    except KeyError as error:
        raise CheckpointError(f"{model.path}: {model.arch}, but its encoder's first layer is incomplete") from error
    num_heads = model.whole_number("encoder_attention_heads")
    used = tuple((norm["weight"], norm["bias"]) for norm in norms if norm)
    layer = FirstLayer(embed_tokens, embed_positions, used, weight, bias, num_heads)
    if not _fits(layer):
        raise CheckpointError(f"{model.path}: the parameters of its first layer do not fit each other; it is damaged")
    return layer


def _fits(layer: FirstLayer) -> bool:
    width = layer.embed_tokens.shape[1]
    shapes = [
        tuple(layer.weight.shape),
        tuple(layer.bias.shape),
        *(tuple(p.shape) for norm in layer.norms for p in norm),
    ]
    expected = [(2 * width, width), (2 * width,), *([(width,)] * 2 * len(layer.norms))]
    return shapes == expected and layer.embed_positions.shape[1:] == (width,) and width % layer.num_heads == 0


def mean_terms(
    layer: FirstLayer, sentences: Iterable[Sequence[int]], head: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """-> (5, T, T) TERMS, T the length of the longest sentence, and (T, T) how many sentences reach a place.

    At (i, j) the mean over the sentences that have both positions. Raises OptionError for a head that is not there.
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
    """(5, T, T) -> per term: mean, std over all places, std_over_keys.

    std_over_keys: root of the mean over queries of the variance over keys, all that a softmax over the keys sees.
    """
    return {
        name: {
            "mean": float(term.mean()),
            "std": float(term.std()),
            "std_over_keys": float(np.sqrt(term.var(axis=1).mean())),
        }
        for name, term in zip(TERMS, terms)
    }


def _split_layer_norm(parts: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """parts (3, T, C): word, position, constant -> the parts of the layer norm of their sum."""
    centred = parts - parts.mean(-1, keepdim=True)
    deviation = (centred.sum(0).pow(2).mean(-1, keepdim=True) + _EPS).sqrt()
    parts = centred / deviation * gain
    parts[2] += bias
    return parts


def _not_added(model: TrainedModel) -> str:
    known = POSITION_ENCODINGS.get(str(model.options.get("position_encoding")))
    what = f"{model.path} is a checkpoint of {model.arch}" + (f" ({known.name})" if known else "")
    hint = "; its positions alone: embinit plot positions" if known else ""
    return f"{what}: only bert_a_* add positions to words and have no others, so that there are four correlations{hint}"
