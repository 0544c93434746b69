"""translation_from_pretrained_bart ignores --sampling, --lm-path and --constraints.

Symptom: ``AttributeError: 'TranslationFromPretrainedBARTTask' object has no attribute 'args'``. ``--sampling``,
    ``--lm-path``, ``--constraints``, ``--print-alignment``, ``--diverse-beam-groups`` and others of fairseq-generate
    are ignored.
Versions: fairseq 0.12.2 and later: the task that it extends keeps its options as ``cfg``.
Where: fairseq/tasks/translation_from_pretrained_bart.py:66 and on.
Remedy: ``args`` is the same as ``cfg``. Generators are made as for other tasks, with the target language in place of
    ``</s>``.
Upstream: fairseq issue 4479 (open).
Can go: with a fairseq whose task reads ``cfg``.
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r"self\.args\."
FIXED = r"class TranslationFromPretrainedBARTTask\("


def patch(module):
    task = module.TranslationFromPretrainedBARTTask

    @wrap(task)
    def __init__(original, self, args, *others):
        original(self, args, *others)
        self.args = args

    original = task.build_generator

    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, **options):
        if getattr(args, "score_reference", False):
            return original(self, models, args)
        extra = {**(extra_gen_cls_kwargs or {}), "eos": self.tgt_dict.index(f"[{self.args.target_lang}]")}
        return super(task, self).build_generator(models, args, seq_gen_cls, extra, **options)

    task.build_generator = build_generator
