"""Score translations against a reference by sacrebleu, with signatures (`embinit score`).

Five steps: read the translations in the order of the text, join their tokens, read the reference, compute the scores,
and write scores and texts to the folder of the run, where `embinit compare` reads them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import DataError, OptionError, counted
from embinit_fairseq.io import check_is_file, read_json, sha256, write_json, write_text
from embinit_fairseq.io import read_lines as numbered_lines
from embinit_fairseq.runs.log import CONFIGURATION, option_in
from embinit_fairseq.runs.metrics import DEFAULT_SCORES, FIGURES, SCORES, computed
from embinit_fairseq.runs.record import RESULT, TRAINING, read_record
from embinit_fairseq.runs.tokens import UNKNOWN, detokenizer, known_language, moses_tokenizer
from embinit_fairseq.vocab.text import pieces_left
from embinit_fairseq.vocab.tokens import unescape

#: an unknown word in text, as sentencepiece writes it: sacrebleu's tokeniser would separate <unk> into three words
UNKNOWN_WORD = "\N{DOUBLE QUESTION MARK}"
#: output of fairseq-generate in the folder of a run: redirected, by --results-path, by the recipes
_LOGS = ("{subset}.generate.log", "generate-{subset}.txt", "{subset}/generate.log")
_LINE = re.compile(r"([HD])-(\d+)\t(?:\S+\t)?(.*)$")
#: of the source and the target, which fairseq-generate prints once for each sentence
_ONCE = re.compile(r"[ST]-\d+(?=\t)")
_DATA_SET = re.compile(r".* \| \S+ \S+ [^\s-]+-([^\s-]+) \d+ examples$")
#: number of translations ending in a separate period from which text looks tokenised, as for sacrebleu
_TOKENIZED = 100
#: characters of Thai, Lao, Tibetan, Burmese, Khmer, Japanese and Chinese
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
#: key in the scores -> option of fairseq-generate, type
_SETTINGS = {"beam": ("beam", int), "lenpen": ("lenpen", float), "checkpoint": ("path", str)}


@dataclass(frozen=True)
class ScoreRequest:
    """What to score, and how; the options of `embinit score`.

    Attributes:
        place: folder of a run, output of fairseq-generate, or plain text.
        ref: plain text; tokens if `tokenized` is "".
        src: the text that was translated, to be copied to the run.
        subset: name of the translated subset.
        metrics: names of SCORES.
        detokenize: how tokens are joined, see `tokens`.
        lang: language of the reference; None: as in the log.
        tokenized: the reference in tokens, for BLEU on tokens in addition; "": only that, `ref` has tokens.
        lowercase: ignore upper and lower case.
        tokenize: tokeniser of sacrebleu for BLEU; None: the language's.
        confidence: with 95 % intervals.
    """

    place: str
    ref: str
    src: str | None = None
    subset: str = "test"
    metrics: Sequence[str] | None = None
    detokenize: Sequence[str] = ()
    lang: str | None = None
    tokenized: str | None = None
    lowercase: bool = False
    tokenize: str | None = None
    confidence: bool = False


@dataclass(frozen=True)
class Translations:
    """Translations in the order of the text.

    Attributes:
        path: the file.
        tokens: as the model made them.
        decoded: as fairseq-generate has joined them; None for plain text.
        configuration: options of fairseq-generate, as it prints them.
        target_lang: target language in the options, or as fairseq-generate has found it in the data.
    """

    path: Path
    tokens: list[str]
    decoded: list[str] | None = None
    configuration: str = ""
    target_lang: str | None = None

    def option(self, name: str) -> str | None:
        """Return an option of fairseq-generate as text."""
        value = option_in(self.configuration, name)
        return None if value == "None" else value


@dataclass(frozen=True)
class Scored:
    """The result: scores as they are recorded, notes for the reader, files written."""

    scores: dict[str, Any]
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()


def score(request: ScoreRequest) -> Scored:
    """Score translations; in the folder of a run also write texts and scores.

    Raises:
        DataError: a file is missing, or files do not belong together. Nothing is written then.
        OptionError: an option is wrong.
    """
    place, steps = Path(request.place), request.detokenize
    is_run = place.is_dir()
    translated = read_translations(translations_in(place, request.subset) if is_run else [place])
    if is_run:
        check_dictionaries(place, translated)
    lang = None if request.lang is None else known_language(request.lang)
    if lang is None:
        with contextlib.suppress(OptionError):  # an unknown language in a log is noted
            lang = known_language(translated.target_lang or "")

    expected = f"translations in {translated.path}", len(translated.tokens)
    source = read_lines(Path(request.src), *expected, "the text that was translated") if request.src else None
    decode = detokenizer(steps, lang)
    as_is = translated.tokens if steps or translated.decoded is None else translated.decoded
    text = [decode(line).replace(UNKNOWN, UNKNOWN_WORD) for line in as_is]
    reference = None if request.tokenized == "" else read_lines(Path(request.ref), *expected)

    scores: dict[str, Any] = {}
    if reference is not None:
        for name in request.metrics or DEFAULT_SCORES:
            metric = SCORES[name].metric(request.lowercase, lang or "", request.tokenize)
            scores[name] = computed(metric, text, reference, request.confidence)
    if request.tokenized is not None:
        tokens = [unescape(line) for line in read_lines(Path(request.tokenized or request.ref), *expected)]
        if steps and steps[-1] != "moses":
            words = list(map(moses_tokenizer(lang), text))  # the reference has Moses' words
        else:
            join_subwords = detokenizer(steps[:-1], lang)
            words = [unescape(join_subwords(line)) for line in translated.tokens]
        metric = SCORES["bleu_tokenized"].metric(lowercase=request.lowercase)
        scores["bleu_tokenized"] = computed(metric, words, tokens, request.confidence)
    for key, (option, kind) in _SETTINGS.items():
        if (value := translated.option(option)) is not None:
            scores[key] = kind(value)
    scores |= {"sentences": len(text), **({} if lang is None else {"lang": lang})}

    notes = tuple(_notes(request, translated, text, reference or (), lang or ""))
    if not is_run:
        return Scored(scores, notes)
    texts = {
        "hypothesis.tokens": translated.tokens,
        "hypothesis.text": text,
        "reference.text": reference,
        "source.text": source,
    }
    return write_scores(place, request.subset, Scored(scores, notes), texts)


def _notes(
    request: ScoreRequest, translated: Translations, text: Sequence[str], reference: Sequence[str], lang: str
) -> Iterator[str]:
    """Say if the text is another run's or still segmented, and if BLEU is computed by another language's rules."""
    from fairseq_compat.languages import has_spaces, missing_tokenizer

    checkpoint, place = Path(translated.option("path") or ""), Path(request.place)
    if place.is_dir() and checkpoint.is_file() and place.resolve() not in checkpoint.resolve().parents:
        yield f"{translated.path} is of {checkpoint}, which is not in {place}: are these its translations?"
    if (left := pieces_left(text)) is not None:
        yield f"{counted(left[0], 'translation')} of {len(text):,} in subwords: add --detokenize {left[1]}"
    elif reference and sum(line.endswith(" .") for line in text) >= _TOKENIZED:
        yield "translations end in a separate period ( .): if the reference is text, add --detokenize moses"
    if request.tokenize is not None:
        return
    if not lang and translated.target_lang:
        yield f"target language {translated.target_lang} is not a known code: BLEU is computed by 13a; give --lang"
    if has_spaces(lang) and sum(len(_UNSPACED.findall(line)) for line in reference) > sum(map(len, reference)) / 2:
        yield (
            f"{request.ref} has no spaces between words, but BLEU and TER are computed by the rules of "
            f"{lang or 'languages with spaces'}; give --lang, such as --lang zh"
        )
    if reference and (missing := missing_tokenizer(lang)) is not None:
        yield missing


# ---- Reading --------------------------------------------------------------------------------------------------------


def translations_in(run: Path, subset: str) -> list[Path]:
    """Return the outputs of fairseq-generate, several if it ran in shards (SUBSET.generate.*.log).

    Raises:
        DataError: there is none, with the command that makes it; or there are two.
    """
    names = [name.format(subset=subset) for name in _LOGS]
    found = [run / name for name in names if (run / name).is_file()]
    if len(found) > 1:
        raise DataError(f"{found[0]} and {found[1].name}: two outputs of fairseq-generate; remove the older one")
    if found:
        return found
    if shards := sorted(run.glob(f"{subset}.generate.*.log")):
        return shards
    raise DataError(
        f"{run}: no translations in it (none of {', '.join(names)}); make them: fairseq-generate DATA --user-dir "
        f"embinit_fairseq --gen-subset {subset} --path {run}/checkpoints/checkpoint_best.pt ... > {run / names[0]}"
    )


def read_translations(paths: Sequence[Path]) -> Translations:
    """Read the outputs of fairseq-generate, one per shard, or plain text with one translation per line.

    fairseq-generate sorts by length; here translations are in the order of the text. If a sentence has several
    translations, the first one, which is the best, is used.

    Raises:
        DataError: there are no translations, not all of them, or a sentence is in two shards.
    """
    path, target, configuration = paths[0], None, ""
    best: dict[str, dict[int, str]] = {"H": {}, "D": {}}
    for shard in paths:
        lines = _lines(shard)
        own: dict[str, dict[int, str]] = {"H": {}, "D": {}}
        printed: set[str] = set()
        for line in lines:
            if once := _ONCE.match(line):
                if once[0] in printed:
                    raise DataError(
                        f"{shard}: two outputs of fairseq-generate in one file ({once[0]} twice); translate again into "
                        "a new file"
                    )
                printed.add(once[0])
            if match := _LINE.match(line):
                own[match[1]].setdefault(int(match[2]), match[3])
            elif not configuration and CONFIGURATION in line:
                configuration = line[line.index(CONFIGURATION) :]
            elif match := _DATA_SET.match(line):
                target = match[1]
        if twice := sorted(best["H"].keys() & own["H"].keys()):
            raise DataError(
                f"{shard}: {counted(len(twice), 'sentence')} also in another shard, the first has the number "
                f"{twice[0]}; give each shard its own --shard-id, or remove old logs"
            )
        for kind in best:
            best[kind] |= own[kind]
    tokens, decoded = best["H"], best["D"]
    if not tokens and not configuration:
        return Translations(path, lines)
    if not tokens:
        raise DataError(
            f"{path}: no translation in it; it ends: {lines[-1].strip() or 'with an empty line'}; correct that (a "
            "model of this plugin needs --user-dir), and run fairseq-generate again"
        )
    order = range(max(tokens) + 1)
    if missing := [number for number in order if number not in tokens]:
        raise DataError(
            f"{', '.join(map(str, paths))}: not all translations are in it ({counted(len(missing), 'sentence')} "
            f"missing, the first has the number {missing[0]}); run fairseq-generate again"
        )
    text = [decoded[number] for number in order] if len(decoded) == len(tokens) else None
    translated = Translations(path, [tokens[number] for number in order], text, configuration)
    return replace(translated, target_lang=translated.option("target_lang") or target)


def read_lines(path: Path, of: str, expected: int, remedy: str = "their reference") -> list[str]:
    """Return the lines of a text; raise DataError unless there are as many as expected.

    Args:
        path: the text.
        of: plural noun, for the message: things that the text must have a line for.
        expected: their number.
        remedy: the right text, for the message.
    """
    lines = _lines(path)
    if len(lines) != expected:
        raise DataError(
            f"{path} has {counted(len(lines), 'line')}, but there are {expected:,} {of}; name {remedy}, or translate "
            "again"
        )
    return lines


def _lines(path: Path) -> list[str]:
    """Return the lines of a text; only LF and CR LF end a line, not U+2028 or a lone CR."""
    check_is_file(path, remedy="name a file with a sentence per line")
    lines = [line for _, line in numbered_lines(path)]
    if not lines:
        raise DataError(f"{path}: empty; write it again")
    return lines


def check_dictionaries(run: Path, translated: Translations) -> None:
    """Raise DataError if fairseq-generate has read another dictionary than the training.

    With a dictionary of equal length but other words fairseq reports no error, only a wrong BLEU.
    """
    data, file = translated.option("data"), run / TRAINING
    if data is None or not file.is_file():
        return
    for name, value in (read_record(file).get("data") or {}).items():
        name = Path(name).name  # data in parts: bin.00/dict.de.txt
        path = Path(data) / name
        if name.startswith("dict.") and path.is_file() and sha256(path) != value:
            raise DataError(
                f"{translated.path}: translated with {path}, which is not the dictionary of the training of {run}; "
                "translate again with the data of the training"
            )


# ---- Writing --------------------------------------------------------------------------------------------------------


def write_scores(run: Path, subset: str, scored: Scored, texts: Mapping[str, Sequence[str] | None]) -> Scored:
    """Write the texts and <subset>.scores.json to a run, and scores of the test set to its result.json.

    Other scores and texts of the same translations and reference stay; scores of other translations are removed.
    """
    files = {
        run / f"{subset}.{name}": "".join(f"{line}\n" for line in lines)
        for name, lines in texts.items()
        if lines is not None
    }
    source, place = run / f"{subset}.source.text", run / f"{subset}.scores.json"
    is_same = all(
        file.is_file() and file.read_text(encoding="utf-8") == text for file, text in files.items() if file != source
    )
    is_finished = subset == "test" and (run / RESULT).is_file()
    record = read_record(run / RESULT) if is_finished else None  # read before anything is written
    if not is_same:
        for name in ("reference.text", "source.text"):
            (run / f"{subset}.{name}").unlink(missing_ok=True)
    for file, text in files.items():
        write_text(file, text)
    earlier = read_json(place, remedy="remove it and score again") if is_same and place.is_file() else {}
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
