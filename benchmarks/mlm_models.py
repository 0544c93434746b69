"""The contestants of mlm_step.py: BERT-type encoders of one size, each `forward(tokens, masked) -> logits (N, V)`.

`bmm_tupe_r` restates, plainly, how the code of the TUPE paper computes its attention (time-first layout, one bmm per
product, the bias copied for every sentence): a peer for the same model. It is written for this benchmark.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embinit_fairseq.modules import encoder_layer as packing


@dataclass(frozen=True)
class Size:
    """BERT's: layers, width, heads; the feed-forward width is four times the model's."""

    layers: int
    width: int
    heads: int


SIZES = {"tiny": Size(4, 256, 4), "base": Size(12, 768, 12), "large": Size(24, 1024, 16)}
VOCABULARY = 32768


class Contestant(nn.Module):
    """A model of fairseq's kind: `features(tokens)` (batch, length, C), `forward(tokens, masked)` logits (N, V)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def features(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, features_only=True)[0]

    def forward(self, tokens: Tensor, masked: Tensor) -> Tensor:
        return self.model(tokens, masked_tokens=masked)[0]


class HuggingFaceBert(Contestant):
    """Its stock head projects every position; here only the masked ones are, as in the others."""

    def features(self, tokens: Tensor) -> Tensor:
        return self.model.bert(tokens, attention_mask=tokens.ne(1)).last_hidden_state

    def forward(self, tokens: Tensor, masked: Tensor) -> Tensor:
        return self.model.cls(self.features(tokens)[masked])


def _dictionary() -> Any:
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for number in range(VOCABULARY - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    return dictionary


def _options(size: Size, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "encoder_layers": size.layers,
        "encoder_embed_dim": size.width,
        "encoder_ffn_embed_dim": 4 * size.width,
        "encoder_attention_heads": size.heads,
        "dropout": args.dropout,
        "attention_dropout": args.attention_dropout,
        "max_positions": max(512, args.length),
    }


def _ours(size: Size, args: argparse.Namespace, **options: Any) -> Contestant:
    import fairseq  # noqa: F401

    from embinit_fairseq.models.tupe import TupeConfig, TupeModel

    cfg = TupeConfig(**_options(size, args), embedding_normalize=True, attention_kernel=args.kernel, **options)
    task = argparse.Namespace(
        source_dictionary=_dictionary(), mask_idx=4
    )  # a task with masks has a language-model head
    return Contestant(TupeModel.build_model(cfg, task))


def _fairseq_roberta(size: Size, args: argparse.Namespace) -> Contestant:
    from fairseq.models import ARCH_CONFIG_REGISTRY
    from fairseq.models.roberta import RobertaModel

    options = argparse.Namespace(**_options(size, args))
    ARCH_CONFIG_REGISTRY["roberta_base"](options)
    return Contestant(RobertaModel.build_model(options, argparse.Namespace(source_dictionary=_dictionary())))


def _hugging_face_bert(size: Size, args: argparse.Namespace) -> Contestant:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
        max_position_embeddings=max(512, args.length),
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.attention_dropout,
        attn_implementation="sdpa",
    )
    return HuggingFaceBert(BertForMaskedLM(config))


def _bmm_tupe_r(size: Size, args: argparse.Namespace) -> Contestant:
    contestant = _ours(size, args, rel_pos=True)
    packing.WORTHWHILE = 2.0  # never: that is ours (this process runs no other contestant)
    for layer in contestant.model.encoder.sentence_encoder.layers:
        layer.self_attn.forward = _BmmAttention(layer.self_attn)
    return contestant


class _BmmAttention:
    """One attention as `bmm`s over batch x heads on tensors (length, batch, C), on the parameters of ours."""

    def __init__(self, attention: nn.Module) -> None:
        self.attention = attention

    def __call__(self, x: Tensor, attn_bias: Any, projections: Any = None, packing: None = None) -> Tensor:
        ours = self.attention
        x = x.transpose(0, 1)
        length, batch, width = x.shape
        heads = ours.num_heads
        q, k, v = ours.qkv_proj(x).chunk(3, dim=-1)
        q, k, v = ((t.contiguous().view(length, batch * heads, -1).transpose(0, 1)) for t in (q * ours.scale, k, v))
        weights = torch.bmm(q, k.transpose(1, 2))
        weights = weights + attn_bias.bias.repeat(batch, 1, 1)
        if attn_bias.padding_mask is not None:
            weights = weights.view(batch, heads, length, length)
            weights = weights.masked_fill(attn_bias.padding_mask[:, None, None], float("-inf"))
            weights = weights.view(batch * heads, length, length)
        weights = F.softmax(weights.float(), dim=-1).type_as(weights)
        weights = F.dropout(weights, p=ours.dropout, training=ours.training)
        y = torch.bmm(weights, v).transpose(0, 1).contiguous().view(length, batch, width)
        return ours.out_proj(y).transpose(0, 1)


#: name -> function that builds the contestant
BUILDERS = {
    "tupe_r": lambda size, args: _ours(size, args, rel_pos=True),
    "tupe_a": _ours,
    "bert_a": lambda size, args: _ours(size, args, position_encoding="added"),
    "bmm_tupe_r": _bmm_tupe_r,
    "fairseq_roberta": _fairseq_roberta,
    "huggingface_bert": _hugging_face_bert,
}
