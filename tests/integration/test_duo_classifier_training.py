"""`--arch duo_classifier` through fairseq's commands: pairs, both criterions, frozen tables, kill -9 and resume, two
processes, use from Python."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from pre_training import assert_two_processes_equal_one
from programs import PYTHON
from trainings import SAVE_OFTEN, kill_9_and_resume

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import DimensionError, OptionError
from embinit_fairseq.models.duo_classifier import DuoClassifier

USER_DIR = Path(__file__).resolve().parents[2] / "embinit_fairseq"
WORDS = ["good", "bad", *(f"w{number}" for number in range(10))]

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Two files of 5 and 8 dimensions: dimension -> (path, word -> vector)."""
    folder, generator, found = tmp_path_factory.mktemp("vectors"), np.random.default_rng(1), {}
    for dim in (5, 8):
        rows = {word: generator.normal(0, 0.4, dim).round(4) for word in WORDS}
        path = folder / f"{dim}.txt"
        path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows.items()))
        found[dim] = path, rows
    return found


@pytest.fixture
def options_of(sentiment, vectors):
    """Program -> its options for this data and these vectors."""
    both = f"""{sentiment / "bin"} --user-dir {USER_DIR} --task sentence_prediction --num-classes 2
        --separator-token 2 --batch-size 24 --cpu --log-format json"""
    train = f"""--arch duo_classifier --encoder-dim-s 5 --encoder-dim-p 8 --duo-ffn-dim 16
        --optimizer adam --lr 0.02 --max-epoch 8 --no-epoch-checkpoints
        --embed-init pretrained --embed-init-path encoder={vectors[5][0]} encoder_p={vectors[8][0]}"""
    return {"train": [*both.split(), *train.split()], "validate": both.split()}


@pytest.fixture
def command(options_of, monkeypatch):
    """A function that calls a command of fairseq."""

    def call(program, save_dir, *options):
        place = ["--save-dir", save_dir] if program == "train" else ["--path", save_dir / "checkpoint_best.pt"]
        monkeypatch.setattr(sys, "argv", [program, *options_of[program], *map(str, place), *options])
        __import__(f"fairseq_cli.{program}")
        sys.modules[f"fairseq_cli.{program}"].cli_main()

    return call


CRITERIONS = {
    "sentence_prediction": ["--criterion", "sentence_prediction"],
    "sentence_prediction_metrics": ["--criterion", "sentence_prediction_metrics", "--glue-metrics", "accuracy", "mcc"],
}
BEST = ["--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric"]


@pytest.mark.parametrize("criterion", CRITERIONS)
def test_it_learns_from_frozen_vectors_and_is_used_from_python(
    criterion, command, sentiment, vectors, tmp_path, capfd, caplog
):
    command("train", tmp_path, *CRITERIONS[criterion], *BEST)
    hub = DuoClassifier.from_pretrained(str(tmp_path), "checkpoint_best.pt", data=str(sentiment / "bin"))
    lines = list(zip(*((sentiment / f"valid.{c}").read_text().splitlines() for c in ("input0", "input1", "label"))))
    right = sum(max(found, key=found.get) == label for *pair, label in lines for found in [hub.predict(*pair)])
    assert right >= 54, right  # of 60
    for table, dim in ((hub.model.embed_tokens, 5), (hub.model.embed_tokens_p, 8)):
        for word, row in vectors[dim][1].items():
            found = table.weight[hub.task.source_dictionary.index(word)].detach().numpy()
            np.testing.assert_array_equal(found, row.astype(np.float32))
        assert not table.weight[hub.task.source_dictionary.pad()].any()
    state = load_checkpoint(tmp_path / "checkpoint_last.pt")
    moments = state["last_optimizer_state"]["state"]
    assert {tuple(moment["exp_avg"].shape) for moment in moments.values()} == {(5,), (8,), (16, 13), (2, 16)}
    caplog.clear()
    capfd.readouterr()
    command("validate", tmp_path, *CRITERIONS[criterion], "--log-interval", "1000")
    said = re.findall(r'"valid_accuracy": "([0-9.]+)"', capfd.readouterr().out + caplog.text)
    assert float(said[-1]) == pytest.approx(100 * right / 60, abs=0.06)


