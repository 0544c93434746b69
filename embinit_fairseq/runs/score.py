"""`embinit score`: translations against a reference, by sacrebleu, with signatures.

In five steps: read the translations in the order of the text; put tokens back together; read the reference; count; keep
scores and texts in the folder of the run, where `embinit compare` finds them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq import bounded
from embinit_fairseq.errors import DataError, OptionError, counted
from embinit_fairseq.files import check_is_file, sha256, write_json, write_text
from embinit_fairseq.runs.logs import CONFIGURATION, option_in, read_log
from embinit_fairseq.runs.metrics import DEFAULT_SCORES, FIGURES, SCORES
from embinit_fairseq.runs.record import LOG, RESULT, TRAINING, read_record, result_of, write_record
from embinit_fairseq.runs.tokens import UNKNOWN, detokenizer, known_language, moses_tokenizer, pieces_left, words_of
from embinit_fairseq.vocab.tokens import unescape

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

#: what stands for an unknown word in text, as sentencepiece writes it: sacrebleu's tokeniser would take the three parts
#: of <unk> for three words
UNKNOWN_WORD = "\N{DOUBLE QUESTION MARK}"
#: of fairseq-generate in the folder of a run: what one redirects, what --results-path writes, what our scripts write
_LOGS = ("{subset}.generate.log", "generate-{subset}.txt", "{subset}/generate.log")
_LINE = re.compile(r"([HDT])-(\d{1,20})\t\S+\t(.*)$")
_TARGET = re.compile(r"T-(\d{1,20})\t(.*)$")
#: between the words and pieces of a line: what tokenisers part or add
_NO_LETTERS = re.compile(r"@@ |[\W_]+")
_SUMMARY = re.compile(r"Generate \S+ with beam=(\d+):")
#: how packed text begins -> what unpacks it
_PACKED = {b"\x1f\x8b": "gunzip", b"\xfd7zXZ": "unxz", b"BZh": "bunzip2"}
_SET = re.compile(r".* \| \S+ \S+ [^\s-]+-([^\s-]+) \d+ examples$")
_BOOTSTRAP = 1000
_ENOUGH, _SAME = 20, 0.05  # targets in a log, and the share of them that must be lines of the reference
_TOKENIZED = 100  # lines that end in a period by itself, by which sacrebleu doubts, too
#: characters of Thai, Lao, Tibetan, Burmese, Khmer, Japanese and Chinese
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_OF_INTERVAL = re.compile(r"\|bs:\d+\|seed:\d+")


@dataclass(frozen=True)
class ScoreRequest:
    """What to score, and how.

    place: a run's folder, output of fairseq-generate, or plain text. reference: plain text; tokens if `of_tokens`.
    token_reference: the same in tokens, for a second BLEU. steps: see `tokens`. lang: of the reference. tokenize: of
    sacrebleu. confidence: with 95 % intervals.
    """

    place: Path
    reference: Path
    of_tokens: bool = False
    token_reference: Path | None = None
    source: Path | None = None
    subset: str = "test"
    metrics: Sequence[str] = DEFAULT_SCORES
    steps: Sequence[str] = ()
    lang: str | None = None
    lowercase: bool = False
    tokenize: str | None = None
    confidence: bool = False


@dataclass(frozen=True)
class Translations:
    """tokens: as the model made them. decoded: what fairseq-generate has made of them, None for plain text.
    configuration: of fairseq-generate, as printed. found_target: the target language that it took from its data.
    targets: sentence -> its reference in tokens, of fairseq-generate."""

    path: Path
    tokens: list[str]
    decoded: list[str] | None = None
    configuration: str = ""
    found_target: str | None = None
    targets: Mapping[int, str] = field(default_factory=dict)

    @property
    def target_lang(self) -> str | None:
        """As it was told, or as it found out itself."""
        return self.option("target_lang") or self.found_target

    def option(self, name: str) -> str | None:
        """Of fairseq-generate, as text."""
        value = option_in(self.configuration, name)
        return None if value == "None" else value

    def settings(self) -> dict[str, Any]:
        """What is recorded beside scores: {"beam": ..., "lenpen": ..., "checkpoint": ...}, as far as it is known."""
        beam, penalty = self._number("beam", "[0-9]{1,9}"), self._number("lenpen", r"[-+0-9.e]{1,40}")
        options = {"beam": None if beam is None else int(beam), "lenpen": penalty, "checkpoint": self.option("path")}
        return {key: value for key, value in options.items() if value is not None}

    def _number(self, name: str, form: str) -> float | None:
        """An option of fairseq-generate that is a number; DataError for something else, in a damaged log."""
        text = self.option(name)
        if text is None:
            return None
        with contextlib.suppress(ValueError):
            if re.fullmatch(form, text):
                return float(text)
        raise DataError(f"{self.path}: --{name} {text:.40}: not what fairseq-generate prints; translate again")


@dataclass(frozen=True)
class Scored:
    """scores: name -> {"score", "signature", "details"}, and what is recorded beside them. text, reference: what the
    scores on text are about; without them None. notes: what a reader should know. files: that were written."""

    scores: dict[str, Any]
    tokens: list[str]
    text: list[str]
    reference: list[str] | None
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()


def score(request: ScoreRequest) -> Scored:
    """All of it. DataError, before anything is written, for files that are missing or do not belong together."""
    _check(request)
    is_run = request.place.is_dir()
    translated = read_translations(translations_in(request.place, request.subset) if is_run else request.place)
    if is_run:
        check_dictionaries(request.place, translated)
    lang = _language(request, translated)
    expected = f"translations in {translated.path}", len(translated.tokens)
    source = None if request.source is None else read_lines(request.source, *expected, "the text that was translated")
    scored = _scored(request, translated, lang, expected)
    if not is_run:
        return scored
    return keep(request.place, request.subset, scored, source)


def _check(request: ScoreRequest) -> None:
    for name in request.metrics:
        if name not in SCORES or SCORES[name].of_tokens:
            known = ", ".join(name for name, score in SCORES.items() if not score.of_tokens)
            raise OptionError(f"--metrics {name}: not known; choose from {known}")
    if not request.place.exists():
        raise DataError(f"{request.place}: no such folder or file; name a run, or translations")


def _language(request: ScoreRequest, translated: Translations) -> str | None:
    """Return the language of the reference; None if the log names no known one. OptionError for an unknown --lang."""
    if request.lang is not None:
        return known_language(request.lang)
    with contextlib.suppress(OptionError):
        return known_language(translated.target_lang or "")
    return None


def _scored(request: ScoreRequest, translated: Translations, lang: str | None, expected: tuple[str, int]) -> Scored:
    scores: dict[str, Any] = {}
    decode = detokenizer(request.steps, lang)
    as_is = translated.tokens if request.steps or translated.decoded is None else translated.decoded
    text = [decode(line).replace(UNKNOWN, UNKNOWN_WORD) for line in as_is]
    reference, doubts = None, []
    if not request.of_tokens:
        reference = read_lines(request.reference, *expected)
        doubts = [
            *_of_another_text(translated, reference, request.reference),
            *_doubts_of_language(request, translated, lang, "".join(reference)),
        ]
        for name in request.metrics:
            metric = _metric(name, request, lang)
            scores[name] = counted_score(metric, text, reference, request.confidence)
    token_file = request.reference if request.of_tokens else request.token_reference
    if token_file is not None:
        words = _words(request.steps, lang, translated.tokens, text)
        tokens = [unescape(line) for line in read_lines(token_file, *expected)]
        metric = SCORES["bleu_tokenized"].metric(lowercase=request.lowercase)
        scores["bleu_tokenized"] = counted_score(metric, words, tokens, request.confidence)
    scores.update(translated.settings(), sentences=len(text))
    if lang is not None:
        scores["lang"] = lang
    notes = (*_unknown(translated), *_replaced(translated), *_doubts(text, request), *doubts)
    return Scored(scores, translated.tokens, text, reference, notes)


def _unknown(translated: Translations) -> list[str]:
    """What cannot be checked or recorded without the configuration of fairseq-generate."""
    if translated.decoded is None or translated.option("data") is not None:
        return []
    return [
        f"{translated.path} does not say with which checkpoint and dictionaries it was made, so that they could not be "
        "checked: fairseq-generate prints them to standard error; keep it, too (> LOG 2>&1)"
    ]


def _replaced(translated: Translations) -> list[str]:
    """A checkpoint that has been written since: the training has gone on."""
    checkpoint = Path(translated.option("path") or "")
    if not checkpoint.is_file() or checkpoint.stat().st_mtime < translated.path.stat().st_mtime + 1:
        return []
    return [
        f"{translated.path} is older than {checkpoint}, with which it was made: these are scores of an earlier state; "
        "translate again"
    ]


def _of_another_text(translated: Translations, reference: Sequence[str], path: Path) -> list[str]:
    """By the letters of the targets that fairseq-generate prints; it has some of them as unknown words, or in bytes."""
    targets = {n: letters for n, line in translated.targets.items() if (letters := _letters(line))}
    same = sum(n < len(reference) and letters == _letters(reference[n]) for n, letters in targets.items())
    if len(targets) < _ENOUGH or same >= _SAME * len(targets):
        return []
    return [
        f"{same} of {len(targets):,} targets in {translated.path} (its lines T-) are lines of {path}: check that it "
        "is the reference of these translations"
    ]


def _letters(line: str) -> str:
    return _NO_LETTERS.sub("", line).casefold()


def _doubts_of_language(
    request: ScoreRequest, translated: Translations, lang: str | None, reference: str
) -> Iterator[str]:
    """What a reader should know where BLEU is counted by other rules than those of the language."""
    from fairseq_compat.languages import has_spaces, missing_tokenizer

    if request.tokenize is not None:
        return
    if lang is None and translated.target_lang:
        yield (
            f"{translated.path} names the target language {translated.target_lang}, which is no known code: BLEU is "
            "counted by 13a; give --lang, such as --lang de"
        )
    if has_spaces(lang or "") and len(_UNSPACED.findall(reference)) > len(reference) / 2:
        yield (
            f"{request.reference} is in a script without spaces between words, but BLEU and TER are counted by the "
            f"rules of {lang or 'languages with spaces'}; give --lang, such as --lang zh"
        )
    if (missing := missing_tokenizer(lang or "")) is not None:
        yield missing


def _metric(name: str, request: ScoreRequest, lang: str | None) -> Metric:
    try:
        return SCORES[name].metric(request.lowercase, lang or "", request.tokenize)
    except OSError as error:  # of urllib
        raise OptionError(
            f"--tokenize {request.tokenize}: sacrebleu downloads its model once, and could not ({error}); connect to "
            "the network, copy ~/.sacrebleu from a machine that has it, or choose another --tokenize"
        ) from error
    except (KeyError, RuntimeError, ImportError) as error:  # sacrebleu's, of a tokeniser that it has not
        raise OptionError(
            f"--tokenize {request.tokenize}: sacrebleu has no such tokeniser here ({error}); see sacrebleu --help"
        ) from error


def counted_score(
    metric: Metric, translations: Sequence[str], reference: Sequence[str], confidence: bool = False
) -> dict[str, Any]:
    """What is recorded of a score. interval_95: half of it, by bootstrap over sentences; None if sacrebleu has none."""
    result = metric.corpus_score(translations, [reference], n_bootstrap=_BOOTSTRAP if confidence else 1)
    signature = str(metric.get_signature())
    plain = _OF_INTERVAL.sub("", signature)  # the score itself is the same without an interval
    record = {"score": result.score, "signature": plain, "details": str(result)}
    if confidence:
        record["interval_95"] = json.loads(result.format(signature=signature, is_json=True)).get("confidence_var")
    return record


def _words(steps: Sequence[str], lang: str | None, tokens: Sequence[str], text: Sequence[str]) -> list[str]:
    """The translations in Moses' words, which the tokens of a reference are."""
    from_tokens = words_of(steps, lang)
    if from_tokens is not None:
        return list(map(from_tokens, tokens))
    return list(map(moses_tokenizer(lang), text))


