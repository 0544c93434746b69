"""One contract for all architectures through real fairseq commands. One training of each is shared by all tests."""

import re

import pre_training as pre
import pytest
import torch
from pre_training import ARCHITECTURES, WORDS, in_two_processes, lines, validated, validations
from trainings import SAVE_OFTEN, killed_and_resumed, losses, model_of, run_to_end, same

pytestmark = pytest.mark.end_to_end
SENTENCES = "--task sentence_prediction --criterion sentence_prediction --num-classes 2 --separator-token 2".split()
MASKED, TRANSLATORS, CLASSIFIERS = (
    [name for name, one in ARCHITECTURES.items() if f"--task {task}" in one.flags]
    for task in ("masked_lm", "translation", "sentence_prediction")
)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_learns_and_killed_and_resumed_is_uninterrupted(name, trained, tmp_path):
    """Every loss after the kill, and every bit of the model at the end of the third epoch."""
    architecture, run = ARCHITECTURES[name], trained(name)
    seen = [values[architecture.metric] for values in validations(run.log)]
    assert len(seen) == architecture.epochs / 3
    assert any(map(architecture.learned, seen)), seen
    flags = ["--max-epoch", "3", "--save-interval", "3", *SAVE_OFTEN, "--save-dir", tmp_path]
    rest = killed_and_resumed(architecture.command(run.data, *flags), at_update=14)
    whole = losses(run.log)
    trainings = {key: loss for key, loss in rest.items() if key[0] == "train"}
    assert len(trainings) >= 14
    assert all(whole[key] == loss for key, loss in trainings.items())
    assert same(model_of(run.folder / "checkpoint3.pt"), model_of(tmp_path / "checkpoint_last.pt"))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_two_processes_equal_one_with_twice_the_update_freq(name, trained, tmp_path):
    """Plain gradient descent: Adam would make steps of the rounding of gradients that are zero."""
    architecture, data = ARCHITECTURES[name], trained(name).data
    flags = "--batch-size 12 --optimizer sgd --lr 0.1 --clip-norm 1 --max-update 6".split()
    flags += architecture.no_dropout.split()
    one = run_to_end(architecture.command(data, *flags, "--update-freq", "2", "--save-dir", tmp_path / "one"))
    two = architecture.command(data, *flags, "--ddp-backend", architecture.ddp, "--save-dir", tmp_path / "two")
    both = in_two_processes(two, tmp_path / "store")
    for (values,), (others,) in ((validations(one), validations(both)), ([losses(one)], [losses(both)])):
        assert values.keys() == others.keys()
        assert len(values) >= 6
        for metric in values.keys() - {"wps", "ups", "wpb", "bsz"}:
            assert float(values[metric]) == pytest.approx(float(others[metric]), abs=2.1e-3), metric  # of 3 digits
    models = [model_of(tmp_path / run / "checkpoint_last.pt") for run in ("one", "two")]
    for parameter, value in models[0].items():
        torch.testing.assert_close(models[1][parameter], value, rtol=1e-4, atol=1e-6, msg=parameter)


@pytest.mark.parametrize("name", MASKED)
def test_masks_are_filled_from_python(name, trained):
    run, right = trained(name), 0
    hub = ARCHITECTURES[name].model.from_pretrained(str(run.folder), "checkpoint_best.pt", str(run.data / "text"))
    for start in range(WORDS):
        words = [f"w{(start + at) % WORDS if name == 'tupe' else start}" for at in range(7)]
        (_, probability, token), *others = hub.fill_mask(" ".join([*words[:3], "<mask>", *words[4:]]), topk=4)
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


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translations_are_the_same_in_all_batches_with_all_programs(name, trained):
    run = trained(name)
    data, checkpoint = run.data / "text", run.folder / "checkpoint_last.pt"
    first = pre.generated(data, checkpoint, "--print-alignment", "hard")
    bleu = re.search(r"Generate test with beam=4: BLEU4 = ([\d.]+),", first)
    assert float(bleu[1]) > 40
    expected = lines(first, "H")
    assert len(expected) == 40
    # --left-pad-source is fairseq's flag for padding on the right
    for flags in (["--left-pad-source", "--left-pad-target"], ["--batch-size", "1"]):
        output = pre.generated(data, checkpoint, *flags, "--print-alignment", "hard")
        assert lines(output, "A") == lines(first, "A")
        assert bleu[0] in output
        for number, (score, text) in lines(output, "H").items():
            assert text == expected[number][1]
            assert float(score) == pytest.approx(float(expected[number][0]), abs=1e-5)
    texts = {number: text for number, (_, text) in expected.items()}
    flags = ["--buffer-size", "7", "--batch-size", "5", "--input", run.data / "test.de"]
    said = lines(pre.generated(data, checkpoint, *flags, program="interactive"), "H")
    assert {number: text for number, (_, text) in said.items()} == texts
    hub = ARCHITECTURES[name].model.from_pretrained(str(run.folder), checkpoint.name, str(data))
    sentences = (run.data / "test.de").read_text().splitlines()
    assert hub.translate(sentences, beam=4) == [texts[number] for number in range(40)]
