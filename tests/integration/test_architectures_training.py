"""One contract for all architectures through real fairseq commands. One training of each is shared by all tests."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from pre_training import (
    ARCHITECTURES,
    WORDS,
    generated,
    in_two_processes,
    ladder,
    lines,
    pairs,
    reversed_words,
    validated,
    validations,
)
from trainings import SAVE_OFTEN, killed_and_resumed, losses, model_of, run_to_end, same

from embinit_fairseq.cli import doctor

pytestmark = pytest.mark.end_to_end
SENTENCES = "--task sentence_prediction --criterion sentence_prediction --num-classes 2 --separator-token 2".split()
MASKED = [name for name, one in ARCHITECTURES.items() if "masked_lm" in one.flags]
TRANSLATORS = [name for name, one in ARCHITECTURES.items() if one.data is reversed_words]
CLASSIFIERS = [name for name, one in ARCHITECTURES.items() if one.data is pairs]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_learns(name, trained):
    architecture = ARCHITECTURES[name]
    seen = [values[architecture.metric] for values in validations(trained(name).log)]
    assert len(seen) == architecture.epochs / 3
    assert any(map(architecture.learned, seen)), seen


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_killed_and_resumed_is_uninterrupted(name, trained, tmp_path):
    """Every loss after the kill, and every bit of the model at the end of the third epoch."""
    run = trained(name)
    flags = ["--max-epoch", "3", "--save-interval", "3", *SAVE_OFTEN, "--save-dir", tmp_path]
    rest = killed_and_resumed(ARCHITECTURES[name].command(run.data, *flags), at_update=14)
    whole = losses(run.log)
    trainings = {key: loss for key, loss in rest.items() if key[0] == "train"}
    assert len(trainings) >= 14
    assert all(whole[key] == loss for key, loss in trainings.items())
    assert same(model_of(run.folder / "checkpoint3.pt"), model_of(tmp_path / "checkpoint_last.pt"))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_two_processes_equal_one_with_twice_the_update_freq(name, trained, tmp_path):
    """Plain gradient descent: Adam would make steps of the rounding of gradients that are zero."""
    architecture, data = ARCHITECTURES[name], trained(name).data
    flags = "--batch-size 12 --optimizer sgd --lr 0.1 --clip-norm 1 --max-epoch 1".split()
    flags += architecture.no_dropout.split()
    one = run_to_end(architecture.command(data, *flags, "--update-freq", "2", "--save-dir", tmp_path / "one"))
    two = [*flags, "--ddp-backend", architecture.ddp, "--save-dir", tmp_path / "two"]
    both = in_two_processes(architecture.command(data, *two), tmp_path / "store")
    expected, got = validations(one), validations(both)
    assert len(expected) == len(got) == 1
    for values, others in zip(expected, got):
        for metric in values.keys() - {"wps", "ups", "wpb", "bsz"}:
            assert values[metric] == pytest.approx(others[metric], abs=2e-3 + 1e-6), metric  # printed with 3 digits
    expected, got = losses(one), losses(both)
    assert set(expected) == set(got)
    assert len(got) >= 10
    assert all(abs(float(expected[key]) - float(got[key])) <= 2e-3 + 1e-6 for key in expected)
    models = [model_of(tmp_path / run / "checkpoint_last.pt") for run in ("one", "two")]
    for parameter, value in models[0].items():
        torch.testing.assert_close(models[1][parameter], value, rtol=1e-4, atol=1e-6, msg=parameter)


@pytest.mark.parametrize("name", MASKED)
def test_masks_are_filled_from_python(name, trained):
    run = trained(name)
    hub = ARCHITECTURES[name].model.from_pretrained(str(run.folder), "checkpoint_best.pt", str(run.data / "text"))
    assert hub.extract_features(hub.encode("w1 w2 w3")).shape == (1, 5, 16)
    right = 0
    for start in range(WORDS):
        words = ladder(start, 1).split() if name == "tupe" else [f"w{start}"] * 8
        (text, probability, token), *others = hub.fill_mask(" ".join([*words[:3], "<mask>", *words[4:]]), topk=4)
        assert text == " ".join([*words[:3], token, *words[4:]])
        assert len(others) == 3
        assert 1 >= probability > others[0][1] > 0
        right += token == words[3]
    assert right > (WORDS / 2 if name == "tupe" else 1)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_validate_and_python_count_the_same(name, trained):
    run = trained(name)
    model = ARCHITECTURES[name].model.from_pretrained(str(run.folder), "checkpoint_best.pt", data=str(run.data / "bin"))
    columns = ((run.data / f"valid.{column}").read_text().splitlines() for column in ("input0", "input1", "label"))
    rows = list(zip(*columns))
    right = sum(max(found, key=found.get) == label for *pair, label in rows for found in [model.predict(*pair)])
    assert right > 54, right  # of 60
    flags = [*SENTENCES, *(["--init-token", "0"] if "--init-token" in ARCHITECTURES[name].flags else [])]
    accuracy = validated(run.data / "bin", run.folder / "checkpoint_best.pt", *flags)["accuracy"]
    assert accuracy == pytest.approx(100 * right / 60, abs=0.051)  # logged with one decimal


@pytest.fixture(scope="module")
def first(trained):
    """Name of an architecture -> what fairseq-generate prints for its training."""

    @functools.cache
    def generate(name):
        run = trained(name)
        return generated(run.data / "text", run.folder / "checkpoint_last.pt", "--print-alignment", "hard")

    return generate


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translations_do_not_depend_on_batches_and_their_padding(name, trained, first):
    run = trained(name)
    data, checkpoint = run.data / "text", run.folder / "checkpoint_last.pt"
    bleu = re.search(r"Generate test with beam=4: BLEU4 = ([\d.]+),", first(name))
    assert float(bleu[1]) > 40
    expected = lines(first(name), "H")
    assert len(expected) == 40
    outputs = [  # --left-pad-source is fairseq's flag for padding on the right
        generated(data, checkpoint, "--left-pad-source", "--left-pad-target", "--print-alignment", "hard"),
        generated(data, checkpoint, "--batch-size", "1"),
    ]
    for output in outputs:
        assert bleu[0] in output
        for number, (score, text) in lines(output, "H").items():
            assert text == expected[number][1]
            assert float(score) == pytest.approx(float(expected[number][0]), abs=1e-5)
    aligned(first(name), reversed_order=name == "tupe_transformer")
    aligned(outputs[0], reversed_order=name == "tupe_transformer")


def aligned(output, reversed_order):
    """Each word of the output has one of the source; in reversed order most pairs lie on the other diagonal."""
    sizes = {number: len(fields[0].split()) for number, fields in lines(output, "S").items()}
    words = {number: len(fields[1].split()) for number, fields in lines(output, "H").items()}
    hits = []
    for number, (said,) in lines(output, "A").items():
        found = [tuple(map(int, pair.split("-"))) for pair in said.split()]
        assert [target for _, target in found] == list(range(words[number]))
        assert all(source < sizes[number] for source, _ in found)
        hits += [source + target == sizes[number] - 1 for source, target in found]
    assert not reversed_order or sum(hits) / len(hits) > 0.5


@pytest.mark.parametrize("name", TRANSLATORS)
def test_python_and_interactive_say_what_generate_says(name, trained, first):
    """In batches and buffers of other sizes."""
    run = trained(name)
    data, checkpoint = run.data / "text", run.folder / "checkpoint_last.pt"
    expected = {number: text for number, (_, text) in lines(first(name), "H").items()}
    flags = ["--buffer-size", "7", "--batch-size", "5", "--input", run.data / "test.de"]
    said = lines(generated(data, checkpoint, *flags, program="interactive"), "H")
    assert {number: text for number, (_, text) in said.items()} == expected
    hub = ARCHITECTURES[name].model.from_pretrained(str(run.folder), checkpoint.name, str(data))
    sentences = (run.data / "test.de").read_text().splitlines()
    assert hub.translate(sentences, beam=4) == [expected[number] for number in range(40)]


def test_the_doctor_makes_a_step_with_every_family():
    tasks = {
        "masked_lm": ["tupe_tiny", "bert_a_tiny", "bert_r_tiny", "bert_ad_tiny"],
        "translation": ["duo_transformer_tiny", "duo_transformer_iwslt_de_en"],
    }
    findings = doctor.steps([arch for archs in tasks.values() for arch in archs])
    expected = [("ok", task) for task, archs in tasks.items() for _ in archs]
    assert [(finding.status, finding.detail.split(",")[0]) for finding in findings] == expected
