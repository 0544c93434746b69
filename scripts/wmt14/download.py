"""One published archive from its address: goes on where it was stopped, and is right or not there."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm
from wmt14.corpora import Archive

from embinit_fairseq.files import explained, sha256

_PIECE = 1 << 20
_TIMEOUT = 60  # seconds without an answer


def download(archive: Archive, path: Path) -> None:
    """Get `path`, unless it is there. Raises SystemExit if that fails; what has come so far stays for the next time."""
    if path.is_file():  # it got this name after it was checked
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with explained(part):
            _fetch(archive, part)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise SystemExit(
            f"error: cannot download {archive.url} ({reason}): check the connection and start again to continue, "
            "or set DATA to a folder with a copy"
        ) from None
    size = part.stat().st_size
    if size < archive.size:
        raise SystemExit(
            f"error: {archive.url} ended after {size:,} of {archive.size:,} bytes: start again to continue"
        )
    found = sha256(part)
    if found != archive.sha256:
        part.unlink()
        raise SystemExit(
            f"error: {archive.url} has SHA-256 {found} instead of {archive.sha256}: the file was changed or damaged; "
            "try again, or set DATA to a folder with a copy"
        )
    part.rename(path)


def _fetch(archive: Archive, part: Path) -> None:
    """Append to `part` what it lacks."""
    start = part.stat().st_size if part.is_file() else 0
    if start >= archive.size:
        return
    request = urllib.request.Request(archive.url, headers={"Range": f"bytes={start}-"} if start else {})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        continued = start > 0 and getattr(answer, "status", None) == http.client.PARTIAL_CONTENT
        start = start if continued else 0  # a server that knows no ranges begins anew
        with open(part, "ab" if continued else "wb") as file:
            with tqdm(total=archive.size, initial=start, unit="B", unit_scale=True, desc=part.stem) as bar:
                while piece := answer.read(_PIECE):
                    bar.update(file.write(piece))
