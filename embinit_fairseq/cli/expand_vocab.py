"""Adds words to the dictionary of a trained model: language models, masked ones, translation. Their rows are the mean
of the old ones (avg), so that what the model said before hardly changes: KL(old || new) <= log(1 + k/n) for k new words
and n old ones, whatever is read. Optimiser and averages of the model are expanded, too."""

from __future__ import annotations

import argparse
from typing import Any

from embinit_fairseq.cli import expand_verify
from embinit_fairseq.cli.records import request_of, show
from embinit_fairseq.cli.vocabulary_options import add_vocabulary_options
from embinit_fairseq.errors import counted
from embinit_fairseq.expand.expansion import expanding
from embinit_fairseq.expand.request import ExpandRequest
from embinit_fairseq.expand.state import AVERAGES
from embinit_fairseq.files import write_json
from embinit_fairseq.init.new_rows import METHODS

_SHOWN = 8
_ELSE = "else text has them in pieces, and they never occur"
#: style of the dictionary's pieces -> how new words are kept whole
_PROTECT = {
    "subword_nmt": f"give --bpe-codes CODES, or cut text by apply-bpe --glossaries '^(?:word|word)$', {_ELSE}",
    "sentencepiece": f"write ▁ before words; give --sentencepiece-model MODEL, or cut with one that has them, {_ELSE}",
    "wordpiece": f"make the new words added tokens of the tokenizer, {_ELSE}",
    "bytelevel": f"make the new words added tokens of the tokenizer, {_ELSE}",
    "end_of_word": f"make the new words added tokens of the tokenizer, {_ELSE}",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vocabulary_options(parser, "model.pt, dict.txt and expansion.json")
    add = parser.add_argument
    add("--words", required=True, metavar="FILE", help="one new word a line; behind a tab, its pieces if you like")
    methods = "; ".join(f"{name}: {method.help}" for name, method in METHODS.items())
    add("--method", choices=list(METHODS), default="avg", help=f"{methods} (default: %(default)s)")
    add("--seed", type=int, default=1, metavar="N", help="of the draws (default: %(default)s)")
    scales = ", ".join(f"{name} {each.scale:g}" for name, each in METHODS.items() if each.scale is not None)
    add("--noise-scale", type=float, metavar="C", help=f"factor of the noise's covariance (default: {scales})")
    add("--average-over", choices=AVERAGES, default="all", help="all rows but fillers (default), or words only")
    add(
        "--bpe-codes",
        metavar="CODES",
        help="of subword-nmt: cut words, and write what keeps the new ones whole",
    )
    add("--sentencepiece-model", metavar="MODEL", help="the same with a model of sentencepiece")
    add("--segment-text", nargs="+", default=[], metavar="TEXT", help="old text, not cut: is it still cut as before?")


def run(args: argparse.Namespace) -> int:
    """Expand, measure, print; 1 if what was measured breaks the bound."""
    code = 0
    expand_verify.check(args.verify or ())
    with expanding(_request(args)) as (expansion, folder, record):
        if args.verify:
            record["verify"] = expand_verify.verify(expansion, folder, args.verify, quiet=args.json)
            record["files"] += expand_verify.FILES
            write_json(folder / "expansion.json", record)
            code = int(not record["verify"]["holds"])
    show(record, render, args.json)
    return code


def _request(args: argparse.Namespace) -> ExpandRequest:
    return request_of(ExpandRequest, args, dictionary=args.dict, segment_text=tuple(args.segment_text))


def render(record: dict[str, Any]) -> str:
    """The record for people."""
    words = [word["word"] for word in record["words"]]
    more = f" and {len(words) - _SHOWN:,} more" if len(words) > _SHOWN else ""
    rows = f"{record['rows_before']:,} -> {record['rows_after']:,}"
    if record["reused_fillers"]:
        rows += f" ({counted(record['reused_fillers'], 'filler')} became words)"
    method = record["method"] + (
        f", c = {record['noise_scale']:g}" if METHODS[record["method"]].scale is not None else ""
    )
    lines = [
        f"new words      {record['k']:,}: {', '.join(words[:_SHOWN])}{more}",
        f"rows           {rows}",
        f"method         {method}, over {record['n']:,} rows",
        f"KL(old||new)   {_bound(record)}",
        f"tables         {', '.join(' = '.join(names) for names in record['tables'].values())}",
    ]
    if record["sides"]:
        lines.append(f"side           {' and '.join(record['sides'])}")
    if record["moved"]:
        moved = [f"{symbol} to row {row:,}" for symbol, row in record["moved"].items()]
        lines.append(f"moved          {', '.join(moved[:_SHOWN])}{' ...' if len(moved) > _SHOWN else ''}")
    lines += [
        f"also expanded  {_also(record)}",
        f"written        {record['request']['output']}: {', '.join(record['files'])}",
        "next           binarise text with these dictionaries, or copy them over those of the binarised data",
        *_segmentation(record),
    ]
    if "verify" in record:
        lines.append(expand_verify.render(record["verify"]))
    return "\n".join(lines)


def _bound(record: dict[str, Any]) -> str:
    if not record["softmax"]:
        return "the words are inputs only: nothing that the model says changes before one is read"
    if record["bound"] is None:
        return f"no bound with {record['method']} (avg has one); --verify TEXT measures it"
    return f"<= {record['bound']:.4g} nats for every prefix of old words"


def _segmentation(record: dict[str, Any]) -> list[str]:
    """How text is cut now; without codes or model what is to be done, if the dictionary is one of pieces."""
    found = record["segmentation"]
    if found is None:
        advice = _PROTECT.get(record["style"])
        return [f"attention      the dictionary has pieces of words: {advice}"] if advice else []
    lines = [f"reachable      {found['reachable']:,} of {record['k']:,} new words"]
    if found["unreachable"]:
        shown = [f"{word} ({' '.join(pieces)})" for word, pieces in list(found["unreachable"].items())[:_SHOWN]]
        begins = "; what begins a word is written with ▁" if found["kind"] == "sentencepiece" else ""
        more = " ..." if len(found["unreachable"]) > _SHOWN else ""
        lines.append(f"not reachable  {', '.join(shown)}{more}: text has them in pieces{begins}")
    if "text" in found:
        lines.append(f"old text       {_old_text(found['text'])}")
    return [*lines, f"cut text by    {found['command']}"]


def _old_text(text: dict[str, Any]) -> str:
    before, after, inside = (sum(text[name].values()) for name in ("before", "after", "inside_longer_words"))
    said = f"{counted(text['sentences'], 'sentence')} cut as before but for new words ({text['changed']:,} have some)"
    longer = f", {inside:,} of these at the beginning of longer words" if inside else ""
    known = f"{text['known']:.1%} of its pieces in the dictionary"
    return f"{said}, which occur {after:,} times, before {before:,} times{longer}; {known}"


def _also(record: dict[str, Any]) -> str:
    parts = ["the optimiser's state"] if record["optimizer"] else []
    parts += [{"ema": "the average (EMA)", "ema_fp32_params": "its fp32 copy"}[name] for name in record["averages"]]
    moments = "the optimiser's state is left out" if record["request"]["reset_optimizer"] else "no optimiser's moments"
    return ", ".join(parts) or f"nothing: no average of the model in the checkpoint, {moments}"
