"""The scores of translations, and the paired bootstrap of two systems (Koehn 2004).

An entry of SCORES is all that a further score needs to be computed, recorded, compared and tested.
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
    """A score of translations against references.

    Attributes:
        title: its name in tables.
        sacrebleu: class in `sacrebleu.metrics`.
        help: the units that are counted.
        higher: whether a higher score is better.
        cased: whether it distinguishes upper and lower case by default.
        of_tokens: whether it is computed on tokens, not on text.
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
        except (KeyError, RuntimeError, ImportError, OSError) as error:  # OSError: of the download
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
#: samples of the paired bootstrap, sacrebleu's number
SAMPLES = 1000
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

#: values that fairseq logs and that are not scores: sizes, speed, the optimizer
_NOT_SCORES = frozenset("wps wpb bsz ups num_updates wall train_wall gnorm clip lr loss_scale gb_free".split())


def is_score(name: str) -> bool:
    """Return True for a logged value, such as valid_accuracy, that is a score of a validation."""
    value = name.removeprefix("valid_")
    return value != name and value not in _NOT_SCORES and not value.startswith("best_")


def higher_is_better(metric: str) -> bool:
    """Return the direction of a logged value: losses, perplexities and TER are better if they are lower."""
    score = SCORES.get(metric.removeprefix("valid_"))
    return score.higher if score else not any(word in metric for word in ("loss", "ppl", "perplexity"))


def computed(metric: Metric, text: Sequence[str], reference: Sequence[str], confidence: bool = False) -> dict[str, Any]:
    """Return the part of a record about a score: score, signature, details.

    Args:
        metric: sacrebleu's object.
        text: translations.
        reference: as many lines.
        confidence: add `interval_95`, half of sacrebleu's bootstrap interval (1,000 samples), None if it has none.
    """
    result = metric.corpus_score(text, [reference], n_bootstrap=1000 if confidence else 1)
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


def paired_bootstrap(
    baseline: Sequence[str],
    reference: Sequence[str],
    systems: Sequence[Sequence[str]],
    metrics: Mapping[str, Metric],
) -> list[dict[str, dict[str, Any]]]:
    """Test each system against the baseline by sacrebleu's `PairedTest`, on samples of the test set's sentences.

    Args:
        baseline: translations.
        reference: as many lines.
        systems: translations of other systems, each with as many lines.
        metrics: name -> sacrebleu's object.

    Returns:
        For each system: metric -> `baseline`, `system`, `difference`, two-sided `p`, `interval` (half of the system's
        95 % interval) and `signature`.
    """
    from sacrebleu.significance import PairedTest

    named: list[tuple[str, Sequence[str]]] = [(str(number), text) for number, text in enumerate([baseline, *systems])]
    results: Any  # sacrebleu's title of a metric -> a result for each system
    signatures, results = PairedTest(named, metrics, [list(reference)], test_type="bs", n_samples=SAMPLES)()
    titles = [title for title in results if title != "System"]  # in the order of `metrics`

    def test(name: str, title: str, number: int) -> dict[str, Any]:
        first, system = results[title][0], results[title][number]
        # sacrebleu counts samples whose difference exceeds that of the test set: none, if both texts are equal
        is_equal = system.score == first.score and system.p_value * (SAMPLES + 1) < 1.5
        return {
            "metric": name,
            "baseline": first.score,
            "system": system.score,
            "p": 1.0 if is_equal else system.p_value,
            "interval": float(system.ci),
            "signature": str(signatures[title]),
            "difference": system.score - first.score,
        }

    return [
        {name: test(name, title, number) for name, title in zip(metrics, titles)} for number in range(1, len(named))
    ]
