"""`--arch tupe_base` and the comparison set of Ke et al. 2021: BERT-type encoders that differ in their positions.

    tupe_*     untied absolute positions (TUPE-A); with --rel-pos also relative ones (TUPE-R)
    bert_a_*   positions added to the embeddings (BERT-A)
    bert_r_*   added and relative positions (BERT-R)
    bert_rel_* relative positions only
    bert_ad_*  all four correlations with separate projections (BERT-A^d)

and encodings that are younger than the paper; tupe_* --rotary has untied and rotary positions:

    bert_rope_*   rotary positions (RoPE, Su et al. 2021)
    bert_alibi_*  a penalty that grows with the distance (ALiBi, Press et al. 2022), the same in both directions
    bert_nope_*   no positions

Sizes base, large and tiny. Pre-training: --task masked_lm; fine-tuning: --task sentence_prediction. The equations are
in modules/position_encoding.py (positions, `[CLS]`), modules/encoder_layer.py and modules/sentence_encoder.py.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoder, FairseqEncoderModel, register_model
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models._hub import TupeHub, load_hub
from embinit_fairseq.models._options import (
    check_effects,
    check_ranges,
    layer_config,
    option,
    register_presets,
    size_options,
)
from embinit_fairseq.models._state_dicts import WithHeads, check_weights, fit_pre_training_parts
from embinit_fairseq.modules.attention_kernels import KERNELS
from embinit_fairseq.modules.encoder_layer import ACTIVATIONS
from embinit_fairseq.modules.heads import POOLER_ACTIVATIONS, ClassificationHead, MaskedLMHead
from embinit_fairseq.modules.initialisation import init_bert_params
from embinit_fairseq.modules.position_encoding import POSITION_ENCODINGS, AddedPositions, PositionSizes
from embinit_fairseq.modules.sentence_encoder import EncoderConfig, SentenceEncoder


@dataclass
class TupeConfig(FairseqDataclass):
    """Hold the options of the encoder; the defaults are BERT-base."""

    position_encoding: ChoiceEnum(list(POSITION_ENCODINGS)) = option(
        "untied",
        "the architectures set it; "
        + "; ".join(f"{name}: {kind.name} ({kind.help})" for name, kind in POSITION_ENCODINGS.items()),
    )
    rel_pos: bool = option(False, "TUPE-R: relative positions in addition to the untied ones")
    rel_pos_bins: int = option(32, "buckets of relative positions")
    max_rel_pos: int = option(128, "distance from which on all share one bucket")
    rotary: bool = option(False, "rotary positions (RoPE) in addition to the untied ones, except for an untied <s>")
    tupe_tie_cls: bool = option(False, "treat <s> like any position (TUPE-A^tie-cls)")
    tupe_reset: ChoiceEnum(["official", "paper"]) = option(
        "official",
        "official: absolute and relative term each have constants for <s>, as in TUPE's code; "
        "paper: one pair of constants replaces their sum, as in equation (11)",
    )
    encoder_layers: int = option(12, "number of layers")
    encoder_embed_dim: int = option(768, "dimension of embeddings and layers")
    encoder_ffn_embed_dim: int = option(3072, "dimension inside the feed-forward networks")
    encoder_attention_heads: int = option(12, "attention heads")
    encoder_normalize_before: bool = option(False, "layer norm before each block (pre-LN)")
    embedding_normalize: bool = option(False, "layer norm on the embeddings")
    activation_fn: ChoiceEnum(list(ACTIVATIONS)) = option(
        "gelu", "inside the feed-forward networks and the language-model head"
    )
    dropout: float = option(0.1, "dropout of embeddings, attention and FFN outputs")
    attention_dropout: float = option(0.1, "dropout of attention weights")
    activation_dropout: float = option(0.0, "dropout inside the feed-forward networks")
    pooler_activation_fn: ChoiceEnum(list(POOLER_ACTIVATIONS)) = option("tanh", "of classification heads")
    pooler_dropout: float = option(0.1, "dropout in classification heads")
    max_positions: int = option(512, "longest input in tokens, <s> and </s> included")
    attention_kernel: ChoiceEnum([*KERNELS, "flex"]) = option(
        "auto",
        "how attention is computed; auto takes the fastest and says so in the log, and so does flex, which earlier "
        "checkpoints may have",
    )
    checkpoint_activations: bool = option(False, "save memory by computing each layer again in the backward pass")


@register_model("tupe", dataclass=TupeConfig)
class TupeModel(WithHeads, FairseqEncoderModel):
    """A sentence encoder with any number of classification heads and, for tasks that mask, a language-model head."""

    #: names and description of the parts that only pre-training needs
    pre_training_parts: tuple[tuple[str, ...], str] = ("encoder.lm_head.",), "language-model head"
    last_layer = "out_proj"
    hub = TupeHub

    def __init__(self, cfg: TupeConfig, encoder: "TupeEncoder") -> None:
        super().__init__(encoder)
        self.cfg = cfg
        self.args = cfg  # fairseq's sentence_prediction criterion reads options of RoBERTa here
        self.classification_heads = nn.ModuleDict()

    @classmethod
    def build_model(cls, cfg: TupeConfig, task: Any) -> "TupeModel":
        """Build for a task with a `source_dictionary`; without language-model head for tasks that do not mask.

        Raises OptionError for options that are out of range or contradict each other.
        """
        check_sizes(cfg, task)
        encoder = TupeEncoder(cfg, task.source_dictionary, masks(task))
        encoder.apply(init_bert_params)
        return cls(cfg, encoder)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: Optional[str] = None,
        masked_tokens: Optional[Tensor] = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return logits (batch, src_len, V), or (N, V) at `masked_tokens`, and a dictionary.

        Args:
            src_tokens: (batch, src_len).
            features_only: return features (batch, src_len, C) instead of logits.
            return_all_hiddens: the dictionary holds `inner_states`, each (batch, src_len, C).
            classification_head_name: return logits of classes (batch, num_classes).
            masked_tokens: (batch, src_len), True at the tokens that are predicted.
        """
        features_only = features_only or classification_head_name is not None
        x, extra = self.encoder(src_tokens, features_only, return_all_hiddens, masked_tokens)
        if classification_head_name is not None:
            x = self.classification_head(classification_head_name)(x)
        return x, extra

    def get_normalized_probs(self, net_output, log_probs: bool, sample: Any = None) -> Tensor:
        """Return (log-)probabilities in single precision."""
        logits = net_output[0].float()
        return logits.log_softmax(-1) if log_probs else logits.softmax(-1)

    def new_head(self, num_classes: int, inner_dim: Optional[int]) -> nn.Module:
        """Return a head on the feature of `<s>`."""
        cfg, embed_dim = self.cfg, self.cfg.encoder_embed_dim
        activation = str(cfg.pooler_activation_fn)
        head = ClassificationHead(embed_dim, inner_dim or embed_dim, num_classes, activation, cfg.pooler_dropout)
        return head.to(next(self.parameters()))  # its device and type

    def max_positions(self) -> int:
        """Return the longest input in tokens."""
        return self.encoder.max_positions()

    def embedding_slots(self) -> dict[str, tuple[nn.Embedding, Any, nn.Module]]:
        """Return the embedding matrix of `--embed-init`; the language-model head is tied to it."""
        encoder = self.encoder.sentence_encoder
        return {"encoder": (encoder.embed_tokens, self.encoder.dictionary, encoder)}

    @property
    def supported_targets(self) -> set[str]:
        """Return fairseq's name for targets that come from the source."""
        return {"self"}

    def check_training(self, checkpoint: Any, request: Any) -> None:
        """Raise OptionError, before a training, for options that have no effect."""
        cfg = self.cfg
        kind = POSITION_ENCODINGS[str(cfg.position_encoding)]
        has_buckets = kind.has_buckets(cfg.rel_pos)
        resets_twice = kind.resets and has_buckets and not cfg.tupe_tie_cls
        of_buckets = has_buckets, "needs relative positions (--rel-pos, bert_r_* or bert_rel_*)"
        needs = {
            "rel_pos": (kind.relative == "optional", "belongs to the tupe_* architectures"),
            "rotary": (kind.rotates, "belongs to the tupe_* architectures"),
            "tupe_tie_cls": (kind.resets, "belongs to the tupe_* architectures"),
            "tupe_reset": (resets_twice, "has nothing to reset: it is for tupe_* --rel-pos without --tupe-tie-cls"),
            "rel_pos_bins": of_buckets,
            "max_rel_pos": of_buckets,
        }
        check_effects(cfg, TupeConfig(), needs)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Fit a checkpoint's heads to this model; raise OptionError for weights of a model with other options."""
        wanted = any(key.startswith(self.pre_training_parts[0]) for key in self.state_dict())
        fit_pre_training_parts(state_dict, *self.pre_training_parts, wanted)
        check_weights(self, state_dict)
        super().upgrade_state_dict_named(state_dict, name)

    @classmethod
    def from_pretrained(
        cls, model_name_or_path: str, checkpoint_file: str = "model.pt", data_name_or_path: str = ".", **kwargs: Any
    ):
        """Return a `TupeHub` around a trained checkpoint: `fill_mask`, `extract_features`, `predict`."""
        return load_hub(cls, model_name_or_path, checkpoint_file, data_name_or_path, **kwargs)


