"""Move a trained model to another dictionary (other words, another segmentation, another domain): language models,
masked ones, translation. Words of both dictionaries keep their rows; --method makes the other rows. Tune the model
afterwards on text that is segmented for the new dictionary."""

from __future__ import annotations

import argparse
from typing import Any

from embinit_fairseq.cli.print_records import request_of, show
from embinit_fairseq.cli.vocabulary_options import (
    add_method_options,
    add_vocabulary_options,
    bound_line,
    table_names,
    written_files,
)
from embinit_fairseq.errors import counted, listed
from embinit_fairseq.init.methods import METHODS, TRANSFER

_SHOWN = 4  #: examples of each kind
_SAID = {
    "copied": "of the old dictionary",
    "composed": "of old rows",
    "averaged": "as the mean of all old words",
    "drawn": "at random",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vocabulary_options(parser, "model.pt, dict.txt and transfer.json", measures=False)
    add = parser.add_argument
    add("--new-dict", required=True, metavar="dict.txt", help="the dictionary that the model gets")
    add_method_options(parser, TRANSFER)
    add("--old-bpe-codes", metavar="FILE", help="subword: segment new words with the old model's codes of subword-nmt")
    add("--old-sentencepiece-model", metavar="FILE", help="subword: segment new words with the old sentencepiece model")
    add("--keep-optimizer", action="store_true", help="keep the optimizer's state, also for words that keep their rows")


def run(args: argparse.Namespace) -> int:
    """Transfer and print."""
    from embinit_fairseq.resize.transfer import TransferRequest, transferring

    request = request_of(TransferRequest, args, dictionary=args.dict)
    with transferring(request) as (_, _, record):
        pass
    show(record, render, args.json)
    return 0


def render(record: dict[str, Any]) -> str:
    """Return the record for people."""
    marks = record["segmentation"]
    lines = [
        f"rows           {record['rows_before']:,} -> {record['rows_after']:,}",
        f"segmentation   {marks['old']} -> {marks['new']}",
        f"method         {record['method']}: {METHODS[record['method']].help}",
    ]
    for kind, count in record["words"].items():
        if count:
            examples = listed(map(_said, record["examples"][kind]), _SHOWN, count)
            lines.append(f"{kind:<14} {counted(count, 'word')} {_SAID[kind]}: {examples}")
    if record["softmax"]:
        lines.append(f"KL(old||new)   {_bound(record)}")
    none = "none in the checkpoint" if record["request"]["keep_optimizer"] else "not kept"
    state = "kept for rows that are kept" if record["optimizer"] else f"{none}; it starts again"
    lines += [table_names(record), f"optimizer      {state}", written_files(record)]
    return "\n".join(lines)


def _bound(record: dict[str, Any]) -> str:
    """Return the bound on the change of the distribution of the kept words, or why there is none."""
    if record["bound"] is not None:
        return bound_line(record, "prefix of kept words (old: given that a kept word follows)")
    drawn = record["words"]["drawn"]
    of_drawn = f"{counted(drawn, 'word')} {'is' if drawn == 1 else 'are'} drawn"
    return f"no bound: {of_drawn if drawn else 'rows are combined of removed words, or with negative weights'}"


def _said(example: dict[str, Any]) -> str:
    word, parts = example["word"], example.get("from", {})
    if not parts or list(parts) == [word]:
        return word
    return f"{word} = " + " + ".join(f"{weight:.2g} {old}" for old, weight in list(parts.items())[:3])
