"""Find the input embedding of a Hugging Face directory, file and tensor, and read its rows.

Read are `model.safetensors` (a header, then raw tensors: https://huggingface.co/docs/safetensors), its shards, and
`pytorch_model.bin` with or without shards. Rows are read by offset: memory grows with the rows, not with the model.
Letters: V rows, D columns.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from embinit_fairseq.checkpoint_file import load_safely
from embinit_fairseq.errors import VectorFileError, counted
from embinit_fairseq.io import check_is_file, parse_json, read_json
from embinit_fairseq.vectors.binary_records import mapped_rows
from embinit_fairseq.vectors.torch_matrices import matrices

#: files with a model's weights, in the order of preference; an index names the shards
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

#: folders in a folder in which a model is looked for, for messages: `snapshots/0123abcd` of the hub's cache
DEPTHS = ("*/", "*/*/", "*/*/*/")

#: The module that holds the input embedding: word_embeddings (BERT), shared (T5), wte (GPT-2), embed_tokens (Llama),
#: embed_in (GPT-NeoX), tok_embeddings (ModernBERT), token_embedding (CLIP), tokens_embed (GPT), embeddings (XLM).
#: Embeddings of vision models and of InstructBLIP's qformer are not meant.
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


class Embedding(NamedTuple):
    """A model's input embedding: its file, the name of the tensor, its matrix.

    side: "encoder" or "decoder" if the model has an embedding matrix for each, else "".
    """

    file: Path
    tensor: str
    matrix: Matrix
    side: str


def has_weights(directory: Path) -> bool:
    """Return True if a folder has a model's weights."""
    return any((directory / name).is_file() for name in WEIGHT_FILES)


def find_embedding(directory: Path, config: Mapping[str, Any], side: str) -> Embedding:
    """Find the model's input embedding.

    Args:
        directory: the model's folder.
        config: content of its config.json.
        side: "encoder" or "decoder", for a model that has an embedding matrix for each.

    Raises:
        VectorFileError: if there is none.
    """
    weights = next((directory / name for name in WEIGHT_FILES if (directory / name).is_file()), None)
    if weights is None:
        within = [
            str(file.parent) for depth in DEPTHS for name in WEIGHT_FILES for file in directory.glob(depth + name)
        ]
        if within:
            named = " or ".join(sorted(within)[:3])
            raise VectorFileError(f"{directory}: not the folder of a model, but one with models in it; give {named}")
        raise VectorFileError(
            f"{directory}: not a Hugging Face model directory: none of {', '.join(WEIGHT_FILES)} is there; save the "
            "model with save_pretrained() (TensorFlow and Flax weights are not read) and name that directory"
        )
    shards = _shards(weights) if weights.suffix == ".json" else {}
    available = {} if shards else _matrices(weights)
    names = [name for name in shards or available if _EMBEDDING.fullmatch(name)]
    name = _choose(names, side)
    if name is None:
        for shard in sorted({*shards.values()}):
            available |= _matrices(shard)
        name = _choose_by_size(weights, names, available, config)
    file = shards.get(name, weights)
    matrix = (available or _matrices(file)).get(name)
    if matrix is None:
        raise VectorFileError(
            f"{file}: no floating point matrix {name!r}, which the index names; download the shards again"
        )
    has_both = all(any(f"{part}." in other for other in names) for part in ("encoder", "decoder"))
    return Embedding(file, name, matrix, side if has_both and f"{side}." in name else "")


def _matrices(file: Path) -> dict[str, Matrix]:
    check_is_file(file, error=VectorFileError, remedy="download it again")
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


def _shards(index: Path) -> dict[str, Path]:
    """Return tensor name -> its shard, from an index file."""
    content = read_json(index, VectorFileError, remedy="download it again")
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise VectorFileError(f"{index}: no 'weight_map' of tensor names and files; download the model again")
    return {tensor: index.parent / name for tensor, name in weight_map.items()}


def _choose(names: Sequence[str], side: str) -> str | None:
    """Return the input embedding among tensors with such names; None if there is none, or if several could be it.

    A matrix for both sides is preferred, then that of the side, then another one; a deeper copy is ignored.
    """

    def rank(name: str) -> tuple[int, int]:
        return 0 if "coder." not in name else 1 if f"{side}." in name else 2, name.count(".")

    best = [name for name in names if rank(name) == min(map(rank, names))]
    return best[0] if len(best) == 1 else None


def _choose_by_size(file: Path, names: Sequence[str], available: dict[str, Matrix], config: Mapping[str, Any]) -> str:
    """Return the only matrix of `vocab_size` rows (config.json) that is no head; VectorFileError if not one."""
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    fitting = [name for name in available if available[name].shape[0] == size and not _HEAD.search(name)]
    if len(fitting) == 1:
        return fitting[0]
    several = [name for name in names if name in available] or fitting
    listed = several or sorted(available, key=lambda name: -available[name].shape[0])
    candidates = ", ".join(f"{name} {available[name].shape[0]}x{available[name].shape[1]}" for name in listed[:8])
    fault = "several tensors could be the input embedding" if several else "no tensor is named as an input embedding"
    raise VectorFileError(
        f"{file}: {fault}: {candidates or 'no matrices'}; write the one you mean to an .npz file with words and "
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
        start = 8 + int.from_bytes(head, "little")
        if start > size:
            raise VectorFileError(f"{file}: not a safetensors file, or truncated; download it again")
        header = parse_json(stream.read(start - 8), f"{file}: its header", VectorFileError, remedy="download it again")
    available: dict[str, Matrix] = {}
    try:
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        missing = start + max(entry["data_offsets"][1] for entry in entries.values()) - size
        for name, entry in entries.items():
            if entry["dtype"] in _FLOATS and len(entry["shape"]) == 2 and min(entry["shape"]) > 0:
                rows, columns, begin, end = map(operator.index, (*entry["shape"], *entry["data_offsets"]))
                if begin < 0 or end - begin != rows * columns * _FLOATS[entry["dtype"]].itemsize:
                    raise ValueError(name)
                available[name] = SafetensorsMatrix(file, entry["dtype"], (rows, columns), start + begin)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as cause:
        raise VectorFileError(f"{file}: its header is not a table of tensors; download it again") from cause
    if missing > 0:
        raise VectorFileError(f"{file}: truncated: it lacks {counted(missing, 'byte')}; download it again")
    return available
