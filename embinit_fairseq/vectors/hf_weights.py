"""Find the input embedding of a Hugging Face directory, file and tensor, and read its rows.

Read are `model.safetensors` (a header, then raw tensors: https://huggingface.co/docs/safetensors), its shards, and
`pytorch_model.bin` with or without shards. Rows are read by offset: memory grows with the rows, not with the model.
Letters: V rows, D columns.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from embinit_fairseq.errors import VectorFileError, counted
from embinit_fairseq.io import parse_json, read_json
from embinit_fairseq.vectors.binary import mapped_rows
from embinit_fairseq.vectors.torch_file import load_safely, matrices

#: files with a model's weights, in the order of preference; an index names the shards
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

#: The module that holds the input embedding: word_embeddings (BERT), shared (T5), wte (GPT-2), embed_tokens (Llama),
#: embed_in (GPT-NeoX), tok_embeddings (ModernBERT), token_embedding (CLIP), tokens_embed (GPT), embeddings (XLM).
#: Models of pictures and text have others, which are not meant: of the vision model, of InstructBLIP's qformer.
_EMBEDDING = re.compile(
    r"(?!.*(vision|qformer))(.*\.)?(shared|wte|embed_in|embed_tokens|((input|tok(en)?s?|words?)_)?emb(ed)?(ding)?s?)(\.weight)?"
)
#: parts of the name of an output layer: lm_head, embed_out, output_projection, cls.predictions.decoder
_HEAD = re.compile(r"head|out|proj|predict|cls|loss|decoder\.weight")

_FLOATS: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


class Matrix(Protocol):
    """A matrix in a file."""

    @property
    def shape(self) -> tuple[int, int]:
        """(V, D)."""

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return these rows, in this order: (len(rows), D) float32."""


