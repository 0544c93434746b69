"""`--arch tupe_base` and the comparison set of Ke et al. 2021: BERT-type encoders that differ in their positions.

    tupe_*     untied absolute positions (TUPE-A); with --rel-pos also relative ones (TUPE-R)
    bert_a_*   positions added to the embeddings (BERT-A)
    bert_r_*   added and relative positions (BERT-R)
    bert_rel_* relative positions only
    bert_ad_*  all four correlations with separate projections (BERT-A^d)

Sizes base, large and tiny. Pre-training: --task masked_lm; fine-tuning: --task sentence_prediction.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
import logging
from dataclasses import dataclass, field
from typing import Any, Optional, cast

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoderModel, register_model
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models._hub import load_hub
from embinit_fairseq.models._options import check_ranges, register_presets
from embinit_fairseq.models._state_dicts import check_weights, find_head, fit_heads, fit_pre_training_parts
from embinit_fairseq.models._tupe import TupeEncoder, check_effects
from embinit_fairseq.modules.attention_kernels import KERNELS, check_trainable
from embinit_fairseq.modules.bert_initialisation import init_bert_params
from embinit_fairseq.modules.encoder_layer import ACTIVATIONS
from embinit_fairseq.modules.heads import POOLER_ACTIVATIONS, ClassificationHead
from embinit_fairseq.modules.position_encoding import POSITION_ENCODINGS
from embinit_fairseq.modules.sentence_encoder import SentenceEncoder

logger = logging.getLogger(__name__)


@dataclass
class TupeConfig(FairseqDataclass):
    """Options of the encoder; the defaults are those of BERT-base."""

    position_encoding: ChoiceEnum(list(POSITION_ENCODINGS)) = field(
        default="untied",
        metadata={
            "help": "the architectures set it; "
            + "; ".join(f"{kind}: {known.name} ({known.help})" for kind, known in POSITION_ENCODINGS.items())
        },
    )
    rel_pos: bool = field(default=False, metadata={"help": "TUPE-R: relative positions beside the untied ones"})
    rel_pos_bins: int = field(default=32, metadata={"help": "buckets of relative positions"})
    max_rel_pos: int = field(default=128, metadata={"help": "distance from which on all share one bucket"})
    tupe_tie_cls: bool = field(default=False, metadata={"help": "treat <s> like any position (TUPE-A^tie-cls)"})
    tupe_reset: ChoiceEnum(["official", "paper"]) = field(
        default="official",
        metadata={
            "help": "official: absolute and relative term each have constants for <s>, as in the authors' code; "
            "paper: one pair of constants replaces their sum, as in equation (11)"
        },
    )
    encoder_layers: int = field(default=12, metadata={"help": "number of layers"})
    encoder_embed_dim: int = field(default=768, metadata={"help": "dimension of embeddings and layers"})
    encoder_ffn_embed_dim: int = field(default=3072, metadata={"help": "dimension inside the feed-forward networks"})
    encoder_attention_heads: int = field(default=12, metadata={"help": "attention heads"})
    encoder_normalize_before: bool = field(default=False, metadata={"help": "layer norm before each block (pre-LN)"})
    embedding_normalize: bool = field(default=False, metadata={"help": "layer norm on the embeddings"})
    activation_fn: ChoiceEnum(list(ACTIVATIONS)) = field(
        default="gelu", metadata={"help": "inside the feed-forward networks and the language-model head"}
    )
    dropout: float = field(default=0.1, metadata={"help": "dropout of embeddings, attention and FFN outputs"})
    attention_dropout: float = field(default=0.1, metadata={"help": "dropout of attention weights"})
    activation_dropout: float = field(default=0.0, metadata={"help": "dropout inside the feed-forward networks"})
    pooler_activation_fn: ChoiceEnum(list(POOLER_ACTIVATIONS)) = field(
        default="tanh", metadata={"help": "of classification heads"}
    )
    pooler_dropout: float = field(default=0.1, metadata={"help": "dropout in classification heads"})
    max_positions: int = field(default=512, metadata={"help": "longest input in tokens, <s> and </s> included"})
    attention_kernel: ChoiceEnum(list(KERNELS)) = field(
        default="auto", metadata={"help": "how attention is computed; auto takes the fastest and says so in the log"}
    )
    checkpoint_activations: bool = field(
        default=False, metadata={"help": "save memory by computing each layer again in the backward pass"}
    )


@register_model("tupe", dataclass=TupeConfig)
class TupeModel(FairseqEncoderModel):
    """A sentence encoder with any number of classification heads and, for tasks that mask, a language-model head."""

    #: names and description of what a model for a task that does not mask does without
    pre_training_parts: tuple[tuple[str, ...], str] = ("encoder.lm_head.",), "language-model head"

    def __init__(self, cfg: TupeConfig, encoder: TupeEncoder) -> None:
        super().__init__(encoder)
        self.cfg = cfg
        self.args = cfg  # the stock sentence_prediction criterion looks here for options of RoBERTa
        self.classification_heads = nn.ModuleDict()

    @classmethod
    def build_model(cls, cfg: TupeConfig, task: Any) -> "TupeModel":
        """Build for a task with a `source_dictionary`; without language-model head for tasks that do not mask.

        Raises OptionError for options out of range and for those that contradict each other.
        """
        check_ranges(cfg)
        check_block_size(cfg, task)
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
        """src_tokens (batch, src_len) -> logits (batch, src_len, V), or at `masked_tokens` (batch, src_len): (N, V).

        features_only: features (batch, src_len, C) instead. classification_head_name: (batch, num_classes) instead.
        The second result holds `inner_states`, each (batch, src_len, C), if return_all_hiddens.
        """
        features_only = features_only or classification_head_name is not None
        x, extra = self.encoder(src_tokens, features_only, return_all_hiddens, masked_tokens)
        if classification_head_name is not None:
            x = self.classification_head(classification_head_name)(x)
        return x, extra

    def get_normalized_probs(self, net_output, log_probs: bool, sample: Any = None) -> Tensor:
        """(Log-)probabilities in single precision."""
        logits = net_output[0].float()
        return logits.log_softmax(-1) if log_probs else logits.softmax(-1)

    def register_classification_head(
        self, name: str, num_classes: Optional[int] = None, inner_dim: Optional[int] = None, **_: Any
    ) -> None:
        """Add a head that makes `num_classes` numbers of the feature of `<s>`."""
        cfg = self.cfg
        if name in self.classification_heads:
            logger.warning("the classification head %r is replaced", name)
        assert num_classes is not None  # optional in fairseq's signature only
        inner_dim = inner_dim or cfg.encoder_embed_dim
        head = ClassificationHead(
            cfg.encoder_embed_dim, inner_dim, num_classes, str(cfg.pooler_activation_fn), cfg.pooler_dropout
        )
        self.classification_heads[name] = head.to(next(self.parameters()))  # its device and type

    def classification_head(self, name: str) -> ClassificationHead:
        """The head of this name; raises OptionError if there is none."""
        return cast(ClassificationHead, find_head(self.classification_heads, name))

    def max_positions(self) -> int:
        """Longest input in tokens."""
        return self.encoder.max_positions()

    def embedding_slots(self) -> dict[str, tuple[nn.Embedding, Any, nn.Module]]:
        """The embedding matrix of `--embed-init`; the language-model head is tied to it."""
        encoder = self.encoder.sentence_encoder
        return {"encoder": (encoder.embed_tokens, self.encoder.dictionary, encoder)}

    @property
    def supported_targets(self) -> set[str]:
        """Tells fairseq that targets come from the source."""
        return {"self"}

    def check_training(self, checkpoint: Any) -> None:
        """Raise OptionError, before a training, for options that have no effect."""
        check_effects(self.cfg, TupeConfig())
        for layer in (module.cfg.layer for module in self.modules() if isinstance(module, SentenceEncoder)):
            check_trainable(str(self.cfg.attention_kernel), layer.embed_dim // layer.num_heads, layer.attention_dropout)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Fit a checkpoint's heads to this model; raises OptionError for weights of a model with other options."""
        super().upgrade_state_dict_named(state_dict, name)
        wanted = any(key.startswith(self.pre_training_parts[0]) for key in self.state_dict())
        fit_pre_training_parts(state_dict, *self.pre_training_parts, wanted)
        check_weights(self, state_dict, self.encoder.sentence_encoder.positions.untie_cls)
        fit_heads(self, state_dict, last="out_proj")

    @classmethod
    def from_pretrained(
        cls, model_name_or_path: str, checkpoint_file: str = "model.pt", data_name_or_path: str = ".", **kwargs: Any
    ):
        """A `TupeHub` around a trained checkpoint: `fill_mask`, `extract_features`, `predict`."""
        return load_hub(cls, model_name_or_path, checkpoint_file, data_name_or_path, **kwargs)


