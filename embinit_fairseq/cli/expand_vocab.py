"""Add words to the dictionary of a trained model: language models, masked ones, translation. Their rows are the mean of
the old rows (avg), so that the model's predictions hardly change: KL(old || new) <= log(1 + k/n) for k new words and
n old ones, for every input. Optimizer and averages of the model are expanded, too."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

from embinit_fairseq.cli.print_records import request_of, show
from embinit_fairseq.cli.progress import progress
from embinit_fairseq.cli.vocabulary_options import (
    SHOWN,
    add_method_options,
    add_vocabulary_options,
    bound_line,
    check_texts,
    preparation_lines,
    table_names,
    verify_progress,
    written_files,
)
from embinit_fairseq.errors import OptionError, counted, listed
from embinit_fairseq.init.methods import DISTILL, EXPANSION, METHODS
from embinit_fairseq.io import write_json

_VERIFY_FILES = ("verify.json", "verify.png")
_ELSE = "else text has them in subwords, and they never occur"
_ADDED = f"make the new words added tokens of the tokenizer, {_ELSE}"
#: subword style of the dictionary -> how new words are kept whole
_PROTECT = {
    "subword_nmt": f"give --bpe-codes CODES, or segment text by apply-bpe --glossaries '^(?:word|word)$', {_ELSE}",
    "sentencepiece": "write ▁ before words, and give --sentencepiece-model MODEL, or segment text by a model that has "
    f"them, {_ELSE}",
    **dict.fromkeys(("wordpiece", "bytelevel", "end_of_word"), _ADDED),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vocabulary_options(parser, "model.pt, dict.txt and expansion.json")
    add = parser.add_argument
    add("--words", required=True, metavar="FILE", help="one new word per line; after a tab, its subwords if you like")
    add_method_options(parser, EXPANSION, default="avg")
    averaged = "all rows but fillers (default), or words only"
    add("--average-over", choices=("all", "words"), default="all", help=averaged)
    add("--bpe-codes", metavar="CODES", help="codes of subword-nmt: segment words, write a glossary of the new ones")
    add("--sentencepiece-model", metavar="MODEL", help="model of sentencepiece: segment words, add the new ones")
    text = "old text before segmentation: is it segmented as before?"
    add("--segment-text", nargs="+", default=[], metavar="TEXT", help=text)
    text = "distill: the text (translation: SOURCE TARGET), as for --verify; with codes or model, before segmentation"
    add("--distill-text", nargs="+", default=[], metavar="TEXT", help=text)
    numbers = {
        "sentences": (int, "N", "sentences of the text with each word"),
        "epochs": (int, "N", "passes over them"),
        "lr": (float, "LR", "rate of Adam, which falls to 0"),
        "tokens": (int, "N", "tokens of an update"),
    }
    for name, (kind, metavar, what) in numbers.items():
        add(f"--distill-{name}", type=kind, metavar=metavar, help=f"distill: {what} (default: {DISTILL[name]:g})")


def run(args: argparse.Namespace) -> int:
    """Expand, measure, print; return 1 if the measurement breaks the bound."""
    check_texts(args.verify)
    if args.verify and importlib.util.find_spec("matplotlib") is None:
        raise OptionError("--verify draws a histogram with matplotlib, which is not installed: pip install matplotlib")
    from embinit_fairseq.resize.expand import ExpandRequest, expanding

    texts = {name: tuple(getattr(args, name)) for name in ("segment_text", "distill_text")}
    request = request_of(ExpandRequest, args, dictionary=args.dict, **texts)
    with expanding(request, lambda updates: progress(updates, "distill", "update", hidden=args.json)) as (
        expansion,
        folder,
        record,
    ):
        if args.verify:
            record["verify"] = _verify(expansion, folder, args)
            record["files"] += _VERIFY_FILES
    show(record, render, args.json)
    return int(not record.get("verify", {}).get("holds", True))


def _verify(expansion: Any, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Measure; write verify.json and verify.png."""
    from embinit_fairseq.analysis.divergences import draw_divergences
    from embinit_fairseq.resize.verify_vocabulary import verify_expansion

    record, histograms = verify_expansion(expansion, folder, args.verify, verify_progress(args))
    json_file, figure = (folder / name for name in _VERIFY_FILES)
    write_json(json_file, {**record, "histograms": histograms})
    draw_divergences(args.checkpoint, expansion.recipe.count, record["methods"], histograms, str(figure))
    return record


def render(record: dict[str, Any]) -> str:
    """Return the record for people."""
    words = [word["word"] for word in record["words"]]
    fillers = record["reused_fillers"]
    reused = f" ({counted(fillers, 'filler')} became words)" if fillers else ""
    noise = "" if METHODS[record["method"]].scale is None else f", c = {record['noise_scale']:g}"
    lines = [
        f"new words      {record['k']:,}: {listed(words, SHOWN)}",
        f"rows           {record['rows_before']:,} -> {record['rows_after']:,}{reused}",
        f"method         {record['method']}{noise}, over {record['n']:,} rows",
        f"KL(old||new)   {_bound(record)}",
        table_names(record),
    ]
    if record["split_further"]:
        lines.append(f"split further  {_split_further(record['split_further'])}")
    if record["distill"]:
        lines.append(f"distilled      {_distilled(record['distill'])}")
    if record["moved"]:
        moved = (f"{symbol} to row {row:,}" for symbol, row in record["moved"].items())
        lines.append(f"moved          {listed(moved, SHOWN)}")
    lines += [
        f"also expanded  {_also(record)}",
        written_files(record),
        "next           binarise text with these dictionaries, or copy them to the binarised data, with "
        "preparation.json and the files it names",
        *_segmentation(record),
        *preparation_lines(record),
    ]
    return "\n".join([*lines, *(_measured(record["verify"]) if "verify" in record else ())])


