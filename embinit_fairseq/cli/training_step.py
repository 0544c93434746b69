"""One forward and backward pass of an architecture on the CPU, through fairseq's own parser, task and criterion.

The smallest thing that shows that fairseq, torch and the plugin work together. Imports fairseq: for the doctor only.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, FairseqEncoderDecoderModel, FairseqLanguageModel

#: Where an architecture has one of these options, and it is a number, it is made this small.
SMALL = {
    "--encoder-layers": 1,
    "--decoder-layers": 1,
    "--encoder-embed-dim": 16,
    "--decoder-embed-dim": 16,
    "--encoder-ffn-embed-dim": 16,
    "--decoder-ffn-embed-dim": 16,
    "--encoder-attention-heads": 2,
    "--decoder-attention-heads": 2,
    "--generator-layers": 1,
    "--generator-embed-dim": 16,
    "--generator-ffn-embed-dim": 16,
    "--generator-attention-heads": 2,
}
SENTENCES = ("one two three four five", "six seven eight nine ten")
CLASSES = ("no", "yes")


def task_of(arch: str) -> str:
    """The task of fairseq that an architecture is tried with, by what its model is."""
    model = ARCH_MODEL_REGISTRY[arch]
    if issubclass(model, FairseqEncoderDecoderModel):
        return "translation"
    if issubclass(model, FairseqLanguageModel):
        return "language_modeling"
    return "sentence_prediction" if "classifier" in arch else "masked_lm"


def training_step(arch: str, extra: Sequence[str] = ()) -> float:
    """The loss of one step with a small model; every parameter that took part has a finite gradient afterwards.

    extra: further command-line arguments, e.g. ("--embed-init", "xavier"). Raises what fairseq raises, and
    ArithmeticError for a loss or a gradient that is not finite.
    """
    task_name = task_of(arch)
    with tempfile.TemporaryDirectory() as folder:
        _write_dictionaries(Path(folder))
        cfg = _configuration(folder, arch, task_name, extra)
        task = tasks.setup_task(cfg.task)
        model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
        loss, size, _ = criterion(model, _batch(task_name, task))
        (loss / size).backward()
    if not math.isfinite(loss.item()):
        raise ArithmeticError(f"the loss is {loss.item()}")
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if not gradients or not all(torch.isfinite(gradient).all() for gradient in gradients):
        raise ArithmeticError("no gradient, or one that is not finite")
    return loss.item() / float(size)


def _configuration(folder: str, arch: str, task: str, extra: Sequence[str]) -> Any:
    known = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, allow_abbrev=False)
    ARCH_MODEL_REGISTRY[arch].add_args(known)
    actions = known._option_string_actions
    small = [f"{flag}={value}" for flag, value in SMALL.items() if flag in actions and actions[flag].type is int]
    of_task = {
        "translation": ["--source-lang=de", "--target-lang=en"],
        "language_modeling": ["--sample-break-mode=eos"],
        "masked_lm": [f"--criterion={'electra' if 'electra' in arch else 'masked_lm'}", "--tokens-per-sample=32"],
        "sentence_prediction": ["--criterion=sentence_prediction", f"--num-classes={len(CLASSES)}"],
    }[task]
    if "--max-positions" in actions or task in ("masked_lm", "sentence_prediction"):
        of_task.append("--max-positions=32")
    arguments = [folder, f"--arch={arch}", f"--task={task}", "--cpu", "--no-save", *of_task, *small, *extra]
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, input_args=arguments))


def _write_dictionaries(folder: Path) -> None:
    lines = "".join(f"{word} 1\n" for sentence in SENTENCES for word in sentence.split())
    for name in ("dict.txt", "dict.de.txt", "dict.en.txt", "input0/dict.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(lines)
    (folder / "label").mkdir()
    (folder / "label" / "dict.txt").write_text("".join(f"{name} 1\n" for name in CLASSES))


def _batch(task_name: str, task: Any) -> dict[str, Any]:
    words: Dictionary = task.source_dictionary
    rows = [words.encode_line(line, add_if_not_exist=False).long() for line in SENTENCES]
    if task_name in ("masked_lm", "sentence_prediction"):  # as their data sets, with --init-token 0 in the latter
        rows = [torch.cat([row.new_tensor([words.bos()]), row]) for row in rows]
    lengths = [len(row) for row in rows]
    if task_name == "translation":
        pairs = LanguagePairDataset(rows, lengths, words, rows, lengths, task.target_dictionary, left_pad_source=False)
        return pairs.collater([pairs[0], pairs[1]])
    tokens = torch.stack(rows)
    batch = {"id": torch.arange(2), "nsentences": 2, "ntokens": tokens.numel()}
    batch["net_input"] = {"src_tokens": tokens, "src_lengths": torch.tensor(lengths)}
    if task_name == "masked_lm":
        batch["target"] = torch.full_like(tokens, words.pad())
        batch["target"][:, 1] = tokens[:, 1]
    elif task_name == "language_modeling":
        batch["target"] = tokens.roll(-1, dims=1)
    else:
        batch["target"] = torch.tensor([0, 1])
    return batch
