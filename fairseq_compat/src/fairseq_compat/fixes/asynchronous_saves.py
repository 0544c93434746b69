"""--write-checkpoints-asynchronously without the package iopath trains nothing, with exit status 0.

Symptom: the training ends at its first checkpoint, after an ``ERROR`` line and with exit status 0.
Where: fairseq/file_io.py:172 (``PathManager.opena``), called by fairseq_cli/train.py:98 for the first time.
Remedy: an error before the training, which names the package.
Can go: with a fairseq that depends on iopath.
"""

from __future__ import annotations

import argparse
import importlib.util

from fairseq_compat.patches import wrap

BROKEN = r"write_checkpoints_asynchronously"


def patch(module):
    @wrap(module)
    def main(original, cfg, *args, **options):
        if isinstance(cfg, argparse.Namespace):
            cfg = module.convert_namespace_to_omegaconf(cfg)
        if cfg.checkpoint.write_checkpoints_asynchronously and not importlib.util.find_spec("iopath"):
            raise ImportError("--write-checkpoints-asynchronously needs iopath: pip install iopath, or leave it out")
        return original(cfg, *args, **options)
