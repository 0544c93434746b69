"""An option that needs a package ends without its name, or without an error.

Symptom: ``--write-checkpoints-asynchronously`` without iopath trains nothing and ends with exit status 0.
    ``--use-plasma-view`` without pyarrow: ``'PlasmaStore' object has no attribute 'server'``; ``--tpu`` without
    torch_xla: ``'NoneType' object has no attribute 'xla_device'``.
Where: fairseq/file_io.py:172 (``PathManager.opena``), fairseq/data/plasma_utils.py, fairseq/trainer.py.
Remedy: an error before the training, which names the package.
Can go: with a fairseq that says so.
"""

from __future__ import annotations

import argparse
import importlib

from fairseq_compat.patches import wrap

BROKEN = r"write_checkpoints_asynchronously"

#: section and option -> module that it needs, and how it is installed
MODULES = {
    ("checkpoint", "write_checkpoints_asynchronously"): ("iopath", "pip install iopath"),
    ("common", "use_plasma_view"): ("pyarrow.plasma", "pip install 'pyarrow<12'"),
    ("common", "tpu"): ("torch_xla", "pip install torch_xla"),
}


def patch(module):
    @wrap(module)
    def main(original, cfg, *args, **options):
        if isinstance(cfg, argparse.Namespace):
            cfg = module.convert_namespace_to_omegaconf(cfg)
        for (section, option), (name, install) in MODULES.items():
            if cfg[section][option]:
                try:
                    importlib.import_module(name)
                except ImportError as error:
                    flag = f"--{option.replace('_', '-')}"
                    raise ImportError(f"{flag} needs {name}: {install}, or leave the option out") from error
        return original(cfg, *args, **options)
