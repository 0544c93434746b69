"""Names and shapes in a checkpoint of the TUPE authors' code, and what each parameter is called here.

Letters of shapes: V symbols with `<mask>`, C embed_dim, P rows of the position table (longest input + 1), F dimension
inside the feed-forward networks, R rows of the relative table (buckets + 1), H attention heads, K dimension and N
classes of a classification head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from embinit_fairseq.errors import CheckpointError

Shape = tuple[int, ...]
THEIRS, OURS = "decoder.sentence_encoder.", "encoder.sentence_encoder."
_HEADS = "classification_heads."
_SHOWN = 5


@dataclass(frozen=True)
class Layout:
    """What names and shapes say of the model. relative: (R, H), None for TUPE-A. heads: name -> (K, N)."""

    num_symbols: int
    embed_dim: int
    ffn_embed_dim: int
    num_layers: int
    position_rows: int
    relative: tuple[int, int] | None = None
    embedding_normalize: bool = False
    normalize_before: bool = False
    heads: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One parameter: its name there, its name here, its shape in both."""

    theirs: str
    ours: str
    shape: Shape


def checked_layout(path: str, shapes: Mapping[str, Shape]) -> tuple[Layout, list[Entry]]:
    """The layout of a state dict with these shapes, and its parameters.

    CheckpointError, naming `path`, for names that are missing or unknown and for shapes that do not fit each other.
    """
    layout = _read_layout(path, shapes)
    expected = _entries(layout)
    _check(path, shapes, expected)
    return layout, expected


def _read_layout(path: str, shapes: Mapping[str, Shape]) -> Layout:
    def shape(name: str, dimensions: int = 2) -> Shape:
        """The shape of a parameter that every TUPE has; CheckpointError if it is missing or of other dimensions."""
        shape = shapes.get(name)
        if shape is None:
            raise CheckpointError(f"{path}: no {name} in it; {_what_else(shapes)}")
        if len(shape) != dimensions or 0 in shape:
            raise CheckpointError(f"{path}: {name} has the shape {shape}, not {dimensions} dimensions; it is damaged")
        return shape

    position_rows = shape(THEIRS + "pos.weight")[0]
    num_symbols, embed_dim = shape(THEIRS + "embed_tokens.weight")
    relative = THEIRS + "relative_attention_bias.weight"
    layers = {name.split(".")[3] for name in shapes if re.match(re.escape(THEIRS) + r"layers\.\d+\.", name)}
    return Layout(
        num_symbols=num_symbols,
        embed_dim=embed_dim,
        ffn_embed_dim=shape(THEIRS + "layers.0.fc1.weight")[0],
        num_layers=len(layers),  # gaps are found by `_check`
        position_rows=position_rows,
        relative=shape(relative) if relative in shapes else None,  # type: ignore[arg-type]
        embedding_normalize=THEIRS + "emb_layer_norm.weight" in shapes,
        normalize_before=THEIRS + "emb_out_layer_norm.weight" in shapes,
        heads=_read_heads(path, shapes),
    )


def _read_heads(path: str, shapes: Mapping[str, Shape]) -> dict[str, tuple[int, int]]:
    heads = {}
    for name in sorted({key[len(_HEADS) :].partition(".")[0] for key in shapes if key.startswith(_HEADS)}):
        dense, out = (shapes.get(f"{_HEADS}{name}.{part}.weight", ()) for part in ("dense", "out_proj"))
        if not dense and out:
            raise CheckpointError(
                f"{path}: the classification head {name!r} has no layer 'dense': it comes from an early commit of the "
                "authors' code, whose head this plugin does not have; convert the pre-trained checkpoint and "
                "fine-tune that"
            )
        if len(dense) != 2 or len(out) != 2:
            raise CheckpointError(f"{path}: the classification head {name!r} is incomplete; it is damaged")
        heads[name] = (dense[0], out[0])
    return heads


def _what_else(shapes: Mapping[str, Shape]) -> str:
    """Says what a state dict without the expected name may be."""
    if any(name.startswith(OURS + "positions.") for name in shapes):
        return "this is a checkpoint of this plugin already: nothing to convert"
    if THEIRS + "embed_positions.weight" in shapes or OURS + "embed_positions.weight" in shapes:
        return "this is a BERT or RoBERTa with added positions, not TUPE"
    names = ", ".join(list(shapes)[:_SHOWN]) or "nothing"
    return f"name a checkpoint of the TUPE authors' code (this one holds {names})"


