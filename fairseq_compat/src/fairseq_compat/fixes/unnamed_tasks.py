"""fairseq-validate without --task ends with KeyError: None.

Symptom: ``KeyError: None``.
Versions: all; the parser's own default is no task.
Where: fairseq/options.py:57 (``get_validation_parser``), :159 (``TASK_REGISTRY[args.task]``).
Remedy: the parser requires ``--task``.
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r"TASK_REGISTRY\[args\.task\]\.add_args\(parser\)"


def patch(module):
    @wrap(module)
    def get_validation_parser(original, default_task=None):
        parser = original(default_task)
        parser._option_string_actions["--task"].required = default_task is None
        return parser
