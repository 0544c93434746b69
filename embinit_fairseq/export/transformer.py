"""fairseq's `transformer` and its presets: transformers' FSMT, without code of ours.

FSMT was made for fairseq's models of WMT 2019. Both count positions behind the row of padding, over tokens that are no
padding, so that it may stand on either side; both have sines in the first half of a position and cosines in the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embinit_fairseq.export import encoder_decoder

if TYPE_CHECKING:
    from torch import Tensor

    from embinit_fairseq.export.trained import Trained

ARCHS = "fairseq's transformer and its presets (transformer_iwslt_de_en, transformer_wmt_en_de, ...)"
TAGS = ("translation", "fsmt", "fairseq")
TASKS = ("translation",)
CODE: tuple[str, ...] = ()
NOTE = (
    "The Transformer of Vaswani et al. 2017; transformers' own class computes it.\n\n"
    "`config.json` says `use_cache: false`: with it, FSMT masks nothing of what comes later in `decoder_input_ids`.\n"
    "`generate()` uses its cache all the same."
)


def models() -> tuple[type, ...]:
    """Children, such as transformer_align, compute something else."""
    from fairseq.models.transformer import TransformerModel

    return (TransformerModel,)


def refused(trained: Trained) -> str | None:
    """What FSMT has no counterpart of."""
    from fairseq.modules import LearnedPositionalEmbedding

    encoder, decoder = trained.model.encoder, trained.model.decoder
    sides = {"encoder": encoder, "decoder": decoder}
    learned = {
        f"--{side}-learned-pos": isinstance(part.embed_positions, LearnedPositionalEmbedding)
        for side, part in sides.items()
    }
    normed = None in (encoder.layernorm_embedding, decoder.layernorm_embedding)
    return encoder_decoder.refused(trained, "FSMT", {**learned, "--layernorm-embedding": not normed})


def describe(trained: Trained) -> str:
    """The languages."""
    assert trained.target is not None
    return f"Transformer, {trained.source.language} to {trained.target.language}"


def settings(trained: Trained) -> dict[str, Any]:
    """Those of `FSMTConfig`."""
    assert trained.target is not None
    return {
        **encoder_decoder.settings(trained),
        "architectures": ["FSMTForConditionalGeneration"],
        "model_type": "fsmt",
        "langs": [trained.source.language, trained.target.language],
        "src_vocab_size": len(trained.source.symbols),
        "tgt_vocab_size": len(trained.target.symbols),
        "use_cache": False,
    }


def weights(trained: Trained) -> dict[str, Tensor]:
    """FSMT ties all three tables or none: the two of --share-decoder-input-output-embed are written twice."""
    model, longest = trained.model, encoder_decoder.longest(trained)
    tensors = encoder_decoder.layers(trained)
    for side, part in (("encoder", model.encoder), ("decoder", model.decoder)):
        tensors[f"model.{side}.embed_positions.weight"] = _positions(part, longest)
    tensors["model.decoder.embed_tokens.weight"] = model.decoder.embed_tokens.weight
    if not model.cfg.share_all_embeddings:
        tensors["model.encoder.embed_tokens.weight"] = model.encoder.embed_tokens.weight
        tensors["model.decoder.output_projection.weight"] = model.decoder.output_projection.weight
    return encoder_decoder.plain(tensors)


def _positions(part: Any, longest: int) -> Tensor:
    """(1 + padding + longest, dim), in the precision of the model, in which fairseq adds them."""
    table, words = part.embed_positions, part.embed_tokens.weight
    rows = table.padding_idx + 1 + longest
    return table.get_embedding(rows, table.embedding_dim, table.padding_idx).to(words)


generation, prepare, sizes = encoder_decoder.generation, encoder_decoder.prepare, encoder_decoder.sizes
