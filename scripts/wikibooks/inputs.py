"""Read text of several layouts as lines, and name files that are not text.

Layouts: plain text with a blank line after each document, JSON (one object with a `text` per line, one object, or a
list of them), and the `<doc ...>` files of Wikipedia's extractors. HTML entities become their characters.
"""

from __future__ import annotations

import codecs
import csv
import html
import io
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator
from html.entities import html5
from pathlib import Path
from typing import Any, BinaryIO

from wikibooks.open_inputs import LayoutError

#: bytes of a JSON object on one line, or of a whole file that is one JSON value: it is in memory several times
MAX_JSON_BYTES = 32_000_000
#: number of bytes by which a layout is recognised
SAMPLE = 1 << 16
#: lines that are searched for markup
SAMPLE_LINES = 1000

_JSON = re.compile(rb'\s*(\[\s*)?\{\s*["}]')
_DOC = re.compile(rb"\s*<doc( [^<>]*)?>")
_DOC_EDGE = re.compile(rb"<doc( [^<>]*)?>|</doc>")
_ENTITY = re.compile(r"&(?:amp;)*(#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|\w{2,31})(;|(?![\w=]))")  # not a URL's &copy=2

#: beginning of a file that is not text -> its kind and the program that makes text of it
_NO_TEXT = {
    rb"PK\x03\x04": "a zip archive: unpack it with unzip",
    rb"(?s).{257}ustar": "a tar archive: unpack it with tar -x",
    rb"ARROW1": "an Arrow table: write it as Parquet or as JSON lines (pandas: to_json(lines=True))",
    rb"%PDF": "PDF: extract its text with pdftotext",
    rb"WARC/": "a web archive: extract the text of its pages, for instance with trafilatura",
    rb"\xff\xfe|\xfe\xff": "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
    rb"\s*<(\?xml|mediawiki)": "XML: extract its text, for a dump of Wikipedia with wikiextractor",
    rb"(?i)\s*<(!doctype|html|head|body)\b": "HTML: extract its text, for instance with trafilatura",
    rb"[^\0]*\0": "binary data: convert it to text in UTF-8",
    rb"[^\n\r]*\r[^\n]*\Z": "lines that end in CR alone: convert them with tr '\\r' '\\n'",
}
#: markup within lines -> its pattern, and the remedy
_MARKUP = {
    "tags": (
        rb"</[a-zA-Z][\w:-]*\s*>|<[a-zA-Z][\w:-]*(?:\s[^<>]*)?/>|<[a-zA-Z][\w:-]*\s+[\w:-]+\s*=[^<>]*>|<(?:br|hr|li|p)>",
        "take them out, for instance with sed -E 's/<[^<>]+>//g'",
    ),
    "wiki markup": (rb"\[\[[^\[\]]+\]\]|\{\{|\{\||'''|^==+[^=]+==+$", "extract the text with wikiextractor"),
    "JSON": (
        rb"""^[\[{]\s*["{'].*[\]},]$|^".*\\[nu"].*"$""",  # strings: jq '.text' without -r
        "write one object with a text per line, for instance with jq -c '{text: .}'",
    ),
}


def read_lines(stream: BinaryIO, max_bytes: int) -> Iterator[bytes | None]:
    """Yield the lines of all documents: without spaces at its ends, b"" at the end of a document, None if too long.

    Args:
        stream: text in any layout, seekable.
        max_bytes: a longer line of a plain text is not held in memory.
    """
    stream.seek(0)
    head = stream.read(SAMPLE).removeprefix(codecs.BOM_UTF8)
    stream.seek(0)
    if _JSON.match(head):
        yield from _json_lines(stream)
        return
    is_doc = bool(_DOC.match(head))
    for raw in _whole_lines(stream, max_bytes):
        line = None if raw is None else unescape(raw.removeprefix(codecs.BOM_UTF8).strip())
        if not is_doc:
            yield line
        elif line != b"":  # blank lines separate paragraphs
            yield b"" if line and _DOC_EDGE.fullmatch(line) else line


def unescape(line: bytes) -> bytes:
    """Replace HTML entities, also escaped ones (`&amp;lt;`), by their characters; a line remains one line."""
    if b"&" not in line:
        return line

    def character(match: re.Match[str]) -> str:
        name = match[1] + match[2]
        return html.unescape(f"&{name}") if name[0] == "#" or name in html5 else f"&{name}"

    text = _ENTITY.sub(character, line.decode("utf-8", "surrogateescape"))
    return text.replace("\n", " ").encode("utf-8", "surrogateescape")


def _whole_lines(stream: BinaryIO, max_bytes: int) -> Iterator[bytes | None]:
    """Yield the lines, None for one of more than `max_bytes`."""
    while raw := stream.readline(max_bytes):
        is_whole, end = True, raw
        while not end.endswith(b"\n") and (end := stream.readline(max_bytes)):
            is_whole = False
        yield raw if is_whole else None


