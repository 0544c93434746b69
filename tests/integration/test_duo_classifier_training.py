"""`--arch duo_classifier` with frozen vectors: they stay as in the file, and have no state in the optimizer."""

from __future__ import annotations

import numpy as np
import pytest
from pre_training import ARCHITECTURES

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.models.duo_classifier import DuoClassifier

WORDS = ["good", "bad", *(f"w{number}" for number in range(10))]
pytestmark = pytest.mark.end_to_end


@pytest.mark.parametrize("trained_too", [False, True])
def test_vectors_are_frozen_unless_they_are_to_be_trained(trained, trained_too, here, tmp_path):
    generator, vectors, paths = np.random.default_rng(1), {}, []
    for slot, dim in (("encoder", 5), ("encoder_p", 8)):
        vectors[slot] = generator.normal(0, 0.4, (len(WORDS), dim)).round(4).astype(np.float32)
        rows = (f"{word} {' '.join(map(str, row))}\n" for word, row in zip(WORDS, vectors[slot]))
        (tmp_path / f"{slot}.txt").write_text("".join(rows))
        paths.append(f"{slot}={tmp_path / slot}.txt")
    flags = ["--embed-init", "pretrained", "--embed-init-path", *paths, "--save-dir", tmp_path, "--max-epoch", "1"]
    flags += ["--train-embeddings", "--embed-init-freeze", "encoder:known"] if trained_too else []
    data = trained("duo_classifier").data
    here(ARCHITECTURES["duo_classifier"].command(data, *flags))
    hub = DuoClassifier.from_pretrained(str(tmp_path), "checkpoint_last.pt", data=str(data / "bin"))
    rows = [hub.task.source_dictionary.index(word) for word in WORDS]
    matrices = {"encoder": hub.model.embed_tokens, "encoder_p": hub.model.embed_tokens_p}
    unmoved = {slot: np.array_equal(matrices[slot].weight.detach()[rows], vectors[slot]) for slot in vectors}
    assert unmoved == {"encoder": True, "encoder_p": not trained_too}
    assert not any(matrix.weight[hub.task.source_dictionary.pad()].any() for matrix in matrices.values())
    moments = load_checkpoint(tmp_path / "checkpoint_last.pt")["last_optimizer_state"]["state"]
    assert len(moments) == (6 if trained_too else 4)
