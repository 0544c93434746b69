"""Remove words from the dictionary of a trained model: language models, masked ones, translation. The result is the old
model under the condition that the next word stays: KL(new || old) = -log P_old(kept), for every prefix of words that
stay. Optimizer and averages of the model become smaller, too. The segmentation of its text loses the same words."""

from __future__ import annotations

import argparse
from typing import Any

from embinit_fairseq.cli.print_records import at_least, request_of, show
from embinit_fairseq.cli.vocabulary_options import (
    SHOWN,
    add_vocabulary_options,
    check_texts,
    preparation_lines,
    table_names,
    verify_progress,
    written_files,
)
from embinit_fairseq.errors import counted, listed

#: whether the words are outputs -> certificate
_CERTIFICATE = {True: "-log P_old(kept words), for every prefix of them", False: "none: the words are inputs only"}
#: subword style of the dictionary -> how text is segmented without removed subwords
_RESTRICT = {"subword_nmt": "give --bpe-codes CODES", "sentencepiece": "give --sentencepiece-model MODEL"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vocabulary_options(parser, "model.pt, dict.txt and trim.json")
    add = parser.add_argument
    text = "the words of these texts stay; segmented as the training text"
    add("--keep-text", nargs="+", default=[], metavar="TEXT", help=text)
    add(
        "--keep", nargs="+", default=[], metavar="WORDS", help="these stay: files with one word per line, or a dict.txt"
    )
    add("--min-count", type=at_least(0), metavar="N", help="words that the dictionary counts at least N times stay")
    add(
        "--bpe-codes",
        metavar="CODES",
        help="codes of subword-nmt: restrict the segmentation to kept subwords, so that none is <unk>",
    )
    add("--sentencepiece-model", metavar="MODEL", help="model of sentencepiece: restrict it to kept subwords")


def run(args: argparse.Namespace) -> int:
    """Remove, measure, print; return 1 if the measurement contradicts the certificate."""
    check_texts(args.verify)
    from embinit_fairseq.resize.trim import TrimRequest, trimming

    texts = {"keep_text": tuple(args.keep_text), "keep": tuple(args.keep)}
    request = request_of(TrimRequest, args, dictionary=args.dict, **texts)
    with trimming(request) as (old_model, change, folder, record):
        if args.verify:
            from embinit_fairseq.resize.verify_vocabulary import verify_trim

            record["verify"] = verify_trim(old_model, change, folder, args.verify, verify_progress(args))
    show(record, render, args.json)
    return int(not record.get("verify", {}).get("holds", True))


def render(record: dict[str, Any]) -> str:
    """Return the record for people."""
    before, after, texts = record["bytes_before"], record["bytes_after"], record["tokens_in_dictionary"]
    lines = [
        f"rows           {record['rows_before']:,} -> {record['rows_after']:,} "
        f"({counted(record['words_removed'], 'word')} and {counted(record['fillers_removed'], 'filler')} removed)",
        *(f"kept text      {path}: {share:.1%} of its tokens are in the dictionary" for path, share in texts.items()),
        f"checkpoint     {before / 1e6:,.1f} MB -> {after / 1e6:,.1f} MB",
        table_names(record),
        f"KL(new||old)   {_CERTIFICATE[record['softmax']]}",
        written_files(record),
        *_segmentation(record),
        *preparation_lines(record),
    ]
    if "verify" in record:
        kl = record["verify"]
        missing = " (--keep-text keeps the ones that the old dictionary has)" if kl["unknown_words"] else ""
        lines += [
            "",
            f"measured on {kl['tokens']:,} tokens of {' and '.join(kl['text'])}, {kl['unknown_words']:.1%} of the "
            f"words unknown{missing}: KL mean {kl['mean']:.4g}, median {kl['q50']:.4g}, 99 % {kl['q99']:.4g}, max "
            f"{kl['max']:.4g} nats; it differs from -log P_old(kept) by at most {kl['largest_difference']:.2g}"
            + ("" if kl["holds"] else ": THE CERTIFICATE DOES NOT HOLD"),
        ]
    return "\n".join(lines)


def _segmentation(record: dict[str, Any]) -> list[str]:
    """Return how text is segmented now; without codes or model, advice if the dictionary has subwords."""
    made = record["segmentation"]
    if made is None:
        advice = _RESTRICT.get(record["style"])
        return [f"attention      removed subwords that a segmenter still makes are <unk>: {advice}"] if advice else []
    spelling, lines = made["kept_to_spell"], []
    if spelling:
        subwords = counted(len(spelling), "subword")
        lines.append(f"also kept      {subwords}, to spell removed ones: {listed(spelling, SHOWN)}")
    if "kept_text" in made:
        text = made["kept_text"]
        before, after = text["unknown_before"], text["unknown_after"]
        gone = f" (no subword for {listed(text['gone'], SHOWN)})" if text["gone"] else ""
        lines.append(
            f"segmentation   {counted(text['lines'], 'line')} of kept text, {text['changed']:,} segmented in another "
            f"way; {before:,} <unk> before, {after:,} of {text['subwords']:,} now{gone}"
        )
    return [*lines, f"segment by     {made['command']}"]
