"""What the tests of `embinit convert-tupe` share."""

from __future__ import annotations

from pathlib import Path

import authors_tupe as authors
import torch

from embinit_fairseq.convert_tupe.convert import convert_tupe

SYMBOLS = 17  # 16, rounded up by two fillers, and <mask>


class Files:
    """A checkpoint of theirs with its dictionary, and the output of the conversion."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, str(folder / "out")
        self.dictionary = authors.write_dictionary(folder / "theirs.txt", authors.words_of_dictionary())

    def save(self, weights=None, args=None, **options) -> str:
        weights = authors.make_weights(SYMBOLS) if weights is None else weights
        args = authors.make_args(weights) if args is None else args
        return authors.save(self.folder / "ref.pt", weights, args, **options)

    def convert(self, checkpoint=None, **options):
        return convert_tupe(checkpoint or self.save(), self.dictionary, self.output, **options)

    def written(self):
        """What plain PyTorch reads, with nothing but its own allow-list."""
        before = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        try:
            return torch.load(f"{self.output}/model.pt", weights_only=True)
        finally:
            torch.serialization.add_safe_globals(before)


def left_in(folder) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())
