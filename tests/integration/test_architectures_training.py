"""One contract for all architectures through real fairseq commands. One training of each is shared by all tests."""

import math

import pre_training as pre
import pytest
import torch
from fairseq import checkpoint_utils
from pre_training import ARCHITECTURES, in_two_processes, lines, validated, validations
from trainings import SAVE_OFTEN, killed_and_resumed, losses, model_of, run_to_end, same

pytestmark = pytest.mark.end_to_end
SENTENCES = "--task sentence_prediction --criterion sentence_prediction --num-classes 2 --separator-token 2".split()
TRANSLATORS, CLASSIFIERS = (
    [name for name, one in ARCHITECTURES.items() if f"--task {task}" in one.flags]
    for task in ("translation", "sentence_prediction")
)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_update_is_a_step_against_the_gradient(name, trained, here, tmp_path):
    """The second update with the whole training set as batch; the gradient is computed again in double precision."""
    architecture, rate = ARCHITECTURES[name], 0.1
    flags = (
        f"--batch-size 1000 --optimizer sgd --lr {rate} --max-epoch 2 --disable-validation {architecture.no_dropout}"
    )
    here(architecture.command(trained(name).data, *flags.split(), "--save-dir", tmp_path))
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "checkpoint1.pt")])
    task.load_dataset("train", epoch=2)
    data = task.dataset("train")
    data.set_epoch(2)  # masks are drawn per epoch, ELECTRA's replacements per update
    model.double().train().set_num_updates(1)
    loss, size, _ = task.build_criterion(cfg.criterion)(model, data.collater([data[at] for at in range(len(data))]))
    (loss / size).backward()
    after = model_of(tmp_path / "checkpoint2.pt")
    for parameter, value in model.named_parameters():
        step, gradient = (value.detach() - after[parameter]) / rate, value.grad
        gradient = torch.zeros_like(step) if gradient is None else gradient  # of a frozen matrix
        torch.testing.assert_close(step, gradient, rtol=1e-3, atol=1e-5, msg=parameter)


@pytest.mark.parametrize("name", ["electra", "tupe_transformer", "embinit_classifier"])  # one of each task
def test_killed_and_resumed_is_uninterrupted(name, trained, tmp_path):
    """Every loss after the kill, and every bit of the model at the end of the third epoch."""
    architecture, run = ARCHITECTURES[name], trained(name)
    flags = ["--max-epoch", "3", "--save-interval", "3", *SAVE_OFTEN, "--save-dir", tmp_path]
    rest = killed_and_resumed(architecture.command(run.data, *flags), at_update=14)
    whole = losses(run.log)
    trainings = {key: loss for key, loss in rest.items() if key[0] == "train"}
    assert len(trainings) >= 14
    assert all(whole[key] == loss for key, loss in trainings.items())
    assert same(*(model_of(folder / "checkpoint_last.pt") for folder in (run.folder, tmp_path)))


@pytest.mark.parametrize("name", ["electra", "duo_classifier"])  # whose logs hold sums of their own
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


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_validate_and_python_count_the_same(name, trained):
    run = trained(name)
    model = ARCHITECTURES[name].model.from_pretrained(str(run.folder), "checkpoint_best.pt", data=str(run.data / "bin"))
    columns = ((run.data / f"valid.{column}").read_text().splitlines() for column in ("input0", "input1", "label"))
    rows = list(zip(*columns))
    chances = [(model.predict(*pair), label) for *pair, label in rows]
    flags = [*SENTENCES, *(["--init-token", "0"] if "--init-token" in ARCHITECTURES[name].flags else [])]
    found = validated(run.data / "bin", run.folder / "checkpoint_best.pt", *flags)
    right = sum(max(chance, key=chance.get) == label for chance, label in chances)
    assert found["accuracy"] == pytest.approx(100 * right / 60, abs=0.051)  # logged with one decimal
    bits = -sum(math.log2(chance[label]) for chance, label in chances) / 60
    assert found["loss"] == pytest.approx(bits, abs=6e-4)  # logged with three


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translations_are_the_same_in_all_batches_with_all_programs(name, trained):
    run = trained(name)
    data, checkpoint = run.data / "text", run.folder / "checkpoint_last.pt"
    first = pre.generated(data, checkpoint, "--print-alignment", "hard")
    expected = lines(first, "H")
    assert len(expected) == 40
    # --left-pad-source is fairseq's flag for padding on the right
    flags = ["--left-pad-source", "--left-pad-target", "--batch-size", "7", "--print-alignment", "hard"]
    output = pre.generated(data, checkpoint, *flags)
    assert lines(output, "A") == lines(first, "A")
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
