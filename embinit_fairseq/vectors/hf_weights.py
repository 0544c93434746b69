"""The input embedding of a Hugging Face directory: which file, which tensor, and its rows.

Reads `model.safetensors` (one header, then raw tensors: https://huggingface.co/docs/safetensors), its shards, and
`pytorch_model.bin` with or without shards. Rows are fetched by offset: memory grows with the rows, not the model.
Letters: V rows, D columns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from embinit_fairseq.bounded import LARGEST_JSON, parse_json, read_json
from embinit_fairseq.errors import VectorFileError, counted
from embinit_fairseq.vectors.binary import mapped_rows
from embinit_fairseq.vectors.torch_file import load_safely, matrices

#: Where a model may keep its weights, in the order of preference; an index names the shards.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

#: How architectures name their input embedding (as the end of the tensor's name), most specific first.
EMBEDDING_NAMES = (
    "embeddings.word_embeddings.weight",  # BERT, RoBERTa, XLM-R, DistilBERT, ELECTRA, ALBERT, DeBERTa
    "shared.weight",  # T5, mT5, BART, Marian, M2M-100
    "wte.weight",  # GPT-2, GPT-J
    "encoder.embed_tokens.weight",  # T5 and BART whose shared table was not written
    "embed_tokens.weight",  # OPT, Llama, Mistral, Gemma, ...
    "word_embeddings.weight",  # BLOOM, Falcon
    "word_embedding.weight",  # XLNet
    "embed_in.weight",  # GPT-NeoX, Pythia
    "transformer.embeddings.weight",  # XLM
)

_FLOATS: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
_LARGEST = 1 << 62  # bytes of a file


class Matrix(Protocol):
    """A matrix in a file."""

    @property
    def shape(self) -> tuple[int, int]:
        """(V, D)."""

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The named rows, in the order named: (len(rows), D) float32."""


@dataclass(frozen=True)
class SafetensorsMatrix:
    """A two-dimensional floating point tensor of a safetensors file."""

    file: Path
    kind: str  # a key of _FLOATS
    shape: tuple[int, int]
    offset: int  # bytes from the beginning of the file

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The named rows, in the order named: (len(rows), D) float32."""
        number = _FLOATS[self.kind]
        picked = mapped_rows(self.file, self.offset, self.shape[1] * number.itemsize, rows).view(number)
        if self.kind == "BF16":  # the upper half of a float32
            return np.ascontiguousarray((picked.astype(np.uint32) << 16).view(np.float32))
        return np.ascontiguousarray(picked, dtype=np.float32)


def find_embedding(directory: Path) -> tuple[Path, str, Matrix]:
    """(file, tensor name, matrix) of the model's input embedding; VectorFileError where there is none."""
    chosen = next((directory / name for name in WEIGHT_FILES if (directory / name).is_file()), None)
    if chosen is None:
        raise VectorFileError(
            f"{directory}: not a Hugging Face model directory: none of {', '.join(WEIGHT_FILES)} is there; save the "
            "model with save_pretrained() (TensorFlow and Flax weights are not read) and name that directory"
        )
    if not chosen.name.endswith(".index.json"):
        available = _matrices(chosen)
        name = _choose(chosen, available)
        return chosen, name, available[name]
    shards = _shards(chosen)
    name = _choose_name(chosen, shards) or _choose(chosen, _all_matrices(chosen, shards))
    shard = _shard_path(chosen, shards[name])
    available = _matrices(shard)
    if name not in available:
        raise VectorFileError(
            f"{shard}: no floating point matrix {name!r}, which {chosen.name} promises; download the shards again"
        )
    return shard, name, available[name]


def _matrices(file: Path) -> dict[str, Matrix]:
    if file.suffix == ".safetensors":
        return safetensors_matrices(file)
    state = load_safely(file, VectorFileError, "a PyTorch state dict")
    available = matrices(state) if isinstance(state, dict) else {}
    if not available:
        raise VectorFileError(
            f"{file}: not a state dict: no named two-dimensional tensors in it; save the model with "
            "save_pretrained(), or torch.save(model.state_dict(), ...)"
        )
    return dict(available)


