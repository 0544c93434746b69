"""Batches that are put together once and not in every epoch.

The data of fairseq's sentence_prediction cost more time than a classifier of these sizes: every text goes through a
dozen layers of data sets. The task's batches are the same in all epochs, only their order changes; here each is kept,
and nothing else about a training is different.
"""

from __future__ import annotations

from typing import Any

from fairseq.data import BaseWrapperDataset
from fairseq.tasks.sentence_prediction import SentencePredictionTask


class KeptBatches(BaseWrapperDataset):
    """Items are numbers; `collater` looks the texts up when it sees a batch for the first time."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self.batches: dict[tuple[int, ...], Any] = {}

    def __getitem__(self, index: int) -> int:
        return int(index)

    def collater(self, samples: list[int]) -> Any:
        """Numbers of texts -> what the wrapped data set makes of these texts."""
        key = tuple(samples)
        if key not in self.batches:
            self.batches[key] = self.dataset.collater([self.dataset[index] for index in samples])
        return self.batches[key]


def keep_batches() -> None:
    """From now on all data sets of the task do so, in this process."""
    inner = SentencePredictionTask.load_dataset

    def load_dataset(self: SentencePredictionTask, split: str, *args: Any, **kwargs: Any) -> Any:
        inner(self, split, *args, **kwargs)
        self.datasets[split] = KeptBatches(self.datasets[split])
        return self.datasets[split]

    SentencePredictionTask.load_dataset = load_dataset