def _json_lines(stream: BinaryIO) -> Iterator[bytes | None]:
    for raw in _json_values(stream):
        if raw is None:
            yield None
            continue
        for text in _texts(_parse(raw), raw):
            yield from (
                unescape(line) for line in map(bytes.strip, text.encode("utf-8", "ignore").split(b"\n")) if line
            )
            yield b""


def _json_values(stream: BinaryIO) -> Iterator[bytes | None]:
    """Yield the JSON values, None for one that is too long: the lines, or the whole file if line 1 is no value."""
    lines = (raw for raw in _whole_lines(stream, MAX_JSON_BYTES) if raw is None or raw.strip())
    first = next(lines, None)
    if first is not None and _is_json(first):
        yield from itertools.chain([first], lines)
        return
    stream.seek(0)
    whole = stream.read(MAX_JSON_BYTES + 1)
    if len(whole) > MAX_JSON_BYTES:
        raise LayoutError(
            "one JSON value of more than 32 MB; expected an object per line: jq -c '.[]' FILE >FILE.jsonl"
        )
    yield whole


def _is_json(raw: bytes) -> bool:
    try:
        return _parse(raw) is not None
    except LayoutError:
        return False


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8-sig", "replace"), strict=False)
    except (ValueError, RecursionError):
        shown = raw[:60].decode("utf-8", "replace")
        raise LayoutError(f"{shown!r} ... is not JSON; expected an object per line: jq -c . FILE >FILE.jsonl") from None


def _texts(value: Any, raw: bytes) -> Iterator[str]:
    for record in value if isinstance(value, list) else [value]:
        text = record.get("text", 0) if isinstance(record, dict) else 0
        if text is not None and not isinstance(text, str):
            shown = f"the keys {', '.join(record)}" if isinstance(record, dict) else type(record).__name__
            raise LayoutError(
                f"a JSON record has {shown}; expected an object whose text is a string: jq -c '{{text: .KEY}}' FILE "
                f">FILE.jsonl (record: {raw[:60].decode('utf-8', 'replace')!r})"
            )
        yield text or ""


def check_text(sample: bytes) -> None:
    """Raise LayoutError if a file that begins with `sample` is not text in UTF-8, or is a table."""
    sample = sample.removeprefix(codecs.BOM_UTF8)
    for beginning, what in _NO_TEXT.items():
        if re.match(beginning, sample):
            raise LayoutError(f"{what}; expected text or JSON lines")
    lines = sample.splitlines()[: -1 if len(sample) >= SAMPLE - len(codecs.BOM_UTF8) else None]
    broken = sum(line != line.decode("utf-8", "ignore").encode() for line in lines)
    if broken * 100 > len(lines):
        raise LayoutError(
            f"{broken} of the first {len(lines)} lines are not UTF-8: convert it with iconv -f latin1 -t utf-8"
        )
    delimiters = {} if _JSON.match(sample) or _DOC.match(sample) else {"\t": "TSV", ",": "CSV", ";": "CSV"}
    for delimiter, kind in delimiters.items():
        if columns := _columns(b"\n".join(lines[:SAMPLE_LINES]).decode("utf-8", "replace"), delimiter):
            shown = ", ".join(columns)[:60]
            raise LayoutError(
                f"a {kind} table of {len(columns)} columns ({shown}); expected text or JSON lines: write the column of "
                "the text, named text, as JSON lines (pandas: read_csv, to_json(orient='records', lines=True))"
            )


def _columns(text: str, delimiter: str) -> list[str]:
    """Return the first row of a table: nine rows in ten are as wide, and unlike prose no space follows a delimiter."""
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting) if row]
    as_wide = sum(len(row) == len(rows[0]) for row in rows)
    is_table = len(rows) > 2 and len(rows[0]) > 1 and as_wide * 10 >= len(rows) * 9
    return rows[0] if is_table and not any(cell.startswith(" ") for cell in rows[0]) else []


def check_markup(path: Path, lines: Iterable[bytes]) -> None:
    """Name the markup in the first lines of a file; raise LayoutError if one line in ten has markup."""
    lines = list(lines)
    for name, (pattern, remedy) in _MARKUP.items():
        matches = [match[0] for match in map(re.compile(pattern).search, lines) if match]
        if not matches:
            continue
        shown = matches[0][:40].decode("utf-8", "replace")
        message = f"{len(matches)} of the first {len(lines)} lines have {name} ({shown}); expected plain text: {remedy}"
        if len(matches) * 10 >= len(lines):
            raise LayoutError(message)
        print(f"warning: {path}: {message}", file=sys.stderr)
