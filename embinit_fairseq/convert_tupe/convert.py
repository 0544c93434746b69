"""Checkpoints of the TUPE authors' code (a fork of fairseq 0.8) as checkpoints of `tupe_*` for fairseq 0.12.2.

Pure renaming: what the model computes stays the same. torch is imported when a file is opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.convert_tupe.keys import THEIRS, Entry, Layout, checked_layout
from embinit_fairseq.convert_tupe.options import configuration, flags
from embinit_fairseq.errors import CheckpointError, DataError, OptionError
from embinit_fairseq.files import check_folder, check_inputs, whole_folder
from embinit_fairseq.vectors.fairseq_checkpoint import updates_of
from embinit_fairseq.vectors.torch_file import load_safely
from embinit_fairseq.vocab.dictionary import is_filler, read_lines_of_dictionary

if TYPE_CHECKING:
    from torch import Tensor


# ---- The dictionary of the TUPE authors' code as one that fairseq reads with the same ids ---------------------------
# Theirs has seven special symbols, fairseq's four; neither is written to `dict.txt`. So the file needs the other three
# as its first lines. Both count `<mask>` only after the file.

_SHARED = ("<s>", "<pad>", "</s>", "<unk>")
#: What their dictionary has after fairseq's four.
MORE_SPECIALS = ("<file>", "<email>", "<url>")
_OVERWRITE = "#fairseq:overwrite"


@dataclass(frozen=True)
class ConvertedDictionary:
    """text: of fairseq's dict.txt. num_symbols: with specials and `<mask>`. added: lines put at its head, 0 or 3."""

    text: str
    num_symbols: int
    added: int


def convert_dictionary(path: str, num_symbols: int) -> ConvertedDictionary:
    """Their `dict.txt` for a checkpoint with `num_symbols` rows; a file that is converted already stays as it is.

    The number of rows decides. DataError, naming file and line, for a file that is malformed or does not fit.
    """
    entries = read_entries(path)
    theirs = _with_flags([*((symbol, 1) for symbol in MORE_SPECIALS), *entries])
    if theirs.num_symbols == num_symbols:
        return theirs
    if tuple(symbol for symbol, _ in entries[:3]) == MORE_SPECIALS:
        converted = _with_flags(entries)
        if converted.num_symbols == num_symbols:
            return ConvertedDictionary(converted.text, num_symbols, added=0)
    raise DataError(
        f"{path}: {len(entries)} lines make {theirs.num_symbols} symbols (seven specials, the lines, <mask>), but the "
        f"checkpoint has {num_symbols} rows; give --dict the dict.txt of the data it was trained with"
    )


def _with_flags(entries: Sequence[tuple[str, int]]) -> ConvertedDictionary:
    """The lines for fairseq. Of a symbol that stands twice the last counts in their code; fairseq asks for a flag."""
    seen, lines = set(_SHARED), []
    for symbol, count in entries:
        lines.append(f"{symbol} {count} {_OVERWRITE}\n" if symbol in seen else f"{symbol} {count}\n")
        seen.add(symbol)
    mask = int("<mask>" not in seen)
    return ConvertedDictionary("".join(lines), len(_SHARED) + len(lines) + mask, len(MORE_SPECIALS))


def dictionary_files(words: str, task: Mapping[str, Any], labels: str | None) -> dict[str, str]:
    """Where fairseq's task looks for dictionaries: name below the data folder -> text. labels: path of theirs.

    Raises OptionError for labels of a model that predicts no classes.
    """
    files = {"dict.txt": words}
    fine_tuned = task["_name"] == "sentence_prediction"
    if fine_tuned:
        files["input0/dict.txt"] = words
    if fine_tuned and not task["regression_target"]:
        files["label/dict.txt"] = convert_labels(labels, task["num_classes"])
    elif labels is not None:
        raise OptionError(f"--label-dict {labels}: this model predicts no classes; leave it out")
    return files


