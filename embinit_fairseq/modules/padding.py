"""Left-padded batches for layers that count positions by columns.

A position is a column here, so a sentence behind padding would be read as if it stood further back, by an amount that
depends on its neighbours in the batch. Its row is rotated until it begins in column 0, and rotated back at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor


def leading_padding(padding_mask: Tensor) -> Tensor:
    """padding_mask (batch, len), True at padding -> how many columns of padding each row begins with, (batch,)."""
    return padding_mask.long().cumprod(dim=1).sum(dim=1)


def rotate_left(x: Tensor, shift: Tensor) -> Tensor:
    """x (batch, len, ...): row b moves `shift[b]` columns to the left, what falls out comes in again on the right.

    A negative shift, as in `rotate_left(rotate_left(x, shift), -shift)`, moves to the right.
    """
    batch, length = x.shape[:2]
    columns = (torch.arange(length, device=x.device) + shift.unsqueeze(1)) % length
    return x[torch.arange(batch, device=x.device).unsqueeze(1), columns]
