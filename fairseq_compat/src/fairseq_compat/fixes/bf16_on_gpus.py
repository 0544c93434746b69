"""``--bf16`` on GPUs.

Symptom: ``fairseq-train --bf16`` ends with ``AttributeError: 'NoneType' object has no attribute 'xla_device'``.
Versions: all; fairseq 0.12.2 takes ``--bf16`` for ``--bf16 --tpu``. (fairseq-hydra-train does not.)
Where: fairseq/options.py:200.
Remedy: ``--tpu`` is what the command line says. Where there is torch_xla nothing is changed.
Upstream: not reported.
Can go: with a fairseq that does not take one for the other.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from contextlib import contextmanager

REASON = "--bf16 is taken for --tpu"
BROKEN = r"args\.bf16:\s+args\.tpu = True"
MENDED = r"def parse_args_and_arch\("


def needed() -> bool:
    return importlib.util.find_spec("torch_xla") is None


@contextmanager
def patching(module):
    yield
    original = module.parse_args_and_arch

    @functools.wraps(original)
    def parse_args_and_arch(parser, input_args=None, *args, **kwargs):
        parsed = original(parser, input_args, *args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        # fairseq-validate also asks for only what was given (suppress_defaults)
        if getattr(namespace, "bf16", False) and "--tpu" not in (sys.argv if input_args is None else input_args):
            namespace.tpu = False
        return parsed

    module.parse_args_and_arch = parse_args_and_arch
