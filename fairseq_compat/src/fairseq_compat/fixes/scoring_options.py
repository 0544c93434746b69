"""fairseq-generate --sacrebleu, --scoring chrf, fairseq-score --sentence-bleu are ignored or fail.

Symptom: ``fairseq-generate --sacrebleu`` prints the BLEU of tokens; with ``--scoring sacrebleu --bpe ...`` a warning
    asks for ``--sacrebleu``. ``fairseq-score`` scores the beginning of files of different lengths, and ends with
    ``TypeError`` for ``--sentence-bleu`` and ``--sacrebleu``, which does not read ``--ignore-case``. The
    scorer of ``--scoring chrf`` has no ``score()``.
Where: fairseq_cli/generate.py:381 (the only place that reads it), fairseq_cli/score.py:70, fairseq/scoring/chrf.py:31.
Remedy: ``--sacrebleu`` is ``--scoring sacrebleu``; files of different lengths are an error; the options of
    ``fairseq-score`` do what they say.
"""

from __future__ import annotations

import itertools

from fairseq_compat.patches import shadow, wrap

BROKEN = r"not cfg\.generation\.sacrebleu|in zip\(readlines\(fdsys\), |return self\.result_string\(order\)\.score"
FIXED = r"class ChrFScorer\("


def patch_generate(module) -> None:
    @wrap(module)
    def _main(original, cfg, output_file):
        if cfg.scoring._name == "bleu" and cfg.generation.sacrebleu:
            from fairseq.registry import REGISTRIES

            cfg.scoring = REGISTRIES["scoring"]["dataclass_registry"]["sacrebleu"](_name="sacrebleu")
        cfg.generation.sacrebleu = cfg.scoring._name != "bleu"
        return original(cfg, output_file)


def patch_chrf(module) -> None:
    @wrap(module.ChrFScorer)
    def score(original, self, order=4):
        return self.sacrebleu.corpus_chrf(self.pred, [self.ref]).score


def pairs(system, reference):
    """Yield the lines of two files in pairs.

    Raises:
        ValueError: one of the files ends before the other.
    """
    for number, (translation, line) in enumerate(itertools.zip_longest(system, reference)):
        if translation is None or line is None:
            raise ValueError(
                f"{'--sys' if translation is None else '--ref'} ends after {number:,} lines, the other file does not: "
                "give translations and reference of one text"
            )
        yield translation, line


def patch_score(module) -> None:
    scorer, config = module.bleu.Scorer, module.bleu.BleuConfig
    module.zip = pairs

    def make(cfg, *indices):
        return scorer(config(**dict(zip(("pad", "eos", "unk"), (cfg, *indices)))) if indices else cfg)

    shadow(module, "bleu.Scorer", make)

    @wrap(module)
    def cli_main(original):
        import sacrebleu

        ignore_case = module.get_parser().parse_args().ignore_case

        def of_files(system, references):
            lines = list(pairs(system, references[0]))
            return corpus_bleu([one for one, _ in lines], [[other for _, other in lines]], lowercase=ignore_case)

        corpus_bleu, sacrebleu.corpus_bleu = sacrebleu.corpus_bleu, of_files  # type: ignore[assignment]
        try:
            original()
        finally:
            sacrebleu.corpus_bleu = corpus_bleu


PATCHES = {
    "fairseq.scoring.chrf": patch_chrf,
    "fairseq_cli.generate": patch_generate,
    "fairseq_cli.score": patch_score,
}
