"""Paired bootstrap of two rows of a table, seed by seed, by sacrebleu's own `PairedTest` (Koehn 2004).

A p-value says whether the difference between two translations of the test set could be due to the choice of its
sentences. It knows nothing about seeds: that is why every seed is tested by itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.bounded import read_lines
from embinit_fairseq.errors import DataError, OptionError, counted
from embinit_fairseq.runs.compare import Row, signature
from embinit_fairseq.runs.metrics import DEFAULT_SCORES, SCORES, TEXT_SCORES
from embinit_fairseq.runs.run import Run
from embinit_fairseq.runs.warnings import ROUNDING

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.significance import Result

MOST_SAMPLES = 100_000


@dataclass(frozen=True)
class PairedScore:
    """Of one seed and metric. p: two-sided, see `_p`; interval: half the 95 % interval of the system's score."""

    metric: str
    baseline: float
    system: float
    p: float
    interval: float
    signature: str

    @property
    def difference(self) -> float:
        """System minus baseline."""
        return self.system - self.baseline


@dataclass(frozen=True)
class SeedTest:
    """One row against the baseline with one seed."""

    row: str
    seed: str
    scores: tuple[PairedScore, ...]


@dataclass(frozen=True)
class Texts:
    """Translations of a test set with their reference, line by line."""

    path: Path
    lines: list[str]
    reference: list[str]


def check_bootstrap(samples: int, seed: int) -> None:
    """OptionError for what sacrebleu would take for something else (0: "not given"), or has no memory for."""
    if not 1 <= samples <= MOST_SAMPLES:
        raise OptionError(f"--samples {samples}: must be at least 1 and at most {MOST_SAMPLES:,}")
    if seed < 1:
        raise OptionError(f"--seed {seed}: must be at least 1")


def read_texts(run: Run, reference: Path | None = None) -> Texts | None:
    """Translations and reference of a run, None without translations. reference: used where the run keeps none.

    Raises DataError for a missing reference, for files of different length, and for a reference that was named but
    does not give the BLEU that the run has.
    """
    path, kept = run.texts()
    if path is None:
        return None
    other = kept or reference
    if other is None:
        raise DataError(
            f"{run.name}: keeps no reference of its translations (test.reference.text; runs of earlier versions do "
            "not); name the file with --reference, or translate again"
        )
    lines, expected = _lines(path), _lines(other)
    if len(lines) != len(expected):
        raise DataError(
            f"{path} has {counted(len(lines), 'line')}, but the reference {other} {len(expected):,}; translate the "
            "test set again, or name the right file with --reference"
        )
    texts = Texts(path, lines, expected)
    if kept is None:
        _check_named(run, texts, other)
    return texts


def _check_named(run: Run, texts: Texts, reference: Path) -> None:
    """A file of equal length may be that of another language or another test set."""
    recorded = (run.record.get("scores") or {}).get("bleu")
    if not isinstance(recorded, dict) or recorded.get("score") is None:
        return
    bleu = metrics_of(run)["bleu"].corpus_score(texts.lines, [texts.reference]).score
    if abs(bleu - recorded["score"]) > ROUNDING:
        raise DataError(
            f"--reference {reference}: gives {run.name} BLEU {bleu:.1f}, but its record has {recorded['score']:.1f}; "
            "name the reference that these translations were scored with, or compare runs of one test set at a time"
        )


def _lines(path: Path) -> list[str]:
    return [line for _, line in read_lines(path, DataError, newline=None)] or [""]


def scores_of(run: Run, texts: Texts) -> dict[str, dict[str, Any]]:
    """DEFAULT_SCORES that the run's record lacks, from its translations; counted as the scores that it has."""
    missing = [name for name in DEFAULT_SCORES if signature(run, name) is None]
    scores = {}
    for name, metric in metrics_of(run).items():
        if name in missing:
            score = metric.corpus_score(texts.lines, [texts.reference])
            scores[name] = {"score": score.score, "signature": str(metric.get_signature()), "details": str(score)}
    return scores


def recounted(run: Run, texts: Texts) -> float | None:
    """BLEU of the translations; None where the run has none to compare with, or one that was counted differently."""
    recorded = (run.record.get("scores") or {}).get("bleu") or {}
    if recorded.get("score") is None or recorded.get("signature") is None:
        return None
    metric = metrics_of(run)["bleu"]
    score = metric.corpus_score(texts.lines, [texts.reference]).score
    same = _without_version(str(metric.get_signature())) == _without_version(recorded["signature"])
    return score if same else None


def _without_version(text: str) -> str:
    return re.sub(r"\|version:[^|]*", "", text)


