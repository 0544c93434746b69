"""Find the two files of each corpus and of the test set, as plain text.

They are in the user's folder (DATA), unpacked or in WMT's archives, or the archives are downloaded.

work/files.json: {"corpora": [{"name": "europarl", "en": {"path": ..., "bytes": ...}, "de": ...}], "test": {...}}
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm
from wmt14 import testset
from wmt14.corpora import ARCHIVES, PAIRS, TEST_ARCHIVE, Archive, Corpus, default_corpora, test_member

from embinit_fairseq.io import sha256, whole_file, write_json


def collect(pair: str, names: list[str] | None, data: Path | None, test_from: str, work: Path) -> None:
    """Write work/files.json.

    Args:
        pair: source and target, as en-de.
        names: corpora; None: WMT 2014's.
        data: folder with WMT's files or archives; None: they are downloaded.
        test_from: origin of newstest2014, data or sacrebleu.
        work: folder to write to.

    Raises:
        SystemExit: a corpus is unknown, or a file is missing or damaged.
    """
    if (work / "files.json").is_file():
        return
    langs, corpora = pair.split("-"), PAIRS[pair]
    names = names or default_corpora(pair)
    for name in names:
        if name not in corpora:
            raise SystemExit(f"error: CORPORA: {pair} has no {name}; choose of {', '.join(corpora)}")
    test = {"kind": "sacrebleu"} if test_from == "sacrebleu" else test_files(pair, data, work)
    if test is None:
        raise SystemExit(
            f"error: DATA={data} has no newstest2014: put {TEST_ARCHIVE}, {test_member(pair, 'src')} and "
            f"{test_member(pair, 'ref')}, or newstest2014.{langs[0]} and newstest2014.{langs[1]} there, or set "
            "TEST_FROM=sacrebleu, which downloads it"
        )
    if test_from == "data":
        testset.read_test(test, pair)  # a damaged file is found before the hours of work on the training text
    entries = []
    for name in names:
        files = files_of(corpora[name], langs, data, work)
        places = {lang: {"path": str(path.resolve()), "bytes": path.stat().st_size} for lang, path in files.items()}
        entries.append({"name": name, **places})
    write_json(work / "files.json", {"corpora": entries, "test": test})


def find(folder: Path, member: str) -> Path | None:
    """Return the file in a folder that an archive has as `member`: with or without its folders, with or without .gz."""
    plain = member.removesuffix(".gz")
    for name in (plain, Path(plain).name):
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    return None


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Name the file if it is damaged."""
    try:
        yield
    except (EOFError, zlib.error, tarfile.TarError, gzip.BadGzipFile) as error:
        raise SystemExit(f"error: {path}: damaged or incomplete ({error}): get it again") from None


def _copy(stream: BinaryIO, target: Path, zipped: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as file:
        shutil.copyfileobj(gzip.GzipFile(fileobj=stream) if zipped else stream, file, 1 << 20)


def unpack(archive: Path, wanted: dict[str, Path]) -> None:
    """Write members of an archive to files. wanted: member -> file. SystemExit if a member is missing."""
    missing = {name: path for name, path in wanted.items() if not path.is_file()}
    if not missing:
        return
    with _readable(archive), open(archive, "rb") as file:
        title, size = f"unpacking {archive.name}", archive.stat().st_size
        with tqdm.wrapattr(file, "read", total=size, desc=title, unit="B", unit_scale=True) as packed:
            with tarfile.open(fileobj=packed, mode="r|*") as tar:  # a stream: nothing is read twice
                for member in tar:
                    target = missing.pop(member.name.removeprefix("./"), None)
                    if target is not None:
                        _copy(tar.extractfile(member), target, member.name.endswith(".gz"))
                    if not missing:
                        break
    if missing:
        raise SystemExit(f"error: {archive} has no {', '.join(missing)}: it is not the archive of that name")


def download(archive: Archive, path: Path) -> None:
    """Download `path` unless it exists; an incomplete download is continued.

    Raises:
        SystemExit: the file cannot be downloaded, or differs from the published file.
    """
    if path.is_file():
        return
    part = path.with_name(path.name + ".part")
    if not part.is_file() or part.stat().st_size < archive.size:
        path.parent.mkdir(parents=True, exist_ok=True)
        curl = [*"curl --fail --location --retry 3 --continue-at - --output".split(), str(part), archive.url]
        if subprocess.run(curl).returncode:
            raise SystemExit(
                f"error: cannot download {archive.url}: check connection and disk, and start again to continue, or "
                "set DATA to a folder with a copy"
            )
    if (digest := sha256(part)) != archive.sha256:
        part.unlink()
        raise SystemExit(
            f"error: {archive.url} has SHA-256 {digest} instead of {archive.sha256}: the file was changed or damaged; "
            "try again, or set DATA to a folder with a copy"
        )
    part.rename(path)


def files_of(corpus: Corpus, langs: list[str], data: Path | None, output: Path) -> dict[str, Path]:
    """Return {language: plain text} of a corpus; unpacked files are written to `output`/source."""
    paths = {lang: find(data, corpus.member(lang)) for lang in langs} if data else dict.fromkeys(langs)
    targets = {lang: output / "source" / f"{Path(corpus.stem).name}.{lang}" for lang in langs}
    if not all(paths.values()):
        archive = (data or output / "download") / corpus.archive
        if data is None:
            download(ARCHIVES[corpus.archive], archive)
        elif not archive.is_file():
            absent = [corpus.member(lang).removesuffix(".gz") for lang in langs if not paths[lang]]
            raise SystemExit(
                f"error: DATA={data} has neither {corpus.archive} nor {' and '.join(absent)} (in these folders or "
                "without them, plain or .gz): put them there, or set CORPORA to others"
            )
        unpack(archive, {corpus.member(lang): targets[lang] for lang in langs})
        return targets
    for lang, path in paths.items():
        if path.suffix == ".gz":
            if not targets[lang].is_file():
                with _readable(path), open(path, "rb") as stream:
                    _copy(stream, targets[lang], zipped=True)
            paths[lang] = targets[lang]
    return paths


def test_files(pair: str, data: Path | None, output: Path) -> dict[str, str] | None:
    """Return the kind and the files of the test set in the user's folder; None if there is none."""
    if data is None:
        return None
    source, target = pair.split("-")
    members = {"src": test_member(pair, "src"), "ref": test_member(pair, "ref")}
    paths = {side: find(data, member) for side, member in members.items()}
    kind = "sgm"
    if not all(paths.values()):
        plain = {"src": find(data, f"newstest2014.{source}"), "ref": find(data, f"newstest2014.{target}")}
        if all(plain.values()):
            paths, kind = plain, "text"
        elif (data / TEST_ARCHIVE).is_file():
            paths = {side: output / "source" / Path(member).name for side, member in members.items()}
            unpack(data / TEST_ARCHIVE, {members[side]: paths[side] for side in members})
        else:
            return None
    return {"kind": kind, **{side: str(path.resolve()) for side, path in paths.items()}}
