"""Score translations against references by sacrebleu, with signatures (`embinit score`).

Five steps: read the translations in the order of the text, join their tokens, read the references, compute the scores,
and write scores and texts to the folder of the run, where `embinit compare` reads them. Doubts about a score are notes
next to it, also in the record.
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import OptionError, counted
from embinit_fairseq.io import read_json, write_json, write_text
from embinit_fairseq.runs.detokenizers import Step, detokenizer, known_language, moses_tokenizer
from embinit_fairseq.runs.metrics import DEFAULT_SCORES, FIGURES, SCORES, computed
from embinit_fairseq.runs.record import RESULT, TRAINING, last_start, read_record, reference_files
from embinit_fairseq.runs.translations import (
    Translations,
    check_dictionaries,
    is_glued,
    read_lines,
    read_translations,
    translations_in,
)
from embinit_fairseq.runs.undo_preparation import Undo, recorded_undo
from embinit_fairseq.vocab.cleaning import SPACELESS, UNKNOWN
from embinit_fairseq.vocab.subword_styles import unescape
from embinit_fairseq.vocab.text_checks import pieces_left

#: an unknown word in text, as sentencepiece writes it: sacrebleu's tokeniser would separate <unk> into three words
UNKNOWN_WORD = "\N{DOUBLE QUESTION MARK}"
#: number of translations ending in a separate period from which text looks tokenised, as for sacrebleu
_TOKENIZED = 100
_SPACELESS = re.compile(f"[{SPACELESS}]")
#: an unknown word in the sources and references that fairseq-generate prints
_PRINTED_UNKNOWN = re.compile("<*<unk>>*")
#: smallest share of lines that text and log must have in common; the normalisation of a text changes fewer
_LEAST_COMMON = 0.5
#: BLEU of the log's own references from which a reference is the same text. Measured on Multi30k, with and without
#: normalisation of the log's text: 99.7 and more; lower-cased or in subwords: less than 90.
_LEAST_BLEU = 95.0
#: relative difference of the numbers of words from which a text is joined in another way; a text has 10 to 15 % more
#: Moses tokens than words
_MOST_WORDS = 0.04
#: ends of sentences, which translations without an end lack
_STOPS = frozenset(".!?\u3002\uff01\uff1f\u0964\u061f")
#: place in a line -> its first or last word or sign; a mark that was left in is in all lines
_ENDS = {"begin": re.compile(r"\s*(\w+|[^\w\s])"), "end": re.compile(r".*?(\w+|[^\w\s])\s*$")}
#: number of lines from which that is no chance; share of the lines that have it, and at most of the other text's
_NO_CHANCE, _MARKED, _MOST_MARKED = 10, 0.9, 0.1
#: characters in a note
_SHOWN = 8
#: checkpoints that a training replaces
_REPLACED = frozenset(["checkpoint_best.pt", "checkpoint_last.pt"])
#: key in the scores -> option of fairseq-generate, type
_SETTINGS = {"beam": ("beam", int), "lenpen": ("lenpen", float), "checkpoint": ("path", str)}


@dataclass(frozen=True)
class ScoreRequest:
    """Hold the options of `embinit score`.

    Attributes:
        place: folder of a run, output of fairseq-generate, or plain text.
        refs: references as plain text, or as tokens if `tokenized` is "".
        src: the text that was translated, to be copied to the run.
        subset: name of the translated subset.
        metrics: names of SCORES.
        detokenize: steps that join tokens, see `detokenizers`; empty: the steps of `preparation.json`; None: the
            tokens as fairseq-generate has joined them or, if it has not, as for empty if there is a record.
        lang: language of the references; None: as in the log.
        tokenized: the reference in tokens, for BLEU on tokens in addition; "": BLEU on tokens only, by `refs`.
        lowercase: ignore upper and lower case.
        tokenize: tokeniser of sacrebleu for BLEU; None: the language's.
        confidence: add 95 % intervals.
    """

    place: str
    refs: Sequence[str]
    src: str | None = None
    subset: str = "test"
    metrics: Sequence[str] | None = None
    detokenize: Sequence[str] | None = None
    lang: str | None = None
    tokenized: str | None = None
    lowercase: bool = False
    tokenize: str | None = None
    confidence: bool = False


@dataclass(frozen=True)
class Texts:
    """Hold translations as text, with their references.

    Attributes:
        translated: the translations as they were read.
        lang: language of the references; "" if it is unknown.
        decode: function that joins a line of tokens.
        text: the translations.
        references: texts with as many lines.
        notes: doubts about the translations and the references, for the reader of a score.
        undo: the recorded preparation, if tokens are joined by it.
    """

    translated: Translations
    lang: str
    decode: Step
    text: list[str]
    references: list[list[str]]
    notes: tuple[str, ...] = ()
    undo: Undo | None = None


@dataclass(frozen=True)
class Scored:
    """Hold the result: scores as they are recorded, notes for the reader, files written."""

    scores: dict[str, Any]
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()


def score(request: ScoreRequest) -> Scored:
    """Score translations; in the folder of a run also write texts and scores.

    Raises:
        DataError: a file is missing, or files do not belong together. Nothing is written then.
        OptionError: an option is wrong.
    """
    texts = read_texts(request)
    translated, text, references = texts.translated, texts.text, texts.references
    lines = f"translations in {translated.path}", len(text)
    source = read_lines(Path(request.src), *lines, "the text that was translated") if request.src else None
    if source is not None:
        texts = replace(texts, notes=(*texts.notes, *_source_notes(request, texts, source)))

    scores: dict[str, Any] = {}
    if references:
        for name in request.metrics or DEFAULT_SCORES:
            metric = SCORES[name].metric(request.lowercase, texts.lang, request.tokenize)
            scores[name] = computed(metric, text, references, request.confidence)
    if request.tokenized is not None:
        files = [request.tokenized] if request.tokenized else request.refs
        tokens = [list(map(unescape, read_lines(Path(file), *lines))) for file in files]
        metric = SCORES["bleu_tokenized"].metric(lowercase=request.lowercase)
        scores["bleu_tokenized"] = computed(metric, _words(request, texts), tokens, request.confidence)
    for key, (option, kind) in _SETTINGS.items():
        if (value := translated.option(option)) is not None:
            scores[key] = kind(value)
    scores |= {"sentences": len(text), "lang": texts.lang, "search": translated.search(), "notes": list(texts.notes)}
    scores["preparation"] = texts.undo.steps if texts.undo is not None else ""
    scores = {key: value for key, value in scores.items() if value not in ("", [])}

    notes = (*texts.notes, *_language_notes(request, texts))
    place = Path(request.place)
    if not place.is_dir():
        return Scored(scores, notes)
    written = {"hypothesis.tokens": translated.tokens, "hypothesis.text": text, "source.text": source}
    return write_scores(place, request.subset, Scored(scores, notes), written, references)


def read_texts(request: ScoreRequest) -> Texts:
    """Read translations and references, join the tokens of the translations, and look for doubts.

    Raises:
        DataError: a file is missing, or files do not belong together.
        OptionError: an option is wrong.
    """
    place = Path(request.place)
    translated = read_translations(translations_in(place, request.subset) if place.is_dir() else [place])
    if place.is_dir():
        check_dictionaries(place, translated)
    lang = "" if request.lang is None else known_language(request.lang)
    if not lang:
        with contextlib.suppress(OptionError):  # an unknown language in a log is noted
            lang = known_language(translated.target_lang or "")
    steps, undo = request.detokenize or (), None
    if not steps and (request.detokenize is not None or not translated.is_joined):
        undo = recorded_undo(place, translated, must_exist=request.detokenize is not None)
    decode = detokenizer(steps, lang or None) if undo is None else undo.text
    as_is = translated.tokens if steps or undo or translated.decoded is None else translated.decoded
    text = [decode(line).replace(UNKNOWN, UNKNOWN_WORD) for line in as_is]
    expected = f"translations in {translated.path}", len(text)
    references = [] if request.tokenized == "" else [read_lines(Path(path), *expected) for path in request.refs]
    texts = Texts(translated, lang, decode, text, references, undo=undo)
    return replace(texts, notes=(*_translation_notes(request, texts), *_reference_notes(request, texts)))


def _words(request: ScoreRequest, texts: Texts) -> list[str]:
    """Return the translations in Moses' words."""
    steps, undo = request.detokenize or (), texts.undo
    if undo is not None and undo.is_of_moses:
        return [unescape(undo.words(line)) for line in texts.translated.tokens]
    if undo is not None or (steps and steps[-1] != "moses"):
        return list(map(moses_tokenizer(texts.lang or None), texts.text))
    join_subwords = detokenizer(steps[:-1], texts.lang or None)
    return [unescape(join_subwords(line)) for line in texts.translated.tokens]


