"""Options that end with an error, or do something else than they say.

Symptom: (a) ``--encoder-layers-to-keep 0,2`` and the decoder's (transformers, BART): ``'list' object has no attribute
    'split'``. (b) ``fairseq-preprocess --alignfile``: a word gets the translation with which it was aligned last, not
    most often. (c) ``fairseq-validate --criterion`` and ``from_pretrained(..., bpe=...)`` keep the criterion and the
    segmentation of the training, if it had one.
Versions: all.
Where: fairseq/models/transformer/transformer_config.py:48, fairseq_cli/preprocess.py:245 (counts by tensors, of which
    no two are one key), fairseq/dataclass/utils.py:459 (``overwrite_args_by_name``).
Remedy: what the option says.
Upstream: not reported.
Can go: part by part, with a fairseq that does this.
"""

from __future__ import annotations

import copy
import functools
from contextlib import contextmanager
from typing import Optional

REASON = "options that end with AttributeError, or do something else than they say"
BROKEN = (
    r"layers_to_keep: Optional\[List\[int\]\]|freq_map\[srcidx\]"
    r"|def overwrite_args_by_name\("
)


def needed() -> bool:
    return True


def patch_transformer_config(module) -> None:
    """Numbers of layers are read as text, as the models expect them."""
    config = module.EncDecBaseConfig
    config.__annotations__["layers_to_keep"] = config.__dataclass_fields__["layers_to_keep"].type = Optional[str]


def patch_preprocess(module) -> None:
    original = module._align_files

    def with_numbers(dictionary):
        numbers = copy.copy(dictionary)
        numbers.encode_line = lambda *args, **options: dictionary.encode_line(*args, **options).tolist()
        return numbers

    def _align_files(args, src_dict, tgt_dict):
        return original(args, with_numbers(src_dict), with_numbers(tgt_dict))

    module._align_files = _align_files


def patch_overwriting(module) -> None:
    original = module.overwrite_args_by_name

    @functools.wraps(original)
    def overwrite_args_by_name(cfg, overrides):
        from fairseq.registry import REGISTRIES
        from omegaconf import DictConfig, open_dict

        for name, registry in REGISTRIES.items():
            choice, present = overrides.get(name), cfg.get(name)
            known = isinstance(choice, str) and choice in registry["registry"]
            if known and isinstance(present, DictConfig) and present.get("_name") != choice:
                with open_dict(cfg):
                    cfg[name] = None  # which is overwritten by the choice and its options
        return original(cfg, overrides)

    module.overwrite_args_by_name = overwrite_args_by_name


PATCHES = {
    "fairseq.dataclass.utils": patch_overwriting,
    "fairseq.models.transformer.transformer_config": patch_transformer_config,
    "fairseq_cli.preprocess": patch_preprocess,
}


@contextmanager
def patching(module):
    yield
    PATCHES[module.__name__](module)
