"""Random batches are what fairseq's data sets would make, as far as a model can tell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("fairseq", reason="batches are made for fairseq's models; install it with scripts/setup.sh")

from fairseq.data import Dictionary

from embinit_fairseq.bench.steps import Sizes, random_batch, task_of

SIZES = Sizes(sentences=5, length=40, vocabulary=30, padding=0.5)
BOS, PAD, EOS, MASK = 0, 1, 2, 29


@pytest.fixture
def task():
    dictionary = Dictionary()
    for word in range(SIZES.vocabulary - len(dictionary)):
        dictionary.add_symbol(f"w{word}")
    cfg = SimpleNamespace(left_pad_source=True, left_pad_target=False)
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary, mask_idx=MASK, cfg=cfg)


def test_every_second_sentence_is_shorter():
    assert SIZES.lengths() == [40, 20, 40, 20, 40]
    assert Sizes(3, 40).lengths() == [40, 40, 40]
    assert Sizes(2, 5, padding=0.9).lengths() == [5, 4]


@pytest.mark.parametrize("name", ["masked_lm", "sentence_prediction", "language_modeling", "translation"])
def test_rows_end_in_eos_behind_padding_and_are_counted_without_it(task, name):
    batch = random_batch(name, task, SIZES)
    tokens = batch["net_input"]["src_tokens"]
    assert tokens.shape == (5, 40)
    assert sorted(tokens.ne(PAD).sum(1).tolist()) == [20, 20, 40, 40, 40]
    assert batch["ntokens"] == 160
    for row in tokens:
        row = row[row.ne(PAD)]
        assert (row[-1] == EOS, (row[:-1] == EOS).any()) == (True, False)
        assert (row[0] == BOS) == (name in ("masked_lm", "sentence_prediction"))
    assert batch["net_input"]["src_lengths"].tolist() == tokens.ne(PAD).sum(1).tolist()


def test_the_padding_of_a_translations_source_is_where_the_task_has_it(task):
    for left in (True, False):
        task.cfg.left_pad_source = left
        source = random_batch("translation", task, SIZES)["net_input"]["src_tokens"]
        assert bool(source[-1, 0] == PAD) == left


def test_a_share_of_every_row_is_masked_and_asked_for(task):
    batch, whole = (random_batch("masked_lm", task, SIZES, seed) for seed in (1, 1))
    tokens, target = batch["net_input"]["src_tokens"], batch["target"]
    asked = target.ne(PAD)
    assert asked.sum(1).tolist() == [6, 3, 6, 3, 6]  # 15 % of 40 and of 20
    assert torch.equal(tokens[asked], torch.full_like(tokens[asked], MASK))
    assert not (tokens[~asked] == MASK).any()
    assert not ((target == BOS) | (target == EOS)).any()
    assert torch.equal(whole["target"], target), "a batch is that of its seed"


def test_a_language_model_is_asked_for_the_next_token(task):
    batch = random_batch("language_modeling", task, SIZES)
    tokens, target = batch["net_input"]["src_tokens"], batch["target"]
    for row, following in zip(tokens, target):
        length = int(row.ne(PAD).sum())
        assert torch.equal(following[: length - 1], row[1:length])
        assert following.ne(PAD).sum() == length


def test_the_decoder_of_a_translation_gets_the_targets_shifted(task):
    batch = random_batch("translation", task, SIZES)
    previous, target = batch["net_input"]["prev_output_tokens"], batch["target"]
    for row, before in zip(target, previous):
        length = int(row.ne(PAD).sum())
        assert before[0] == EOS
        assert torch.equal(before[1:length], row[: length - 1])


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("transformer", "translation"),
        ("transformer_lm", "language_modeling"),
        ("roberta_base", "masked_lm"),
        ("embinit_classifier", "sentence_prediction"),
        ("duo_classifier", "sentence_prediction"),
        ("tupe_base", "masked_lm"),
    ],
)
def test_the_task_follows_from_the_model(arch, name):
    assert task_of(arch) == name
