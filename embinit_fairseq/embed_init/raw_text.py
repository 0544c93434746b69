"""Prepare the raw text of fairseq-interactive as `preparation.json` says, or compare fairseq's options with it.

`--tokenizer recorded` makes symbols of raw text and text of symbols, by the record of the data or of the checkpoint.
fairseq's own `--tokenizer` and `--bpe` lack steps (lower case, cleaning) and have other defaults.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.data.encoders import register_tokenizer
from fairseq.dataclass import FairseqDataclass

from embinit_fairseq.checkpoints.trained_preparation import languages_of_task, record_of_side, unknown_preparation
from embinit_fairseq.errors import DataError
from embinit_fairseq.vocab.preparation_options import written
from embinit_fairseq.vocab.preparation_record import FILE
from embinit_fairseq.vocab.preparation_steps import Preparation
from embinit_fairseq.vocab.step_files import ARGUMENTS, STEP_FILES, given_files

logger = logging.getLogger(__name__)
RECORDED = "--tokenizer recorded"
#: attribute of a task whose options were compared
_COMPARED = "_embinit_compared"


@dataclass
class RecordedTokenizerConfig(FairseqDataclass):
    """Hold the files of the steps, if they are not where the record says."""

    bpe_codes: Optional[str] = field(default=None, metadata={"help": "codes of the recorded step bpe"})
    sentencepiece_model: Optional[str] = field(default=None, metadata={"help": "model of the step sentencepiece"})


@register_tokenizer("recorded", dataclass=RecordedTokenizerConfig)
class RecordedTokenizer:
    """Apply all steps from raw text to symbols, and back; `use` sets the dictionaries."""

    def __init__(self, cfg: RecordedTokenizerConfig) -> None:
        self.user_files = given_files(cfg)
        self.source = self.target = Preparation()

    def use(self, task: Any) -> None:
        """Take the records of a task; raise OptionError if a side has none."""
        dictionaries = task.source_dictionary, task.target_dictionary
        self.source, self.target = (self._preparation(task, *side) for side in enumerate(dictionaries))

    def _preparation(self, task: Any, side: int, dictionary: Any) -> Preparation:
        recorded = record_of_side(task, side)
        if recorded is None:
            is_translation = languages_of_task(task)[0] is not None
            flags = "fairseq's --tokenizer and --bpe"
            raise unknown_preparation(RECORDED, flags, dictionary.symbols, is_translation)
        return recorded.preparation(dictionary.symbols, self.user_files)

    def encode(self, text: str) -> str:
        """Return the symbols of a raw text, separated by spaces."""
        return " ".join(self.source(text))

    def decode(self, text: str) -> str:
        """Return the text for symbols that are separated by spaces."""
        return self.target.text(text.split())


def build_tokenizer(inner: Callable[..., Any], task: Any, cfg: Any) -> Any:
    """Build fairseq's tokenizer; give `recorded` the records."""
    tokenizer = inner(task, cfg)
    if isinstance(tokenizer, RecordedTokenizer):
        tokenizer.use(task)
    return tokenizer


def build_bpe(inner: Callable[..., Any], task: Any, cfg: Any) -> Any:
    """Build fairseq's BPE; raise DataError if its file is neither in the source's nor in the target's record."""
    records = [recorded for side in (0, 1) if (recorded := record_of_side(task, side)) is not None]
    for option, name in ARGUMENTS.items():
        path, own = getattr(cfg, name, None), [recorded for recorded in records if option in recorded.files]
        if path is not None and own and not any(recorded.fits(option, path) for recorded in own):
            raise DataError(
                f"{STEP_FILES[option].flag} {path}: not the file that the text of this model was segmented with (other "
                f"hash than in {FILE}): give that one, or {RECORDED} without --bpe"
            )
    return inner(task, cfg)


def encode_lines(
    inner: Callable[..., Any], task: Any, lines: Sequence[str], encode: Callable[[str], str]
) -> tuple[list[Any], list[int]]:
    """Encode lines by fairseq's options; at the first call, warn if they make other symbols than the record."""
    recorded = None if hasattr(task, _COMPARED) else record_of_side(task, 0)
    setattr(task, _COMPARED, True)
    steps = written(recorded.steps) if recorded is not None else ""
    for raw, symbols in recorded.examples if recorded is not None else ():
        made = encode(raw)
        if made not in (raw, symbols):  # unchanged: the lines have finished words
            logger.warning(
                f"--tokenizer and --bpe make {made[:60]!r} of {raw[:60]!r}, the training text has {symbols[:60]!r} "
                f"({FILE}: {steps}): give {RECORDED} without --bpe, or do the other steps before"
            )
            break
    return inner(task, lines, encode)
