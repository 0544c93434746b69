"""Read and write `preparation.json`, next to dict.txt: how raw text became the symbols of each dictionary there.

    {"preparation": 1, "made_by": "embinit prepare", "versions": {"sacremoses": "0.1.1"},
     "dictionaries": {"dict.de.txt": {
        "symbols": "9f2c...",                                          hash of the dictionary's symbols
        "steps": [{"step": "lowercase"}, {"step": "moses", "lang": "de"}, {"step": "bpe"}],
        "files": {"codes": {"path": "../bpe.codes", "sha256": "..."}},
        "examples": [["Ein Hund läuft.", "ein hund läu@@ ft ."]],      raw lines of the text, and their symbols
        "lines": {"tried": 1014, "equal": 1013}}}}                     how many of them the steps make

Everything that prepares text writes it; everything that prepares other text for the same dictionary reads it. Text
without a record is prepared as the user says (`parse_steps`); what its dictionary suggests is a proposal in a message.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.io import PathLike, read_json, write_json
from embinit_fairseq.machine import package_versions
from embinit_fairseq.vocab.dictionary import is_filler, read_dictionary, symbols_digest
from embinit_fairseq.vocab.preparation_options import written
from embinit_fairseq.vocab.preparation_steps import STEPS, Preparation
from embinit_fairseq.vocab.step_files import STEP_FILES, contents, given_by, hashes

logger = logging.getLogger(__name__)
FILE = "preparation.json"
_FORMAT = 1
#: number of raw lines of each text in a record
_EXAMPLES = 3
#: remedy where data or checkpoints have records that differ
_ONE = f"use data and checkpoints of one preparation, or remove the {FILE} of the data if it is wrong"
#: largest share of lines with other symbols: data sets have tokens of programs that differ in rare cases
_MOST_OTHERS = 0.02


@dataclass(frozen=True)
class Recorded:
    """How the text of one dictionary was prepared.

    Args:
        steps: as in `Preparation`, without the content of files.
        files: option of a step (`codes`, `model`, `tokenizer`) -> {"path": of the file, "sha256": see `hashes`}. Paths
            are as in the record, relative to its folder.
        examples: (raw line, its symbols separated by spaces).
        symbols: hash of the dictionary's symbols, see `symbols_hash`.
        lines: raw lines of the text that were tried when it was written, and how many of them the steps make.
        folder: the folder of the record, None if it was in a checkpoint.
    """

    steps: tuple[dict[str, Any], ...]
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    examples: tuple[tuple[str, str], ...] = ()
    symbols: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)
    folder: Path | None = None

    def entry(self) -> dict[str, Any]:
        """Return its entry in `preparation.json` and in checkpoints."""
        examples = [list(pair) for pair in self.examples]
        return {
            "symbols": self.symbols,
            "steps": list(self.steps),
            "files": self.files,
            "examples": examples,
            "lines": dict(self.lines),
        }

    def preparation(self, symbols: Collection[str], user_paths: Mapping[str, str | None] | None = None) -> Preparation:
        """Return the preparation, ready to use.

        Args:
            symbols: the dictionary's symbols.
            user_paths: option of a step -> path of its file, for files that the user names.

        Raises:
            DataError: a file is missing or not the recorded one, or an example gets other symbols.
            OptionError: a library is missing.
        """
        paths = {name: self.path_of(name, (user_paths or {}).get(name)) for name in self.files}
        prepare = Preparation(self.steps, contents(paths, symbols))
        with libraries():
            for raw, expected in self.examples:
                if (result := " ".join(prepare(raw))) != expected:
                    raise DataError(
                        f"{self._where}: {raw[:60]!r} becomes {result[:80]!r} here, the record has {expected[:80]!r}: "
                        f"the libraries have changed ({', '.join(map(_version, sorted(self.needs())))}); install "
                        "the recorded versions, or prepare the text again"
                    )
        return prepare

    def path_of(self, name: str, user_path: str | None = None, flag: str | None = None) -> str:
        """Return the path of the file of an option; raise DataError if it is missing or not the recorded one.

        Args:
            name: the option of a step.
            user_path: the path that the user names, if any.
            flag: the option of the command that names it, for messages; default: as in STEP_FILES.
        """
        recorded = self.files[name]
        path = Path(user_path) if user_path is not None else None
        if path is None and self.folder is not None:
            path = self.folder / recorded["path"]
        way, flag = flag or given_by(name), flag or STEP_FILES[name].flag
        if path is None or not path.is_file():
            raise DataError(
                f"{self._where}: needs {recorded['path']}, which is not there; give it by {way}"
                if user_path is None
                else f"{flag} {user_path}: no such file; check the path"
            )
        if not self.fits(name, path):
            raise DataError(
                f"{flag if user_path else self._where}: {path} is not the file that the dictionary's text was "
                f"segmented with, or has other files next to it (other hashes than in {FILE}); give that one"
            )
        return str(path)

    def moved(self, folder: Path) -> Recorded:
        """Return the record with its files' paths relative to another folder; a checkpoint's stays as it is."""
        if self.folder is None or self.folder == folder:
            return self
        files = {
            name: {**file, "path": _relative(self.folder / file["path"], folder)} for name, file in self.files.items()
        }
        return replace(self, files=files, folder=folder)

    def needs(self) -> set[str]:
        """Return the libraries of the steps."""
        return {library for step in self.steps for library in STEPS[step["step"]].needs}

    def is_same(self, other: Recorded) -> bool:
        """Return True if another record has the same steps with files of the same content, for the same symbols."""
        return self._compared() == other._compared()

    def fits(self, name: str, path: PathLike) -> bool:
        """Return True if a file is the recorded one of the option `name`."""
        return Path(path).is_file() and hashes(path) == self.files[name]["sha256"]

    def _compared(self) -> str:
        steps = [{**STEPS[step["step"]].options, **step} for step in self.steps]
        hashes = {name: file["sha256"] for name, file in self.files.items()}
        return json.dumps([steps, hashes, self.symbols], sort_keys=True)

    @property
    def _where(self) -> str:
        return str(self.folder / FILE) if self.folder is not None else f"the {FILE} in the checkpoint"


def agreed(dictionary: str, statements: Mapping[str, Recorded | None], remedy: str = _ONE) -> Recorded | None:
    """Return the record on which several places agree; None if none has a record.

    Args:
        dictionary: its name.
        statements: place -> its record. A place without one agrees with every other.
        remedy: advice in the message.

    Raises:
        DataError: two places say that the text was prepared in different ways.
    """
    said = [(place, recorded) for place, recorded in statements.items() if recorded is not None]
    for place, recorded in said[1:]:
        if not recorded.is_same(said[0][1]):
            first, own = written(said[0][1].steps), written(recorded.steps)
            raise DataError(
                f"{dictionary}: its text was prepared by {first} as {said[0][0]} says, by {own}"
                f"{' with another language, other files or symbols' if first == own else ''} as {place} says; {remedy}"
            )
    return said[0][1] if said else None


def own_record(dictionary: Path) -> str:
    """Return the remedy for a dictionary that was copied without its record."""
    return f"copy {FILE} and the files that it names, too, from where this {dictionary.name} was made"


def symbols_hash(symbols: Sequence[str]) -> str:
    """Return a short hash of a dictionary's symbols in their order; fillers at its end do not count."""
    return symbols_digest([symbol for symbol in symbols if not is_filler(symbol)])


