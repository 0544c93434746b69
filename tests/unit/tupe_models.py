"""Small models of the tupe_* and bert_* architectures for tests, from flags."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from embinit_fairseq.models.tupe import TupeConfig, TupeModel

SMALL = "--encoder-embed-dim 8 --encoder-ffn-embed-dim 6 --encoder-layers 1 --encoder-attention-heads 2".split()


def task_with(symbols, **cfg):
    dictionary = Dictionary()
    for number in range(symbols - len(dictionary) - 1):
        dictionary.add_symbol(f"w{number}")
    dictionary.add_symbol("<mask>")
    return SimpleNamespace(source_dictionary=dictionary, cfg=SimpleNamespace(**cfg))


def configuration(arch, *flags):
    """The model's options, by fairseq's parser for them and the preset of the architecture."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    TupeModel.add_args(parser)
    args = parser.parse_args(flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    return TupeConfig(**vars(args))


def built(arch, *flags, symbols=12):
    torch.manual_seed(0)
    return ARCH_MODEL_REGISTRY[arch].build_model(configuration(arch, *flags), task_with(symbols))


def small(arch, flags="", *more):
    return built(arch, *SMALL, "--max-positions", "10", *flags.split(), *more)
