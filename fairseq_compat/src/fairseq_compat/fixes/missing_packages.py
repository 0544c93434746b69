"""--write-checkpoints-asynchronously without iopath trains nothing; now the missing package is named.

Symptom: ``--write-checkpoints-asynchronously`` without iopath trains nothing and ends with exit status 0.
    ``--use-plasma-view`` in any command: ``'PlasmaStore' object has no attribute 'server'``, ``'PlasmaView' object has
    no attribute '_client'``; ``--tpu`` without torch_xla: ``'NoneType' object has no attribute 'xla_device'``.
    ``--criterion ctc`` without editdistance, which no installation of fairseq brings, loses the first epoch.
Where: fairseq/file_io.py:172 (``PathManager.opena``), fairseq/data/plasma_utils.py, fairseq/trainer.py,
    fairseq/criterions/ctc.py:159 (imported in the first validation).
Remedy: an error before the command begins, which names the package.
Can go: with a fairseq that says so.
"""

from __future__ import annotations

import argparse
import importlib

from fairseq_compat.patches import wrap

BROKEN = r"write_checkpoints_asynchronously|def convert_namespace_to_omegaconf"

#: section and option -> module that it needs, and the remedy
MODULES = {
    ("checkpoint", "write_checkpoints_asynchronously"): ("iopath", "pip install iopath, or leave the option out"),
    ("common", "use_plasma_view"): ("pyarrow.plasma", "pyarrow has had none since release 12; leave the option out"),
    ("common", "tpu"): ("torch_xla", "pip install torch_xla, or leave the option out"),
}


def check(cfg) -> None:
    """Raise ImportError if a configuration has an option whose package is missing."""
    for (section, option), (name, remedy) in MODULES.items():
        if cfg[section][option]:
            find(f"--{option.replace('_', '-')}", name, remedy)


def find(option: str, name: str, remedy: str) -> None:
    """Raise ImportError if the module that an option needs is missing."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{option} needs {name}: {remedy}") from error


def patch_train(module) -> None:
    @wrap(module)
    def main(original, cfg, *args, **options):  # fairseq-hydra-train calls it, too
        if not isinstance(cfg, argparse.Namespace):  # main converts a namespace, which checks it
            check(cfg)
            if getattr(cfg.criterion, "_name", None) == "ctc" and not cfg.dataset.disable_validation:
                find("--criterion ctc", "editdistance", "pip install editdistance, or give --disable-validation")
        return original(cfg, *args, **options)


def patch_utils(module) -> None:
    @wrap(module)
    def convert_namespace_to_omegaconf(original, args):
        config = original(args)
        check(config)
        return config


PATCHES = {"fairseq.dataclass.utils": patch_utils, "fairseq_cli.train": patch_train}
