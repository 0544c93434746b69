"""`--arch electra_base` and `electra_tupe_base`: ELECTRA (Clark et al. 2020) with the positions of Ke et al. 2021.

    electra_*        positions added to the embeddings, as in BERT: the baseline of Ke's Table 4
    electra_tupe_*   TUPE-R in generator and discriminator; others by --position-encoding

The generator fills masked positions, the discriminator says of every token whether it was replaced (modules/heads.py).
Pre-training: --task masked_lm --criterion electra. Fine-tuning: --task sentence_prediction, with the discriminator
alone, which is called `encoder` as in fairseq's models.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
import copy
import logging
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from fairseq.models import FairseqEncoder, register_model
from torch import Tensor

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models._options import option, register_presets
from embinit_fairseq.models.tupe import (
    SIZES,
    TupeConfig,
    TupeEncoder,
    TupeModel,
    build_sentence_encoder,
    check_sizes,
    masks,
)
from embinit_fairseq.modules.heads import ReplacedTokenHead, draw_tokens
from embinit_fairseq.modules.initialisation import init_bert_params

logger = logging.getLogger(__name__)


@dataclass
class ElectraConfig(TupeConfig):
    """encoder_* are of the discriminator; options without generator_* are of both networks."""

    generator_layers: int = option(12, "number of layers of the generator")
    generator_embed_dim: int = option(
        256, "dimension of the generator's layers; its embeddings are the discriminator's"
    )
    generator_ffn_embed_dim: int = option(1024, "dimension inside the generator's FFNs")
    generator_attention_heads: int = option(4, "attention heads of the generator")


class ReplacedTokens(NamedTuple):
    """Results of a pre-training step: the generator's logits (N, V) at the masked positions, the discriminator's input
    tokens (batch, src_len), and its logits of "replaced" (batch, src_len), without meaning at padding."""

    generator_logits: Tensor
    corrupted_tokens: Tensor
    logits: Tensor


@register_model("electra", dataclass=ElectraConfig)
class ElectraModel(TupeModel):
    """The discriminator with any number of classification heads, and in pre-training the generator."""

    pre_training_parts = ("generator.", "encoder.rtd_head."), "generator, replaced-token head"

    def __init__(self, cfg: ElectraConfig, encoder: "Discriminator", generator: Optional[TupeEncoder] = None) -> None:
        super().__init__(cfg, encoder)
        self.generator = generator
        self.num_updates = 0
        self._warned = False

    @classmethod
    def build_model(cls, cfg: ElectraConfig, task: Any) -> "ElectraModel":
        """Build for a task with a `source_dictionary`; without a generator for tasks that do not mask (fine-tuning).

        Raises OptionError for options that are out of range or contradict each other.
        """
        check_sizes(cfg, task)
        encoder, generator = Discriminator(cfg, task.source_dictionary, masks(task)), None
        if masks(task):
            own = copy.deepcopy(cfg)
            for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
                setattr(own, f"encoder_{name}", getattr(cfg, f"generator_{name}"))
            generator = TupeEncoder(own, task.source_dictionary, masking=True, shared=encoder.sentence_encoder)
        return cls(cfg, encoder, generator).apply(init_bert_params)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: Optional[str] = None,
        masked_tokens: Optional[Tensor] = None,
        noise: Optional[Tensor] = None,
        **_: Any,
    ) -> Any:
        """Compute `TupeModel.forward`: features and classes by the discriminator, logits of symbols by the generator.

        With noise (batch, src_len), uniform in [0, 1), compute a pre-training step on src_tokens that are masked at
        masked_tokens (batch, src_len), and return `ReplacedTokens`.
        """
        if noise is not None:
            assert masked_tokens is not None
            return self._replace_and_detect(src_tokens, masked_tokens, noise)
        if features_only or classification_head_name is not None:
            return super().forward(src_tokens, src_lengths, True, return_all_hiddens, classification_head_name)
        if self.training and not self._warned:
            self._warned = True
            logger.warning("only the generator is trained: pre-training needs --criterion electra")
        return self._generator()(src_tokens, return_all_hiddens=return_all_hiddens, masked_tokens=masked_tokens)

    def _replace_and_detect(self, src_tokens: Tensor, masked_tokens: Tensor, noise: Tensor) -> ReplacedTokens:
        generator_logits, _ = self._generator()(src_tokens, masked_tokens=masked_tokens)
        # a padding symbol would be masked in the discriminator's attention
        drawn = draw_tokens(generator_logits, noise[masked_tokens], never=self.encoder.dictionary.pad())
        corrupted = src_tokens.masked_scatter(masked_tokens, drawn)
        features, _ = self.encoder(corrupted, masked_tokens=masked_tokens)
        return ReplacedTokens(generator_logits, corrupted, self.encoder.rtd_head(features))

    def _generator(self) -> TupeEncoder:
        if self.generator is None:
            raise OptionError(
                "this ELECTRA has no generator, which a fine-tuned one leaves behind: fill masks and continue "
                "pre-training with the checkpoint of the pre-training (--task masked_lm)"
            )
        return self.generator

    def set_num_updates(self, num_updates: int) -> None:
        """Remember the number of updates, on which the criterion's draws depend; fairseq calls this."""
        super().set_num_updates(num_updates)
        self.num_updates = num_updates


class Discriminator(FairseqEncoder):
    """A sentence encoder and, for pre-training, the head that finds replaced tokens."""

    def __init__(self, cfg: ElectraConfig, dictionary: Any, pre_training: bool) -> None:
        super().__init__(dictionary)
        self.sentence_encoder = build_sentence_encoder(cfg, dictionary)
        self.rtd_head = ReplacedTokenHead(cfg.encoder_embed_dim, str(cfg.activation_fn)) if pre_training else None
        self.longest = cfg.max_positions

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = True,
        return_all_hiddens: bool = False,
        masked_tokens: Optional[Tensor] = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """src_tokens (batch, src_len) -> features (batch, src_len, C). features_only: always True."""
        features, hiddens = self.sentence_encoder(src_tokens, masked_tokens, return_all_hiddens)
        return features, {"inner_states": hiddens if return_all_hiddens else None}

    def max_positions(self) -> int:
        """Return the longest input in tokens."""
        return self.longest


#: generator: in base a third of the discriminator's dimension (Clark et al. 2020, Table 6), in tiny a quarter
_GENERATORS: dict[str, dict[str, int]] = {
    "base": {},
    "tiny": {
        "generator_layers": 4,
        "generator_embed_dim": 64,
        "generator_ffn_embed_dim": 256,
        "generator_attention_heads": 1,
    },
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "electra": {"position_encoding": "added"},
    "electra_tupe": {"position_encoding": "untied", "rel_pos": True},
}

register_presets(
    "electra",
    {
        f"{family}_{size}": {**positions, **SIZES[size], **generator}
        for family, positions in _FAMILIES.items()
        for size, generator in _GENERATORS.items()
    },
)
