"""README.md of an exported directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embinit_fairseq.export.trained import Trained

_NAMES = {
    "untied": "TUPE-A",
    "added": "BERT-A: positions added to the embeddings",
    "relative": "BERT-R: relative positions only",
    "four_terms": "BERT-A^d: all four correlations",
}


def describe(trained: Trained) -> str:
    """The kind of model in a few words."""
    cfg = trained.model.cfg
    name = _NAMES[str(cfg.position_encoding)]
    if name == "TUPE-A":
        reset = "" if not cfg.rel_pos or cfg.tupe_tie_cls else f", reset as {cfg.tupe_reset}"
        tied = ", <s> treated like any position" if cfg.tupe_tie_cls else reset
        name = ("TUPE-R" if cfg.rel_pos else "TUPE-A") + tied
    if "electra" in trained.arch:
        name += " (discriminator of an ELECTRA)"
    return name


def sizes(trained: Trained) -> str:
    """Layers, widths, heads, positions, symbols."""
    cfg = trained.model.cfg
    return (
        f"{cfg.encoder_layers} layers, width {cfg.encoder_embed_dim}, FFN {cfg.encoder_ffn_embed_dim}, "
        f"{cfg.encoder_attention_heads} heads, {cfg.max_positions} positions, {len(trained.symbols):,} symbols"
    )


def write_card(trained: Trained, record: dict[str, Any], path: Path) -> None:
    """What it is, how to load it, what was measured."""
    path.write_text(_card(trained, record), encoding="utf-8")


def _card(trained: Trained, record: dict[str, Any]) -> str:
    kind, auto = describe(trained), record["auto_class"]
    measured = "\n".join(
        f"| {precision} | {found['difference']:.2e} | {found['scale']:.3g} | {found['allowed']:.2e} |"
        for precision, found in record["verified"]["differences"].items()
    )
    labels = f"\nClasses: {', '.join(trained.labels)}.\n" if trained.labels else ""
    left_out = f"\nNot exported: {', '.join(record['left_out'])}.\n" if record["left_out"] else ""
    opens = '    tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER", trust_remote_code=True)\n'
    imports, opens = ("", "") if record["tokenizer"].startswith("none") else (", AutoTokenizer", opens)
    return f"""---
library_name: transformers
tags: [tupe, fairseq]
---

# {kind}

`--arch {trained.arch}` of embinit_fairseq, trained with fairseq for {record["num_updates"]:,} updates:
{record["sizes"]}; {record["parameters"]:,} parameters, stored as {record["dtype"]}.
Positions as in Ke et al. 2021, Rethinking Positional Encoding in Language Pre-training; the equations are in
`modeling_tupe.py`.
{labels}{left_out}
    from transformers import {auto}{imports}
    model = {auto}.from_pretrained("THIS_FOLDER", trust_remote_code=True)
{opens}
Tokenizer: {record["tokenizer"]}. Pad on the right; an input begins with `<s>`. `dict.txt` is fairseq's dictionary.

## Checked when it was written

Features and logits of {record["verified"]["tokens"]:,} random tokens in {record["verified"]["batches"]} padded
batches, against fairseq's model:

| precision | largest difference | largest value | allowed |
|---|---|---|---|
{measured}
"""
