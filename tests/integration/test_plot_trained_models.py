"""`embinit plot` on what fairseq-train wrote: the numbers are those of the model that fairseq loads from it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from programs import PYTHON

import embinit_fairseq

PACKAGE = Path(embinit_fairseq.__file__).parent  # its import makes the architectures known to fairseq
SMALL = ["--encoder-layers", "1", "--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8"]
SMALL += ["--encoder-attention-heads", "2", "--max-update", "3", "--optimizer", "adam", "--lr", "0.01", "--cpu"]

pytestmark = pytest.mark.end_to_end


def run(*command: object) -> str:
    done = subprocess.run([PYTHON, "-m", *map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train(data: Path, folder: Path, *flags: str):
    """(checkpoint, its model as fairseq loads it)."""
    output = ["--save-dir", folder, "--no-epoch-checkpoints", "--disable-validation"]
    run("fairseq_cli.train", data, "--user-dir", PACKAGE, *SMALL, *flags, *output)
    (model,), _ = checkpoint_utils.load_model_ensemble([str(folder / "checkpoint_last.pt")])
    return folder / "checkpoint_last.pt", model.double().eval()


def plot(picture: str, checkpoint: Path, *flags: object) -> dict:
    output = checkpoint.with_name("picture.png")
    record = run("embinit_fairseq.cli.main", "plot", picture, "--checkpoint", checkpoint, "--output", output, *flags)
    assert output.read_bytes().startswith(b"\x89PNG")
    return json.loads(record)


def masked_lm(arch: str, *flags: str) -> list[str]:
    task = ["--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", "16", "--batch-size", "8"]
    return ["--arch", arch, "--max-positions", "16", *task, *flags]


def test_positions_of_tupe_with_relative_ones(monolingual, tmp_path):
    checkpoint, model = train(monolingual, tmp_path, *masked_lm("tupe_tiny", "--rel-pos"))
    record = plot("positions", checkpoint, "--json")
    assert (record["arch"], record["encoding"], record["length"]) == ("tupe_tiny", "TUPE-R", 16)
    expected = model.encoder.sentence_encoder.positions.bias(16).detach().numpy()
    for head, scores in zip(record["heads"], expected):
        assert head["std"] == pytest.approx(scores[1:, 1:].std())
        assert (head["from_cls"], head["to_cls"]) == pytest.approx((scores[0, 0], scores[1, 0]))


def test_positions_of_a_translation_models_decoder(toy_translation, tmp_path):
    flags = ["--arch", "tupe_transformer_iwslt_de_en", "--rel-pos", "--rel-pos-bins", "8", "--max-rel-pos", "6"]
    flags += ["--task", "translation", "--max-source-positions", "10", "--max-target-positions", "12"]
    sizes = ["--decoder-layers", "1", "--decoder-attention-heads", "4", "--batch-size", "8"]
    checkpoint, model = train(toy_translation, tmp_path, *flags, *sizes)
    past = np.tri(12, dtype=bool)
    for part, module, seen in (("encoder", model.encoder, np.ones((10, 10), bool)), ("decoder", model.decoder, past)):
        record = plot("positions", checkpoint, "--json", "--part", part)
        assert (record["part"], record["causal"], record["length"]) == (part, part == "decoder", len(seen))
        expected = module.positions.bias(len(seen)).detach().numpy()
        assert [head["std"] for head in record["heads"]] == pytest.approx([scores[seen].std() for scores in expected])


def test_correlations_of_bert_a(monolingual, tmp_path):
    checkpoint, model = train(monolingual, tmp_path, *masked_lm("bert_a_tiny", "--embedding-normalize"))
    words = "d1 d2 d3 unheard-of d4"
    flags = ["--sentence", words, "--dict", monolingual / "dict.txt", "--head", "2", "--json"]
    record = plot("correlations", checkpoint, *flags)
    assert (record["arch"], record["length"], record["unknown_words"]) == ("bert_a_tiny", 7, 1)
    symbols = model.encoder.dictionary
    tokens = torch.tensor([[symbols.index(word) for word in ["<s>", *words.split(), "</s>"]]])
    attention, caught = model.encoder.sentence_encoder.layers[0].self_attn, []
    attention.qkv_proj.register_forward_hook(lambda module, given, result: caught.append(result[0].detach()))
    model(tokens)
    logits = attention.scale * caught[0][:, 4:8] @ caught[0][:, 12:16].t()  # the second head's queries and keys
    assert sum(term["mean"] for term in record["terms"].values()) == pytest.approx(float(logits.mean()), rel=1e-6)
