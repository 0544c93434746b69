"""Configure TUPE and its comparison set (Ke et al. 2021) for transformers; nothing else is needed."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig


class TupeConfig(PretrainedConfig):
    """Hold sizes and kinds of an encoder; the equations are in modeling_tupe.py.

    Args:
        position_encoding: `untied` (TUPE), `added` (BERT-A), `added_relative` (BERT-R), `relative` (alone),
            `four_terms` (BERT-A^d), `rope`, `alibi`, `none`.
        reset: treatment of <s> by untied positions: `official` (the absolute and the relative term each have
            constants), `paper` (one pair of constants replaces their sum), None (like any position: TUPE-A^tie-cls).
        rotary: RoPE in addition to untied positions.
        num_buckets: number of buckets of relative positions, 0: none; distances above max_distance share one.
        normalize_before: layer norms before each block (pre-LN), not after it.
        embedding_normalize: a layer norm on the embeddings.
        classifier_size, classifier_activation, classifier_dropout: settings of the classification head.

    Raises:
        ValueError: an unknown reset, or an output matrix that is not tied.
    """

    model_type = "tupe"

    def __init__(
        self,
        vocab_size: int = 32769,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        hidden_act: str = "gelu",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        activation_dropout: float = 0.0,
        max_position_embeddings: int = 512,
        position_encoding: str = "untied",
        reset: str | None = "official",
        rotary: bool = False,
        num_buckets: int = 0,
        max_distance: int = 128,
        normalize_before: bool = False,
        embedding_normalize: bool = False,
        classifier_size: int | None = None,
        classifier_activation: str = "tanh",
        classifier_dropout: float = 0.1,
        pad_token_id: int = 1,
        bos_token_id: int = 0,
        eos_token_id: int = 2,
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.num_attention_heads, self.intermediate_size = num_attention_heads, intermediate_size
        self.hidden_act, self.hidden_dropout_prob = hidden_act, hidden_dropout_prob
        self.attention_probs_dropout_prob, self.activation_dropout = attention_probs_dropout_prob, activation_dropout
        self.max_position_embeddings, self.position_encoding = max_position_embeddings, position_encoding
        self.reset, self.rotary = reset, rotary
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.normalize_before, self.embedding_normalize = normalize_before, embedding_normalize
        self.classifier_size, self.classifier_activation = classifier_size, classifier_activation
        self.classifier_dropout = classifier_dropout
        tokens = {"pad_token_id": pad_token_id, "bos_token_id": bos_token_id, "eos_token_id": eos_token_id}
        super().__init__(tie_word_embeddings=tie_word_embeddings, **tokens, **kwargs)
        if reset not in ("official", "paper", None):
            raise ValueError(f"reset={reset!r}: choose from 'official', 'paper', None")
        if not tie_word_embeddings:
            raise ValueError("tie_word_embeddings=False: the language-model head of this model is its embeddings")
