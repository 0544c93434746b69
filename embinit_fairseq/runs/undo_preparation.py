"""Find how the text of translations was prepared (`preparation.json`), and undo it: symbols become text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from embinit_fairseq.errors import OptionError
from embinit_fairseq.runs.record import TRAINING
from embinit_fairseq.runs.translations import Translations
from embinit_fairseq.vocab.preparation_options import written
from embinit_fairseq.vocab.preparation_record import (
    FILE,
    Recorded,
    agreed,
    entries_of,
    libraries,
    read_preparation,
    recorded_in,
)
from embinit_fairseq.vocab.preparation_steps import STEPS, Preparation
from embinit_fairseq.vocab.step_files import contents

#: option of a step with a file that joins symbols -> name of its value in --detokenize; codes of BPE join nothing
_FILES = {"model": "MODEL", "tokenizer": "DIR"}


@dataclass(frozen=True)
class Undo:
    """Turn the symbols of translations into text by a record."""

    recorded: Recorded

    @property
    def words_of_user(self) -> list[str]:
        """Return the steps as words of --detokenize: `["bpe", "moses"]`."""
        names = []
        for step in reversed(self.recorded.steps):
            entry = STEPS[step["step"]]
            file = next((f"={_FILES[option]}" for option in entry.content if option in _FILES), "")
            names += [step["step"] + file] if entry.undo is not None else []
        return names

    @cached_property
    def _preparation(self) -> Preparation:
        flag = f"--detokenize {' '.join(self.words_of_user)}"
        options = _FILES.keys() & self.recorded.files.keys()
        paths = {option: self.recorded.path_of(option, flag=flag) for option in options}
        return Preparation(self.recorded.steps, contents(paths, ()))

    def text(self, line: str) -> str:
        """Return a line of symbols as text."""
        with libraries():
            return self._preparation.text(line.split())

    @property
    def steps(self) -> str:
        """Return the steps, as a user writes them."""
        return written(self.recorded.steps)

    @property
    def is_of_moses(self) -> bool:
        """Return True if the text consisted of Moses' words before it was segmented."""
        return self.words_of_user[-1:] == ["moses"]

    def words(self, line: str) -> str:
        """Return a line of symbols as words."""
        return self._preparation.words(line.split())


def recorded_undo(place: Path, translated: Translations, must_exist: bool) -> Undo | None:
    """Return the preparation of the target's text, recorded in the run, next to the data's dictionary, or elsewhere.

    Args:
        place: the run, or the translations.
        translated: the translations; their options name data and checkpoint.
        must_exist: also look into the checkpoint, and raise OptionError if there is no record, or if
            fairseq-generate has joined the symbols before it printed them.
    """
    joined = translated.option("post_process")
    records = dict(_records(place, translated, must_exist)) if joined is None else {}
    recorded = agreed("the translations", records, "say the steps, such as --detokenize bpe moses")
    if recorded is not None:
        return Undo(recorded)
    if not must_exist:
        return None
    if joined is not None:
        raise OptionError(
            f"--detokenize: fairseq-generate has joined the subwords already (--post-process {joined}): leave "
            "--detokenize out, or say the remaining steps, such as --detokenize moses"
        )
    raise OptionError(
        f"--detokenize: no {FILE} in the run, the data or the checkpoint says how the text was prepared; say the "
        "steps, such as --detokenize bpe moses"
    )


def _records(place: Path, translated: Translations, with_checkpoint: bool) -> Iterator[tuple[str, Recorded]]:
    """Yield place and record of the target's dictionary."""
    names = [f"dict.{translated.target_lang}.txt"] * bool(translated.target_lang) + ["dict.txt"]
    folders = [Path(folder) for folder in (translated.option("data") or "").split(os.pathsep) if folder]
    for name in names:
        if (place / TRAINING).is_file() and (entry := entries_of(place).get(name)) is not None:
            yield str(place / FILE), recorded_in(entry, str(place / FILE), place)
        for dictionary in (folder / name for folder in folders):
            if dictionary.is_file() and (recorded := read_preparation(dictionary)) is not None:
                yield str(dictionary.with_name(FILE)), recorded
    path = (translated.option("path") or "").split(os.pathsep)[0]
    if with_checkpoint and Path(path).is_file():
        from embinit_fairseq.checkpoints.loading import load_model_checkpoint
        from embinit_fairseq.checkpoints.trained_preparation import entries_in

        entries, where = entries_in(load_model_checkpoint(path)), f"the {FILE} in {path}"
        yield from ((where, recorded_in(entries[name], where)) for name in names if name in entries)