# ---- Read and write -------------------------------------------------------------------------------------------------


def read_preparation(dictionary: PathLike) -> Recorded | None:
    """Return the record next to a dict.txt, which describes its text; None if there is none.

    Raises:
        DataError: the record is damaged, of a later version, or of another dictionary of this name.
    """
    path = Path(dictionary)
    entries, file = entries_of(path.parent), path.with_name(FILE)
    if path.name not in entries:
        return None
    recorded = recorded_in(entries[path.name], str(file), file.parent)
    if recorded.symbols != symbols_hash(read_dictionary(path).symbols):
        raise DataError(
            f"{file}: is the record of another {path.name} (its symbols have the hash {recorded.symbols}); "
            f"{own_record(path)}; or remove this one and name the steps"
        )
    return recorded


def entries_of(folder: PathLike) -> dict[str, Any]:
    """Return name of a dictionary -> entry of the record in a folder; {} without a record."""
    file = Path(folder) / FILE
    if not file.is_file():
        return {}
    content = read_json(file)
    entries = content.get("dictionaries") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or content.get("preparation") != _FORMAT:
        raise DataError(f"{file}: not a record of version {_FORMAT}; prepare the text again, or remove the file")
    return entries


def records_of_data(folders: Sequence[PathLike]) -> dict[str, Recorded]:
    """Return name of a dictionary -> record, for the data of a training; with labels, the record of the first column.

    Args:
        folders: folders of binarised data, which may be in parts (`bin.00:bin.01`).

    A part that has the dictionary but no record is named in a warning.

    Raises:
        DataError: a dictionary does not fit its record, or parts were prepared in different ways.
    """
    places = [Path(part, name) for part in folders if part for name in ("", "input0")]
    names = dict.fromkeys(name for place in places for name in entries_of(place))
    records: dict[str, Recorded] = {}
    for name in names:
        statements = {str(place / FILE): _recorded_at(place, name) for place in places}
        records[name] = agreed(name, statements)  # type: ignore[assignment]  # one place has the name
        lacking = [place for place in places if (place / name).is_file() and statements[str(place / FILE)] is None]
        if lacking:
            logger.warning(
                "%s: no %s says that the text of %s was prepared by %s, as in %s; if it was, copy that file and the "
                "files that it names, else leave this part out",
                *(" and ".join(map(str, lacking)), FILE, name, written(records[name].steps), records[name].folder),
            )
    return records


def _recorded_at(place: Path, name: str) -> Recorded | None:
    """Return the record of a dictionary's text in a folder, which need not have the dictionary."""
    if (place / name).is_file():
        return read_preparation(place / name)
    entry = entries_of(place).get(name)
    return None if entry is None else recorded_in(entry, str(place / FILE), place)


