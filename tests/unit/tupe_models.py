"""Small models of the tupe_* and bert_* architectures for tests, from flags."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import torch
from fairseq import models, options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from embinit_fairseq.models.tupe import TupeConfig, TupeModel

SMALL = "--encoder-embed-dim 8 --encoder-ffn-embed-dim 6 --encoder-layers 1 --encoder-attention-heads 2".split()


def task_with(symbols, masking=True, **cfg):
    """What a model looks at in a task; one that masks has a language-model head."""
    dictionary = Dictionary()
    for number in range(symbols - len(dictionary) - 1):
        dictionary.add_symbol(f"w{number}")
    dictionary.add_symbol("<mask>")
    task = SimpleNamespace(source_dictionary=dictionary, cfg=SimpleNamespace(**cfg))
    if masking:
        task.mask_idx = dictionary.index("<mask>")
    return task


def configuration(arch, *flags):
    """The model's options, by fairseq's parser for them and the preset of the architecture."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    TupeModel.add_args(parser)
    args = parser.parse_args(flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    return TupeConfig(**vars(args))


def built(arch, *flags, symbols=12, masking=True):
    torch.manual_seed(0)
    return ARCH_MODEL_REGISTRY[arch].build_model(configuration(arch, *flags), task_with(symbols, masking))


def small(arch, flags="", **task):
    return built(arch, *SMALL, "--max-positions", "10", *flags.split(), **task)


def options_of(arch, *flags, task="masked_lm"):
    """The model's options inside fairseq's whole configuration, as fairseq-train reads them."""
    arguments = ["data", "--task", task, "--arch", arch, *map(str, flags)]
    if task == "sentence_prediction":
        arguments += ["--num-classes", "2", "--criterion", "sentence_prediction"]
    parsed = options.parse_args_and_arch(options.get_training_parser(), arguments)
    return convert_namespace_to_omegaconf(parsed).model


def built_for_training(arch, *flags, task="masked_lm", symbols=12, target_symbols=None):
    """As fairseq-train builds it. target_symbols: of translation, where the target has a dictionary of its own."""
    cfg = options_of(arch, *flags, task=task)
    words = task_with(symbols, masking=task == "masked_lm")
    words.target_dictionary = task_with(target_symbols).source_dictionary if target_symbols else words.source_dictionary
    return models.build_model(cfg, words)


def save_checkpoint(path, cfg, weights, **task):
    """What fairseq's loader needs of a checkpoint."""
    history = {"num_updates": 0, "optimizer_name": "", "criterion_name": "", "lr_scheduler_state": {}}
    sections = {"model": dict(cfg), "task": task, "bpe": None, "tokenizer": None}
    state = {"cfg": sections, "model": weights, "optimizer_history": [history]}
    torch.save({**state, "extra_state": {"train_iterator": None}}, path)
    return path
