"""TUPE and its comparison set for transformers (Ke et al. 2021, Rethinking Positional Encoding in Language
Pre-training). Needs torch >= 2.1 and transformers, nothing else.

Every layer computes, with heads of dimension d,

    softmax((x W^Q) (x W^K)^T / sqrt(n d) + B) (x W^V) W^O

    position_encoding   n   effect of positions
    untied              2   B_ij = (p_i U^Q) (p_j U^K)^T / sqrt(2 d) [+ b_{j-i}], see `UntiedPositions`: TUPE-A, TUPE-R
    added               1   x_i = embedding + p_i: BERT-A
    added_relative      1   both x_i = embedding + p_i and B_ij = b_{j-i}: BERT-R
    relative            1   B_ij = b_{j-i}, and no other positions
    four_terms          4   (x W^Q + p U^Q) (x W^K + p U^K)^T: BERT-A^d
    rope                1   queries and keys are rotated, see `RotaryTerm`: RoPE (with `rotary` untied positions, too)
    alibi               1   B_ij = -m |i - j|: ALiBi
    none                1   nothing

B is the same for all layers and sentences. Positions are columns: inputs begin with <s> and are padded on the right.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    ModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import logging

# transformers 4.46 copies the files that this file imports, but not their imports
from embinit_fairseq.errors import __doc__ as _errors  # noqa: F401
from embinit_fairseq.interop.remote.configuration_tupe import TupeConfig
from embinit_fairseq.modules.attention_kernels import AttentionContext, prepare
from embinit_fairseq.modules.encoder_layer import ACTIVATIONS, EncoderLayer, LayerConfig
from embinit_fairseq.modules.fixed_positions import __doc__ as _fixed_positions  # noqa: F401
from embinit_fairseq.modules.heads import ClassificationHead
from embinit_fairseq.modules.initialisation import init_bert_params
from embinit_fairseq.modules.position_encoding import POSITION_ENCODINGS, PositionSizes

logger = logging.get_logger(__name__)


class TupePreTrainedModel(PreTrainedModel):
    """Base class of the models below."""

    config_class = TupeConfig
    base_model_prefix = "tupe"
    supports_gradient_checkpointing = True
    _no_split_modules = ["EncoderLayer"]
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        """Draw weights that a checkpoint lacks: matrices N(0, 0.02^2), biases zero, layer norms 1 and 0."""
        init_bert_params(module)
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


class TupeModel(TupePreTrainedModel):
    """Embeddings, (positions), (layer norm), dropout, padding to zero, layers, (layer norm of pre-LN)."""

    _auto_class = "AutoModel"  # so that save_pretrained writes this file, too
    _keys_to_ignore_on_load_unexpected = [r"lm_head\.", r"classifier\."]

    def __init__(self, config: TupeConfig) -> None:
        super().__init__(config)
        dim = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, dim, config.pad_token_id)
        sizes = PositionSizes(
            dim,
            config.num_attention_heads,
            config.max_position_embeddings,
            num_buckets=config.num_buckets,
            max_distance=config.max_distance,
            reset=config.reset,
            rotary=config.rotary,
        )
        self.positions = POSITION_ENCODINGS[config.position_encoding].build(sizes)
        self.emb_layer_norm = nn.LayerNorm(dim) if config.embedding_normalize else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        layer = LayerConfig(
            embed_dim=dim,
            ffn_embed_dim=config.intermediate_size,
            num_heads=config.num_attention_heads,
            num_terms=self.positions.num_terms,
            dropout=config.hidden_dropout_prob,
            attention_dropout=config.attention_probs_dropout_prob,
            activation_dropout=config.activation_dropout,
            activation=config.hidden_act,
            normalize_before=config.normalize_before,
        )
        self.layers = nn.ModuleList(EncoderLayer(layer) for _ in range(config.num_hidden_layers))
        self.layer_norm = nn.LayerNorm(dim) if config.normalize_before else None
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embedding matrix of tokens."""
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Set the embedding matrix of tokens."""
        self.embed_tokens = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutput | tuple:
        """Return last_hidden_state (batch, length, C), which has no meaning at padding.

        Args:
            input_ids: (batch, length), or inputs_embeds: (batch, length, C).
            attention_mask: (batch, length), 0 at padding; default: input_ids that are `pad_token_id` are padding.
            output_attentions: return the probabilities (batch, heads, length, length) of each layer, before dropout.
            output_hidden_states: return the embeddings, then the output of each layer.

        Raises:
            ValueError: padding is on the left, or an input is longer than the matrix of positions.
        """
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, and not both")
        padding_mask = self._padding_mask(input_ids, attention_mask)
        x = self._embed(self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds, padding_mask)
        kernel = "eager" if output_attentions or self.config._attn_implementation == "eager" else "sdpa"
        bias = self.positions.bias(x.shape[1])
        if kernel == "eager" and bias is not None and padding_mask is not None:  # added once, not in every layer
            bias, padding_mask = bias.masked_fill(padding_mask[:, None, None], torch.finfo(bias.dtype).min), None
        context = prepare(kernel, bias, padding_mask, self.positions.rotation(x.shape[1]))
        if output_attentions:
            context = replace(context, weights=[])
        projections = self.positions.projections(x.shape[1]) or ()
        hiddens = [x]
        for layer in self.layers:
            x = self._run(layer, x, context, *projections)
            hiddens.append(x)
        if self.layer_norm is not None:
            x = hiddens[-1] = self.layer_norm(x)
        attentions = None if context.weights is None else tuple(context.weights)
        output = BaseModelOutput(x, tuple(hiddens) if output_hidden_states else None, attentions)
        return output.to_tuple() if return_dict is False else output

    def _embed(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        longest = self.positions.max_positions
        if longest is not None and x.shape[1] > longest:
            raise ValueError(
                f"an input has {x.shape[1]} tokens, the model has {longest} positions: shorten it "
                f"(tokenizer(..., truncation=True, max_length={longest}))"
            )
        x = self.positions.embed(x)
        if self.emb_layer_norm is not None:
            x = self.emb_layer_norm(x)
        x = self.dropout(x)
        return x if padding_mask is None else x.masked_fill(padding_mask.unsqueeze(-1), 0.0)

    def _run(self, layer: nn.Module, x: Tensor, context: AttentionContext, *projections: Tensor) -> Tensor:
        """Run a layer. projections: added to queries and keys."""

        def run(x: Tensor, bias: Tensor | None, prepared: Tensor | None, *projections: Tensor) -> Tensor:
            shared = replace(context, bias=bias, prepared=prepared)
            return layer(x, shared, projections or None)

        # tensors one by one, since gradient checkpointing follows arguments only
        tensors = x, context.bias, context.prepared, *projections
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(run, *tensors)
        return run(*tensors)

    def _padding_mask(self, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
        """Return (batch, length), True at padding; None without padding. Compiled, it does not look at values."""
        if attention_mask is not None:
            if attention_mask.dim() != 2:
                raise ValueError(f"attention_mask has the shape {tuple(attention_mask.shape)}: give (batch, length)")
            padding_mask = attention_mask == 0
        elif input_ids is not None:
            padding_mask = input_ids == self.config.pad_token_id
        else:
            return None
        if torch.compiler.is_compiling():
            return padding_mask
        first = torch.zeros_like(padding_mask[:, 0])
        if input_ids is not None:
            first = input_ids[:, 0] != self.config.bos_token_id
        facts = torch.stack([padding_mask.any(), padding_mask[:, 0].any(), first.any()])
        any_padding, left_padding, no_bos = facts.tolist()
        if left_padding:
            raise ValueError("a sentence begins with padding, but positions are columns: padding_side='right'")
        if no_bos and self.positions.untie_cls:
            logger.warning_once("a sentence does not begin with <s>, but its first position is treated as that of <s>")
        return padding_mask if any_padding else None


class TupeLMHead(nn.Module):
    """LN(act(x W + b)) E^T + bias, with the token embeddings E: the parameter itself, not a copy."""

    def __init__(self, config: TupeConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (batch, length, V) of features (batch, length, C)."""
        return self.decoder(self.layer_norm(self.activation(self.dense(features))))


