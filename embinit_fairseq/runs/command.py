"""Read the command of a training, `[LAUNCHER ...] fairseq-train DATA --option ...`, and hash its inputs."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.io import files_below, sha256
from embinit_fairseq.vectors.open import parse_source

#: options for the length of the training; only these make a finished run continue
LIMITS = frozenset("--max-epoch --max-update --patience --stop-time-hours --stop-min-lr".split())
#: options that may change between two sessions of a run: length, how often to validate and save, speed, logs
FREE_OPTIONS = LIMITS | frozenset(
    "--validate-interval --validate-interval-updates --validate-after-updates --save-interval --save-interval-updates "
    "--keep-interval-updates --keep-interval-updates-pattern --keep-last-epochs --keep-best-checkpoints "
    "--no-epoch-checkpoints --no-last-checkpoints "
    "--num-workers --num-workers-valid --data-buffer-size --batch-size-valid --max-tokens-valid --empty-cache-freq "
    "--log-interval --log-format --log-file --no-progress-bar --tensorboard-logdir --wandb-project --azureml-logging "
    "--distributed-port --distributed-init-method --distributed-rank --device-id --local_rank".split()
)
#: options that choose the best epoch or compute its metric; they may change while no validation has this metric
CHOOSING = frozenset(
    "--best-checkpoint-metric --maximize-best-checkpoint-metric --report-accuracy --eval-bleu --eval-bleu-args "
    "--eval-bleu-detok --eval-bleu-detok-args --eval-bleu-remove-bpe --eval-tokenized-bleu "
    "--eval-bleu-print-samples".split()
)
#: options that name folders, which may be elsewhere when a run continues
PLACES = frozenset(["--save-dir", "--user-dir"])
#: options with which fairseq begins again even if the run has a checkpoint
BEGINNING = frozenset("--restore-file --reset-dataloader --reset-lr-scheduler --reset-meters --reset-optimizer".split())
#: options whose values add up if they are given twice; of every other option the last value counts
ADD_UP = frozenset(
    "--embed-init-path --embed-init-format --embed-init-freeze --embed-init-match --glue-metrics".split()
)
#: key of the data's folder among the options
DATA = "DATA"
_ALIASES = {
    "-s": "--source-lang",
    "-t": "--target-lang",
    "-a": "--arch",
    "--max-sentences": "--batch-size",
    "--max-sentences-valid": "--batch-size-valid",
}
_PROGRAM, _MODULE, _FILE = "fairseq-train", "fairseq_cli.train", ("fairseq_cli", "train.py")
_NUMBER = re.compile(r"-[.\d]")


@dataclass(frozen=True)
class Command:
    """Hold a command line: all its words, and the index of the first argument of fairseq-train."""

    words: tuple[str, ...]
    at: int

    def __str__(self) -> str:
        return shlex.join(self.words)

    @cached_property
    def options(self) -> dict[str, tuple[str, ...]]:
        """Return flag -> values (of a repeated flag the last, or all if it is in `ADD_UP`); DATA -> the folder."""
        options: dict[str, tuple[str, ...]] = {}
        flag = ""
        for at, word in enumerate(self.words[self.at :]):
            if at == self._data_at:
                options[DATA] = (word,)
            elif is_flag(word):
                flag, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
                flag = _ALIASES.get(flag, flag)
                before = options.get(flag, ()) if flag in ADD_UP else ()
                options[flag] = (*before, value) if equals else before
            else:
                options[flag] = (*options.get(flag, ()), word)
        return options

    def option(self, flag: str, default: str | None = None) -> str | None:
        """Return the first value of an option."""
        return next(iter(self.options.get(flag, ())), default)

    @cached_property
    def _data_at(self) -> int | None:
        """Return the index of DATA: the first argument, else the only one that is a folder of binarised data."""
        arguments = self.words[self.at :]
        places = [
            number
            for number, (before, word) in enumerate(zip(arguments, arguments[1:]), 1)
            if not is_flag(word) and before not in PLACES and all(map(_has_binarised, word.split(":")))
        ]
        is_first = bool(arguments) and not is_flag(arguments[0])
        return 0 if is_first else places[0] if len(places) == 1 else None

    def data(self) -> list[Path]:
        """Return the folders of DATA, which may be DATA1:DATA2; raise DataError if one is missing."""
        if self._data_at is None:
            raise DataError(f"{_PROGRAM}: no folder with binarised data; name it first: {_PROGRAM} DATA --arch ...")
        folders = [Path(part) for part in self.words[self.at + self._data_at].split(":")]
        for folder in folders:
            if not folder.is_dir():
                raise DataError(
                    f"DATA {folder}: no such folder; check the path, or make it with fairseq-preprocess --destdir"
                )
        return folders

    def vector_hashes(self) -> dict[str, str]:
        """Return path -> SHA-256 of the files of --embed-init-path; a folder has the joint hash of its files."""
        hashes = {}
        for value in self.options.get("--embed-init-path", ()):
            for path in map(Path, parse_source(value.partition("=")[2]).paths):
                if path.is_file():
                    hashes[str(path)] = sha256(path)
                elif path.is_dir():
                    files = (file for file in sorted(path.iterdir()) if file.is_file())
                    hashes[str(path)] = joint_hash({file.name: sha256(file) for file in files})
        return hashes

    def for_run(self, save_dir: Path) -> Command:
        """Return the command with this --save-dir and --log-format json; OptionError if it has another --save-dir."""
        words, own = self.words, self.option("--save-dir")
        if own is None:
            words = (*words, "--save-dir", str(save_dir))
        elif Path(own).absolute() != save_dir.absolute():
            raise OptionError(f"--save-dir {own}: the checkpoints of this run are in {save_dir}; leave --save-dir out")
        if self.option("--log-format") != "json":
            words = (*words, "--log-format", "json")
        return Command(words, self.at)

    def continuing(self) -> Command:
        """Return the command that continues from the run's last checkpoint: without the options in `BEGINNING`."""
        words, is_value = list(self.words[: self.at]), False
        for word in self.words[self.at :]:
            flag, equals, _ = word.partition("=")
            if flag not in BEGINNING and not is_value:
                words.append(word)
            is_value = flag == "--restore-file" and not equals
        return Command(tuple(words), self.at)


