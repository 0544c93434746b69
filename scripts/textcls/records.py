"""Which vectors a run was made with: what its record has of them, and whether they are the same now."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from run_result import file_sha256
from textcls.corpus import FileError
from textcls.runs import Run, Vectors, vectors_of

from embinit_fairseq.errors import EmbinitError
from embinit_fairseq.runs.record import read_record


def read_result(path: Path) -> dict[str, Any]:
    """result.json; raises FileError if it is none."""
    try:
        return read_record(path)
    except EmbinitError as error:
        raise FileError(str(error)) from error


def vector_hashes(run: Run, vectors: dict[str, Vectors]) -> dict[str, dict[str, str]]:
    """name -> file and SHA-256, of the vectors of a run, for its record."""
    names = vectors_of(run.model) or []
    return {name: {"file": str(vectors[name].path), "sha256": sha256(vectors[name].path)} for name in names}


def check_vectors(path: Path, record: dict[str, Any], vectors: dict[str, Vectors]) -> None:
    """path: result.json, of which older ones have no hashes. Raises FileError if it has others than `vectors` now."""
    for name, before in record.get("vectors", {}).items():
        if name in vectors and sha256(vectors[name].path) != before["sha256"]:
            file = vectors[name].path
            what = "has changed since" if str(file) == before["file"] else f"is another file than {before['file']}"
            raise FileError(
                f"--vectors {name}={file}: {path.parent} holds a run with these vectors, and the file {what}\n"
                "choose another name or another --output, or remove that folder"
            )


def sha256(path: Path) -> str:
    """Of a file, or jointly of the files in a folder (Hugging Face); read once, unless they have changed since."""
    if not path.is_dir():
        return file_sha256(path)
    files = sorted(file for file in path.iterdir() if file.is_file())
    lines = [f"{file.name} {file_sha256(file)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
