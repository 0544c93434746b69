"""Sides of a pair with different numbers of lines are binarised; a missing side is an error without a file.

Symptom: ``fairseq-preprocess`` ends with 0 on 10,000 source and 9,997 target lines; the training dies later with an
    assertion that names no numbers. A training on data without a target side: ``missing 1 required positional
    argument: 'prev_output_tokens'``.
Where: fairseq_cli/preprocess.py:277 (nothing compares the sides), fairseq/tasks/fairseq_task.py:486 (``train_step``).
Remedy: lines are counted before anything is written. The error of a missing side names the file.
Upstream: fairseq issues 4080, 4871.
Can go: with a fairseq that compares the sides.
"""

from __future__ import annotations

import os

from fairseq_compat.patches import explain_failures, wrap

BROKEN = r"src_dict\.save\(_dict_path\(args\.source_lang, args\.destdir\)\)|^    def train_step\("


def check_pairs(args) -> None:
    """Raise ValueError if the sides of a set have different numbers of lines. args: options of fairseq-preprocess."""
    if args.only_source or not args.source_lang or not args.target_lang:
        return
    prefixes = [args.trainpref, *(args.validpref or "").split(","), *(args.testpref or "").split(",")]
    for prefix in filter(None, prefixes):
        paths = [f"{prefix}.{lang}" for lang in (args.source_lang, args.target_lang)]
        if all(map(os.path.isfile, paths)):
            source, target = map(count_lines, paths)
            if source != target:
                raise ValueError(
                    f"{paths[0]} has {source:,} lines, {paths[1]} {target:,}: line n of one must be the translation of "
                    "line n of the other; find the first pair that is none"
                )


def count_lines(path: str) -> int:
    """Return the number of lines; only LF ends a line, and the last line may have none."""
    lines, last = 0, b"\n"
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def missing_side(error, task, sample, *args, **options) -> str | None:
    """Name the missing file if a batch has no target because its data have none; else return None."""
    if not isinstance(error, (TypeError, AttributeError)) or not isinstance(sample, dict):
        return None
    if sample.get("target", sample) is not None:
        return None
    splits = [split for split, dataset in task.datasets.items() if getattr(dataset, "tgt", dataset) is None]
    cfg = getattr(task, "cfg", None) or task.args
    source, target = cfg.source_lang, cfg.target_lang
    files = ", ".join(f"{split}.{source}-{target}.{target}" for split in splits)
    return f"{cfg.data}: has no target side ({files} is missing); run fairseq-preprocess without --only-source"


def patch_task(module) -> None:
    for name in ("train_step", "valid_step"):
        explain_failures(module.FairseqTask, name, missing_side)


def patch_preprocess(module) -> None:
    @wrap(module)
    def main(original, args):
        check_pairs(args)
        original(args)


PATCHES = {"fairseq_cli.preprocess": patch_preprocess, "fairseq.tasks.fairseq_task": patch_task}