def _doubts(text: Sequence[str], request: ScoreRequest) -> list[str]:
    pieces = pieces_left(text)
    if pieces is not None:
        number, step = pieces
        return [f"{counted(number, 'translation')} of {len(text):,} still in pieces: add --detokenize {step}"]
    if not request.of_tokens and sum(line.endswith(" .") for line in text) >= _TOKENIZED:
        return ["translations end in a tokenised period ( .): if the reference is plain text, add --detokenize moses"]
    return []


# ---- reading --------------------------------------------------------------------------------------------------------


def translations_in(run: Path, subset: str) -> Path:
    """What fairseq-generate has printed, in the folder of a run. DataError, with the command that makes it, if not."""
    names = [name.format(subset=subset) for name in _LOGS]
    for name in names:
        if (run / name).is_file():
            return run / name
    raise DataError(
        f"{run}: no translations in it (none of {', '.join(names)}); make them: fairseq-generate DATA --user-dir "
        f"embinit_fairseq --gen-subset {subset} --path {run}/checkpoints/checkpoint_best.pt ... > {run / names[0]}"
    )


def read_translations(path: Path) -> Translations:
    """Output of fairseq-generate, or plain text, a translation a line.

    fairseq-generate sorts by length: here they are in the order of the text. Of several for a sentence the first, which
    is the best, counts.
    """
    lines = _lines(path)
    best: dict[str, dict[int, str]] = {"H": {}, "D": {}}
    configuration = summary = ""
    target, targets = None, {}
    for line in lines:
        if match := _LINE.match(line):
            best[match.group(1)].setdefault(int(match.group(2)), match.group(3))
        elif not configuration and CONFIGURATION in line:
            configuration = line[line.index(CONFIGURATION) :]
        elif match := _SUMMARY.match(line):
            summary = f"beam={match.group(1)},"
        elif match := _SET.match(line):
            target = match.group(1)
        elif match := _TARGET.match(line):
            targets[int(match.group(1))] = match.group(2)
    configuration = configuration or summary  # which goes to standard error, and may be lost
    tokens, decoded = best["H"], best["D"]
    if not tokens and not configuration:
        return Translations(path, lines)
    number = max(tokens, default=-1) + 1 - len(tokens)
    if number > 0:
        first = next(at for at in itertools.count() if at not in tokens)
        raise DataError(
            f"{path}: not all translations are in it ({counted(number, 'sentence')} missing, the first is number "
            f"{first}); run fairseq-generate again"
        )
    if not tokens:
        raise DataError(
            f"{path}: no translation in it; it ends: {lines[-1].strip() or 'with an empty line'}; mend that (a model "
            "of this plugin needs --user-dir), and run fairseq-generate again"
        )
    order = range(len(tokens))
    shown = [decoded[n] for n in order] if len(decoded) == len(tokens) else None
    return Translations(path, [tokens[n] for n in order], shown, configuration, target, targets)


