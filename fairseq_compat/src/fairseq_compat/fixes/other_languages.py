"""--langs, --encoder-langtok, --add-bos-token other than in the training: wrong translations without a word.

Symptom: ``fairseq-generate --langs de,fr,en`` of a model of ``--langs de,en,fr`` gives each language the token of
    another one; without ``--decoder-langtok``, ``--prepend-bos`` or, in fairseq-eval-lm, ``--add-bos-token`` the model
    reads a first token that it has not seen in its training. Nothing is said, and the numbers are worse. With fewer
    languages in ``--lang-pairs``: ``size mismatch for encoder.embed_tokens.weight``.
Where: fairseq/checkpoint_utils.py:404 (``load_model_ensemble_and_task``), which has the options of both.
Remedy: a line on stderr names these options, and their values in the training.
Upstream: fairseq issues 3474, 2120.
"""

from __future__ import annotations

import sys
from typing import Any

from fairseq_compat.patches import wrap

BROKEN = r"def load_model_ensemble_and_task\("

#: options of tasks that decide which tokens are added to a text, next to the names of the languages
NAMES = ("encoder_langtok", "decoder_langtok", "lang_tok_style", "prepend_bos", "add_bos_token")


def options_of(config: Any) -> dict[str, Any]:
    """Return these options of a task by their flags."""
    values = {f"--{name.replace('_', '-')}": getattr(config, name) for name in NAMES if hasattr(config, name)}
    languages = getattr(config, "langs", None)
    if languages is None and getattr(config, "lang_dict", "") is None:  # the task takes them from the pairs
        languages = sorted({language for pair in config.lang_pairs for language in pair.split("-")})
    if languages is not None:
        values["--langs"] = languages if isinstance(languages, str) else ",".join(languages)
    return values


def differences(saved: Any, task: Any) -> str:
    """Return the options that differ from a checkpoint's training; "" if none differs, or for another task."""
    from fairseq.tasks import TASK_REGISTRY

    if type(task) is not TASK_REGISTRY.get(getattr(saved, "_name", None)):
        return ""
    before, now = options_of(saved), options_of(getattr(task, "args", None) or task.cfg)
    return "; ".join(
        f"{flag} {before[flag]}, here it is {now[flag]}" for flag in before if flag in now and before[flag] != now[flag]
    )


def patch(module):
    tasks: list = []  # tasks of the calls that load models

    @wrap(module)
    def load_checkpoint_to_cpu(original, path, *args, **options):
        state = original(path, *args, **options)
        text = differences(state["cfg"]["task"], tasks[-1]) if tasks and state.get("cfg") else ""
        if text:
            print(f"warning: {path} was trained with {text}; with other tokens the results are wrong", file=sys.stderr)
        return state

    @wrap(module)
    def load_model_ensemble_and_task(original, filenames, arg_overrides=None, task=None, *args, **options):
        tasks.append(task)
        try:
            return original(filenames, arg_overrides, task, *args, **options)
        finally:
            tasks.pop()
