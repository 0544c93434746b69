"""fairseq's RoBERTa (`roberta_*`, XLM-R and its other children): transformers' own RoBERTa, without code of ours.

Both have post-LN layers and learned positions that begin behind the row of padding; their tables have the same rows.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from embinit_fairseq.export.rounding import ACTIVATIONS, unrounded

if TYPE_CHECKING:
    from torch import Tensor

    from embinit_fairseq.export.trained import Trained

ARCHS = "fairseq's roberta, roberta_base, roberta_large, xlm, xlmr, camembert, gottbert"
TAGS = ("roberta", "fairseq")
TASKS: tuple[str, ...] = ()
CODE: tuple[str, ...] = ()
NOTE = "RoBERTa as in Liu et al. 2019; transformers' own classes compute it."
_CLASSES = {
    "AutoModelForMaskedLM": "RobertaForMaskedLM",
    "AutoModelForSequenceClassification": "RobertaForSequenceClassification",
}
#: part of a layer in fairseq -> in transformers
_PARTS = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}


def models() -> tuple[type, ...]:
    """Those that differ in the names of what they download only."""
    from fairseq.models.roberta import CamembertModel, GottbertModel, RobertaModel, XLMRModel

    return RobertaModel, XLMRModel, CamembertModel, GottbertModel


def refused(trained: Trained) -> str | None:
    """What transformers' RoBERTa has no counterpart of."""
    from torch import nn

    args, encoder = trained.model.args, trained.model.encoder.sentence_encoder
    activation = str(args.activation_fn)
    wrong = {
        "--encoder-normalize-before (roberta_prenorm)": encoder.layer_norm is not None,
        "no layer norm behind the embeddings": encoder.layernorm_embedding is None,
        "scaled embeddings": encoder.embed_scale != 1.0,
        "positions that are not learned": not isinstance(encoder.embed_positions, nn.Embedding),
        f"--activation-fn {activation}": activation not in ACTIVATIONS,
        "--quant-noise-pq": bool(args.quant_noise_pq),
    }
    if trained.head is None:
        wrong[f"a language-model head with --activation-fn {activation}"] = activation != "gelu"
    else:
        head = trained.model.classification_heads[trained.head]
        wrong[f"--pooler-activation-fn {args.pooler_activation_fn}"] = str(args.pooler_activation_fn) != "tanh"
        wrong[f"a head of {head.dense.out_features} units"] = head.dense.out_features != args.encoder_embed_dim
    found = ", ".join(name for name, is_so in wrong.items() if is_so)
    return f"transformers' RoBERTa cannot have {found}: such a model stays in fairseq" if found else None


def describe(trained: Trained) -> str:
    """RoBERTa, and what its task was."""
    return "RoBERTa" if trained.head is None else "RoBERTa, fine-tuned"


def sizes(trained: Trained) -> str:
    """Layers, dimensions, heads, positions."""
    args = trained.model.args
    return (
        f"{len(trained.model.encoder.sentence_encoder.layers)} layers, dimension {args.encoder_embed_dim}, FFN "
        f"{args.encoder_ffn_embed_dim}, {args.encoder_attention_heads} heads, {trained.model.max_positions()} positions"
    )


def settings(trained: Trained) -> dict[str, Any]:
    """Those of `RobertaConfig`."""
    args, encoder = trained.model.args, trained.model.encoder.sentence_encoder
    return {
        "architectures": [_CLASSES[trained.auto_class]],
        "model_type": "roberta",
        "hidden_size": args.encoder_embed_dim,
        "num_hidden_layers": len(encoder.layers),
        "num_attention_heads": args.encoder_attention_heads,
        "intermediate_size": args.encoder_ffn_embed_dim,
        "hidden_act": ACTIVATIONS[str(args.activation_fn)],
        "hidden_dropout_prob": args.dropout,
        "attention_probs_dropout_prob": args.attention_dropout,
        "classifier_dropout": args.pooler_dropout,
        "max_position_embeddings": encoder.embed_positions.num_embeddings,  # with the rows up to padding
        "type_vocab_size": 1,
        "layer_norm_eps": encoder.layernorm_embedding.eps,
        "tie_word_embeddings": not args.untie_weights_roberta,
    }


def generation(trained: Trained) -> None:
    """Nothing is generated."""


def weights(trained: Trained) -> dict[str, Tensor]:
    """Segments, which fairseq has none of, are one row of zeros."""
    import torch

    encoder = trained.model.encoder.sentence_encoder
    words = encoder.embed_tokens.weight
    tensors = {
        "roberta.embeddings.word_embeddings.weight": words,
        "roberta.embeddings.position_embeddings.weight": encoder.embed_positions.weight,
        "roberta.embeddings.token_type_embeddings.weight": torch.zeros_like(words[:1]),
    }
    tensors.update(_named(encoder.layernorm_embedding, "roberta.embeddings.LayerNorm"))
    for number, layer in enumerate(encoder.layers):
        for ours, theirs in _PARTS.items():
            tensors.update(_named(layer.get_submodule(ours), f"roberta.encoder.layer.{number}.{theirs}"))
    if trained.head is not None:
        head = trained.model.classification_heads[trained.head]
        tensors.update({**_named(head.dense, "classifier.dense"), **_named(head.out_proj, "classifier.out_proj")})
    else:
        tensors.update(_lm_head(trained))
    return {name: value.detach().contiguous() for name, value in tensors.items()}


def _lm_head(trained: Trained) -> dict[str, Tensor]:
    """A tied matrix is the embeddings and not named again."""
    head = trained.lm_head
    tensors = {**_named(head.dense, "lm_head.dense"), **_named(head.layer_norm, "lm_head.layer_norm")}
    if trained.model.args.untie_weights_roberta:
        tensors["lm_head.decoder.weight"] = head.weight
        tensors["lm_head.decoder.bias"] = head.bias.clone()  # transformers ties both or neither
    return {**tensors, "lm_head.bias": head.bias}


def _named(module: Any, name: str) -> dict[str, Tensor]:
    return {f"{name}.{part}": value for part, value in module.state_dict().items()}


def prepare(trained: Trained) -> AbstractContextManager[None]:
    """Without what fairseq rounds to single precision."""
    return unrounded(trained.model)
