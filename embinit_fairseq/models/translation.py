"""What encoders and decoders for translation share: the length of sentences, the rows of beam search."""

from __future__ import annotations

import torch
from torch import Tensor

from embinit_fairseq.errors import DataError


def check_length(tokens: Tensor, max_positions: int, side: str) -> None:
    """Raises DataError for a batch that is longer than the model's positions."""
    if tokens.shape[1] > max_positions:
        raise DataError(
            f"a {side} sentence has {tokens.shape[1]} tokens, the model {max_positions} positions: shorten it "
            f"(--max-{side}-positions {max_positions} with --skip-invalid-size-inputs-valid-test leaves it out), or "
            f"train with a larger --max-{side}-positions"
        )


def encoder_output(
    src_tokens: Tensor, padding_idx: int, x: Tensor, padding_mask: Tensor | None, states: list[Tensor]
) -> dict[str, list[Tensor]]:
    """fairseq's dictionary of lists, in which an empty list stands for None.

    encoder_out and encoder_states (src_len, batch, ...); encoder_padding_mask (batch, src_len); src_lengths (batch, 1);
    sentence (batch,): the number of a row's sentence, which goes with the row wherever beam search puts it.
    """
    return {
        "encoder_out": [x],
        "encoder_padding_mask": [] if padding_mask is None else [padding_mask],
        "encoder_embedding": [],
        "encoder_states": states,
        "src_tokens": [],
        "src_lengths": [src_tokens.ne(padding_idx).sum(dim=1, keepdim=True, dtype=torch.int32)],
        "sentence": [torch.arange(len(src_tokens), device=src_tokens.device)],
    }


def reorder_rows(encoder_out: dict[str, list[Tensor]], new_order: Tensor) -> dict[str, list[Tensor]]:
    """Row n becomes what row `new_order[n]` was. Nothing is copied where rows of one sentence are exchanged."""
    sentence = encoder_out["sentence"][0].index_select(0, new_order)
    if torch.equal(sentence, encoder_out["sentence"][0]):
        return encoder_out
    rows_second = ("encoder_out", "encoder_states")
    return {
        name: [value.index_select(int(name in rows_second), new_order) for value in values]
        for name, values in encoder_out.items()
    }
