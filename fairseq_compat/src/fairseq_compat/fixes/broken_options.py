"""Options that end with AttributeError, or do something else than they say.

Symptom: (a) ``--encoder-layers-to-keep 0,2`` and the decoder's (transformers, BART): ``'list' object has no attribute
    'split'``. (b) ``fairseq-preprocess --alignfile``: a word has the translation with which it was aligned last, not
    most often. (c) ``fairseq-validate --criterion`` and ``from_pretrained(..., bpe=...)`` keep the criterion and the
    segmentation of the training, if it had one. (d) ``--tokenizer moses`` without ``--source-lang``, and other choices
    without a word that they need: ``Error merging override tokenizer.source_lang=null``. (e) ``--print-step`` and
    ``--retain-iter-history`` with a model that translates in one pass: ``KeyError: 'steps'``, ``'history'``.
Where: fairseq/models/transformer/transformer_config.py:48, fairseq_cli/preprocess.py:245 (counts by tensors, no two of
    which are one key), fairseq/dataclass/utils.py:459 (``overwrite_args_by_name``) and :350 (overrides of None),
    fairseq_cli/generate.py:325.
Remedy: the options do what they say; an error names the option that is missing.
Can go: part by part.
"""

from __future__ import annotations

import copy
import re
from typing import Optional

from fairseq_compat.patches import wrap

BROKEN = (
    r"layers_to_keep: Optional\[List\[int\]\]|freq_map\[srcidx\]"
    r"|def overwrite_args_by_name\(|def build_generator\("
)


def patch_transformer_config(module) -> None:
    """Read numbers of layers as text, as the models expect them."""
    config = module.EncDecBaseConfig
    config.__annotations__["layers_to_keep"] = config.__dataclass_fields__["layers_to_keep"].type = Optional[str]


def patch_preprocess(module) -> None:
    """Count alignments by numbers."""

    def with_numbers(dictionary):
        numbers = copy.copy(dictionary)
        numbers.encode_line = lambda *args, **options: dictionary.encode_line(*args, **options).tolist()
        return numbers

    @wrap(module)
    def _align_files(original, args, src_dict, tgt_dict):
        return original(args, with_numbers(src_dict), with_numbers(tgt_dict))


def patch_overwriting(module) -> None:
    """Replace a criterion or segmentation of the training by another one that the user names; name missing options."""

    @wrap(module)
    def convert_namespace_to_omegaconf(original, args):
        try:
            return original(args)
        except Exception as error:
            missing = re.search(r"override (\w+)\.(\w+)=null", str(error))
            if not missing:
                raise
            choice, option = (f"--{name.replace('_', '-')}" for name in missing.groups())
            raise ValueError(f"{choice} {getattr(args, missing[1], '')} needs {option}: give it, too") from error

    @wrap(module)
    def overwrite_args_by_name(original, cfg, overrides):
        from fairseq.registry import REGISTRIES
        from omegaconf import DictConfig, open_dict

        for name, registry in REGISTRIES.items():
            choice, present = overrides.get(name), cfg.get(name)
            is_registered = isinstance(choice, str) and choice in registry["registry"]
            if is_registered and isinstance(present, DictConfig) and present.get("_name") != choice:
                with open_dict(cfg):
                    cfg[name] = None  # which fairseq overwrites by the choice and its options
        return original(cfg, overrides)


def patch_task(module) -> None:
    """Refuse options of iterative generators where another one is built (`translation_lev` builds its own)."""

    @wrap(module.FairseqTask)
    def build_generator(original, self, models, args, *others, **options):
        for name in ("print_step", "retain_iter_history"):
            if getattr(args, name, False):
                option = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{option} needs a model that refines its translations, as Levenshtein's: leave it out"
                )
        return original(self, models, args, *others, **options)


PATCHES = {
    "fairseq.tasks.fairseq_task": patch_task,
    "fairseq.dataclass.utils": patch_overwriting,
    "fairseq.models.transformer.transformer_config": patch_transformer_config,
    "fairseq_cli.preprocess": patch_preprocess,
}


def patch(module):
    PATCHES[module.__name__](module)
