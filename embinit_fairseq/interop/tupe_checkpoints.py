"""Convert checkpoints of TUPE's code, a fork of fairseq 0.8, to checkpoints of `tupe_*` (`embinit convert-tupe`).

A conversion renames parameters (`NAMES`), reads sizes off their shapes, takes other options from the checkpoint's
`args`, and lets fairseq load the result: a missing or unknown tensor, or one of another shape, is an error.

Letters of shapes: V symbols with `<mask>`, C embed_dim, P rows of the position matrix (longest input + 1), F dimension
inside the feed-forward networks, R rows of the relative matrix (buckets + 1), H attention heads.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.checkpoint_file import load_safely, updates_of
from embinit_fairseq.checkpoints.build import Texts
from embinit_fairseq.errors import CheckpointError, DataError, OptionError
from embinit_fairseq.interop.open_trained import load
from embinit_fairseq.interop.tensors import check_finite, rename
from embinit_fairseq.io import check_folder, check_inputs, whole_folder
from embinit_fairseq.vocab.dictionary import is_filler, read_lines_of_dictionary

if TYPE_CHECKING:
    from torch import Tensor

#: files that a conversion may write
FILES = frozenset({"model.pt", "dict.txt", "input0/dict.txt", "label/dict.txt"})
#: part of a checkpoint that is left out -> the reason
DROPPED = {
    "last_optimizer_state": "the optimiser's state: it knows parameters by their order, which is different here",
    "train_meters": "the training's meters: objects of TUPE's code",
}
_THEIRS = r"decoder\.sentence_encoder\."
_OURS = "encoder.sentence_encoder."
#: ordered patterns of TUPE's names -> this plugin's; rows of in_proj are q, k, v in both
NAMES = (
    (rf"{_THEIRS}(embed_tokens|emb_layer_norm)\.", rf"{_OURS}\1."),
    (rf"{_THEIRS}emb_out_layer_norm\.", f"{_OURS}layer_norm."),
    (rf"{_THEIRS}pos\.", f"{_OURS}positions.absolute.embed_positions."),
    (rf"{_THEIRS}pos_ln\.", f"{_OURS}positions.absolute.layer_norm."),
    (rf"{_THEIRS}pos_([qk])_linear\.", rf"{_OURS}positions.absolute.\1_proj."),
    (rf"{_THEIRS}relative_attention_bias\.", f"{_OURS}positions.relative.embed_buckets."),
    (rf"{_THEIRS}(layers\.\d+\.self_attn\.)in_proj_", rf"{_OURS}\1qkv_proj."),
    (rf"{_THEIRS}(layers\.\d+\.(self_attn\.out_proj|\w+_layer_norm|fc1|fc2)\.)", rf"{_OURS}\1"),
    (r"decoder\.lm_head\.", "encoder.lm_head."),
    (r"(classification_heads\.)", r"\1"),
)
#: options of `--arch tupe_base`, in the order in which flags are printed
OPTIONS = (
    *("rel_pos", "rel_pos_bins", "max_rel_pos", "encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim"),
    *("encoder_attention_heads", "encoder_normalize_before", "embedding_normalize", "activation_fn", "dropout"),
    *("attention_dropout", "activation_dropout", "pooler_activation_fn", "pooler_dropout", "max_positions"),
)
#: option of a pre-training -> its value if the checkpoint does not have it
MASKING = {
    "sample_break_mode": "complete",
    "mask_prob": 0.15,
    "leave_unmasked_prob": 0.1,
    "random_token_prob": 0.1,
    "freq_weighted_replacement": False,
    "mask_whole_words": False,
}
#: the only classification head that TUPE's criterion uses
_HEAD = "sentence_classification_head"


def convert_tupe(
    checkpoint: str,
    dictionary: str,
    output: str,
    *,
    num_heads: int | None = None,
    label_dictionary: str | None = None,
    half: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Write `output`/model.pt and its dictionaries; return a record of the model and of the files.

    Args:
        checkpoint, dictionary: files that TUPE's code wrote.
        output: a new folder.
        num_heads: needed if neither the checkpoint's `args` nor a relative matrix says it.
        label_dictionary: the classes of a fine-tuned model; None: its classes get made-up names.
        half: keep half precision; otherwise it becomes single precision.
        force: replace what an earlier conversion wrote.

    Raises:
        CheckpointError, DataError, OptionError, OutputError: nothing is written.
    """
    import torch

    import embinit_fairseq.models.tupe  # noqa: F401 # registers the model

    inputs = {"checkpoint": checkpoint, "dictionary": dictionary, "label_dictionary": label_dictionary}
    folder = check_folder(output, force, FILES, check_inputs(inputs).values())
    state = _read(checkpoint)
    weights = _model_of(checkpoint, state)
    model = _converted(checkpoint, weights, half)
    args = {name: value for name, value in vars(state.get("args") or Namespace()).items() if value is not None}
    options = _model_options(checkpoint, args, model, num_heads)
    cfg: dict[str, Any] = {"_name": None, "bpe": None, "tokenizer": None, "model": options}
    cfg |= _task_options(args, model, str(folder))
    num_updates, num_symbols = updates_of(state) or 0, len(model[f"{_OURS}embed_tokens.weight"])
    words, added = convert_dictionary(dictionary, num_symbols)
    files = _dictionary_files(words, cfg["task"], label_dictionary)
    content = _content(cfg, model, num_updates)
    load(checkpoint, content, None, Texts(words, words))  # an error if a tensor is missing or does not fit
    with whole_folder(output, force, FILES) as temporary:
        for name, text in files.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_bytes(text.encode("utf-8"))
        with open(temporary / "model.pt", "wb") as file:
            torch.save(content, file)
    extra = state.get("extra_state")
    sizes = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    names = ("rel_pos", *sizes, "embedding_normalize", "encoder_normalize_before", "max_positions")
    return {
        "checkpoint": checkpoint,
        "output": output,
        "files": ["model.pt", *files],
        "task": cfg["task"]["_name"],
        **{name: options[name] for name in names},
        "num_symbols": num_symbols,
        "classification_heads": _classification_heads(model),
        "train_with": flags(options),
        "num_updates": num_updates,
        "stored_as": _precisions(weights),
        "written_as": _precisions(model),
        "specials_added": added,
        "made_up_labels": "label/dict.txt" in files and label_dictionary is None,
        "left_out": [why for name, why in DROPPED.items() if name in {*state, *(extra or ())}],
    }


