"""`embinit plot` on what fairseq-train wrote: the numbers are those of the model that fairseq loads from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from pre_training import MASKED_LM, TRAINING, train_command
from trainings import run_to_end

pytestmark = pytest.mark.end_to_end


def model_in(checkpoint):
    (model,), _ = checkpoint_utils.load_model_ensemble([str(checkpoint)])
    return model.double().eval()


@pytest.mark.parametrize(
    ("name", "part"), [("tupe", "encoder"), ("tupe_transformer", "encoder"), ("tupe_transformer", "decoder")]
)
def test_positions(name, part, trained, printed, tmp_path):
    checkpoint = trained(name).folder / "checkpoint_last.pt"
    call = ("plot", "positions", "--checkpoint", checkpoint, "--output", tmp_path / "p.png", "--length", 12)
    record, module = printed(*call, "--part", part), getattr(model_in(checkpoint), part)
    assert (record["encoding"], record["part"], record["causal"]) == ("TUPE-R", part, part == "decoder")
    scores = getattr(module, "sentence_encoder", module).positions.bias(12).detach().numpy()
    first = int(name == "tupe")  # behind [CLS]
    seen = np.tri(12, dtype=bool) if part == "decoder" else np.ones((12 - first, 12 - first), dtype=bool)
    expected = [head[first:, first:][seen].std() for head in scores]
    assert [head["std"] for head in record["heads"]] == pytest.approx(expected)
    if first:
        found = [(head["from_cls"], head["to_cls"]) for head in record["heads"]]
        assert np.array(found) == pytest.approx(np.stack([scores[:, 0, 0], scores[:, 1, 0]], axis=1))


def test_correlations_of_bert_a(trained, printed, tmp_path):
    data, checkpoint = trained("tupe").data / "text", tmp_path / "checkpoint_last.pt"
    flags = (
        "--arch bert_a_tiny --criterion masked_lm --encoder-layers 1 --encoder-ffn-embed-dim 8 --embedding-normalize"
    )
    flags += f" {MASKED_LM} --lr 0.01 --max-update 3 --disable-validation --no-epoch-checkpoints --save-dir {tmp_path}"
    run_to_end(train_command(data, *TRAINING, *flags.split()))
    words = "w1 w2 w3 unheard-of w4"
    call = ("plot", "correlations", "--checkpoint", checkpoint, "--dict", data / "dict.txt", "--head", 2)
    record = printed(*call, "--sentence", words, "--output", tmp_path / "p.png")
    assert (record["arch"], record["length"], record["unknown_words"]) == ("bert_a_tiny", 7, 1)
    model, caught = model_in(checkpoint), []
    tokens = [model.encoder.dictionary.index(word) for word in ["<s>", *words.split(), "</s>"]]
    attention = model.encoder.sentence_encoder.layers[0].self_attn
    attention.qkv_proj.register_forward_hook(lambda module, given, result: caught.append(result[0].detach()))
    model(torch.tensor([tokens]))
    logits = attention.scale * caught[0][:, 8:16] @ caught[0][:, 24:32].t()  # the second head's queries and keys
    assert sum(term["mean"] for term in record["terms"].values()) == pytest.approx(float(logits.mean()), rel=1e-6)
