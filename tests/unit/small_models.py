"""Tiny models of all our architectures, built without fairseq's parser; and the table that test_architectures.py goes
through: a model joins by one entry."""

from __future__ import annotations

import argparse
import dataclasses
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from tupe_reference import randomise

import embinit_fairseq  # noqa: F401

BOS, PAD, EOS = 0, 1, 2


def dictionary(words=11, masking=False):
    """Four specials, w0, w1 ..., and <mask> for tasks that mask."""
    symbols = Dictionary()
    for word in [f"w{number}" for number in range(words)] + ["<mask>"] * masking:
        symbols.add_symbol(word)
    return symbols


def task_of(words=11, target_words=None, masking=False, **cfg):
    """What models and criterions look at in a task."""
    source = dictionary(words, masking)
    target = dictionary(target_words) if target_words else source
    task = SimpleNamespace(source_dictionary=source, target_dictionary=target, cfg=SimpleNamespace(**cfg))
    if masking:
        task.mask_idx = source.index("<mask>")
    return task


def batch_of(sentences, left=False, width=0):
    """Lists of ids -> (batch, len), padded on the right or on the left."""
    length = max(width, *map(len, sentences))
    rows = [[PAD] * (length - len(s)) + s if left else s + [PAD] * (length - len(s)) for s in sentences]
    return torch.tensor(rows)


def preset(arch, **options):
    """The options of an architecture, as `--arch` fills in what the command line does not say."""
    args = argparse.Namespace(**options)
    ARCH_CONFIG_REGISTRY[arch](args)
    cfg = MODEL_DATACLASS_REGISTRY[model_name(arch)](**vars(args))
    cfg._name = arch
    return cfg


def model_name(arch):
    return next(name for name in MODEL_DATACLASS_REGISTRY if ARCH_MODEL_REGISTRY.get(name) is ARCH_MODEL_REGISTRY[arch])


def save_checkpoint(path, cfg, weights, **task):
    """What fairseq's loader needs of a checkpoint. cfg: the options of the model."""
    whole = OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True)
    history = {"num_updates": 0, "optimizer_name": "", "criterion_name": "", "lr_scheduler_state": {}}
    state = {"cfg": {**whole, "model": plain(cfg), "task": task}, "model": weights, "optimizer_history": [history]}
    torch.save({**state, "args": None, "extra_state": {"train_iterator": None}}, path)
    return str(path)


def plain(cfg):
    """Options as a checkpoint has them: numbers and strings."""
    return {name: getattr(value, "value", value) for name, value in vars(cfg).items()}


# ---- What every model is tried with. Sizes are all different, so that none is taken for another ---------------------

PRE_LN = {"encoder_normalize_before": True, "decoder_normalize_before": True}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
#: tables of the Duo transformer with other dimensions than the layers
MAPPED = {"encoder_dim_s": 5, "encoder_dim_p": 7, "decoder_dim_s": 3, "decoder_dim_p": 8}
TIED = {"share_all_embeddings": True}
TIED_OUTPUT = {"share_decoder_input_output_embed": True}
OFF = {"duo_share_weights": "off", "duo_norm": "off", "duo_fusion": "off"}
WIDER_DECODER = {"decoder_embed_dim": 12, "decoder_ffn_embed_dim": 10, "decoder_attention_heads": 3}

