"""Too long validation texts end a training after an epoch, now before it; shortened texts lose `</s>` or stay too long.

Symptom: ``Exception: Size of sample #7 is invalid`` after an epoch. ``--shorten-method truncate`` of
    sentence_prediction, sentence_ranking and masked_lm takes ``</s>`` away, so that a long text never ends, and
    ``random_crop`` also ``<s>``, whose feature is classified. In masked_lm and denoising a shortened sentence is longer
    than ``--tokens-per-sample`` by the symbols that the task adds: training leaves it out, validation fails.
Where: fairseq/trainer.py:722, fairseq/data/shorten_dataset.py:36 and :65, fairseq/tasks/masked_lm.py:154,
    fairseq/tasks/denoising.py:186.
Remedy: the texts of the validation are counted before the first update, and the error has their number; a shortened
    text keeps its last token, a cropped text also the first, and there is room for the symbols that the task adds.
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


#: task -> (tokens that it adds to a shortened text; tokens that are kept at its front, and at its end)
TASKS = {
    "fairseq.tasks.sentence_prediction": (0, 1, 1),
    "fairseq.tasks.sentence_ranking": (0, 1, 1),
    "fairseq.tasks.masked_lm": (1, 0, 1),
    "fairseq.tasks.denoising": (2, 0, 0),
}


def patch_task(module) -> None:
    import numpy
    import torch
    from fairseq.data import data_utils
    from fairseq.data.shorten_dataset import RandomCropDataset, TruncateDataset

    added, front, end = TASKS[module.__name__]

    def joined(tokens, start: int, length: int):
        """Return the kept tokens at both ends, and between them the tokens from `start` on."""
        inside = length - front - end
        return torch.cat([tokens[:front], tokens[start : start + inside], tokens[len(tokens) - end :]])

    class Truncated(TruncateDataset):
        def __getitem__(self, index):
            tokens, length = self.dataset[index], self.truncation_length
            return tokens if len(tokens) <= length else joined(tokens, front, length)

    class Cropped(RandomCropDataset):
        def __getitem__(self, index):
            tokens, length = self.dataset[index], self.truncation_length
            with data_utils.numpy_seed(self.seed, self.epoch, index):
                start = front + numpy.random.randint(max(0, len(tokens) - length) + 1)
            return tokens if len(tokens) <= length else joined(tokens, start, length)

    @wrap(module)
    def maybe_shorten_dataset(original, dataset, split, splits, method, tokens_per_sample, seed):
        shortened = original(dataset, split, splits, method, tokens_per_sample - added, seed)
        if type(shortened) is TruncateDataset:
            return Truncated(dataset, shortened.truncation_length)
        if type(shortened) is RandomCropDataset:
            return Cropped(dataset, shortened.truncation_length, seed)
        return shortened


PATCHES = {"fairseq.trainer": patch_trainer, **dict.fromkeys(TASKS, patch_task)}
