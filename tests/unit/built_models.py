"""Models of translation as fairseq builds them from flags, and what is told of them."""

from __future__ import annotations

import json

import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from tupe_transformer_reference import task_of

import embinit_fairseq  # noqa: F401


def options_of(arch, *flags):
    """The model's options as fairseq-train reads them."""
    parser = options.get_training_parser()
    arguments = ["data", "--task", "translation", "--arch", arch, *flags]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments)).model


def without_memory(arch, *flags, words=6):
    """The model, but no numbers in it."""
    with torch.device("meta"):
        return ARCH_MODEL_REGISTRY[arch].build_model(options_of(arch, *flags), task_of(words))


def number_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


def tree_text(trees):
    """JSON with one line per parameter."""
    blocks = []
    for flags, tree in trees.items():
        lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(shape)}" for name, shape in tree.items())
        blocks.append(f"  {json.dumps(flags)}: {{\n{lines}\n  }}")
    return "{\n" + ",\n".join(blocks) + "\n}"