def recorded_in(entry: Any, where: str, folder: Path | None = None) -> Recorded:
    """Return an entry of a record; raise DataError, which begins with `where`, if it is damaged."""
    try:
        steps, examples = tuple(map(dict, entry["steps"])), tuple((raw, text) for raw, text in entry["examples"])
        Preparation(steps)
        files = {name: {key: file[key] for key in ("path", "sha256")} for name, file in entry["files"].items()}
        needed = {option for step in steps for option in STEPS[step["step"]].content if option in STEP_FILES}
        if needed != files.keys():
            raise ValueError(f"files: found {', '.join(files) or 'none'}, expected {', '.join(needed) or 'none'}")
        values = [(value, "") for file in files.values() for value in file.values()]
        for step in steps:
            values += [(step.get(name, default), default) for name, default in STEPS[step["step"]].options.items()]
        if wrong := [value for value, default in values if not isinstance(value, type(default))]:
            raise ValueError(f"{wrong[0]!r} as an option of a step or a file")
        return Recorded(steps, files, examples, entry["symbols"], entry.get("lines", {}), folder)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: damaged ({error}); prepare the text again, or remove the record") from error


def record_preparation(
    folder: PathLike,
    steps: Mapping[str, Sequence[Mapping[str, Any]]],
    files: Mapping[str, PathLike] | None = None,
    pairs: Mapping[str, Iterable[tuple[str, str]]] | None = None,
    made_by: str = "embinit prepare",
) -> dict[str, Recorded]:
    """Write the record of a folder with dictionaries and return it.

    Args:
        folder: folder of the dictionaries.
        steps: name of a dictionary (`dict.de.txt`) -> the steps of its text.
        files: option of a step (`codes`, `model`, `tokenizer`) -> its file.
        pairs: name of a dictionary -> raw lines with their symbols, as they were prepared; the first that the steps
            make are the examples.
        made_by: the command, for people.

    Raises:
        DataError: the steps do not make most of the pairs.
    """
    place, own_pairs = Path(folder), pairs or {}
    recorded = {name: tried(place / name, own, files or {}, own_pairs.get(name, ())) for name, own in steps.items()}
    write_preparation(place, recorded, made_by)
    return recorded


def tried(
    dictionary: Path,
    steps: Sequence[Mapping[str, Any]],
    files: Mapping[str, PathLike],
    pairs: Iterable[tuple[str, str]],
) -> Recorded:
    """Return the record of a dictionary after the steps were tried on raw lines; arguments as `record_preparation`."""
    folder, symbols = dictionary.parent, read_dictionary(dictionary).symbols
    used = {option for step in steps for option in STEPS[step["step"]].content}
    paths = {option: str(path) for option, path in files.items() if option in used}
    prepare, count, equal = Preparation(steps, contents(paths, symbols)), 0, []
    with libraries():
        for raw, prepared in pairs:
            count += 1
            if " ".join(tokens := prepare(raw)) == " ".join(prepared.split()):
                equal.append((raw, " ".join(tokens)))
            elif count - len(equal) > 1 + _MOST_OTHERS * count:
                raise DataError(
                    f"{folder / FILE}: {raw[:60]!r} became {prepared[:80]!r}, not {' '.join(tokens)[:80]!r}: these are "
                    "not the steps of the text; name those"
                )
    return Recorded(
        steps=tuple(map(dict, steps)),
        files={name: {"path": _relative(path, folder), "sha256": hashes(path)} for name, path in paths.items()},
        examples=tuple(pair for pair in equal if pair[0].strip())[:_EXAMPLES],
        symbols=symbols_hash(symbols),
        lines={"tried": count, "equal": len(equal)},
        folder=folder,
    )


def write_preparation(folder: PathLike, recorded: Mapping[str, Recorded], made_by: str) -> None:
    """Write `preparation.json`: name of a dictionary -> its record. Paths of files are made relative to `folder`."""
    place = Path(folder)
    content = {
        "preparation": _FORMAT,
        "made_by": made_by,
        "versions": package_versions(sorted({name for record in recorded.values() for name in record.needs()})),
        "dictionaries": {name: record.moved(place).entry() for name, record in recorded.items()},
    }
    write_json(place / FILE, content)


def copy_preparation(records: Mapping[str, Recorded], folder: PathLike) -> None:
    """Write the records of data (`records_of_data`) to another folder, with its command and versions."""
    place = Path(folder)
    for source in [recorded.folder for recorded in records.values() if recorded.folder is not None][:1]:
        entries = {name: recorded.moved(place).entry() for name, recorded in records.items()}
        write_json(place / FILE, {**read_json(source / FILE), "dictionaries": entries})


def _relative(path: PathLike, folder: PathLike) -> str:
    """Return the path of a file from a folder; either may be below a link, whose `..` is not the folder of the link."""
    place = Path(path)
    return os.path.relpath(Path(os.path.realpath(place.parent), place.name), os.path.realpath(folder))


@contextlib.contextmanager
def libraries() -> Iterator[None]:
    """Turn the ImportError of a missing library into an OptionError."""
    try:
        yield
    except ImportError as error:
        raise OptionError(str(error)) from error


def _version(library: str) -> str:
    return f"{library} {package_versions([library])[library]}"