@dataclass(frozen=True)
class SafetensorsMatrix:
    """A two-dimensional floating point tensor of a safetensors file.

    kind: a key of _FLOATS. offset: bytes from the beginning of the file.
    """

    file: Path
    kind: str
    shape: tuple[int, int]
    offset: int

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return these rows, in this order: (len(rows), D) float32."""
        number = _FLOATS[self.kind]
        picked = mapped_rows(self.file, self.offset, self.shape[1] * number.itemsize, rows).view(number)
        if self.kind == "BF16":  # the upper half of a float32
            return np.ascontiguousarray((picked.astype(np.uint32) << 16).view(np.float32))
        return np.ascontiguousarray(picked, dtype=np.float32)


def find_embedding(directory: Path, config: Mapping[str, Any], side: str) -> tuple[Path, str, Matrix, str]:
    """Find the model's input embedding.

    Args:
        directory: the model's folder.
        config: content of its config.json.
        side: "encoder" or "decoder", for a model that has an embedding matrix for each.

    Returns:
        File, name of the tensor, its matrix, and the side if the model has an embedding matrix for each ("" if not).

    Raises:
        VectorFileError: if there is none.
    """
    chosen = next((directory / name for name in WEIGHT_FILES if (directory / name).is_file()), None)
    if chosen is None:
        raise VectorFileError(
            f"{directory}: not a Hugging Face model directory: none of {', '.join(WEIGHT_FILES)} is there; save the "
            "model with save_pretrained() (TensorFlow and Flax weights are not read) and name that directory"
        )
    shards = _shards(chosen) if chosen.name.endswith(".index.json") else {}
    available = {} if shards else _matrices(chosen)
    names = [name for name in shards or available if _EMBEDDING.fullmatch(name)]
    name = _choose(names, side)
    if name is None:
        available = available or _all_matrices(chosen, shards)
        name = _choose_by_size(chosen, names, available, config)
    if shards:
        chosen = _shard_path(chosen, shards[name])
        available = _matrices(chosen)
        if name not in available:
            raise VectorFileError(
                f"{chosen}: no floating point matrix {name!r}, which the index names; download the shards again"
            )
    sided = all(any(f"{part}." in other for other in names) for part in ("encoder", "decoder"))
    return chosen, name, available[name], side if sided and f"{side}." in name else ""


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
    """Return the matrices of all shards, for models whose names alone do not show the embedding."""
    files = sorted(set(shards.values()))
    return {name: matrix for file in files for name, matrix in _matrices(_shard_path(index, file)).items()}


def _shards(index: Path) -> dict[str, str]:
    """Return tensor name -> file name of its shard, from an index file."""
    content = read_json(index, VectorFileError, remedy="download it again")
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise VectorFileError(f"{index}: no 'weight_map' of tensor names and files; download the model again")
    return weight_map


def _shard_path(index: Path, name: str) -> Path:
    file = index.parent / name
    if file.parent != index.parent or not file.is_file():
        raise VectorFileError(
            f"{index}: names the shard {name!r:.80}, which is not in the directory; download it again"
        )
    return file


def _choose(names: Sequence[str], side: str) -> str | None:
    """Return the input embedding among tensors with such names; None if there is none, or if several could be it.

    A matrix for both sides is preferred, then that of the side, then another one; a deeper copy is ignored.
    """
    groups: dict[int, list[str]] = {}
    for name in names:
        rank = 0 if "coder." not in name else 1 if f"{side}." in name else 2
        groups.setdefault(100 * rank + name.count("."), []).append(name)
    best = groups[min(groups)] if groups else []
    return best[0] if len(best) == 1 else None


def _choose_by_size(file: Path, names: Sequence[str], available: dict[str, Matrix], config: Mapping[str, Any]) -> str:
    """Return the only matrix, except heads, of `vocab_size` rows (config.json); VectorFileError if there is not one."""
    text = config.get("text_config")
    size = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    fitting = [name for name in available if available[name].shape[0] == size and not _HEAD.search(name)]
    if len(fitting) == 1:
        return fitting[0]
    several = [name for name in names if name in available] or fitting
    listed = several or sorted(available, key=lambda name: -available[name].shape[0])
    candidates = ", ".join(f"{name} {available[name].shape[0]}x{available[name].shape[1]}" for name in listed[:8])
    found = "several tensors could be the input embedding" if several else "no tensor is named as an input embedding"
    raise VectorFileError(
        f"{file}: {found}: {candidates or 'no matrices'}; write the one you mean to an .npz file with words and "
        "matrix, or save the model that has it alone"
    )


def safetensors_matrices(file: Path) -> dict[str, Matrix]:
    """Return the two-dimensional floating point tensors of a safetensors file, by name.

    Raises:
        VectorFileError: if the file is damaged.
    """
    size = file.stat().st_size
    with open(file, "rb") as stream:
        head = stream.read(8)
        if head == b"version ":
            raise VectorFileError(
                f"{file}: a Git LFS pointer, not the weights; run 'git lfs pull' in the model's directory"
            )
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= size - 8:
            raise VectorFileError(f"{file}: not a safetensors file, or truncated; download it again")
        header = parse_json(stream.read(length), f"{file}: its header", VectorFileError, remedy="download it again")
    tensors = []
    try:
        for name, entry in header.items():
            if name != "__metadata__" and entry["dtype"] in _FLOATS and len(entry["shape"]) == 2:
                rows, columns, begin, end = map(operator.index, (*entry["shape"], *entry["data_offsets"]))
                tensors.append((name, entry["dtype"], rows, columns, begin, end))
    except (AttributeError, KeyError, TypeError, ValueError) as cause:
        raise VectorFileError(f"{file}: its header is not a table of tensors; download it again") from cause
    available: dict[str, Matrix] = {}
    for name, kind, rows, columns, begin, end in tensors:
        if min(rows, columns) < 1:
            continue
        if begin < 0 or end - begin != rows * columns * _FLOATS[kind].itemsize or 8 + length + end > size:
            missing = counted(max(0, 8 + length + end - size), "byte")
            raise VectorFileError(
                f"{file}: truncated or damaged: the tensor {name!r:.80} lacks {missing}; download it again"
            )
        available[name] = SafetensorsMatrix(file, kind, (rows, columns), 8 + length + begin)
    return available
