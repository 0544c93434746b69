"""--eval-bleu-detok moses uses English rules for all languages.

Symptom: ``--eval-bleu-detok moses`` joins the words of every language by English rules; ``--tokenizer moses`` knows no
    language by ``fr_XX`` or ``fra_Latn`` and leaves ``l' homme`` apart.
Where: fairseq/tasks/translation.py:371 (no language is passed on), fairseq/data/encoders/moses_tokenizer.py:34.
Remedy: validation joins by the rules of the target language, unless ``--eval-bleu-detok-args`` has a ``target_lang``;
    codes become the ones that Moses knows, and a line names an unknown one.
"""

from __future__ import annotations

import copy
import json
import logging

from fairseq_compat.languages import UnknownLanguageError, language
from fairseq_compat.patches import wrap

BROKEN = r"json\.loads\(self\.cfg\.eval_bleu_detok_args\)|MosesDetokenizer\(cfg\.target_lang\)"

logger = logging.getLogger(__name__)


def moses_code(code: str) -> str:
    """Return Moses' code of a language; an unknown code stays as it is."""
    try:
        return language(code)
    except UnknownLanguageError as error:
        logger.warning(f"--tokenizer moses: {error}")
        return code


def patch_tokenizer(module) -> None:
    @wrap(module.MosesTokenizer)
    def __init__(original, self, cfg):
        cfg = copy.copy(cfg)
        cfg.source_lang, cfg.target_lang = moses_code(cfg.source_lang), moses_code(cfg.target_lang)
        original(self, cfg)


def patch_validation(module) -> None:
    @wrap(module.TranslationTask)
    def build_model(original, self, *args, **kwargs):
        options = self.cfg
        if options.eval_bleu and options.eval_bleu_detok == "moses":
            detok_args = {"target_lang": options.target_lang, **json.loads(options.eval_bleu_detok_args)}
            options.eval_bleu_detok_args = json.dumps(detok_args)
        return original(self, *args, **kwargs)


PATCHES = {
    "fairseq.data.encoders.moses_tokenizer": patch_tokenizer,
    "fairseq.tasks.translation": patch_validation,
}
