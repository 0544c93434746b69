"""Architectures through real fairseq commands: what only a training, its log and its checkpoint show.

What each of them computes is stated in tests/unit. What is trained here is tiny: a start costs more than its updates.
"""

import functools
import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from programs import PYTHON
from trainings import (
    PLUGIN,
    SAVE_OFTEN,
    binarise,
    in_two_processes,
    killed_and_resumed,
    losses,
    model_of,
    run_to_end,
    same,
    train_command,
)

from embinit_fairseq.models.duo_transformer import DuoTransformerModel
from embinit_fairseq.models.embinit_classifier import EmbinitClassifier
from embinit_fairseq.models.tupe import TupeModel

pytestmark = pytest.mark.end_to_end
WORDS = 12
# Batches are made in the main thread: fairseq's thread that reads ahead would draw masks at the same time.
TRAINING = """--optimizer adam --batch-size 40 --required-batch-size-multiple 1 --cpu --log-format json
    --log-interval 1 --num-workers 0 --data-buffer-size 0""".split()
NO_DROPOUT = "--dropout 0 --attention-dropout 0".split()
SENTENCES = """--task sentence_prediction --criterion sentence_prediction --num-classes 2 --separator-token 2
    --init-token 0""".split()


def write(folder, split, **columns):
    for name, rows in columns.items():
        (folder / f"{split}.{name}").write_text("".join(f"{row}\n" for row in rows))


def ladders(folder):
    """Sentences that count up or down, w3 w4 w5 ... or w3 w2 w1 ..., to pre-train on."""
    generator = np.random.default_rng(0)
    for split, size in (("train", 80), ("valid", 30)):
        steps = 2 * generator.integers(2, size=size) - 1
        rows = (generator.integers(WORDS, size=(size, 1)) + steps[:, None] * np.arange(7)) % WORDS
        write(folder, split, text=[" ".join(f"w{word}" for word in row) for row in rows])
    binarise(folder, folder / "bin", "text")


def reversed_words(folder):
    """2 to 6 words out of 12, English one word per German word in reversed order; one dictionary."""
    generator = np.random.default_rng(1)
    for split, sentences in (("train", 600), ("valid", 20), ("test", 20)):
        rows = [generator.integers(0, WORDS, size=generator.integers(2, 7)) for _ in range(sentences)]
        german = [" ".join(f"d{word}" for word in row) for row in rows]
        write(folder, split, de=german, en=[" ".join(f"e{word}" for word in row[::-1]) for row in rows])
    flags = ["-s", "de", "-t", "en", "--joined-dictionary"]
    binarise(folder, folder / "bin", "", *flags, splits=("train", "valid", "test"))


def pairs(folder):
    """Pairs of sentences whose label is whether the first holds `good`."""
    generator, words = np.random.default_rng(0), np.array(["good", "bad", *(f"w{i}" for i in range(12))])
    for split, size in (("train", 240), ("valid", 60)):
        first, second = (words[generator.integers(1, len(words), size=(size, length))].tolist() for length in (6, 3))
        labels = generator.integers(2, size=size)
        for row in np.flatnonzero(labels):
            first[row][generator.integers(6)] = "good"
        write(folder, split, input0=map(" ".join, first), input1=map(" ".join, second), label=labels)
    for column in ("input0", "input1", "label"):
        same = ["--srcdict", str(folder / "bin" / "input0" / "dict.txt")] if column == "input1" else []
        binarise(folder, folder / "bin" / column, column, *same)


class Architecture(NamedTuple):
    """What is trained: on which data (a function that writes them into a folder), with which flags."""

    data: Callable
    flags: str

    def command(self, folder, *flags):
        """fairseq-train on this data; flags given here win."""
        return train_command(folder / "bin", *TRAINING, *self.flags.split(), *flags)


ARCHITECTURES = {
    "electra": Architecture(
        ladders,
        """--task masked_lm --sample-break-mode eos --tokens-per-sample 32 --max-positions 32 --encoder-embed-dim 16
            --encoder-attention-heads 2 --arch electra_tupe_tiny --criterion electra --encoder-layers 1
            --encoder-ffn-embed-dim 64 --generator-layers 1 --generator-embed-dim 8 --generator-ffn-embed-dim 8
            --generator-attention-heads 2 --leave-unmasked-prob 0 --random-token-prob 0 --dropout 0 --lr 0.003
            --batch-size 10""",
    ),
    "duo_transformer": Architecture(
        reversed_words,
        """--task translation --arch duo_transformer_tiny --share-all-embeddings --lr 0.003
            --max-source-positions 16 --max-target-positions 16""",
    ),
    "tupe_transformer": Architecture(
        reversed_words,
        """--task translation --arch tupe_transformer --rel-pos --encoder-layers 1 --decoder-layers 1 --dropout 0.1
            --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-attention-heads 2 --decoder-attention-heads 2
            --lr 0.005 --batch-size 75""",
    ),
    "embinit_classifier": Architecture(
        pairs,
        """--task sentence_prediction --num-classes 2 --separator-token 2 --criterion sentence_prediction_metrics
            --glue-metrics accuracy mcc --best-checkpoint-metric mcc --maximize-best-checkpoint-metric
            --arch embinit_classifier --init-token 0 --encoder-embed-dim 8 --encoder-ffn-embed-dim 16
            --encoder-layers 1 --encoder-attention-heads 2 --batch-size 24 --lr 0.02""",
    ),
}


