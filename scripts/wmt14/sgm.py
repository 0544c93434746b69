"""Read the sgm and XML files of WMT's and IWSLT's test sets; check that no segment is lost and both sides match.

Such files are not XML (many have a bare & or <), so only the tags that matter are searched.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FLAGS = re.IGNORECASE | re.DOTALL
_DOC_OR_SEGMENT = re.compile(r"<doc\b([^>]*)>|<seg\b([^>]*?)(?:/>|>(.*?)</seg>)", _FLAGS)
_ATTRIBUTE = r"""(?<!\w){}\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'/]+))"""


class Segment(NamedTuple):
    """Hold a segment. doc, id: attributes in the file, or None; text: all runs of spaces are one space."""

    doc: str | None
    id: str | None
    text: str


def read_utf8(path: Path) -> str:
    """Return the content of a file; SystemExit if it is not UTF-8."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line, byte = content.count(b"\n", 0, error.start) + 1, content[error.start]
        likely = "UTF-16" if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "ISO-8859-1"
        raise SystemExit(
            f"error: {path}: line {line} is not UTF-8 (byte 0x{byte:02x}): convert the file; if it is {likely}, by "
            f"iconv -f {likely} -t UTF-8"
        ) from None


def utf8_lines(path: Path) -> Iterator[str]:
    """Yield the lines; only a line feed ends one."""
    return io.StringIO(read_utf8(path), newline="\n")


def read_sgm(path: Path) -> list[Segment]:
    """Return all segments; SystemExit if there are none, or if a tag is not closed, as in a truncated file."""
    content = read_utf8(path)
    segments, doc = [], None
    for tag in _DOC_OR_SEGMENT.finditer(content):
        if tag[1] is not None:
            doc = _attribute(tag[1], "docid")
        else:
            segments.append(Segment(doc, _attribute(tag[2], "id"), " ".join((tag[3] or "").split())))
    if not segments:
        raise SystemExit(f"error: {path}: no <seg ...>...</seg> in it: it is not an sgm file of a test set")
    for name in ("seg", "doc", "refset", "srcset", "tstset", "mteval"):
        opened, closed, empty = (
            len(re.findall(pattern, content, _FLAGS)) for pattern in (rf"<{name}\b", f"</{name}>", rf"<{name}\b[^>]*/>")
        )
        if opened != closed + empty or (name == "seg" and opened != len(segments)):
            raise SystemExit(
                f"error: {path}: {opened} tags <{name}>, {closed + empty} of them closed, {len(segments)} segments: "
                "the file is damaged or incomplete; get it again"
            )
    return segments


def _attribute(attributes: str, name: str) -> str | None:
    match = re.search(_ATTRIBUTE.format(name), attributes, re.IGNORECASE)
    return next(value for value in match.groups() if value is not None).strip() if match else None


def same_length(paths: tuple[Path, Path], sides: tuple[list, list]) -> None:
    """Raise SystemExit if one side has more sentences than the other."""
    lengths = [len(side) for side in sides]
    if lengths[0] != lengths[1]:
        raise SystemExit(
            f"error: {paths[0]} has {lengths[0]:,} sentences, {paths[1]} {lengths[1]:,}: they do not belong together; "
            "get them again"
        )


def read_pair(source: Path, reference: Path) -> tuple[list[str], list[str]]:
    """Return the text of both sides; SystemExit if ids of segments or documents differ."""
    sides = read_sgm(source), read_sgm(reference)
    for number, (left, right) in enumerate(zip(*sides), 1):
        if any(None not in ids and ids[0] != ids[1] for ids in zip(left[:2], right[:2])):
            raise SystemExit(
                f"error: segment {number} of {source} has id {left.id} of document {left.doc}, in {reference} id "
                f"{right.id} of document {right.doc}: one is missing, or they do not belong together; get them again"
            )
    same_length((source, reference), sides)
    return [segment.text for segment in sides[0]], [segment.text for segment in sides[1]]
