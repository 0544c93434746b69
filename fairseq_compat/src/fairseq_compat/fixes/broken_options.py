"""--alignfile, --encoder-layers-to-keep, --print-step and others fail, or do something else.

Symptom: (a) ``--encoder-layers-to-keep 0,2`` and the decoder's (transformers, BART): ``'list' object has no attribute
    'split'``. (b) ``fairseq-preprocess --alignfile``: a word has the translation with which it was aligned last, not
    most often. (c) ``fairseq-validate --criterion`` and ``from_pretrained(..., bpe=...)`` keep the criterion and the
    segmentation of the training, if it had one. (d) A choice without an option that it needs: ``--tokenizer moses``
    without ``--source-lang``: ``Error merging override tokenizer.source_lang=null``; ``--task sentence_prediction``
    without its criterion: ``Interpolation key 'criterion.classification_head_name' not found``. ``--lr-scheduler
    polynomial_decay`` asks for ``--total-num-update`` although ``--max-update`` is its default; ``cosine`` and ``step``
    outside trainings: ``'NoneType' object is not iterable``; ``inverse_sqrt --warmup-updates 0``: ``float division by
    zero``. (e) ``--print-step`` and ``--retain-iter-history`` with a model that translates in one pass: ``KeyError:
    'steps'``, ``'history'``. (f) ``fairseq-eval-lm --path A:B``, whose help says so: ``Model file not found: A:B``.
Where: fairseq/models/transformer/transformer_config.py:48, fairseq_cli/preprocess.py:245 (counts by tensors, no two of
    which are one key), fairseq/dataclass/utils.py:459 (``overwrite_args_by_name``) and :350 (overrides of None),
    fairseq_cli/generate.py:325, fairseq_cli/eval_lm.py:254,
    fairseq/optim/lr_scheduler/inverse_square_root_schedule.py:62.
Remedy: the options do what they say; an error names the option that is missing.
Upstream: fairseq issue 1341 (``--warmup-updates 0``).
Can go: part by part.
"""

from __future__ import annotations

import argparse
import copy
import re
from typing import Optional, get_args, get_origin

from fairseq_compat.patches import explain_failures, shadow, wrap

BROKEN = (
    r"layers_to_keep: Optional\[List\[int\]\]|freq_map\[srcidx\]"
    r"|def overwrite_args_by_name\(|def build_generator\(|class InverseSquareRootSchedule\("
    r"|\[cfg\.common_eval\.path\]"
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


def missing_option(error: str) -> tuple[str, str] | None:
    """Return an option and the further option that its choice needs, from an error of hydra or omegaconf."""
    from fairseq.registry import REGISTRIES

    if null := re.search(r"override (\w+)\.(\w+)=null", error):
        return null[1], null[2].replace("_", "-")
    pointer = re.search(r"Interpolation key '(\w+)\.(\w+)' not found\s+full_key: (\w+)\.", error)
    if pointer is None or pointer[1] not in REGISTRIES:
        return None
    dataclasses = REGISTRIES[pointer[1]]["dataclass_registry"].items()
    choices = [name for name, kind in dataclasses if pointer[2] in kind.__dataclass_fields__]
    return pointer[3], f"{pointer[1].replace('_', '-')} {' or '.join(choices)}"


def has_default(name: str, field, args) -> bool:
    """Return True if an option without a value is a list, or takes another option's value that is not 0 or None."""
    if getattr(args, name, "") is not None or type(None) in get_args(field.type):
        return False
    pointer = re.fullmatch(r"\$\{\w+\.(\w+)\}", str(field.default))
    return get_origin(field.type) is list or (pointer is not None and bool(getattr(args, pointer[1], True)))


def patch_configuration(module) -> None:
    """Name an option that is missing, unless it has a default; keep a criterion or segmentation that the user names."""

    def reason(error, args):
        missing = missing_option(str(error))
        option = missing and f"--{missing[0].replace('_', '-')} {getattr(args, missing[0], '')}"
        return missing and f"{option} needs --{missing[1]}: give it, too"

    explain_failures(module, "convert_namespace_to_omegaconf", reason)

    @wrap(module)
    def _override_attr(original, sub_node, data_class, args):
        fields = getattr(data_class, "__dataclass_fields__", {})
        unset = {name for name, field in fields.items() if has_default(name, field, args)}
        if unset:
            args = argparse.Namespace(**{name: value for name, value in vars(args).items() if name not in unset})
        return original(sub_node, data_class, args)

    @wrap(module)
    def overwrite_args_by_name(original, cfg, overrides):
        from fairseq.registry import REGISTRIES
        from omegaconf import DictConfig, open_dict

        for name, registry in REGISTRIES.items():
            choice, present = overrides.get(name), cfg.get(name)
            is_registered = isinstance(choice, str) and choice in registry["registry"]
            if is_registered and isinstance(present, DictConfig) and present.get("_name") != choice:
                with open_dict(cfg):
                    cfg[name] = None  # fairseq overwrites it by the choice and its options
        return original(cfg, overrides)


def patch_task(module) -> None:
    """Refuse options of iterative generators if another generator is built (`translation_lev` builds its own)."""

    @wrap(module.FairseqTask)
    def build_generator(original, self, models, args, *others, **options):
        for name in ("print_step", "retain_iter_history"):
            if getattr(args, name, False):
                option = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{option} needs a model that refines its translations, as Levenshtein's: leave it out"
                )
        return original(self, models, args, *others, **options)


def patch_inverse_sqrt(module) -> None:
    """Refuse a schedule without a warm-up, whose length is a factor of every later learning rate."""

    def reason(error, *args):
        message = (
            "--lr-scheduler inverse_sqrt: found --warmup-updates 0, expected 1 or more; or give --lr-scheduler fixed"
        )
        return message if isinstance(error, ZeroDivisionError) else None

    explain_failures(module.InverseSquareRootSchedule, "__init__", reason)


def patch_eval_lm(module) -> None:
    """Evaluate the mean of several language models, as the option's help says."""
    load = module.checkpoint_utils.load_model_ensemble_and_task

    def load_all(filenames, *args, **options):
        return load(module.utils.split_paths(filenames[0]), *args, **options)

    shadow(module, "checkpoint_utils.load_model_ensemble_and_task", load_all)


PATCHES = {
    "fairseq_cli.eval_lm": patch_eval_lm,
    "fairseq.optim.lr_scheduler.inverse_square_root_schedule": patch_inverse_sqrt,
    "fairseq.tasks.fairseq_task": patch_task,
    "fairseq.dataclass.utils": patch_configuration,
    "fairseq.models.transformer.transformer_config": patch_transformer_config,
    "fairseq_cli.preprocess": patch_preprocess,
}
