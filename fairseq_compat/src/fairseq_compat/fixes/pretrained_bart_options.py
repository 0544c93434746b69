"""The task translation_from_pretrained_bart.

Symptom: ``AttributeError: 'TranslationFromPretrainedBARTTask' object has no attribute 'args'``. ``--sampling``,
    ``--lm-path``, ``--constraints``, ``--print-alignment``, ``--diverse-beam-groups`` and others of fairseq-generate
    are ignored.
Versions: fairseq 0.12.2 and later: the task that it extends keeps its options as ``cfg``.
Where: fairseq/tasks/translation_from_pretrained_bart.py:66 and on.
Remedy: ``args`` is what ``cfg`` is; where a task was made from older options, what they lack has its default.
    Generators are made as for other tasks, with the target language in place of ``</s>``.
Upstream: fairseq issue 4479 (open).
Can go: with a fairseq whose task reads ``cfg``.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager

REASON = "the task translation_from_pretrained_bart reads options that it does not have"
BROKEN = r"self\.args\."
MENDED = r"class TranslationFromPretrainedBARTTask\("


def needed() -> bool:
    return True


@contextmanager
def patching(module):
    yield
    task = module.TranslationFromPretrainedBARTTask
    original, build_generator = task.__init__, task.build_generator

    @functools.wraps(original)
    def __init__(self, args, *others):
        original(self, args, *others)
        self.args = args

    def with_all_options(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, **options):
        if getattr(args, "score_reference", False):
            return build_generator(self, models, args)
        end = {"eos": self.tgt_dict.index(f"[{self.args.target_lang}]")}
        extra = {**(extra_gen_cls_kwargs or {}), **end}
        return super(task, self).build_generator(models, args, seq_gen_cls, extra, **options)

    task.__init__, task.build_generator = __init__, with_all_options
