"""Removes words from the dictionary of a trained model: language models, masked ones, translation. What is left is the
old model given that the next word is one that stays: KL(new || old) = -log P_old(kept), for every prefix of words that
stay. Optimiser and averages of the model become smaller, too."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embinit_fairseq.cli.progress import progress
from embinit_fairseq.cli.records import request_of, show
from embinit_fairseq.cli.vocabulary_options import add_vocabulary_options
from embinit_fairseq.errors import counted
from embinit_fairseq.expand.request import check_texts
from embinit_fairseq.expand.trimming import Trimming, TrimRequest, trimming_vocabulary
from embinit_fairseq.files import write_json

#: of the measured divergence beside the certificate: what single precision of the logits may change
_SAME = 1e-4
#: by whether the words are outputs, too
_CERTIFICATE = {True: "-log P_old(kept words), for every prefix of them", False: "none: the words are inputs only"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vocabulary_options(parser, "model.pt, dict.txt and trim.json")
    add = parser.add_argument
    add("--keep-text", nargs="+", default=[], metavar="TEXT", help="the words of these stay (cut as the training text)")
    add("--keep", metavar="WORDS", help="these stay: one word a line, or a dict.txt")
    add("--min-count", type=int, metavar="N", help="words that the dictionary counts at least N times stay")


def run(args: argparse.Namespace) -> int:
    """Remove, measure, print; 1 if what was measured is not what the certificate says."""
    check_texts(args.verify or ())
    with trimming_vocabulary(_request(args)) as (trimming, folder, record):
        if args.verify:
            record["verify"] = verify(trimming, folder, args.verify, args.json)
            write_json(folder / "trim.json", record)
    show(record, render, args.json)
    return int(not record.get("verify", {}).get("holds", True))


def _request(args: argparse.Namespace) -> TrimRequest:
    return request_of(TrimRequest, args, dictionary=args.dict, keep_text=tuple(args.keep_text))


def verify(trimming: Trimming, folder: Path, paths: Sequence[str], quiet: bool = False) -> dict[str, Any]:
    """Both models on a text, read with the new dictionary: the divergence token by token, beside -log P_old(kept)."""
    import numpy as np
    import torch

    from embinit_fairseq.checkpoints.reading import load_checkpoint
    from embinit_fairseq.expand.evaluation import logits, read_text, summary

    source, removal = trimming.source, trimming.removal
    weights = load_checkpoint(folder / "model.pt")["model"]
    model, task = source.builder.load(trimming.new_texts, weights)
    old = source.builder.set_up(source.texts)
    text = read_text(model, source.softmax, removal.old_size, old, task, paths)
    kept = torch.from_numpy(removal.source)
    measured, certified = [], []
    for batch in progress(text.batches, "verify", "batch", hidden=quiet):
        new = logits(model, batch).double().log_softmax(-1)
        old = logits(source.model, batch.moved(removal.source, source.fit.sides)).double().log_softmax(-1)[:, kept]
        measured.append((new.exp() * (new - old)).sum(-1).numpy())
        certified.append(-old.logsumexp(-1).numpy())
    kl, certificate = np.concatenate(measured), np.concatenate(certified)
    difference = float(np.abs(kl - certificate).max())
    return {
        "text": list(paths),
        "tokens": text.tokens,
        "unknown_words": text.unknown,
        **{name: value for name, value in summary(kl, None, None).items() if name in ("mean", "q50", "q99", "max")},
        "certificate_mean": float(certificate.mean()),
        "removed_words_probability": float(-np.expm1(-certificate).mean()),
        "largest_difference": difference,
        "holds": difference <= _SAME,
    }


def render(record: dict[str, Any]) -> str:
    """The record for people."""
    before, after, texts = record["bytes_before"], record["bytes_after"], record["tokens_in_dictionary"]
    lines = [
        f"rows           {record['rows_before']:,} -> {record['rows_after']:,} "
        f"({counted(record['words_removed'], 'word')} and {counted(record['fillers_removed'], 'filler')} removed)",
        *(f"kept text      {path}: {share:.1%} of its tokens are in the dictionary" for path, share in texts.items()),
        f"checkpoint     {before / 1e6:,.1f} MB -> {after / 1e6:,.1f} MB",
        f"tables         {', '.join(' = '.join(names) for names in record['tables'].values())}",
        f"KL(new||old)   {_CERTIFICATE[record['softmax']]}",
        f"written        {record['request']['output']}: {', '.join(record['files'])}",
    ]
    if "verify" in record:
        found = record["verify"]
        missing = " (--keep-text keeps those that the old dictionary has)" if found["unknown_words"] else ""
        lines += [
            "",
            f"measured on {found['tokens']:,} tokens of {' and '.join(found['text'])}, {found['unknown_words']:.1%} of "
            f"the words unknown{missing}: KL mean {found['mean']:.4g}, median {found['q50']:.4g}, 99 % "
            f"{found['q99']:.4g}, max {found['max']:.4g} nats; it differs from -log P_old(kept) by at most "
            f"{found['largest_difference']:.2g}" + ("" if found["holds"] else ": THE CERTIFICATE DOES NOT HOLD"),
        ]
    return "\n".join(lines)
