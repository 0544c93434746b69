"""fairseq-eval-lm --remove-bpe: perplexity per subword, not per word; --post-process @@ joins nothing.

Symptom: (a) ``fairseq-eval-lm --remove-bpe`` (and ``--post-process subword_nmt`` or ``none``) prints the perplexity per
    subword as that per word, or an error: only ``'@@ '`` works. (b) ``--post-process @@`` joins nothing: ``do@@ gs``
    becomes ``do gs``.
Where: fairseq_cli/eval_lm.py:89 (symbols that end with "subword_nmt"), fairseq/data/data_utils.py:382.
Remedy: ``subword_nmt``, ``@@`` and ``@@ `` are one everywhere; ``none`` is no option. With other segmentations
    fairseq-eval-lm ends with an error that says how to compute the perplexity per word.
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r'post_process in \{"subword_nmt", "@@ "\}|symbol in \{"subword_nmt", "@@ ", "@@"\}'
FIXED = r"def eval_lm\(|def post_process\("

MARK = "@@ "
ALIASES = {"subword_nmt": MARK, "@@": MARK, "none": None}


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
        return original(models, source_dictionary, batch_iterator, mark, *args, **options)


def patch_data_utils(module) -> None:
    @wrap(module)
    def post_process(original, sentence, symbol):
        return original(sentence, MARK if symbol == "@@" else symbol)


PATCHES = {"fairseq_cli.eval_lm": patch_eval_lm, "fairseq.data.data_utils": patch_data_utils}


def patch(module):
    PATCHES[module.__name__](module)