#: of the Duo transformer: any two values of two switches meet at least once
DUO_SWITCHES = [
    {
        **{"duo_share_weights": share, "duo_norm": norm, "duo_fusion": ("on", "off")[(i + j) % 2]},
        **({}, TIED_OUTPUT, TIED)[(i + j) % 3],
        **({}, PRE_LN)[(i + j // 2) % 2],
    }
    for i, share in enumerate(("off", "stream", "pair"))
    for j, norm in enumerate(("off", "encoder", "decoder", "all"))
]

_ENCODER = {"encoder_embed_dim": 8, "encoder_ffn_embed_dim": 6, "encoder_layers": 2, "encoder_attention_heads": 2}
_BERT = {**_ENCODER, "max_positions": 10}
_GENERATOR = {"layers": 1, "embed_dim": 6, "ffn_embed_dim": 4, "attention_heads": 3}
_TRANSLATION = {**_ENCODER, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_embed_dim": None}
_TRANSLATION |= {"max_source_positions": 48, "max_target_positions": 48}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """arch: its smallest preset. sizes: options of a tiny model. task: in fairseq. variants: every option that changes
    names, shapes or what is computed, at least once; the first is the model as its preset has it.
    matters: option -> another value with which weights of a checkpoint are another function, and what both must have
    besides. The other options may differ from a checkpoint's. golden: variants in the golden file (default: all).
    """

    arch: str
    task: str
    sizes: dict
    variants: dict
    matters: dict
    golden: tuple = ()

    @property
    def model(self):
        return ARCH_MODEL_REGISTRY[self.arch]

    def config(self, **options):
        return preset(self.arch, **{**self.sizes, **options})

    def task_of(self, words=11, target_words=None, masking=None, **cfg):
        return task_of(words, target_words, self.task == "masked_lm" if masking is None else masking, **cfg)

    def build(self, task=None, **options):
        """With initial values."""
        torch.manual_seed(0)
        return self.model.build_model(self.config(**options), task or self.task_of())

    def randomised(self, task=None, **options):
        """In double precision, all parameters different from their initial values; evaluation mode."""
        return randomise(self.build(task, **options)).eval()


RELATIVE = {"rel_pos": True, "rel_pos_bins": 8, "max_rel_pos": 12}
_BERT_VARIANTS = {
    "TUPE-A": {},
    "TUPE-R": {"rel_pos": True},
    "TUPE-R, reset of the paper": {"rel_pos": True, "tupe_reset": "paper"},
    "TUPE-R, tie-cls": {"rel_pos": True, "tupe_tie_cls": True},
    "TUPE-A, norms": {"embedding_normalize": True, "encoder_normalize_before": True},
    "BERT-A": {"position_encoding": "added", "embedding_normalize": True},
    "BERT-R, relu": {"position_encoding": "relative", "rel_pos_bins": 16, "activation_fn": "relu"},
    "BERT-A^d, sdpa": {"position_encoding": "four_terms", "attention_kernel": "sdpa"},
}
_BERT_MATTERS = {
    **{"encoder_layers": (3, {}), "encoder_embed_dim": (12, {}), "encoder_ffn_embed_dim": (5, {})},
    **{"encoder_attention_heads": (4, {}), "encoder_normalize_before": (True, {}), "embedding_normalize": (True, {})},
    **{"activation_fn": ("relu", {}), "position_encoding": ("added", {}), "rel_pos": (True, {})},
    **{"tupe_tie_cls": (True, {}), "tupe_reset": ("paper", {"rel_pos": True}), "max_positions": (9, {})},
    **{"rel_pos_bins": (16, {"rel_pos": True}), "max_rel_pos": (64, {"position_encoding": "relative"})},
}
_SIDES_MATTER = {
    f"{side}_{name}": (value, {})
    for side in ("encoder", "decoder")
    for name, value in (("layers", 3), ("ffn_embed_dim", 5), ("attention_heads", 4), ("normalize_before", True))
}
_TRANSLATION_MATTERS = {
    **{**_SIDES_MATTER, "encoder_embed_dim": (12, {"decoder_embed_dim": 8}), "decoder_embed_dim": (12, {})},
    **{"share_decoder_input_output_embed": (True, {}), "share_all_embeddings": (True, {})},
    **{"no_scale_embedding": (True, {}), "activation_fn": ("gelu", {})},
}

ARCHITECTURES = {
    "tupe": Architecture(
        "tupe_tiny",
        "masked_lm",
        _BERT,
        _BERT_VARIANTS,
        _BERT_MATTERS,
    ),
    "electra": Architecture(
        "electra_tiny",
        "masked_lm",
        {**_BERT, **{f"generator_{name}": value for name, value in _GENERATOR.items()}},
        {
            "BERT-A": {},
            "BERT-A, norms, wide generator": {
                **{"embedding_normalize": True, "encoder_normalize_before": True},
                **{"generator_embed_dim": 8, "generator_attention_heads": 2},
            },
            "TUPE-R": {"position_encoding": "untied", "rel_pos": True},
        },
        {
            **{name: (value, more) for name, (value, more) in _BERT_MATTERS.items() if "pos" not in name},
            **{"rel_pos": (True, {"position_encoding": "untied"}), "position_encoding": ("four_terms", {})},
            **{"tupe_tie_cls": (True, {"position_encoding": "untied"}), "max_positions": (9, {})},
            "tupe_reset": ("paper", {"position_encoding": "untied", "rel_pos": True}),
            **{name: (16, {"position_encoding": "relative"}) for name in ("rel_pos_bins", "max_rel_pos")},
            **{"generator_layers": (2, {}), "generator_embed_dim": (3, {}), "generator_ffn_embed_dim": (5, {})},
            "generator_attention_heads": (2, {}),
        },
    ),
    "tupe_transformer": Architecture(
        "tupe_transformer",
        "translation",
        _TRANSLATION,
        {
            "post-LN": {},
            "pre-LN, relative, gelu": {**PRE_LN, **RELATIVE, "activation_fn": "gelu"},
            "relative, eager": {**RELATIVE, "attention_kernel": "eager"},
            "sdpa": {"attention_kernel": "sdpa"},
            "unscaled, one table": {"no_scale_embedding": True, **TIED},
            "other widths, pre-LN decoder, tied output": {
                **{**WIDER_DECODER, **TIED_OUTPUT, "decoder_layers": 1, "decoder_normalize_before": True},
            },
        },
        {
            **{**_TRANSLATION_MATTERS, "max_source_positions": (9, {}), "max_target_positions": (9, {})},
            **{"rel_pos": (True, {}), "rel_pos_bins": (16, {"rel_pos": True}), "max_rel_pos": (64, {"rel_pos": True})},
        },
    ),
    "duo_transformer": Architecture(
        "duo_transformer",
        "translation",
        _TRANSLATION,
        {
            "default": {},
            "one table, mapped": {**TIED, "encoder_dim_s": 5, "encoder_dim_p": 7},
            "tied output, mapped": {**TIED_OUTPUT, **MAPPED},
            "all off": OFF,
            "all off, tied, mapped, pre-LN": {**OFF, **PRE_LN, **TIED_OUTPUT, **MAPPED},
            "pair, norm in the encoder": {"duo_share_weights": "pair", "duo_norm": "encoder"},
            "pair, norm all, tied output, mapped, pre-LN": {
                **{"duo_share_weights": "pair", "duo_norm": "all", **TIED_OUTPUT, **MAPPED, **PRE_LN},
            },
            "pair, other widths, one table": {"duo_share_weights": "pair", **TIED, **WIDER_DECODER},
            "norm all, pre-LN, gelu, learned": {"duo_norm": "all", **PRE_LN, **LEARNED, "activation_fn": "gelu"},
            "sdpa, unscaled, without positions": {
                **{"attention_kernel": "sdpa", "no_scale_embedding": True, "no_token_positional_embeddings": True},
            },
            "eager, other widths, one table, pre-LN decoder": {
                **{"attention_kernel": "eager", **TIED, **WIDER_DECODER},
                **{"decoder_layers": 1, "decoder_normalize_before": True},
            },
            "one stream": {"duo_streams": 1},
            "one stream, mapped, pre-LN, one table": {"duo_streams": 1, "encoder_dim_s": 5, **TIED, **PRE_LN},
        },
        {
            **{**_TRANSLATION_MATTERS, "max_source_positions": (9, LEARNED), "max_target_positions": (9, LEARNED)},
            **{"encoder_learned_pos": (True, {}), "decoder_learned_pos": (True, {}), "duo_norm": ("all", {})},
            **{"duo_streams": (1, {}), "duo_share_weights": ("pair", {}), "duo_fusion": ("off", {})},
            **{"no_token_positional_embeddings": (True, {}), **{name: (6, {}) for name in MAPPED}},
        },
        (
            *("default", "tied output, mapped", "all off, tied, mapped, pre-LN", "pair, norm in the encoder"),
            *("norm all, pre-LN, gelu, learned", "eager, other widths, one table, pre-LN decoder", "one stream"),
        ),
    ),
    "embinit_classifier": Architecture(
        "embinit_classifier",
        "sentence_prediction",
        _BERT,
        {
            "mean": {},
            "first token, learned positions, pre-LN": {
                **{"pooling": "cls", "encoder_learned_pos": True, "encoder_normalize_before": True},
            },
            "unscaled, without positions": {"no_scale_embedding": True, "no_token_positional_embeddings": True},
        },
        {
            **{"encoder_layers": (3, {}), "encoder_embed_dim": (12, {}), "encoder_ffn_embed_dim": (5, {})},
            **{"encoder_attention_heads": (4, {}), "encoder_normalize_before": (True, {}), "pooling": ("cls", {})},
            **{"no_token_positional_embeddings": (True, {}), "no_scale_embedding": (True, {})},
            **{"encoder_learned_pos": (True, {}), "max_positions": (9, {"encoder_learned_pos": True})},
        },
    ),
    "duo_classifier": Architecture(
        "duo_classifier",
        "sentence_prediction",
        {"encoder_dim_s": 3, "encoder_dim_p": 5, "duo_ffn_dim": 4},
        {"frozen": {}, "linear, trained": {"duo_attention": "linear", "train_embeddings": True}},
        {
            **{"encoder_dim_s": (4, {}), "encoder_dim_p": (4, {}), "duo_ffn_dim": (5, {})},
            "duo_attention": ("linear", {}),
        },
    ),
}
#: (name of the architecture, options) of all variants
VARIANTS = {
    f"{name}: {variant}": (name, options)
    for name, architecture in ARCHITECTURES.items()
    for variant, options in architecture.variants.items()
}
