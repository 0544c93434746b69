"""Read translations: output of fairseq-generate and fairseq-interactive, in one or several shards, or plain text.

Output in which the lines of translations are something else, such as the reference (--score-reference), is refused.
Options that make them something else than a plain beam search are named.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from embinit_fairseq.errors import DataError, counted
from embinit_fairseq.io import check_is_file, sha256
from embinit_fairseq.io import read_lines as numbered_lines
from embinit_fairseq.runs.log import CONFIGURATION, option_in
from embinit_fairseq.runs.record import TRAINING, read_record

#: output of fairseq-generate in the folder of a run: redirected, by --results-path, by the recipes
_LOGS = ("{subset}.generate.log", "generate-{subset}.txt", "{subset}/generate.log")
#: translation, before and after fairseq-generate has joined its tokens: kind, number, score, text
_LINE = re.compile(r"([HD])-(\d+)\t(?:(\S+)\t)?(.*)$")
#: the score of a translation, with or without its sentence's number, without the letter that says so
_SCORED = re.compile(r"(\d+\t)?-?\d+(\.\d+)?(e-?\d+)?\t")
#: source and target, which fairseq-generate prints once for each sentence
_ONCE = re.compile(r"([ST])-(\d+)\t(.*)$")
#: a line of fairseq-generate with another content
_OTHER = re.compile(r"[STHDPACEIW]-\d+(?:_\d+)?\t")
#: options as fairseq before 0.10 prints them
_NAMESPACE = re.compile(r"(?:^|\| )(Namespace\(.*\bscore_reference=.*)")
_DATA_SET = re.compile(r".* \| \S+ \S+ [^\s-]+-([^\s-]+) \d+ examples$")
_PROGRAM = re.compile(r"\| fairseq_cli\.(\w+) \|")
#: option of fairseq-generate -> default; with another value translations are not those of a plain beam search
SEARCH = {
    "prefix_size": "0",
    "constraints": "None",
    "sampling": "False",
    "sampling_topk": "-1",
    "sampling_topp": "-1.0",
    "temperature": "1.0",
    "nbest": "1",
    "diverse_beam_groups": "-1",
    "diverse_beam_strength": "0.5",
    "diversity_rate": "-1.0",
    "retain_dropout": "False",
    "retain_dropout_modules": "None",
    "replace_unk": "None",
    "lm_path": "None",
    "lm_weight": "0.0",
    "min_len": "1",
    "match_source_len": "False",
    "no_repeat_ngram_size": "0",
    "unkpen": "0",
    "unnormalized": "False",
    "eos_token": "None",
    "decoding_format": "None",
    "iter_decode_eos_penalty": "0.0",
    "iter_decode_max_iter": "10",
    "iter_decode_force_max_iter": "False",
    "iter_decode_with_beam": "1",
    "iter_decode_with_external_reranker": "False",
    "model_overrides": "{}",
}


@dataclass(frozen=True)
class Translations:
    """Translations in the order of the text.

    Attributes:
        path: the file.
        tokens: as the model made them.
        decoded: as fairseq-generate has joined them; None for plain text.
        sources, targets: number of a sentence -> its source and its reference as fairseq-generate prints them.
        configuration: options of fairseq-generate, as it prints them.
        target_lang: target language in the options, or as fairseq-generate has found it in the data.
        nbest: the largest number of translations of a sentence.
    """

    path: Path
    tokens: list[str]
    decoded: list[str] | None = None
    sources: Mapping[int, str] = field(default_factory=dict)
    targets: Mapping[int, str] = field(default_factory=dict)
    configuration: str = ""
    target_lang: str | None = None
    nbest: int = 1

    def option(self, name: str) -> str | None:
        """Return an option of fairseq-generate as text."""
        value = option_in(self.configuration, name)
        return None if value == "None" else value

    @property
    def is_joined(self) -> bool:
        """True if fairseq-generate has joined the tokens (--tokenizer, --bpe), also those of the references."""
        return self.decoded is not None and self.decoded != self.tokens

    def search(self) -> str:
        """Return the options that make the translations something else than a plain beam search, "" for none."""
        values = {name: option_in(self.configuration, name) for name in SEARCH}
        flags = [_flag(name, value) for name, value in values.items() if value and not _equal(value, SEARCH[name])]
        if self.nbest > 1 and not any(flag.startswith("--nbest ") for flag in flags):
            flags.append(f"--nbest {self.nbest}")
        if len(models := (self.option("path") or "").split(os.pathsep)) > 1:
            flags.append(f"an ensemble of {len(models)} checkpoints")
        return " ".join(flags)


def _flag(name: str, value: str) -> str:
    return f"--{name.replace('_', '-')}" + ("" if value == "True" else f" {value}")


def _equal(value: str, default: str) -> bool:
    try:
        return float(value) == float(default)
    except ValueError:
        return value == default


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


# ---- One file -------------------------------------------------------------------------------------------------------


@dataclass
class _Shard:
    """The content of one output of fairseq-generate.

    Attributes:
        path: the file.
        lines: the file.
        best: kind of line (H, D) -> number of a sentence -> its translation with the highest score.
        once: kind of line (S, T) -> number of a sentence -> text.
        configuration, target_lang: as for `Translations`.
        nbest: the largest number of translations of a sentence.
    """

    path: Path
    lines: list[str]
    best: dict[str, dict[int, str]]
    once: dict[str, dict[int, str]]
    configuration: str = ""
    target_lang: str | None = None
    nbest: int = 1


def _read_shard(path: Path) -> _Shard:
    """Read a file; raise DataError for two outputs in one file, and for lines that are no translations."""
    shard = _Shard(path, _lines(path), {"H": {}, "D": {}}, {"S": {}, "T": {}})
    scores: dict[tuple[str, int], list[float]] = {}
    for line in shard.lines:
        if match := _LINE.match(line):
            kind, number, score = match[1], int(match[2]), _number(match[3])
            earlier = scores.setdefault((kind, number), [])
            if all(score > other for other in earlier):  # of equal ones the first, as fairseq sorts them
                shard.best[kind][number] = match[4]
            earlier.append(score)
        elif match := _ONCE.match(line):
            if int(match[2]) in shard.once[match[1]]:
                raise DataError(
                    f"{path}: two outputs of fairseq-generate in one file ({match[1]}-{match[2]} twice); translate "
                    "again into a new file"
                )
            shard.once[match[1]][int(match[2])] = match[3]
        elif not shard.configuration and CONFIGURATION in line:
            shard.configuration = line[line.index(CONFIGURATION) :]
        elif not shard.configuration and (match := _NAMESPACE.search(line)):
            shard.configuration = match[1]
        elif match := _DATA_SET.match(line):
            shard.target_lang = match[1]
    shard.nbest = max(map(len, scores.values()), default=1)
    if not shard.best["H"]:  # such as of grep ^D
        shard.best["H"] = dict(shard.best["D"])
    _check_free(shard)
    return shard


def _number(score: str | None) -> float:
    try:
        return float(score or "nan")
    except ValueError:
        return math.nan


def _check_free(shard: _Shard) -> None:
    """Raise DataError if the file has no translations, or they are given by the reference."""
    path, options, tokens = shard.path, shard.configuration, shard.best["H"]
    if not tokens:
        if not options and not any(map(_OTHER.match, shard.lines)):
            return  # plain text
        raise DataError(f"{path}: no translation in it; {_why_none(shard)}")
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


def _why_none(shard: _Shard) -> str:
    """Return reason and remedy for an output without translations."""
    programs = {match[1] for line in shard.lines if (match := _PROGRAM.search(line))}
    if programs and not programs & {"generate", "interactive"}:
        return f"it is of fairseq's {min(programs)}; give output of fairseq-generate"
    if option_in(shard.configuration, "quiet") == "True":
        return "--quiet leaves translations out; translate again without it"
    if not shard.configuration:
        return "its lines are of fairseq-generate, but none has H- or D-; give the whole output"
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
            searches, or the translations are given by the reference.
    """
    shards = list(map(_read_shard, paths))
    path = paths[0]
    if len(shards) == 1 and not shards[0].best["H"]:
        if all(_SCORED.match(line) for line in shards[0].lines):
            raise DataError(
                f"{path}: a number and a tab before each translation; leave them out (cut -f 3 of D- lines)"
            )
        return Translations(path, shards[0].lines)
    tokens: dict[int, str] = {}
    for shard in shards:
        if not shard.best["H"]:
            raise DataError(f"{shard.path}: no translation in it; translate this shard again")
        if twice := sorted(tokens.keys() & shard.best["H"].keys()):
            raise DataError(
                f"{shard.path}: {counted(len(twice), 'sentence')} also in another shard, the first has the number "
                f"{twice[0]}; give each shard its own --shard-id, or remove old logs"
            )
        tokens |= shard.best["H"]
    _check_shards(shards)
    order = range(max(tokens) + 1)
    if missing := [number for number in order if number not in tokens]:
        remedy = "run fairseq-generate again"
        if option_in(shards[0].configuration, "skip_invalid_size_inputs_valid_test") == "True":
            remedy = f"split sentences that are too long (--skip-invalid-size-inputs-valid-test), and {remedy}"
        raise DataError(
            f"{', '.join(map(str, paths))}: not all translations are in it ({counted(len(missing), 'sentence')} "
            f"missing, the first has the number {missing[0]}); {remedy}"
        )
    decoded = _joined(shard.best["D"] for shard in shards)
    configuration = next((shard.configuration for shard in shards if shard.configuration), "")
    target = option_in(configuration, "target_lang")
    return Translations(
        path,
        [tokens[number] for number in order],
        [decoded[number] for number in order] if len(decoded) == len(tokens) else None,
        _joined(shard.once["S"] for shard in shards),
        _joined(shard.once["T"] for shard in shards),
        configuration,
        next((shard.target_lang for shard in shards if shard.target_lang), None)
        if target in (None, "None")
        else target,
        max(shard.nbest for shard in shards),
    )


def _joined(parts: Iterable[Mapping[int, str]]) -> dict[int, str]:
    return {number: line for part in parts for number, line in part.items()}


def _check_shards(shards: Sequence[_Shard]) -> None:
    """Raise DataError for shards of different checkpoints or searches."""
    first, *others = [shard for shard in shards if shard.configuration] or [shards[0]]
    for shard in others:
        for name in ("path", "beam", "lenpen", *SEARCH):
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
        of: plural noun, for the message: things that the text must have a line for.
        expected: their number.
        remedy: the right text, for the message.
    """
    lines = _lines(path)
    if all(map(_OTHER.match, lines)):
        raise DataError(f"{path}: lines of fairseq-generate, which are not in the order of the text; name {remedy}")
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
