"""The command of a training: `fairseq-train DATA --option value ...`, with or without a launcher before it."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.files import sha256
from embinit_fairseq.vectors.open import parse_source

#: how far to train; a run that has come to its end goes on only if one of them is changed
LIMITS = frozenset("--max-epoch --max-update --patience --stop-time-hours --stop-min-lr".split())
#: options that may change between two sessions of one run: how far to train, how often to look and what to keep, what
#: concerns speed and logs
FREE_OPTIONS = LIMITS | frozenset(
    "--validate-interval --validate-interval-updates --validate-after-updates --save-interval --save-interval-updates "
    "--keep-interval-updates --keep-interval-updates-pattern --keep-last-epochs --keep-best-checkpoints "
    "--no-epoch-checkpoints --no-last-checkpoints "
    "--num-workers --num-workers-valid --data-buffer-size --batch-size-valid --max-tokens-valid --empty-cache-freq "
    "--log-interval --log-format --log-file --no-progress-bar --tensorboard-logdir --wandb-project --azureml-logging "
    "--distributed-port --distributed-init-method --distributed-rank --device-id --local_rank".split()
)
#: where things are; what is in them is compared by its content
PLACES = frozenset(["--save-dir", "--user-dir"])
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
    """words: all of it. at: place of the first argument of fairseq-train."""

    words: tuple[str, ...]
    at: int

    @property
    def arguments(self) -> tuple[str, ...]:
        """Those of fairseq-train."""
        return self.words[self.at :]

    @property
    def launcher(self) -> tuple[str, ...]:
        """What stands before them: the program, and what starts it."""
        return self.words[: self.at]

    def __str__(self) -> str:
        return shlex.join(self.words)

    @cached_property
    def options(self) -> dict[str, tuple[str, ...]]:
        """Flag -> its values, the last of repeated ones; DATA -> the folder."""
        data = self._data_at
        options: dict[str, tuple[str, ...]] = {} if data is None else {DATA: (self.arguments[data],)}
        flag = ""
        for at, word in enumerate(self.arguments):
            if at == data:
                continue
            if is_flag(word):
                flag, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
                flag = _ALIASES.get(flag, flag)
                options[flag] = (value,) if equals else ()
            else:
                options[flag] = (*options.get(flag, ()), word)
        return options

    def option(self, flag: str, default: str | None = None) -> str | None:
        """The first value of an option."""
        return next(iter(self.options.get(flag, ())), default)

    @cached_property
    def _data_at(self) -> int | None:
        """Place of DATA among the arguments: the first one, or the only one that is a folder with binarised data."""
        if self.arguments and not is_flag(self.arguments[0]):
            return 0
        places = [
            at
            for at, (before, word) in enumerate(zip(self.arguments, self.arguments[1:]), 1)
            if not is_flag(word) and before not in PLACES and all(map(_binarised, map(Path, word.split(":"))))
        ]
        return places[0] if len(places) == 1 else None

    def data(self) -> list[Path]:
        """The folders of DATA, several where it is DATA1:DATA2. DataError for one that is missing."""
        if self._data_at is None:
            raise DataError(
                f"{_PROGRAM}: no folder with binarised data in the command; name it first: {_PROGRAM} DATA --arch ..."
            )
        folders = [Path(part) for part in self.arguments[self._data_at].split(":")]
        for folder in folders:
            if not folder.is_dir():
                raise DataError(
                    f"DATA {folder}: no such folder; check the path, or make it with fairseq-preprocess --destdir"
                )
        return folders

    def vector_hashes(self) -> dict[str, str]:
        """SHA-256 of the files of --embed-init-path, by path as given; joint ones of folders (Hugging Face)."""
        hashes = {}
        for value in self.options.get("--embed-init-path", ()):
            for name in parse_source(value.partition("=")[2]).paths:
                path = Path(name)
                if path.is_file():
                    hashes[str(path)] = sha256(path)
                elif path.is_dir():
                    files = (each for each in sorted(path.iterdir()) if each.is_file())
                    hashes[str(path)] = joint_hash({each.name: sha256(each) for each in files})
        return hashes

    def saving_to(self, folder: Path) -> Command:
        """The command with this --save-dir. OptionError if it has another one."""
        given = self.option("--save-dir")
        if given is None:
            return Command((*self.words, "--save-dir", str(folder)), self.at)
        if Path(given).absolute() != folder.absolute():
            raise OptionError(
                f"--save-dir {given}: the checkpoints of this run go to {folder}; leave --save-dir out, or give the "
                "folder of the run that you mean"
            )
        return self


def data_hashes(folders: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of every dictionary and binarised file below the folders of DATA, by relative path, behind that of its
    folder where there are several; "all" is their joint hash.

    Of all files where nothing is binarised (--dataset-impl raw). DataError for a folder without files.
    """
    hashes = {}
    for folder in folders:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        chosen = [path for path in files if _is_binarised(path)] or files
        if not chosen:
            raise DataError(f"DATA {folder}: holds no files; make the data with fairseq-preprocess --destdir")
        before = f"{folder.as_posix()}/" if len(folders) > 1 else ""
        hashes.update({before + path.relative_to(folder).as_posix(): sha256(path) for path in chosen})
    return {"all": joint_hash(hashes), **hashes}