# ---- Notes ----------------------------------------------------------------------------------------------------------


def _translation_notes(request: ScoreRequest, texts: Texts) -> Iterator[str]:
    """Yield a note if the translations are another run's, of an unusual search, or still segmented."""
    translated, text, place = texts.translated, texts.text, Path(request.place)
    checkpoint = Path(translated.option("path") or "")
    if place.is_dir() and checkpoint.is_file() and place.resolve() not in checkpoint.resolve().parents:
        yield f"{translated.path} is of {checkpoint}, which is not in {place}: are these its translations?"
    elif checkpoint.name in _REPLACED and "" < translated.ended < (now := last_start(place)):
        yield (
            f"{translated.path} is of {translated.ended}, and the training has continued at {now}: is it of this "
            f"{checkpoint.name}? If not, translate again"
        )
    if search := translated.search():
        yield f"translated with {search}: name this next to the score"
    if translated.option("prefix_size") == "1":
        yield "--prefix-size 1: translations begin with the reference's first token, which is right for a language tag"
    if not translated.is_text and not translated.configuration:
        yield (
            f"{translated.path} does not name its options: it may be of sampling or of --prefix-size; give the whole "
            "output of fairseq-generate (> FILE 2>&1, without --results-path)"
        )
    if translated.is_text and text in texts.references:
        yield "each translation is its reference: are these two names of one text?"
    if (left := pieces_left(text)) is not None:
        yield f"{counted(left[0], 'translation')} of {len(text):,} in subwords: add --detokenize {left[1]}"
    elif texts.references and sum(line.endswith(" .") for line in text) >= _TOKENIZED and not translated.targets:
        yield "translations end in a separate period ( .): if the reference is text, add --detokenize moses"
    for name, reference in zip(request.refs, texts.references):
        yield from _form_notes(name, reference, text)
        yield from _mark_notes("translations", text, "references", reference)
        yield from _mark_notes(f"lines of {name}", reference, "translations", text)


