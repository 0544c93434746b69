"""Tiny models of all our architectures, built without fairseq's parser; and the table that test_architectures.py goes
through: a model joins by one entry."""

import argparse
import dataclasses
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf
from tupe_reference import randomise

import embinit_fairseq  # noqa: F401
from embinit_fairseq.modules.position_encoding import POSITION_ENCODINGS

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
    cfg = getattr(ARCH_MODEL_REGISTRY[arch], "__dataclass")(**vars(args))
    cfg._name = arch
    return cfg


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


#: of a translation, and dropout rates that tell who dropped
SOURCES = [[4, 5, 6, 7, 8, 9, EOS], [10, 4, EOS], [7, 7, 12, 5, EOS]]
PREVIOUS = [[EOS, 6, 9, 4], [EOS, 5, 5, 8, 11, 4, 13, 6], [EOS]]
RATES = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}

PRE_LN = {"encoder_normalize_before": True, "decoder_normalize_before": True}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
#: tables of the Duo transformer with other dimensions than the layers
MAPPED = {"encoder_dim_s": 5, "encoder_dim_p": 7, "decoder_dim_s": 3, "decoder_dim_p": 8}
TIED = {"share_all_embeddings": True}
TIED_OUTPUT = {"share_decoder_input_output_embed": True}
OFF = {"duo_share_weights": "off", "duo_norm": "off", "duo_fusion": "off"}
WIDER_DECODER = {"decoder_embed_dim": 12, "decoder_ffn_embed_dim": 10, "decoder_attention_heads": 3}
ONE_PRE_LN_LAYER = {"decoder_layers": 1, "decoder_normalize_before": True}
BERT_NORMS = {"embedding_normalize": True, "encoder_normalize_before": True}
WITHOUT_POSITIONS = {"no_scale_embedding": True, "no_token_positional_embeddings": True}

