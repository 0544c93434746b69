"""Options of scoring that were ignored, or ended in an error.

Symptom: ``fairseq-generate --sacrebleu`` prints the BLEU of tokens; with ``--scoring sacrebleu --bpe ...`` a warning
    asks for ``--sacrebleu``. ``fairseq-score --sacrebleu`` and ``--sentence-bleu`` end with a ``TypeError``; of files
    of different lengths it scores the beginning. The scorer of ``--scoring chrf`` has no ``score()``.
Versions: all; ``fairseq-score --sacrebleu`` with sacrebleu 2.
Where: fairseq_cli/generate.py:381 (the only place that reads it), fairseq_cli/score.py:61, :70, :89,
    fairseq/scoring/chrf.py:31.
Remedy: ``--sacrebleu`` is ``--scoring sacrebleu``; the others do what their help says, ``--ignore-case`` included, and
    the ending of ``--ref test.zh`` is the language.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from contextlib import contextmanager

from fairseq_compat.languages import UnknownLanguageError, bleu_tokenizer, language
from fairseq_compat.shadow import shadow

REASON = "options of scoring are ignored, or end in an error"
BROKEN = r"not cfg\.generation\.sacrebleu|bleu\.Scorer\(dict\.pad\(\), |return self\.result_string\(order\)\.score"
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
    bleu, original = module.bleu, module.cli_main

    def make_scorer(*given):
        """Of a configuration, or of the numbers of padding, end and unknown."""
        return bleu.Scorer(given[0] if len(given) == 1 else bleu.BleuConfig(**dict(zip(("pad", "eos", "unk"), given))))

    @functools.wraps(original)
    def cli_main():
        import sacrebleu

        args = module.get_parser().parse_args()
        corpus_bleu = sacrebleu.corpus_bleu

        def of_files(system, references):
            rows, tokenizer = list(pairs(system, references[0])), tokenizer_of(args.ref)
            print(f"sacrebleu's tokeniser {tokenizer}, by the ending of --ref {args.ref}", file=sys.stderr)
            translations, reference = [row[0] for row in rows], [row[1] for row in rows]
            return corpus_bleu(translations, [reference], lowercase=args.ignore_case, tokenize=tokenizer)

        sacrebleu.corpus_bleu = of_files  # type: ignore[assignment]  # fairseq gives files
        try:
            return original()
        finally:
            sacrebleu.corpus_bleu = corpus_bleu

    module.bleu = shadow(bleu, Scorer=make_scorer)
    module.zip = pairs
    module.cli_main = cli_main


def tokenizer_of(path: str) -> str:
    """That of the language by which a file is named, such as test.zh; 13a where it is named by none."""
    try:
        return bleu_tokenizer(language(os.path.splitext(path)[1]))
    except UnknownLanguageError:
        return "13a"


def pairs(system, reference):
    """Lines of two files, which must have as many."""
    for number, (translation, line) in enumerate(itertools.zip_longest(system, reference)):
        if translation is None or line is None:
            raise ValueError(
                f"{'--sys' if translation is None else '--ref'} ends after {number:,} lines, the other file does not: "
                "give translations and reference of one text"
            )
        yield translation, line