def _form_notes(name: str, reference: Sequence[str], text: Sequence[str]) -> Iterator[str]:
    """Yield a note if the reference and the translations are in different normal forms of Unicode."""
    counts = [sum(not unicodedata.is_normalized("NFC", line) for line in lines) for lines in (reference, text)]
    if max(counts) >= _NO_CHANCE * max(1, min(counts)):
        yield (
            f"{counts[0]:,} lines of {name} and {counts[1]:,} translations are not in Unicode's form NFC, so that the "
            'same letters with accents differ; convert that text: python -c "import sys, unicodedata; '
            "[print(unicodedata.normalize('NFC', s), end='') for s in sys.stdin]\" < FILE > NEW"
        )


def _mark_notes(name: str, lines: Sequence[str], others: str, expected: Sequence[str]) -> Iterator[str]:
    """Yield a note if nearly all lines begin or end with a mark such as a language or </s>, unlike the other text."""
    filled = [line for line in lines if line.strip()]
    if len(filled) < _NO_CHANCE:
        return
    for verb, end in _ENDS.items():
        signs, other = ([match[1] for line in part if (match := end.match(line))] for part in (filled, expected))
        sign, number = Counter(signs).most_common(1)[0]
        is_common = number >= _MARKED * len(filled) and other.count(sign) <= _MOST_MARKED * len(expected)
        if is_common and sign not in _STOPS:
            shown = filled[0].strip()[slice(20) if verb == "begin" else slice(-20, None)]
            yield (
                f"{number:,} of {len(filled):,} {name} {verb} with {sign!r} (as {shown!r}), and "
                f"{other.count(sign):,} {others}: if it is a mark (a language, </s>, <pad>), remove it"
            )


