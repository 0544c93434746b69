"""A checkpoint of another model: please ensure that the architectures match; now the parameter or the option is named.

Symptom: a training that starts from a checkpoint (``--restore-file``, ``--finetune-from-model``) of another dictionary
    or other sizes ends with ``Exception: Cannot load model parameters from checkpoint``. What differs is in the middle
    of a long traceback, among a page of names.
Where: fairseq/trainer.py:580.
Remedy: the error has the first difference, and what decides it where a name tells.
"""

from __future__ import annotations

import re

from fairseq_compat.patches import explain_failures

BROKEN = r"please ensure that the architectures match"

#: part of a difference -> what decides it; the first one that matches counts
REMEDIES = {
    r"embed_tokens|output_projection|lm_head": "binarise the data with the dict.txt of the checkpoint (--srcdict)",
    r"embed_positions": "give --max-positions (--max-source-positions, --max-target-positions) as at its training",
    r"": "give --arch and the sizes as at its training",
}


def difference(error: Exception, _trainer, filename: str, *_args, **_options) -> str | None:
    """Return the first difference between a checkpoint and the model."""
    cause = error.__context__
    if cause is None or "ensure that the architectures match" not in str(error):
        return None
    if not isinstance(cause, RuntimeError):  # of the model itself, which compares weights and options
        return f"{filename}: {cause}"
    lines = [line.strip() for line in str(cause).splitlines()]
    different = [line for line in lines if line.startswith(("size mismatch", "Missing key", "Unexpected key"))]
    if not different:
        return None
    first = next((line for line in different if line.startswith("size mismatch")), different[0])
    remedy = next(remedy for part, remedy in REMEDIES.items() if re.search(part, first))
    return f"{filename} does not fit the model: {first[:300].rstrip('.')}: {remedy}"


def patch(module) -> None:
    explain_failures(module.Trainer, "load_checkpoint", difference)