def parse_command(words: Sequence[str], any_program: bool = False) -> Command:
    """Find fairseq-train in a command line.

    Args:
        words: the command line.
        any_program: accept a command without fairseq-train, as recipes record it.

    Raises:
        OptionError: the command has no fairseq-train.
    """
    for at, word in enumerate(words):
        path = PurePath(word)
        if path.name == _PROGRAM or path.parts[-2:] == _FILE or (word == _MODULE and words[at - 1] == "-m"):
            return Command(tuple(words), at + 1)
    if any_program and words:
        return Command(tuple(words), 1)
    reason = f"{shlex.join(words[:3])}: not a training" if words else "no command"
    raise OptionError(f"{reason}; expected -- [LAUNCHER ...] {_PROGRAM} DATA --arch ... (or python -m {_MODULE} ...)")


def is_flag(word: str) -> bool:
    """Return True for an option; a negative number such as -0.5 is a value."""
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word)


def differences(old: Command, new: Command, free: frozenset[str] = FREE_OPTIONS) -> list[str]:
    """Return the differences that keep `new` from continuing the run of `old`: "--lr was 0.1, is 0.2" per option.

    free: options that may change.
    """
    before, now = (
        {flag: shlex.join(values) or "given" for flag, values in command.options.items()} for command in (old, new)
    )
    flags = [flag for flag in dict.fromkeys((*before, *now)) if flag not in free | PLACES | {DATA}]
    return [
        f"{flag} was {before.get(flag, 'not given')}, is {now.get(flag, 'not given')}"
        for flag in flags
        if before.get(flag) != now.get(flag)
    ]


def labels_of(command: Command, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a run: `labels`, and architecture, initialisation and seed of the command.

    Vectors that are shuffled at Xavier's scale and at their own scale are two rows of a table.
    """
    init, std = command.option("--embed-init", "none"), command.option("--embed-init-std")
    own = {
        "arch": command.option("--arch"),
        "init": init if std in (None, "None") else f"{init}, std {std}",
        "seed": command.option("--seed", "1"),
    }
    return {**labels, **{label: value for label, value in own.items() if label not in labels and value is not None}}


def data_hashes(folders: Sequence[Path]) -> dict[str, str]:
    """Return relative path -> SHA-256 of every dictionary and binarised file, and `all`, their joint hash.

    With several folders the folder is part of the path. Without binarised files (--dataset-impl raw) all files count.

    Raises:
        DataError: a folder has no files.
    """
    hashes = {}
    for folder in folders:
        files = list(filter(Path.is_file, files_below(folder)))
        chosen = [path for path in files if _is_binarised(path)] or files
        if not chosen:
            raise DataError(f"DATA {folder}: has no files; make the data with fairseq-preprocess --destdir")
        before = f"{folder.as_posix()}/" if len(folders) > 1 else ""
        hashes.update({before + path.relative_to(folder).as_posix(): sha256(path) for path in chosen})
    return {"all": joint_hash(hashes), **hashes}


def joint_hash(hashes: Mapping[str, str]) -> str:
    """Return the SHA-256 of several files: of their names and hashes, one per line, in the given order."""
    return hashlib.sha256("".join(f"{name} {value}\n" for name, value in hashes.items()).encode()).hexdigest()


def _is_binarised(path: Path) -> bool:
    return path.suffix in (".bin", ".idx") or path.name.startswith("dict.")


def _has_binarised(folder: str) -> bool:
    return Path(folder).is_dir() and any(map(_is_binarised, files_below(Path(folder))))