def _entries(layout: Layout) -> list[Entry]:
    """Every parameter of a model with this layout. `lm_head.weight` is the table of embeddings itself."""
    encoder = [Entry(THEIRS + entry.theirs, OURS + entry.ours, entry.shape) for entry in _encoder(layout)]
    C = layout.embed_dim
    lm_head = [*_linear("dense", "dense", C, C), *_norm("layer_norm", "layer_norm", C)]
    lm_head += [Entry("weight", "weight", (layout.num_symbols, C)), Entry("bias", "bias", (layout.num_symbols,))]
    heads: list[Entry] = []
    for name, (inner_dim, num_classes) in layout.heads.items():
        for part, out, into in (("dense", inner_dim, C), ("out_proj", num_classes, inner_dim)):
            heads += _linear(f"{_HEADS}{name}.{part}", f"{_HEADS}{name}.{part}", out, into)
    lm_head = [Entry("decoder.lm_head." + e.theirs, "encoder.lm_head." + e.ours, e.shape) for e in lm_head]
    return [*encoder, *lm_head, *heads]


def _encoder(layout: Layout) -> Iterator[Entry]:
    C = layout.embed_dim
    yield Entry("embed_tokens.weight", "embed_tokens.weight", (layout.num_symbols, C))
    yield Entry("pos.weight", "positions.absolute.embed_positions.weight", (layout.position_rows, C))
    yield from _linear("pos_q_linear", "positions.absolute.q_proj", C, C)
    yield from _linear("pos_k_linear", "positions.absolute.k_proj", C, C)
    yield from _norm("pos_ln", "positions.absolute.layer_norm", C)
    if layout.relative is not None:
        yield Entry("relative_attention_bias.weight", "positions.relative.embed_buckets.weight", layout.relative)
    if layout.embedding_normalize:
        yield from _norm("emb_layer_norm", "emb_layer_norm", C)
    for number in range(layout.num_layers):
        for entry in _layer(C, layout.ffn_embed_dim):
            yield Entry(f"layers.{number}.{entry.theirs}", f"layers.{number}.{entry.ours}", entry.shape)
    if layout.normalize_before:
        yield from _norm("emb_out_layer_norm", "layer_norm", C)


def _layer(C: int, F: int) -> Iterator[Entry]:
    yield Entry("self_attn.in_proj_weight", "self_attn.qkv_proj.weight", (3 * C, C))  # rows q, k, v in both
    yield Entry("self_attn.in_proj_bias", "self_attn.qkv_proj.bias", (3 * C,))
    yield from _linear("self_attn.out_proj", "self_attn.out_proj", C, C)
    yield from _norm("self_attn_layer_norm", "self_attn_layer_norm", C)
    yield from _linear("fc1", "fc1", F, C)
    yield from _linear("fc2", "fc2", C, F)
    yield from _norm("final_layer_norm", "final_layer_norm", C)


def _linear(theirs: str, ours: str, out: int, into: int) -> tuple[Entry, Entry]:
    return Entry(f"{theirs}.weight", f"{ours}.weight", (out, into)), Entry(f"{theirs}.bias", f"{ours}.bias", (out,))


def _norm(theirs: str, ours: str, dim: int) -> tuple[Entry, Entry]:
    return Entry(f"{theirs}.weight", f"{ours}.weight", (dim,)), Entry(f"{theirs}.bias", f"{ours}.bias", (dim,))


def _check(path: str, shapes: Mapping[str, Shape], expected: list[Entry]) -> None:
    wanted = {entry.theirs: entry.shape for entry in expected}
    missing, unknown = ([name for name in one if name not in two] for one, two in ((wanted, shapes), (shapes, wanted)))
    if missing:
        raise CheckpointError(f"{path}: {_some(missing)} missing; it is damaged, or not of the TUPE authors' code")
    if unknown:
        raise CheckpointError(
            f"{path}: {_some(unknown)} unknown to the TUPE authors' code, so its outputs could not be kept; convert a "
            "checkpoint of the unmodified code"
        )
    for name, shape in wanted.items():
        if shapes[name] != shape:
            raise CheckpointError(
                f"{path}: {name} has the shape {shapes[name]}, but the other parameters ask for {shape}; it is damaged"
            )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more} {'is' if len(names) == 1 else 'are'}"
