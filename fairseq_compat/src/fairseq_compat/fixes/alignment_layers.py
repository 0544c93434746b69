"""--arch transformer_align: --print-alignment takes the last layer, not the one of --alignment-layer.

Symptom: ``fairseq-generate --print-alignment`` prints alignments of another layer and other heads than those that
    ``label_smoothed_cross_entropy_with_alignment`` has trained; with ``--score-reference`` the same translations have
    other alignments. Models with ``--full-context-alignment`` are right.
Where: fairseq/sequence_generator.py:819 calls the decoder without the options, which only
    fairseq/models/transformer_align.py:63 (``forward_decoder``) gives to it.
Remedy: the decoder takes them from its model.
Upstream: fairseq issues 4688 (open), 3402 (open).
"""

from __future__ import annotations

from typing import Any

from fairseq_compat.patches import wrap

BROKEN = r"decoder_out = self\.decoder\(prev_output_tokens, encoder_out, \*\*attn_args\)"


def patch(module):
    @wrap(module.TransformerAlignModel)
    def __init__(original, self, encoder, decoder, args):
        original(self, encoder, decoder, args)
        decoder.__class__ = aligning(type(decoder))
        decoder.alignment_options = {name: getattr(args, name) for name in ("alignment_layer", "alignment_heads")}


def aligning(decoder: Any) -> type:
    """Return a decoder that returns the attention of the layer and heads in its `alignment_options`."""

    class AligningDecoder(decoder):
        def forward(self, *args, **options):
            return super().forward(*args, **{**self.alignment_options, **options})

    return AligningDecoder
