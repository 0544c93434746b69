"""fairseq-eval-lm --remove-bpe: perplexity per subword; --post-process @@ joins nothing, sentencepiece twice.

Symptom: (a) ``fairseq-eval-lm --remove-bpe`` (and ``--post-process subword_nmt`` or ``none``) prints the perplexity per
    subword as that per word, or an error: only ``'@@ '`` works. (b) ``--post-process @@`` joins nothing: ``do@@ gs``
    becomes ``do gs``. (c) ``fairseq-generate --bpe sentencepiece --remove-bpe sentencepiece`` (fairseq's
    page of mBART), also fairseq-interactive, joins twice: lines D- and T- have no spaces, and BLEU is theirs. (d) A
    word that two blocks of ``--tokens-per-sample`` share counts twice: a lower perplexity, most with
    ``--context-window``; with ``--add-bos-token``: ``IndexError``.
Where: fairseq_cli/eval_lm.py:89 (symbols that end with "subword_nmt") and :132 (``tgt_len - 1``),
    fairseq/data/data_utils.py:382, fairseq_cli/generate.py:175 and interactive.py:182 (``decode_fn``).
Remedy: ``subword_nmt``, ``@@`` and ``@@ `` are one everywhere; ``none`` is no option. With other segmentations
    fairseq-eval-lm ends with an error that says how to compute the perplexity per word. Text is joined once.
Upstream: fairseq issues 331, 3103.
"""

from __future__ import annotations

from argparse import Namespace

from fairseq_compat.patches import wrap

BROKEN = r'x = bpe\.decode\(x\)|post_process in \{"subword_nmt", "@@ "\}|symbol in \{"subword_nmt", "@@ ", "@@"\}'
FIXED = r"def eval_lm\(|def post_process\("

MARK = "@@ "
ALIASES = {"subword_nmt": MARK, "@@": MARK, "none": None}
#: segmentations that join text as `--post-process sentencepiece` does
JOINED = ("sentencepiece", "characters")


def patch_eval_lm(module) -> None:
    @wrap(module)
    def eval_lm(original, models, source_dictionary, batch_iterator, post_process=None, *args, **options):
        mark = ALIASES.get(post_process, post_process)
        if mark not in (None, MARK):
            raise ValueError(
                f"--post-process {post_process}: fairseq-eval-lm counts words by subword_nmt's @@ only; leave it out, "
                "and compute the perplexity per word as perplexity ** (subwords / words), with one end of a sentence "
                "in both numbers"
            )
        if mark is None:
            return original(models, source_dictionary, batch_iterator, *args, **options)
        is_begun = [symbol.endswith(mark.strip()) for symbol in source_dictionary.symbols]
        whole = cut = 0  # words that end in their block, and blocks that end within a word
        scorer_class, has_bos = module.SequenceScorer, options.pop("remove_bos_token", False)

        def scorer_that_counts(*arguments):
            scorer = scorer_class(*arguments)

            @wrap(scorer)
            def generate(original, *inputs, **named):
                nonlocal whole, cut
                hypotheses = original(*inputs, **named)
                for hypothesis, *_ in hypotheses:
                    for name in ("tokens", "positional_scores"):
                        hypothesis[name] = hypothesis[name][int(has_bos) :]
                    tokens = hypothesis["tokens"].tolist()
                    whole += sum(not is_begun[token] for token in tokens)
                    cut += is_begun[tokens[-1]]
                return hypotheses

            return scorer

        module.SequenceScorer = scorer_that_counts
        try:
            results = original(models, source_dictionary, batch_iterator, mark, *args, **options)
        finally:
            module.SequenceScorer = scorer_class
        loss = results["loss"] * (whole + cut) / max(whole, 1)
        return {**results, "loss": loss, "perplexity": 2**loss}


def patch_data_utils(module) -> None:
    @wrap(module)
    def post_process(original, sentence, symbol):
        return original(sentence, MARK if symbol == "@@" else symbol)


def patch(module) -> None:
    @wrap(module)
    def main(original, cfg, *args, **options):
        from fairseq.registry import REGISTRIES

        if isinstance(cfg, Namespace):
            post_process, name = getattr(cfg, "post_process", None), getattr(cfg, "bpe", None)
        else:
            post_process, name = cfg.common_eval.post_process, getattr(cfg.bpe, "_name", cfg.bpe)
        if post_process != "sentencepiece" or name not in JOINED:
            return original(cfg, *args, **options)
        segmenter = REGISTRIES["bpe"]["registry"][name]
        decode = vars(segmenter)["decode"]
        segmenter.decode = staticmethod(str)  # the text as it is
        try:
            return original(cfg, *args, **options)
        finally:
            segmenter.decode = decode


PATCHES = {"fairseq_cli.eval_lm": patch_eval_lm, "fairseq.data.data_utils": patch_data_utils}
