"""Texts of a pair with other numbers of lines are binarised; a dictionary is copied without the record of its text.

Symptom: ``fairseq-preprocess`` ends with 0 on 10,000 source and 9,997 target lines; the training dies later with an
    assertion that names no numbers. With ``--srcdict``, a ``preparation.json`` next to the dictionary (how raw text
    became its symbols; embinit_fairseq writes it) stays behind, and the new data do not say how text is prepared.
Where: fairseq_cli/preprocess.py:277 (nothing compares the sides; ``Dictionary.save`` writes the dictionary alone).
Remedy: lines are counted before anything is written; the record goes with the dictionary.
Can go: with a fairseq that compares the sides.
"""

from __future__ import annotations

import json
import os
import shutil

from fairseq_compat.patches import wrap

BROKEN = r"src_dict\.save\(_dict_path\(args\.source_lang, args\.destdir\)\)"
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


def copy_records(args) -> None:
    """Copy the entries of the dictionaries that the user gave, with their files' paths as they are from the new folder.

    An entry is a mapping with the name of its dictionary; whoever reads it compares it with the dictionary's symbols.
    """
    given = {"source": args.srcdict, "target": args.tgtdict}
    if args.joined_dictionary:
        given = dict.fromkeys(given, args.srcdict or args.tgtdict)
    is_one = given["source"] == given["target"]
    if args.only_source:
        del given["target"]
    copied, head = {}, {}
    for side, path in given.items():
        lang = getattr(args, f"{side}_lang")
        record, entry = read_record(path, lang, is_one)
        if entry is None:
            continue
        folder, head = os.path.dirname(path), record
        for place in entry.get("files", {}).values():
            place["path"] = os.path.relpath(os.path.join(folder, place["path"]), args.destdir)
        copied[f"dict.{lang}.txt" if lang else "dict.txt"] = entry
    target = os.path.join(args.destdir, RECORD)
    if copied and not os.path.exists(target):
        temporary = f"{target}.tmp"
        with open(temporary, "w", encoding="utf-8") as text:
            json.dump({**head, "dictionaries": copied}, text, ensure_ascii=False, indent=2)
        shutil.move(temporary, target)


def read_record(path: str | None, lang: str | None, is_one: bool) -> tuple[dict, dict | None]:
    """Return the record next to a dictionary, and its entry for text in `lang`; None without one.

    A dictionary of two languages (dict.de.txt and dict.en.txt with the same symbols) has an entry of each; that of
    one language says nothing about the other. is_one: the user gives one dictionary for both sides.
    """
    file = os.path.join(os.path.dirname(path or ""), RECORD)
    if not path or not os.path.isfile(file):
        return {}, None
    with open(file, encoding="utf-8") as text:
        record = json.load(text)
    entries, name = record.get("dictionaries", {}), os.path.basename(path)
    own, side = entries.get(name), entries.get(f"dict.{lang}.txt")
    if own and side and own.get("symbols") == side.get("symbols"):
        return record, side
    return record, None if is_one and lang and name != f"dict.{lang}.txt" else own


def patch(module):
    @wrap(module)
    def main(original, args):
        check_pairs(args)
        original(args)
        copy_records(args)
