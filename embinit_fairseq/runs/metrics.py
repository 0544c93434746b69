"""The scores of translations: one entry is all that a score needs to be computed, recorded, checked and compared; and
what the values that a training logs are: which of them are scores, and in which direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

#: languages without spaces between words whose characters sacrebleu's TER separates by itself
_TERCOM = ("zh", "lzh", "wuu", "yue", "ja")


@dataclass(frozen=True)
class Score:
    """A score of translations against references.

    title: in tables. sacrebleu: class in `sacrebleu.metrics`. help: what it counts. higher: is a higher one better?
    most: the largest possible value, None without one. cased: does it tell upper from lower case, unless asked not to?
    of_tokens: counted on words as they are, not on text. options: of the class.
    """

    title: str
    sacrebleu: str
    help: str
    higher: bool = True
    most: float | None = 100.0
    cased: bool = True
    of_tokens: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def metric(self, lowercase: bool = False, language: str = "", tokenize: str | None = None) -> Metric:
        """Return sacrebleu's object that computes the score.

        Args:
            lowercase: upper and lower case are the same.
            language: of the texts, as `fairseq_compat.languages.language` returns it; "" if it is not known.
            tokenize: sacrebleu's name of a tokeniser for BLEU; default: the language's.
        """
        import sacrebleu.metrics
        from fairseq_compat.languages import bleu_tokenizer, has_spaces

        options = dict(self.options)
        if self.cased:
            options["lowercase"] = lowercase
        if self.sacrebleu == "BLEU":
            options = {"tokenize": tokenize or bleu_tokenizer(language), **options}
        if self.sacrebleu != "TER" or has_spaces(language):
            return getattr(sacrebleu.metrics, self.sacrebleu)(**options)
        metric = sacrebleu.metrics.TER(normalized=True, asian_support=True, **options)
        if language not in _TERCOM:
            words = metric.tokenizer
            metric.tokenizer = lambda line: " ".join(words(line).replace(" ", ""))  # type: ignore[assignment]
            metric.tokenizer_signature = "char"
        return metric

    @property
    def direction(self) -> str:
        """For people."""
        return "higher is better" if self.higher else "lower is better"

    def in_range(self, value: float) -> bool:
        """Can this score have the value? (A perfect BLEU is 100.00000000000004.)"""
        return value >= 0 and (self.most is None or value < self.most + 0.01)

    @property
    def range(self) -> str:
        """For messages."""
        return "a number from 0" if self.most is None else f"a number from 0 to {self.most:g}"


#: name in records and options -> score, in the order of tables
SCORES: dict[str, Score] = {
    "bleu": Score(
        "BLEU",
        "BLEU",
        "words and phrases in common with the reference",
        options={"force": True},  # embinit score says itself, once, that text looks tokenised
    ),
    "bleu_tokenized": Score(
        "tokenised BLEU",
        "BLEU",
        "BLEU on tokens as they are, without a tokeniser of sacrebleu",
        of_tokens=True,
        options={"tokenize": "none", "force": True},
    ),
    "chrf": Score("chrF", "CHRF", "character n-grams in common with the reference"),
    "ter": Score(
        "TER",
        "TER",
        "edits in percent of the reference's words, above 100 where there are more; never case-sensitive",
        higher=False,
        most=None,
        cased=False,
    ),
}
#: what is counted where nothing else is asked for
DEFAULT_SCORES = ("bleu", "chrf")
#: those that are counted on text
TEXT_SCORES = tuple(name for name, score in SCORES.items() if not score.of_tokens)

#: figures of a test set that are no scores of translations, by their names in `scores` of a record -> title of the
#: column in tables, decimals. A name of two parts is a record in the record.
FIGURES = {
    "test_accuracy": ("test accuracy (%)", 2),
    "test_macro_f1": ("test macro-F1 (%)", 2),
    "test_loss": ("test loss", 3),
    # MNLI's second validation set: at the epoch that the first one has chosen, and the highest, as Kim et al. report
    "mismatched/accuracy": ("mismatched (%)", 2),
    "mismatched/highest": ("highest mismatched (%)", 2),
    "mismatched/epoch": ("at epoch (mismatched)", 1),
}

# ---- Values that a training logs, by their names in the log ---------------------------------------------------------

#: what fairseq logs beside scores: sizes, speed, the optimizer
_NOT_SCORES = frozenset("wps wpb bsz ups num_updates wall train_wall gnorm clip lr loss_scale gb_free".split())
#: in the name of what is better low
_LOWER_IS_BETTER = ("loss", "ppl", "perplexity")
#: metrics with a panel of their own in `curves.png` of `embinit compare`, beside that of --metric, where runs log them
PANELS = ("valid_bleu",)


def is_score(key: str) -> bool:
    """Is a logged value, such as valid_accuracy, a score of a validation? Whatever has another name than fairseq's own
    figures is; the best value so far (valid_best_accuracy) is not."""
    name = key.removeprefix("valid_")
    return name != key and name not in _NOT_SCORES and not name.startswith("best_")


def higher_is_better(metric: str) -> bool:
    """By the name of a logged value: losses, perplexities and TER are better low, all others high."""
    score = SCORES.get(metric.removeprefix("valid_"))
    return score.higher if score else not any(word in metric for word in _LOWER_IS_BETTER)