def masks(task: Any) -> bool:
    """Is it a task that masks tokens: masked_lm and its like?"""
    return getattr(task, "mask_idx", None) is not None


def check_block_size(cfg: TupeConfig, task: Any) -> None:
    """Raises OptionError where masked_lm would make blocks that the batch iterator then drops as too long."""
    block = getattr(getattr(task, "cfg", None), "tokens_per_sample", None)
    if block is not None and block > cfg.max_positions:
        raise OptionError(
            f"--tokens-per-sample {block} is more than --max-positions {cfg.max_positions}, and longer blocks would be "
            f"dropped: give --tokens-per-sample {cfg.max_positions}, or more positions"
        )


#: what differs from the defaults
SIZES: dict[str, dict[str, int]] = {
    "base": {},
    "large": {
        "encoder_layers": 24,
        "encoder_embed_dim": 1024,
        "encoder_ffn_embed_dim": 4096,
        "encoder_attention_heads": 16,
    },
    "tiny": {
        "encoder_layers": 4,
        "encoder_embed_dim": 256,
        "encoder_ffn_embed_dim": 1024,
        "encoder_attention_heads": 4,
        "max_positions": 128,
    },
}

register_presets(
    "tupe",
    {
        f"{known.family}_{size}": {"position_encoding": kind, **preset}
        for kind, known in POSITION_ENCODINGS.items()
        for size, preset in SIZES.items()
    },
)
