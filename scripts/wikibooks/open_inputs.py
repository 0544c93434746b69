"""Open a file of text that may be compressed, or a Parquet table, as a stream of bytes that begins again at seek(0)."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO


class LayoutError(ValueError):
    """State the finding, the expectation and the remedy; `open_input` adds the file's name."""


class _Damaged(Exception):
    """Signal a Zstandard or Parquet file that cannot be read to its end."""


class _Chunks(io.RawIOBase):
    """Stream chunks of bytes, again from the beginning after seek(0)."""

    def __init__(self, chunks: Callable[[], Iterator[bytes]]):
        self._begin = chunks
        self.seek(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset or whence:
            raise io.UnsupportedOperation("only seek(0)")
        self._chunks, self._rest, self._position = self._begin(), b"", 0
        return 0

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        self._position += size
        return size


def _open_zstd(path: Path, mode: str) -> BinaryIO:
    import zstandard

    def chunks() -> Iterator[bytes]:
        frame, packed = zstandard.ZstdDecompressor().decompressobj(), b""
        with open(path, "rb") as file:
            while packed or (packed := file.read(1 << 16)):
                if frame.eof:  # a file may have several frames
                    frame = zstandard.ZstdDecompressor().decompressobj()
                try:
                    yield frame.decompress(packed)
                except zstandard.ZstdError as error:
                    raise _Damaged(error) from None
                packed = frame.unused_data if frame.eof else b""
        if not frame.eof:
            raise _Damaged("it ends within a frame")

    return io.BufferedReader(_Chunks(chunks))


def _open_parquet(path: Path, mode: str) -> BinaryIO:
    """Open the column `text` of a Parquet table as JSON lines."""
    import pyarrow
    from pyarrow import parquet

    def chunks() -> Iterator[bytes]:
        try:
            table = parquet.ParquetFile(path)
            if "text" not in table.schema_arrow.names:
                names = ", ".join(table.schema_arrow.names)
                raise LayoutError(f"a Parquet table with the columns {names}; expected a column text: rename one")
            for batch in table.iter_batches(batch_size=1000, columns=["text"]):
                for text in batch.column(0).to_pylist():
                    yield json.dumps({"text": text}).encode() + b"\n"
        except pyarrow.ArrowException as error:
            raise _Damaged(error) from None

    return io.BufferedReader(_Chunks(chunks))


#: beginning of a file -> function that opens it
_OPENERS: dict[bytes, Callable[[Path, str], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
    b"PAR1": _open_parquet,
}


@contextlib.contextmanager
def open_input(path: Path) -> Iterator[BinaryIO]:
    """Open a plain, gz, bz2, xz, zst or Parquet file, recognised by its content.

    Raises:
        SystemExit: the file is missing, damaged or no text, or needs a library that is not installed.
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
    except ModuleNotFoundError as error:
        raise SystemExit(f"error: {path}: needs {error.name}: pip install 'embinit-fairseq[corpus]'") from None
    except (EOFError, zlib.error, lzma.LZMAError, OSError, _Damaged) as error:
        if getattr(error, "errno", None) is not None:  # not of the decompressor: for instance a full disk
            raise
        raise SystemExit(f"error: {path}: damaged or incomplete ({error}): get it again") from None
