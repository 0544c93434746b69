"""fairseq-eval-lm --context-window with --num-workers 2 or --num-shards: the context is other text, a wrong perplexity.

Symptom: (a) each block of text gets the end of the block before as its context, taken from the batch that the same
    process has seen last. With ``--num-workers`` 2 or more, and with ``--num-shards``, this is another place of the
    text: the perplexity is wrong. (b) A window as long as ``--tokens-per-sample``: ``ZeroDivisionError``.
Where: fairseq/data/lm_context_window_dataset.py:57 (``prev_tokens``); (b) fairseq_cli/eval_lm.py:213.
Remedy: the context is looked up in the text, before each block. (b) An error that names both options.
"""

from __future__ import annotations

import argparse

from fairseq_compat.patches import wrap

BROKEN = r"self\.prev_tokens = new_toks|-= cfg\.eval_lm\.context_window"


def context(blocks, number: int, length: int):
    """Return the last `length` tokens before a block of the text, or all if there are fewer."""
    import torch

    before: list = []
    while number > 0 and sum(map(len, before)) < length:
        number -= 1
        before.insert(0, blocks[number]["source"])
    return torch.cat(before)[-length:] if before and length > 0 else torch.empty(0, dtype=torch.long)


def patch_dataset(module) -> None:
    @wrap(module.LMContextWindowDataset)
    def collater(original, self, samples):
        batch = self.dataset.collater(samples)
        if not batch:
            return batch
        inputs, longest = batch["net_input"], self.tokens_per_sample + self.context_window
        room = [min(self.context_window, longest - len(sample["source"])) for sample in samples]
        contexts = [context(self.dataset, sample["id"], length) for sample, length in zip(samples, room)]

        def moved(rows):  # to the right, by the length of the context
            wide = rows.new_full((len(rows), rows.size(1) + self.context_window), self.pad_idx)
            for row, tokens, before in zip(wide, rows, contexts):
                row[len(before) : len(before) + len(tokens)] = tokens
            return wide

        inputs["src_tokens"], batch["target"] = moved(inputs["src_tokens"]), moved(batch["target"])
        for row, before in zip(inputs["src_tokens"], contexts):
            row[: len(before)] = before
        batch["start_indices"] = [len(before) for before in contexts]
        inputs["src_lengths"] = inputs["src_lengths"] + inputs["src_lengths"].new_tensor(batch["start_indices"])
        return batch


def patch_command(module) -> None:
    @wrap(module)
    def main(original, cfg, **options):
        if isinstance(cfg, argparse.Namespace):
            cfg = module.convert_namespace_to_omegaconf(cfg)
        window, length = cfg.eval_lm.context_window, getattr(cfg.task, "tokens_per_sample", None)
        if length is not None and 0 < length <= window:
            raise ValueError(
                f"--context-window {window} leaves no token of --tokens-per-sample {length} to evaluate, as it is a "
                "part of them; give a smaller window, or more tokens, up to the model's positions"
            )
        return original(cfg, **options)


PATCHES = {"fairseq.data.lm_context_window_dataset": patch_dataset, "fairseq_cli.eval_lm": patch_command}
