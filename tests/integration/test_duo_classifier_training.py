"""`--arch duo_classifier` with frozen vectors: both criterions, attention, what is trained on request, continuing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pre_training import train_command

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.models.duo_classifier import DuoClassifier

WORDS = ["good", "bad", *(f"w{number}" for number in range(10))]
PAIRS = "--task sentence_prediction --num-classes 2 --separator-token 2".split()
pytestmark = pytest.mark.end_to_end


@pytest.fixture
def vectors(tmp_path):
    """Two files of 5 and 8 dimensions: dimension -> (path, word -> vector)."""
    generator, found = np.random.default_rng(1), {}
    for dim in (5, 8):
        rows = {word: generator.normal(0, 0.4, dim).round(4).astype(np.float32) for word in WORDS}
        found[dim] = tmp_path / f"{dim}.txt", rows
        found[dim][0].write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows.items()))
    return found


@pytest.fixture
def train(sentiment, vectors, here, tmp_path):
    """A function: flags -> the model in Python after the training."""
    sizes = """--arch duo_classifier --encoder-dim-s 5 --encoder-dim-p 8 --duo-ffn-dim 16 --batch-size 24 --cpu
        --optimizer adam --lr 0.02 --max-epoch 1 --no-epoch-checkpoints --num-workers 0 --log-format json""".split()
    init = ["--embed-init", "pretrained", "--embed-init-path", f"encoder={vectors[5][0]}", f"encoder_p={vectors[8][0]}"]

    def run(*flags):
        here(train_command(sentiment / "bin", *PAIRS, *sizes, *init, "--save-dir", tmp_path, *flags))
        return DuoClassifier.from_pretrained(str(tmp_path), "checkpoint_last.pt", data=str(sentiment / "bin"))

    return run


def unmoved(hub, vectors):
    """Dimension -> the words that have the vector of the file."""
    index, found = hub.task.source_dictionary.index, {}
    for matrix in (hub.model.embed_tokens, hub.model.embed_tokens_p):
        dim, weight = matrix.weight.shape[1], matrix.weight.detach().numpy()
        found[dim] = [word for word, row in vectors[dim][1].items() if np.array_equal(weight[index(word)], row)]
        assert not weight[hub.task.source_dictionary.pad()].any()
    return found


def test_frozen_vectors_stay_and_attention_is_by_the_queries_that_were_learned(train, vectors, tmp_path):
    """The attention to a symbol is the softmax of the products of its two vectors with the two queries."""
    hub = train("--criterion", "sentence_prediction_metrics")
    assert unmoved(hub, vectors) == {5: WORDS, 8: WORDS}
    moments = load_checkpoint(tmp_path / "checkpoint_last.pt")["last_optimizer_state"]["state"]
    assert {tuple(moment["exp_avg"].shape) for moment in moments.values()} == {(5,), (8,), (16, 13), (2, 16)}
    found = hub.attention("w1 good unheard", "w2")
    assert [symbol for symbol, *_ in found] == ["w1", "good", "<unk>", "</s>", "</s>", "w2", "</s>"]
    model, ids = hub.model, [hub.task.source_dictionary.index(symbol) for symbol, *_ in found]
    tables = {"query_s": model.embed_tokens, "query_p": model.embed_tokens_p}
    for column, (query, table) in enumerate(tables.items(), 1):
        shares = (table.weight[ids] @ model.state_dict()[f"sentence_embedding.{query}"]).softmax(0)
        assert [row[column] for row in found] == pytest.approx(shares.tolist(), rel=1e-5)


def test_matrices_are_trained_on_request_known_rows_may_stay_and_continuing_needs_no_vectors(train, vectors, tmp_path):
    flags = "--criterion sentence_prediction --train-embeddings --weight-decay 0.1 --embed-init-freeze encoder:known"
    hub = train(*flags.split())
    assert json.loads((tmp_path / "embed_init.json").read_text())["slots"]["encoder"]["freeze"] == "encoder:known"
    assert unmoved(hub, vectors) == {5: WORDS, 8: []}
    for path, _ in vectors.values():
        path.unlink()
    assert unmoved(train(*flags.split(), "--max-epoch", "2"), vectors) == {5: WORDS, 8: []}
    assert load_checkpoint(tmp_path / "checkpoint_last.pt")["extra_state"]["train_iterator"]["epoch"] == 3
