"""Does the exported directory compute what fairseq computes? Measured on padded batches of random tokens.

The directory is opened by another process, with transformers and nothing of ours (`remote/read_back.py`). Compared are
the features of every token and the logits (of an encoder-decoder model, given targets): in double precision, where
another equation cannot hide behind rounding, and as the model is stored.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.export.files import save_tensors, source_of
from embinit_fairseq.export.trained import Side, Trained
from embinit_fairseq.files import says_full, temporary_folder

if TYPE_CHECKING:
    from torch import Tensor

#: largest difference allowed, beside the largest absolute value
TOLERANCES = {"float64": 1e-9, "float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}
_REPORT = "which must not happen: please report it"
_LOGITS = 16_000_000  # of a batch, at most, are compared (128 MB)


class DifferentOutput(CheckpointError):
    """The exported model computes something else than fairseq's."""


def verify(trained: Trained, folder: Path, dtype: str, texts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Compare; the parameters of `trained.model` are of type `dtype` and of double precision afterwards.

    texts: lines for the tokenizers, by their folders in `folder`; the answers are under `ids`. Raises DifferentOutput,
    or CheckpointError if transformers cannot open the directory.
    """
    from safetensors.torch import load_file

    batches = make_batches(trained)
    with temporary_folder() as place:
        flat = {f"{n}.{part}": value for n, batch in enumerate(batches) for part, value in batch.items()}
        save_tensors(flat, place / "batches.safetensors")
        answer = _read_back(trained, folder, place, texts)
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
    """Random ids over the dictionaries: a batch of short sentences, one with the longest.

    ids, mask (1: a token), of an encoder-decoder model decoder_ids; chosen (bool: compared), of the decoder if there is
    one. Each (batch, length); sources are `<s> ... </s>`, what goes into a decoder begins with `</s>`.
    """
    import torch

    generator = torch.Generator().manual_seed(1)
    source, target = trained.source, trained.target
    batches = []
    for kind in (_short, _long):
        ids = _random_ids(source, kind(source.longest), source.dictionary.bos(), generator)
        batch = {"ids": ids, "mask": (ids != source.dictionary.pad()).long()}
        last, side = batch["mask"].bool(), source
        if target is not None:
            lengths = kind(target.longest)[::-1]  # long ones beside short sources
            batch["decoder_ids"] = _random_ids(target, lengths, target.dictionary.eos(), generator)
            last, side = batch["decoder_ids"] != target.dictionary.pad(), target
        step = max(1, -(-int(last.sum()) * len(side.symbols) // _LOGITS))
        batches.append({**batch, "chosen": last & (torch.arange(last.numel()).view_as(last) % step == 0)})
    return batches


def _short(longest: int) -> list[int]:
    return [3, min(longest, 24), 2, min(longest, 9), min(longest, 17)]


def _long(longest: int) -> list[int]:
    return [longest, longest // 2 + 1]


def _random_ids(side: Side, lengths: Sequence[int], first: int, generator: Any) -> Tensor:
    """(sentences, longest of them): `first`, symbols, `</s>`, padding."""
    import torch

    dictionary = side.dictionary
    ids = torch.randint(len(side.symbols), (len(lengths), max(lengths)), generator=generator)
    ids = torch.where(ids == dictionary.pad(), dictionary.unk(), ids)
    ids[:, 0] = first
    for row, length in enumerate(lengths):
        ids[row, length - 1] = dictionary.eos()
        ids[row, length:] = dictionary.pad()
    return ids


def _read_back(trained: Trained, folder: Path, place: Path, texts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    given = {name: str(place / f"{name}.safetensors") for name in ("batches", "output")}
    given.update(folder=str(folder), auto_class=trained.auto_class, texts=str(place / "texts.json"))
    Path(given["texts"]).write_text(json.dumps({name: list(lines) for name, lines in texts.items()}))
    (place / "inputs.json").write_text(json.dumps(given), encoding="utf-8")
    command = [sys.executable, "-c", source_of("export.remote.read_back"), str(place / "inputs.json")]
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
    with trained.architecture.prepare(trained), torch.inference_mode():
        if trained.target is not None:
            return _run_seq2seq(model, batch)
        features, _ = model(ids, features_only=True)
        outputs = {"features": features[chosen]}
        if trained.head is not None:
            outputs["logits"] = model(ids, classification_head_name=trained.head)[0]
        elif trained.lm_head is not None:
            outputs["logits"] = model(ids)[0][chosen]
    return outputs


def _run_seq2seq(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the encoder gives; features and logits of the decoder, which is given targets (teacher forcing)."""
    ids, decoder_ids, chosen = batch["ids"], batch["decoder_ids"], batch["chosen"]
    encoded = model.encoder(ids, src_lengths=batch["mask"].sum(1))
    features, _ = model.decoder(decoder_ids, encoder_out=encoded, features_only=True)
    logits = model.decoder.output_layer(features[chosen])
    of_source = encoded["encoder_out"][0].transpose(0, 1)[batch["mask"].bool()]
    return {"encoder": of_source, "features": features[chosen], "logits": logits}


def _note(measured: dict[str, float], ours: Tensor, theirs: Tensor) -> None:
    difference = float("inf") if ours.shape != theirs.shape else float((ours - theirs).abs().max())
    if not difference <= measured["difference"]:  # also if it is not a number
        measured["difference"] = difference
    measured["scale"] = max(measured["scale"], float(ours.abs().max()))


def _check(trained: Trained, precision: str, measured: dict[str, float]) -> None:
    allowed = TOLERANCES[precision] * measured["scale"]
    measured["allowed"] = allowed
    if not measured["difference"] <= allowed:
        half = precision in ("float16", "bfloat16")
        remedy = "its numbers may be beyond that precision: take --dtype float32" if half else _REPORT
        raise DifferentOutput(
            f"{trained.path}: the exported model differs from fairseq's by {measured['difference']:.3g} in {precision} "
            f"(allowed: {allowed:.3g}); nothing is written, {remedy}"
        )