def _all_matrices(index: Path, shards: dict[str, str]) -> dict[str, Matrix]:
    """For the error message only: what all shards hold."""
    files = sorted(set(shards.values()))
    return {name: matrix for file in files for name, matrix in _matrices(_shard_path(index, file)).items()}


def _shards(index: Path) -> dict[str, str]:
    """Tensor name -> shard's file name, from an index file."""
    content = read_json(index, VectorFileError, remedy="download it again")
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise VectorFileError(f"{index}: no 'weight_map' of tensor names and files; download the model again")
    return weight_map


def _shard_path(index: Path, name: str) -> Path:
    file = index.parent / name
    if Path(name).name != name or not file.is_file():
        raise VectorFileError(
            f"{index}: names the shard {name[:80]!r}, which is not in the directory; download it again"
        )
    return file


def _choose_name(file: Path, names: Iterable[str]) -> str | None:
    """The name of the input embedding among names of tensors, None if no known name is there."""
    names = sorted(names)
    for known in EMBEDDING_NAMES:
        matching = [name for name in names if name == known or name.endswith("." + known)]
        # Of an encoder and a decoder with a table each, the encoder's is the input embedding.
        matching = [name for name in matching if "decoder." not in name] or matching
        if len(matching) > 1:
            raise VectorFileError(
                f"{file}: several tensors could be the input embedding: {', '.join(matching[:8])}; save the model you "
                "mean alone, or write its matrix to an .npz file with words and matrix"
            )
        if matching:
            return matching[0]
    return None


def _choose(file: Path, available: dict[str, Matrix]) -> str:
    name = _choose_name(file, available)
    if name is not None:
        return name
    largest = sorted(available, key=lambda name: -available[name].shape[0])[:8]
    candidates = ", ".join(f"{name} {available[name].shape[0]}x{available[name].shape[1]}" for name in largest)
    raise VectorFileError(
        f"{file}: no tensor has the name of a known input embedding (like {EMBEDDING_NAMES[0]}); its largest matrices: "
        f"{candidates or 'none'}; write the one you mean to an .npz file with words and matrix"
    )


def safetensors_matrices(file: Path) -> dict[str, Matrix]:
    """The two-dimensional floating point tensors of a safetensors file, by name; VectorFileError if damaged."""
    header, start, size = _header(file)
    available: dict[str, Matrix] = {}
    for name, entry in header.items():
        kind = entry.get("dtype") if isinstance(entry, dict) else None
        if name == "__metadata__" or not isinstance(kind, str) or kind not in _FLOATS:
            continue
        shape = entry.get("shape")
        if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and n > 0 for n in shape):
            continue
        offsets = entry.get("data_offsets")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int for n in offsets):
            raise VectorFileError(f"{file}: the tensor {name[:80]!r} has no data_offsets; download the file again")
        begin, end = offsets
        if not 0 <= begin <= end < _LARGEST or end - begin != shape[0] * shape[1] * _FLOATS[kind].itemsize:
            raise VectorFileError(
                f"{file}: the tensor {name[:80]!r} has impossible data_offsets; download the file again"
            )
        if start + end > size:
            raise VectorFileError(
                f"{file}: truncated: the tensor {name[:80]!r} lacks {counted(start + end - size, 'byte')}; download "
                "the file again"
            )
        available[name] = SafetensorsMatrix(file, kind, (shape[0], shape[1]), start + begin)
    return available


def _header(file: Path) -> tuple[dict[str, Any], int, int]:
    """(header, position of the first tensor, size of the file) of a safetensors file."""
    size = file.stat().st_size
    with open(file, "rb") as stream:
        head = stream.read(8)
        if head == b"version ":
            raise VectorFileError(
                f"{file}: a Git LFS pointer, not the weights themselves; run 'git lfs pull' in the model's directory"
            )
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(LARGEST_JSON, size - 8):
            raise VectorFileError(f"{file}: not a safetensors file, or truncated; download it again")
        header = parse_json(stream.read(length), f"{file}: its header", VectorFileError, remedy="download it again")
    if not isinstance(header, dict):
        raise VectorFileError(f"{file}: its header is not a table of tensors; download it again")
    return header, 8 + length, size