@pytest.fixture(scope="module")
def data_of(tmp_path_factory):
    """Name of an architecture -> the folder with its data, which those with the same function share."""
    folders = {}

    def of(name):
        write_data = ARCHITECTURES[name].data
        if write_data not in folders:
            folders[write_data] = tmp_path_factory.mktemp(write_data.__name__)
            write_data(folders[write_data])
        return folders[write_data]

    return of


@pytest.fixture(scope="module")
def trained(data_of, tmp_path_factory):
    """Name of an architecture -> its folder and log of a training of three epochs."""

    @functools.cache
    def training(name):
        run = tmp_path_factory.mktemp(name)
        flags = ["--save-interval", 3, "--validate-interval", 3, "--max-epoch", 3, "--save-dir", run]
        return run, run_to_end(ARCHITECTURES[name].command(data_of(name), *flags))

    return training


def validations(log):
    """Return the metrics of every validation in a log."""
    found = [line.partition("| valid | ")[2] for line in log.splitlines()]
    return [{k.removeprefix("valid_"): float(v) for k, v in json.loads(line).items()} for line in found if line]


@pytest.mark.parametrize("name", ["electra", "tupe_transformer", "embinit_classifier"])
def test_an_update_is_a_step_against_the_gradient(name, data_of, here, tmp_path):
    """The second update with the whole training set as batch; the gradient is computed again in double precision."""
    flags, rate = "--batch-size 1000 --optimizer sgd --max-epoch 2 --disable-validation".split(), 0.1
    here(ARCHITECTURES[name].command(data_of(name), *flags, *NO_DROPOUT, "--lr", rate, "--save-dir", tmp_path))
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "checkpoint1.pt")])
    task.load_dataset("train", epoch=2)
    data = task.dataset("train")
    data.set_epoch(2)  # masks are drawn per epoch, ELECTRA's replacements per update
    model.double().train().set_num_updates(1)
    loss, size, _ = task.build_criterion(cfg.criterion)(model, data.collater([data[at] for at in range(len(data))]))
    (loss / size).backward()
    after = model_of(tmp_path / "checkpoint2.pt")
    for parameter, value in model.named_parameters():
        step = (value.detach() - after[parameter]) / rate
        torch.testing.assert_close(step, value.grad, rtol=1e-3, atol=1e-5, msg=parameter)


def test_killed_and_resumed_is_uninterrupted(data_of, trained, tmp_path):
    """Every loss after the kill, and every bit of the model at the end of the third epoch.

    ELECTRA alone draws more than dropout. What checkpoints hold of the others: tests/unit/test_architectures.py.
    """
    run, log = trained("electra")
    whole = losses(log)
    flags = ["--max-epoch", "3", "--save-interval", "3", *SAVE_OFTEN, "--save-dir", tmp_path]
    rest = killed_and_resumed(ARCHITECTURES["electra"].command(data_of("electra"), *flags), at_update=14)
    trainings = {key: loss for key, loss in rest.items() if key[0] == "train"}
    assert len(trainings) >= 10
    assert all(whole[key] == loss for key, loss in trainings.items())
    assert same(*(model_of(folder / "checkpoint_last.pt") for folder in (run, tmp_path)))


def test_two_processes_equal_one_with_twice_the_update_freq(data_of, tmp_path):
    """Plain gradient descent: Adam would make steps of the rounding of gradients that are zero."""
    flags = [*"--batch-size 12 --optimizer sgd --lr 0.1 --clip-norm 1 --max-update 4".split(), *NO_DROPOUT]

    def command(run, *more):
        return ARCHITECTURES["electra"].command(data_of("electra"), *flags, *more, "--save-dir", tmp_path / run)

    one = run_to_end(command("one", "--update-freq", "2"))
    both = in_two_processes(command("two", "--ddp-backend", "legacy_ddp"), tmp_path / "store")
    for (values,), (others,) in ((validations(one), validations(both)), ([losses(one)], [losses(both)])):
        assert values.keys() == others.keys()
        assert len(values) >= 5
        for metric in values.keys() - {"wps", "ups", "wpb", "bsz"}:
            assert float(values[metric]) == pytest.approx(float(others[metric]), abs=2.1e-3), metric  # of 3 digits
    models = [model_of(tmp_path / run / "checkpoint_last.pt") for run in ("one", "two")]
    for parameter, value in models[0].items():
        torch.testing.assert_close(models[1][parameter], value, rtol=1e-4, atol=1e-6, msg=parameter)


