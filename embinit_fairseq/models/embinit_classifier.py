"""`--arch embinit_classifier`: a transformer encoder trained from scratch for sentence classification.

The encoder-only model of Kim et al. 2024 (SST-2, MNLI): 3 layers, 8 heads (10 for D = 300), FFN 512, sinusoidal
positions, embeddings scaled by sqrt(D); FFN 512 is inferred from the paper's parameter counts (Table 5: 6M with 13k x
300, 18M with 11k x 768). The paper does not say how tokens become one vector; here it is their mean, or the first
token's vector (`--pooling cls`).
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoderModel, register_model
from fairseq.models.transformer import Embedding, TransformerConfig, TransformerEncoderBase
from torch import Tensor, nn

from embinit_fairseq.errors import DataError, OptionError, check_heads
from embinit_fairseq.models._hub import input_of, load_hub, preparation_of
from embinit_fairseq.models._options import check_ranges, option
from embinit_fairseq.models._state_dicts import WithHeads
from embinit_fairseq.modules.heads import LabelLayer


@dataclass
class EmbinitClassifierConfig(FairseqDataclass):
    """Hold the options of the classifier."""

    encoder_embed_dim: int = option(512, "dimension D of embeddings and layers")
    encoder_ffn_embed_dim: int = option(512, "dimension inside the feed-forward networks")
    encoder_layers: int = option(3, "number of encoder layers")
    encoder_attention_heads: Optional[int] = option(None, "attention heads (default: 10 if D = 300, else 8)")
    dropout: float = option(0.1, "dropout")
    attention_dropout: float = option(0.0, "dropout of attention weights")
    activation_dropout: float = option(0.0, "dropout inside the feed-forward networks")
    encoder_normalize_before: bool = option(False, "layer norm before each block (pre-LN)")
    encoder_learned_pos: bool = option(False, "learned positions instead of sinusoids")
    no_token_positional_embeddings: bool = option(False, "no positions at all")
    no_scale_embedding: bool = option(False, "do not multiply embeddings with sqrt(D)")
    pooling: ChoiceEnum(["mean", "cls"]) = option(
        "mean", "sentence vector: mean over its tokens, or the first token (give --init-token 0 then)"
    )
    max_positions: int = option(512, "longest input in tokens")


class ClassifierHub(nn.Module):
    """Use a trained classifier from Python."""

    def __init__(self, cfg: Any, task: Any, models: list[Any], **how: Any) -> None:
        """Wrap the first model in evaluation mode. how: preparation, lowercase and lang, see `load_hub`."""
        super().__init__()
        self.task, self.model = task, models[0].eval()
        self.prepare = preparation_of(cfg, task, how)

    def encode(self, sentence: str, second: Optional[str] = None) -> Tensor:
        """Return token ids (src_len,) of raw text, a sentence or a pair, as in the data of the training."""
        return input_of(self.task, [self.prepare(text) for text in (sentence, second) if text is not None])

    @torch.no_grad()
    def predict(self, *sentences: str, head: str = "sentence_classification_head") -> dict[str, float]:
        """Return label -> probability for a sentence or a pair; for a regression `score` -> the number.

        Raises:
            DataError: the input is too long.
            OptionError: the model has no head of this name.
        """
        tokens = self.encode(*sentences).unsqueeze(0).to(next(self.model.parameters()).device)
        longest = self.model.max_positions()
        if tokens.shape[1] > longest:
            raise DataError(
                f"the input has {tokens.shape[1]} tokens, the model has {longest} positions: shorten it (a model "
                "trained with --shorten-method truncate does so itself)"
            )
        logits, _ = self.model(tokens, classification_head_name=head)
        if logits.shape[-1] == 1:
            return {"score": logits.item()}
        labels = self.task.label_dictionary
        probabilities = logits.softmax(-1)[0].tolist()
        return {labels[labels.nspecial + number]: value for number, value in enumerate(probabilities)}


class Classifier(WithHeads):
    """A model that only classifies."""

    hub: type[ClassifierHub] = ClassifierHub

    @classmethod
    def from_pretrained(
        cls, model_name_or_path: str, checkpoint_file: str = "model.pt", data: str = ".", **kwargs: Any
    ) -> Any:
        """Return the hub of a trained checkpoint.

        Args:
            data: the folder with `input0/dict.txt` and `label/dict.txt`.
            kwargs: preparation, lowercase and lang, and options to override, see `load_hub`.
        """
        return load_hub(cls, model_name_or_path, checkpoint_file, data, **kwargs)


@register_model("embinit_classifier", dataclass=EmbinitClassifierConfig)
class EmbinitClassifier(Classifier, FairseqEncoderModel):
    """Classify by `--task sentence_prediction` (one sentence or a pair) and `--criterion sentence_prediction`."""

    def __init__(self, cfg: EmbinitClassifierConfig, encoder: TransformerEncoderBase) -> None:
        super().__init__(encoder)
        self.cfg = cfg
        self.args = cfg  # fairseq's criterion reads options of RoBERTa here
        self.classification_heads = nn.ModuleDict()

    @classmethod
    def build_model(cls, cfg: EmbinitClassifierConfig, task: Any) -> "EmbinitClassifier":
        """Build for a task with a `source_dictionary`; raise OptionError for options out of range."""
        check_ranges(cfg)
        dictionary = task.source_dictionary
        if cfg.pooling == "cls" and getattr(getattr(task, "cfg", None), "init_token", 0) is None:
            raise OptionError("--pooling cls takes the first token's vector: add --init-token 0, or use --pooling mean")
        embed_tokens = Embedding(len(dictionary), cfg.encoder_embed_dim, dictionary.pad())
        encoder = TransformerEncoderBase(_encoder_config(cfg), dictionary, embed_tokens)
        for layer in encoder.layers:  # Kim A.2: all non-embedding parameters start with Xavier's distribution
            for parameter in layer.parameters():
                if parameter.dim() == 2:
                    nn.init.xavier_uniform_(parameter)
        return cls(cfg, encoder)

    def new_head(self, num_classes: int, inner_dim: Optional[int]) -> nn.Module:
        """Return a linear layer from the sentence vector to `num_classes` logits."""
        return LabelLayer(self.cfg.encoder_embed_dim, num_classes, self.cfg.dropout)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        features_only: bool = False,
        classification_head_name: Optional[str] = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return logits (batch, classes) of src_tokens (batch, src_len); without a head sentence vectors (batch, D)."""
        encoded = self.encoder(src_tokens, src_lengths=src_lengths)
        features = encoded["encoder_out"][0].transpose(0, 1)  # (batch, src_len, D)
        pooled = self.pool(features, src_tokens)
        if classification_head_name is not None:
            pooled = self.classification_head(classification_head_name)(pooled)
        return pooled, {"encoder_out": features}

    def pool(self, features: Tensor, src_tokens: Tensor) -> Tensor:
        """Return the sentence vectors (batch, D) of features (batch, src_len, D), without padding."""
        if self.cfg.pooling == "cls":
            return features[:, 0]
        present = src_tokens.ne(self.encoder.padding_idx).unsqueeze(-1).to(features)
        return (features * present).sum(1) / present.sum(1).clamp(min=1)

    def max_positions(self) -> int:
        """Return the longest input in tokens."""
        return self.encoder.max_positions()


def _encoder_config(cfg: EmbinitClassifierConfig) -> TransformerConfig:
    """Return the configuration of fairseq's encoder."""
    dim = cfg.encoder_embed_dim
    heads = cfg.encoder_attention_heads or (10 if dim == 300 else 8)
    check_heads(heads, dim, "--encoder-attention-heads", "--encoder-embed-dim")
    stock = TransformerConfig()
    stock.encoder.embed_dim, stock.encoder.ffn_embed_dim = dim, cfg.encoder_ffn_embed_dim
    stock.encoder.layers, stock.encoder.attention_heads = cfg.encoder_layers, heads
    stock.encoder.normalize_before = cfg.encoder_normalize_before
    stock.encoder.learned_pos = cfg.encoder_learned_pos
    stock.dropout, stock.attention_dropout = cfg.dropout, cfg.attention_dropout
    stock.activation_dropout = cfg.activation_dropout
    stock.no_token_positional_embeddings = cfg.no_token_positional_embeddings
    stock.no_scale_embedding = cfg.no_scale_embedding
    stock.max_source_positions = cfg.max_positions
    return stock
