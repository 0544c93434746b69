"""Build any architecture as fairseq-train does, and compute one step on random sentences.

`embinit doctor --full` and `benchmarks/train_step.py` use it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, FairseqEncoderDecoderModel, FairseqLanguageModel
from torch import Tensor

import embinit_fairseq  # noqa: F401 - registers its architectures
from embinit_fairseq.io import temporary_folder

#: sizes of a small model, for options that an architecture has as integers
SMALL = {
    f"--{side}-{name}": size
    for side in ("encoder", "decoder", "generator")
    for name, size in {"layers": 1, "embed-dim": 16, "ffn-embed-dim": 16, "attention-heads": 2}.items()
}
CLASSES = ("no", "yes")
#: share of tokens that are masked, as fairseq's --mask-prob
MASKED = 0.15
#: tasks whose sentences begin with <s> (sentence_prediction with --init-token 0)
_WITH_BOS = ("masked_lm", "sentence_prediction")


@dataclass(frozen=True)
class Sizes:
    """Hold the size of a batch of random sentences.

    Args:
        length: tokens of the longest sentence, special ones included.
        vocabulary: symbols of the dictionary.
        padding: share of the columns that are padding in every second sentence.
    """

    sentences: int = 2
    length: int = 7
    vocabulary: int = 20
    padding: float = 0.0

    def lengths(self) -> list[int]:
        """Return the number of tokens of each sentence: at least two words, <s> and </s>."""
        shorter = max(min(4, self.length), self.length - int(self.padding * self.length))
        return [shorter if number % 2 else self.length for number in range(self.sentences)]


def task_of(arch: str) -> str:
    """Return fairseq's task for an architecture, by the class of its model."""
    model = ARCH_MODEL_REGISTRY[arch]
    if issubclass(model, FairseqEncoderDecoderModel):
        return "translation"
    if issubclass(model, FairseqLanguageModel):
        return "language_modeling"
    return "sentence_prediction" if "classifier" in arch else "masked_lm"


def training_step(arch: str, extra: Sequence[str] = ()) -> float:
    """Return the loss per token of a forward and backward pass of a small model on the CPU.

    Args:
        arch: an architecture of fairseq.
        extra: further command-line arguments, such as ("--embed-init", "xavier").

    Raises:
        ArithmeticError: if the loss or a gradient is not finite.
    """
    task_name, sizes = task_of(arch), Sizes()
    options_of_model = model_options(arch)
    small = [f"{flag}={value}" for flag, value in SMALL.items() if options_of_model.get(flag) is int]
    if "--max-positions" in options_of_model or task_name in _WITH_BOS:
        small.append("--max-positions=32")
    with temporary_folder() as folder:
        cfg = configuration(str(folder), arch, task_name, sizes, ["--cpu", "--no-save", *small, *extra])
        task = tasks.setup_task(cfg.task)
        model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
        loss, size, _ = criterion(model, random_batch(task_name, task, sizes))
        (loss / size).backward()
    if not math.isfinite(loss.item()):
        raise ArithmeticError(f"the loss is {loss.item()}")
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if not gradients or not all(torch.isfinite(gradient).all() for gradient in gradients):
        raise ArithmeticError("no gradient, or one that is not finite")
    return loss.item() / float(size)


def model_options(arch: str) -> dict[str, Any]:
    """Return flag -> type of its value (None: a string or a switch) for the options of an architecture."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, allow_abbrev=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    return {flag: action.type for flag, action in parser._option_string_actions.items()}


def configuration(folder: str, arch: str, task: str, sizes: Sizes, extra: Sequence[str]) -> Any:
    """Return fairseq's configuration for random data; the dictionaries are written to `folder`.

    extra: options of fairseq-train, which replace these.
    """
    _write_dictionaries(Path(folder), task, sizes.vocabulary)
    masking = "electra" if "electra" in arch else "masked_lm"
    of_task = {
        "translation": ["--source-lang=de", "--target-lang=en"],
        "language_modeling": ["--sample-break-mode=eos", f"--tokens-per-sample={sizes.length}"],
        "masked_lm": [f"--criterion={masking}", f"--tokens-per-sample={sizes.length}"],
        "sentence_prediction": ["--criterion=sentence_prediction", f"--num-classes={len(CLASSES)}"],
    }[task]
    # not fairseq's default folder, in which there may be a checkpoint of the user's
    arguments = [folder, f"--save-dir={folder}", f"--arch={arch}", f"--task={task}", *of_task, *extra]
    return convert_namespace_to_omegaconf(
        options.parse_args_and_arch(options.get_training_parser(), input_args=arguments)
    )


def _write_dictionaries(folder: Path, task: str, vocabulary: int) -> None:
    special = 5 if task == "masked_lm" else 4  # <s>, <pad>, </s>, <unk>, and <mask>, which masked_lm adds
    lines = "".join(f"w{number} 1\n" for number in range(vocabulary - special))
    for name in ("dict.txt", "dict.de.txt", "dict.en.txt", "input0/dict.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(lines)
    (folder / "label").mkdir(exist_ok=True)
    (folder / "label" / "dict.txt").write_text("".join(f"{name} 1\n" for name in CLASSES))


def random_batch(task_name: str, task: Any, sizes: Sizes, seed: int = 1) -> dict[str, Any]:
    """Return a batch as the task's data set would make it: random words, </s> at the end of each row.

    For masked_lm the same number of tokens is replaced by <mask> in every row.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, lengths = _sentences(task.source_dictionary, sizes, task_name in _WITH_BOS, generator), sizes.lengths()
    if task_name == "translation":
        targets = _sentences(task.target_dictionary, sizes, False, generator)
        source, target = (rows, lengths, task.source_dictionary), (targets, lengths, task.target_dictionary)
        left_pad = {"left_pad_source": task.cfg.left_pad_source, "left_pad_target": task.cfg.left_pad_target}
        pairs = LanguagePairDataset(*source, *target, **left_pad)
        return pairs.collater([pairs[number] for number in range(len(rows))])
    pad = task.source_dictionary.pad()
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    batch = {"id": torch.arange(len(rows)), "nsentences": len(rows), "ntokens": sum(lengths)}
    batch["net_input"] = {"src_tokens": tokens, "src_lengths": torch.tensor(lengths)}
    if task_name == "masked_lm":
        batch["target"] = _mask(tokens, lengths, pad, task.mask_idx, generator)
    elif task_name == "language_modeling":
        rows = [row.roll(-1) for row in rows]
        batch["target"] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    else:
        batch["target"] = torch.arange(len(rows)) % len(CLASSES)
    return batch


def _sentences(dictionary: Any, sizes: Sizes, with_bos: bool, generator: torch.Generator) -> list[Tensor]:
    words = torch.arange(dictionary.nspecial, sizes.vocabulary - 1)
    rows = [words[torch.randint(len(words), (length,), generator=generator)] for length in sizes.lengths()]
    for row in rows:
        row[-1] = dictionary.eos()
        if with_bos:
            row[0] = dictionary.bos()
    return rows


def _mask(tokens: Tensor, lengths: list[int], pad: int, mask: int, generator: torch.Generator) -> Tensor:
    """Mask tokens in place; return the targets: the original tokens at masked places, padding elsewhere."""
    target = torch.full_like(tokens, pad)
    for row, length in enumerate(lengths):
        number = max(1, round(MASKED * length))
        chosen = 1 + torch.randperm(length - 2, generator=generator)[:number]
        target[row, chosen] = tokens[row, chosen]
        tokens[row, chosen] = mask
    return target
