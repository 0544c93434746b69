"""Carry the record of how text is prepared (`preparation.json`) from an old dictionary to the new one.

The steps stay; the segmentation is the one that was written with the new dictionary. The old record's raw lines are
prepared again. Every new word is looked for in raw text: a word that is one subword of prepared text may be impossible
in raw text (`Queequeg` if text is lower-cased, `yahoo!` if Moses splits it).
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embinit_fairseq.checkpoints.trained_preparation import find_preparation, stated_steps
from embinit_fairseq.errors import DataError
from embinit_fairseq.resize.old_model import OldModel
from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.preparation_options import in_language, language_in, written
from embinit_fairseq.vocab.preparation_record import (
    FILE,
    Recorded,
    libraries,
    tried,
    write_preparation,
)
from embinit_fairseq.vocab.preparation_steps import Preparation
from embinit_fairseq.vocab.segmentation import Segmentation, check_segmentation, read_segmentation
from embinit_fairseq.vocab.step_files import ARGUMENTS, SEGMENTATION_FILES, STEP_FILES, contents, files_with
from embinit_fairseq.vocab.subword_styles import PREFIX, ignores_spaces, unescape

logger = logging.getLogger(__name__)
#: folder in the new folder for the files of the side that stays, whose names may be the same
OTHER_SIDE = "other_side"
#: patterns of the files that describe the preparation
PREPARATION_FILES = (FILE, f"input0/{FILE}", *SEGMENTATION_FILES, STEP_FILES["tokenizer"].name, f"{OTHER_SIDE}/*")


def old_preparation(old_model: OldModel, stated: str | None, paths: Mapping[str, str]) -> Recorded | None:
    """Return the preparation of the text of the dictionary that changes; None if it is unknown.

    Args:
        old_model: its checkpoint, dictionary and tensors.
        stated: value of --preparation.
        paths: option of a step -> path that the user gives.
    """
    if stated is None:
        return find_preparation(old_model.dictionary, old_model.state)
    languages = old_model.builder.languages or ()
    lang = next((lang for lang, side in zip(languages, ("encoder", "decoder")) if side in old_model.sides), None)
    steps = stated_steps(stated, lang, None, paths)
    return tried(Path(old_model.dictionary), steps, paths, ())


def old_segmentation(
    old_model: OldModel, recorded: Recorded | None, stated: str | None, paths: Mapping[str, str]
) -> Segmentation | None:
    """Return the segmentation of the dictionary that changes, by the user's files, else by the record.

    Args:
        old_model: its checkpoint, dictionary and tensors.
        recorded: result of `old_preparation`.
        stated, paths: as for `old_preparation`.
    """
    named = {} if recorded is None else {n: recorded.path_of(n, paths.get(n)) for n in recorded.files if n in ARGUMENTS}
    files = paths or named
    segmentation = read_segmentation(files.get("codes"), files.get("model"), symbols=set(old_model.symbols))
    # path_of has compared these files with the hashes of the record
    is_recorded = stated is None and bool(named) and files.keys() <= named.keys()
    if segmentation is not None and not is_recorded:
        check_segmentation(segmentation, old_model.vocabulary, old_model.dictionary)
    return segmentation


def carry_preparation(
    old_model: OldModel,
    recorded: Recorded | None,
    old: Segmentation | None,
    folder: Path,
    made_by: str,
    segmentation: dict[str, Any] | None = None,
    words: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the record of the new dictionaries to `folder`; return its entries for the command's record.

    Args:
        old_model: its checkpoint, dictionary and tensors.
        recorded: preparation of the dictionary that changes; None: nothing is written.
        old: segmentation of this dictionary, whose files for the new one are in `folder`.
        folder: folder of the new dictionaries.
        made_by: the command, for people.
        segmentation: the record of the segmentation that is in `folder`.
        words: new words.
    """
    record: dict[str, Any] = {"segmentation": segmentation, "preparation": None}
    if recorded is None:
        return record
    changed = old_model.changed_files
    names = {*changed, *(Path(name).name for name in (old_model.dictionary, *changed))}
    names = {name for name in names if (folder / name).is_file()}
    files = {name: _file(name, recorded, old, folder) for name in recorded.files}
    records: dict[Path, Recorded] = {}
    missed: dict[str, list[str]] = {}
    for name in names:
        own = _own(name, recorded, old_model) if len({Path(name).name for name in names}) > 1 else recorded
        prepare = Preparation(own.steps, contents(files, read_dictionary(folder / name).symbols))
        with libraries():
            pairs = [(raw, " ".join(prepare(raw))) for raw, _ in own.examples]
            missed |= _missed(prepare, words, old)
        records[folder / name] = tried(folder / name, own.steps, files, pairs)
    if (
        old_model.other_file is not None
        and (other := find_preparation(old_model.other_file, old_model.state)) is not None
    ):
        records[folder / old_model.other_file.name] = _brought(other, old, folder)
    for place in {file.parent for file in records}:
        write_preparation(place, {file.name: one for file, one in records.items() if file.parent == place}, made_by)
    return {**record, "preparation": {"steps": written(recorded.steps), "not_from_raw_text": missed}}


