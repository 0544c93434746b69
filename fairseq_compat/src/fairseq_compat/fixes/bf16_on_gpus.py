"""--bf16 is taken for --tpu: no attribute 'xla_device'.

Symptom: ``fairseq-train --bf16`` ends with ``AttributeError: 'NoneType' object has no attribute 'xla_device'``.
    (fairseq-hydra-train does not.)
Where: fairseq/options.py:200.
Remedy: ``--tpu`` has the value that the command line says. If torch_xla is installed nothing is changed.
"""

from __future__ import annotations

import importlib.util
import sys

from fairseq_compat.patches import wrap

BROKEN = r"args\.bf16:\s+args\.tpu = True"
FIXED = r"def parse_args_and_arch\("


def needed() -> bool:
    return importlib.util.find_spec("torch_xla") is None


def patch(module):
    @wrap(module)
    def parse_args_and_arch(original, parser, input_args=None, *args, **kwargs):
        parsed = original(parser, input_args, *args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        # fairseq-validate also asks for the options on the command line alone (suppress_defaults)
        if getattr(namespace, "bf16", False) and "--tpu" not in (sys.argv if input_args is None else input_args):
            namespace.tpu = False
        return parsed