_ENCODER = {"encoder_embed_dim": 8, "encoder_ffn_embed_dim": 6, "encoder_layers": 2, "encoder_attention_heads": 2}
_BERT = {**_ENCODER, "max_positions": 10}
_GENERATOR = {"generator_layers": 1, "generator_embed_dim": 6, "generator_ffn_embed_dim": 4}
_TRANSLATION = {**_ENCODER, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_embed_dim": None}
_TRANSLATION |= {"max_source_positions": 48, "max_target_positions": 48}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """arch: its smallest preset. sizes: options of a tiny model. task: in fairseq. variants: every option that changes
    names, shapes or the computed function, at least once; the first is the model of its preset. golden: variants in the
    golden file (default: all)."""

    arch: str
    task: str
    sizes: dict
    variants: dict
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


REL_POS, UNTIED = {"rel_pos": True}, {"position_encoding": "untied"}
RELATIVE = {"rel_pos": True, "rel_pos_bins": 8, "max_rel_pos": 12}
_BERT_VARIANTS = {
    "TUPE-A": {},
    "TUPE-R": REL_POS,
    "TUPE-R, reset of the paper": {**REL_POS, "tupe_reset": "paper"},
    "TUPE-R, tie-cls": {**REL_POS, "tupe_tie_cls": True},
    "TUPE-A, norms": BERT_NORMS,
    "BERT-A": {"position_encoding": "added", "embedding_normalize": True},
    "BERT-R, relu": {"position_encoding": "added_relative", "rel_pos_bins": 16, "activation_fn": "relu"},
    "relative only": {"position_encoding": "relative"},
    "TUPE-A + RoPE": {"rotary": True},
    "TUPE-R + RoPE, tie-cls, sdpa": {**REL_POS, "rotary": True, "tupe_tie_cls": True, "attention_kernel": "sdpa"},
    "BERT-A^d, sdpa": {"position_encoding": "four_terms", "attention_kernel": "sdpa"},
}
_ENCODINGS = {"untied", *(options.get("position_encoding") for options in _BERT_VARIANTS.values())}
_BERT_VARIANTS |= {
    known.name: {"position_encoding": kind} for kind, known in POSITION_ENCODINGS.items() if kind not in _ENCODINGS
}

ARCHITECTURES = {
    "tupe": Architecture("tupe_tiny", "masked_lm", _BERT, _BERT_VARIANTS),
    "electra": Architecture(
        *("electra_tiny", "masked_lm", {**_BERT, **_GENERATOR, "generator_attention_heads": 3}),
        {
            "BERT-A": {},
            "BERT-A, norms, wide generator": {**BERT_NORMS, "generator_embed_dim": 8, "generator_attention_heads": 2},
            "TUPE-R": {**UNTIED, **REL_POS},
        },
    ),
    "tupe_transformer": Architecture(
        *("tupe_transformer", "translation", _TRANSLATION),
        {
            "post-LN": {},
            "pre-LN, relative, gelu": {**PRE_LN, **RELATIVE, "activation_fn": "gelu"},
            "relative, eager": {**RELATIVE, "attention_kernel": "eager"},
            "sdpa": {"attention_kernel": "sdpa"},
            "rotary": {"positions": "rope"},
            "rotary, pre-LN, sdpa, other widths": {
                **{"positions": "rope", "attention_kernel": "sdpa", **PRE_LN, **WIDER_DECODER},
            },
            "ALiBi": {"positions": "alibi"},
            "ALiBi, other widths, eager": {"positions": "alibi", "attention_kernel": "eager", **WIDER_DECODER},
            "unscaled, one table": {"no_scale_embedding": True, **TIED},
            "other widths, pre-LN decoder, tied output": {**WIDER_DECODER, **TIED_OUTPUT, **ONE_PRE_LN_LAYER},
        },
    ),
    "duo_transformer": Architecture(
        *("duo_transformer", "translation", _TRANSLATION),
        {
            "default": {},
            "one table, mapped": {**TIED, "encoder_dim_s": 5, "encoder_dim_p": 7},
            "tied output, mapped": {**TIED_OUTPUT, **MAPPED},
            "all off, tied, mapped, pre-LN": {**OFF, **PRE_LN, **TIED_OUTPUT, **MAPPED},
            "pair, norm in the encoder": {"duo_share_weights": "pair", "duo_norm": "encoder"},
            "pair, norm all, tied output, mapped, pre-LN": {
                **{"duo_share_weights": "pair", "duo_norm": "all", **TIED_OUTPUT, **MAPPED, **PRE_LN},
            },
            "norm all, pre-LN, gelu, learned": {"duo_norm": "all", **PRE_LN, **LEARNED, "activation_fn": "gelu"},
            "sdpa, unscaled, without positions": {"attention_kernel": "sdpa", **WITHOUT_POSITIONS},
            "eager, other widths, one table, pre-LN decoder": {
                **{"attention_kernel": "eager", **TIED, **WIDER_DECODER, **ONE_PRE_LN_LAYER},
            },
            "one stream": {"duo_streams": 1},
            "one stream, mapped, pre-LN, one table": {"duo_streams": 1, "encoder_dim_s": 5, **TIED, **PRE_LN},
        },
        (
            *("default", "tied output, mapped", "all off, tied, mapped, pre-LN", "pair, norm in the encoder"),
            *("norm all, pre-LN, gelu, learned", "eager, other widths, one table, pre-LN decoder", "one stream"),
        ),
    ),
    "embinit_classifier": Architecture(
        *("embinit_classifier", "sentence_prediction", _BERT),
        {
            "mean": {},
            "first token, learned positions, pre-LN": {
                **{"pooling": "cls", "encoder_learned_pos": True, "encoder_normalize_before": True},
            },
            "unscaled, without positions": WITHOUT_POSITIONS,
        },
    ),
    "duo_classifier": Architecture(
        *("duo_classifier", "sentence_prediction", {"encoder_dim_s": 3, "encoder_dim_p": 5, "duo_ffn_dim": 4}),
        {"frozen": {}, "linear, trained": {"duo_attention": "linear", "train_embeddings": True}},
    ),
}
#: name of an architecture -> its task
TASK = {name: architecture.task for name, architecture in ARCHITECTURES.items()}
#: (name of the architecture, options) of all variants
VARIANTS = {
    f"{name}: {variant}": (name, options)
    for name, architecture in ARCHITECTURES.items()
    for variant, options in architecture.variants.items()
}