def convert_labels(path: str | None, num_classes: int) -> str:
    """`label/dict.txt` for fairseq: class k is line k, as in their code. Without a file the classes get made-up names.

    Raises DataError for a file with fewer labels than the head has classes, or with more (fillers do not count).
    """
    if path is None:
        return "".join(f"class{number} 1\n" for number in range(num_classes))
    entries = read_entries(path)
    labels = sum(not is_filler(symbol) for symbol, _ in entries)
    if not labels <= num_classes <= len(entries):
        raise DataError(
            f"{path}: {labels} labels, but the classification head has {num_classes} classes; give --label-dict "
            "the label/dict.txt of the data the checkpoint was fine-tuned with"
        )
    return _with_flags(entries).text


def read_entries(path: str) -> list[tuple[str, int]]:
    """The (symbol, count) lines of a `dict.txt`; DataError if it is malformed."""
    entries = [(symbol, count) for _, symbol, count, _ in read_lines_of_dictionary(path)]
    if not entries:
        raise DataError(f"{path}: no symbol in it; give the dict.txt of the data the checkpoint was trained with")
    return entries


# ----------------------------------------------------------------------------------------------------------------------

#: Everything a conversion may write, relative to its folder.
FILES = frozenset({"model.pt", "dict.txt", "input0/dict.txt", "label/dict.txt"})
#: What a checkpoint holds beside the model and is left out, and why.
DROPPED = {
    "last_optimizer_state": "the optimiser's state: it knows parameters by their order, which is another here",
    "train_meters": "the training's meters: objects of their code",
}


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
    """Write `output`/model.pt and `output`/dict.txt; returns what was found and done.

    num_heads: only needed where neither `args` nor a relative table says it. label_dictionary: of a fine-tuned model.
    half: keep half precision (default: it becomes single). force: replace what an earlier conversion wrote.
    Raises CheckpointError, DataError, OptionError or OutputError; then nothing is written.
    """
    inputs = {"checkpoint": checkpoint, "dictionary": dictionary, "label_dictionary": label_dictionary}
    folder = check_folder(output, force, FILES, check_inputs(inputs).values())
    state = read_reference(checkpoint)
    model = _renamed_early_keys(checkpoint, _model_of(checkpoint, state))
    layout, expected = checked_layout(checkpoint, {name: tuple(value.shape) for name, value in model.items()})
    cfg = configuration(checkpoint, state.get("args"), layout, num_heads, str(folder))
    words = convert_dictionary(dictionary, layout.num_symbols)
    files = dictionary_files(words.text, cfg["task"], label_dictionary)
    converted = _converted(checkpoint, model, expected, half)
    with whole_folder(output, force, FILES) as temporary:
        _write(temporary, _content(cfg, converted, updates_of(state) or 0), files)
    return {
        "checkpoint": checkpoint,
        "output": output,
        "files": ["model.pt", *files],
        **_model_report(layout, cfg),
        "num_updates": updates_of(state) or 0,
        "stored_as": _precisions(model),
        "written_as": _precisions(converted),
        "specials_added": words.added,
        "made_up_labels": "label/dict.txt" in files and label_dictionary is None,
        "left_out": _left_out(state),
    }


def read_reference(path: str) -> dict[str, Any]:
    """The content of their checkpoint; CheckpointError if it is none or holds anything but plain data and meters."""
    from torch import serialization

    if not Path(path).is_file():
        raise CheckpointError(f"--checkpoint {path}: no such checkpoint; check the path")
    if not hasattr(serialization, "add_safe_globals"):
        raise CheckpointError(f"{path}: reading it safely needs PyTorch 2.4 or newer; convert it there")
    state = load_safely(Path(path), CheckpointError, "a checkpoint of the TUPE authors' code", _meters())
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds a {type(state).__name__}, not a checkpoint of the TUPE authors' code")
    return state


def _meters() -> list[type]:
    """Stand-ins for their meters, which are in every checkpoint."""
    from fairseq_compat.plain_data import attributes_only

    return [attributes_only("fairseq.meters", name) for name in ("AverageMeter", "TimeMeter", "StopwatchMeter")]


