"""Read translations: output of fairseq-generate and fairseq-interactive, in one or several shards, or plain text.

An output must be complete: each sentence has a line of each kind, the log has its end. Shards must be of one search of
one text. Output without real translations, such as the reference (--score-reference), is refused. Options that change
a plain beam search are named.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from embinit_fairseq.errors import DataError, counted
from embinit_fairseq.io import sha256
from embinit_fairseq.runs.log import CONFIGURATION, option_in
from embinit_fairseq.runs.record import TRAINING, read_record
from embinit_fairseq.runs.search_options import SEARCH, changed_options
from embinit_fairseq.runs.text_files import MARK, PROGRAM, check_not_overwritten, read_file

#: names of fairseq-generate's output in the folder of a run: redirected, by --results-path, by the recipes
_LOGS = ("{subset}.generate.log", "generate-{subset}.txt", "{subset}/generate.log")
#: last lines of fairseq-generate, with the number of sentences, and of fairseq-interactive
_END = re.compile(r"Translated ([\d,]+) sentences|Total time: ")
#: options as fairseq before 0.10 prints them
_NAMESPACE = re.compile(r"(?:^|\| )(Namespace\(.*\bscore_reference=.*)")
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?= \| )")
_DATA_SET = re.compile(r".* \| \S+ \S+ [^\s-]+-([^\s-]+) \d+ examples$")
#: options that are equal in all shards of one output, as the options of SEARCH are
_EQUAL_IN_SHARDS = (
    *("path", "data", "gen_subset", "source_lang", "target_lang", "beam", "lenpen", "max_len_a", "max_len_b"),
    *("post_process", "bpe", "tokenizer"),
)


@dataclass(frozen=True)
class Translations:
    """Hold translations in the order of the text.

    Attributes:
        path: the file.
        tokens: tokens of the model.
        decoded: text that fairseq-generate has joined; None for plain text, and if it was joined twice.
        sources, targets: number of a sentence -> its source and its reference as fairseq-generate prints them.
        configuration: options of fairseq-generate, as printed.
        target_lang: target language by the options, or by the data.
        nbest: the largest number of translations of a sentence.
        is_text: True for plain text, False for output of fairseq-generate.
        ended: local time of the last line of the log, such as 2026-01-31 12:00:00; "" if its lines have none.
    """

    path: Path
    tokens: list[str]
    decoded: list[str] | None = None
    sources: Mapping[int, str] = field(default_factory=dict)
    targets: Mapping[int, str] = field(default_factory=dict)
    configuration: str = ""
    target_lang: str | None = None
    nbest: int = 1
    is_text: bool = False
    ended: str = ""

    def option(self, name: str) -> str | None:
        """Return an option of fairseq-generate as text."""
        value = option_in(self.configuration, name)
        return None if value == "None" else value

    @property
    def is_joined(self) -> bool:
        """Return True if fairseq-generate has joined the tokens (--tokenizer, --bpe), also of the references."""
        return self.decoded is not None and self.decoded != self.tokens

    def search(self) -> str:
        """Return the options that change a plain beam search, "" for none."""
        flags = changed_options(self.configuration)
        if self.nbest > 1 and not any(flag.startswith("--nbest ") for flag in flags):
            flags.append(f"--nbest {self.nbest}")
        if len(models := (self.option("path") or "").split(os.pathsep)) > 1:
            flags.append(f"an ensemble of {len(models)} checkpoints")
        return " ".join(flags)


def translations_in(run: Path, subset: str) -> list[Path]:
    """Return the outputs of fairseq-generate, several if it ran in shards.

    Raises:
        DataError: there is none, with the command that makes it; or there are two.
    """
    names = [name.format(subset=subset) for name in _LOGS]
    logs = [run / name for name in names if (run / name).is_file()]
    if len(logs) > 1:
        raise DataError(f"{logs[0]} and {logs[1].name}: two outputs of fairseq-generate; remove the older one")
    if logs:
        return logs
    if shards := sorted([*run.glob(f"{subset}.generate.*.log"), *run.glob(f"generate-{subset}.shard*.txt")]):
        return shards
    raise DataError(
        f"{run}: no translations in it (none of {', '.join(names)}); make them: fairseq-generate DATA --user-dir "
        f"embinit_fairseq --gen-subset {subset} --path {run}/checkpoints/checkpoint_best.pt ... > {run / names[0]} 2>&1"
    )


# ---- One output -----------------------------------------------------------------------------------------------------


@dataclass
class _Shard:
    """Hold the content of one output of fairseq-generate.

    Attributes:
        path: the file.
        lines: lines of the file.
        best: kind of line (H, D) -> number of a sentence -> its translation with the highest score.
        once: kind of line (S, T) -> number of a sentence -> text.
        printed: kind of line -> number of a sentence -> how often it is printed.
        configuration, target_lang: as for `Translations`.
        translated: number of sentences at its end; -1 without a number there, None without an end.
    """

    path: Path
    lines: Sequence[str]
    best: dict[str, dict[int, str]] = field(default_factory=lambda: {"H": {}, "D": {}})
    once: dict[str, dict[int, str]] = field(default_factory=lambda: {"S": {}, "T": {}})
    printed: dict[str, dict[int, int]] = field(default_factory=dict)
    configuration: str = ""
    target_lang: str | None = None
    translated: int | None = None

    @property
    def nbest(self) -> int:
        """Return the largest number of translations of a sentence."""
        return max((count for kind in "HD" for count in self.printed.get(kind, {}).values()), default=1)


def _read_outputs(path: Path, lines: Sequence[str]) -> list[_Shard]:
    """Return the outputs in one file, which begin with their options: one per shard, perhaps after a training's log.

    Raises:
        DataError: there are no translations, not all of them, or they copy the reference.
    """
    starts = [at for at, line in enumerate(lines) if _configuration(line)]
    bounds = [0, *starts[1:], len(lines)]
    outputs = [_read_output(path, lines[start:end]) for start, end in zip(bounds, bounds[1:])]
    translated = [output for output in outputs if output.best["H"]]
    if not translated:
        raise DataError(f"{path}: no translation in it; {_why_none(outputs[-1])}")
    for output in translated:
        _check_free(output)
        _check_complete(output)
    return translated


def _configuration(line: str) -> str:
    """Return the options of a program of fairseq if the line has them, else ""."""
    if CONFIGURATION in line:
        return line[line.index(CONFIGURATION) :]
    return match[1] if (match := _NAMESPACE.search(line)) else ""


def _read_output(path: Path, lines: Sequence[str]) -> _Shard:
    """Read one output; raise DataError if sentences come twice."""
    shard = _Shard(path, lines)
    highest: dict[tuple[str, int], float] = {}
    latest: dict[str, int] = {}
    for line in lines:
        if mark := MARK.match(line):
            kind, number = line[0], int(re.findall(r"\d+", mark[0])[0])
            printed = shard.printed.setdefault(kind, {})
            if number in printed and (kind in shard.once or (kind in shard.best and latest[kind] != number)):
                raise _two_outputs(path, f"{kind}-{number}")
            printed[number], latest[kind] = printed.get(number, 0) + 1, number
            if kind in shard.once:
                shard.once[kind][number] = line[mark.end() :]
            elif kind in shard.best:
                score, tab, text = line[mark.end() :].partition("\t")
                value, text = (_number(score), text) if tab else (math.nan, score)
                # the first of equal ones, as fairseq sorts them
                if number not in shard.best[kind] or value > highest[kind, number]:
                    shard.best[kind][number], highest[kind, number] = text, value
        elif end := _END.search(line):
            shard.translated = int(end[1].replace(",", "")) if end[1] else -1
        elif options := _configuration(line):
            shard.configuration = options
        elif match := _DATA_SET.match(line):
            shard.target_lang = match[1]
    if not shard.best["H"]:  # such as of grep ^D
        shard.best["H"] = dict(shard.best["D"])
    return shard


def _two_outputs(path: Path, mark: str) -> DataError:
    return DataError(
        f"{path}: two outputs of fairseq-generate in one file ({mark} twice); translate again into a new file"
    )


def _number(score: str) -> float:
    try:
        return float(score)
    except ValueError:
        return math.nan


def _check_free(shard: _Shard) -> None:
    """Raise DataError if the translations copy the reference."""
    path, options, tokens = shard.path, shard.configuration, shard.best["H"]
    again = "translate again without it"
    if option_in(options, "score_reference") == "True":
        raise DataError(f"{path}: of --score-reference, which prints the reference as translation; {again}")
    prefix = option_in(options, "prefix_size") or "0"
    if prefix not in ("0", "1"):  # 1: the tag of a language, of multilingual models
        raise DataError(
            f"{path}: of --prefix-size {prefix}: each translation begins with {prefix} tokens of its reference; {again}"
        )
    targets = {number: line.replace("<<unk>>", "<unk>") for number, line in shard.once["T"].items()}
    if not options and tokens == targets:
        raise DataError(
            f"{path}: each translation is its reference, as --score-reference prints it; give the whole output of "
            "fairseq-generate, which names its options (2>&1)"
        )


def _check_complete(shard: _Shard) -> None:
    """Raise DataError unless each sentence has a line of each kind, and the log has its end."""
    again = "give the output as it is, or run fairseq-generate again"
    sentences = shard.best["H"].keys()
    expected = next(shard.printed[kind] for kind in "HD" if kind in shard.printed)
    for kind in "STHDP":
        printed = shard.printed.get(kind, {})
        counts = dict.fromkeys(sentences, 1) if kind in "ST" else expected
        if printed and printed != counts:
            number = min(at for at in printed.keys() | counts.keys() if printed.get(at) != counts.get(at))
            raise DataError(
                f"{shard.path}: not all lines of sentence {number} are in it ({kind}-{number} "
                f"{printed.get(number, 0)} times, expected {counts.get(number, 0)}); {again}"
            )
    if shard.translated is None and CONFIGURATION in shard.configuration:
        raise DataError(f"{shard.path}: its end is missing (such as `Translated 1,000 sentences`); {again}")
    if (shard.translated or -1) >= 0 and shard.translated != len(sentences):
        raise DataError(
            f"{shard.path}: {counted(shard.translated or 0, 'sentence')} translated as its end says, but "
            f"{len(sentences):,} are in it; {again}"
        )


def _why_none(shard: _Shard) -> str:
    """Return reason and remedy for an output without translations."""
    programs = {match[1] for line in shard.lines if (match := PROGRAM.search(line))}
    if programs and not programs & {"generate", "interactive"}:
        return f"it is of fairseq's {min(programs)}; give output of fairseq-generate"
    if option_in(shard.configuration, "quiet") == "True":
        return "--quiet leaves translations out; translate again without it"
    folder = option_in(shard.configuration, "results_path") or "None"
    if folder != "None" and shard.translated is not None:
        file = f"{folder}/generate-{option_in(shard.configuration, 'gen_subset') or 'test'}"
        return f"--results-path has them; give {file}.txt (of shards: {file}.shard*.txt)"
    if not shard.configuration:
        return "none of its lines has H- or D-; give the whole output of fairseq-generate"
    return (
        f"it ends: {shard.lines[-1].strip() or 'with an empty line'}; correct that (a model of this plugin needs "
        "--user-dir), and run fairseq-generate again"
    )


# ---- All shards -----------------------------------------------------------------------------------------------------


def read_translations(paths: Sequence[Path]) -> Translations:
    """Read the outputs of fairseq-generate, one per shard, or plain text with one translation per line.

    fairseq-generate sorts by length; here translations are in the order of the text. If a sentence has several
    translations, the one with the highest score is used.

    Raises:
        DataError: there are no translations, not all of them, a sentence is in two shards, shards are of different
            texts or searches, or the translations copy the reference.
    """
    files = [(path, *read_file(path)) for path in paths]
    path, lines, is_output = files[0]
    if len(files) == 1 and not is_output:
        check_not_overwritten(path, lines)
        return Translations(path, lines, is_text=True)
    shards = [shard for path, lines, _ in files for shard in _read_outputs(path, lines)]
    tokens = _tokens_in(shards)
    _check_shards(shards)
    _check_none_missing(paths, tokens, shards[0].configuration)
    order = range(len(tokens))
    decoded = _joined(shard.best["D"] for shard in shards)
    targets = _joined(shard.once["T"] for shard in shards)
    configuration = next((shard.configuration for shard in shards if shard.configuration), "")
    lang = option_in(configuration, "target_lang")
    if lang in (None, "None"):  # inferred from the names of the data
        lang = next((shard.target_lang for shard in shards if shard.target_lang), None)
    if _is_joined_twice(configuration, tokens, decoded):
        decoded = targets = {}
    return Translations(
        path,
        tokens=[tokens[number] for number in order],
        decoded=[decoded[number] for number in order] if decoded else None,
        sources=_joined(shard.once["S"] for shard in shards),
        targets=targets,
        configuration=configuration,
        target_lang=lang,
        nbest=max(shard.nbest for shard in shards),
        ended=next((time[0] for line in reversed(files[-1][1]) if (time := _TIME.match(line))), ""),
    )


def _tokens_in(shards: Sequence[_Shard]) -> dict[int, str]:
    """Return number of a sentence -> its translation; raise DataError if a sentence is in two shards."""
    tokens: dict[int, str] = {}
    for at, shard in enumerate(shards):
        if twice := sorted(tokens.keys() & shard.best["H"].keys()):
            if at and shards[at - 1].path == shard.path:
                raise _two_outputs(shard.path, f"H-{twice[0]}")
            raise DataError(
                f"{shard.path}: {counted(len(twice), 'sentence')} also in another shard, the first has the number "
                f"{twice[0]}; give each shard its own --shard-id, or remove old logs"
            )
        tokens |= shard.best["H"]
    return tokens


def _check_none_missing(paths: Sequence[Path], tokens: Mapping[int, str], configuration: str) -> None:
    """Raise DataError if a sentence before a translated one has no translation."""
    if missing := [number for number in range(max(tokens)) if number not in tokens]:
        remedy = "run fairseq-generate again"
        if option_in(configuration, "skip_invalid_size_inputs_valid_test") == "True":
            remedy = f"split sentences that are too long (--skip-invalid-size-inputs-valid-test), and {remedy}"
        raise DataError(
            f"{', '.join(map(str, paths))}: not all translations are in it ({counted(len(missing), 'sentence')} "
            f"missing, the first has the number {missing[0]}); {remedy}"
        )


def _is_joined_twice(configuration: str, tokens: Mapping[int, str], decoded: Mapping[int, str]) -> bool:
    """Return True if lines D- and T- have lost their spaces, by --bpe with --remove-bpe without fairseq_compat."""
    options = {option_in(configuration, name) for name in ("post_process", "remove_bpe")}
    return "sentencepiece" in options and is_glued(tokens.values(), decoded.values()) and decoded != tokens


def is_glued(tokens: Iterable[str], decoded: Iterable[str]) -> bool:
    """Return True if the decoded lines are the lines of tokens without their spaces."""
    return [line.replace(" ", "") for line in tokens] == [*decoded]


def _joined(parts: Iterable[Mapping[int, str]]) -> dict[int, str]:
    return {number: line for part in parts for number, line in part.items()}


def _check_shards(shards: Sequence[_Shard]) -> None:
    """Raise DataError for shards of different checkpoints, texts or searches."""
    if len({frozenset(shard.printed.keys() & {"H", "D"}) for shard in shards}) > 1:
        raise DataError(
            f"{', '.join(str(shard.path) for shard in shards)}: only some have lines H- or D-; give the output of each "
            "shard as it is"
        )
    first, *others = [shard for shard in shards if shard.configuration] or [shards[0]]
    for shard in others:
        for name in (*_EQUAL_IN_SHARDS, *SEARCH):
            values = option_in(first.configuration, name), option_in(shard.configuration, name)
            if values[0] != values[1]:
                raise DataError(
                    f"{shard.path}: of another translation than {first.path} (--{name.replace('_', '-')} {values[1]} "
                    f"and {values[0]}); translate again, or remove old logs"
                )


# ---- Text, and the data of a run -------------------------------------------------------------------------------------


def read_lines(path: Path, of: str, expected: int, remedy: str = "their reference") -> list[str]:
    """Return the lines of a text; raise DataError unless there are as many as expected.

    Args:
        path: the text.
        of: plural noun, for the message: the things that have a line in the text.
        expected: number of these things.
        remedy: the right text, for the message.
    """
    lines, is_output = read_file(path)
    if is_output:
        raise DataError(f"{path}: lines of fairseq-generate, which are not in the order of the text; name {remedy}")
    if len(lines) != expected:
        raise DataError(
            f"{path} has {counted(len(lines), 'line')}, but there are {expected:,} {of}; name {remedy}, or translate "
            "again"
        )
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
