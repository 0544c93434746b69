"""`--arch duo_classifier`: text classification with two frozen embeddings of every word. Li et al. 2020, section 3.1.

Learned parameters: two queries, W_O and the label layer, D_S + D_P + (D_S + D_P) F + F K numbers (section 3.1.4; F:
dimension of the sentence vector, K: labels). The paper does not say where its dropout is. Here dropout acts, as in the
original transformer, after each sub-layer: on [a^P, a^S] and on the sentence vector e. The equations are in
modules/duo_sentence_embedding.py.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
import logging
import sys
from dataclasses import dataclass
from typing import Any, Optional, cast

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models._options import check_ranges, option
from embinit_fairseq.models.embinit_classifier import Classifier, ClassifierHub
from embinit_fairseq.modules.duo_sentence_embedding import ATTENTIONS, DuoSentenceEmbedding
from embinit_fairseq.modules.heads import LabelLayer
from embinit_fairseq.modules.initialisation import init_table

logger = logging.getLogger(__name__)
SLOTS = ("encoder", "encoder_p")


@dataclass
class DuoClassifierConfig(FairseqDataclass):
    """Hold the options of the classifier."""

    encoder_dim_s: int = option(300, "dimension of the first embedding matrix (slot encoder)")
    encoder_dim_p: int = option(300, "dimension of the second embedding matrix (slot encoder_p)")
    duo_ffn_dim: int = option(600, "dimension of the sentence vector")
    duo_attention: ChoiceEnum(list(ATTENTIONS)) = option(
        "softmax", "weights of the words: equations 1 and 2, or without their softmax as in the experiments"
    )
    dropout: float = option(0.1, "dropout of [a^P, a^S] and of the sentence vector")
    train_embeddings: bool = option(False, "train the two embedding matrices, too")
    max_positions: int = option(512, "longest input in tokens, which concerns the task only")


class DuoHub(ClassifierHub):
    """Use a trained classifier from Python, with the weights of its words."""

    @torch.no_grad()
    def attention(self, *sentences: str) -> list[tuple[str, float, float]]:
        """Return (symbol of the dictionary, weight by the first matrix, weight by the second) for every token.

        Weights by the first matrix are for the vectors of the second one, and the other way round. They add up to 1,
        except with `--duo-attention linear`, whose weights are any numbers.
        """
        tokens = self.encode(*sentences).to(next(self.model.parameters()).device)
        weights_s, weights_p = self.model.attention_weights(tokens)
        symbols = [self.task.source_dictionary[token] for token in tokens.tolist()]
        return list(zip(symbols, weights_s.tolist(), weights_p.tolist()))


@register_model("duo_classifier", dataclass=DuoClassifierConfig)
class DuoClassifier(Classifier, BaseFairseqModel):
    """Classify by `--task sentence_prediction` and its criterions; the two sentences of a pair are one text."""

    hub = DuoHub

    def __init__(self, cfg: DuoClassifierConfig, dictionary: Any) -> None:
        super().__init__()
        self.cfg, self.dictionary = cfg, dictionary
        self.args = cfg  # fairseq's criterion reads options of RoBERTa here
        self.embed_tokens = _table(dictionary, cfg.encoder_dim_s, cfg.train_embeddings)
        self.embed_tokens_p = _table(dictionary, cfg.encoder_dim_p, cfg.train_embeddings)
        self.sentence_embedding = DuoSentenceEmbedding(
            cfg.encoder_dim_s, cfg.encoder_dim_p, cfg.duo_ffn_dim, str(cfg.duo_attention), cfg.dropout
        )
        self.classification_heads = nn.ModuleDict()

    @classmethod
    def build_model(cls, cfg: DuoClassifierConfig, task: Any) -> "DuoClassifier":
        """Build for a task with a `source_dictionary`; raise OptionError for sizes out of range."""
        check_ranges(cfg)
        return cls(cfg, task.source_dictionary)

    def new_head(self, num_classes: int, inner_dim: Optional[int]) -> nn.Module:
        """Return a linear layer from the sentence vector to `num_classes` logits, without bias as in the paper."""
        return LabelLayer(self.cfg.duo_ffn_dim, num_classes, bias=False)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        features_only: bool = False,
        classification_head_name: Optional[str] = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return logits (B, K) of src_tokens (B, T), or without a head sentence vectors (B, F)."""
        padding_mask = src_tokens.eq(cast(int, self.embed_tokens.padding_idx))
        features = self.sentence_embedding(
            src_tokens, padding_mask, self.embed_tokens.weight, self.embed_tokens_p.weight
        )
        if classification_head_name is not None:
            features = self.classification_head(classification_head_name)(features)
        return features, {}

    def attention_weights(self, src_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights by S (of P's vectors) and by P (of S's), (T,), of src_tokens (T,) without padding."""
        present = torch.ones(1, len(src_tokens), dtype=torch.bool, device=src_tokens.device)
        tables = self.embed_tokens.weight, self.embed_tokens_p.weight
        return self.sentence_embedding.weights(src_tokens, present, *tables)

    def max_positions(self) -> int:
        """Return no limit: the model takes texts of any length. --max-positions is the task's."""
        return sys.maxsize

    def embedding_slots(self) -> dict[str, tuple[nn.Embedding, Any, nn.Module]]:
        """Return encoder, encoder_p -> (embedding matrix, dictionary, owner) for `--embed-init`."""
        return {
            name: (table, self.dictionary, self) for name, table in zip(SLOTS, (self.embed_tokens, self.embed_tokens_p))
        }

    def check_training(self, checkpoint: Any, request: Any) -> None:
        """Raise OptionError, before a training, for options that cannot work; warn of matrices that stay random.

        Args:
            checkpoint: the checkpoint that the training continues from, or None.
            request: the options of `--embed-init`.
        """
        if self.cfg.train_embeddings:
            return
        if checkpoint is None:
            _check_vectors(request)
        partly = [freeze for freeze in request.options.embed_init_freeze or () if ":" in freeze]
        if partly:
            raise OptionError(
                f"--embed-init-freeze {partly[0]}: both matrices are frozen anyway; add --train-embeddings to train "
                "the rest, or drop it"
            )


def _check_vectors(request: Any) -> None:
    """Raise unless both matrices, which are not trained, get vectors. A strategy without vectors may be a baseline."""
    if request.strategy is None or not request.embed_init.needs_source:
        logger.warning(
            "THE EMBEDDING MATRICES STAY RANDOM: give them vectors (--embed-init pretrained --embed-init-path "
            "encoder=FILE encoder_p=FILE), or train them (--train-embeddings)"
        )
        return
    slots = {text.partition("=")[0] for text in request.options.embed_init_path or ()}
    missing = [slot for slot in SLOTS if slot not in slots]
    if len(missing) == 1:  # --embed-init itself refuses no vectors at all, and other names
        raise OptionError(
            f"--embed-init-path: no vectors for {missing[0]}, whose embedding matrix would stay random: add "
            f"{missing[0]}=FILE, or train the embedding matrices (--train-embeddings)"
        )


def _table(dictionary: Any, dim: int, trained: bool) -> nn.Embedding:
    """Return a matrix from N(0, 1/dim), padding zero."""
    table = nn.Embedding(len(dictionary), dim, dictionary.pad())
    init_table(table.weight, dim)
    nn.init.zeros_(table.weight[dictionary.pad()])
    return table.requires_grad_(trained)
