"""TUPE and its comparison set through real fairseq commands: pre-train, fine-tune, resume, use from Python."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from pre_training import (
    FROM_ANOTHER_RUN,
    PLUGIN,
    WORDS,
    assert_filled,
    assert_two_processes_equal_one,
    binarise_corpus,
    in_two_processes,
    train_command,
    vectors_of,
    write_corpus,
)
from programs import PYTHON
from trainings import SAVE_OFTEN, kill_9_and_resume, losses, model_of, run_to_end

from embinit_fairseq.cli import doctor as checks
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.models.tupe import TupeModel

LENGTH = 7
SMALL = """--encoder-layers 2 --encoder-embed-dim 16
    --encoder-ffn-embed-dim 32 --encoder-attention-heads 2 --embedding-normalize --optimizer adam --lr 0.01
    --batch-size 40 --required-batch-size-multiple 1 --cpu --log-format json --no-epoch-checkpoints
    --num-workers 0 --data-buffer-size 0""".split()  # no second thread that draws masks at the same time
MASKING = """--task masked_lm --criterion masked_lm --sample-break-mode eos --tokens-per-sample 32
    --max-positions 32""".split()
CLASSES = """--task sentence_prediction --criterion sentence_prediction --num-classes 2 --max-positions 32
    --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric""".split()
pytestmark = pytest.mark.end_to_end


def ladder(start, step):
    return " ".join(f"w{(start + step * at) % WORDS}" for at in range(LENGTH))


@pytest.fixture(scope="module")
def ladders(tmp_path_factory):
    """Sentences that count up or down, w3 w4 w5 ... or w3 w2 w1 ...: a masked word follows from its neighbours and
    their order. `text` to pre-train on; in `classes` the label is the direction."""
    folder, generator = tmp_path_factory.mktemp("ladders"), np.random.default_rng(0)
    for split, size in (("train", 400), ("valid", 60)):
        directions = generator.integers(2, size=size)
        lines = [ladder(generator.integers(WORDS), 2 * up - 1) for up in directions]
        write_corpus(folder, split, lines, lines, directions)
    return binarise_corpus(folder)


def pre_training(ladders, *flags, arch="tupe_tiny"):
    return train_command(ladders / "text", *SMALL, "--arch", arch, *MASKING, *flags)


def fine_tuning(ladders, *flags):
    return train_command(ladders / "classes", *SMALL, "--arch", "tupe_tiny", "--rel-pos", *CLASSES, *flags)


@pytest.fixture
def in_process(monkeypatch):
    """Run a fairseq command inside this process."""
    import fairseq_cli.train

    def run(command_line):
        monkeypatch.setattr(sys, "argv", command_line[2:])
        fairseq_cli.train.cli_main()

    return run


@pytest.fixture(scope="module")
def pre_trained(ladders, tmp_path_factory):
    """TUPE-R: the folder of its pre-training and the log."""
    folder = tmp_path_factory.mktemp("pre_trained")
    flags = "--rel-pos --dropout 0 --max-epoch 16 --validate-interval 8 --log-interval 100 --save-dir".split()
    flags.append(folder)
    return folder, run_to_end(pre_training(ladders, *flags))


def test_pre_training_learns_what_follows_from_the_order(pre_trained):
    """Not knowing the order would leave log2(12) = 3.6 bits, not knowing the direction more than 1."""
    _, log = pre_trained
    assert "attention in training on cpu: eager" in log
    assert "attention in evaluation on cpu: sdpa" in log
    assert float(losses(log)["valid", "160"]) < 1.5


def test_masks_are_filled_from_python(pre_trained, ladders):
    folder, _ = pre_trained
    hub = TupeModel.from_pretrained(str(folder), "checkpoint_best.pt", str(ladders / "text"))
    right = 0
    for start in range(WORDS):
        for step in (1, -1):
            words = ladder(start, step).split()
            (text, probability, token), *others = hub.fill_mask(" ".join([*words[:3], "<mask>", *words[4:]]), topk=4)
            assert len(others) == 3
            assert 1 >= probability > others[0][1] > 0
            assert text == " ".join([*words[:3], token, *words[4:]])
            right += token == words[3]
    assert right > WORDS
    text, _, token = hub.fill_mask("<mask> w2 w3 w4 w5 w6 w7", topk=1)[0]
    assert text == f"{token} w2 w3 w4 w5 w6 w7"
    for wrong in ("w1 w2", "<mask> w1 <mask>"):
        with pytest.raises(DataError, match="needs one <mask>"):
            hub.fill_mask(wrong)
    with pytest.raises(DataError, match="41 tokens, the model has 32 positions"):
        hub.fill_mask("<mask> " + "w1 " * 38)


def test_features_from_python(pre_trained, ladders):
    folder, _ = pre_trained
    hub = TupeModel.from_pretrained(str(folder), "checkpoint_best.pt", str(ladders / "text"))
    tokens = hub.encode("w1 w2 w3")
    dictionary = hub.task.source_dictionary
    assert tokens.tolist() == [0, *(dictionary.index(f"w{n}") for n in (1, 2, 3)), 2]
    assert hub.decode(tokens) == "w1 w2 w3"
    pair = hub.encode("w1 w2", "w3")
    assert [dictionary[at] for at in pair] == ["<s>", "w1", "w2", "</s>", "</s>", "w3", "</s>"]
    features, states = hub.extract_features(tokens), hub.extract_features(tokens, return_all_hiddens=True)
    assert features.shape == (1, 5, 16)
    assert len(states) == 3
    torch.testing.assert_close(states[-1], features)
    batch = torch.full((2, 7), dictionary.pad())
    batch[0, :5], batch[1] = tokens, pair
    torch.testing.assert_close(hub.extract_features(batch)[0, :5], features[0], rtol=1e-4, atol=1e-5)


def test_text_is_cut_into_sub_words_and_put_together_again(pre_trained, ladders, tmp_path):
    folder, _ = pre_trained
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\n" + "".join(f"w {n}</w>\n" for n in range(9)))  # w9 remains w@@ 9
    options = {"bpe": "subword_nmt", "bpe_codes": str(codes)}
    hub = TupeModel.from_pretrained(str(folder), "checkpoint_best.pt", str(ladders / "text"), **options)
    dictionary = hub.task.source_dictionary
    assert hub.encode("w1 w2").tolist() == [0, dictionary.index("w1"), dictionary.index("w2"), 2]
    assert hub.encode("w1 w9").tolist() == [0, dictionary.index("w1"), dictionary.unk(), dictionary.unk(), 2]
    text, _, token = hub.fill_mask("w9 <mask> w2", topk=1)[0]
    assert text == f"w9 {token} w2"


@pytest.fixture(scope="module")
def fine_tuned(pre_trained, ladders, tmp_path_factory):
    """The folder of a classifier that was pre-trained, and the log."""
    folder = tmp_path_factory.mktemp("fine_tuned")
    start = ["--restore-file", pre_trained[0] / "checkpoint_last.pt", *FROM_ANOTHER_RUN, "--init-token", "0"]
    run = ["--max-epoch", "8", "--log-interval", "100", "--save-dir", folder]
    return folder, run_to_end(fine_tuning(ladders, *start, *run))


def test_fine_tuning_learns_the_direction(fine_tuned, ladders):
    folder, log = fine_tuned
    assert "the checkpoint has no classification_heads.sentence_classification_head.dense.weight" in log
    path = str(folder / "checkpoint_best.pt")
    validate = [PYTHON, "-m", "fairseq_cli.validate", str(ladders / "classes"), "--path", path, *PLUGIN]
    log = run_to_end([*validate, *CLASSES[:6], "--init-token", "0", "--batch-size", "16", "--cpu"])
    accuracy = float(log.split("| accuracy ")[1].split()[0])
    assert accuracy > 70
    hub = TupeModel.from_pretrained(str(folder), "checkpoint_best.pt", str(ladders / "classes"))
    label_of, right = hub.task.label_dictionary, 0
    lines = list(zip(*((ladders / f"valid.{column}").read_text().splitlines() for column in ("input0", "label"))))
    for text, label in lines:
        scores = hub.predict("sentence_classification_head", hub.encode(text))
        assert float(scores.exp().sum()) == pytest.approx(1)
        right += label_of[int(scores.argmax()) + label_of.nspecial] == label
    assert 100 * right / len(lines) == pytest.approx(accuracy, abs=0.051)  # logged with one decimal
    logits = hub.predict("sentence_classification_head", hub.encode(lines[0][0]), return_logits=True)
    torch.testing.assert_close(
        logits.log_softmax(-1), hub.predict("sentence_classification_head", hub.encode(lines[0][0]))
    )
    with pytest.raises(OptionError, match="no language-model head"):
        hub.fill_mask("w1 <mask> w3")


def test_fine_tuning_starts_from_the_pre_trained_values(pre_trained, ladders, in_process, tmp_path):
    start = ["--restore-file", pre_trained[0] / "checkpoint_last.pt", *FROM_ANOTHER_RUN, "--init-token", "0"]
    in_process(fine_tuning(ladders, *start, "--max-update", "1", "--lr", "0", "--save-dir", tmp_path))
    before, after = model_of(pre_trained[0] / "checkpoint_last.pt"), model_of(tmp_path / "checkpoint_last.pt")
    assert {name for name in after if name not in before} == {
        f"classification_heads.sentence_classification_head.{part}.{kind}"
        for part in ("dense", "out_proj")
        for kind in ("weight", "bias")
    }
    missing = {name for name in before if name not in after}
    assert missing == {name for name in before if name.startswith("encoder.lm_head.")}
    assert all(torch.equal(value, after[name]) for name, value in before.items() if name not in missing)


def test_mistakes_end_with_a_remedy_and_an_exit_code(pre_trained, ladders, tmp_path):
    start = ["--restore-file", pre_trained[0] / "checkpoint_last.pt", *FROM_ANOTHER_RUN]
    flags = ["--max-update", "1", "--save-dir", tmp_path]
    for mistaken, remedy in (
        (fine_tuning(ladders, *flags), "add --init-token 0 (sentence_prediction)"),
        (fine_tuning(ladders, *start, *flags, "--encoder-attention-heads", "4"), "attention-heads 2 (here 4)"),
        (pre_training(ladders, *flags, "--rel-pos-bins", "16"), "--rel-pos-bins 16 has no effect here"),
    ):
        done = subprocess.run(mistaken, capture_output=True, text=True)
        assert done.returncode != 0
        assert remedy in done.stderr
    assert not list(tmp_path.glob("checkpoint*"))


def test_kill_9_and_resume_gives_the_same_losses(ladders, tmp_path):
    arguments = pre_training(ladders, "--rel-pos", "--max-epoch", "3", "--log-interval", "1", *SAVE_OFTEN)
    assert ("valid", "30") in kill_9_and_resume(arguments, tmp_path, at_update=14)


def test_two_processes_equal_one_with_twice_the_update_freq(ladders, tmp_path):
    flags = ["--rel-pos", "--max-epoch", "2", "--dropout", "0", "--attention-dropout", "0", "--batch-size", "20"]
    flags += ["--log-interval", "1"]
    assert_two_processes_equal_one(pre_training(ladders, *flags), tmp_path)


def test_two_processes_fine_tune_without_further_flags(pre_trained, ladders, tmp_path):
    """fairseq's default way of adding gradients ends with an error if a parameter has no part in the loss."""
    start = ["--finetune-from-model", pre_trained[0] / "checkpoint_last.pt", "--init-token", "0"]
    fine_tune = fine_tuning(ladders, *start, "--max-update", "4", "--batch-size", "20", "--save-dir", tmp_path)
    assert "language-model head" in run_to_end(in_two_processes(fine_tune))
    model = model_of(tmp_path / "checkpoint_last.pt")
    assert not [name for name in model if "lm_head" in name]