def read_lines(path: Path, what: str, expected: int, meant: str = "their reference") -> list[str]:
    """A text with as many lines as something else has. DataError, with both numbers, if it has not.

    meant: what it should be.
    """
    lines = _lines(path)
    if len(lines) != expected:
        raise DataError(
            f"{path} has {counted(len(lines), 'line')}, but there are {expected:,} {what}; name {meant}, or "
            "translate again"
        )
    return lines


def _lines(path: Path) -> list[str]:
    """Only a line feed ends a line: other separators (U+2028, a lone CR) must not add any."""
    check_is_file(str(path), missing="name a file with a sentence a line")
    with path.open("rb") as file:
        head = file.read(10)
    for mark, program in _PACKED.items():
        if head.startswith(mark) and not head.isascii():
            raise DataError(f"{path}: packed; unpack it ({program} --keep FILE) and name what comes out of it")
    lines = [line.removesuffix("\r") for _, line in bounded.read_lines(path, DataError)]
    if not lines:
        raise DataError(f"{path}: empty; write it again")
    return [lines[0].removeprefix("\ufeff"), *lines[1:]]  # a mark of some editors, which is no text


def check_dictionaries(run: Path, translated: Translations) -> None:
    """DataError if fairseq-generate has read other dictionaries than the training, whose symbols mean other words.

    A dictionary of the same length, but of other text, gives no error of fairseq's, only a wrong BLEU.
    """
    data, file = translated.option("data"), run / TRAINING
    if data is None or not file.is_file():
        return
    for name, value in (read_record(file).get("data") or {}).items():
        path = Path(data) / name
        if name.startswith("dict.") and path.is_file() and sha256(path) != value:
            raise DataError(
                f"{translated.path}: translated with {path}, which is not the dictionary that {run} was trained with; "
                "translate again with the data of the training"
            )


