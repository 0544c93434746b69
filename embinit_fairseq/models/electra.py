"""`--arch electra_base` and `electra_tupe_base`: ELECTRA (Clark et al. 2020) with the positions of Ke et al. 2021.

    electra_*        positions added to the embeddings, as in BERT: the baseline of Ke's Table 4
    electra_tupe_*   TUPE-R in generator and discriminator; others by --position-encoding

The generator fills masked positions, the discriminator finds out which tokens were replaced (modules/heads.py).
Pre-training: --task masked_lm --criterion electra. Fine-tuning: --task sentence_prediction, with the discriminator
alone, which is called `encoder` as in fairseq's models.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
import copy
import logging
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from fairseq.models import register_model
from torch import Tensor

from embinit_fairseq.models._options import option, register_presets, size_options
from embinit_fairseq.models.tupe import SIZES, TupeConfig, TupeEncoder, TupeModel, check_sizes, masks, without
from embinit_fairseq.modules.heads import ReplacedTokenHead, draw_tokens
from embinit_fairseq.modules.initialisation import init_bert_params

logger = logging.getLogger(__name__)


@dataclass
class ElectraConfig(TupeConfig):
    """Hold options of both networks: encoder_* are the discriminator's, generator_* the generator's, others of both."""

    generator_layers: int = option(12, "number of layers of the generator")
    generator_embed_dim: int = option(
        256, "dimension of the generator's layers; its embeddings are the discriminator's"
    )
    generator_ffn_embed_dim: int = option(1024, "dimension inside the generator's FFNs")
    generator_attention_heads: int = option(4, "attention heads of the generator")


class ReplacedTokens(NamedTuple):
    """Hold the results of a pre-training step.

    Args:
        generator_logits: (N, V), the generator's logits at the masked positions.
        corrupted_tokens: (batch, src_len), the discriminator's input.
        logits: (batch, src_len), the discriminator's logits of "replaced", without meaning at padding.
    """

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

    def forward(  # type: ignore[override]  # the other arguments are in options
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        features_only: bool = False,
        classification_head_name: Optional[str] = None,
        noise: Optional[Tensor] = None,
        **options: Any,
    ) -> Any:
        """Compute `TupeModel.forward`: features and classes by the discriminator, logits of symbols by the generator.

        With noise (batch, src_len), uniform in [0, 1), compute a pre-training step on src_tokens that are masked at
        masked_tokens (batch, src_len), and return `ReplacedTokens`.
        """
        if noise is not None:
            return self._replace_and_detect(src_tokens, options["masked_tokens"], noise)
        if features_only or classification_head_name is not None:
            return super().forward(
                src_tokens, features_only=True, classification_head_name=classification_head_name, **options
            )
        if self.training and not self._warned:
            self._warned = True
            logger.warning("only the generator is trained: pre-training needs --criterion electra")
        return self._generator()(src_tokens, **options)

    def _replace_and_detect(self, src_tokens: Tensor, masked_tokens: Tensor, noise: Tensor) -> ReplacedTokens:
        generator_logits, _ = self._generator()(src_tokens, masked_tokens=masked_tokens)
        # a padding symbol would be masked in the discriminator's attention
        drawn = draw_tokens(generator_logits, noise[masked_tokens], never=self.encoder.dictionary.pad())
        corrupted = src_tokens.masked_scatter(masked_tokens, drawn)
        features, _ = self.encoder(corrupted, features_only=True, masked_tokens=masked_tokens)
        return ReplacedTokens(generator_logits, corrupted, self.encoder.rtd_head(features))

    def _generator(self) -> TupeEncoder:
        if self.generator is None:
            raise without("generator")
        return self.generator

    def set_num_updates(self, num_updates: int) -> None:
        """Remember the number of updates, on which the criterion's draws depend; fairseq calls this."""
        super().set_num_updates(num_updates)
        self.num_updates = num_updates


class Discriminator(TupeEncoder):
    """A sentence encoder and, for pre-training, the head that finds replaced tokens."""

    def __init__(self, cfg: ElectraConfig, dictionary: Any, pre_training: bool) -> None:
        super().__init__(cfg, dictionary, masking=False)
        self.rtd_head = ReplacedTokenHead(cfg.encoder_embed_dim, str(cfg.activation_fn)) if pre_training else None


#: generator: in base a third of the discriminator's dimension (Clark et al. 2020, Table 6), in tiny a quarter
_GENERATORS: dict[str, dict[str, int]] = {"base": {}, "tiny": size_options("generator", 4, 64, 256, 1)}
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
