"""A checkpoint of another model: please ensure that the architectures match; now the parameter or the option is named.

Symptom: a training that starts from a checkpoint (``--restore-file``, ``--finetune-from-model``) of another dictionary
    or other sizes ends with ``Exception: Cannot load model parameters from checkpoint``; fairseq-generate and hubs with
    data of another dictionary end with ``RuntimeError: Error(s) in loading state_dict``. The difference is in the
    middle of a long traceback, among a page of names.
Where: fairseq/trainer.py:580, fairseq/checkpoint_utils.py:478.
Remedy: the error has the first difference, and the option that decides it if the name shows it.
"""

from __future__ import annotations

import re

from fairseq_compat.patches import explain_failures

BROKEN = r"please ensure that the architectures match|def load_model_ensemble_and_task\("

#: part of a difference -> the choices that decide it; the first entry that matches counts
REMEDIES = {
    r"embed_tokens|output_projection|lm_head": "binarise the data with the dict.txt of the checkpoint (--srcdict); "
    "source and target language are those of its training",
    r"embed_positions": "give --max-positions (--max-source-positions, --max-target-positions) as at its training",
}


def difference(error: Exception, filename: str, remedy: str) -> str | None:
    """Return the first parameter that differs, as torch describes it, and the remedy; None without such a parameter.

    remedy: advice if the name of the parameter is not in `REMEDIES`.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    different = [line for line in lines if line.startswith(("size mismatch", "Missing key", "Unexpected key"))]
    if not different:
        return None
    first = next((line for line in different if line.startswith("size mismatch")), different[0])
    remedy = next((by_name for part, by_name in REMEDIES.items() if re.search(part, first)), remedy)
    return f"{filename} does not fit the model: {first[:300].rstrip('.')}: {remedy}"


def patch_trainer(module) -> None:
    def reason(error, _trainer, filename, *_args, **_options):
        cause = error.__context__
        if cause is None or "ensure that the architectures match" not in str(error):
            return None
        if not isinstance(cause, RuntimeError):  # of the model itself, which compares weights and options
            return f"{filename}: {cause}"
        return difference(cause, filename, "give --arch and the sizes as at its training")

    explain_failures(module.Trainer, "load_checkpoint", reason)


def patch_loading(module) -> None:
    def reason(error, filenames, *_args, **_options):
        is_of_weights = isinstance(error, RuntimeError) and "loading state_dict" in str(error)
        overrides = "leave --model-overrides out, and give the --user-dir of its training"
        return difference(error, ":".join(filenames), overrides) if is_of_weights else None

    explain_failures(module, "load_model_ensemble_and_task", reason)


PATCHES = {"fairseq.trainer": patch_trainer, "fairseq.checkpoint_utils": patch_loading}
