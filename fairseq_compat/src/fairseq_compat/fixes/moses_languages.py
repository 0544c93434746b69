"""Moses' rules of the language of the text.

Symptom: ``--eval-bleu-detok moses`` joins the words of every language by English rules; ``--tokenizer moses`` knows no
    language by ``fr_XX`` or ``fra_Latn`` and leaves ``l' homme`` apart.
Versions: all.
Where: fairseq/tasks/translation.py:371 (no language is passed on), fairseq/data/encoders/moses_tokenizer.py:34.
Remedy: validation joins by the rules of the target language, unless ``--eval-bleu-detok-args`` has a ``target_lang``;
    codes become those that Moses knows, and a line names an unknown one.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
from contextlib import contextmanager

from fairseq_compat.languages import UnknownLanguageError, language

REASON = "Moses' rules are those of English, or of no language"
BROKEN = r"json\.loads\(self\.cfg\.eval_bleu_detok_args\)|MosesDetokenizer\(cfg\.target_lang\)"

logger = logging.getLogger(__name__)


def needed() -> bool:
    return True


@contextmanager
def patching(module):
    yield
    if module.__name__.endswith("moses_tokenizer"):
        mend_tokenizer(module.MosesTokenizer)
    else:
        mend_validation(module.TranslationTask)


def known(code: str) -> str:
    """The code by which Moses knows a language; an unknown one as it is."""
    try:
        return language(code)
    except UnknownLanguageError as error:
        logger.warning(f"--tokenizer moses: {error}")
        return code


def mend_tokenizer(tokenizer):
    original = tokenizer.__init__

    @functools.wraps(original)
    def __init__(self, cfg):
        cfg = copy.copy(cfg)
        cfg.source_lang, cfg.target_lang = known(cfg.source_lang), known(cfg.target_lang)
        original(self, cfg)

    tokenizer.__init__ = __init__


def mend_validation(task):
    original = task.build_model

    @functools.wraps(original)
    def build_model(self, cfg, from_checkpoint=False):  # fairseq looks for this argument's name
        options = self.cfg
        if options.eval_bleu and options.eval_bleu_detok == "moses":
            given = json.loads(options.eval_bleu_detok_args)
            options.eval_bleu_detok_args = json.dumps({"target_lang": options.target_lang, **given})
        return original(self, cfg, from_checkpoint)

    task.build_model = build_model
