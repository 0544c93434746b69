"""Find how the text of a trained model was prepared: next to its dictionary, in its checkpoint, or by an option."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from embinit_fairseq.checkpoint_file import option_nodes
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.io import PathLike
from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.preparation_options import in_language, language_in, parse_steps, suggested, written
from embinit_fairseq.vocab.preparation_record import (
    FILE,
    Recorded,
    agreed,
    own_record,
    read_preparation,
    recorded_in,
    records_of_data,
    symbols_hash,
)
from embinit_fairseq.vocab.preparation_steps import STEPS
from embinit_fairseq.vocab.step_files import ARGUMENTS, STEP_FILES, given_by

#: option in which a checkpoint has the records of its dictionaries, as JSON: name of the dictionary -> entry
OPTION = "preparation_record"
#: attribute of a task that was loaded with checkpoints: the records on which checkpoints and data agree
RECORDS = "preparation_records"


def find_preparation(dictionary: PathLike, state: Mapping[str, Any]) -> Recorded | None:
    """Return the record of the text from which a dictionary was made; None if there is none.

    Args:
        dictionary: path of the dict.txt, whose folder may have a record.
        state: content of the checkpoint, which may have one, too.

    Raises:
        DataError: a record is damaged, or is of another dictionary of this name, or the two differ.
    """
    return _find(Path(dictionary), {"the checkpoint": state})


def _find(dictionary: Path, states: Mapping[str, Mapping[str, Any]]) -> Recorded | None:
    """Return the one record of a dictionary. states: path of a checkpoint -> its content."""
    own = read_preparation(dictionary)
    statements = {str(dictionary.with_name(FILE)): own}
    for checkpoint, state in states.items():
        statements[f"the {FILE} in {checkpoint}"] = _in_checkpoint(dictionary, checkpoint, state, own is None)
    return agreed(dictionary.name, statements)


def _in_checkpoint(file: Path, checkpoint: str, state: Mapping[str, Any], must_fit: bool) -> Recorded | None:
    """Return a checkpoint's record of a dictionary's text. must_fit: refuse the record of another dictionary."""
    entries = entries_in(state)
    own = symbols_hash(read_dictionary(file).symbols) if entries else ""
    recorded_by = {name: recorded_in(entry, f"{FILE} in {checkpoint} ({name})") for name, entry in entries.items()}
    matching = {name: recorded for name, recorded in recorded_by.items() if recorded.symbols == own}
    if must_fit and file.name in entries and file.name not in matching:
        raise DataError(f"{file}: the {FILE} in {checkpoint} is of another {file.name}; {own_record(file)}")
    return matching.get(file.name) or _renamed(file.name, [*matching.values()])


def _renamed(name: str, matching: Sequence[Recorded]) -> Recorded | None:
    """Return the record of a dictionary that had another name; None if its text may be in another language."""
    if len({json.dumps(recorded.steps) for recorded in matching}) != 1:
        return None
    steps, lang = [*matching[0].steps], language_in(name)
    return matching[0] if not lang or in_language(steps, lang) in (None, steps) else None


def entries_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return name of a dictionary -> entry of the record in the content of a checkpoint."""
    texts = [node[OPTION] for node in option_nodes(state) if isinstance(node.get(OPTION), str)]
    return {name: entry for text in texts for name, entry in records_in(text).items()}


def records_of_task(task: Any, states: Mapping[str, Mapping[str, Any]]) -> dict[str, Recorded]:
    """Return name of a dictionary -> the record on which a task's data and checkpoints agree.

    Args:
        task: fairseq's task.
        states: path of a checkpoint -> its content. A checkpoint without a record agrees with all others.

    Raises:
        DataError: a dictionary does not fit its record, or two records differ.
    """
    folders = [part for part in str(getattr(_options(task), "data", None) or "").split(os.pathsep) if part]
    records = records_of_data(folders)
    for place in (Path(part, name) for part in folders[:1] for name in ("", "input0")):
        for file in sorted(place.glob("dict*.txt")) if any(map(entries_in, states.values())) else ():
            if (recorded := _find(file, states)) is not None:
                records[file.name] = recorded
    return records


def records_for_checkpoints(task: Any, states: Mapping[str, Mapping[str, Any]] | None = None) -> str | None:
    """Return `records_of_task` as JSON for checkpoints; None without a record."""
    entries = {name: recorded.entry() for name, recorded in records_of_task(task, states or {}).items()}
    return json.dumps(entries) if entries else None


