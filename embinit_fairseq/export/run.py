"""Trained TUPE models of fairseq as directories that transformers opens: the order of the steps.

torch, fairseq and transformers are imported when a checkpoint is opened.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import OptionError
from embinit_fairseq.export.files import weights, write_files
from embinit_fairseq.export.tokenizer import TOKENIZER_FILES, Tokenizer, check_text, choose_tokenizer
from embinit_fairseq.export.trained import Trained, open_trained
from embinit_fairseq.export.verify import verify
from embinit_fairseq.files import check_folder, check_inputs, whole_folder
from embinit_fairseq.modules.position_encoding import POSITION_ENCODINGS, published_name

# ---- README.md of an exported directory -----------------------------------------------------------------------------


def describe(trained: Trained) -> str:
    """The kind of model in a few words."""
    cfg = trained.model.cfg
    known = POSITION_ENCODINGS[str(cfg.position_encoding)]
    name = published_name(str(cfg.position_encoding), cfg.rel_pos)
    if name == known.name:
        name += f": {known.help}"
    if known.resets and cfg.tupe_tie_cls:
        name += ", <s> treated like any position"
    elif known.resets and cfg.rel_pos:
        name += f", reset as {cfg.tupe_reset}"
    if "electra" in trained.arch:
        name += " (discriminator of an ELECTRA)"
    return name


def sizes(trained: Trained) -> str:
    """Layers, dimensions, heads, positions, symbols."""
    cfg = trained.model.cfg
    return (
        f"{cfg.encoder_layers} layers, dimension {cfg.encoder_embed_dim}, FFN {cfg.encoder_ffn_embed_dim}, "
        f"{cfg.encoder_attention_heads} heads, {cfg.max_positions} positions, {len(trained.symbols):,} symbols"
    )


def write_card(trained: Trained, record: dict[str, Any], path: Path) -> None:
    """What it is, how to load it, what was measured."""
    path.write_text(_card(trained, record), encoding="utf-8")


def _card(trained: Trained, record: dict[str, Any]) -> str:
    kind, auto = describe(trained), record["auto_class"]
    measured = "\n".join(
        f"| {precision} | {difference['difference']:.2e} | {difference['scale']:.3g} | {difference['allowed']:.2e} |"
        for precision, difference in record["verified"]["differences"].items()
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


# ----------------------------------------------------------------------------------------------------------------------

DTYPES = ("float32", "float16", "bfloat16")
#: everything an export may write
FILES = (
    *("README.md", "config.json", "model.safetensors", "configuration_tupe.py", "modeling_tupe.py", "dict.txt"),
    *TOKENIZER_FILES,
)


@dataclass(frozen=True)
class ExportRequest:
    """The options of `embinit export-hf`."""

    checkpoint: str
    output: str
    dictionary: str | None = None
    label_dictionary: str | None = None
    head: str | None = None
    bpe_codes: str | None = None
    tokenizer: str | None = None
    dtype: str = "float32"
    verify_text: str | None = None
    force: bool = False

    @property
    def inputs(self) -> dict[str, str | None]:
        """Option -> file that is read."""
        names = ("checkpoint", "dictionary", "label_dictionary", "bpe_codes", "verify_text")
        return {name: getattr(self, name) for name in names}


def export(request: ExportRequest) -> dict[str, Any]:
    """Write `request.output`; returns what was done and measured.

    Raises CheckpointError (its child DifferentOutput if the result computes something else), DataError, OptionError or
    OutputError; then nothing is written.
    """
    import torch

    _check_options(request)
    inputs = [*check_inputs(request.inputs).values(), *([request.tokenizer] if request.tokenizer else [])]
    check_folder(request.output, request.force, FILES, inputs)
    trained = open_trained(request.checkpoint, request.dictionary, request.label_dictionary, request.head)
    tokenizer = choose_tokenizer(trained, request.bpe_codes, request.tokenizer, request.verify_text)
    trained.model.to(getattr(torch, request.dtype))
    with whole_folder(request.output, request.force, FILES) as temporary:
        written = write_files(trained, request.dtype, temporary)
        of_text = tokenizer.write(temporary)
        (temporary / "dict.txt").write_bytes(Path(trained.dictionary).read_bytes())
        measured = verify(trained, temporary, request.dtype, tokenizer.lines)
        refused = check_text(trained, tokenizer, measured.pop("ids"))
        if refused is not None:
            for name in of_text:
                (temporary / name).unlink()
            of_text = []
        record = _record(request, trained, tokenizer, measured, [*written, *of_text, "dict.txt", "README.md"])
        record["tokenizer"] = refused or tokenizer.why
        write_card(trained, record, temporary / "README.md")
    return record


def _check_options(request: ExportRequest) -> None:
    missing = [name for name in ("transformers", "safetensors") if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"export-hf needs {' and '.join(missing)}: pip install transformers safetensors, which is the extra hf of "
            "this package"
        )
    if request.dtype not in DTYPES:
        raise OptionError(f"--dtype {request.dtype}: choose from {', '.join(DTYPES)}")
    if request.bpe_codes is not None and request.tokenizer is not None:
        raise OptionError("--bpe-codes and --tokenizer both say what the tokenizer is: give one of them")


def _record(
    request: ExportRequest, trained: Trained, tokenizer: Tokenizer, measured: dict[str, Any], files: list[str]
) -> dict[str, Any]:
    head = None if trained.head is None else {"name": trained.head, "labels": trained.labels}
    return {
        "checkpoint": request.checkpoint,
        "output": request.output,
        "arch": trained.arch,
        "kind": describe(trained),
        "sizes": sizes(trained),
        "parameters": sum(value.numel() for value in weights(trained).values()),
        "num_updates": trained.num_updates,
        "auto_class": trained.auto_class,
        "head": head,
        "left_out": trained.left_out,
        "dtype": request.dtype,
        "dictionary": trained.dictionary,
        "text_lines": len(tokenizer.lines),
        "verified": measured,
        "files": files,
    }
