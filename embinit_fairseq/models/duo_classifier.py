"""`--arch duo_classifier`: text classification with two frozen embeddings of every word. Li et al. 2020, section 3.1.

What is learned: two queries, W_O and the label layer, D_S + D_P + (D_S + D_P) F + F K parameters (section 3.1.4; F the
dimension of the sentence vector, K labels). The paper does not say where its dropout is; here, as in the original
transformer, behind each sub-layer: on [a^P, a^S] and on the sentence vector e.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
import logging
import sys
from dataclasses import dataclass, field
from typing import Any, Optional, cast

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model
from torch import Tensor, nn

from embinit_fairseq.embed_init.options import EMBED_INIT_REGISTRY
from embinit_fairseq.embed_init.request import InitRequest, request_from
from embinit_fairseq.errors import OptionError
from embinit_fairseq.models._hub import load_trained
from embinit_fairseq.models._options import check_ranges, flag
from embinit_fairseq.models._state_dicts import find_head, fit_heads
from embinit_fairseq.models.embinit_classifier import ClassifierHub
from embinit_fairseq.modules.duo_classifier import ATTENTIONS, DuoSentenceEmbedding
from embinit_fairseq.modules.initialisation import init_table

logger = logging.getLogger(__name__)
SLOTS = ("encoder", "encoder_p")
SIZES = ("encoder_dim_s", "encoder_dim_p", "duo_ffn_dim")


@dataclass
class DuoClassifierConfig(FairseqDataclass):
    """Options of the classifier."""

    encoder_dim_s: int = field(default=300, metadata={"help": "dimension of the first embedding matrix (slot encoder)"})
    encoder_dim_p: int = field(
        default=300, metadata={"help": "dimension of the second embedding matrix (slot encoder_p)"}
    )
    duo_ffn_dim: int = field(default=600, metadata={"help": "dimension of the sentence vector"})
    duo_attention: ChoiceEnum(list(ATTENTIONS)) = field(
        default="softmax",
        metadata={"help": "weights of the words: equations 1 and 2, or without their softmax as in the experiments"},
    )
    dropout: float = field(default=0.1, metadata={"help": "dropout of [a^P, a^S] and of the sentence vector"})
    train_embeddings: bool = field(default=False, metadata={"help": "train the two embedding matrices, too"})
    max_positions: int = field(default=512, metadata={"help": "longest input in tokens, which concerns the task only"})


@register_model("duo_classifier", dataclass=DuoClassifierConfig)
class DuoClassifier(BaseFairseqModel):
    """Works with `--task sentence_prediction` and its criterions; the two sentences of a pair are one text."""

    def __init__(self, cfg: DuoClassifierConfig, dictionary: Any) -> None:
        super().__init__()
        self.cfg, self.dictionary = cfg, dictionary
        self.args = cfg  # the stock criterion looks here for options of RoBERTa
        self.embed_tokens = _table(dictionary, cfg.encoder_dim_s, cfg.train_embeddings)
        self.embed_tokens_p = _table(dictionary, cfg.encoder_dim_p, cfg.train_embeddings)
        self.sentence_embedding = DuoSentenceEmbedding(
            cfg.encoder_dim_s, cfg.encoder_dim_p, cfg.duo_ffn_dim, str(cfg.duo_attention), cfg.dropout
        )
        self.classification_heads = nn.ModuleDict()

    @classmethod
    def build_model(cls, cfg: DuoClassifierConfig, task: Any) -> "DuoClassifier":
        """Build for a task with a `source_dictionary`; raises OptionError for sizes that cannot be."""
        check_ranges(cfg)
        for name in SIZES:
            if getattr(cfg, name) < 1:
                raise OptionError(f"{flag(name)} {getattr(cfg, name)}: must be at least 1")
        return cls(cfg, task.source_dictionary)

    def register_classification_head(self, name: str, num_classes: int, **_: Any) -> None:
        """Add a label layer from the sentence vector to `num_classes` logits."""
        if name in self.classification_heads:
            logger.warning("the classification head %r is replaced", name)
        self.classification_heads[name] = _LabelLayer(self.cfg.duo_ffn_dim, num_classes)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        features_only: bool = False,
        classification_head_name: Optional[str] = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """src_tokens (B, T) -> logits (B, K), or the sentence vectors (B, F) without a head."""
        padding_mask = src_tokens.eq(cast(int, self.embed_tokens.padding_idx))
        features = self.sentence_embedding(
            src_tokens, padding_mask, self.embed_tokens.weight, self.embed_tokens_p.weight
        )
        if classification_head_name is not None:
            features = find_head(self.classification_heads, classification_head_name)(features)
        return features, {}

    def attention_weights(self, src_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """src_tokens (T,) without padding -> (T,) each: weights by S (of P's vectors), weights by P (of S's)."""
        present = torch.ones(1, len(src_tokens), dtype=torch.bool, device=src_tokens.device)
        tables = self.embed_tokens.weight, self.embed_tokens_p.weight
        return self.sentence_embedding.weights(src_tokens, present, *tables)

    def max_positions(self) -> int:
        """No limit: nothing here depends on the length of a text. --max-positions is that of the task."""
        return sys.maxsize

    def embedding_slots(self) -> dict[str, tuple[nn.Embedding, Any, nn.Module]]:
        """For `--embed-init`: encoder, encoder_p -> (embedding matrix, dictionary, where it is used)."""
        return {
            name: (table, self.dictionary, self) for name, table in zip(SLOTS, (self.embed_tokens, self.embed_tokens_p))
        }

    def check_training(self, checkpoint: Any) -> None:
        """Raise OptionError, before a training, for options that cannot work; warn of random matrices that stay so."""
        request = request_from(self.cfg)
        if self.cfg.train_embeddings:
            return
        if checkpoint is None:
            _check_sources(request)
        partly = [freeze for freeze in request.options.embed_init_freeze or () if ":" in freeze]
        if partly:
            raise OptionError(
                f"--embed-init-freeze {partly[0]}: both matrices are frozen as they are; add --train-embeddings to "
                "train the rest, or drop it"
            )

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Fit a checkpoint's heads to this model: its own number of classes wins (fine-tuning)."""
        super().upgrade_state_dict_named(state_dict, name)
        fit_heads(self, state_dict, last="projection")

    @classmethod
    def from_pretrained(
        cls, model_name_or_path: str, checkpoint_file: str = "model.pt", data: str = ".", **kwargs: Any
    ) -> "DuoHub":
        """A DuoHub around a trained checkpoint. data: the folder with `input0/dict.txt` and `label/dict.txt`."""
        loaded = load_trained(cls, model_name_or_path, checkpoint_file, data, **kwargs)
        return DuoHub(loaded["task"], loaded["models"][0])


