"""Check that the exported folder computes the same as fairseq, on padded batches of random tokens.

Another process opens the folder, with transformers and nothing of this package (`remote/read_back.py`). The features of
every token and the logits (of an encoder-decoder model, with fixed targets) are compared: in the stored precision, and
in double precision, where rounding cannot hide another equation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.interop.trained import Side, Trained
from embinit_fairseq.io import temporary_folder

if TYPE_CHECKING:
    from torch import Tensor

#: largest difference allowed, relative to the largest absolute value
TOLERANCES = {"float64": 1e-9, "float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}
#: the program that opens the folder
READ_BACK = Path(__file__).parent / "remote" / "read_back.py"
_REPORT = "which must not happen: please report it"
#: numbers of a batch's logits that are compared at most (128 MB)
_LOGITS = 16_000_000


class DifferentOutput(CheckpointError):
    """Signal that the exported model and fairseq's model compute different numbers."""


def verify(trained: Trained, folder: Path, dtype: str, texts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Compare the folder with the model and return the differences by precision, and the ids of the texts.

    Args:
        trained: the trained model, with parameters of type `dtype`, and of double precision afterwards.
        folder: the export.
        dtype: name such as float32.
        texts: folder of a tokenizer, relative to the export -> lines; their ids are in `ids` of the result.

    Raises:
        DifferentOutput: a tensor is missing, or an output differs.
        CheckpointError: transformers cannot open the folder.
    """
    batches = make_batches(trained)
    answer, theirs = _read_back(trained, folder, batches, texts)
    strange = {name: answer[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys") if answer[name]}
    if strange or answer["dtype"] != dtype:
        raise DifferentOutput(f"{trained.path}: read back {strange or answer['dtype']}; nothing is written, {_REPORT}")
    return {
        "batches": len(batches),
        "tokens": sum(int(batch["mask"].sum()) for batch in batches),
        "differences": _compare(trained, batches, theirs, dtype),
        "ids": answer["ids"],
    }


def make_batches(trained: Trained) -> list[dict[str, Tensor]]:
    """Return two batches of random ids over the dictionaries: short sentences, and one of the greatest length.

    Each has ids and mask (1: a token), for a decoder also decoder_ids, all (batch, length); and chosen, a mask of the
    positions whose logits are compared. Sources are `<s> ... </s>`; the input of a decoder begins with `</s>`.
    """
    import torch

    generator = torch.Generator().manual_seed(1)
    source, target = trained.source, trained.target
    batches = []
    for is_long in (False, True):
        ids = _random_ids(source, _lengths(source.longest, is_long), source.dictionary.bos(), generator)
        batch = {"ids": ids, "mask": (ids != source.dictionary.pad()).long()}
        last, side = batch["mask"].bool(), source
        if target is not None:
            lengths = _lengths(target.longest, is_long)[::-1]  # long targets for short sources
            batch["decoder_ids"] = _random_ids(target, lengths, target.dictionary.eos(), generator)
            last, side = batch["decoder_ids"] != target.dictionary.pad(), target
        step = max(1, -(-int(last.sum()) * len(side.symbols) // _LOGITS))
        batches.append({**batch, "chosen": last & (torch.arange(last.numel()).view_as(last) % step == 0)})
    return batches


def _lengths(longest: int, is_long: bool) -> list[int]:
    return [longest, longest // 2 + 1] if is_long else [3, min(longest, 24), 2, min(longest, 9), min(longest, 17)]


def _random_ids(side: Side, lengths: Sequence[int], first: int, generator: Any) -> Tensor:
    """Return (sentences, longest of them) ids: `first`, symbols, `</s>`, padding."""
    import torch

    dictionary = side.dictionary
    ids = torch.randint(len(side.symbols), (len(lengths), max(lengths)), generator=generator)
    ids = torch.where(ids == dictionary.pad(), dictionary.unk(), ids)
    ids[:, 0] = first
    for row, length in enumerate(lengths):
        ids[row, length - 1] = dictionary.eos()
        ids[row, length:] = dictionary.pad()
    return ids


def _read_back(
    trained: Trained, folder: Path, batches: Sequence[dict[str, Tensor]], texts: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the answer and the outputs of the other process."""
    from safetensors.torch import load_file, save

    with temporary_folder() as place:
        flat = {f"{n}.{part}": value for n, batch in enumerate(batches) for part, value in batch.items()}
        (place / "batches.safetensors").write_bytes(save(flat))
        paths = {name: str(place / f"{name}.safetensors") for name in ("batches", "output")}
        inputs = {**paths, "folder": str(folder), "auto_class": trained.auto_class, "texts": dict(texts)}
        (place / "inputs.json").write_text(json.dumps(inputs), encoding="utf-8")
        command = [sys.executable, str(READ_BACK), str(place / "inputs.json")]
        offline = {"HF_MODULES_CACHE": str(place / "modules"), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        environment = {**os.environ, **offline, "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, encoding="utf-8", errors="replace"
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise CheckpointError(
                f"{trained.path}: transformers cannot open the export ({reason[:400]}); nothing is written. "
                "With transformers 4.40 or newer and enough memory, please report it"
            )
        return json.loads(done.stdout.strip().splitlines()[-1]), load_file(paths["output"])


def _compare(
    trained: Trained, batches: Sequence[dict[str, Tensor]], theirs: Mapping[str, Tensor], dtype: str
) -> dict[str, dict[str, float]]:
    """Return precision -> differences, first as stored, then in double precision, which the model has afterwards."""
    stored = check_difference(trained.path, dtype, _pairs(trained, batches, theirs, "stored.sdpa"))
    trained.model.double()
    double = check_difference(trained.path, "float64", _pairs(trained, batches, theirs, "double.sdpa", "double.eager"))
    return {dtype: stored, "float64": double}


def _pairs(
    trained: Trained, batches: Sequence[dict[str, Tensor]], theirs: Mapping[str, Tensor], *kinds: str
) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of an output of fairseq's model and the same output of the other process."""
    return [
        (ours.double(), theirs[f"{kind}.{number}.{part}"].double())
        for number, batch in enumerate(batches)
        for part, ours in _run_fairseq(trained, batch).items()
        for kind in kinds
    ]


def check_difference(path: str, precision: str, pairs: Sequence[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Return difference, scale and allowed difference of (ours, theirs); raise DifferentOutput if it is exceeded."""
    import torch

    # the maximum of torch is NaN if a number is
    difference = float(torch.stack([(ours - theirs).abs().max() for ours, theirs in pairs]).max())
    scale = float(max(ours.abs().max() for ours, _ in pairs))
    allowed = TOLERANCES[precision] * scale
    if not difference <= allowed:
        half = precision in ("float16", "bfloat16")
        remedy = "its numbers may be beyond that precision: take --dtype float32" if half else _REPORT
        raise DifferentOutput(
            f"{path}: the exported model differs from fairseq's by {difference:.3g} in {precision} "
            f"(allowed: {allowed:.3g}); nothing is written, {remedy}"
        )
    return {"difference": difference, "scale": scale, "allowed": allowed}


# ---- fairseq's model ------------------------------------------------------------------------------------------------


def _run_fairseq(trained: Trained, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return features and logits, and the encoder's output for a decoder, by the plainest of the model's kernels."""
    import torch

    model, ids, chosen = trained.model, batch["ids"], batch["chosen"]
    with _plain_kernels(model), torch.inference_mode():
        if trained.target is not None:  # the decoder is given targets (teacher forcing)
            encoded = model.encoder(ids, src_lengths=batch["mask"].sum(1))
            features, _ = model.decoder(batch["decoder_ids"], encoder_out=encoded, features_only=True)
            logits = model.decoder.output_layer(features[chosen])
            of_source = encoded["encoder_out"][0].transpose(0, 1)[batch["mask"].bool()]
            return {"encoder": of_source, "features": features[chosen], "logits": logits}
        features, _ = model(ids, features_only=True)
        outputs = {"features": features[chosen]}
        if trained.head is not None:
            outputs["logits"] = model(ids, classification_head_name=trained.head)[0]
        elif trained.lm_head is not None:
            outputs["logits"] = model(ids)[0][chosen]
    return outputs


@contextlib.contextmanager
def _plain_kernels(model: Any) -> Iterator[None]:
    """Let TUPE use plain attention, and fairseq's GELU and softmax keep double precision.

    Otherwise another equation could not be distinguished from rounding.
    """
    import torch
    from fairseq import utils
    from fairseq.modules import gelu

    from embinit_fairseq.modules.sentence_encoder import SentenceEncoder

    softmax = utils.softmax
    for module in model.modules():
        if isinstance(module, SentenceEncoder):
            module.cfg = dataclasses.replace(module.cfg, attention_kernel="eager")
    if next(model.parameters()).dtype == torch.float64:
        for module in model.modules():
            if getattr(module, "activation_fn", None) is gelu:
                module.activation_fn = torch.nn.functional.gelu
        utils.softmax = lambda x, dim, onnx_trace=False: x.softmax(dim)
    try:
        yield
    finally:
        utils.softmax = softmax