def paired_tests(
    baseline: Row, others: Sequence[Row], texts: dict[str, Texts], samples: int, seed: int
) -> Iterator[list[SeedTest]]:
    """Every other row against the baseline: for each of its runs those with the same seed, if both have translations.

    texts: by the names of the runs. samples: of sentences, with replacement. seed: of their choice. Raises DataError if
    two runs were translated from different test sets.
    """
    for run in _one_a_seed(baseline):
        systems = [(row.name, other) for row in others for other in _one_a_seed(row) if other.seed == run.seed]
        systems = [(name, other) for name, other in systems if other.name in texts]
        yield _tests_of_seed(run, systems, texts, samples, seed) if run.name in texts and systems else []


def _one_a_seed(row: Row) -> list[Run]:
    """The table's warnings say where a seed has several runs; none of them is taken by accident."""
    seeds = [run.seed for run in row.runs]
    return [run for run in row.runs if seeds.count(run.seed) == 1]


def _tests_of_seed(
    run: Run, systems: Sequence[tuple[str, Run]], texts: dict[str, Texts], samples: int, seed: int
) -> list[SeedTest]:
    from sacrebleu.significance import PairedTest

    base = texts[run.name]
    for _, other in systems:
        if texts[other.name].reference != base.reference:
            raise DataError(
                f"{base.path} and {texts[other.name].path} were scored with different references; compare "
                "translations of one test set only"
            )
    metrics = metrics_of(run, _recorded([run, *(other for _, other in systems)]))
    named: list[tuple[str, Sequence[str]]] = [
        (run.name, base.lines),
        *((other.name, texts[other.name].lines) for _, other in systems),
    ]
    results: Any  # title -> a Result per system, of which all but the first have p and an interval
    try:
        with _sacrebleu_seed(seed):
            signatures, results = PairedTest(named, metrics, [base.reference], test_type="bs", n_samples=samples)()
    except MemoryError:
        lines = counted(len(base.lines), "sentence")
        raise OptionError(f"--samples {samples}: too many for the memory, with {lines} each; give fewer") from None
    titles = [title for title in results if title != "System"]  # sacrebleu's: BLEU, chrF2; in the order of `metrics`
    tests = []
    for at, (row, _) in enumerate(systems, 1):
        scores = [
            PairedScore(
                name,
                results[title][0].score,
                results[title][at].score,
                _p(results[title][0], results[title][at], samples),
                float(results[title][at].ci),
                str(signatures[title]),
            )
            for name, title in zip(metrics, titles)
        ]
        tests.append(SeedTest(row, run.seed, tuple(scores)))
    return tests


def _p(baseline: Result, system: Result, samples: int) -> float:
    """sacrebleu's p, but 1 where no sample differs more than another.

    With d a sample's absolute difference and D that of the whole test set, sacrebleu counts the samples with
    d - mean(d) > D, and p = (count + 1) / (samples + 1). With D = 0 a count of 0 means that all d are equal: those of
    translations with the same scores are all 0, and "as large as D", which is what p is about, holds for all of them.
    """
    assert system.p_value is not None  # the baseline's is
    none_larger = system.p_value * (samples + 1) < 1.5
    return 1.0 if system.score == baseline.score and none_larger else system.p_value


def _recorded(runs: Sequence[Run]) -> list[str]:
    """DEFAULT_SCORES, and what else all runs have counted on text."""
    return [name for name in TEXT_SCORES if name in DEFAULT_SCORES or all(signature(run, name) for run in runs)]


def metrics_of(run: Run, names: Sequence[str] = DEFAULT_SCORES) -> dict[str, Metric]:
    """Scores on text with the case and the tokeniser of the run's own BLEU, and its language."""
    text = signature(run, "bleu") or ""
    tokenize = re.search(r"\btok:((?:ja|ko)-mecab|[\w.-]+)", text)  # MeCab's version follows its name
    language = str((run.record.get("scores") or {}).get("lang") or "")
    lowercase = "case:lc" in text
    tokenizer = tokenize.group(1) if tokenize else None
    try:
        return {name: SCORES[name].metric(lowercase, language, tokenizer) for name in names}
    except (KeyError, RuntimeError) as error:  # sacrebleu's, of a tokeniser it has not
        reason = "no such tokeniser" if isinstance(error, KeyError) else error
        raise DataError(f"{run.name}: its BLEU has the signature {text}, but sacrebleu says: {reason}") from error


@contextlib.contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """sacrebleu takes it from the environment only."""
    name = "SACREBLEU_SEED"
    before = os.environ.get(name)
    os.environ[name] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