# ---- keeping --------------------------------------------------------------------------------------------------------


def keep(run: Path, subset: str, scored: Scored, source: Sequence[str] | None) -> Scored:
    """Write the texts and <subset>.scores.json beside the translations; scores of the test set to result.json, too.

    What was kept of the same translations and reference stays: their other scores, and texts that were not given again.
    """
    texts = {"hypothesis.tokens": scored.tokens, "hypothesis.text": scored.text, "reference.text": scored.reference}
    given = {run / f"{subset}.{name}": _text(lines) for name, lines in texts.items() if lines is not None}
    same = all(file.is_file() and file.read_text(encoding="utf-8") == text for file, text in given.items())
    if source is not None:
        given[run / f"{subset}.source.text"] = _text(source)
    record = _result(run) if subset == "test" else None  # read before anything is written
    for file, text in given.items():
        write_text(file, text)
    if not same:
        for name in (*texts, "source.text"):
            if run / f"{subset}.{name}" not in given:
                (run / f"{subset}.{name}").unlink(missing_ok=True)
    place, notes = run / f"{subset}.scores.json", list(scored.notes)
    scores = {**(_kept_scores(place) if same else {}), **scored.scores}
    write_json(place, scores)
    files = [*given, place]
    if subset == "test":
        if record is None:
            notes.append(f"the training in {run} has not come to its end: its {RESULT} is still to be written")
        else:
            write_record(run / RESULT, {**record, "scores": _joined(record.get("scores") or {}, scores)})
            files.append(run / RESULT)
    return Scored(scored.scores, scored.tokens, scored.text, scored.reference, tuple(notes), tuple(files))


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _kept_scores(file: Path) -> dict[str, Any]:
    found = bounded.read_json(file, DataError, remedy="remove it and score again") if file.is_file() else {}
    return found if isinstance(found, dict) else {}


def _result(run: Path) -> dict[str, Any] | None:
    """result.json, written now if the training has ended without; None if it has not, or if this is no run of ours."""
    if (run / RESULT).is_file():
        return read_record(run / RESULT)
    if (run / TRAINING).is_file() and (run / LOG).is_file() and (log := read_log(run / LOG)).finished:
        return result_of(read_record(run / TRAINING), run, log, {})
    return None


def _joined(before: Mapping[str, Any], scores: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing of earlier translations stays; what is not about translations does."""
    kept = {name.partition("/")[0] for name in FIGURES}
    other = {name: value for name, value in before.items() if name in kept}
    return {**scores, **other}
