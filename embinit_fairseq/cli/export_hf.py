"""Write a trained model of fairseq (--arch roberta_*, transformer*, bart_*, tupe_*, its comparison set bert_*,
electra_*) as a folder for Hugging Face transformers: safetensors, tokenizer, modelling code if transformers has none.
A process without fairseq opens the folder again and must compute the same numbers as fairseq; otherwise nothing is
written and the exit code is 1."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from shlex import quote
from typing import Any

from embinit_fairseq.cli.print_records import request_of, show
from embinit_fairseq.interop.export import describe_text, export
from embinit_fairseq.interop.export_request import DTYPES, ExportRequest
from embinit_fairseq.interop.verify_export import DifferentOutput
from embinit_fairseq.vocab.preparation_options import steps_help
from embinit_fairseq.vocab.preparation_record import FILE


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="C.pt", help="written by fairseq-train; nothing in it is run")
    add("--output", required=True, metavar="DIR", help="a new folder")
    add("--dict", metavar="dict.txt", help="default: next to the checkpoint, or in the data folder of the training")
    add("--target-dict", metavar="FILE", help="translation: the target's (--dict: the source's); default: likewise")
    add("--label-dict", metavar="FILE", help="fine-tuned: names of the classes; default: label/dict.txt likewise")
    add("--head", metavar="NAME", help="fine-tuned: which classification head, if there are several")
    add("--bpe-codes", metavar="FILE", help="codes of subword-nmt: the tokenizer takes raw text")
    add("--gpt2-bpe", metavar="DIR", help="encoder.json and vocab.bpe of fairseq's --bpe gpt2")
    add("--sentencepiece-model", metavar="FILE", help="the tokenizer takes raw text, which this model segments")
    add(
        "--tokenizer",
        metavar="DIR",
        help="a tokenizer of transformers with the dictionary's ids, or of a step huggingface",
    )
    add("--dtype", choices=DTYPES, default="float32", help="precision of the files (default: %(default)s)")
    steps = f"raw text: the steps to symbols (default: as {FILE} says), separated by commas: {steps_help()}"
    add("--preparation", metavar="STEPS", help=steps)
    add("--lowercase", choices=("yes", "no"), help="with --preparation: whether lowercase is one of the steps")
    add("--lang", metavar="LANG", help="with --preparation: the text's language (default: the source's, else en)")
    add("--verify-text", metavar="FILE", help="raw or segmented text whose ids must equal fairseq's")
    data = "the lines of --verify-text, binarised by fairseq-preprocess, such as bin/valid; their ids must be equal"
    add("--verify-bin", metavar="PREFIX", help=data)
    add("--user-dir", metavar="DIR", help="another plugin, which has the model's preset (--arch)")
    codes = "codes of the model card, such as de en (default: a translation's)"
    add("--language", nargs="+", default=[], metavar="CODE", help=codes)
    add("--license", metavar="ID", help="license of the model card, such as apache-2.0")
    add("--force", action="store_true", help="replace the folder if an earlier export wrote it")
    add("--json", action="store_true", help="print one JSON object instead of a summary")


def run(args: argparse.Namespace) -> int:
    """Export and print the record; return 1 if the result and fairseq's model compute different numbers."""
    try:
        named = {"dictionary": args.dict, "target_dictionary": args.target_dict, "label_dictionary": args.label_dict}
        record = export(request_of(ExportRequest, args, **named, language=tuple(args.language)))
    except DifferentOutput as error:
        print(f"embinit export-hf: error: {error}", file=sys.stderr)
        return 1
    show(record, render, args.json)
    return 0


def render(record: dict[str, Any]) -> str:
    """Return the record as lines for people."""
    lines = [
        f"model          {record['kind']}, {record['num_updates']:,} updates ({record['sizes']})",
        f"opened by      {record['auto_class']}, {record['parameters']:,} parameters in {record['dtype']}",
    ]
    if record["head"] is not None:
        labels, numbers = record["head"]["labels"], record["head"]["numbers"]
        names = ", ".join(labels) if labels else "no label dictionary: LABEL_0, ... (--label-dict)"
        lines.append(f"head           {record['head']['name']}: {f'a number {numbers}' if numbers else names}")
    if record["left_out"]:
        lines.append(f"left out       {', '.join(record['left_out'])}")
    lines += [
        f"dictionary     {record['dictionary']}",
        f"tokenizer      {record['tokenizer']}",
    ]
    if record["target_tokenizer"] is not None:
        lines += [f"target's       {record['target_dictionary']}: {record['target_tokenizer']}"]
    if record["verified_text"] is not None:
        text = record["verified_text"]
        lines.append(f"text           {text['path']}: {describe_text(text)}: 0 differ from fairseq")
    if record["scores"]:
        scores = (score["details"].partition(" (")[0] for score in record["scores"].values())
        lines.append(f"scores         {', '.join(scores)}")
    for precision, measured in record["verified"]["differences"].items():
        lines.append(
            f"{'verified':<15}{precision}: differs from fairseq by at most {measured['difference']:.2e} (values up to "
            f"{measured['scale']:.3g}, allowed {measured['allowed']:.2e})"
        )
    lines.append(f"written        {record['output']}: {', '.join(record['files'])}")
    lines.append(f"to share it    hf upload USER/{quote(Path(record['output']).name)} {quote(record['output'])}")
    return "\n".join(lines)
