"""Read a file of translations, references or sources, and recognise its form.

A file is output of fairseq-generate, or plain text with a sentence per line. Any other form (n-best list, table, JSON,
XML) would be scored as if numbers and marks were words. It is refused with its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from embinit_fairseq.errors import DataError
from embinit_fairseq.io import check_is_file
from embinit_fairseq.io import read_lines as numbered_lines
from embinit_fairseq.runs.log import CONFIGURATION, without_colours

#: beginning of a line of fairseq-generate: its content, the number of the sentence
MARK = re.compile(r"[STHDPACEIW]-\d+(?:_\d+)?\t")
#: name of a program of fairseq in its log
PROGRAM = re.compile(r"\| fairseq_cli\.(\w+) \|")
#: smallest share of fairseq-generate's lines in its output; smallest share of lines with another form in a file of this
#: form: a text may have tabs, quotation marks or numbers in some lines
_LEAST_SHARE, _LEAST_FORM = 0.1, 0.9
#: a line of fairseq's log
_LOG = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| [A-Z]+ \| ")
#: text of other programs inside a line of fairseq-generate
_WITHIN = re.compile(rf"{MARK.pattern}|{_LOG.pattern}|\r|\[0?m$")
#: lines of fairseq-interactive before 0.6.1: source, hypothesis, scores, alignment
_UNNUMBERED = re.compile(r"H\t-?\d+\.\d+\t|[SOPA]\t")
#: a code of a terminal that moves or erases, or another control character that is no white space
_CONTROL = re.compile(r"\x1b(?:\[[\d;?]*\S?|.?)|[\x01-\x08\x0e-\x1a\x7f]")
#: a carriage return within a line, after which a terminal overwrites the text before it
_OVERWRITTEN = re.compile(r"(?<=\S)\s*\r(?=.*\S)")
#: smallest number of lines for a form that a sentence may have by chance
_NO_CHANCE = 4
#: form -> pattern of its lines, and the smallest number of lines that cannot be chance
_FORMS = {
    "lines of fairseq-generate without tabs or after something else": (
        r"(?:\S*:|\W*)[STHDPACEIW]-\d+(?:_\d+)?(?!\w)|.*\b[HD]-\d+\W+-?\d+\.\d",
        _NO_CHANCE,
    ),
    "columns separated by tabs": (r".*\t", 1),
    "fields of Moses, Marian or CTranslate2 (|||)": (r".*(?: \|\|\| |\|\d+-\d+\|)", 1),
    "a Markdown table": (r"\s*\|.*\|\s*$", 1),
    "JSON, or Python's lists and bytes": (r"""\s*(?:[\[{]\s*["'{\[]|b(["']).*\1$)""", 1),
    "XML, SGML or HTML": (r"\s*(?:<(\w+)\b[^<>]*>.*</\1>|</?[!?\w][^<>]*>)\s*$", 1),
    "colours of a terminal, whose control characters are missing": (r".*\[\d+(?:;\d+)*m", _NO_CHANCE),
    "a log of OpenNMT": (r"(?:SENT|PRED|GOLD) (?:\d+|SCORE): |\[[-\d :,]+ INFO\]\s*$", _NO_CHANCE),
    "a log with a time in each line": (r"\W?\d{4}-\d\d-\d\d[T ]\d\d:\d\d", _NO_CHANCE),
    "a score or number before each sentence": (
        r"""["\[(]?(?:\d+\W+)?-\d+\.\d+|"?\d+"?[,;|](?=\S)""",
        _NO_CHANCE,
    ),
}
_NUMBERED = re.compile(r"\W*(?:[A-Za-z]+[-_ ]?)?(\d+)(?:[^\w\s]|\s)")
_QUOTED = re.compile(r'\s*".*",?\s*$')


def read_file(path: Path, remedy: str = "name a file with a sentence per line") -> tuple[list[str], bool]:
    """Return the lines of a file, and whether they are output of fairseq-generate; else they are plain text.

    Only LF and CR LF end a line, not U+2028 or a lone CR.

    Args:
        path: the file.
        remedy: advice if the file is missing.

    Raises:
        DataError: the file is missing, empty or not UTF-8, has another form, or a line of fairseq-generate is damaged.
    """
    check_is_file(path, remedy=remedy)
    lines = _without_logs_within([without_colours(line) for _, line in numbered_lines(path)])
    if not lines:
        raise DataError(f"{path}: empty; write it again")
    if any("\0" in line for line in lines):
        raise DataError(
            f"{path}: binary, or text in UTF-16; if it is text, convert it: iconv -f utf-16le -t utf-8 FILE > NEW"
        )
    marked = sum(map(bool, map(MARK.match, lines)))
    if marked >= _LEAST_SHARE * len(lines) or any(CONFIGURATION in line or PROGRAM.search(line) for line in lines):
        _check_output(path, lines)
        return lines, True
    for number, line in enumerate(lines, 1):
        _check_control(f"{path}:{number}", line)
    if sum(map(bool, map(_UNNUMBERED.match, lines))) > len(lines) / 2:
        raise DataError(
            f"{path}: output of fairseq-interactive before 0.6.1, whose lines have no numbers, expected text; take the "
            "translations: grep -P '^H\\t' FILE | cut -f3 > NEW"
        )
    if form := _form(lines):
        raise DataError(
            f"{path}: {form}; give output of fairseq-generate as it is, or plain text, a sentence per line in the "
            "order of the text"
        )
    return lines, False


def _without_logs_within(lines: list[str]) -> list[str]:
    """Return lines of `fairseq-generate > FILE 2>&1` as they were printed.

    Python writes stdout in blocks, of which one may end before the end of a line: then the log is between the content
    of this line and its end.
    """
    whole, at = [], 0
    while at < len(lines):
        line, at = lines[at], at + 1
        log = _LOG.search(line) if MARK.match(line) else None
        after = next((number for number in range(at, len(lines)) if not _LOG.match(lines[number])), len(lines))
        if log is not None and lines[after : after + 1] == [""]:
            whole += [line[: log.start()], line[log.start() :], *lines[at:after]]
            at = after + 1
        else:
            whole.append(line)
    return whole


def _check_output(path: Path, lines: Sequence[str]) -> None:
    """Raise DataError if a line of fairseq-generate has text before it or within it, or spaces instead of tabs."""
    if blanks := [line for line in lines if re.match(r"[HD]-\d+ +-?\d", line)]:
        raise DataError(
            f"{path}: {blanks[0].split()[0]} is followed by a space, expected a tab; give the file as fairseq-generate "
            "has written it"
        )
    for number, line in enumerate(lines, 1):
        if MARK.match(line):
            _check_control(f"{path}:{number}", line)
        if (mark := MARK.search(line)) and (mark.start() or _WITHIN.search(line, mark.end())):
            raise DataError(
                f"{path}:{number}: {mark[0].strip()} is not alone in its line, as of grep -n, timestamps or a progress "
                "bar; remove the text before it (sed -E 's/^.*([A-Z]-[0-9]+\\t)/\\1/' FILE > NEW), or translate again "
                "with --no-progress-bar"
            )


def _check_control(where: str, line: str) -> None:
    """Raise DataError if a line has a code that moves or erases on a terminal, or another control character."""
    if (match := _CONTROL.search(line)) is None:
        return
    again = "write the file again without a terminal, colours and progress bars (--no-progress-bar > FILE 2>&1)"
    if match[0][0] not in "\b\x1b":
        again = f"replace it by a space: tr '\\{ord(match[0]):03o}' ' ' < FILE > NEW"
    raise DataError(f"{where}: found the control character {match[0]!r}, expected text alone; {again}")


def check_not_overwritten(path: Path, lines: Sequence[str]) -> None:
    """Raise DataError if a translation has a carriage return between words; references may have one."""
    for number, line in enumerate(lines, 1):
        if _OVERWRITTEN.search(line):
            raise DataError(
                f"{path}:{number}: found a carriage return within a line, expected a translation; if a progress bar "
                "wrote it, translate again without it; if it is in the text: tr '\\r' ' ' < FILE > NEW"
            )


def _form(lines: Sequence[str]) -> str:
    """Return the form of (nearly) all lines if they are no text, else ""."""
    filled = [line for line in lines if line.strip()]
    for form, (pattern, least) in _FORMS.items():
        if len(filled) >= least and sum(map(bool, map(re.compile(pattern).match, filled))) >= _LEAST_FORM * len(filled):
            return form
    quotable = [line for line in lines if re.search('[",]', line)]
    if len(quotable) >= max(_NO_CHANCE, _LEAST_SHARE * len(lines)) and all(map(_QUOTED.match, quotable)):
        return "quotation marks around each sentence, as of CSV or JSON"
    numbers = [int(match[1]) if (match := _NUMBERED.match(line)) else None for line in lines]
    following = sum(a is not None and b == a + 1 for a, b in zip(numbers, numbers[1:]))
    if len(lines) >= _NO_CHANCE and following >= _LEAST_FORM * (len(lines) - 1):
        return "a number before each sentence"
    return ""