def test_attention_says_what_counts(command, sentiment, tmp_path):
    command("train", tmp_path, "--criterion", "sentence_prediction")
    hub = DuoClassifier.from_pretrained(str(tmp_path), "checkpoint_best.pt", data=str(sentiment / "bin"))
    found = hub.attention("w1 good unheard", "w2")
    assert [symbol for symbol, *_ in found] == ["w1", "good", "<unk>", "</s>", "</s>", "w2", "</s>"]
    for column in (1, 2):
        assert sum(row[column] for row in found) == pytest.approx(1, abs=1e-6)
        assert max(found, key=lambda row: row[column])[0] == "good"
    table, query = hub.model.embed_tokens.weight.detach(), hub.model.sentence_embedding.query_s.detach()
    scores = table[[hub.task.source_dictionary.index(symbol) for symbol, *_ in found]] @ query
    np.testing.assert_allclose([row[1] for row in found], scores.softmax(0), rtol=1e-4)


def test_tables_are_trained_on_request_and_known_rows_may_stay(command, vectors, sentiment, tmp_path):
    options = ["--criterion", "sentence_prediction", "--train-embeddings", "--weight-decay", "0.1"]
    command("train", tmp_path, *options, "--embed-init-freeze", "encoder:known")
    hub = DuoClassifier.from_pretrained(str(tmp_path), "checkpoint_last.pt", data=str(sentiment / "bin"))
    record = json.loads((tmp_path / "embed_init.json").read_text())["slots"]
    assert record["encoder"]["freeze"] == "encoder:known"
    index = hub.task.source_dictionary.index
    moved = {
        dim: [
            not np.array_equal(table.weight[index(word)].detach().numpy(), row.astype(np.float32))
            for word, row in vectors[dim][1].items()
        ]
        for dim, table in ((5, hub.model.embed_tokens), (8, hub.model.embed_tokens_p))
    }
    assert not any(moved[5])
    assert all(moved[8])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (["--encoder-dim-p", "9"], DimensionError, "8 dimensions, expected 9.*--encoder-dim-p"),
        (["--embed-init-freeze", "encoder:known"], OptionError, "--train-embeddings"),
        (["--duo-ffn-dim", "0"], OptionError, "--duo-ffn-dim 0: must be at least 1"),
    ],
)
def test_options_that_cannot_work_end_before_training(options, error, message, command, tmp_path):
    with pytest.raises(error, match=message):
        command("train", tmp_path, "--criterion", "sentence_prediction", *options)
    assert not list(tmp_path.glob("*.pt"))


def test_continuing_needs_no_vectors_and_the_same_options(command, vectors, tmp_path, monkeypatch):
    options = ["--criterion", "sentence_prediction"]
    command("train", tmp_path, *options, "--max-epoch", "2")
    for path, _ in vectors.values():
        path.rename(path.with_suffix(".away"))
    try:
        command("train", tmp_path, *options, "--max-epoch", "3")
        with pytest.raises(OptionError, match=r"--duo-attention softmax \(here linear\)"):
            command("train", tmp_path, *options, "--max-epoch", "4", "--duo-attention", "linear")
    finally:
        for path, _ in vectors.values():
            path.with_suffix(".away").rename(path)
    state = load_checkpoint(tmp_path / "checkpoint_last.pt")
    assert state["extra_state"]["train_iterator"]["epoch"] == 4


@pytest.fixture
def training(options_of):
    """fairseq-train as a program of its own, with a log of every update."""
    words = [*options_of["train"], "--criterion", "sentence_prediction", "--log-interval", "1", "--num-workers", "0"]
    return [PYTHON, "-m", "fairseq_cli.train", *words]


def test_kill_9_and_resume_gives_the_same_losses(training, tmp_path):
    arguments = [*training, "--dropout", "0.3", "--max-epoch", "6", *SAVE_OFTEN]
    assert ("valid", "60") in kill_9_and_resume(arguments, tmp_path, at_update=14)


def test_two_processes_equal_one_with_twice_the_update_freq(training, tmp_path):
    flags = ["--train-embeddings", "--dropout", "0", "--max-epoch", "2"]
    flags += ["--batch-size", "12", "--required-batch-size-multiple", "1"]
    assert_two_processes_equal_one([*training, *flags], tmp_path)
