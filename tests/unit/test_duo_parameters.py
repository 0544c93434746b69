"""Parameters of the Duo transformer for each row of the paper's Table 5, counted by hand: docs/duo.md prints them."""

from __future__ import annotations

import pytest

pytest.importorskip("fairseq", reason="this is an architecture of fairseq; install it with scripts/setup.sh")
from built_models import number_of, without_memory

import embinit_fairseq  # noqa: F401


def count(layers, d, ffn, words, *, streams=2, shared=False, fusion=False, tables="one", dims=None):
    """Parameters by hand. `tables` one: of encoder, decoder and output; two: of the encoder, and of decoder and output;
    three: each its own. dims: of the tables.
    """
    projection, norm = d * d + d, 2 * d
    # Q, K, V of each stream. Shared: Q of each, and one for its K and V, or W_K and W_V of both: as many either way
    inputs = streams * ((2 if shared else 3) * projection)
    block = inputs + projection + norm
    feed_forward = d * ffn + ffn + ffn * d + d + norm
    total = layers * (block + feed_forward) + layers * (2 * block + feed_forward)
    dims = dims or [d] * streams
    total += words * sum(dims) * (1 if tables == "one" else 2)
    total += 2 * sum(dim * d + d for dim in dims if dim != d)  # encoder and decoder have maps of their own
    if fusion:
        total += 2 * d * d
    if tables == "three":
        total += words * d * (1 if fusion else streams)
    elif fusion:
        total += sum(dims) * d
    return total


SIZES_OF_THE_PAPER = {"duo_transformer_wmt_en_de": (8, 512, 2048), "duo_transformer_big": (6, 1024, 4096)}
#: row of Table 5 -> flags, what `count` is told
TABLE_5 = {
    "Transformer": ("--duo-streams 1", {"streams": 1}),
    "+ Meta Embeddings": ("--duo-share-weights off --duo-norm off --duo-fusion off", {}),
    "+ Weight Sharing": ("--duo-norm off --duo-fusion off", {"shared": True}),
    "+ Weight Sharing, pair": ("--duo-share-weights pair --duo-norm off --duo-fusion off", {"shared": True}),
    "+ Duo Normalization": ("--duo-fusion off", {"shared": True}),
    "+ Fusion Layer": ("", {"shared": True, "fusion": True}),
    "+ Fusion Layer, pair": ("--duo-share-weights pair --duo-norm encoder", {"shared": True, "fusion": True}),
}
#: in millions, one joined dictionary of 32,768 symbols: docs/duo.md prints these
IN_MILLIONS = {
    ("duo_transformer_wmt_en_de", "one"): [75.6, 111.3, 98.7, 98.7, 98.7, 99.8, 99.8],
    ("duo_transformer_big", "one"): [209.9, 300.1, 262.4, 262.4, 262.4, 266.6, 266.6],
    ("duo_transformer_big", "300"): [186.8, 253.9, 216.1, 216.1, 216.1, 218.9, 218.9],
    ("duo_transformer_big", "three"): [277.0, 434.4, 396.6, 396.6, 396.6, 365.1, 365.1],
}


@pytest.mark.parametrize(("row", "flags", "told"), [(row, *TABLE_5[row]) for row in TABLE_5])
@pytest.mark.parametrize(("arch", "tables"), IN_MILLIONS)
def test_parameters_of_the_ablation(arch, tables, row, flags, told):
    dims = [300] * told.get("streams", 2) if tables == "300" else None
    more = [] if tables == "three" else ["--share-all-embeddings"]
    more += [f"--encoder-dim-{stream}=300" for stream in "sp"[: len(dims or [])]]
    model = without_memory(arch, *flags.split(), *more, words=32_768 - 4)
    told = {**told, "tables": "three" if tables == "three" else "one", "dims": dims}
    expected = count(*SIZES_OF_THE_PAPER[arch], 32_768, **told)
    assert number_of(model) == expected
    assert round(expected / 1e6, 1) == IN_MILLIONS[arch, tables][list(TABLE_5).index(row)]
