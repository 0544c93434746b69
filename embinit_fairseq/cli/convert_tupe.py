"""Convert a checkpoint of TUPE's code (pre-trained or fine-tuned, with or without relative positions) to a checkpoint
of --arch tupe_*: a folder with model.pt and dict.txt, for fairseq and for from_pretrained. The optimiser's state is
left out."""

from __future__ import annotations

import argparse
from typing import Any

from embinit_fairseq.cli.print_records import at_least, show
from embinit_fairseq.interop.tupe_checkpoints import convert_tupe


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="REF.pt", help="a checkpoint of TUPE's code; nothing in it is run")
    add("--dict", required=True, metavar="REF_DICT.txt", help="the dict.txt of the data it was trained with")
    add("--output", required=True, metavar="DIR", help="a new folder, for model.pt and dict.txt")
    add("--label-dict", metavar="FILE", help="fine-tuned: the label/dict.txt of its data; default: made-up names")
    add("--heads", type=at_least(1), metavar="H", help="attention heads, if the checkpoint does not say (base: 12)")
    add("--half", action="store_true", help="leave half precision as it is; default: single precision")
    add("--force", action="store_true", help="replace the folder if an earlier conversion wrote it")
    add("--json", action="store_true", help="print one JSON object instead of a summary")


def run(args: argparse.Namespace) -> int:
    """Convert and print the record."""
    record = convert_tupe(
        args.checkpoint,
        args.dict,
        args.output,
        num_heads=args.heads,
        label_dictionary=args.label_dict,
        half=args.half,
        force=args.force,
    )
    show(record, render, args.json)
    return 0


def render(record: dict[str, Any]) -> str:
    """Return the record as lines for people."""
    size = f"{record['encoder_layers']} layers, dimension {record['encoder_embed_dim']}"
    size += f", FFN {record['encoder_ffn_embed_dim']}, {record['encoder_attention_heads']} heads"
    size += f", {record['max_positions']} positions, {record['num_symbols']:,} symbols"
    stored, written = (" and ".join(record[name]) for name in ("stored_as", "written_as"))
    lines = [
        f"model          {'TUPE-R' if record['rel_pos'] else 'TUPE-A'}, {record['num_updates']:,} updates ({size})",
        f"task           {record['task']}",
        f"precision      {stored}" + (f", written as {written}" if stored != written else ""),
    ]
    for name, num_classes in record["classification_heads"].items():
        lines.append(f"head           {name}, {num_classes} {'class' if num_classes == 1 else 'classes'}")
    added = "<file>, <email> and <url> added" if record["specials_added"] else "converted before, unchanged"
    lines.append(f"dictionary     {added}")
    if record["made_up_labels"]:
        lines.append("labels         names made up (class0, ...): --label-dict gives the real ones")
    lines += [f"left out       {why}" for why in record["left_out"]]
    lines += [
        f"written        {record['output']}: {', '.join(record['files'])}",
        f"train with     {record['train_with']}",
    ]
    return "\n".join(lines)
