"""A --restore-file that does not exist: the training starts from scratch without a word; now it is refused.

Symptom: with a wrong path (also one relative to ``--save-dir``, as the default is) ``--restore-file`` and
    ``--continue-once`` train a new model from random weights, and overwrite the run in ``--save-dir``. The log has
    ``No existing checkpoint found``, once, among its information.
Where: fairseq/checkpoint_utils.py:201 (``load_checkpoint``), fairseq/trainer.py:672.
Remedy: an error with the path. A path inside ``--save-dir`` may be missing if this folder has no checkpoints: commands
    that a queue repeats name their own last checkpoint, which the first start does not have.
Upstream: facebookresearch/metaseq issue 602 (open) asks for the same.
"""

from __future__ import annotations

import os
from pathlib import Path

from fairseq_compat.patches import wrap

BROKEN = r"checkpoint_path = cfg\.restore_file"

#: the value with which fairseq looks in --save-dir
DEFAULT = "checkpoint_last.pt"


def named_checkpoint(cfg, suffix: str) -> tuple[str, str] | None:
    """Return option and path of the checkpoint with which a training is to begin; None if it is not named."""
    if cfg.restore_file and cfg.restore_file != DEFAULT:
        return "--restore-file", cfg.restore_file.replace(".pt", f"{suffix}.pt")
    is_first = not os.path.exists(os.path.join(cfg.save_dir, DEFAULT.replace(".pt", f"{suffix}.pt")))
    if is_first and getattr(cfg, "continue_once", None):
        return "--continue-once", cfg.continue_once
    return None


def is_first_start(path: str, save_dir: str) -> bool:
    """Return True if a path is in `save_dir`, and this folder has no checkpoint yet."""
    folder = Path(save_dir)
    return Path(path).parent.resolve() == folder.resolve() and not any(folder.glob("*.pt"))


def patch(module):
    @wrap(module)
    def load_checkpoint(original, cfg, trainer, **kwargs):
        option, path = named_checkpoint(cfg, trainer.checkpoint_suffix or "") or ("", "")
        if path and not module.PathManager.exists(path) and not is_first_start(path, cfg.save_dir):
            inside = os.path.join(cfg.save_dir, path)
            remedy = f"give {inside}" if os.path.exists(inside) else "give its path from the working directory"
            raise FileNotFoundError(
                f"{option} {path}: no such file, so that the training would start from scratch; {remedy}, or leave "
                f"{option} out"
            )
        return original(cfg, trainer, **kwargs)
