"""Define the scores of translations, and the direction of all values that are compared.

To add a score that is computed, recorded, compared and tested, add an entry to SCORES.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embinit_fairseq.errors import DataError, OptionError

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

#: languages without spaces between words whose characters sacrebleu's TER separates by itself
_TERCOM = ("zh", "lzh", "wuu", "yue", "ja")


@dataclass(frozen=True)
class Score:
    """Describe a score of translations against references.

    Attributes:
        title: name in tables.
        sacrebleu: class in `sacrebleu.metrics`.
        help: the units that are counted.
        higher: True if a higher score is better.
        cased: True if the score distinguishes upper and lower case by default.
        of_tokens: True if the score is computed on tokens, not on text.
        options: arguments of the class.
    """

    title: str
    sacrebleu: str
    help: str
    higher: bool = True
    cased: bool = True
    of_tokens: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def metric(self, lowercase: bool = False, language: str = "", tokenize: str | None = None) -> Metric:
        """Return sacrebleu's object that computes the score.

        Args:
            lowercase: ignore upper and lower case.
            language: code as `fairseq_compat.languages.language` returns it; "" if it is not known.
            tokenize: sacrebleu's name of a tokeniser for BLEU; default: the language's.

        Raises:
            OptionError: sacrebleu does not have the tokeniser, or cannot download it.
        """
        import sacrebleu.metrics
        from fairseq_compat.languages import bleu_tokenizer, has_spaces

        options = dict(self.options)
        if self.cased:
            options["lowercase"] = lowercase
        if self.sacrebleu == "BLEU":
            options = {"tokenize": tokenize or bleu_tokenizer(language), **options}
        try:
            if self.sacrebleu != "TER" or has_spaces(language):
                return getattr(sacrebleu.metrics, self.sacrebleu)(**options)
        except (KeyError, RuntimeError, ImportError, OSError) as error:  # OSError: the download failed
            raise OptionError(
                f"--tokenize {options['tokenize']}: sacrebleu does not have this tokeniser here ({error}); choose "
                "another one, see sacrebleu --help"
            ) from error
        metric = sacrebleu.metrics.TER(normalized=True, asian_support=True, **options)
        if language not in _TERCOM:
            words = metric.tokenizer
            metric.tokenizer = lambda line: " ".join(words(line).replace(" ", ""))  # type: ignore[assignment]
            metric.tokenizer_signature = "char"
        return metric


#: name in records and options -> score, in the order of tables
SCORES: dict[str, Score] = {
    "bleu": Score(
        "BLEU",
        "BLEU",
        "words and phrases in common with the reference",
        options={"force": True},  # embinit score itself says, once, that text looks tokenised
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
        "edits in percent of the reference's words, lower is better; never case-sensitive",
        higher=False,
        cased=False,
    ),
}
#: scores that `embinit score` computes by default
DEFAULT_SCORES = ("bleu", "chrf")
#: scores of text; `embinit compare` tests the ones that all runs have recorded
TEXT_SCORES = tuple(name for name, score in SCORES.items() if not score.of_tokens)
#: results on a test set that are not scores of translations: path in `scores` of a record -> column title, decimals
FIGURES = {
    "test_accuracy": ("test accuracy (%)", 2),
    "test_macro_f1": ("test macro-F1 (%)", 2),
    "test_loss": ("test loss", 3),
    # MNLI's second validation set: at the best epoch of the first set, and the highest, as Kim et al. 2024 report it
    "mismatched/accuracy": ("mismatched (%)", 2),
    "mismatched/highest": ("highest mismatched (%)", 2),
    "mismatched/epoch": ("at epoch (mismatched)", 1),
}

#: last words in the names of logged values that are better if they are lower, and if they are higher
_LOWER = frozenset("loss ppl perplexity wer cer uer error mse rmse mae mcd bpb bpc bpd".split())
_HIGHER = frozenset(
    "accuracy acc f1 mcc corr pearson spearman kappa precision recall auc comet meteor rouge bleurt".split()
)
#: values that fairseq logs and that are not scores: sizes, speed, the optimizer
_NOT_SCORES = frozenset("wps wpb bsz ups num_updates wall train_wall gnorm clip lr loss_scale gb_free".split())


def is_score(name: str) -> bool:
    """Return True for a logged value, such as valid_accuracy, that is a score of a validation."""
    value = name.removeprefix("valid_")
    return value != name and value not in _NOT_SCORES and not value.startswith("best_")


def known_direction(metric: str) -> bool | None:
    """Return True for a logged value that is better if it is higher, False for lower, None if the name does not say."""
    words = metric.removeprefix("valid_").lower().split("_")
    if (score := SCORES.get(words[0])) is not None:
        return score.higher
    return False if words[-1] in _LOWER else True if words[-1] in _HIGHER else None


def higher_is_better(metric: str) -> bool:
    """Return the direction of a logged value; if its name does not say, True unless it has a loss in it."""
    direction = known_direction(metric)
    return direction if direction is not None else not any(word in metric for word in ("loss", "ppl", "perplexity"))


def wrong_direction(metric: str, higher: bool) -> str | None:
    """Return fact and remedy if a training takes the worst value of a metric as the best; else None.

    Args:
        metric: value that chooses the best epoch.
        higher: True if the highest value chooses it.
    """
    if known_direction(metric) in (None, higher):
        return None
    worst, change = ("highest", "leave out") if higher else ("lowest", "add")
    return (
        f"the {worst} {metric.removeprefix('valid_')} counts as the best, so that the worst checkpoint is "
        f"checkpoint_best.pt; {change} --maximize-best-checkpoint-metric (with embinit run --metric: --higher)"
    )


def computed(
    metric: Metric, text: Sequence[str], references: Sequence[Sequence[str]], confidence: bool = False
) -> dict[str, Any]:
    """Return the part of a record about a score: score, signature, details.

    Args:
        metric: sacrebleu's object.
        text: translations.
        references: texts with as many lines.
        confidence: add `interval_95`, half of sacrebleu's bootstrap interval (1,000 samples), None if it has none.
    """
    result = metric.corpus_score(text, references, n_bootstrap=1000 if confidence else 1)
    signature = str(metric.get_signature())
    plain = re.sub(r"\|bs:\d+\|seed:\d+", "", signature)  # the score itself does not depend on the interval
    record = {"score": result.score, "signature": plain, "details": str(result)}
    if confidence:
        record["interval_95"] = json.loads(result.format(signature=signature, is_json=True)).get("confidence_var")
    return record


def recorded_metrics(scores: Mapping[str, Any], names: Iterable[str]) -> dict[str, Metric]:
    """Return name -> sacrebleu's object, with case, tokeniser and language of the BLEU in the scores of a record.

    Raises:
        DataError: sacrebleu does not have the tokeniser.
    """
    bleu = scores.get("bleu")
    signature = str(bleu.get("signature") or "") if isinstance(bleu, dict) else ""
    tokenize = re.search(r"\btok:((?:ja|ko)-mecab|[\w.-]+)", signature)  # MeCab's version follows its name
    settings = ("case:lc" in signature, str(scores.get("lang") or ""), tokenize.group(1) if tokenize else None)
    try:
        return {name: SCORES[name].metric(*settings) for name in names}
    except OptionError as error:
        raise DataError(f"the recorded BLEU has the signature {signature}: {str(error).partition(': ')[2]}") from error
