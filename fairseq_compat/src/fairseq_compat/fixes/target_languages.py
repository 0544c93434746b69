"""BLEU of Chinese, Japanese and Thai is 0; now the target language decides the tokeniser.

Symptom: ``fairseq-train --eval-bleu`` and ``fairseq-generate --scoring sacrebleu`` print 0.00 for good translations
    into Chinese, Japanese or Thai; ``--best-checkpoint-metric bleu`` then keeps any checkpoint.
Where: fairseq/tasks/translation.py:497, fairseq/scoring/bleu.py:35: sacrebleu's 13a, for which a word is the text
    between two spaces. fairseq/scoring/__init__.py:41 does not know the language.
Remedy: the language of the target chooses, as sacrebleu does where it knows it, and a line says which tokeniser was
    taken. ``--sacrebleu-tokenizer`` and ``--eval-tokenized-bleu`` on the command line count. Other scorers that count
    words between spaces, and BERTScore's English model, are named where they do not suit the target.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import sys
from contextlib import contextmanager, suppress
from typing import Any, Optional

from fairseq_compat.languages import UnknownLanguageError, bleu_tokenizer, has_spaces, language, missing_tokenizer
from fairseq_compat.patches import wrap

BROKEN = r"corpus_bleu\(hyps, \[refs\]\)$|default=\"13a\", metadata|^def (build_scorer|setup_task)\("
OPTION = "sacrebleu_tokenizer"
#: the task that was made last, by which a scorer learns its language
LAST_TASK: list = []

logger = logging.getLogger(__name__)


def target(task) -> str | None:
    """Return the two-letter code of the language that a task translates into; None without a known language."""
    code = getattr(getattr(task, "cfg", None) or getattr(task, "args", None), "target_lang", None)
    try:
        return language(code) if code else None
    except UnknownLanguageError as error:
        logger.warning(f"BLEU is counted by 13a, because the target language {error}")
        return None


def tokenizer_for(lang: str | None) -> str:
    """Return the tokeniser for a language, and log it if it is not 13a."""
    name = bleu_tokenizer(lang or "")
    if name != "13a":
        logger.info(missing_tokenizer(lang or "") or f"BLEU of {lang}: sacrebleu's tokeniser {name}")
    return name


def patch_validation(module) -> None:
    """Count the BLEU of ``--eval-bleu`` by the target language."""

    @wrap(module.TranslationTask)
    def _inference_with_bleu(original, self, *args, **kwargs):
        import sacrebleu

        if not hasattr(self, "bleu_tokenizer"):
            self.bleu_tokenizer = "none" if self.cfg.eval_tokenized_bleu else tokenizer_for(target(self))
        corpus_bleu = sacrebleu.corpus_bleu
        sacrebleu.corpus_bleu = functools.partial(corpus_bleu, tokenize=self.bleu_tokenizer)
        try:
            return original(self, *args, **kwargs)
        finally:
            sacrebleu.corpus_bleu = corpus_bleu


@contextmanager
def executing(module):
    """Give ``--sacrebleu-tokenizer`` no value by default, while its scorer is registered."""
    if module.__name__ != "fairseq.scoring.bleu":
        yield
        return
    scoring: Any = sys.modules["fairseq.scoring"]
    register = scoring.register_scorer

    def register_scorer(name, dataclass=None):
        return register(name, dataclass=unset(dataclass) if name == "sacrebleu" else dataclass)

    scoring.register_scorer = register_scorer
    try:
        yield
    finally:
        scoring.register_scorer = register


def unset(options):
    """Return the dataclass of sacrebleu's options, without a default tokeniser."""
    metadata = {"help": "tokenizer; default: that of the target language, 13a where it has none"}
    choices = options.__dataclass_fields__[OPTION].type
    field = (OPTION, Optional[choices], dataclasses.field(default=None, metadata=metadata))
    return dataclasses.make_dataclass(options.__name__, [field], bases=(options,))


def patch_scorer(module) -> None:
    """Take 13a without a language, as fairseq does."""

    @wrap(module.SacrebleuScorer)
    def __init__(original, self, cfg):
        original(self, cfg if cfg.sacrebleu_tokenizer is not None else with_tokenizer(cfg, "13a"))


def with_tokenizer(options, name: str):
    """Return a copy of sacrebleu's options with this tokeniser."""
    options = copy.copy(options)
    options.sacrebleu_tokenizer = name
    return options


def patch_tasks(module) -> None:
    @wrap(module)
    def setup_task(original, *args, **kwargs):
        LAST_TASK[:] = [original(*args, **kwargs)]
        return LAST_TASK[0]


def patch_scoring(module) -> None:
    """Make a scorer for the language of the task that has its dictionary."""
    from fairseq.registry import REGISTRIES
    from omegaconf import OmegaConf

    @wrap(module)
    def build_scorer(original, choice, tgt_dict):
        name = choice if isinstance(choice, str) else getattr(choice, "_name", None)
        lang = language_of(tgt_dict)
        if name == "sacrebleu":
            if isinstance(choice, str):
                choice = OmegaConf.structured(REGISTRIES["scoring"]["dataclass_registry"][name](_name=name))
            if choice.sacrebleu_tokenizer is None and not choice.sacrebleu_char_level:
                choice = with_tokenizer(choice, tokenizer_for(lang))
        elif lang is not None:
            warn_unsuited(name, choice, lang)
        return original(choice, tgt_dict)


def language_of(dictionary) -> str | None:
    """Return the language of a dictionary if it is the target dictionary of the last task."""
    for task in LAST_TASK:
        with suppress(NotImplementedError):  # a task without a target
            if task.target_dictionary is dictionary:
                return target(task)
    return None


def warn_unsuited(name, choice, lang: str) -> None:
    """Warn of a scorer that counts words of a language without spaces, or compares with another language's words."""
    by_character = getattr(choice, "wer_char_level", False)
    if name in ("bleu", "meteor", "wer") and not by_character and not has_spaces(lang):
        logger.warning(
            f"--scoring {name} counts words between spaces, which {lang} does not put between words: give --scoring "
            "sacrebleu or --scoring chrf"
        )
    model = getattr(choice, "bert_score_lang", lang)
    if model != lang:
        logger.warning(f"--bert-score-lang {model}: the target is {lang}; give --bert-score-lang {lang}")


PATCHES = {
    "fairseq.scoring": patch_scoring,
    "fairseq.scoring.bleu": patch_scorer,
    "fairseq.tasks": patch_tasks,
    "fairseq.tasks.translation": patch_validation,
}
