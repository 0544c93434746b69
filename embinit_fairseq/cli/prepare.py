"""Prepare raw text for fairseq-train: check it, apply the steps, learn subwords, make dictionaries, binarise, and write
preparation.json, the record of these steps. TEXT is in two languages (train.de train.en valid.de ...), in one
(train.txt valid.txt), or in tables whose first line or keys name the columns (train.tsv dev.csv test.jsonl); files may
be compressed. The name of a file says its split (train; valid, val, dev; test), or SPLIT=FILE does. Large corpora:
scripts/wikibooks and scripts/wmt14."""

from __future__ import annotations

import argparse
from typing import Any

from embinit_fairseq.cli.print_records import at_least, request_of, show, table
from embinit_fairseq.cli.progress import progress
from embinit_fairseq.machine import cores
from embinit_fairseq.vocab.preparation_options import steps_help

#: share of <unk> above which a line names remedies
_MANY_UNKNOWN = 0.1
#: share of the largest class from which a constant answer is a high accuracy
_ONE_CLASS = 0.8


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("texts", nargs="+", metavar="TEXT", help="raw text, FILE or SPLIT=FILE")
    add("--output", required=True, metavar="DIR", help="a new folder, for bin/ (for fairseq-train), text/ and subwords")
    add("--steps", metavar="STEPS", help=f"separated by commas, as lowercase,moses,bpe: {steps_help()}")
    add("--bpe-size", type=at_least(1), metavar="N", help="bpe: learn N merges of the training text, of both languages")
    add("--bpe-codes", metavar="CODES", help="bpe: use these codes of subword-nmt")
    add("--sentencepiece-size", type=at_least(1), metavar="N", help="sentencepiece: learn a model of N pieces")
    kinds = "kind of the learned model; default: %(default)s"
    add("--sentencepiece-type", choices=("unigram", "bpe"), default="unigram", help=kinds)
    add("--sentencepiece-model", metavar="MODEL", help="sentencepiece: use this model")
    add("--tokenizer", metavar="FOLDER", help="huggingface: a folder with tokenizer.json")
    add("--source-lang", metavar="L", help="language that is translated; default: the first file's; other text: en")
    add("--target-lang", metavar="L", help="language of the translations")
    add("--text-columns", nargs="+", default=[], metavar="C", help="tables: column of the text, or two of pairs")
    add("--label-column", metavar="C", help="tables: column of the label; without, two columns are two languages")
    add("--regression", action="store_true", help="labels are numbers, not classes")
    add("--dict", dest="dictionary", metavar="dict.txt", help="a trained model's; its record names the steps")
    add("--target-dict", metavar="dict.txt", help="a trained model's, for the language of the translations")
    add("--joined-dictionary", action="store_true", help="one dictionary for both languages")
    rare = "rarer symbols become <unk>; default: %(default)s"
    add("--min-count", type=at_least(1), default=1, metavar="N", help=rare)
    add("--jobs", type=at_least(1), default=cores(), metavar="N", help="processes, default: one per core")
    add("--force", action="store_true", help="replace the folder if an earlier call wrote it")
    add("--json", action="store_true", help="print one JSON object instead of tables")


def run(args: argparse.Namespace) -> int:
    """Check, print the table of the check, prepare, print a summary."""
    from embinit_fairseq.corpora.checks import attention, table_rows
    from embinit_fairseq.corpora.plan import PrepareRequest, make_plan
    from embinit_fairseq.corpora.prepare_texts import check_texts, prepare

    names = {name: tuple(getattr(args, name)) for name in ("texts", "text_columns")}
    plan = make_plan(request_of(PrepareRequest, args, **names))
    checked, classes = check_texts(plan)
    if not args.json:
        print("\n".join([*table(table_rows(checked)), *attention(checked), ""]), flush=True)

    def bars(description: str, total: int, unit: str) -> Any:
        return progress(None, description, unit, total=total, hidden=args.json)

    show(prepare(plan, checked, classes, bars), render, args.json)
    return 0


def render(record: dict[str, Any]) -> str:
    """Return the summary for people."""
    rows, unknown = [["prepared", "lines", "symbols", "longest", "<unk>"]], []
    empty = {(check["split"], check["column"]): check.get("empty", 0) for check in record["checks"]}
    for split in record["splits"]:
        numbers = (split["sentences"], split["tokens"], split["longest"])
        name = ".".join(filter(None, (split["split"], split["column"])))
        rows.append([name, *(f"{number:,}" for number in numbers), f"{split['share']:.2%}"])
        if split["share"] > _MANY_UNKNOWN:
            unknown.append(
                f"attention      {name}: {split['share']:.0%} are <unk>; if words are rare, add subwords (bpe, "
                "sentencepiece) to --steps; with --dict, give text of its kind"
            )
        if (lost := split["empty"] - empty[split["split"], split["column"]]) > 0:
            unknown.append(
                f"attention      {name}: the steps leave nothing of {lost:,} lines that are not empty (cleaned: signs "
                "alone); kim is for English, known for text of the dictionary"
            )
    steps = dict.fromkeys(record["steps"].values())
    rules = ", ".join(record["languages"])
    if record["task"] != "translation" and rules == "en":  # perhaps nobody has named a language
        rules += "; --source-lang names another language"
    lines = [*table(rows), *unknown, "", f"steps          {', '.join(steps)}{f' (rules of {rules})' if rules else ''}"]
    if (learned := record["learned"]) is not None:
        fewer = f" (of {learned['asked']:,}: no more in this text)" if learned["made"] < learned["asked"] else ""
        lines.append(f"subwords       {learned['file']}: {learned['made']:,} learned{fewer}")
    sizes = ", ".join(f"{name} {size:,}" for name, size in record["dictionaries"].items())
    lines.append(f"dictionaries   {sizes} symbols, with <s>, <pad>, </s>, <unk>")
    if record["classes"]:
        about = [f"of {record['label_dictionary']}"] if record["label_dictionary"] else []
        about += ["_ for spaces"] if record["spaces_in_classes"] else []
        examples = record["class_counts"]
        names = [f"{name} {examples[name]:,}" if name in examples else name for name in record["classes"]]
        lines.append(" ".join([f"classes        {', '.join(names)}", *(f"({text})" for text in about)]))
        largest = max(examples.values(), default=0) / max(sum(examples.values()), 1)
        if largest > _ONE_CLASS:
            lines.append(
                f"attention      {largest:.0%} of the training text is one class: accuracy says little; take "
                "--criterion sentence_prediction_metrics --glue-metrics macro_f1"
            )
    lines.append(f"written        {record['output']}: bin (with preparation.json), text")
    return "\n".join([*lines, f"next           {record['next']}"])
