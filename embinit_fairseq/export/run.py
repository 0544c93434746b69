"""Trained models of fairseq as directories that transformers opens: the order of the steps.

torch, fairseq and transformers are imported when a checkpoint is opened.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from embinit_fairseq.errors import counted
from embinit_fairseq.export.files import write_files
from embinit_fairseq.export.request import ExportRequest
from embinit_fairseq.export.tokenizer import TOKENIZER_FILES, Tokenizer, check_text, choose_tokenizer
from embinit_fairseq.export.trained import TARGET, Side, Trained, open_trained
from embinit_fairseq.export.tupe import CODE
from embinit_fairseq.export.verify import verify
from embinit_fairseq.files import check_folder, check_inputs, whole_folder

# ---- README.md of an exported directory -----------------------------------------------------------------------------


def write_card(trained: Trained, record: dict[str, Any], path: Path) -> None:
    """What it is, how to load it, what was measured."""
    path.write_text(_card(trained, record), encoding="utf-8")


def text_line(text: dict[str, Any]) -> str:
    """What --verify-text showed, for the summary and the card."""
    return f"{counted(text['lines'], 'line')} of {text['form']}, {text['unknown']:.2%} <unk>"


_USAGE = {
    False: "Pad on the right; an input begins with `<s>`.\n",
    True: "A decoder begins with `</s>`. `generate()` does what fairseq-generate does by default, as in\n"
    "`generation_config.json`.\n",
}


def _card(trained: Trained, record: dict[str, Any]) -> str:
    auto, known = record["auto_class"], trained.architecture
    measured = "\n".join(
        f"| {precision} | {difference['difference']:.2e} | {difference['scale']:.3g} | {difference['allowed']:.2e} |"
        for precision, difference in record["verified"]["differences"].items()
    )
    labels = f"\nClasses: {', '.join(trained.labels)}.\n" if trained.labels else ""
    labels += f"\nThe output is a number {trained.numbers}.\n" if trained.numbers else ""
    left_out = f"\nNot exported: {', '.join(record['left_out'])}.\n" if record["left_out"] else ""
    trust = ", trust_remote_code=True" if known.CODE else ""
    code = ", trust_remote_code=True" if any(name.endswith(".py") for name in record["files"]) else ""
    opens = f'    tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER"{code})\n'
    imports, opens = ("", "") if record["tokenizer"].startswith("none") else (", AutoTokenizer", opens)
    usage = _USAGE[trained.target is not None]
    if record["verified_text"] is not None:
        usage += f"Its ids were compared with fairseq's on {text_line(record['verified_text'])}.\n"
    if TARGET in trained.sides:
        usage += (
            f"The target has a dictionary and a tokenizer of its own (`{TARGET}/`: {record['target_tokenizer']}).\n"
        )
    return f"""---
library_name: transformers
tags: [{", ".join(known.TAGS)}]
---

# {record["kind"]}

`--arch {trained.arch}`, trained with fairseq for {record["num_updates"]:,} updates:
{record["sizes"]}; {record["parameters"]:,} parameters, stored as {record["dtype"]}.
{known.NOTE}
{labels}{left_out}
    from transformers import {auto}{imports}
    model = {auto}.from_pretrained("THIS_FOLDER"{trust})
{opens}
Tokenizer: {record["tokenizer"]}. `dict.txt` is fairseq's dictionary.
{usage}
## Checked when it was written

Features and logits of {record["verified"]["tokens"]:,} random tokens in {record["verified"]["batches"]} padded
batches, against fairseq's model:

| precision | largest difference | largest value | allowed |
|---|---|---|---|
{measured}
"""


# ----------------------------------------------------------------------------------------------------------------------

#: everything an export may write
FILES = (
    *("README.md", "config.json", "generation_config.json", "model.safetensors", "dict.txt"),
    *(f"{module.rpartition('.')[2]}.py" for module in CODE),
    *TOKENIZER_FILES,
    *(f"{TARGET}/{name}" for name in ("dict.txt", *TOKENIZER_FILES)),
)


def export(request: ExportRequest) -> dict[str, Any]:
    """Write `request.output`; returns what was done and measured.

    Raises CheckpointError (its child DifferentOutput if the result computes something else), DataError, OptionError or
    OutputError; then nothing is written.
    """
    import torch

    request.check()
    folders = [folder for folder in (request.tokenizer, request.gpt2_bpe) if folder]
    inputs = [*check_inputs(request.inputs).values(), *folders]
    check_folder(request.output, request.force, FILES, inputs)
    dictionaries = request.dictionary, request.label_dictionary
    trained = open_trained(request.checkpoint, *dictionaries, request.head, request.target_dictionary)
    tokenizers = {name: choose_tokenizer(request, trained, name) for name in trained.sides}
    trained.model.to(getattr(torch, request.dtype))
    with whole_folder(request.output, request.force, FILES) as temporary:
        written = write_files(trained, request.dtype, temporary)
        of_text = {name: _write_side(temporary / name, trained.sides[name], each) for name, each in tokenizers.items()}
        texts = {name: tokenizer.lines for name, tokenizer in tokenizers.items()}
        measured = verify(trained, temporary, request.dtype, texts)
        ids, why = measured.pop("ids"), {}
        for name, tokenizer in tokenizers.items():
            refused = check_text(trained, tokenizer, ids[name])
            if refused is not None:
                for file in of_text[name]:
                    (temporary / name / file).unlink()
                of_text[name] = []
            why[name] = refused or tokenizer.why
            written += [str(PurePosixPath(name, file)) for file in (*of_text[name], "dict.txt")]
        record = _record(request, trained, tokenizers[""], measured, [*written, "README.md"])
        record["tokenizer"], record["target_tokenizer"] = why[""], why.get(TARGET)
        write_card(trained, record, temporary / "README.md")
    return record


def _write_side(folder: Path, side: Side, tokenizer: Tokenizer) -> list[str]:
    """Tokenizer and dictionary; returns the names of the former."""
    folder.mkdir(exist_ok=True)
    names = tokenizer.write(folder)
    (folder / "dict.txt").write_bytes(Path(side.path).read_bytes())
    return names


def _record(
    request: ExportRequest, trained: Trained, tokenizer: Tokenizer, measured: dict[str, Any], files: list[str]
) -> dict[str, Any]:
    head = (
        None if trained.head is None else {"name": trained.head, "labels": trained.labels, "numbers": trained.numbers}
    )
    symbols = " and ".join(f"{len(side.symbols):,}" for side in trained.sides.values())
    return {
        "checkpoint": request.checkpoint,
        "output": request.output,
        "arch": trained.arch,
        "kind": trained.architecture.describe(trained),
        "sizes": f"{trained.architecture.sizes(trained)}, {symbols} symbols",
        "parameters": sum(value.numel() for value in trained.architecture.weights(trained).values()),
        "num_updates": trained.num_updates,
        "auto_class": trained.auto_class,
        "head": head,
        "left_out": trained.left_out,
        "dtype": request.dtype,
        "dictionary": trained.dictionary,
        "target_dictionary": None if trained.target is None else trained.target.path,
        "text_lines": len(tokenizer.lines),
        "verified_text": tokenizer.checked(request.verify_text, trained.source.dictionary),
        "verified": measured,
        "files": files,
    }