def record_of_side(task: Any, side: int) -> Recorded | None:
    """Return the record of a side (0: source, 1: target) of a task that `load_model_ensemble_and_task` has returned."""
    names = [f"dict.{lang}.txt" if lang else "dict.txt" for lang in languages_of_task(task)]
    return getattr(task, RECORDS, {}).get(names[side])


def languages_of_task(task: Any) -> tuple[str | None, str | None]:
    """Return the languages of the source and of the target; None except for translation."""
    return getattr(_options(task), "source_lang", None), getattr(_options(task), "target_lang", None)


def _options(task: Any) -> Any:
    return getattr(task, "cfg", None) or getattr(task, "args", None)


def check_same_preparation(states: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise DataError if checkpoints (path -> content) have different records."""
    places = {
        f"the {FILE} in {path}": {name: recorded_in(entry, f"{FILE} in {path}") for name, entry in entries.items()}
        for path, entries in ((path, entries_in(state)) for path, state in states.items())
    }
    for name in sorted({name for records in places.values() for name in records}):
        agreed(
            name, {place: records.get(name) for place, records in places.items()}, "use checkpoints of one preparation"
        )


def refuse_options(options: Sequence[str], said_by: str, all_steps: str) -> None:
    """Raise OptionError for options that say how text is prepared if all steps are known already.

    Args:
        options: the user's options with their values, such as `--lowercase yes`.
        said_by: file or option that names the steps.
        all_steps: the option that names all steps.
    """
    if options:
        raise OptionError(
            f"{options[0]}: {said_by} says how text is prepared; leave {options[0]} out, or give all steps by "
            f"{all_steps}"
        )


def stated_steps(
    text: str, lang: str | None, lowercase: bool | None, content: Collection[str], flag: str = "--preparation"
) -> list[dict[str, Any]]:
    """Return the steps that a user names.

    Args:
        text: names of steps.
        lang: language of the text.
        lowercase: True to put lower case before the words are split, False to leave it out.
        content: options of steps whose files are given (`codes`, `model`): their step is added at the end.
        flag: the option, for messages.
    """
    steps = parse_steps(text, lang or "en", flag)
    if lowercase is not None:
        steps = [step for step in steps if step["step"] != "lowercase"]
    if lowercase:
        at = next((n for n, step in enumerate(steps) if step["step"] not in ("cleaned", "normalised")), len(steps))
        steps.insert(at, {"step": "lowercase"})
    for option in ARGUMENTS:
        if option in content and not any(step["step"] in ("bpe", "sentencepiece") for step in steps):
            steps.append({"step": STEP_FILES[option].step})
    for option in STEP_FILES:
        if option not in content and any(option in STEPS[step["step"]].content for step in steps):
            raise OptionError(f"{flag} {text}: needs the file of its subwords; give it by {given_by(option)}")
    return steps


def other_suggestion(steps: Sequence[dict[str, Any]], symbols: Collection[str], is_translation: bool) -> str | None:
    """Return a sentence if a dictionary suggests more steps than its subwords alone; else None.

    Args:
        steps: the steps of the codes or the model that the user gives without a record.
        symbols: the dictionary's symbols.
        is_translation: True if the model translates.
    """
    suggestion = suggested(symbols, is_translation)
    if suggestion == written(steps):
        return None
    return (
        f"no {FILE} says how raw text became words, so text is only segmented ({written(steps)}); the dictionary looks "
        f"like {suggestion}: if the training text was prepared so, give preparation {suggestion}"
    )


def unknown_preparation(what: str, flag: str, symbols: Collection[str], is_translation: bool) -> OptionError:
    """Return the error for text that must be prepared although nothing says how.

    Args:
        what: file or option that needs it.
        flag: option that says it.
        symbols: the dictionary's symbols, for a suggestion.
        is_translation: True if the model translates.
    """
    return OptionError(
        f"{what}: no {FILE} says how raw text became the words of this dictionary; say it by {flag} (the dictionary "
        f"looks like {suggested(symbols, is_translation)}; none: text has finished words)"
    )


def records_in(text: str) -> dict[str, Any]:
    """Return name of a dictionary -> entry of the records in a checkpoint."""
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise DataError(f"{FILE} in the checkpoint: not JSON ({error}); give the folder of the data") from error
    return entries if isinstance(entries, dict) else {}
