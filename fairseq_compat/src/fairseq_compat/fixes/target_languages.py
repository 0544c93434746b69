"""BLEU by the rules of the target language.

Symptom: ``fairseq-train --eval-bleu`` and ``fairseq-generate --scoring sacrebleu`` print 0.00 for good translations
    into Chinese, Japanese or Thai; ``--best-checkpoint-metric bleu`` then keeps any checkpoint.
Versions: all.
Where: fairseq/tasks/translation.py:497, fairseq/scoring/bleu.py:35: sacrebleu's 13a, which takes what is between two
    spaces for a word. fairseq/scoring/__init__.py:41 does not know the language.
Remedy: the language of the target chooses, as sacrebleu does where it knows it, and a line says what was taken. A
    ``--sacrebleu-tokenizer`` that was given and ``--eval-tokenized-bleu`` stay. Other scorers that count words between
    spaces, and BERTScore's English model, are named where they do not suit the target.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import sys
from contextlib import contextmanager, suppress
from typing import Optional

from fairseq_compat.languages import UnknownLanguageError, bleu_tokenizer, has_spaces, language, missing_tokenizer

REASON = "BLEU of languages without spaces between words is 0"
BROKEN = r"corpus_bleu\(hyps, \[refs\]\)$|default=\"13a\", metadata|^def (build_scorer|setup_task)\("
OPTION = "sacrebleu_tokenizer"
#: the task that was made last, by which a scorer learns its language
LAST_TASK: list = []

logger = logging.getLogger(__name__)


def needed() -> bool:
    return True


@contextmanager
def patching(module):
    kind = module.__name__.rpartition(".")[2]
    if kind == "bleu":
        with without_tokenizer(sys.modules["fairseq.scoring"]):
            yield
    else:
        yield
    mend = {"translation": mend_validation, "bleu": mend_scorer, "tasks": remember_task, "scoring": mend_scoring}
    mend[kind](module)


def target(task) -> str | None:
    """The two-letter code of the language that a task translates into; None if it has none, or names an unknown one."""
    code = getattr(getattr(task, "cfg", None) or getattr(task, "args", None), "target_lang", None)
    try:
        return language(code) if code else None
    except UnknownLanguageError as error:
        logger.warning(f"BLEU is counted by 13a, because the target language {error}")
        return None


def tokenizer_for(lang: str | None) -> str:
    """The tokeniser for a language; a line of the log says which, where it is not 13a."""
    name = bleu_tokenizer(lang or "")
    if name != "13a":
        logger.info(missing_tokenizer(lang or "") or f"BLEU of {lang}: sacrebleu's tokeniser {name}")
    return name


def mend_validation(module):
    """``--eval-bleu``."""
    task = module.TranslationTask
    original = task._inference_with_bleu

    @functools.wraps(original)
    def _inference_with_bleu(self, *args, **kwargs):
        import sacrebleu

        if not hasattr(self, "bleu_tokenizer"):
            self.bleu_tokenizer = "none" if self.cfg.eval_tokenized_bleu else tokenizer_for(target(self))
        corpus_bleu = sacrebleu.corpus_bleu
        sacrebleu.corpus_bleu = functools.partial(corpus_bleu, tokenize=self.bleu_tokenizer)
        try:
            return original(self, *args, **kwargs)
        finally:
            sacrebleu.corpus_bleu = corpus_bleu

    task._inference_with_bleu = _inference_with_bleu


@contextmanager
def without_tokenizer(scoring):
    """``--sacrebleu-tokenizer`` has no value until the user gives one."""
    register = scoring.register_scorer

    def register_scorer(name, dataclass=None):
        return register(name, dataclass=unset(dataclass) if name == "sacrebleu" else dataclass)

    scoring.register_scorer = register_scorer
    try:
        yield
    finally:
        scoring.register_scorer = register


def unset(options):
    """The options of sacrebleu, without a tokeniser."""
    metadata = {"help": "tokenizer; default: that of the target language, 13a where it has none"}
    choices = options.__dataclass_fields__[OPTION].type
    field = (OPTION, Optional[choices], dataclasses.field(default=None, metadata=metadata))
    return dataclasses.make_dataclass(options.__name__, [field], bases=(options,))


def mend_scorer(module):
    """Without a language the tokeniser is 13a, as it was."""
    scorer = module.SacrebleuScorer
    original = scorer.__init__

    @functools.wraps(original)
    def __init__(self, cfg):
        if cfg.sacrebleu_tokenizer is None:
            cfg = with_tokenizer(cfg, "13a")
        original(self, cfg)

    scorer.__init__ = __init__


def with_tokenizer(options, name):
    """A copy."""
    options = copy.copy(options)
    options.sacrebleu_tokenizer = name
    return options


def remember_task(module):
    original = module.setup_task

    @functools.wraps(original)
    def setup_task(*args, **kwargs):
        LAST_TASK[:] = [original(*args, **kwargs)]
        return LAST_TASK[0]

    module.setup_task = setup_task


def mend_scoring(module):
    """A scorer is made for the language of the task whose dictionary it is given."""
    from fairseq.registry import REGISTRIES
    from omegaconf import OmegaConf

    original = module.build_scorer

    @functools.wraps(original)
    def build_scorer(choice, tgt_dict):
        name = choice if isinstance(choice, str) else getattr(choice, "_name", None)
        lang = language_of(tgt_dict)
        if name == "sacrebleu":
            if isinstance(choice, str):
                choice = OmegaConf.structured(REGISTRIES["scoring"]["dataclass_registry"][name](_name=name))
            if choice.sacrebleu_tokenizer is None and not choice.sacrebleu_char_level:
                choice = with_tokenizer(choice, tokenizer_for(lang))
        elif lang is not None:
            say_unsuited(name, choice, lang)
        return original(choice, tgt_dict)

    module.build_scorer = build_scorer


def language_of(dictionary) -> str | None:
    """The language of a dictionary, where it is that of the target of the last task."""
    for task in LAST_TASK:
        with suppress(NotImplementedError):  # a task without a target
            if task.target_dictionary is dictionary:
                return target(task)
    return None


def say_unsuited(name, choice, lang: str) -> None:
    """What counts words of a language that does not separate them, or compares with the words of another."""
    by_character = getattr(choice, "wer_char_level", False)
    if name in ("bleu", "meteor", "wer") and not by_character and not has_spaces(lang):
        logger.warning(
            f"--scoring {name} counts what is between spaces, which {lang} does not put between words: give --scoring "
            "sacrebleu or --scoring chrf"
        )
    model = getattr(choice, "bert_score_lang", lang)
    if model != lang:
        logger.warning(f"--bert-score-lang {model}: the target is {lang}; give --bert-score-lang {lang}")
