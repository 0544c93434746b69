"""Read text of several layouts as a stream of lines, and name what is no text.

Layouts: plain text with a blank line after each document, JSON (one object with a `text` per line, one object, or a
list of them), and the `<doc ...>` files of Wikipedia's extractors. HTML entities become their characters.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import html
import json
import lzma
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from html.entities import html5
from pathlib import Path
from typing import Any, BinaryIO

#: bytes of a JSON object on one line, or of a whole file that is one JSON value: it is in memory several times
MAX_JSON_BYTES = 32_000_000
#: bytes by which a layout is recognised
SAMPLE = 1 << 16
#: lines that are searched for markup
SAMPLE_LINES = 1000

_OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_JSON = re.compile(rb'\s*(\[\s*)?\{\s*["}]')
_DOC = re.compile(rb"\s*<doc( [^<>]*)?>")
_DOC_EDGE = re.compile(rb"<doc( [^<>]*)?>|</doc>")
_ENTITY = re.compile(r"&(?:amp;)*(#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|\w{2,31})(;|(?![\w=]))")  # not a URL's &copy=2

#: how a file begins that is no text -> its name and what makes text of it
_NO_TEXT = {
    rb"\x28\xb5\x2f\xfd": "zstd: unpack it with zstd -d",
    rb"PK\x03\x04": "a zip archive: unpack it with unzip",
    rb"(?s).{257}ustar": "a tar archive: unpack it with tar -x",
    rb"PAR1|ARROW1": "a Parquet or Arrow table: write it as JSON lines (pandas: to_json(lines=True))",
    rb"%PDF": "PDF: extract its text with pdftotext",
    rb"WARC/": "a web archive: extract the text of its pages, for instance with trafilatura",
    rb"\xff\xfe|\xfe\xff": "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
    rb"\s*<(\?xml|mediawiki)": "XML: extract its text, for a dump of Wikipedia with wikiextractor",
    rb"(?i)\s*<(!doctype|html|head|body)\b": "HTML: extract its text, for instance with trafilatura",
    rb"[^\0]*\0": "binary data: convert it to text in UTF-8",
    rb"[^\n\r]*\r[^\n]*\Z": "lines that end in CR alone: convert them with tr '\\r' '\\n'",
}
#: markup within lines -> its pattern, and what takes it out
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


class LayoutError(ValueError):
    """What was found, what was expected and what to do; `open_input` names the file."""


@contextlib.contextmanager
def open_input(path: Path) -> Iterator[BinaryIO]:
    """Open a plain, gz, bz2 or xz file, recognised by its content.

    Raises:
        SystemExit: the file is missing, damaged or no text.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(6)
    except OSError as error:
        raise SystemExit(f"error: {path}: cannot be read ({error.strerror}): correct the path") from None
    opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), open)
    try:
        with opener(path, "rb") as stream:
            yield stream
    except LayoutError as error:
        raise SystemExit(f"error: {path}: {error}") from None
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # not of the decompressor: for instance a full disk
            raise
        raise SystemExit(f"error: {path}: damaged or incomplete ({error}): get it again") from None


def read_lines(stream: BinaryIO, offset: int, max_bytes: int) -> Iterator[tuple[bytes | None, int]]:
    """Yield the lines of all documents after `offset`.

    Args:
        stream: text in any layout, seekable.
        offset: bytes, where a document begins.
        max_bytes: a longer line of a plain text is not held in memory.

    Yields:
        (line without spaces at its ends, b"" at the end of a document, None for a line that is too long; bytes of the
        input that end with this line, 0 within a JSON value). The offset to go on at is the sum of the bytes.
    """
    stream.seek(0)
    head = stream.read(SAMPLE).removeprefix(codecs.BOM_UTF8)
    if _JSON.match(head):
        yield from _json_lines(stream, offset)
        return
    is_doc, skipped = bool(_DOC.match(head)), 0
    stream.seek(offset)
    for raw, size in _whole_lines(stream, max_bytes):
        line = None if raw is None else unescape(raw.removeprefix(codecs.BOM_UTF8).strip())
        if is_doc and line == b"":  # between paragraphs
            skipped += size
            continue
        yield b"" if is_doc and line and _DOC_EDGE.fullmatch(line) else line, size + skipped
        skipped = 0


def unescape(line: bytes) -> bytes:
    """Replace HTML entities, also escaped ones (`&amp;lt;`), by their characters; a line remains one line."""
    if b"&" not in line:
        return line

    def character(match: re.Match[str]) -> str:
        name = match[1] + match[2]
        return html.unescape(f"&{name}") if name[0] == "#" or name in html5 else f"&{name}"

    text = _ENTITY.sub(character, line.decode("utf-8", "surrogateescape"))
    return text.replace("\n", " ").encode("utf-8", "surrogateescape")


