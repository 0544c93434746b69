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

_TAG = re.compile(r"<(/?)(mteval|srcset|refset|tstset|doc|seg)\b([^>]*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'/]+))""")


class Segment(NamedTuple):
    """A segment. doc, id: attributes of the file, None if it has none; text: all spaces are one space."""

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


def _attribute(tag: re.Match, name: str) -> str | None:
    for found in _ATTRIBUTE.finditer(tag[3]):
        if found[1].lower() == name:
            return next(value for value in found.groups()[1:] if value is not None).strip()
    return None


def _damaged(path: Path, tag: re.Match, segments: list[Segment]) -> SystemExit:
    """Return the error for a tag that is not closed, or that closes nothing."""
    line, name = tag.string.count("\n", 0, tag.start()) + 1, tag[2].lower()
    if tag[1]:
        what = f"{tag[0]} after segment {len(segments)} closes nothing"
    elif name == "seg":
        what = f"segment {len(segments) + 1} ({tag[0]}) has no </seg>"
    else:
        what = f"{tag[0]} has no </{tag[2]}>; the last segment is number {len(segments)}"
    return SystemExit(f"error: {path}: line {line}: {what}: the file is damaged or incomplete; get it again")


def read_sgm(path: Path) -> list[Segment]:
    """Return all segments; SystemExit if there are none, or if a tag is not closed, as in a truncated file."""
    segments: list[Segment] = []
    opened: list[re.Match] = []
    doc = None
    for tag in _TAG.finditer(read_utf8(path)):
        name, inside = tag[2].lower(), opened[-1] if opened else None
        if not tag[1]:
            if inside and inside[2].lower() == "seg":
                raise _damaged(path, inside, segments)
            if name == "doc":
                doc = _attribute(tag, "docid")
            if name == "seg" and tag[3].endswith("/"):  # <seg id="3"/>
                segments.append(Segment(doc, _attribute(tag, "id"), ""))
            else:
                opened.append(tag)
            continue
        if inside is None or inside[2].lower() != name:
            raise _damaged(path, tag if inside is None or name == "seg" else inside, segments)
        opened.pop()
        if name == "seg":
            text = " ".join(tag.string[inside.end() : tag.start()].split())
            segments.append(Segment(doc, _attribute(inside, "id"), text))
    if opened:
        raise _damaged(path, opened[-1], segments)
    if not segments:
        raise SystemExit(f"error: {path}: no <seg ...>...</seg> in it: it is not an sgm file of a test set")
    return segments


def _place(segment: Segment) -> str:
    return f"id {segment.id}" + (f" of document {segment.doc}" if segment.doc is not None else "")


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
                f"error: segment {number} of {source} has {_place(left)}, that of {reference} {_place(right)}: one is "
                "missing, or the files do not belong together; get them again"
            )
    same_length((source, reference), sides)
    return [segment.text for segment in sides[0]], [segment.text for segment in sides[1]]
