"""``fairseq-validate`` without ``--task``.

Symptom: ``KeyError: None``.
Versions: all; the parser's own default is no task.
Where: fairseq/options.py:159 (``TASK_REGISTRY[args.task]``), :57 (``get_validation_parser``).
Remedy: an error that asks for the option, with the task of the checkpoint of ``--path``.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager

REASON = "fairseq-validate without --task ends with KeyError: None"
BROKEN = r"TASK_REGISTRY\[args\.task\]\.add_args\(parser\)"


def needed() -> bool:
    return True


def trained_task(paths: str | None) -> str | None:
    """The task of a checkpoint; None where there is none that says it."""
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    path = (paths or "").split(os.pathsep)[0]
    if not os.path.isfile(path):
        return None
    state = load_checkpoint_to_cpu(path)
    options = state.get("cfg") or {}
    task = options.get("task") if hasattr(options, "get") else None
    return (task or {}).get("_name") or getattr(state.get("args"), "task", None)


@contextmanager
def patching(module):
    yield
    original = module.get_validation_parser

    @functools.wraps(original)
    def get_validation_parser(default_task=None):
        parser = original(default_task)
        strict = parser.parse_known_args

        def parse_known_args(*args, **kwargs):
            namespace, others = strict(*args, **kwargs)
            if getattr(namespace, "task", "") is None:
                task = trained_task(getattr(namespace, "path", None))
                parser.error(
                    f"--task is needed; the model of --path was trained with --task {task}"
                    if task
                    else "--task is needed: that of the training"
                )
            return namespace, others

        parser.parse_known_args = parse_known_args
        return parser

    module.get_validation_parser = get_validation_parser
