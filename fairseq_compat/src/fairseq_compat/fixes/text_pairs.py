"""Sides of a pair with different numbers of lines are binarised; --srcdict leaves preparation.json out.

Symptom: ``fairseq-preprocess`` ends with 0 on 10,000 source and 9,997 target lines; the training dies later with an
    assertion that names no numbers. With ``--srcdict``, a ``preparation.json`` next to the dictionary (how raw text
    became its symbols; embinit_fairseq writes it) is not copied, and the new data do not say how text is prepared.
    A training on data without a target side: ``missing 1 required positional argument: 'prev_output_tokens'``.
Where: fairseq_cli/preprocess.py:277 (nothing compares the sides; ``Dictionary.save`` writes the dictionary alone),
    fairseq/tasks/fairseq_task.py:486 (``train_step``).
Remedy: lines are counted before anything is written; the record of each dictionary that is written goes with it. The
    error of a missing side names the file.
Upstream: fairseq issues 4080, 4871.
Can go: with a fairseq that compares the sides.
"""

from __future__ import annotations

import json
import os
import shutil

from fairseq_compat.patches import explain_failures, wrap

BROKEN = r"src_dict\.save\(_dict_path\(args\.source_lang, args\.destdir\)\)|^    def train_step\("
RECORD = "preparation.json"


def check_pairs(args) -> None:
    """Raise ValueError if the sides of a set have other numbers of lines. args: of fairseq-preprocess."""
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
    """Return the number of lines; only LF ends a line, and the last may lack it."""
    lines, last = 0, b"\n"
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def find_records(args) -> tuple[dict, dict]:
    """Return (the rest of a record, name of a dictionary -> entry) for the folder of the new data.

    It has the entries of the dictionaries that the user gives, with their files' paths as they are from that folder.
    Of its own record the entries of other dictionaries stay.
    """
    given = {"source": args.srcdict, "target": args.tgtdict}
    if args.joined_dictionary:
        given = dict.fromkeys(given, args.srcdict or args.tgtdict)
    is_one = given["source"] == given["target"]
    if args.only_source:
        del given["target"]
    head, entries = read_record(args.destdir, args.destdir)
    for side, path in given.items():
        lang = getattr(args, f"{side}_lang")
        record, entry = entry_of(path, lang, is_one, args.destdir)
        name = f"dict.{lang}.txt" if lang else "dict.txt"
        entries.pop(name, None)
        if entry is not None:
            head, entries[name] = record, entry
    return head, entries


def entry_of(path: str | None, lang: str | None, is_one: bool, destdir: str) -> tuple[dict, dict | None]:
    """Return the record next to a dictionary, and its entry for text in `lang`; None without one.

    A dictionary of two languages (dict.de.txt and dict.en.txt with the same symbols) has an entry of each; that of
    one language says nothing about the other. is_one: the user gives one dictionary for both sides.
    """
    if not path:
        return {}, None
    record, entries = read_record(os.path.dirname(path), destdir)
    name, own_name = os.path.basename(path), f"dict.{lang}.txt"
    own, side = entries.get(name), entries.get(own_name)
    if own and side and own.get("symbols") != side.get("symbols"):
        raise ValueError(f"{path}: is not the dictionary of {lang}, which is {own_name} next to it; swap the languages")
    return record, side if own and side else None if is_one and lang and name != own_name else own


def read_record(folder: str, destdir: str) -> tuple[dict, dict]:
    """Return the record in a folder, and its entries with paths of files as they are from `destdir`; {} without one."""
    file = os.path.join(folder, RECORD)
    if not os.path.isfile(file):
        return {}, {}
    try:
        with open(file, encoding="utf-8") as text:
            record = json.load(text)
        for entry in record["dictionaries"].values():
            for place in entry["files"].values():
                parent, name = os.path.split(os.path.join(folder, place["path"]))
                place["path"] = os.path.relpath(os.path.join(os.path.realpath(parent), name), os.path.realpath(destdir))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: damaged ({error!r}); copy it again, or remove it") from error
    return record, record["dictionaries"]


def write_record(record: dict, destdir: str) -> None:
    """Write a record to the folder of the new data."""
    target = os.path.join(destdir, RECORD)
    with open(f"{target}.tmp", "w", encoding="utf-8") as text:
        json.dump(record, text, ensure_ascii=False, indent=2)
    shutil.move(f"{target}.tmp", target)


def missing_side(error, task, sample, *args, **options) -> str | None:
    """Return which file is missing if a batch has no target because its data have none; else None."""
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
        head, entries = find_records(args)
        original(args)
        if head:
            write_record({**head, "dictionaries": entries}, args.destdir)


PATCHES = {"fairseq_cli.preprocess": patch_preprocess, "fairseq.tasks.fairseq_task": patch_task}
