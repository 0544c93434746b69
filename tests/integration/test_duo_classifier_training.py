"""`--arch duo_classifier` with frozen vectors: both criterions, attention, what is trained on request, continuing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pre_training import train_command, validated

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import DimensionError, OptionError
from embinit_fairseq.models.duo_classifier import DuoClassifier

WORDS = ["good", "bad", *(f"w{number}" for number in range(10))]
PAIRS = "--task sentence_prediction --num-classes 2 --separator-token 2".split()
METRICS = "--criterion sentence_prediction_metrics --glue-metrics accuracy mcc".split()
PLAIN = ["--criterion", "sentence_prediction"]
pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Two files of 5 and 8 dimensions: dimension -> (path, word -> vector)."""
    folder, generator, found = tmp_path_factory.mktemp("vectors"), np.random.default_rng(1), {}
    for dim in (5, 8):
        rows = {word: generator.normal(0, 0.4, dim).round(4).astype(np.float32) for word in WORDS}
        path = folder / f"{dim}.txt"
        path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows.items()))
        found[dim] = path, rows
    return found


@pytest.fixture
def train(sentiment, vectors, here):
    """A function: folder, flags -> the model in Python after the training."""
    sizes = """--arch duo_classifier --encoder-dim-s 5 --encoder-dim-p 8 --duo-ffn-dim 16 --batch-size 24 --cpu
        --optimizer adam --lr 0.02 --max-epoch 8 --no-epoch-checkpoints --num-workers 0 --log-format json""".split()
    paths = ["--embed-init-path", f"encoder={vectors[5][0]}", f"encoder_p={vectors[8][0]}"]

    def run(folder, *flags):
        init = ["--embed-init", "pretrained", *paths]
        here(train_command(sentiment / "bin", *PAIRS, *sizes, *init, "--save-dir", folder, *flags))
        return DuoClassifier.from_pretrained(str(folder), "checkpoint_last.pt", data=str(sentiment / "bin"))

    return run


def matrices(hub):
    return hub.model.embed_tokens, hub.model.embed_tokens_p


def unmoved(hub, vectors):
    """Dimension -> the words that have the vector of the file."""
    index = hub.task.source_dictionary.index
    return {
        matrix.weight.shape[1]: [
            word
            for word, row in vectors[matrix.weight.shape[1]][1].items()
            if np.array_equal(matrix.weight[index(word)].detach().numpy(), row)
        ]
        for matrix in matrices(hub)
    }


def test_it_learns_from_frozen_vectors_and_says_what_counts(train, sentiment, vectors, tmp_path):
    hub = train(tmp_path, *METRICS)
    lines = list(zip(*((sentiment / f"valid.{c}").read_text().splitlines() for c in ("input0", "input1", "label"))))
    right = sum(max(found, key=found.get) == label for *pair, label in lines for found in [hub.predict(*pair)])
    assert right >= 54, right  # of 60
    said = validated(sentiment / "bin", tmp_path / "checkpoint_last.pt", *PAIRS, *METRICS)
    assert said["accuracy"] == pytest.approx(100 * right / 60, abs=0.06)
    assert said["mcc"] > 0.8
    assert unmoved(hub, vectors) == {5: WORDS, 8: WORDS}
    assert not any(matrix.weight[hub.task.source_dictionary.pad()].any() for matrix in matrices(hub))
    moments = load_checkpoint(tmp_path / "checkpoint_last.pt")["last_optimizer_state"]["state"]
    assert {tuple(moment["exp_avg"].shape) for moment in moments.values()} == {(5,), (8,), (16, 13), (2, 16)}

    found = hub.attention("w1 good unheard", "w2")
    assert [symbol for symbol, *_ in found] == ["w1", "good", "<unk>", "</s>", "</s>", "w2", "</s>"]
    for column in (1, 2):
        assert sum(row[column] for row in found) == pytest.approx(1, abs=1e-6)
        assert max(found, key=lambda row: row[column])[0] == "good"


def test_matrices_are_trained_on_request_and_known_rows_may_stay(train, vectors, tmp_path):
    flags = ["--train-embeddings", "--weight-decay", "0.1", "--max-epoch", "1"]
    hub = train(tmp_path, *PLAIN, *flags, "--embed-init-freeze", "encoder:known")
    assert json.loads((tmp_path / "embed_init.json").read_text())["slots"]["encoder"]["freeze"] == "encoder:known"
    assert unmoved(hub, vectors) == {5: WORDS, 8: []}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (["--encoder-dim-p", "9"], DimensionError, "8 dimensions, expected 9.*--encoder-dim-p"),
        (["--embed-init-freeze", "encoder:known"], OptionError, "--train-embeddings"),
    ],
)
def test_options_that_cannot_work_end_before_training(options, error, message, train, tmp_path):
    with pytest.raises(error, match=message):
        train(tmp_path, *PLAIN, *options)
    assert not list(tmp_path.glob("*.pt"))


def test_continuing_needs_no_vectors_and_the_same_options(train, vectors, tmp_path):
    train(tmp_path, *PLAIN, "--max-epoch", "1")
    for path, _ in vectors.values():
        path.rename(path.with_suffix(".away"))
    try:
        train(tmp_path, *PLAIN, "--max-epoch", "2")
        with pytest.raises(OptionError, match=r"--duo-attention softmax \(here linear\)"):
            train(tmp_path, *PLAIN, "--max-epoch", "3", "--duo-attention", "linear")
    finally:
        for path, _ in vectors.values():
            path.with_suffix(".away").rename(path)
    assert load_checkpoint(tmp_path / "checkpoint_last.pt")["extra_state"]["train_iterator"]["epoch"] == 3