def _model_of(path: str, state: dict[str, Any]) -> dict[str, Tensor]:
    """The state dict inside a checkpoint, or the whole file if only that was saved."""
    import torch

    model = state.get("model", state if any(str(name).startswith(THEIRS) for name in state) else None)
    if not isinstance(model, Mapping) or not all(isinstance(name, str) for name in model):
        raise CheckpointError(f"{path}: no model in it; name a checkpoint that the TUPE authors' train.py wrote")
    for name, value in model.items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            raise CheckpointError(f"{path}: {name} is a {type(value).__name__}, not a dense tensor; it is damaged")
        if not torch.isfinite(value).all():
            raise CheckpointError(
                f"{path}: {name} holds NaN or infinity; convert an earlier checkpoint of the training"
            )
    return dict(model)


def _renamed_early_keys(path: str, model: dict[str, Tensor]) -> dict[str, Tensor]:
    """Some commits of their code held U^Q and U^K in one matrix and stored the (computed) table of buckets."""
    model.pop(THEIRS + "rp_bucket", None)
    for part in ("weight", "bias"):
        fused = model.pop(f"{THEIRS}pos_proj.{part}", None)
        if fused is not None:
            if fused.dim() == 0 or fused.shape[0] % 2:
                raise CheckpointError(f"{path}: {THEIRS}pos_proj.{part} cannot be halved; it is damaged")
            for letter, rows in zip("qk", fused.chunk(2)):
                model[f"{THEIRS}pos_{letter}_linear.{part}"] = rows.clone()  # or the file would hold both twice
    return model


def _converted(path: str, model: dict[str, Tensor], expected: list[Entry], half: bool) -> dict[str, Tensor]:
    """Our state dict. The language-model head shares the table of embeddings, in the file as well."""
    import torch

    table, head = "embed_tokens.weight", "decoder.lm_head.weight"
    if not torch.equal(model[THEIRS + table], model[head]):
        raise CheckpointError(
            f"{path}: {head} is not the table of embeddings, which the TUPE authors' code shares with it; convert a "
            "checkpoint of the unmodified code"
        )
    converted: dict[str, Tensor] = {}
    for entry in expected:
        value = model[entry.theirs].detach()
        if not value.is_floating_point():
            raise CheckpointError(f"{path}: {entry.theirs} holds {value.dtype}, not floating point; it is damaged")
        if value.dtype not in (torch.float32, torch.float64) and not half:
            value = value.float()
        converted[entry.ours] = value.contiguous()
    converted["encoder.lm_head.weight"] = converted["encoder.sentence_encoder." + table]
    return converted


def _content(cfg: dict[str, Any], model: dict[str, Tensor], num_updates: int) -> dict[str, Any]:
    """What fairseq's loader asks for. Training from it begins anew: no state of an optimiser, first epoch."""
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


def _write(folder: Path, content: dict[str, Any], files: dict[str, str]) -> None:
    import torch

    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode("utf-8"))
    with open(folder / "model.pt", "wb") as file:
        torch.save(content, file)


def _model_report(layout: Layout, cfg: dict[str, Any]) -> dict[str, Any]:
    sizes = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    names = ("rel_pos", *sizes, "embedding_normalize", "encoder_normalize_before", "max_positions")
    return {
        "task": cfg["task"]["_name"],
        **{name: cfg["model"][name] for name in names},
        "num_symbols": layout.num_symbols,
        "classification_heads": {name: num_classes for name, (_, num_classes) in layout.heads.items()},
        "train_with": flags(cfg["model"]),
    }


def _precisions(model: Mapping[str, Tensor]) -> list[str]:
    """The types of the tensors, the most frequent first."""
    counted = Counter(str(value.dtype).removeprefix("torch.") for value in model.values())
    return [name for name, _ in counted.most_common()]


def _left_out(state: dict[str, Any]) -> list[str]:
    extra = state.get("extra_state")
    names = {*state, *(extra if isinstance(extra, dict) else ())}
    return [why for name, why in DROPPED.items() if name in names]