class TupeWithHead(TupePreTrainedModel):
    """Join the encoder and a head, which subclasses define by `compute_logits` and `compute_loss`."""

    output_class: type[ModelOutput]

    def __init__(self, config: TupeConfig) -> None:
        super().__init__(config)
        self.tupe = TupeModel(config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> ModelOutput | tuple:
        """Return logits and, with labels, the loss; see the class. Other arguments as for `TupeModel`."""
        encoded = self.tupe(input_ids, attention_mask, inputs_embeds, output_attentions, output_hidden_states)
        logits = self.compute_logits(encoded.last_hidden_state)
        loss = None if labels is None else self.compute_loss(logits.float(), labels.to(logits.device))
        output = self.output_class(loss, logits, encoded.hidden_states, encoded.attentions)
        return output.to_tuple() if return_dict is False else output


class TupeForMaskedLM(TupeWithHead):
    """The encoder and its language-model head: logits (batch, length, V).

    labels (batch, length) are -100 at positions without a prediction; the loss is the mean cross-entropy of the others.
    """

    _auto_class = "AutoModelForMaskedLM"
    _tied_weights_keys = {"lm_head.decoder.weight": "tupe.embed_tokens.weight"}
    output_class = MaskedLMOutput

    def __init__(self, config: TupeConfig) -> None:
        super().__init__(config)
        self.lm_head = TupeLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        """Return the last layer of the head; its weight is the embedding matrix of tokens."""
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Set the last layer of the head."""
        self.lm_head.decoder = new_embeddings

    def compute_logits(self, features: Tensor) -> Tensor:
        """Return logits (batch, length, V) of features (batch, length, C)."""
        return self.lm_head(features)

    def compute_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats."""
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class TupeForSequenceClassification(TupeWithHead):
    """The encoder and a head on the feature of <s>: logits (batch, num_labels).

    labels are classes (batch,) for cross-entropy; numbers (batch,) of a single label for the mean squared error; 0 and
    1 (batch, num_labels) for binary cross-entropy. `config.problem_type`, if it is set, decides.
    """

    _auto_class = "AutoModelForSequenceClassification"
    _keys_to_ignore_on_load_unexpected = [r"lm_head\."]
    output_class = SequenceClassifierOutput

    def __init__(self, config: TupeConfig) -> None:
        super().__init__(config)
        self.classifier = ClassificationHead(
            config.hidden_size,
            config.classifier_size or config.hidden_size,
            config.num_labels,
            config.classifier_activation,
            config.classifier_dropout,
        )
        self.post_init()

    def compute_logits(self, features: Tensor) -> Tensor:
        """Return logits (batch, num_labels) of features (batch, length, C)."""
        return self.classifier(features)

    def compute_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss that the labels' type or `config.problem_type` names."""
        problem = self.config.problem_type
        if problem is None:
            several = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
            problem = "regression" if self.config.num_labels == 1 else several
        if problem == "regression":
            return F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype).view_as(logits.squeeze(-1)))
        if problem == "single_label_classification":
            return F.cross_entropy(logits, labels.view(-1))
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))


class TupeForTokenClassification(TupeWithHead):
    """The encoder, dropout and a linear layer on each feature: logits (batch, length, num_labels).

    labels (batch, length) are classes, or -100 for none; the loss is the mean cross-entropy over the classes.
    """

    _auto_class = "AutoModelForTokenClassification"
    _keys_to_ignore_on_load_unexpected = [r"lm_head\."]
    output_class = TokenClassifierOutput

    def __init__(self, config: TupeConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def compute_logits(self, features: Tensor) -> Tensor:
        """Return logits (batch, length, num_labels) of features (batch, length, C)."""
        return self.classifier(self.dropout(features))

    def compute_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats."""
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