def test_validate_and_python_count_the_same(data_of, trained):
    """For a pair of texts, with the best checkpoint (test_textcls_scripts.py has a text by itself)."""
    data, (run, _) = data_of("embinit_classifier"), trained("embinit_classifier")
    checkpoint = run / "checkpoint_best.pt"
    model = EmbinitClassifier.from_pretrained(str(run), checkpoint.name, data=str(data / "bin"))
    columns = ((data / f"valid.{column}").read_text().splitlines() for column in ("input0", "input1", "label"))
    chances = [(model.predict(*pair), label) for *pair, label in zip(*columns)]
    flags = ["--path", checkpoint, "--batch-size", "16", "--cpu", "--log-format", "json", *SENTENCES]
    log = run_to_end([PYTHON, "-m", "fairseq_cli.validate", data / "bin", *PLUGIN, *flags])
    right = sum(max(chance, key=chance.get) == label for chance, label in chances)
    assert validations(log)[-1]["accuracy"] == pytest.approx(100 * right / 60, abs=0.051)  # logged with one decimal
    bits = -sum(math.log2(chance[label]) for chance, label in chances) / 60
    assert validations(log)[-1]["loss"] == pytest.approx(bits, abs=6e-4)  # logged with three


def test_translations_are_the_same_in_all_batches_with_all_programs(data_of, trained):
    data, (run, _) = data_of("duo_transformer"), trained("duo_transformer")
    texts = data / "test.de"

    def translated(program, *flags):
        options = [*PLUGIN, "--path", run / "checkpoint_last.pt", "--beam", "4", "--cpu", *flags]
        return run_to_end([PYTHON, "-m", f"fairseq_cli.{program}", data / "bin", *map(str, options)])

    def lines(output, kind):
        """Number of the sentence -> the fields of its H, A, ... line."""
        found = (line.split("\t") for line in output.splitlines() if line.startswith(f"{kind}-"))
        return {int(first.removeprefix(f"{kind}-")): rest for first, *rest in found}

    first = translated("generate", "--print-alignment", "hard")
    expected = lines(first, "H")
    assert len(expected) == 20
    # --left-pad-source is fairseq's flag for padding on the right
    flags = ["--left-pad-source", "--left-pad-target", "--batch-size", "7", "--print-alignment", "hard"]
    output = translated("generate", *flags)
    assert lines(output, "A") == lines(first, "A")
    for number, (score, text) in lines(output, "H").items():
        assert text == expected[number][1]
        assert float(score) == pytest.approx(float(expected[number][0]), abs=1e-5)
    said = lines(translated("interactive", "--buffer-size", "7", "--batch-size", "5", "--input", texts), "H")
    assert {number: text for number, (_, text) in said.items()} == {n: text for n, (_, text) in expected.items()}
    hub = DuoTransformerModel.from_pretrained(str(run), "checkpoint_last.pt", str(data / "bin"))
    translations = hub.translate(texts.read_text().splitlines(), beam=4)
    assert translations == [expected[number][1] for number in range(20)]


def test_hydra_trains_a_model_by_its_name_which_python_uses(data_of, tmp_path):
    """Presets do not act there: every size is given. Sub-words in Python: words of the dictionary stay whole."""
    data = data_of("electra") / "bin"
    options = f"""common.user_dir={PLUGIN[1]} common.cpu=true task=masked_lm task.tokens_per_sample=32
        task.data={data} task.sample_break_mode=eos criterion=masked_lm optimizer=adam optimization.lr=[0.01]
        optimization.max_update=1 dataset.batch_size=20 dataset.num_workers=0 +model._name=tupe
        +model.rel_pos=true +model.encoder_layers=1 +model.encoder_embed_dim=8 +model.encoder_ffn_embed_dim=8
        +model.encoder_attention_heads=2 +model.max_positions=32"""
    hydra = [PYTHON, "-m", "fairseq_cli.hydra_train", *options.split()]
    done = subprocess.run(hydra, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    paths = str(tmp_path / "checkpoints"), "checkpoint_last.pt", str(data)
    weights = model_of(Path(*paths[:2]))
    assert weights["encoder.sentence_encoder.positions.relative.embed_buckets.weight"].shape == (33, 2)
    hub = TupeModel.from_pretrained(*paths)
    dictionary, pair = hub.task.source_dictionary, hub.encode("w1 w2", "w3")
    assert [dictionary[at] for at in pair] == ["<s>", "w1", "w2", "</s>", "</s>", "w3", "</s>"]
    assert hub.decode(hub.encode("w1 w2 w3")) == "w1 w2 w3"
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\n" + "".join(f"w {n}</w>\n" for n in range(10)))
    hub = TupeModel.from_pretrained(*paths, preparation="lowercase,bpe", bpe="subword_nmt", bpe_codes=str(codes))
    assert hub.encode("w1 w9").tolist() == [0, dictionary.index("w1"), dictionary.index("w9"), 2]
    assert hub.encode("w1 w99").tolist() == [0, dictionary.index("w1"), *[dictionary.unk()] * 3, 2]
    text, _, token = hub.fill_mask("w9 <mask> w2", topk=1)[0]
    assert text == f"w9 {token} w2"