def _reference_notes(request: ScoreRequest, texts: Texts) -> Iterator[str]:
    """Yield a note if no reference is the log's: other sentences, or the same in tokens, subwords or another case."""
    from fairseq_compat.languages import has_spaces

    targets = texts.translated.targets
    if not targets or not texts.references:
        return
    common = [_common(texts, targets, reference) for reference in texts.references]
    number, shared = max(enumerate(common), key=lambda item: len(item[1]))
    name, reference, log = request.refs[number], texts.references[number], texts.translated.path
    if len(shared) < _LEAST_COMMON * len(targets):
        yield (
            f"{name} is not the reference of {log}: {len(targets) - len(shared):,} of {len(targets):,} lines differ "
            "from its T- lines; name the reference of the translated sentences"
        )
        return
    advice = {"--detokenize for tokens": request.detokenize, "--lowercase for lower-cased text": request.lowercase}
    added = ", ".join(option for option, is_given in advice.items() if not is_given)
    join: Step = str if texts.translated.is_joined else texts.decode  # as the translations are joined
    complete_lines = [at for at in targets if at not in shared or not _PRINTED_UNKNOWN.search(targets[at])]
    own, expected = [join(targets[at]) for at in complete_lines], [reference[at] for at in complete_lines]
    metric = SCORES["bleu"].metric(request.lowercase, texts.lang, request.tokenize)
    bleu = metric.corpus_score(own, [expected]).score if own else 100.0
    words, expected_words = (sum(len(line.split()) for line in lines) for lines in (own, expected))
    if texts.translated.is_joined and has_spaces(texts.lang) and is_glued(texts.translated.tokens, texts.text):
        yield f"{log} has lines D- and T- without spaces, of --bpe with --remove-bpe: translate again with one of them"
    elif bleu >= _LEAST_BLEU and not (
        has_spaces(texts.lang) and abs(words - expected_words) > _MOST_WORDS * expected_words
    ):
        return
    elif words > expected_words and (texts.undo is not None or {"moses", "spacy"} & {*(request.detokenize or ())}):
        yield (
            f"{name} has {expected_words:,} words, the log's T- lines {words:,}, joined as the translations are: the "
            f"rules do not restore every space, and a perfect translation scores {bleu:.1f} BLEU; compare only scores "
            "of texts that are joined alike, or add --tokenized FILE (the reference in tokens)"
            f"{'' if request.lowercase else ', and --lowercase for lower-cased text'}"
        )
    elif replaced := _replaced(expected, own):
        yield (
            f"{name} has {replaced}, which the log's T- lines, joined as the translations are, have not: the steps "
            f"replace these characters, and a perfect translation scores {bleu:.1f} BLEU; replace them in a copy of "
            "the reference, too (sentencepiece: NFKC), and compare only scores against that"
        )
    else:
        yield (
            f"{name} has the sentences of {log} in another form: its {expected_words:,} words are {words:,} in the "
            f"log's T- lines, joined as the translations are, which themselves score {bleu:.1f} BLEU; name text that "
            f"is neither tokenised nor in subwords{added and f', and add {added}'}"
        )


def _replaced(expected: Sequence[str], own: Sequence[str]) -> str:
    """Return characters of a reference that the T- lines lack in most places, separated by spaces, at most `_SHOWN`.

    These are signs, and letters that Unicode's form NFKC replaces; other letters are missing with their words.
    """
    counts, others = Counter("".join(expected)), Counter("".join(own))
    lost = [
        sign
        for sign, count in counts.most_common()
        if not sign.isascii()
        and 2 * others[sign] < count
        and (not sign.isalnum() or unicodedata.normalize("NFKC", sign) != sign)
    ]
    return " ".join(lost[:_SHOWN])


def _source_notes(request: ScoreRequest, texts: Texts, source: Sequence[str]) -> Iterator[str]:
    """Yield a note if the source is not the log's."""
    sources = texts.translated.sources
    if (differing := len(sources) - len(_common(texts, sources, source))) > (1 - _LEAST_COMMON) * len(sources):
        yield (
            f"{request.src} is not the text that was translated: {differing:,} of {len(sources):,} lines differ from "
            f"the S- lines of {texts.translated.path}; name the source of the translated sentences"
        )


