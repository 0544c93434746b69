"""--srcdict leaves preparation.json out: the new data do not say how raw text became their symbols.

Symptom: ``fairseq-preprocess --srcdict`` does not copy a ``preparation.json`` next to the dictionary (embinit_fairseq
    writes it), and leaves one in ``--destdir`` that may be of other dictionaries.
Where: fairseq_cli/preprocess.py:277 (``Dictionary.save`` writes the dictionary alone).
Remedy: the record of each dictionary that is written goes with it.
"""

from __future__ import annotations

import json
import os
import shutil

from fairseq_compat.patches import wrap

BROKEN = r"src_dict\.save\(_dict_path\(args\.source_lang, args\.destdir\)\)"
RECORD = "preparation.json"


def find_records(args) -> tuple[dict, dict]:
    """Return (the rest of a record, name of a dictionary -> entry) for the folder of the new data.

    The record has the entries of the user's dictionaries, with paths of files relative to that folder. Entries of
    other dictionaries in the folder's record stay.
    """
    dict_paths = {"source": args.srcdict, "target": args.tgtdict}
    if args.joined_dictionary:
        dict_paths = dict.fromkeys(dict_paths, args.srcdict or args.tgtdict)
    is_one = dict_paths["source"] == dict_paths["target"]
    if args.only_source:
        del dict_paths["target"]
    head, entries = read_record(args.destdir, args.destdir)
    for side, path in dict_paths.items():
        lang = getattr(args, f"{side}_lang")
        record, entry = entry_of(path, lang, is_one, args.destdir)
        name = f"dict.{lang}.txt" if lang else "dict.txt"
        entries.pop(name, None)
        if entry is not None:
            head, entries[name] = record, entry
    return head, entries


def entry_of(path: str | None, lang: str | None, is_one: bool, destdir: str) -> tuple[dict, dict | None]:
    """Return the record next to a dictionary, and its entry for text in `lang`; None without one.

    A dictionary of two languages (dict.de.txt and dict.en.txt with the same symbols) has one entry per language, which
    does not describe the other language. is_one: True if the user gives one dictionary for both sides.
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
    """Return the record in a folder, and its entries with paths of files relative to `destdir`; {} without one."""
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


def patch(module):
    @wrap(module)
    def main(original, args):
        head, entries = find_records(args)
        original(args)
        if head:
            write_record({**head, "dictionaries": entries}, args.destdir)
