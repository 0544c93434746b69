"""Adds words to the dictionary of a trained model: language models, masked ones, translation. Their rows are the mean
of the old ones (avg), so that what the model said before hardly changes: KL(old || new) <= log(1 + k/n) for k new words
and n old ones, whatever is read. Optimiser and averages of the model are expanded, too."""

from __future__ import annotations

import argparse
from typing import Any

from embinit_fairseq.cli import expand_verify
from embinit_fairseq.cli.vector_options import print_json
from embinit_fairseq.cli.vocabulary_options import add_vocabulary_options
from embinit_fairseq.errors import counted
from embinit_fairseq.expand.expansion import expanding
from embinit_fairseq.expand.request import ExpandRequest
from embinit_fairseq.expand.state import AVERAGES
from embinit_fairseq.files import write_json
from embinit_fairseq.init.new_rows import METHODS

_SHOWN = 8


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vocabulary_options(parser, "model.pt, dict.txt and expansion.json")
    add = parser.add_argument
    add("--words", required=True, metavar="FILE", help="one new word a line; behind a tab, its pieces if you like")
    add("--method", choices=list(METHODS), default="avg", help="what the new rows are (default: %(default)s)")
    add("--seed", type=int, default=1, metavar="N", help="of the draws (default: %(default)s)")
    scales = ", ".join(f"{name} {each.scale:g}" for name, each in METHODS.items() if each.scale is not None)
    add("--noise-scale", type=float, metavar="C", help=f"factor of the noise's covariance (default: {scales})")
    add("--average-over", choices=AVERAGES, default="all", help="all rows but fillers (default), or words only")
    codes = "for methods that need pieces: cut words with these codes of subword-nmt"
    add("--bpe-codes", metavar="FILE", help=codes)
    add("--sentencepiece-model", metavar="FILE", help="subword: cut words with this model of sentencepiece")


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
    if args.json:
        print_json(record)
    else:
        print(render(record))
    return code


def _request(args: argparse.Namespace) -> ExpandRequest:
    taken = {name: value for name, value in vars(args).items() if name in ExpandRequest.__dataclass_fields__}
    return ExpandRequest(**taken, dictionary=args.dict)


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


def _also(record: dict[str, Any]) -> str:
    parts = ["the optimiser's state"] if record["optimizer"] else []
    parts += [{"ema": "the average (EMA)", "ema_fp32_params": "its fp32 copy"}[name] for name in record["averages"]]
    return ", ".join(parts) or "nothing: the checkpoint has no optimiser's state and no average, or it was left out"