def is_flag(word: str) -> bool:
    """Is the word an option? A negative number such as -0.5 is a value."""
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word)


def parse_command(words: Sequence[str], any_program: bool = False) -> Command:
    """OptionError for what is no fairseq-train, unless it may be any program."""
    for at, word in enumerate(words):
        path = PurePath(word)
        is_module = word == _MODULE and words[at - 1] == "-m"
        if path.name == _PROGRAM or path.parts[-2:] == _FILE or is_module:
            return Command(tuple(words), at + 1)
    if any_program and words:
        return Command(tuple(words), 1)
    shown = shlex.join(words[:3]) + (" ..." if len(words) > 3 else "")
    if any(PurePath(word).name == "fairseq-hydra-train" for word in words):
        raise OptionError(f"{shown}: fairseq-hydra-train keeps a log of its own; give the same options to {_PROGRAM}")
    what = f"{shown}: not a training" if words else "no command"
    raise OptionError(
        f"{what}; behind -- stands {_PROGRAM} DATA --arch ... (or python -m {_MODULE} ...), with a launcher such as "
        "torchrun before it if there is one"
    )


def fixed_options(command: Command) -> dict[str, tuple[str, ...]]:
    """Those that must be the same when a run is continued."""
    return {
        flag: values
        for flag, values in command.options.items()
        if flag not in FREE_OPTIONS and flag not in PLACES and flag != DATA
    }


def differences(old: Command, new: Command) -> list[str]:
    """What keeps `new` from continuing the run of `old`: "--lr was 0.1, is 0.2" for each option."""
    before, now = fixed_options(old), fixed_options(new)
    return [
        f"{flag} {_was(before.get(flag))}, {_is(now.get(flag))}"
        for flag in dict.fromkeys((*before, *now))
        if before.get(flag) != now.get(flag)
    ]


def _was(values: tuple[str, ...] | None) -> str:
    return "was not given" if values is None else f"was {shlex.join(values) or 'given'}"


def _is(values: tuple[str, ...] | None) -> str:
    return "is not given" if values is None else f"is {shlex.join(values) or 'given'}"


def limits(command: Command) -> dict[str, tuple[str, ...]]:
    """The options that end a training (LIMITS), with their values."""
    return {flag: values for flag, values in command.options.items() if flag in LIMITS}


def labels_of(command: Command, given: Mapping[str, str]) -> dict[str, str]:
    """What tables are sorted by: the given labels, and architecture, initialisation and seed of the command."""
    own = {
        "arch": command.option("--arch"),
        "init": init_label(command.option("--embed-init", "none"), command.option("--embed-init-std")),
        "seed": command.option("--seed", "1"),
    }
    return {**given, **{label: value for label, value in own.items() if label not in given and value is not None}}


def init_label(init: str | None, std: str | None) -> str | None:
    """Vectors shuffled at Xavier's scale are another row of a table than those shuffled at their own."""
    return init if init is None or std in (None, "None") else f"{init}, std {std}"


def joint_hash(hashes: Mapping[str, str]) -> str:
    """SHA-256 of several files: of their names and hashes, a line each, in the order given."""
    return hashlib.sha256("".join(f"{name} {value}\n" for name, value in hashes.items()).encode()).hexdigest()


def _is_binarised(path: Path) -> bool:
    return path.suffix in (".bin", ".idx") or path.name.startswith("dict.")


def _binarised(folder: Path) -> bool:
    return folder.is_dir() and any(map(_is_binarised, folder.rglob("*")))