# ---- Weights --------------------------------------------------------------------------------------------------------


def _read(path: str) -> dict[str, Any]:
    """Return the content of a checkpoint; only plain data is read."""
    from torch import serialization

    if not hasattr(serialization, "add_safe_globals"):
        raise CheckpointError(f"{path}: reading it safely needs PyTorch 2.4 or newer; convert it there")
    state = load_safely(Path(path), CheckpointError, "a checkpoint of TUPE's code")
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds a {type(state).__name__}, not a checkpoint of TUPE's code")
    return state


def _model_of(path: str, state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the state dict in a checkpoint, or the file itself if it is one, with the names of late commits.

    Early commits had U^Q and U^K in one matrix and stored the table of buckets, which is computed.
    """
    import torch

    model = dict(state.get("model") or state)
    for name, value in model.items():
        if not isinstance(value, torch.Tensor):
            raise CheckpointError(f"{path}: {name} is a {type(value).__name__}, not a tensor; {_what_else(model)}")
    check_finite(path, model)
    encoder = "decoder.sentence_encoder."
    model.pop(f"{encoder}rp_bucket", None)
    for part in ("weight", "bias"):
        fused = model.pop(f"{encoder}pos_proj.{part}", None)
        if fused is not None:
            for letter, rows in zip("qk", fused.chunk(2)):
                model[f"{encoder}pos_{letter}_linear.{part}"] = rows.clone()  # or the file would hold both twice
    return model


def _converted(path: str, weights: dict[str, Tensor], half: bool) -> dict[str, Tensor]:
    """Return the state dict under this plugin's names; the head's matrix is the embedding matrix, also in the file."""
    import torch

    unknown = [name for name in weights if not any(re.match(pattern, name) for pattern, _ in NAMES)]
    if unknown:
        raise CheckpointError(
            f"{path}: {unknown[0]} is unknown to TUPE's code (and {len(unknown) - 1} more); {_what_else(weights)}"
        )
    model = rename(weights, NAMES)
    words, head = f"{_OURS}embed_tokens.weight", "encoder.lm_head.weight"
    if words not in model or head not in model:
        raise CheckpointError(f"{path}: no embedding matrix or no language-model head in it; {_what_else(weights)}")
    if not torch.equal(model[words], model.pop(head)):
        raise CheckpointError(
            f"{path}: decoder.lm_head.weight is not the embedding matrix, which TUPE's code shares with it; convert a "
            "checkpoint of the unmodified code"
        )
    for name, value in model.items():
        if value.dtype not in (torch.float32, torch.float64) and not half:
            value = value.float()
        model[name] = value.detach().contiguous()
    return {**model, head: model[words]}


def _what_else(weights: Mapping[str, Any]) -> str:
    """Guess the origin of a state dict with other names, for the error."""
    if any(name.startswith(f"{_OURS}positions.") for name in weights):
        return "this is a checkpoint of this plugin already: nothing to convert"
    if any(name.endswith("sentence_encoder.embed_positions.weight") for name in weights):
        return "this is a BERT or RoBERTa with added positions, not TUPE"
    return "give a checkpoint that TUPE's unmodified train.py wrote"


def _content(cfg: dict[str, Any], model: dict[str, Tensor], num_updates: int) -> dict[str, Any]:
    """Return a content that fairseq loads. A training from it starts with the first epoch and a new optimizer."""
    criterion = {"masked_lm": "MaskedLmLoss", "sentence_prediction": "SentencePredictionCriterion"}
    history = {
        "criterion_name": criterion[cfg["criterion"]["_name"]],
        "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {},
        "num_updates": num_updates,
    }
    return {
        "args": None,
        "cfg": cfg,
        "model": model,
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}, "val_loss": None},
    }


# ---- Options --------------------------------------------------------------------------------------------------------


def _model_options(
    path: str, args: Mapping[str, Any], model: Mapping[str, Tensor], num_heads: int | None
) -> dict[str, Any]:
    """Return the options of the model, from names and shapes if they determine them, else from `args`."""
    from embinit_fairseq.models.tupe import TupeConfig

    def shape(name: str) -> Sequence[int]:
        if f"{_OURS}{name}" not in model:
            raise CheckpointError(f"{path}: no parameter for this plugin's {name} in it; {_what_else({})}")
        return model[f"{_OURS}{name}"].shape

    defaults = TupeConfig()
    options = {name: args.get(name, getattr(defaults, name)) for name in OPTIONS}
    options |= {
        "_name": "tupe",
        "position_encoding": "untied",
        "tupe_reset": "official",
        "tupe_tie_cls": False,
        "rel_pos": f"{_OURS}positions.relative.embed_buckets.weight" in model,
        "encoder_layers": len({name.split(".")[3] for name in model if name.startswith(f"{_OURS}layers.")}),
        "encoder_embed_dim": shape("embed_tokens.weight")[1],
        "encoder_ffn_embed_dim": shape("layers.0.fc1.weight")[0],
        "encoder_normalize_before": f"{_OURS}layer_norm.weight" in model,
        "embedding_normalize": f"{_OURS}emb_layer_norm.weight" in model,
        "max_positions": shape("positions.absolute.embed_positions.weight")[0] - 1,
    }
    numbers = {"the checkpoint's args": args.get("encoder_attention_heads"), "--heads": num_heads}
    if options["rel_pos"]:
        rows, numbers["the matrix of relative positions"] = shape("positions.relative.embed_buckets.weight")
        options["rel_pos_bins"] = rows - 1
    else:  # TUPE-A uses neither
        options |= {"rel_pos_bins": defaults.rel_pos_bins, "max_rel_pos": defaults.max_rel_pos}
    said = {who: number for who, number in numbers.items() if number is not None}
    if len(set(said.values())) != 1:
        listed = ", ".join(f"{who}: {number}" for who, number in said.items()) or "none"
        raise OptionError(
            f"{path}: found {listed}; expected one number of attention heads: give the one of the training by --heads "
            "(base: 12)"
        )
    return {**options, "encoder_attention_heads": next(iter(said.values()))}


def _task_options(args: Mapping[str, Any], model: Mapping[str, Tensor], data: str) -> dict[str, dict[str, Any]]:
    """Return the options of task and criterion: fine-tuning if there is a classification head, else pre-training."""
    longest = len(model[f"{_OURS}positions.absolute.embed_positions.weight"]) - 1
    common = {"data": data, "seed": args.get("seed", 1)}
    num_classes = _classification_heads(model)
    if not num_classes:
        task = {
            "_name": "masked_lm",
            **common,
            "tokens_per_sample": min(args.get("tokens_per_sample", longest), longest),
            **{name: args.get(name, default) for name, default in MASKING.items()},
        }
        return {"task": task, "criterion": {"_name": "masked_lm", "tpu": False}}
    head = _HEAD if _HEAD in num_classes else next(iter(num_classes))
    shared = {"classification_head_name": head, "regression_target": bool(args.get("regression_target"))}
    task = {
        "_name": "sentence_prediction",
        **common,
        **shared,
        "num_classes": num_classes[head],
        "init_token": args.get("init_token", None if args else 0),
        "separator_token": args.get("separator_token"),
        "shorten_method": "truncate" if args.get("truncate_sequence") else "none",
        "max_positions": longest,
    }
    return {"task": task, "criterion": {"_name": "sentence_prediction", **shared}}


def _classification_heads(model: Mapping[str, Tensor]) -> dict[str, int]:
    """Return name -> number of classes of each classification head."""
    pattern = re.compile(r"classification_heads\.(.+)\.out_proj\.weight")
    matches = {name: pattern.fullmatch(name) for name in sorted(model)}
    return {match[1]: len(model[name]) for name, match in matches.items() if match}


def flags(options: Mapping[str, Any]) -> str:
    """Return the command-line flags of fairseq-train that build a model with these options."""
    from embinit_fairseq.models.tupe import TupeConfig

    words, defaults = ["--arch tupe_base"], TupeConfig()
    for name in OPTIONS:
        if str(options[name]) != str(getattr(defaults, name)):
            flag = f"--{name.replace('_', '-')}"
            words.append(flag if options[name] is True else f"{flag} {options[name]}")
    return " ".join(words)


def _precisions(model: Mapping[str, Tensor]) -> list[str]:
    """Return the types of the tensors, the most frequent first."""
    counts = Counter(str(value.dtype).removeprefix("torch.") for value in model.values())
    return [name for name, _ in counts.most_common()]


# ---- Dictionaries ---------------------------------------------------------------------------------------------------
# TUPE's dictionary has seven special symbols, fairseq's four; neither is written to `dict.txt`. So the file needs the
# other three as its first lines. Both count `<mask>` only after the file.

_SHARED = ("<s>", "<pad>", "</s>", "<unk>")
#: special symbols of TUPE's dictionary after fairseq's four
MORE_SPECIALS = ("<file>", "<email>", "<url>")


def convert_dictionary(path: str, num_symbols: int) -> tuple[str, int]:
    """Convert TUPE's `dict.txt` for a checkpoint with `num_symbols` rows; a converted file stays as it is.

    Returns:
        The text of fairseq's dict.txt, and the number of lines that were put in front, 0 or 3.

    Raises:
        DataError: the file is malformed, or the checkpoint has another number of rows.
    """
    entries = _read_entries(path)
    tupe_lines = [*((symbol, 1) for symbol in MORE_SPECIALS), *entries]
    if _size(tupe_lines) == num_symbols:
        return _with_flags(tupe_lines), len(MORE_SPECIALS)
    if tuple(symbol for symbol, _ in entries[:3]) == MORE_SPECIALS and _size(entries) == num_symbols:
        return _with_flags(entries), 0
    raise DataError(
        f"{path}: {len(entries)} lines make {_size(tupe_lines)} symbols (seven specials, the lines, <mask>), but the "
        f"checkpoint has {num_symbols} rows; give --dict the dict.txt of the data it was trained with"
    )


def _size(entries: Sequence[tuple[str, int]]) -> int:
    """Return the number of symbols of fairseq's dictionary with these lines, with specials and `<mask>`."""
    return len(_SHARED) + len(entries) + ("<mask>" not in (symbol for symbol, _ in entries))


def _with_flags(entries: Sequence[tuple[str, int]]) -> str:
    """Return the lines for fairseq, which needs a flag for a repeated symbol; in TUPE's code the last one counts."""
    seen, lines = set(_SHARED), []
    for symbol, count in entries:
        lines.append(f"{symbol} {count} #fairseq:overwrite\n" if symbol in seen else f"{symbol} {count}\n")
        seen.add(symbol)
    return "".join(lines)


def _dictionary_files(words: str, task: Mapping[str, Any], labels: str | None) -> dict[str, str]:
    """Return name in the data folder -> text of each dictionary that fairseq's task reads."""
    has_classes = task["_name"] == "sentence_prediction" and not task["regression_target"]
    if labels is not None and not has_classes:
        raise OptionError(f"--label-dict {labels}: this model predicts no classes; leave it out")
    files = {"dict.txt": words}
    if task["_name"] == "sentence_prediction":
        files["input0/dict.txt"] = words
    if has_classes:
        files["label/dict.txt"] = _convert_labels(labels, task["num_classes"])
    return files


def _convert_labels(path: str | None, num_classes: int) -> str:
    """Return fairseq's `label/dict.txt`: class k is line k, as in TUPE's code; made-up names without a file."""
    if path is None:
        return "".join(f"class{number} 1\n" for number in range(num_classes))
    entries = _read_entries(path)
    labels = sum(not is_filler(symbol) for symbol, _ in entries)
    if not labels <= num_classes <= len(entries):
        raise DataError(
            f"{path}: {labels} labels, but the classification head has {num_classes} classes; give --label-dict "
            "the label/dict.txt of the data the checkpoint was fine-tuned with"
        )
    return _with_flags(entries)


def _read_entries(path: str) -> list[tuple[str, int]]:
    """Return the (symbol, count) lines of a `dict.txt`."""
    entries = [(symbol, count) for _, symbol, count, _ in read_lines_of_dictionary(path)]
    if not entries:
        raise DataError(f"{path}: no symbol in it; give the dict.txt of the data the checkpoint was trained with")
    return entries
