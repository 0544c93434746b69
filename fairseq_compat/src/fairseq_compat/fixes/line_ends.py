"""A CR inside a line shifts the pairs of a parallel text; now only LF ends a line.

Symptom: one side of a parallel text has a sentence more than the other, and ``fairseq-preprocess`` binarises pairs
    that do not belong together, without a word. ``fairseq-interactive``, the raw data set, alignments,
    ``fairseq-score`` and the program ``sacremoses`` read in the same way. ``subword-nmt`` takes U+2028, U+0085 and
    other ends of lines of ``str.splitlines`` for a part of the word before, whose last subword is then marked as if
    the word continued.
Where: fairseq/file_chunker_utils.py:25 and :80, fairseq/data/indexed_dataset.py:280, fairseq_cli/preprocess.py:236,
    fairseq_cli/interactive.py:44, fairseq_cli/score.py:60, fairseq/hub_utils.py:145, sacremoses/cli.py,
    subword_nmt/subword_nmt.py.
Remedy: LF alone ends a line, as ``wc -l`` counts. A CR before it belongs to the end of the line (files of Windows);
    any other character that ``str.splitlines`` splits at is a space. A byte-order mark is no text.
Can go: with a fairseq, a sacremoses and a subword-nmt that open text with ``newline="\\n"``.
"""

from __future__ import annotations

import builtins
import io
import os
import re
import sys
from contextlib import nullcontext

from fairseq_compat.fixes.byte_order_marks import unmarked
from fairseq_compat.patches import shadow, wrap

BROKEN = (
    r'\bopen\([^()]+, "r", encoding="utf-8"\)|fileinput\.input\(|open\(args\.ref\)|\.splitlines\(\)'
    r"|click\.get_text_stream\(|codecs\.getreader\("
)

#: the characters except LF at which ``str.splitlines`` splits
OTHER_ENDS = re.compile("[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def one_line(text: str) -> str:
    """Replace every other end of a line in a line that ends with LF, or with CR and LF, by a space."""
    return OTHER_ENDS.sub(" ", text.replace("\r\n", "\n"))


class LineReader(io.TextIOWrapper):
    """Read lines that end with LF, without other ends of lines inside and without a byte-order mark before the first.

    ``tell`` and ``seek`` work as usual.
    """

    def __init__(self, raw, encoding: str | None = "utf-8") -> None:
        super().__init__(raw, encoding=unmarked(encoding), newline="\n")

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # text, as the class itself has it
        return one_line(super().readline(size))


def open_lines(file, mode="r", *args, encoding=None, **options):
    """Open a file like ``open``, text with a :class:`LineReader`."""
    if mode != "r":
        return builtins.open(file, mode, *args, encoding=encoding, **options)  # type: ignore[call-overload]
    return LineReader(builtins.open(file, "rb"), encoding)


def open_input(name: str, encoding: str | None = "utf-8"):
    """Return a context manager with the lines of a file; ``-`` is standard input."""
    if name != "-":
        return open_lines(name, encoding=encoding)
    try:
        return open_lines(os.dup(sys.stdin.fileno()), encoding=encoding)
    except io.UnsupportedOperation:  # something in memory
        return nullcontext(sys.stdin)


def patch(module):
    module.open = open_lines


def patch_score(module) -> None:
    module.open = open_lines

    @wrap(module)
    def cli_main(original):
        with open_input("-", None) as lines:
            shadow(module, "sys.stdin", lines)
            original()


def patch_hub(module) -> None:
    @wrap(module.GeneratorHubInterface)
    def score(original, self, sentences, replace_newline_with_eos=False, **options):
        if replace_newline_with_eos:
            sentences = one_line(sentences) if isinstance(sentences, str) else list(map(one_line, sentences))
        return original(self, sentences, replace_newline_with_eos=replace_newline_with_eos, **options)


def patch_sacremoses(module) -> None:
    module.open = open_lines
    shadow(module, "click.get_text_stream", lambda name, encoding=None: open_input("-", encoding))


def patch_subword_nmt(module) -> None:
    sys.stdin = LineReader(getattr(sys.stdin, "stream", sys.stdin))  # the stream inside of sacremoses' reader
    shadow(module, "codecs.open", open_lines)


PATCHES = {
    "fairseq_cli.interactive": lambda module: shadow(
        module, "fileinput.input", lambda files, openhook=None: open_input(files[0])
    ),
    "fairseq_cli.score": patch_score,
    "fairseq.hub_utils": patch_hub,
    "sacremoses.cli": patch_sacremoses,
    "subword_nmt.subword_nmt": patch_subword_nmt,
}
