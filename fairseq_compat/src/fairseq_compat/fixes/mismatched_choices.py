"""--arch, --task and --criterion that do not belong together: errors of the first batch; now the option is named.

Symptom: ``--arch transformer_lm`` without ``--task``: ``Interpolation key 'task.tokens_per_sample' not found``;
    ``roberta_base``: ``can only concatenate tuple (not "int") to tuple``. ``--task language_modeling`` with a
    translation model: ``no attribute 'supported_targets'``; ``--task masked_lm`` with ``bart_base``: ``missing 1
    required positional argument: 'prev_output_tokens'``. ``levenshtein_transformer`` without its task or criterion:
    ``missing 1 required positional argument: 'tgt_tokens'``, ``KeyError: 'prev_target'``. An adaptive softmax without
    ``adaptive_loss``: ``modified by an inplace operation``; the loss without the softmax: ``AssertionError``.
    ``fairseq-eval-lm`` of a model that is no language model: ``no attribute 'eval_lm_dataloader'``. fairseq-generate of
    a language model without ``--task``: ``Could not infer language pair``.
Where: fairseq_cli/train.py:88 (``build_model``) and on, fairseq/dataclass/utils.py:350; the default task is
    translation. fairseq_cli/eval_lm.py:287, fairseq_cli/generate.py:83, fairseq_cli/interactive.py:129.
Remedy: an error with the wrong choice and the right one. It comes only after fairseq has failed, so nothing that works
    is refused.
Upstream: fairseq issues 751, 760, 1324, 1599, 1801, 2496, 3049, 4056, 4988.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from argparse import Namespace

from fairseq_compat.patches import explain_failures

BROKEN = r"^def (convert_namespace_to_omegaconf|main)\("

LM, ENCODER, BOTH = "a language model", "an encoder", "a model with encoder and decoder"
#: kind of model -> the tasks that train it; task -> the kind that it trains, with an architecture
TASKS_OF = {LM: "language_modeling", ENCODER: "masked_lm", BOTH: "translation or denoising"}
TRAINED = {
    "language_modeling": (LM, "transformer_lm"),
    "masked_lm": (ENCODER, "roberta_base"),
    "denoising": (BOTH, "bart_base"),
    **dict.fromkeys(("translation", "translation_from_pretrained_bart"), (BOTH, "transformer")),
}
REFINED = "--task translation_lev --criterion nat_loss"


def kind_of(model: type) -> str | None:
    """Return the kind of a class of models; None for another kind, such as a model of audio."""
    from fairseq import models

    classes = {models.FairseqLanguageModel: LM, models.FairseqEncoderModel: ENCODER}
    classes[models.FairseqEncoderDecoderModel] = BOTH
    return next((kind for base, kind in classes.items() if issubclass(model, base)), None)


def mismatch(arch: str, task: str, criterion: str, cutoff: object = None) -> str | None:
    """Return the choice of a training that does not fit, and the remedy; None if the choices may fit.

    Args:
        arch, task, criterion: names of the choices.
        cutoff: the adaptive softmax's cutoff, by the option or the architecture.
    """
    from fairseq.models import ARCH_MODEL_REGISTRY

    model = ARCH_MODEL_REGISTRY.get(arch)
    if model is None:
        return None
    refines, is_refined = "tgt_tokens" in inspect.signature(model.forward).parameters, criterion == "nat_loss"
    if refines and (not is_refined or task != "translation_lev"):
        return f"--arch {arch} needs {REFINED}"
    if is_refined and not refines:
        return f"--criterion nat_loss is not for --arch {arch}: give an --arch such as cmlm_transformer, with {REFINED}"
    kind, (trained, example) = kind_of(model), TRAINED.get(task, (None, ""))
    if trained and kind and kind != trained:
        return (
            f"--arch {arch} is {kind}, and --task {task} trains {trained}: give --task {TASKS_OF[kind]}, or an --arch "
            f"such as {example}"
        )
    if criterion == "masked_lm" and kind not in (None, ENCODER):
        return f"--criterion masked_lm is for encoders, and --arch {arch} is {kind}: leave it out"
    if cutoff and criterion in ("cross_entropy", "label_smoothed_cross_entropy"):
        return (
            "an adaptive softmax (--adaptive-softmax-cutoff) needs --criterion adaptive_loss --ddp-backend legacy_ddp"
        )
    if criterion == "adaptive_loss" and not cutoff:
        return "--criterion adaptive_loss needs --adaptive-softmax-cutoff, such as 10000,20000"
    return None


def of_choices(choices: list[str | None], options) -> str | None:
    """Return why the architecture, task and criterion of a training do not fit; None without one of them."""
    arch, task, criterion = choices
    if not (arch and task and criterion):
        return None
    return mismatch(arch, task, criterion, getattr(options, "adaptive_softmax_cutoff", None))


def of_conversion(error: Exception, args) -> str | None:
    """Return why options could not become a configuration, if they lack an option of another task."""
    if "Interpolation key 'task." not in str(error):
        return None
    return of_choices([getattr(args, name, None) for name in ("arch", "task", "criterion")], args)


def of_training(error: Exception, cfg, *args, **options) -> str | None:
    """Return why a training has failed; None for a Namespace, whose conversion explains it."""
    if isinstance(cfg, Namespace):
        return None
    return of_choices([getattr(cfg[key], "_name", None) for key in ("model", "task", "criterion")], cfg.model)


def wrong_command(command: str, task: str, path: str) -> str | None:
    """Return why a command cannot use a checkpoint, and the remedy; None if it may, or for another file."""
    from fairseq import checkpoint_utils, models

    arch, kind = "", None
    with contextlib.suppress(Exception):  # whose cause is the command's error
        arch = checkpoint_utils.load_checkpoint_to_cpu(path)["cfg"]["model"]._name
        kind = kind_of(models.ARCH_MODEL_REGISTRY[arch])
    description = f"{path} is {kind} (--arch {arch})"
    if command == "eval_lm" and kind not in (None, LM):
        return f"fairseq-eval-lm is for language models, and {description}: fairseq-validate prints its perplexity"
    if command != "eval_lm" and kind == ENCODER:
        return (
            f"fairseq-{command} is for models with a decoder, and {description}: fairseq-validate evaluates it; its "
            "from_pretrained in Python classifies and fills masks"
        )
    if command != "eval_lm" and kind == LM and task != TASKS_OF[LM]:
        return f"{description}: give --task {TASKS_OF[LM]}"
    return None


def of_command(command: str, error: Exception, cfg, *args, **options) -> str | None:
    """Return why a command has failed."""
    if isinstance(cfg, Namespace):
        task, path = getattr(cfg, "task", ""), getattr(cfg, "path", "")
    else:
        task, path = cfg.task._name, cfg.common_eval.path
    return wrong_command(command, task, (path or "").partition(os.pathsep)[0])


def patch(module):
    command = module.__name__.rpartition(".")[2]
    explain_failures(module, "main", functools.partial(of_command, command))


PATCHES = {
    "fairseq.dataclass.utils": lambda module: explain_failures(module, "convert_namespace_to_omegaconf", of_conversion),
    "fairseq_cli.train": lambda module: explain_failures(module, "main", of_training),
}
