"""Find how the text of a trained model was prepared: next to its dictionary, or in its checkpoint; or ask the user."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from embinit_fairseq.checkpoints.loading import option_nodes
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.io import PathLike
from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.preparation_options import in_language, language_in, parse_steps, suggested, written
from embinit_fairseq.vocab.preparation_record import (
    FILE,
    FLAGS,
    Recorded,
    given_by,
    own_record,
    read_preparation,
    recorded_in,
    records_of_data,
    symbols_hash,
)
from embinit_fairseq.vocab.preparation_steps import STEPS

#: option in which a checkpoint has the records of its dictionaries, as JSON: name of the dictionary -> entry
OPTION = "preparation_record"


def find_preparation(dictionary: PathLike, state: Mapping[str, Any]) -> Recorded | None:
    """Return the record of the text that a dictionary was made of; None if there is none.

    Args:
        dictionary: path of the dict.txt, whose folder may have a record.
        state: content of the checkpoint, which may have one, too.

    Raises:
        DataError: a record is damaged, or is of another dictionary of this name.
    """
    if (recorded := read_preparation(dictionary)) is not None:
        return recorded
    entries = entries_in(state)
    own, file = symbols_hash(read_dictionary(dictionary).symbols) if entries else "", Path(dictionary)
    recorded_by = {name: recorded_in(entry, f"{FILE} in the checkpoint ({name})") for name, entry in entries.items()}
    matching = {name: recorded for name, recorded in recorded_by.items() if recorded.symbols == own}
    if file.name in entries and file.name not in matching:
        raise DataError(f"{file}: the {FILE} in the checkpoint is of another {file.name}; {own_record(file)}")
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


def records_for_checkpoints(task: Any) -> str | None:
    """Return the records of the dictionaries of a task's data, as checkpoints have them; None without a record."""
    options = getattr(task, "cfg", None) or getattr(task, "args", None)
    folders = str(getattr(options, "data", None) or "").split(os.pathsep)
    entries = {name: recorded.entry() for name, recorded in records_of_data(folders).items()}
    return json.dumps(entries) if entries else None


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
    for option, name in (("codes", "bpe"), ("model", "sentencepiece")):
        if option in content and not any(step["step"] in ("bpe", "sentencepiece") for step in steps):
            steps.append({"step": name})
    for option in FLAGS:
        if option not in content and any(option in STEPS[step["step"]].content for step in steps):
            raise OptionError(f"{flag} {text}: needs the file of its subwords; give it by {given_by(option)}")
    return steps


def other_suggestion(steps: Sequence[dict[str, Any]], symbols: Collection[str], is_translation: bool) -> str | None:
    """Return a sentence if a dictionary suggests other steps than those that follow from a file alone; else None.

    Args:
        steps: of codes or a model that the user gives without a record and without more steps.
        symbols: of the dictionary.
        is_translation: True if the model translates.
    """
    found = suggested(symbols, is_translation)
    if found == written(steps):
        return None
    return (
        f"no {FILE} says how raw text became words, so text is only segmented ({written(steps)}); the dictionary looks "
        f"like {found}: if the training text was prepared so, give preparation {found}"
    )


def unknown_preparation(what: str, flag: str, symbols: Collection[str], is_translation: bool) -> OptionError:
    """Return the error for text that must be prepared although nobody has said how.

    Args:
        what: file or option that needs it.
        flag: option that says it.
        symbols: of the dictionary, for a proposal.
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