def _common(texts: Texts, printed: Mapping[int, str], lines: Sequence[str]) -> set[int]:
    """Return the numbers of the sentences whose text in the log, in tokens or joined, equals the file's."""
    return {
        at
        for at, line in printed.items()
        if at < len(lines) and (_is_same(line, lines[at]) or _is_same(texts.decode(line), lines[at]))
    }


def _is_same(printed: str, line: str) -> bool:
    """Return True if letters and digits are the same, except for case, a tag at one end, and unknown words."""
    parts, letters, at = list(map(_letters, _PRINTED_UNKNOWN.split(printed))), _letters(line), 0
    if letters in parts[0]:
        return bool(letters) or not parts[0]
    for part in parts:
        at = letters.find(part, at) + len(part)
        if at < len(part):
            return False
    return any(parts) or len(parts) > 1


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", unescape(text)).casefold()))


def _language_notes(request: ScoreRequest, texts: Texts) -> Iterator[str]:
    """Yield a note if BLEU is computed by another language's rules."""
    from fairseq_compat.languages import has_spaces, missing_tokenizer

    if request.tokenize is not None:
        return
    lang, target_lang = texts.lang, texts.translated.target_lang
    if not lang and target_lang:
        yield f"target language {target_lang} is not a known code: BLEU is computed by 13a; give --lang"
    for name, reference in zip(request.refs, texts.references):
        if has_spaces(lang) and sum(len(_SPACELESS.findall(line)) for line in reference) > sum(map(len, reference)) / 2:
            yield (
                f"{name} has no spaces between words, but BLEU and TER are computed by the rules of "
                f"{lang or 'languages with spaces'}; give --lang, such as --lang zh"
            )
            break
    if texts.references and (missing := missing_tokenizer(lang)) is not None:
        yield missing


# ---- Writing --------------------------------------------------------------------------------------------------------


def write_scores(
    run: Path,
    subset: str,
    scored: Scored,
    texts: Mapping[str, Sequence[str] | None],
    references: Sequence[Sequence[str]],
) -> Scored:
    """Write the texts and <subset>.scores.json to a run, and scores of the test set to its result.json.

    Other scores and texts of the same translations and references stay; scores of other translations are removed.
    """
    names = reference_files(run, subset, len(references))
    lines_of = {run / f"{subset}.{name}": lines for name, lines in texts.items()} | dict(zip(names, references))
    files = {file: "".join(f"{line}\n" for line in lines) for file, lines in lines_of.items() if lines is not None}
    source, place = run / f"{subset}.source.text", run / f"{subset}.scores.json"
    earlier_references = reference_files(run, subset)
    is_same = (not references or earlier_references == names) and all(
        file.is_file() and file.read_text(encoding="utf-8") == text for file, text in files.items() if file != source
    )
    is_finished = subset == "test" and (run / RESULT).is_file()
    record = read_record(run / RESULT) if is_finished else None  # read before anything is written
    if not is_same:
        for file in (*earlier_references, source):
            file.unlink(missing_ok=True)
    for file, text in files.items():
        write_text(file, text)
    earlier = read_json(place, remedy="remove it and score again") if is_same and place.is_file() else {}
    earlier = {key: value for key, value in earlier.items() if key not in ("search", "notes", "preparation")}
    scores, notes = {**earlier, **scored.scores}, scored.notes
    write_json(place, scores)
    written = [*files, place]
    if record is not None:
        others = {name.partition("/")[0] for name in FIGURES}  # scores that are not about translations stay
        kept_scores = {name: value for name, value in (record.get("scores") or {}).items() if name in others}
        write_json(run / RESULT, {**record, "scores": {**scores, **kept_scores}})
        written.append(run / RESULT)
    elif subset == "test" and (run / TRAINING).is_file():
        notes = (*notes, f"the training in {run} has not finished: its {RESULT} is not written yet")
    return Scored(scores, notes, tuple(written))
