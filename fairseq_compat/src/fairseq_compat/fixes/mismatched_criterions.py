"""A task and a criterion that do not go together.

Symptom: ``--task sentence_prediction`` with a criterion that is not made for it ends with a traceback through omegaconf
    and ``InterpolationKeyError: Interpolation key 'criterion.classification_head_name' not found``.
Versions: all.
Where: fairseq/dataclass/utils.py:397, where references between sections are resolved
    (fairseq/tasks/sentence_prediction.py:82).
Remedy: an error that names both, and the criterions that the task can use.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
import re
from contextlib import contextmanager

REASON = "a criterion that does not fit the task ends with an error about interpolation"
BROKEN = r"def convert_namespace_to_omegaconf\("


def needed() -> bool:
    return True


def explanation(args, option: str) -> str:
    """What to give instead of a criterion that lacks an option which the task takes from it."""
    from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY

    fitting = sorted(
        name for name, config in CRITERION_DATACLASS_REGISTRY.items() if option in config.__dataclass_fields__
    )
    about = (CRITERION_REGISTRY[args.criterion].__doc__ or "").strip().partition("\n")[0]
    return (
        f"--criterion {args.criterion} does not go with --task {args.task}, which takes {option} from its criterion. "
        f"Criterions for this task: {', '.join(fitting)}" + (f". About {args.criterion}: {about}" if about else "")
    )


@contextmanager
def patching(module):
    yield
    original = module.convert_namespace_to_omegaconf

    @functools.wraps(original)
    def convert_namespace_to_omegaconf(args):
        from omegaconf.errors import InterpolationKeyError

        try:
            return original(args)
        except InterpolationKeyError as error:
            missing = re.search(r"'criterion\.(\w+)' not found", str(error))
            if missing is None or getattr(args, "criterion", None) is None:
                raise
            raise ValueError(explanation(args, missing[1])) from None

    module.convert_namespace_to_omegaconf = convert_namespace_to_omegaconf