def _whole_lines(stream: BinaryIO, max_bytes: int) -> Iterator[tuple[bytes | None, int]]:
    """Yield (line or None if it has more than `max_bytes`, its bytes)."""
    while raw := stream.readline(max_bytes):
        size, complete = len(raw), raw.endswith(b"\n")
        while not complete and (rest := stream.readline(max_bytes)):
            raw, size, complete = b"", size + len(rest), rest.endswith(b"\n")
        yield (raw if size <= max_bytes else None), size


def _json_lines(stream: BinaryIO, offset: int) -> Iterator[tuple[bytes | None, int]]:
    for raw, size in _json_values(stream, offset):
        lines: list[bytes] = []
        for text in _texts(_parse(raw), raw) if raw else ():
            lines += [unescape(line) for line in map(bytes.strip, text.encode("utf-8", "ignore").split(b"\n")) if line]
            lines += [b""]
        if not any(lines):
            yield None if raw is None else b"", size
            continue
        last = max(at for at, line in enumerate(lines) if line)
        yield from ((line, size if at == last else 0) for at, line in enumerate(lines))


def _json_values(stream: BinaryIO, offset: int) -> Iterator[tuple[bytes | None, int]]:
    """Yield (a JSON value, b"" for a blank line, None if it is too long; its bytes): the lines, or the whole file."""
    stream.seek(0)
    first = next((raw for raw, _ in _whole_lines(stream, MAX_JSON_BYTES) if raw is None or raw.strip()), None)
    with contextlib.suppress(LayoutError):
        if first is not None and _parse(first) is not None:
            stream.seek(offset)
            for raw, size in _whole_lines(stream, MAX_JSON_BYTES):
                yield (None if raw is None else raw.strip()), size
            return
    if offset:
        return
    stream.seek(0)
    whole = stream.read(MAX_JSON_BYTES + 1)
    if len(whole) > MAX_JSON_BYTES:
        raise LayoutError(
            "one JSON value of more than 32 MB; expected an object per line: jq -c '.[]' FILE >FILE.jsonl"
        )
    yield whole, len(whole)


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8-sig", "replace"), strict=False)
    except (ValueError, RecursionError):
        shown = raw[:60].decode("utf-8", "replace")
        raise LayoutError(f"{shown!r} ... is no JSON; expected an object per line: jq -c . FILE >FILE.jsonl") from None


def _texts(value: Any, raw: bytes) -> Iterator[str]:
    for record in value if isinstance(value, list) else [value]:
        text = record.get("text", 0) if isinstance(record, dict) else 0
        if text is not None and not isinstance(text, str):
            found = f"the keys {', '.join(record)}" if isinstance(record, dict) else type(record).__name__
            raise LayoutError(
                f"a JSON record has {found}; expected an object whose text is a string: jq -c '{{text: .KEY}}' FILE "
                f">FILE.jsonl (record: {raw[:60].decode('utf-8', 'replace')!r})"
            )
        yield text or ""


def check_text(sample: bytes) -> None:
    """Raise LayoutError if a file that begins with `sample` is no text in UTF-8."""
    for beginning, what in _NO_TEXT.items():
        if re.match(beginning, sample.removeprefix(codecs.BOM_UTF8)):
            raise LayoutError(f"{what}; expected text or JSON lines")
    lines = sample.splitlines()[: -1 if len(sample) >= SAMPLE else None]
    broken = sum(line != line.decode("utf-8", "ignore").encode() for line in lines)
    if broken * 100 > len(lines):
        raise LayoutError(
            f"{broken} of the first {len(lines)} lines are not UTF-8: convert it with iconv -f latin1 -t utf-8"
        )


def check_markup(path: Path, lines: Iterable[bytes]) -> None:
    """Name the markup in the first lines of a file; raise LayoutError if one line in ten has some."""
    lines = list(lines)
    for name, (pattern, remedy) in _MARKUP.items():
        found = [match[0] for match in map(re.compile(pattern).search, lines) if match]
        if not found:
            continue
        shown = found[0][:40].decode("utf-8", "replace")
        message = f"{len(found)} of the first {len(lines)} lines have {name} ({shown}); expected plain text: {remedy}"
        if len(found) * 10 >= len(lines):
            raise LayoutError(message)
        print(f"warning: {path}: {message}", file=sys.stderr)
