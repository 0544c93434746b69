"""Define the models of fairseq that transformers can hold as an `Architecture`: configuration, names, refusals.

To add one, write its functions and patterns and add it to `ARCHITECTURES`: opening a checkpoint, tokenizers, the
comparison with fairseq, the card and error messages read this list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embinit_fairseq.interop.trained import Architecture, Trained
from embinit_fairseq.models.tupe import position_sizes
from embinit_fairseq.modules.position_encoding import ENCODERS, POSITION_ENCODINGS, published_name

if TYPE_CHECKING:
    from torch import Tensor

# ---- TUPE and its comparison set, and discriminators of ELECTRA: models with code of this package -------------------


def _describe_tupe(trained: Trained) -> str:
    """Name the model as the paper does."""
    cfg = trained.options
    encoding = POSITION_ENCODINGS[str(cfg.position_encoding)]
    name = published_name(str(cfg.position_encoding), cfg.rel_pos, rotary=cfg.rotary)
    if name == encoding.name:
        name += f": {encoding.help}"
    if encoding.resets and cfg.tupe_tie_cls:
        name += ", <s> treated like any position"
    elif encoding.resets and cfg.rel_pos:
        name += f", reset as {cfg.tupe_reset}"
    return f"{name} (discriminator of an ELECTRA)" if "electra" in trained.arch else name


_AUTO_MAP = {
    "AutoConfig": "configuration_tupe.TupeConfig",
    "AutoModel": "modeling_tupe.TupeModel",
    "AutoModelForMaskedLM": "modeling_tupe.TupeForMaskedLM",
    "AutoModelForSequenceClassification": "modeling_tupe.TupeForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_tupe.TupeForTokenClassification",
}


def _tupe_config(trained: Trained) -> dict[str, Any]:
    """Return the arguments of `TupeConfig`."""
    cfg = trained.options
    sizes = position_sizes(cfg)
    config = {
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
        "max_position_embeddings": sizes.max_positions,
        "position_encoding": str(cfg.position_encoding),
        "reset": sizes.reset,
        "rotary": sizes.rotary,
        "num_buckets": sizes.num_buckets,
        "max_distance": sizes.max_distance,
        "normalize_before": cfg.encoder_normalize_before,
        "embedding_normalize": cfg.embedding_normalize,
        "classifier_activation": str(cfg.pooler_activation_fn),
        "classifier_dropout": cfg.pooler_dropout,
        "tie_word_embeddings": True,
    }
    if trained.head is not None:
        config["classifier_size"] = trained.head_module.dense.out_features
    return config


TUPE = Architecture(
    archs=f"{ENCODERS}, electra_* of this plugin",
    hf_name="TUPE",
    tags=("tupe", "fairseq"),
    note="An encoder as in Ke et al. 2021, Rethinking Positional Encoding in Language Pre-training, who compare\n"
    "positions; the equations, and papers of later positions, are in `modeling_tupe.py`, `position_encoding.py`\n"
    "and `fixed_positions.py`.",
    models=("tupe", "electra"),
    describe=_describe_tupe,
    config=_tupe_config,
    names=(
        (r"encoder\.sentence_encoder\.", "tupe."),
        (r"encoder\.lm_head\.bias", "lm_head.decoder.bias"),
        (r"encoder\.lm_head\.(dense|layer_norm)\.", r"lm_head.\1."),  # its weight is the embedding matrix
        (r"head\.", "classifier."),
    ),
    code=(
        *(f"interop.remote.{name}" for name in ("configuration_tupe", "modeling_tupe")),
        *(f"modules.{name}" for name in ("attention_kernels", "encoder_layer", "heads", "initialisation")),
        *("modules.position_encoding", "modules.fixed_positions", "errors"),
    ),
)

# ---- fairseq's RoBERTa: transformers' own ---------------------------------------------------------------------------
# Both have post-LN layers and learned positions that begin after the row of padding; their matrices have the same rows.

#: --activation-fn -> its name in transformers
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_accurate": "gelu_new", "gelu_fast": "gelu_new", "tanh": "tanh"}


def _roberta_config(trained: Trained) -> dict[str, Any]:
    """Return the arguments of `RobertaConfig`."""
    args, encoder = trained.options, trained.model.encoder.sentence_encoder
    return {
        "architectures": [trained.auto_class.replace("AutoModel", "Roberta")],
        "model_type": "roberta",
        "hidden_size": args.encoder_embed_dim,
        "num_hidden_layers": len(encoder.layers),
        "num_attention_heads": args.encoder_attention_heads,
        "intermediate_size": args.encoder_ffn_embed_dim,
        "hidden_act": ACTIVATIONS[str(args.activation_fn)],
        "hidden_dropout_prob": args.dropout,
        "attention_probs_dropout_prob": args.attention_dropout,
        "classifier_dropout": args.pooler_dropout,
        "max_position_embeddings": encoder.embed_positions.num_embeddings,  # with the rows up to padding
        "type_vocab_size": 1,
        "layer_norm_eps": encoder.layernorm_embedding.eps,
        "tie_word_embeddings": not args.untie_weights_roberta,
    }


def _roberta_extra(trained: Trained) -> dict[str, Tensor]:
    """Return a row of zeros for segments, which fairseq does not have, and the output matrix if it is not tied."""
    import torch

    words = trained.model.encoder.sentence_encoder.embed_tokens.weight
    tensors = {"roberta.embeddings.token_type_embeddings.weight": torch.zeros_like(words[:1])}
    if trained.head is None and trained.options.untie_weights_roberta:
        tensors["lm_head.decoder.weight"] = trained.lm_head.weight
        tensors["lm_head.decoder.bias"] = trained.lm_head.bias  # transformers ties both or neither
    return tensors


def _roberta_refusals(trained: Trained) -> dict[str, bool]:
    args, encoder = trained.options, trained.model.encoder.sentence_encoder
    activation = str(args.activation_fn)
    refusals = {
        "--encoder-normalize-before (roberta_prenorm)": encoder.layer_norm is not None,
        f"--activation-fn {activation}": activation not in ACTIVATIONS,
        "--quant-noise-pq": bool(args.quant_noise_pq),
    }
    if trained.head is None:
        return {**refusals, f"a language-model head with --activation-fn {activation}": activation != "gelu"}
    units = trained.head_module.dense.out_features
    return {
        **refusals,
        f"--pooler-activation-fn {args.pooler_activation_fn}": str(args.pooler_activation_fn) != "tanh",
        f"a head of {units} units": units != args.encoder_embed_dim,
    }


_ENCODER = r"encoder\.sentence_encoder\."
_LAYER = rf"{_ENCODER}layers\.(\d+)\."
ROBERTA = Architecture(
    archs="fairseq's roberta, roberta_base, roberta_large, xlm, xlmr, camembert, gottbert",
    hf_name="RoBERTa",
    tags=("roberta", "fairseq"),
    note="RoBERTa as in Liu et al. 2019; transformers' own classes compute it.",
    models=("roberta", "xlmr", "camembert", "gottbert"),  # they differ in what from_pretrained downloads
    describe=lambda trained: "RoBERTa" if trained.head is None else "RoBERTa, fine-tuned",
    config=_roberta_config,
    names=(
        (rf"{_ENCODER}embed_tokens\.", "roberta.embeddings.word_embeddings."),
        (rf"{_ENCODER}embed_positions\.", "roberta.embeddings.position_embeddings."),
        (rf"{_ENCODER}layernorm_embedding\.", "roberta.embeddings.LayerNorm."),
        (rf"{_LAYER}self_attn\.q_proj\.", r"roberta.encoder.layer.\1.attention.self.query."),
        (rf"{_LAYER}self_attn\.k_proj\.", r"roberta.encoder.layer.\1.attention.self.key."),
        (rf"{_LAYER}self_attn\.v_proj\.", r"roberta.encoder.layer.\1.attention.self.value."),
        (rf"{_LAYER}self_attn\.out_proj\.", r"roberta.encoder.layer.\1.attention.output.dense."),
        (rf"{_LAYER}self_attn_layer_norm\.", r"roberta.encoder.layer.\1.attention.output.LayerNorm."),
        (rf"{_LAYER}fc1\.", r"roberta.encoder.layer.\1.intermediate.dense."),
        (rf"{_LAYER}fc2\.", r"roberta.encoder.layer.\1.output.dense."),
        (rf"{_LAYER}final_layer_norm\.", r"roberta.encoder.layer.\1.output.LayerNorm."),
        (r"encoder\.lm_head\.(dense\.|layer_norm\.|bias)", r"lm_head.\1"),
        (r"head\.", "classifier."),
    ),
    extra=_roberta_extra,
    refusals=_roberta_refusals,
)

# ---- fairseq's transformer and BART: post-LN encoder and decoder, whose layers have fairseq's names -----------------

SIDES = ("encoder", "decoder")
_SEQ2SEQ_ACTIVATIONS = {**ACTIVATIONS, "relu_squared": "relu2", "linear": "linear"}
_SEQ2SEQ_NAMES = (
    (r"(encoder|decoder)\.layers\.(\d+)\.((self|encoder)_attn\.(k|v|q|out)_proj\.)", r"model.\1.layers.\2.\3"),
    (r"(encoder|decoder)\.layers\.(\d+)\.((self_attn|encoder_attn|final)_layer_norm\.)", r"model.\1.layers.\2.\3"),
    (r"(encoder|decoder)\.layers\.(\d+)\.(fc[12]\.)", r"model.\1.layers.\2.\3"),
)


def _seq2seq_config(trained: Trained) -> dict[str, Any]:
    """Return the arguments that `FSMTConfig` and `BartConfig` have in common."""
    cfg, model, eos = trained.options, trained.model, trained.model.decoder.dictionary.eos()
    config: dict[str, Any] = {
        "d_model": cfg.encoder_embed_dim,
        "activation_function": _SEQ2SEQ_ACTIVATIONS[str(cfg.activation_fn)],
        "dropout": float(cfg.dropout),
        "attention_dropout": float(cfg.attention_dropout),
        "activation_dropout": float(cfg.activation_dropout or cfg.relu_dropout),
        "max_position_embeddings": max(model.max_positions()),
        "scale_embedding": not cfg.no_scale_embedding,
        "tie_word_embeddings": bool(cfg.share_all_embeddings),
        "is_encoder_decoder": True,
        "decoder_start_token_id": eos,
        "forced_eos_token_id": eos,
    }
    for side in SIDES:
        config[f"{side}_layers"] = len(getattr(model, side).layers)
        config[f"{side}_attention_heads"] = getattr(cfg, f"{side}_attention_heads")
        config[f"{side}_ffn_dim"] = getattr(cfg, f"{side}_ffn_embed_dim")
        config[f"{side}_layerdrop"] = float(getattr(cfg, f"{side}_layerdrop"))
    return config


def _seq2seq_refusals(trained: Trained) -> dict[str, bool]:
    """Return the options that neither FSMT nor BART can have -> True if the model has them."""
    cfg, decoder = trained.options, trained.model.decoder
    dims = f"--encoder-embed-dim {cfg.encoder_embed_dim} with --decoder-embed-dim {cfg.decoder_embed_dim}"
    return {
        f"--activation-fn {cfg.activation_fn}": str(cfg.activation_fn) not in _SEQ2SEQ_ACTIVATIONS,
        "--adaptive-softmax-cutoff": decoder.adaptive_softmax is not None,
        "--cross-self-attention": cfg.cross_self_attention,
        "--decoder-normalize-before": cfg.decoder_normalize_before,
        "--decoder-output-dim": decoder.project_out_dim is not None,
        dims: cfg.encoder_embed_dim != cfg.decoder_embed_dim,
        "--encoder-normalize-before": cfg.encoder_normalize_before,
        "--no-cross-attention": cfg.no_cross_attention,
        "--no-token-positional-embeddings": cfg.no_token_positional_embeddings,
        "--quant-noise-pq": bool(cfg.quant_noise_pq),
        "--quant-noise-scalar": bool(cfg.quant_noise_scalar),
    }


# FSMT was made for fairseq's models of WMT 2019. Both number positions after the row of padding, over tokens that are
# not padding, so that padding may be on either side; both have sines in the first half of a position's vector.


def _fsmt_config(trained: Trained) -> dict[str, Any]:
    """Return the arguments of `FSMTConfig`."""
    source, target = trained.sequence_sides
    return {
        **_seq2seq_config(trained),
        "architectures": ["FSMTForConditionalGeneration"],
        "model_type": "fsmt",
        "langs": [source.language, target.language],
        "src_vocab_size": len(source.symbols),
        "tgt_vocab_size": len(target.symbols),
        "use_cache": False,
    }


def fsmt_extra(trained: Trained) -> dict[str, Tensor]:
    """Return positions (1 + padding + longest, dim), and matrices that FSMT does not tie.

    FSMT ties all three matrices or none: the two of --share-decoder-input-output-embed are written twice.
    """
    model, tensors = trained.model, {}
    for side in SIDES:
        positions = getattr(model, side).embed_positions
        rows = positions.padding_idx + 1 + max(model.max_positions())
        sines = positions.get_embedding(rows, positions.embedding_dim, positions.padding_idx)
        tensors[f"model.{side}.embed_positions.weight"] = sines.to(model.decoder.embed_tokens.weight)
    if not trained.options.share_all_embeddings:
        tensors["model.encoder.embed_tokens.weight"] = model.encoder.embed_tokens.weight
        tensors["model.decoder.output_projection.weight"] = model.decoder.output_projection.weight
    return tensors


def _fsmt_refusals(trained: Trained) -> dict[str, bool]:
    cfg = trained.options
    return {
        **_seq2seq_refusals(trained),
        **{f"--{side}-learned-pos": getattr(cfg, f"{side}_learned_pos") for side in SIDES},
        "--layernorm-embedding": cfg.layernorm_embedding,
    }


TRANSFORMER = Architecture(
    archs="fairseq's transformer and its presets (transformer_iwslt_de_en, transformer_wmt_en_de, ...)",
    hf_name="FSMT",
    tags=("translation", "fsmt", "fairseq"),
    note="The Transformer of Vaswani et al. 2017; transformers' own class computes it.\n\n"
    "`config.json` says `use_cache: false`: with it, FSMT masks nothing of what comes later in `decoder_input_ids`.\n"
    "`generate()` uses its cache all the same.",
    models=("transformer",),
    describe=lambda trained: "Transformer, {} to {}".format(*(side.language for side in trained.sequence_sides)),
    config=_fsmt_config,
    names=(*_SEQ2SEQ_NAMES, (r"decoder\.embed_tokens\.", "model.decoder.embed_tokens.")),
    extra=fsmt_extra,
    refusals=_fsmt_refusals,
    tasks=("translation",),
)

# BART's positions are learned, two rows after their number. transformers counts columns, fairseq counts tokens that are
# not padding: with padding on the right both counts are equal.


def _bart_extra(trained: Trained) -> dict[str, Tensor]:
    """Return the one embedding matrix, and a zero bias of the output, which fairseq does not have."""
    words = trained.model.encoder.embed_tokens.weight
    return {"model.shared.weight": words, "final_logits_bias": words.new_zeros(1, len(words))}


def _bart_refusals(trained: Trained) -> dict[str, bool]:
    cfg, (source, target) = trained.options, trained.model.max_positions()
    return {
        **_seq2seq_refusals(trained),
        f"--max-source-positions {source} with --max-target-positions {target}": source != target,
        "two embedding matrices (no --share-all-embeddings)": not cfg.share_all_embeddings,
        "a classification head": trained.head is not None,
        **{f"sines as positions (no --{side}-learned-pos)": not getattr(cfg, f"{side}_learned_pos") for side in SIDES},
        "no --layernorm-embedding": not cfg.layernorm_embedding,
    }


BART = Architecture(
    archs="fairseq's bart_base, bart_large",
    hf_name="BART",
    tags=("bart", "fairseq"),
    note="BART as in Lewis et al. 2019; transformers' own class computes it.",
    models=("bart",),  # the model of mBART's architectures, too
    describe=lambda trained: "BART" if trained.task == "denoising" else "BART, fine-tuned",
    config=lambda trained: {
        **_seq2seq_config(trained),
        "architectures": ["BartForConditionalGeneration"],
        "model_type": "bart",
    },
    names=(*_SEQ2SEQ_NAMES, (r"(encoder|decoder)\.(embed_positions|layernorm_embedding)\.", r"model.\1.\2.")),
    extra=_bart_extra,
    refusals=_bart_refusals,
    tasks=("denoising", "translation"),
)

ARCHITECTURES = (TUPE, ROBERTA, TRANSFORMER, BART)
