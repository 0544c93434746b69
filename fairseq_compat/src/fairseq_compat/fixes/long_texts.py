"""Too long validation texts end a training after an epoch, now before it; truncated texts lose `</s>`.

Symptom: ``Exception: Size of sample #7 is invalid`` after an epoch. ``--shorten-method truncate`` of
    sentence_prediction takes ``</s>`` away, so that a long text never ends.
Where: fairseq/trainer.py:722, fairseq/data/shorten_dataset.py:36.
Remedy: the texts of the validation are counted before the first update, and the error has their number; a shortened
    text keeps its last token.
"""

from __future__ import annotations

import contextlib

from fairseq_compat.patches import wrap

BROKEN = r"def get_valid_iterator\(|^    maybe_shorten_dataset,|import maybe_shorten_dataset"


def check_sizes(trainer) -> None:
    """Raise ValueError if a validation will end the training because of long texts."""
    import numpy
    from fairseq import utils

    options, task = trainer.cfg.dataset, trainer.task
    if options.disable_validation or options.skip_invalid_size_inputs_valid_test:
        return
    limit = utils.resolve_max_positions(task.max_positions(), trainer.model.max_positions())
    for split in options.valid_subset.split(","):
        dataset, ignored = task.datasets.get(split), []
        with contextlib.suppress(Exception):  # kinds of data that are filtered in another way: fairseq does it
            _, ignored = dataset.filter_indices_by_size(numpy.arange(len(dataset)), limit)
        if len(ignored):
            longest = max(dataset.size(index) for index in ignored)
            can_shorten = hasattr(task.cfg, "shorten_method")
            shorten = "shorten them (--shorten-method truncate), " if can_shorten else ""
            raise ValueError(
                f"{split}: {len(ignored):,} of {len(dataset):,} texts have more tokens than the model has positions "
                f"({longest}, it has {limit}); {shorten}leave them out (--skip-invalid-size-inputs-valid-test), or "
                "give more positions"
            )


def patch_trainer(module) -> None:
    @wrap(module.Trainer)
    def get_train_iterator(original, self, *args, **kwargs):
        if not vars(self).get("has_checked_sizes"):
            check_sizes(self)
            self.has_checked_sizes = True
        return original(self, *args, **kwargs)


def patch_task(module) -> None:
    import torch
    from fairseq.data.shorten_dataset import TruncateDataset

    class ShortenedDataset(TruncateDataset):
        """The first tokens of a text, and its last one."""

        def __getitem__(self, index):
            tokens = self.dataset[index]
            if len(tokens) <= self.truncation_length:
                return tokens
            return torch.cat([tokens[: self.truncation_length - 1], tokens[-1:]])

    @wrap(module)
    def maybe_shorten_dataset(original, *args, **kwargs):
        dataset = original(*args, **kwargs)
        if type(dataset) is not TruncateDataset:
            return dataset
        return ShortenedDataset(dataset.dataset, dataset.truncation_length)


def patch(module) -> None:
    patches = {"fairseq.trainer": patch_trainer, "fairseq.tasks.sentence_prediction": patch_task}
    patches[module.__name__](module)
