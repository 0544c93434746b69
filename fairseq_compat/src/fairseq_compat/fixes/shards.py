"""``--num-shards`` and ``--shard-id``.

Symptom: with fairseq-generate, fairseq-interactive and fairseq-validate every shard translates, or evaluates,
    everything, and ``--results-path`` is one file for all of them. With fairseq-eval-lm a shard is empty if there are
    fewer batches than shards.
Versions: all.
Where: fairseq_cli/generate.py:151, fairseq_cli/validate.py:104, fairseq_cli/interactive.py:78,
    fairseq_cli/eval_lm.py:298.
Remedy: a shard has every ``--num-shards``-th batch, or such a part of each batch if there are fewer; in
    fairseq-interactive every such line. The numbers of the sentences stay. The file of a shard is
    ``generate-test.shard0.txt``.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import argparse
import builtins
import functools
import importlib
import itertools
from contextlib import contextmanager

from fairseq_compat.shadow import shadow

REASON = "with --num-shards every shard translates everything"
BROKEN = (
    r"num_shards=(cfg\.distributed_training\.distributed_world_size|data_parallel_world_size|max\(\s*cfg\.dataset)\b"
    r"|def make_batches\("
)


def needed() -> bool:
    return True


def shard_of(cfg) -> tuple[int, int]:
    """Return the number of the shard that was asked for, and the number of shards.

    Raises:
        ValueError: there is no shard of this number.
    """
    shard, shards = cfg.dataset.shard_id, cfg.dataset.num_shards
    if not 0 <= shard < shards:
        raise ValueError(f"--shard-id {shard}: expected a number from 0 to {shards - 1} with --num-shards {shards}")
    return shard, shards


def share(task, cfg):
    """Make a task give out batches of the shard only."""
    shard, shards = shard_of(cfg)
    original = task.get_batch_iterator

    def get_batch_iterator(*args, **options):
        processes = cfg.distributed_training
        options.update(num_shards=processes.distributed_world_size, shard_id=processes.distributed_rank)
        iterator = original(*args, **options)
        batches = iterator.frozen_batches
        if len(batches) < shards:
            batches = tuple(batch[part::shards] for batch in batches for part in range(min(shards, len(batch))))
        if len(batches) < shards:
            raise ValueError(f"--num-shards {shards}: there are {len(batches)} sentences; give fewer shards")
        iterator._frozen_batches = batches[shard::shards]
        return iterator

    if shards > 1:
        task.get_batch_iterator = get_batch_iterator
    return task


def patch_tasks(module, cfg) -> None:
    tasks = importlib.import_module("fairseq.tasks")
    module.tasks = shadow(tasks, setup_task=lambda *args, **options: share(tasks.setup_task(*args, **options), cfg))


def patch_generate(module, cfg) -> None:
    shard, shards = shard_of(cfg)
    patch_tasks(module, cfg)

    def open_own(path, *args, **options):
        return builtins.open(f"{path.removesuffix('.txt')}.shard{shard}.txt", *args, **options)

    if shards > 1:
        module.open = open_own  # opens generate-test.txt, nothing else


def patch_validate(module, cfg) -> None:
    checkpoints = importlib.import_module("fairseq.checkpoint_utils")

    def load_model_ensemble_and_task(*args, **options):
        models, saved_cfg, task = checkpoints.load_model_ensemble_and_task(*args, **options)
        return models, saved_cfg, share(task, cfg)

    module.checkpoint_utils = shadow(checkpoints, load_model_ensemble_and_task=load_model_ensemble_and_task)


def patch_interactive(module, cfg) -> None:
    """Batches are made of each buffer of lines, so that lines are shared."""
    shard, shards = shard_of(cfg)
    original, numbers = module.make_batches, itertools.count()

    def make_batches(lines, *args, **options):
        own = [place for place, number in zip(range(len(lines)), numbers) if number % shards == shard]
        for batch in original([lines[place] for place in own], *args, **options) if own else ():
            yield batch._replace(ids=batch.ids.new_tensor([own[number] for number in batch.ids.tolist()]))

    if shards > 1:
        module.make_batches = make_batches


PATCHES = {
    "generate": patch_generate,
    "validate": patch_validate,
    "interactive": patch_interactive,
    "eval_lm": patch_tasks,
}


@contextmanager
def patching(module):
    yield
    original, before = module.main, {"open": builtins.open, **vars(module)}
    patch = PATCHES[module.__name__.rpartition(".")[2]]

    @functools.wraps(original)
    def main(cfg, *args, **options):
        if isinstance(cfg, argparse.Namespace):
            cfg = module.convert_namespace_to_omegaconf(cfg)
        patch(module, cfg)
        try:
            return original(cfg, *args, **options)
        finally:
            vars(module).update(before, main=main)

    module.main = main
