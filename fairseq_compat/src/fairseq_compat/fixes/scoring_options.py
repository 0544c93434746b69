"""Options of scoring that were ignored, or ended in an error.

Symptom: ``fairseq-generate --sacrebleu`` prints the BLEU of tokens; with ``--scoring sacrebleu --bpe ...`` a warning
    asks for ``--sacrebleu``. ``fairseq-score`` scores the beginning of files of different lengths. The scorer of
    ``--scoring chrf`` has no ``score()``.
Versions: all.
Where: fairseq_cli/generate.py:381 (the only place that reads it), fairseq_cli/score.py:70, fairseq/scoring/chrf.py:31.
Remedy: ``--sacrebleu`` is ``--scoring sacrebleu``; files of different lengths are an error. For ``fairseq-score
    --sacrebleu``, which ends with ``TypeError``, use the command ``sacrebleu``.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
import itertools
from contextlib import contextmanager

REASON = "options of scoring are ignored, or end in an error"
BROKEN = r"not cfg\.generation\.sacrebleu|in zip\(readlines\(fdsys\), |return self\.result_string\(order\)\.score"
MENDED = r"class ChrFScorer\("


def needed() -> bool:
    return True


@contextmanager
def patching(module):
    yield
    {"generate": mend_generation, "score": mend_program, "chrf": mend_chrf}[module.__name__.rpartition(".")[2]](module)


def mend_generation(module):
    original = module._main

    @functools.wraps(original)
    def _main(cfg, output_file):
        if cfg.scoring._name == "bleu" and cfg.generation.sacrebleu:
            from fairseq.registry import REGISTRIES

            cfg.scoring = REGISTRIES["scoring"]["dataclass_registry"]["sacrebleu"](_name="sacrebleu")
        cfg.generation.sacrebleu = cfg.scoring._name != "bleu"
        return original(cfg, output_file)

    module._main = _main


def mend_chrf(module):
    def score(self, order=4):
        return self.sacrebleu.corpus_chrf(self.pred, [self.ref]).score

    module.ChrFScorer.score = score


def mend_program(module):
    """``fairseq-score``."""
    module.zip = pairs


def pairs(system, reference):
    """Lines of two files, which must have as many."""
    for number, (translation, line) in enumerate(itertools.zip_longest(system, reference)):
        if translation is None or line is None:
            raise ValueError(
                f"{'--sys' if translation is None else '--ref'} ends after {number:,} lines, the other file does not: "
                "give translations and reference of one text"
            )
        yield translation, line