def _own(name: str, recorded: Recorded, old_model: OldModel) -> Recorded:
    """Return the record of one file of a joined dictionary: its own, else the same steps in the file's language.

    Args:
        name: name of the file.
        recorded: preparation by the user's file or option, without examples.
        old_model: its checkpoint, dictionary and tensors.
    """
    file = (recorded.folder or Path(old_model.dictionary).parent) / name
    own = find_preparation(file, old_model.state) if recorded.examples and file.is_file() else None
    if own is not None and own.symbols == recorded.symbols:
        return own
    lang = language_in(name)
    steps = in_language(recorded.steps, lang) if lang else None
    return recorded if steps in (None, [*recorded.steps]) else replace(recorded, steps=tuple(steps or ()), examples=())


def _file(name: str, recorded: Recorded, old: Segmentation | None, folder: Path) -> str:
    """Return the path of a step's file in `folder`: written with the new dictionary, else copied as recorded."""
    if old is not None and old.option == name:
        return str(folder / STEP_FILES[name].name)
    return str(_copy(name, recorded.path_of(name), folder))


def _copy(name: str, path: str, folder: Path) -> Path:
    """Copy a step's file, and the files read with it, to a folder; return its new path."""
    folder.mkdir(exist_ok=True)
    for file, copy in files_with(path, STEP_FILES[name].name).items():
        shutil.copyfile(file, folder / copy)
    return folder / STEP_FILES[name].name


def _brought(other: Recorded, old: Segmentation | None, folder: Path) -> Recorded:
    """Return the record of the other side after its files were copied to a folder in `folder`.

    The record of a checkpoint has no place of the files: the user's file for the side that changes may belong to both
    sides. The record names the expected place of a file that is not found.
    """
    files = {}
    for name, file in other.files.items():
        place = folder / OTHER_SIDE
        old_path = old.path if old is not None and old.option == name else None
        for path in (None, old_path):
            with contextlib.suppress(DataError):
                _copy(name, other.path_of(name, path), place)
                break
        else:
            logger.warning(
                "%s of the other side, %s, was not found, and is not in the new folder; copy it to %s/%s there",
                *(STEP_FILES[name].flag, file["path"], OTHER_SIDE, STEP_FILES[name].name),
            )
        files[name] = {**file, "path": f"{OTHER_SIDE}/{STEP_FILES[name].name}"}
    return replace(other, files=files, folder=folder)


def _missed(prepare: Preparation, words: Sequence[str], old: Segmentation | None) -> dict[str, list[str]]:
    """Return word -> its symbols, for new words that do not result from raw text with the word.

    A word that Moses escapes (`&apos;s`, `&amp;`) results from text without the escape, perhaps next to a letter. A
    word of a script without spaces may also be next to a letter.
    """
    missed = {}
    for word in words:
        text = word if old is None else old.text_of(word)
        symbols = prepare(text)
        plain = unescape(text)
        contexts = [plain, *(f"{before}{plain}{after}" for before in ("", "a") for after in ("a", " a"))]
        if symbols not in ([word], [PREFIX["sentencepiece"], word]) and (
            (plain == text and not ignores_spaces(word)) or not any(word in prepare(context) for context in contexts)
        ):
            missed[word] = symbols
    return missed
