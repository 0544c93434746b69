"""Does the exported directory compute what fairseq computes? Measured on padded batches of random tokens.

The directory is opened by another process, with transformers and nothing of ours (`remote/read_back.py`). Compared are
the features of every token and the logits: in double precision, where another equation cannot hide behind rounding,
and as the model is stored.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.export.bundle import source_of
from embinit_fairseq.export.files import save_tensors
from embinit_fairseq.export.trained import Trained
from embinit_fairseq.files import says_full, temporary_folder

if TYPE_CHECKING:
    from torch import Tensor

#: largest difference allowed, beside the largest absolute value
TOLERANCES = {"float64": 1e-9, "float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}
_REPORT = "which must not happen: please report it"
_LOGITS = 16_000_000  # of a batch, at most, are compared (128 MB)
_READER = f"{__name__.rpartition('.')[0]}.remote.read_back"


class DifferentOutput(CheckpointError):
    """The exported model computes something else than fairseq's."""


def verify(trained: Trained, folder: Path, dtype: str, lines: Sequence[str]) -> dict[str, Any]:
    """Compare; the parameters of `trained.model` are of type `dtype` and of double precision afterwards.

    lines: text for the tokenizer in `folder`; its answer is under `ids`. Raises DifferentOutput, or CheckpointError if
    transformers cannot open the directory.
    """
    from safetensors.torch import load_file

    batches = make_batches(trained)
    with temporary_folder() as place:
        flat = {f"{n}.{part}": value for n, batch in enumerate(batches) for part, value in batch.items()}
        save_tensors(flat, place / "batches.safetensors")
        answer = _read_back(trained, folder, place, lines)
        theirs = load_file(place / "output.safetensors")
    strange = {name: answer[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys") if answer[name]}
    if strange or answer["dtype"] != dtype:
        raise DifferentOutput(f"{trained.path}: read back {strange or answer['dtype']}; nothing is written, {_REPORT}")
    measured = _compare(trained, batches, theirs, dtype)
    return {
        "batches": len(batches),
        "tokens": sum(int(batch["mask"].sum()) for batch in batches),
        **measured,
        "ids": answer["ids"],
    }


def make_batches(trained: Trained) -> list[dict[str, Tensor]]:
    """Random ids over the dictionary behind `<s>`: a batch of short sentences, one with the longest; ends in `</s>`.

    ids, mask (1: a token), chosen (bool: compared); each (batch, length).
    """
    import torch

    dictionary, longest = trained.model.encoder.dictionary, trained.model.max_positions()
    generator = torch.Generator().manual_seed(1)
    few = min(longest, 24)
    batches = []
    for lengths in ([3, few, 2, min(longest, 9), min(longest, 17)], [longest, longest // 2 + 1]):
        ids = torch.randint(len(trained.symbols), (len(lengths), max(lengths)), generator=generator)
        ids = torch.where(ids == dictionary.pad(), dictionary.unk(), ids)
        ids[:, 0] = dictionary.bos()
        for row, length in enumerate(lengths):
            ids[row, length - 1] = dictionary.eos()
            ids[row, length:] = dictionary.pad()
        mask = ids != dictionary.pad()
        step = max(1, -(-int(mask.sum()) * len(trained.symbols) // _LOGITS))
        chosen = mask & (torch.arange(mask.numel()).view_as(mask) % step == 0)
        batches.append({"ids": ids, "mask": mask.long(), "chosen": chosen})
    return batches


def _read_back(trained: Trained, folder: Path, place: Path, lines: Sequence[str]) -> dict[str, Any]:
    given = {name: str(place / f"{name}.safetensors") for name in ("batches", "output")}
    given.update(folder=str(folder), auto_class=trained.auto_class, text=str(place / "text.jsonl"))
    Path(given["text"]).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (place / "inputs.json").write_text(json.dumps(given), encoding="utf-8")
    command = [sys.executable, "-c", source_of(_READER), str(place / "inputs.json")]
    offline = {"HF_MODULES_CACHE": str(place / "modules"), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    environment = {**os.environ, **offline, "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        if (full := says_full(done.stderr)) is not None:  # it writes to `place` only
            raise OSError(errno.ENOSPC, full)
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CheckpointError(
            f"{trained.path}: transformers cannot open what was exported ({reason[:400]}); nothing is written. With "
            "transformers 4.40 or newer and enough memory, please report it"
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def _compare(trained: Trained, batches: Sequence[dict[str, Tensor]], theirs: dict[str, Tensor], dtype: str) -> dict:
    differences: dict[str, dict[str, float]] = {}
    for precision, name in (("stored", dtype), ("double", "float64")):
        if precision == "double":
            trained.model.double()
        for number, batch in enumerate(batches):
            for part, ours in _run_fairseq(trained, batch).items():
                for kernel in ("sdpa", "eager") if precision == "double" else ("sdpa",):
                    other = theirs[f"{precision}.{kernel}.{number}.{part}"]
                    _note(
                        differences.setdefault(name, {"difference": 0.0, "scale": 0.0}), ours.double(), other.double()
                    )
        _check(trained, name, differences[name])
    return {"differences": differences}


def _run_fairseq(trained: Trained, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Features and logits of fairseq's model, by the plainest of its kernels."""
    import torch

    model, ids, chosen = trained.model, batch["ids"], batch["chosen"]
    trained.architecture.prepare(trained)
    with torch.inference_mode():
        features, _ = model(ids, features_only=True)
        outputs = {"features": features[chosen]}
        if trained.head is not None:
            outputs["logits"] = model(ids, classification_head_name=trained.head)[0]
        elif trained.lm_head is not None:
            outputs["logits"] = model(ids)[0][chosen]
    return outputs


def _note(measured: dict[str, float], ours: Tensor, theirs: Tensor) -> None:
    difference = float("inf") if ours.shape != theirs.shape else float((ours - theirs).abs().max())
    if not difference <= measured["difference"]:  # also if it is not a number
        measured["difference"] = difference
    measured["scale"] = max(measured["scale"], float(ours.abs().max()))


def _check(trained: Trained, precision: str, measured: dict[str, float]) -> None:
    allowed = TOLERANCES[precision] * measured["scale"]
    measured["allowed"] = allowed
    if not measured["difference"] <= allowed:
        raise DifferentOutput(
            f"{trained.path}: the exported model differs from fairseq's by {measured['difference']:.3g} in {precision} "
            f"(allowed: {allowed:.3g}); nothing is written, {_REPORT}"
        )
