"""fairseq-hydra-train KEY=VALUE -m KEY=1,2: unrecognized arguments.

Symptom: ``fairseq-hydra-train task=translation -m common.seed=1,2``, and ``--config-dir DIR`` between overrides, end
    with ``unrecognized arguments: common.seed=1,2``: all overrides must come one after the other.
Where: fairseq_cli/hydra_train.py:25 (``hydra.main``), whose parser takes the first group of overrides.
Remedy: options and overrides may come in any order.
Upstream: a limit of Python's argparse, which hydra has not worked around.
"""

from __future__ import annotations

import importlib

from fairseq_compat.patches import wrap

BROKEN = r"hydra\.main"


def patch(module):
    for name in ("hydra._internal.utils", "hydra.main"):  # the second one has the function under its own name

        @wrap(importlib.import_module(name))
        def get_args_parser(original):
            parser = original()
            parser.parse_args = parser.parse_intermixed_args
            return parser