class TupeEncoder(FairseqEncoder):
    """The sentence encoder and, for tasks that mask, its language-model head.

    shared: an encoder whose embeddings are used, as in ELECTRA's generator.
    """

    def __init__(self, cfg: Any, dictionary: Any, masking: bool, shared: Optional[SentenceEncoder] = None) -> None:
        super().__init__(dictionary)
        self.sentence_encoder = build_sentence_encoder(cfg, dictionary, shared)
        head = self.sentence_encoder.embed_tokens, str(cfg.activation_fn), cfg.encoder_embed_dim
        self.lm_head = MaskedLMHead(*head) if masking else None
        self.longest = cfg.max_positions

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        masked_tokens: Optional[Tensor] = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute `TupeModel.forward` without classification heads."""
        if not features_only and self.lm_head is None:
            raise without("language-model head")
        x, hiddens = self.sentence_encoder(src_tokens, masked_tokens, return_all_hiddens)
        extra = {"inner_states": hiddens if return_all_hiddens else None}
        return (x if features_only or self.lm_head is None else self.lm_head(x, masked_tokens)), extra

    def max_positions(self) -> int:
        """Return the longest input in tokens."""
        return self.longest


def without(part: str) -> OptionError:
    """Return the error for a model that was built for fine-tuning, and is used to pre-train or to fill masks."""
    return OptionError(
        f"this model has no {part}, which fine-tuning leaves out: fill masks and continue pre-training with the "
        "checkpoint of the pre-training (--task masked_lm)"
    )


def position_sizes(cfg: Any) -> PositionSizes:
    """Return the sizes of the positions, from the options of an encoder."""
    kind = POSITION_ENCODINGS[str(cfg.position_encoding)]
    return PositionSizes(
        cfg.encoder_embed_dim,
        cfg.encoder_attention_heads,
        cfg.max_positions,
        num_buckets=cfg.rel_pos_bins if kind.has_buckets(cfg.rel_pos) else 0,
        max_distance=cfg.max_rel_pos,
        reset=str(cfg.tupe_reset) if kind.resets and not cfg.tupe_tie_cls else None,
        rotary=kind.rotates and cfg.rotary,
    )


def build_sentence_encoder(cfg: Any, dictionary: Any, shared: Optional[SentenceEncoder] = None) -> SentenceEncoder:
    """Return a SentenceEncoder for the options.

    shared: an encoder whose embeddings (tokens, positions added to them, layer norm) are used.
    """
    positions = POSITION_ENCODINGS[str(cfg.position_encoding)].build(position_sizes(cfg))
    if shared is not None and isinstance(positions, AddedPositions) and isinstance(shared.positions, AddedPositions):
        positions.embed_positions = shared.positions.embed_positions
    config = EncoderConfig(
        layer=layer_config(cfg, num_terms=positions.num_terms),
        num_layers=cfg.encoder_layers,
        embedding_normalize=cfg.embedding_normalize,
        attention_kernel=str(cfg.attention_kernel),
        checkpoint_activations=cfg.checkpoint_activations,
    )
    if shared is None:
        embed_tokens = nn.Embedding(len(dictionary), cfg.encoder_embed_dim, dictionary.pad())
        return SentenceEncoder(config, embed_tokens, positions, dictionary.bos())
    encoder = SentenceEncoder(config, shared.embed_tokens, positions, dictionary.bos())
    encoder.emb_layer_norm = shared.emb_layer_norm
    return encoder


def check_sizes(cfg: Any, task: Any) -> None:
    """Raise OptionError for numbers out of range, and for blocks that the batch iterator would drop as too long."""
    check_ranges(cfg)
    block = getattr(getattr(task, "cfg", None), "tokens_per_sample", None)
    if block is not None and block > cfg.max_positions:
        raise OptionError(
            f"--tokens-per-sample {block} is more than --max-positions {cfg.max_positions}, and longer blocks would be "
            f"dropped: give --tokens-per-sample {cfg.max_positions}, or more positions"
        )


def masks(task: Any) -> bool:
    """Return True for a task that masks tokens, such as masked_lm."""
    return getattr(task, "mask_idx", None) is not None


#: size -> options that differ from the defaults
SIZES: dict[str, dict[str, int]] = {
    "base": {},
    "large": size_options("encoder", 24, 1024, 4096, 16),
    "tiny": {**size_options("encoder", 4, 256, 1024, 4), "max_positions": 128},
}

register_presets(
    "tupe",
    {
        f"{kind.family}_{size}": {"position_encoding": name, **preset}
        for name, kind in POSITION_ENCODINGS.items()
        for size, preset in SIZES.items()
    },
)