def _check_sources(request: InitRequest) -> None:
    """Tables that are not trained need vectors. A strategy that draws all its numbers may be meant as a baseline."""
    strategy = EMBED_INIT_REGISTRY.get(request.strategy)
    if strategy is None or not strategy.needs_source:
        logger.warning(
            "THE TABLES ARE RANDOM AND STAY SO: give them vectors (--embed-init pretrained --embed-init-path "
            "encoder=FILE encoder_p=FILE), or train them (--train-embeddings)"
        )
        return
    given = {text.partition("=")[0] for text in request.options.embed_init_path or ()}
    missing = [slot for slot in SLOTS if slot not in given]
    if len(missing) == 1:  # without any, --embed-init says so; other names, too
        raise OptionError(
            f"--embed-init-path: no vectors for {missing[0]}, whose embedding matrix would be random and stay so: add "
            f"{missing[0]}=FILE, or train the embedding matrices (--train-embeddings)"
        )


class DuoHub(ClassifierHub):
    """A trained classifier for use from Python, which can say what it looked at."""

    @torch.no_grad()
    def attention(self, *sentences: str) -> list[tuple[str, float, float]]:
        """(symbol of the dictionary, its weight by the first matrix, by the second) of every token of the input.

        The first weighs the vectors of the second embedding matrix and the other way round. They add up to 1, unless
        `--duo-attention linear`, whose weights are any numbers.
        """
        tokens = self.encode(*sentences).to(next(self.model.parameters()).device)
        weights_s, weights_p = self.model.attention_weights(tokens)
        symbols = [self.task.source_dictionary[token] for token in tokens.tolist()]
        return list(zip(symbols, weights_s.tolist(), weights_p.tolist()))


class _LabelLayer(nn.Module):
    """Sentence vector -> logits; no bias, as the paper counts its parameters."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.projection = nn.Linear(dim, num_classes, bias=False)
        nn.init.xavier_uniform_(self.projection.weight)

    def forward(self, features: Tensor) -> Tensor:
        return self.projection(features)


def _table(dictionary: Any, dim: int, trained: bool) -> nn.Embedding:
    """N(0, 1/dim), padding zero: what stays if there is no --embed-init."""
    table = nn.Embedding(len(dictionary), dim, dictionary.pad())
    init_table(table.weight, dim)
    nn.init.zeros_(table.weight[dictionary.pad()])
    return table.requires_grad_(trained)
