"""The first step of prepare.sh: find the two files of each corpus and of the test set, as plain text.

They are looked for in the user's folder (DATA), unpacked or in WMT's archives, or the archives are downloaded: a
download goes on where it was stopped, and is right or not there.

work/files.json: {"corpora": [{"name": "europarl", "en": {"path": ..., "bytes": ...}, "de": ...}], "test": {...}}
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm
from wmt14 import testset
from wmt14.corpora import ARCHIVES, PAIRS, TEST_ARCHIVE, Archive, Corpus, default_corpora, test_member

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import explained, sha256, whole_file, write_json

_PIECE = 1 << 20
_TIMEOUT = 60  # seconds without an answer


def find(folder: Path, member: str) -> Path | None:
    """A file of an archive in a folder: with or without the archive's folders, with or without .gz."""
    plain = member.removesuffix(".gz")
    for name in (plain, Path(plain).name):
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    return None


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Says which file is damaged."""
    try:
        yield
    except (EOFError, zlib.error, tarfile.TarError, gzip.BadGzipFile) as error:
        raise SystemExit(f"error: {path}: damaged or incomplete ({error}): get it again") from None


def _copy(stream: BinaryIO, target: Path, zipped: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as file:
        shutil.copyfileobj(gzip.GzipFile(fileobj=stream) if zipped else stream, file, 1 << 20)


def unpack(archive: Path, wanted: dict[str, Path]) -> None:
    """Write the members of an archive that are `wanted` to the files named there. SystemExit if one is not in it."""
    missing = {name: path for name, path in wanted.items() if not path.is_file()}
    if not missing:
        return
    with _readable(archive), open(archive, "rb") as file:
        title, size = f"unpacking {archive.name}", archive.stat().st_size
        with tqdm.wrapattr(file, "read", total=size, desc=title, unit="B", unit_scale=True) as packed:
            with tarfile.open(fileobj=packed, mode="r|*") as tar:  # as a stream: nothing is read twice
                for member in tar:
                    target = missing.pop(member.name.removeprefix("./"), None)
                    if target is not None:
                        _copy(tar.extractfile(member), target, member.name.endswith(".gz"))
                    if not missing:
                        break
    if missing:
        raise SystemExit(f"error: {archive} has no {', '.join(missing)}: it is not the archive of that name")


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


def archive_of(name: str, data: Path | None, downloads: Path) -> Path:
    """An archive with training text in the user's folder, or else downloaded. SystemExit if it is not to be had."""
    published = ARCHIVES[name]
    if data is None:
        download(published, downloads / name)
        return downloads / name
    path = data / name
    if not path.is_file():
        raise FileNotFoundError(name)
    if path.stat().st_size != published.size or sha256(path) != published.sha256:
        print(f"note: {path} differs from the published file (SHA-256)", file=sys.stderr)
    return path


def files_of(corpus: Corpus, langs: list[str], data: Path | None, output: Path) -> dict[str, Path]:
    """Language -> plain text. What has to be unpacked is written to `output`/source."""
    found = {lang: find(data, corpus.member(lang)) for lang in langs} if data else dict.fromkeys(langs)
    targets = {lang: output / "source" / f"{Path(corpus.stem).name}.{lang}" for lang in langs}
    if not all(found.values()):
        try:
            archive = archive_of(corpus.archive, data, output / "download")
        except FileNotFoundError:
            absent = [corpus.member(lang).removesuffix(".gz") for lang in langs if not found[lang]]
            raise SystemExit(
                f"error: DATA={data} has neither {corpus.archive} nor {' and '.join(absent)} (in these folders or "
                "without them, plain or .gz): put them there, or set CORPORA to others"
            ) from None
        unpack(archive, {corpus.member(lang): targets[lang] for lang in langs})
        return targets
    for lang, path in found.items():
        if path.suffix == ".gz":
            if not targets[lang].is_file():
                with _readable(path), open(path, "rb") as stream:
                    _copy(stream, targets[lang], zipped=True)
            found[lang] = targets[lang]
    return found


def test_files(pair: str, data: Path | None, output: Path) -> dict[str, str] | None:
    """What `testset` needs to know of the test set in the user's folder; None if none is there."""
    if data is None:
        return None
    source, target = pair.split("-")
    members = {"src": test_member(pair, "src"), "ref": test_member(pair, "ref")}
    found = {side: find(data, member) for side, member in members.items()}
    kind = "sgm"
    if not all(found.values()):
        plain = {"src": find(data, f"newstest2014.{source}"), "ref": find(data, f"newstest2014.{target}")}
        if all(plain.values()):
            found, kind = plain, "text"
        elif (data / TEST_ARCHIVE).is_file():
            found = {side: output / "source" / Path(member).name for side, member in members.items()}
            unpack(data / TEST_ARCHIVE, {members[side]: found[side] for side in members})
        else:
            return None
    return {"kind": kind, **{side: str(path.resolve()) for side, path in found.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", choices=PAIRS, required=True)
    parser.add_argument("--corpora", nargs="+", metavar="NAME", help="default: those of WMT 2014")
    parser.add_argument("--data", type=Path, help="folder with WMT's files or archives (default: download them)")
    parser.add_argument("--test-from", choices=testset.ORIGINS, required=True, help="where newstest2014 comes from")
    parser.add_argument("--work", type=Path, required=True, help="folder to write to")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if (args.work / "files.json").is_file():
        print("files: there already", file=sys.stderr)
        return
    langs, known = args.pair.split("-"), PAIRS[args.pair]
    names = args.corpora or default_corpora(args.pair)
    for name in names:
        if name not in known:
            raise SystemExit(f"error: CORPORA: {args.pair} has no {name}; choose of {', '.join(known)}")
    test = {"kind": "sacrebleu"} if args.test_from == "sacrebleu" else test_files(args.pair, args.data, args.work)
    if test is None:
        raise SystemExit(
            f"error: DATA={args.data} has no newstest2014: put {TEST_ARCHIVE}, {test_member(args.pair, 'src')} and "
            f"{test_member(args.pair, 'ref')}, or newstest2014.{langs[0]} and newstest2014.{langs[1]} there, or set "
            "TEST_FROM=sacrebleu, which downloads it"
        )
    if args.test_from == "data":
        testset.read_test(test, args.pair)  # a damaged file is found before the hours of work on the training text
    corpora = []
    for name in names:
        files = files_of(known[name], langs, args.data, args.work)
        corpora.append({"name": name})
        for lang, path in files.items():
            corpora[-1][lang] = {"path": str(path.resolve()), "bytes": path.stat().st_size}
    write_json(args.work / "files.json", {"corpora": corpora, "test": test})


if __name__ == "__main__":
    with one_line():
        main()