@pytest.mark.parametrize("arch", ["tupe_tiny", "bert_a_tiny", "bert_r_tiny", "bert_ad_tiny"])
def test_embed_init_fills_the_table_and_the_tied_head(ladders, in_process, tmp_path, arch):
    init = ["--embed-init", "pretrained", "--embed-init-path", f"encoder={vectors_of(tmp_path)}"]
    init += ["--embed-init-freeze", "encoder:known"]
    in_process(pre_training(ladders, *init, "--max-update", "2", "--save-dir", tmp_path / "run", arch=arch))
    model = model_of(tmp_path / "run" / "checkpoint_last.pt")
    for key in ("encoder.sentence_encoder.embed_tokens.weight", "encoder.lm_head.weight"):
        assert_filled(model[key], ladders / "text" / "dict.txt")
    assert (tmp_path / "run" / "embed_init.json").exists()


def test_hydra_takes_the_model_by_its_name(ladders, tmp_path):
    """Presets do not act there: every size is given."""
    options = f"""common.user_dir={PLUGIN[1]} common.cpu=true task=masked_lm task.data={ladders / "text"}
        task.tokens_per_sample=32 task.sample_break_mode=eos criterion=masked_lm optimizer=adam optimization.lr=[0.01]
        optimization.max_update=1 dataset.batch_size=20 dataset.num_workers=0 +model._name=tupe +model.rel_pos=true
        +model.encoder_layers=1 +model.encoder_embed_dim=8 +model.encoder_ffn_embed_dim=8
        +model.encoder_attention_heads=2 +model.max_positions=32"""
    hydra = [PYTHON, "-m", "fairseq_cli.hydra_train", *options.split()]
    done = subprocess.run(hydra, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    model = model_of(tmp_path / "checkpoints" / "checkpoint_last.pt")
    assert model["encoder.sentence_encoder.positions.relative.embed_buckets.weight"].shape == (33, 2)


def test_the_doctor_makes_one_step_with_every_family():
    findings = checks.steps(["tupe_tiny", "bert_a_tiny", "bert_r_large", "bert_ad_base"])
    assert [(finding.status, finding.detail.split(",")[0]) for finding in findings] == [("ok", "masked_lm")] * 4
