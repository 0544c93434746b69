"""Small tupe_* and electra_* checkpoints, and the exported modelling code as a module, for the tests of export-hf."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from unittest import mock

import expand_checkpoints
import pytest
from small_models import ARCHITECTURES
from tupe_reference import randomise

from embinit_fairseq.cli.main import main
from embinit_fairseq.interop import tokenizers, verify_export
from embinit_fairseq.interop.architectures import TUPE
from embinit_fairseq.interop.export import configuration
from embinit_fairseq.interop.export_request import ExportRequest
from embinit_fairseq.interop.open_trained import open_trained
from embinit_fairseq.interop.remote import code_files
from embinit_fairseq.interop.trained import Trained
from embinit_fairseq.models.tupe import TupeModel

os.environ.setdefault("HF_MODULES_CACHE", tempfile.mkdtemp())  # not the home folder of who runs the tests
SIZES = "--encoder-embed-dim 8 --encoder-ffn-embed-dim 6 --encoder-layers 2 --encoder-attention-heads 2"
MLM = "--task masked_lm --criterion masked_lm --tokens-per-sample 12"
CLASSES = "--task sentence_prediction --criterion sentence_prediction --init-token 0 --separator-token 2"
REGRESSION = f"{CLASSES} --num-classes 1 --regression-target --best-checkpoint-metric loss"
GENERATOR = f"{expand_checkpoints.SMALL_GENERATOR} --generator-attention-heads 2"
POSITIONS = "--max-source-positions 20 --max-target-positions 20"
BART = f"{expand_checkpoints.ENCODER} {expand_checkpoints.DECODER} --arch bart_base"
SEQ2SEQ = {
    "bart_shared": f"--task translation --source-lang de --target-lang en {BART}",
    "bart_denoising": f"--task denoising --criterion cross_entropy {BART}",
}
#: variant of `tupe` in small_models -> the flags that say it
VARIANTS = {
    variant: " ".join(
        f"--{name.replace('_', '-')}" + (f" {value}" if value is not True else "")
        for name, value in options.items()
        if name != "attention_kernel"
    )
    for variant, options in ARCHITECTURES["tupe"].variants.items()
}


def checkpoint_of(folder, arch="tupe_tiny", flags="--rel-pos", task=MLM, **options):
    """Make an encoder of two layers, see `expand_checkpoints.make`."""
    folder.mkdir(exist_ok=True)
    line = f"{task} --arch {arch} --max-positions 12 {SIZES}"
    with mock.patch.dict(expand_checkpoints.FAMILIES, {"exported": line}):
        return expand_checkpoints.make(folder, "exported", flags=flags, **options)


def seq2seq_checkpoint(folder, family, flags="", positions=POSITIONS, **options):
    """Make a checkpoint of a family of `expand_checkpoints` or of BART."""
    folder.mkdir(exist_ok=True)
    with mock.patch.dict(expand_checkpoints.FAMILIES, SEQ2SEQ):
        return expand_checkpoints.make(folder, family, flags=f"{positions} {flags}", **options)


def trained(folder, arch="tupe_tiny", flags="--rel-pos", **options) -> Trained:
    """Open a checkpoint with parameters that are all different, in double precision."""
    checkpoint = checkpoint_of(folder, arch, flags, **options)
    original = open_trained(checkpoint.path, checkpoint.dictionary)
    randomise(original.model, 0)
    return original


def write(model, folder, **options):
    """Write the tokenizer of a model's export."""
    folder.mkdir()
    tokenizers.choose_tokenizer(ExportRequest("c.pt", "out", **options), model).write(folder)


def load(folder):
    """Open an exported tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=True)


def hub_of(checkpoint, model=TupeModel, **options):
    """Open a checkpoint by `from_pretrained`."""
    return model.from_pretrained(str(checkpoint.folder), "c.pt", str(checkpoint.folder / "data"), **options)


def ids_of(dictionary, line, before=()):
    """Return fairseq's ids of a line of symbols."""
    return [*before, *dictionary.encode_line(line, add_if_not_exist=False).tolist()]


@functools.cache
def exported_code():
    """Return (configuration_tupe, modeling_tupe) as in an exported folder."""
    package = Path(tempfile.mkdtemp()) / "exported_tupe"
    package.mkdir()
    for name, text in {**code_files(*TUPE.code), "__init__.py": ""}.items():
        (package / name).write_text(text)
    sys.path.insert(0, str(package.parent))
    return tuple(importlib.import_module(f"exported_tupe.{name}_tupe") for name in ("configuration", "modeling"))


def exported(original: Trained, kernel="sdpa"):
    """Return the exported model with the weights of the trained one; no name is missing and none is left."""
    configurations, models = exported_code()
    config = configurations.TupeConfig(**configuration(original, "float64"), attn_implementation=kernel)
    model = getattr(models, config.architectures[0])(config).double()
    missing, unexpected = model.load_state_dict(TUPE.weights(original), strict=False)
    assert (missing, unexpected) == ([name for name in ("lm_head.decoder.weight",) if name in model.state_dict()], [])
    return model.eval()


@pytest.fixture
def opened_here(monkeypatch):
    """Let `export-hf` open its result in this process."""
    monkeypatch.setattr(verify_export.subprocess, "run", read_back_here)


def export_hf(checkpoint, *more):
    """Run the command and return its exit code."""
    words = ["export-hf", "--checkpoint", checkpoint.path, "--output", checkpoint.output]
    return main(expand_checkpoints.replaced(words, *more))


def refused(capsys, checkpoint, *flags, code=2) -> str:
    """Return the last line of a call that writes nothing."""
    assert export_hf(checkpoint, *flags) == code
    assert not checkpoint.output.exists()
    assert not list(checkpoint.folder.glob(".*.tmp"))
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("embinit export-hf: error: ")
    return error


def read_back_here(command, **_):
    """Stand in for `subprocess.run` in `interop.verify_export`: run the program of the other process in this one.

    This takes a tenth of the time. Modules that the program hides from itself are restored afterwards, and so is
    subword-nmt, which the other process imports without fixes of fairseq_compat.
    """
    _, program, inputs = command
    names = ["fairseq", "fairseq_cli", "fairseq_compat", "embinit_fairseq"]
    absent = [name for name in sys.modules if name.startswith(("fairseq_compat.", "subword_nmt.apply_bpe"))]
    hidden, finders = {name: sys.modules.get(name) for name in (*names, *absent)}, [*sys.meta_path]
    for name in absent:
        del sys.modules[name]
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]  # or the classes of an earlier export were taken
    output, error = io.StringIO(), ""
    try:
        with mock.patch.object(sys, "argv", [program, inputs]), contextlib.redirect_stdout(output):
            runpy.run_path(program, run_name="__main__")
    except Exception:
        error = traceback.format_exc()
    finally:
        sys.meta_path[:] = finders
        for name, module in hidden.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
    return subprocess.CompletedProcess(command, int(bool(error)), output.getvalue(), error)
