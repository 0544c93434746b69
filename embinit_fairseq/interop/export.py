"""Write a trained model of fairseq as a folder that transformers opens (`embinit export-hf`).

`export` has the steps: open the checkpoint, choose tokenizers, write, compare with fairseq, describe.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from embinit_fairseq.checkpoints.build import import_plugin
from embinit_fairseq.errors import counted
from embinit_fairseq.interop.architectures import TUPE
from embinit_fairseq.interop.export_request import ExportRequest
from embinit_fairseq.interop.open_trained import open_trained
from embinit_fairseq.interop.remote import code_files
from embinit_fairseq.interop.tensors import as_stored, parameters_in
from embinit_fairseq.interop.tokenizers import TOKENIZER_FILES, Tokenizer, choose_tokenizer
from embinit_fairseq.interop.trained import TARGET, Trained
from embinit_fairseq.interop.verify_export import verify
from embinit_fairseq.io import check_folder, check_inputs, read_json, whole_folder, write_json, write_text
from embinit_fairseq.version import VERSION
from embinit_fairseq.vocab.preparation_steps import STEPS

#: files that an export may write
FILES = (
    *("README.md", "config.json", "generation_config.json", "model.safetensors", "dict.txt"),
    *(f"{module.rpartition('.')[2]}.py" for module in TUPE.code),
    *TOKENIZER_FILES,
    *(f"{TARGET}/{name}" for name in ("dict.txt", *TOKENIZER_FILES)),
)
#: class of transformers -> the Hub's name of its task
_PIPELINES = {
    "AutoModel": "feature-extraction",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
}
#: fairseq-generate's --max-len-b, with --max-len-a 0
_MAX_LEN = 200


def export(request: ExportRequest) -> dict[str, Any]:
    """Write `request.output` and return the summary with the measured differences.

    Raises:
        CheckpointError, DataError, OptionError: as `open_trained` and `choose_tokenizer`.
        DifferentOutput: the result and fairseq compute different numbers, or a text would get other ids.
        OutputError: the folder is taken or cannot be written. After any error, nothing is written.
    """
    import torch

    request.check()
    names = ("checkpoint", "dictionary", "target_dictionary", "label_dictionary", "bpe_codes", "sentencepiece_model")
    files = check_inputs({name: getattr(request, name) for name in (*names, "verify_text")})
    folders = [folder for folder in (request.tokenizer, request.gpt2_bpe) if folder]
    check_folder(request.output, request.force, FILES, [*files.values(), *folders])
    dictionaries = {name: getattr(request, name) for name in names if name.endswith("dictionary")}
    import_plugin(request.user_dir)
    trained = open_trained(request.checkpoint, head=request.head, preparation=request.preparation, **dictionaries)
    tokenizers = {name: choose_tokenizer(request, trained, name) for name in trained.sides}
    trained.model.to(getattr(torch, request.dtype))
    with whole_folder(request.output, request.force, FILES) as folder:
        written, parameters = _write_model(trained, request.dtype, folder)
        for name, tokenizer in tokenizers.items():
            tokenizer.write(folder / name)
        measured = verify(trained, folder, request.dtype, {name: one.lines for name, one in tokenizers.items()})
        ids, why = measured.pop("ids"), {}
        for name, tokenizer in tokenizers.items():
            file_names, why[name] = _keep_tokenizer(tokenizer, trained.path, folder / name, ids[name])
            written += [str(PurePosixPath(name, file)) for file in file_names]
        record = _summary(request, trained) | {
            "parameters": parameters,
            "text_lines": len(tokenizers[""].lines),
            "verified_text": tokenizers[""].verified_text(request.verify_text),
            "verified": measured,
            "files": [*written, "README.md"],
            "tokenizer": why[""],
            "target_tokenizer": why.get(TARGET),
            "decoded": decoded(folder / (TARGET if TARGET in trained.sides else "")),
        }
        write_text(folder / "README.md", _card(trained, record))
    return record


def _keep_tokenizer(
    tokenizer: Tokenizer, checkpoint: str, folder: Path, ids: Sequence[list[int]]
) -> tuple[list[str], str]:
    """Remove the files of a tokenizer that gives other ids than fairseq; write the dictionary.

    Returns:
        The names of the files, and a description of the tokenizer, or the reason why there is none.
    """
    files, refused = list(tokenizer.files), tokenizer.check(checkpoint, ids)
    if refused is not None:
        for file in files:
            (folder / file).unlink()
        files = []
    (folder / "dict.txt").write_bytes(Path(tokenizer.side.path).read_bytes())
    return [*files, "dict.txt"], refused or tokenizer.why


def _summary(request: ExportRequest, trained: Trained) -> dict[str, Any]:
    """Return the entries of the trained model for the summary and the card."""
    head = {"name": trained.head, "labels": trained.labels, "numbers": trained.numbers}
    return {
        "checkpoint": request.checkpoint,
        "output": request.output,
        "arch": trained.arch,
        "kind": trained.architecture.describe(trained),
        "sizes": trained.sizes,
        "num_updates": trained.num_updates,
        "auto_class": trained.auto_class,
        "head": None if trained.head is None else head,
        "left_out": trained.left_out,
        "dtype": request.dtype,
        "dictionary": trained.source.path,
        "target_dictionary": None if trained.target is None else trained.target.path,
        "languages": _languages(request, trained),
        "license": request.license,
        "scores": recorded_scores(request.checkpoint),
    }


# ---- The model's files ----------------------------------------------------------------------------------------------


def _write_model(trained: Trained, dtype: str, folder: Path) -> tuple[list[str], int]:
    """Write configuration, weights, code, and settings of generation; return the files and the number of parameters."""
    from safetensors.torch import save

    write_json(folder / "config.json", configuration(trained, dtype))
    weights = trained.architecture.weights(trained)
    (folder / "model.safetensors").write_bytes(save(as_stored(weights), {"format": "pt"}))
    code = code_files(*trained.architecture.code)
    for name, text in code.items():
        write_text(folder / name, text)
    names = ["config.json", "model.safetensors"]
    if trained.target is not None:
        write_json(folder / "generation_config.json", _generation_config(trained))
        names.append("generation_config.json")
    return [*names, *code], parameters_in(weights, trained.model)


def configuration(trained: Trained, dtype: str) -> dict[str, Any]:
    """Return the content of config.json. dtype: name such as float32."""
    import transformers

    dictionary = trained.source.dictionary
    content = {
        **trained.architecture.config(trained),
        "vocab_size": len((trained.target or trained.source).symbols),
        "pad_token_id": dictionary.pad(),
        "bos_token_id": dictionary.bos(),
        "eos_token_id": dictionary.eos(),
        "torch_dtype": dtype,
        "transformers_version": transformers.__version__,
        "embinit_fairseq_version": VERSION,
    }
    if trained.head is None:
        return content
    labels = trained.labels or [f"LABEL_{number}" for number in range(trained.head_module.out_proj.out_features)]
    return {
        **content,
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
        "problem_type": "regression" if trained.is_regression else "single_label_classification",
    }


def _generation_config(trained: Trained) -> dict[str, Any]:
    """Return the settings of fairseq-generate without options: --beam 5 --lenpen 1 --max-len-b 200.

    Lengths count the first `</s>`, with which a decoder begins. fairseq forbids an empty translation and `<pad>`.
    """
    dictionary = trained.model.decoder.dictionary
    return {
        "num_beams": 5,
        "early_stopping": True,
        "length_penalty": 1.0,
        "min_length": 2,
        "max_length": min(_MAX_LEN, trained.model.max_positions()[1] - 1) + 2,
        "suppress_tokens": [dictionary.pad()],
        "decoder_start_token_id": dictionary.eos(),
        "forced_eos_token_id": dictionary.eos(),
        "bos_token_id": dictionary.bos(),
        "eos_token_id": dictionary.eos(),
        "pad_token_id": dictionary.pad(),
        "use_cache": True,
    }


# ---- README.md of the folder ----------------------------------------------------------------------------------------

_GENERATES = """A decoder begins with `</s>`. `generate()` does what fairseq-generate does by default, as in
`generation_config.json`.
"""


def decoded(folder: Path) -> str:
    """Describe the result of `decode` of the tokenizer in an exported folder; "" without a tokenizer."""
    config, fast = folder / "tokenizer_config.json", folder / "tokenizer.json"
    if not config.is_file():
        return ""
    steps = [step["step"] for step in read_json(config).get("steps", ())]
    if undone := [STEPS[step].undone for step in reversed(steps) if STEPS[step].undo is not None]:
        lower = "; lower case stays" if {"lowercase", "kim"} & {*steps} else ""
        return f"text, as `embinit score --detokenize` writes it: {', '.join(undone)}{lower}"
    is_joined = not steps and (not fast.is_file() or read_json(fast).get("decoder") is not None)
    return "text" if is_joined else "symbols of the dictionary, separated by spaces"


def describe_text(text: dict[str, Any]) -> str:
    """Describe --verify-text, for the summary and the card."""
    data = "" if text["binarised"] is None else f", {counted(text['binarised'], 'line')} also with the binarised data"
    return f"{counted(text['lines'], 'line')} of {text['form']}, {text['unknown']:.2%} <unk>{data}"


def _languages(request: ExportRequest, trained: Trained) -> list[str]:
    """Return codes of the languages, from --language or else from a translation model."""
    from fairseq_compat.languages import UnknownLanguageError, language

    codes = list(request.language)
    for side in (trained.source, trained.target):
        with contextlib.suppress(UnknownLanguageError):
            if side is not None and side.language is not None and not request.language:
                codes.append(language(side.language))
    return list(dict.fromkeys(codes))


def recorded_scores(checkpoint: str) -> dict[str, dict[str, Any]]:
    """Return name -> score, signature and details that `embinit score` recorded for this checkpoint; {} without.

    The checkpoint is in the folder of its run, or in `checkpoints/` of this folder.
    """
    path = Path(checkpoint).absolute()
    file = (path.parents[1] if path.parent.name == "checkpoints" else path.parent) / "result.json"
    record = read_json(file) if file.is_file() else None
    scores = record.get("scores") if isinstance(record, dict) and "labels" in record else None
    if not scores or Path(scores.get("checkpoint") or "").name != path.name:
        return {}
    return {name: value for name, value in scores.items() if isinstance(value, dict) and "signature" in value}


def _metadata(trained: Trained, record: dict[str, Any]) -> str:
    """Return the YAML that the Hub reads: task, languages, license, scores with their signatures."""
    from huggingface_hub import EvalResult, ModelCardData

    translates = trained.source.language is not None
    task = _PIPELINES.get(record["auto_class"], "translation" if translates else "fill-mask")
    results = [
        EvalResult(
            task_type=task,
            dataset_type="custom",
            dataset_name=f"test set of {trained.task_options.get('data')}",
            metric_type=name,
            metric_name=score["details"].partition(" = ")[0],
            metric_value=round(score["score"], 2),
            metric_args={"signature": score["signature"]},
        )
        for name, score in record["scores"].items()
    ]
    data = ModelCardData(
        language=record["languages"] or None,
        license=record["license"],
        library_name="transformers",
        pipeline_tag=task,
        tags=list(trained.architecture.tags),
        model_name=Path(record["output"]).name if results else None,
        eval_results=results or None,
    )
    return data.to_yaml()


def _card(trained: Trained, record: dict[str, Any]) -> str:
    """Return the card: the model, how to load it, and the measured differences."""
    auto, architecture = record["auto_class"], trained.architecture
    rows = "\n".join(
        f"| {precision} | {measured['difference']:.2e} | {measured['scale']:.3g} | {measured['allowed']:.2e} |"
        for precision, measured in record["verified"]["differences"].items()
    )
    more = f"\nClasses: {', '.join(trained.labels)}.\n" if trained.labels else ""
    more += f"\nThe output is a number {trained.numbers}.\n" if trained.numbers else ""
    more += f"\nNot exported: {', '.join(record['left_out'])}.\n" if record["left_out"] else ""
    trust = ", trust_remote_code=True" if architecture.code else ""
    usage = _GENERATES
    if trained.target is None:
        symbols = [f"`{trained.source.symbols[row]}`" for row in trained.source.before]
        usage = f"Pad on the right; an input begins with {''.join(symbols) or 'its first word'}.\n"
    if record["verified_text"] is not None:
        usage += f"Its ids were compared with fairseq's on {describe_text(record['verified_text'])}.\n"
    if TARGET in trained.sides:
        usage += (
            f"The target has a dictionary and a tokenizer of its own (`{TARGET}/`: {record['target_tokenizer']}).\n"
        )
    if record["decoded"]:
        which = f"Its `{TARGET}` tokenizer's" if TARGET in trained.sides else "Its tokenizer's"
        usage += f"{which} `decode` gives {record['decoded']}.\n"
    code = ", trust_remote_code=True" if any(name.endswith(".py") for name in record["files"]) else ""
    imports, opens = ", AutoTokenizer", f'    tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER"{code})\n'
    if TARGET in trained.sides:
        opens += f'    of_target = AutoTokenizer.from_pretrained("THIS_FOLDER/{TARGET}"{code})  # of translations\n'
    if record["tokenizer"].startswith("none"):
        imports = opens = ""
    return f"""---
{_metadata(trained, record)}
---

# {record["kind"]}

`--arch {trained.arch}`, trained with fairseq for {record["num_updates"]:,} updates:
{record["sizes"]}; {record["parameters"]:,} parameters, stored as {record["dtype"]}.
{architecture.note}
{more}
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
{rows}
"""
