"""With --num-shards every shard does everything; now its part, in generate-test.shard0.txt.

Symptom: with fairseq-generate, fairseq-interactive and fairseq-validate every shard translates, or evaluates,
    everything, and ``--results-path`` is one file for all of them. With fairseq-eval-lm a shard is empty if there are
    fewer batches than shards.
Where: fairseq_cli/generate.py:151, fairseq_cli/validate.py:104, fairseq_cli/interactive.py:78,
    fairseq_cli/eval_lm.py:298.
Remedy: a shard has every ``--num-shards``-th batch, or such a part of each batch if there are fewer; in
    fairseq-interactive every such line. The numbers of the sentences stay. The file of a shard is
    ``generate-test.shard0.txt``.
"""

from __future__ import annotations

import argparse
import builtins
import itertools
from functools import partial

from fairseq_compat.patches import shadow, wrap

BROKEN = (
    r"num_shards=(cfg\.distributed_training\.distributed_world_size|data_parallel_world_size|max\(\s*cfg\.dataset)\b"
    r"|def make_batches\("
)


def shard_of(cfg) -> tuple[int, int]:
    """Return the number of the shard in the configuration, and the number of shards.

    Raises:
        ValueError: there is no shard of this number.
    """
    shard, shards = cfg.dataset.shard_id, cfg.dataset.num_shards
    if not 0 <= shard < shards:
        raise ValueError(f"--shard-id {shard}: expected a number from 0 to {shards - 1} with --num-shards {shards}")
    return shard, shards


def share(task, cfg):
    """Let a task make batches of the shard only; return the task."""
    shard, shards = shard_of(cfg)
    processes = cfg.distributed_training

    @wrap(task)
    def get_batch_iterator(original, *args, **options):
        options.update(num_shards=processes.distributed_world_size, shard_id=processes.distributed_rank)
        iterator = original(*args, **options)
        batches = iterator.frozen_batches
        if len(batches) < shards:
            batches = tuple(batch[part::shards] for batch in batches for part in range(min(shards, len(batch))))
        if len(batches) < shards:
            raise ValueError(f"--num-shards {shards}: there are {len(batches)} sentences; give fewer shards")
        iterator._frozen_batches = batches[shard::shards]
        return iterator

    return task


def share_task(module, cfg) -> None:
    """Share the batches of the task that a command sets up."""
    setup_task = module.tasks.setup_task
    shadow(module, "tasks.setup_task", lambda *args, **options: share(setup_task(*args, **options), cfg))


def share_generation(module, cfg) -> None:
    """Share the batches; the file of results has the number of the shard."""
    share_task(module, cfg)

    def open_own(path, *args, **options):
        return builtins.open(f"{path.removesuffix('.txt')}.shard{cfg.dataset.shard_id}.txt", *args, **options)

    module.open = open_own  # the command opens generate-test.txt, nothing else


def share_validation(module, cfg) -> None:
    """Share the batches of the task of the checkpoint."""
    load = module.checkpoint_utils.load_model_ensemble_and_task

    def load_model_ensemble_and_task(*args, **options):
        models, saved_cfg, task = load(*args, **options)
        return models, saved_cfg, share(task, cfg)

    shadow(module, "checkpoint_utils.load_model_ensemble_and_task", load_model_ensemble_and_task)


def share_lines(module, cfg) -> None:
    """Share the lines: batches are made of each buffer of lines."""
    shard, shards = shard_of(cfg)
    numbers = itertools.count()

    @wrap(module)
    def make_batches(original, lines, *args, **options):
        own = [place for place, number in zip(range(len(lines)), numbers) if number % shards == shard]
        for batch in original([lines[place] for place in own], *args, **options) if own else ():
            yield batch._replace(ids=batch.ids.new_tensor([own[number] for number in batch.ids.tolist()]))


def patch_command(share_data, module) -> None:
    """Let a command share its data, for calls with ``--num-shards``."""

    @wrap(module)
    def main(original, cfg, *args, **options):
        if isinstance(cfg, argparse.Namespace):
            cfg = module.convert_namespace_to_omegaconf(cfg)
        before = {"open": builtins.open, **vars(module)}
        if shard_of(cfg)[1] > 1:
            share_data(module, cfg)
        try:
            return original(cfg, *args, **options)
        finally:
            vars(module).update(before)


PATCHES = {
    "fairseq_cli.generate": partial(patch_command, share_generation),
    "fairseq_cli.validate": partial(patch_command, share_validation),
    "fairseq_cli.interactive": partial(patch_command, share_lines),
    "fairseq_cli.eval_lm": partial(patch_command, share_task),
}