def _bound(record: dict[str, Any]) -> str:
    if not record["softmax"]:
        return "the words are inputs only: no prediction changes before one is read"
    if record["distill"] and (kl := record["distill"]["kl"]):
        measured = (
            f"{kl['mean']:.4g} nats, at most {kl['max']:.4g}, on {counted(kl['tokens'], 'token')} of --distill-text"
        )
        return f"{measured}; no bound, since the trained rows are also the output layer's"
    if record["bound"] is not None:
        return bound_line(record, "prefix of old words")
    drawn = record["drawn"]
    why = f", since {counted(drawn, 'word')} without a vector {'is' if drawn == 1 else 'are'} drawn" if drawn else ""
    return f"no bound with {record['method']}{why} (avg has one); --verify TEXT measures it"


def _distilled(trained: dict[str, Any]) -> str:
    updates, sentences = counted(trained["updates"], "update"), counted(trained["sentences"], "sentence")
    first, last = (trained["loss"][epoch] for epoch in (0, -1))
    rose = " (it rose: give a lower --distill-lr)" if last > first else ""
    spent = "" if trained["cpu_seconds"] is None else f"; {trained['cpu_seconds']:.0f} CPU seconds"
    return (
        f"{updates} on {sentences}, mean squared distance of the hidden states {first:.3g} in the first epoch, "
        f"{last:.3g} in the last{rose}{spent}"
    )


def _split_further(split: dict[str, Any]) -> str:
    words = (f"{word} ({' '.join(after)}, not {' '.join(before)})" for word, (before, after) in split.items())
    return f"{listed(words, SHOWN)}: the dictionary lacks a subword that the codes or the model make"


def _also(record: dict[str, Any]) -> str:
    parts = ["the optimizer's state"] if record["optimizer"] else []
    parts += [{"ema": "the average (EMA)", "ema_fp32_params": "its fp32 copy"}[name] for name in record["averages"]]
    moments = "the optimizer's state is left out" if record["request"]["reset_optimizer"] else "no optimizer's moments"
    return ", ".join(parts) or f"nothing: no average of the model in the checkpoint, {moments}"


def _segmentation(record: dict[str, Any]) -> list[str]:
    """Return how text is segmented now; without codes or model, advice if the dictionary has subwords."""
    made = record["segmentation"]
    if made is None:
        advice = _PROTECT.get(record["style"])
        return [f"attention      the dictionary has subwords: {advice}"] if advice else []
    lines = [f"reachable      {made['reachable']:,} of {record['k']:,} new words"]
    if made["unreachable"]:
        words = (f"{word} ({' '.join(subwords)})" for word, subwords in made["unreachable"].items())
        begins = "; what begins a word is written with ▁" if made["kind"] == "sentencepiece" else ""
        lines.append(f"not reachable  {listed(words, SHOWN)}: text has them in subwords{begins}")
    if "text" in made:
        text = made["text"]
        before, after, inside = (sum(text[name].values()) for name in ("before", "after", "inside_longer_words"))
        longer = f", {inside:,} of these at the beginning of longer words" if inside else ""
        lines.append(
            f"old text       {counted(text['sentences'], 'sentence')} segmented as before but for new words "
            f"({text['changed']:,} have some), which occur {after:,} times, before {before:,} times{longer}; "
            f"{text['known']:.1%} of its subwords in the dictionary"
        )
    return [*lines, f"segment by     {made['command']}"]


def _measured(record: dict[str, Any]) -> list[str]:
    """Return the measured divergences as a table."""
    lines = [
        "",
        f"KL(old || new) in nats, {record['tokens']:,} tokens of {' and '.join(record['text'])}, "
        f"{record['unknown_words']:.1%} of the words unknown:",
        "",
        f"{'':<10}{'mean':>11}{'median':>11}{'99 %':>11}{'max':>11}{'bound':>11}  new words' probability",
    ]
    for method, kl in record["methods"].items():
        limit = "-" if kl["bound"] is None else f"{kl['bound']:.4g}"
        numbers = "".join(f"{kl[key]:>11.4g}" for key in ("mean", "q50", "q99", "max"))
        verdict = "" if kl.get("holds", True) else "  THE BOUND DOES NOT HOLD"
        lines.append(f"{method:<10}{numbers}{limit:>11}  {kl['new_words_probability']:.4g}{verdict}")
    return [*lines, "", f"logits of old words changed by at most {record['old_logits_changed_by']:.2g}"]
