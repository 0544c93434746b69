"""`--criterion word_loss`: cross-entropy whose validation is per word, so that different subwords compare.

Give this folder to fairseq as --user-dir. Trains like `cross_entropy`. In validation it also logs

    word_nll      nats per word: the sum over all subwords and sentence ends, divided by the number of words and
                  sentence ends; word_ppl is its exponential
    new_nll       nats per word of --new-words, the sum over the word's subwords; new_ppl
    other_nll     nats per any other word or sentence end; other_ppl
    words, new    how many words and sentence ends, and how many of --new-words among them

A word begins after a subword without `@@` at its end (subword-nmt) and ends with such a subword; sentences must not end
inside words (--sample-break-mode eos or complete). Numbers of words do not depend on the segmentation.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq import metrics
from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig

CONTINUES = "@@"  # as in embinit_fairseq.vocab.subword_styles, whose import would register the whole plugin
KINDS = ("word", "new", "other")


def words_of(symbols: list[str], nll: list[float]) -> Iterator[tuple[str, float]]:
    """Yield (word, nats) of one sentence: subwords joined, their losses added."""
    word, loss = "", 0.0
    for symbol, value in zip(symbols, nll):
        word, loss = word + symbol.removesuffix(CONTINUES), loss + value
        if not symbol.endswith(CONTINUES):
            yield word, loss
            word, loss = "", 0.0


@dataclass
class WordLossConfig(CrossEntropyCriterionConfig):
    new_words: Optional[str] = field(
        default=None, metadata={"help": "file with words to be counted apart: the first column is read"}
    )


@register_criterion("word_loss", dataclass=WordLossConfig)
class WordLossCriterion(CrossEntropyCriterion):
    def __init__(self, task: Any, sentence_avg: bool, new_words: Optional[str]):
        super().__init__(task, sentence_avg)
        self.dictionary = task.target_dictionary
        lines = Path(new_words).read_text(encoding="utf-8").splitlines() if new_words else []
        self.new_words = {line.split("\t")[0].strip() for line in lines}

    def forward(self, model, sample, reduce=True):
        """Compute `cross_entropy`; in validation log nats and numbers of words by kind, too."""
        if self.training:
            return super().forward(model, sample, reduce)
        losses, sample_size, logging_output = super().forward(model, sample, reduce=False)
        target = model.get_targets(sample, None)
        # all of them, since workers exchange the values of equal keys
        sums = {f"{kind}_{what}": 0.0 for kind in KINDS for what in ("sum", "count")}
        for ids, values in zip(target.tolist(), losses.view_as(target).tolist()):
            symbols = [self.dictionary[number] for number in ids if number != self.padding_idx]
            for word, loss in words_of(symbols, values):
                for kind in ("word", "new" if word in self.new_words else "other"):
                    sums[f"{kind}_sum"] += loss
                    sums[f"{kind}_count"] += 1
        loss = losses.sum()
        logging_output |= {**sums, "loss": loss.data}
        return loss if reduce else losses, sample_size, logging_output

    @staticmethod
    def reduce_metrics(logging_outputs) -> None:
        """Log means per word of the sums over all batches and workers."""
        CrossEntropyCriterion.reduce_metrics(logging_outputs)
        for kind in KINDS:
            count, total = (sum(log.get(f"{kind}_{what}", 0) for log in logging_outputs) for what in ("count", "sum"))
            if count:
                metrics.log_scalar(f"{kind}_nll", float(total / count), float(count), round=6)
                metrics.log_derived(f"{kind}_ppl", lambda meters, kind=kind: math.exp(meters[f"{kind}_nll"].avg))
                if kind != "other":
                    metrics.log_scalar_sum("words" if kind == "word" else kind, float(count))
