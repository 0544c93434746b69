"""A checkpoint of a plugin's model that is loaded without the plugin.

Symptom: ``fairseq-generate DATA --path CHECKPOINT`` without the ``--user-dir`` of the training, and ``from_pretrained``
    of another model's class, end with ``KeyError: "'_name'"`` or ``KeyError`` and the name of a task.
Versions: all.
Where: fairseq/models/__init__.py:99 (its own message is formatted twice) and fairseq/tasks/__init__.py:43, as seen from
    fairseq/checkpoint_utils.py:390 (``load_model_ensemble_and_task``), which knows the file.
Remedy: an error that names the file, its ``--arch`` or ``--task``, and the ``--user-dir`` that it was trained with.
    Looked for only after fairseq has failed, so nothing that works is refused.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager

REASON = "a checkpoint of a plugin that is not loaded ends with KeyError: \"'_name'\""
BROKEN = r"def load_model_ensemble_and_task\("

#: what fairseq raises, whatever the values of the options that it puts into its message
ERRORS = (KeyError, IndexError, ValueError, AssertionError)


def needed() -> bool:
    return True


def options(state: dict) -> tuple[str | None, str | None, str | None]:
    """--arch, --task and --user-dir of the training of a checkpoint, as far as it says."""

    def value(section, *names: str) -> str | None:
        section = section if isinstance(section, dict) else vars(section or object)
        return next((section[name] for name in names if isinstance(section.get(name), str)), None)

    cfg = state.get("cfg")
    if isinstance(cfg, dict):
        sections = [cfg.get(name) for name in ("model", "task", "common")]
    else:
        sections = [state.get("args")] * 3  # fairseq before 0.10
    return value(sections[0], "_name", "arch"), value(sections[1], "_name", "task"), value(sections[2], "user_dir")


def explanation(path: str, state: dict) -> str | None:
    """What to say of a checkpoint whose model or task is unknown; None if both are known."""
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    arch, task, user_dir = options(state)
    if arch is not None and arch not in ARCH_MODEL_REGISTRY and arch not in MODEL_DATACLASS_REGISTRY:
        unknown = f"--arch {arch}"
    elif task is not None and task not in TASK_REGISTRY:
        unknown = f"--task {task}"
    else:
        return None
    folder, trained = (user_dir, ", as in its training") if user_dir else ("FOLDER", ": the folder of the plugin")
    return (
        f"checkpoint {path} is of {unknown}, which neither fairseq nor a plugin that is loaded has: add --user-dir "
        f"{folder}{trained} (from Python: import the plugin, or from_pretrained(..., user_dir={folder!r}))"
    )


def _state(path: str, torch) -> dict:
    """The checkpoint; {} for one that cannot be read safely: fairseq's own error is the one to be seen then."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a damaged pickle can raise anything
        return {}
    return state if isinstance(state, dict) else {}


@contextmanager
def patching(module):
    yield
    original = module.load_model_ensemble_and_task

    @functools.wraps(original)
    def load_model_ensemble_and_task(filenames, *args, **kwargs):
        try:
            return original(filenames, *args, **kwargs)
        except ERRORS as error:
            for path in filter(os.path.isfile, filenames):
                words = explanation(path, _state(path, module.torch))
                if words:
                    raise ValueError(words) from error
            raise

    module.load_model_ensemble_and_task = load_model_ensemble_and_task
