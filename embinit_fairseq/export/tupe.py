"""TUPE and its comparison set (`tupe_*`, `bert_*`), and discriminators of ELECTRA: models with code of their own."""

from __future__ import annotations

import contextlib
import dataclasses
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from embinit_fairseq.modules.position_encoding import ENCODERS, POSITION_ENCODINGS, published_name

if TYPE_CHECKING:
    from torch import Tensor

    from embinit_fairseq.export.trained import Trained

ARCHS = f"{ENCODERS}, electra_* of this plugin"
TAGS = ("tupe", "fairseq")
TASKS: tuple[str, ...] = ()
NOTE = (
    "Positions as in Ke et al. 2021, Rethinking Positional Encoding in Language Pre-training; the equations are in\n"
    "`modeling_tupe.py` and `position_encoding.py`."
)
#: what an exported model is made of: the modules that fairseq trains, but for attention
CODE = (
    *(f"export.remote.{name}" for name in ("configuration_tupe", "modeling_tupe", "attention_kernels")),
    *(f"modules.{name}" for name in ("encoder_layer", "heads", "initialisation", "position_encoding")),
    "errors",
)
_AUTO_MAP = {
    "AutoConfig": "configuration_tupe.TupeConfig",
    "AutoModel": "modeling_tupe.TupeModel",
    "AutoModelForMaskedLM": "modeling_tupe.TupeForMaskedLM",
    "AutoModelForSequenceClassification": "modeling_tupe.TupeForSequenceClassification",
}


def models() -> tuple[type, ...]:
    """Registered by this plugin."""
    from embinit_fairseq.models.electra import ElectraModel
    from embinit_fairseq.models.tupe import TupeModel

    return TupeModel, ElectraModel


def refused(trained: Trained) -> None:
    """Our code has all options."""


def describe(trained: Trained) -> str:
    """By the paper's names."""
    cfg = trained.model.cfg
    known = POSITION_ENCODINGS[str(cfg.position_encoding)]
    name = published_name(str(cfg.position_encoding), cfg.rel_pos)
    if name == known.name:
        name += f": {known.help}"
    if known.resets and cfg.tupe_tie_cls:
        name += ", <s> treated like any position"
    elif known.resets and cfg.rel_pos:
        name += f", reset as {cfg.tupe_reset}"
    if "electra" in trained.arch:
        name += " (discriminator of an ELECTRA)"
    return name


def sizes(trained: Trained) -> str:
    """Layers, dimensions, heads, positions."""
    cfg = trained.model.cfg
    return (
        f"{cfg.encoder_layers} layers, dimension {cfg.encoder_embed_dim}, FFN {cfg.encoder_ffn_embed_dim}, "
        f"{cfg.encoder_attention_heads} heads, {cfg.max_positions} positions"
    )


def settings(trained: Trained) -> dict[str, Any]:
    """Those of `TupeConfig`."""
    cfg = trained.model.cfg
    known = POSITION_ENCODINGS[str(cfg.position_encoding)]
    found = {
        "architectures": [_AUTO_MAP[trained.auto_class].rpartition(".")[2]],
        "auto_map": _AUTO_MAP,
        "model_type": "tupe",
        "hidden_size": cfg.encoder_embed_dim,
        "num_hidden_layers": cfg.encoder_layers,
        "num_attention_heads": cfg.encoder_attention_heads,
        "intermediate_size": cfg.encoder_ffn_embed_dim,
        "hidden_act": str(cfg.activation_fn),
        "hidden_dropout_prob": cfg.dropout,
        "attention_probs_dropout_prob": cfg.attention_dropout,
        "activation_dropout": cfg.activation_dropout,
        "max_position_embeddings": cfg.max_positions,
        "position_encoding": str(cfg.position_encoding),
        "reset": str(cfg.tupe_reset) if known.resets and not cfg.tupe_tie_cls else None,
        "num_buckets": cfg.rel_pos_bins if known.has_buckets(cfg.rel_pos) else 0,
        "max_distance": cfg.max_rel_pos,
        "normalize_before": cfg.encoder_normalize_before,
        "embedding_normalize": cfg.embedding_normalize,
        "classifier_activation": str(cfg.pooler_activation_fn),
        "classifier_dropout": cfg.pooler_dropout,
        "tie_word_embeddings": True,
    }
    if trained.head is not None:
        found["classifier_size"] = trained.model.classification_heads[trained.head].dense.out_features
    return found


def generation(trained: Trained) -> None:
    """Nothing is generated."""


def weights(trained: Trained) -> dict[str, Tensor]:
    """The head's tied matrix is the embeddings and not named again."""
    model, prefix = trained.model, "" if trained.auto_class == "AutoModel" else "tupe."
    tensors = {f"{prefix}{name}": value for name, value in model.encoder.sentence_encoder.state_dict().items()}
    if trained.head is not None:
        head = model.classification_heads[trained.head]
        tensors.update({f"classifier.{name}": value for name, value in head.state_dict().items()})
    elif trained.lm_head is not None:
        lm_head = {name: value for name, value in trained.lm_head.state_dict().items() if name != "weight"}
        tensors.update({f"lm_head.{'decoder.bias' if name == 'bias' else name}": lm_head[name] for name in lm_head})
    return {name: value.detach().contiguous() for name, value in tensors.items()}


def prepare(trained: Trained) -> AbstractContextManager[None]:
    """Attention spelled out."""
    encoder = trained.model.encoder.sentence_encoder
    encoder.cfg = dataclasses.replace(encoder.cfg, attention_kernel="eager")
    return contextlib.nullcontext()
