"""ELECTRA's losses and gradients against the equations; what is counted, and how it is averaged."""

from __future__ import annotations

import argparse
import math

import pytest
import torch
from electra_models import BOS, EOS, MASKED, PAD, SENTENCES, batch_of, criterion_for, model_for, task_for
from fairseq import options as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from tupe_reference import encode, gelu, linear, lm_logits, normed

from embinit_fairseq.criterions.electra import ElectraCriterion, ElectraCriterionConfig, uniform_noise
from embinit_fairseq.errors import OptionError
from embinit_fairseq.models.tupe import TupeConfig, TupeModel

MASK_PROB = 0.25  # of task_for


def part(w, prefix):
    return {key.removeprefix(prefix): value for key, value in w.items() if key.startswith(prefix)}


def generator_logits(w, tokens, columns, options):
    """Logits (len(columns), V) of one sentence."""
    own, shared = part(w, "generator.sentence_encoder."), part(w, "encoder.sentence_encoder.")
    x = shared["embed_tokens.weight"][tokens]
    kind = options["position_encoding"]
    if kind == "added":
        x, kind = x + shared["positions.embed_positions.weight"][: len(tokens)], "none"
    if options.get("embedding_normalize"):
        x = normed(shared, "emb_layer_norm", x)
    own = {key: value for key, value in own.items() if not key.startswith("emb_layer_norm")}
    own["embed_tokens.weight"] = linear(own, "embed_proj", x)  # a table of this sentence's vectors
    relative = options.get("rel_pos", False)
    reset = "official" if kind == "untied" else None
    features = encode(own, torch.arange(len(tokens)), 3, kind, relative=relative, reset=reset)[-1]
    return lm_logits(part(w, "generator.lm_head."), features[columns], shared["embed_tokens.weight"])


def drawn_by_hand(logits, u):
    """The first token at which the sum of probabilities exceeds u; <pad> has none."""
    weights = [0.0 if token == PAD else math.exp(x) for token, x in enumerate(logits.tolist())]
    total = 0.0
    for token, weight in enumerate(weights):
        total += weight / sum(weights)
        if total > u:
            return token
    raise AssertionError("rounding")


def by_hand(w, batch, options, seed=1, update=0):
    """Sums of both losses, counts: sentence by sentence, token by token, without padding."""
    mlm = rtd = torch.zeros((), dtype=torch.float64)
    drawn = []
    for row, number in enumerate(batch["id"].tolist()):
        tokens = batch["net_input"]["src_tokens"][row]
        tokens = tokens[tokens != PAD]
        target = batch["target"][row][: len(tokens)]
        columns = [column for column in range(len(tokens)) if target[column] != PAD]
        noise = uniform_noise(seed, update, [number], len(tokens))[0].tolist()
        corrupted, labels = tokens.clone(), [0] * len(tokens)
        if columns:
            logits = generator_logits(w, tokens, columns, options)
            for place, column in enumerate(columns):
                wanted = int(target[column])
                mlm = mlm - (logits[place, wanted] - logits[place].exp().sum().log())
                corrupted[column] = drawn_by_hand(logits[place].detach(), noise[column])
                labels[column] = int(corrupted[column] != wanted)
                drawn.append(int(corrupted[column]))
        encoder = part(w, "encoder.sentence_encoder.")
        kind, relative = options["position_encoding"], options.get("rel_pos", False)
        reset = "official" if kind == "untied" else None
        features = encode(encoder, corrupted, 2, kind, relative=relative, reset=reset)[-1]
        head = part(w, "encoder.rtd_head.")
        for column, label in enumerate(labels):
            probability = 1 / (1 + (-linear(head, "out_proj", gelu(linear(head, "dense", features[column])))[0]).exp())
            rtd = rtd - (label * probability.log() + (1 - label) * (1 - probability).log())
    return mlm, rtd, drawn


@pytest.mark.parametrize(
    "options",
    [
        {"position_encoding": "added"},
        {"position_encoding": "added", "embedding_normalize": True},
        {"position_encoding": "untied", "rel_pos": True},
        {"position_encoding": "relative"},
    ],
    ids=str,
)
def test_loss_and_all_gradients_equal_the_equations(options):
    model, criterion, batch = model_for(**options), criterion_for(), batch_of(SENTENCES, MASKED)
    loss, size, log = criterion(model, batch)
    w = dict(model.named_parameters(remove_duplicate=False))
    mlm, rtd, drawn = by_hand(w, batch, options)
    assert len(set(drawn)) > 1
    assert (size, log["ntokens"]) == (17, 17)
    torch.testing.assert_close(log["mlm_loss"], mlm.detach(), rtol=1e-11, atol=0)
    torch.testing.assert_close(log["rtd_loss"], rtd.detach(), rtol=1e-11, atol=0)
    expected = mlm / (MASK_PROB * 17) + 50 * rtd / 17
    torch.testing.assert_close(loss / size, expected, rtol=1e-11, atol=0)
    parameters = dict(model.named_parameters())
    ours = torch.autograd.grad(loss / size, list(parameters.values()))
    theirs = torch.autograd.grad(expected, list(parameters.values()), allow_unused=True)
    for name, one, other in zip(parameters, ours, theirs):
        assert other is not None, name
        assert (one - other).abs().max() <= 1e-10 * (1 + other.abs().max()), name


def test_the_discriminators_loss_does_not_reach_the_generator():
    model, batch = model_for(), batch_of(SENTENCES, MASKED)
    masked = batch["target"].ne(PAD)
    noise = uniform_noise(1, 0, [0, 1, 2], masked.shape[1])
    output = model(**batch["net_input"], masked_tokens=masked, noise=noise)
    output.logits.sum().backward()
    own = {id(parameter) for parameter in model.encoder.parameters()}
    assert all(parameter.grad is None for parameter in model.generator.parameters() if id(parameter) not in own)
    table = model.encoder.sentence_encoder.embed_tokens.weight
    through_both = table.grad.clone()
    model.zero_grad()
    features, _ = model.encoder(output.corrupted_tokens, masked_tokens=masked)
    model.encoder.rtd_head(features).sum().backward()
    assert torch.equal(table.grad, through_both)


def test_a_draw_of_the_original_token_counts_as_original():
    model = model_for()
    with torch.no_grad():
        model.generator.lm_head.bias[6] = 1e4  # the generator always says c
    sentences, masked = [[BOS, 6, 7, 6, EOS], [BOS, 6, 8, EOS]], [[1, 2], [0]]
    batch = batch_of(sentences, masked)
    _, _, log = criterion_for()(model, batch)
    assert (log["masked"], log["guessed"], log["replaced"]) == (3, 1, 2)
    noise = uniform_noise(1, 0, [0, 1], 5)
    output = model(**batch["net_input"], masked_tokens=batch["target"].ne(PAD), noise=noise)
    assert output.corrupted_tokens.tolist() == [[BOS, 6, 6, 6, EOS], [6, 6, 8, EOS, PAD]]


def test_random_and_kept_tokens_of_the_task_are_replaced_all_the_same():
    """masked_lm's own options put another token, or the original, where a target stands."""
    model, batch = model_for(), batch_of([[BOS, 6, 7, 8, EOS]], [[1, 3]])
    batch["net_input"]["src_tokens"][0, 1], batch["net_input"]["src_tokens"][0, 3] = 9, 8
    with torch.no_grad():
        model.generator.lm_head.bias[6] = 1e4
    _, _, log = criterion_for()(model, batch)
    assert log["replaced"] == 1  # column 1 has its original again, column 3 has not


@pytest.mark.parametrize("options", [{"position_encoding": "added"}, {"position_encoding": "untied"}], ids=str)
def test_padding_and_the_cut_into_batches_change_nothing(options):
    """What makes workers and --update-freq equal to one large batch: sums of sums."""
    model, criterion = model_for(**options), criterion_for()

    def run(batches):
        model.zero_grad()
        outputs = [criterion(model, batch) for batch in batches]
        loss, size = (sum(values) for values in zip(*(output[:2] for output in outputs)))
        (loss / size).backward()
        logs = {key: float(sum(output[2][key] for output in outputs)) for key in outputs[0][2]}
        return logs, [parameter.grad.clone() for parameter in model.parameters()]

    whole, gradients = run([batch_of(SENTENCES, MASKED, ids=[5, 6, 7])])
    cuts = [batch_of(SENTENCES[:1], MASKED[:1], ids=[5], width=11), batch_of(SENTENCES[1:], MASKED[1:], ids=[6, 7])]
    parts, others = run(cuts)
    assert whole == pytest.approx(parts, rel=1e-12)
    for one, other in zip(gradients, others):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_batch_without_masked_tokens_still_has_every_gradient():
    """Otherwise the workers of a distributed training would wait for each other for ever."""
    model = model_for(rel_pos=True)
    loss, size, log = criterion_for()(model, batch_of([[BOS, 4, EOS]], [[]]))
    (loss / size).backward()
    assert (log["masked"], log["mlm_loss"], log["replaced"]) == (0, 0, 0)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_draws_change_with_the_update_in_training_only():
    model, criterion, batch = model_for(), criterion_for(), batch_of([[BOS, *range(4, 14), EOS]], [range(1, 11)])
    logs = {}
    for training in (True, False):
        for update in (3, 4, 3):
            model.train(training).set_num_updates(update)
            logs.setdefault(training, []).append(float(criterion(model, batch)[2]["rtd_loss"]))
    assert logs[True][0] == logs[True][2] != logs[True][1]
    assert len(set(logs[False])) == 1
    model.train()
    assert float(criterion_for(seed=2)(model, batch)[2]["rtd_loss"]) != logs[True][0]


def test_half_precision_losses_are_single():
    model = model_for().to(torch.bfloat16)
    loss, _, _ = criterion_for()(model, batch_of(SENTENCES, MASKED))
    assert loss.dtype == torch.float32


def test_the_weight_of_the_second_loss_is_the_papers_unless_given():
    """Clark et al. 2020, section 2: lambda = 50."""
    parser = argparse.ArgumentParser()
    ElectraCriterion.add_args(parser)
    assert (
        ElectraCriterionConfig().rtd_weight == 50 == ElectraCriterion(ElectraCriterionConfig(), task_for()).rtd_weight
    )
    assert parser.parse_args([]).rtd_weight == 50
    assert parser.parse_args(["--rtd-weight", "3.5"]).rtd_weight == 3.5


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused(weight):
    with pytest.raises(OptionError, match=r"--rtd-weight .*: must be a number that is not negative"):
        criterion_for(rtd_weight=weight)
    assert criterion_for(rtd_weight=0.0).rtd_weight == 0


def test_wrong_partners_are_refused():
    with pytest.raises(OptionError, match="--task masked_lm"):
        criterion_for(task_for(mask_prob=None))
    task = task_for()
    sizes = {"encoder_layers": 1, "encoder_embed_dim": 8, "encoder_ffn_embed_dim": 8, "encoder_attention_heads": 2}
    tupe = TupeModel.build_model(TupeConfig(**sizes), task)
    with pytest.raises(OptionError, match="--arch electra_base"):
        criterion_for(task)(tupe, batch_of(SENTENCES, MASKED))


def test_a_task_that_needs_another_criterion_is_refused():
    parser = fairseq_options.get_training_parser()
    command = "data --task sentence_prediction --num-classes 2 --criterion electra --arch electra_tiny".split()
    with pytest.raises(ValueError, match=r"--criterion electra does not go with --task sentence_prediction.*masked_lm"):
        convert_namespace_to_omegaconf(fairseq_options.parse_args_and_arch(parser, command))


def test_berts_way_of_masking_is_pointed_out(caplog):
    criterion_for()
    assert "--leave-unmasked-prob" not in caplog.text
    criterion_for(task_for(leave_unmasked_prob=0.1, random_token_prob=0.1))
    assert "--leave-unmasked-prob 0" in caplog.text
    assert "--random-token-prob 0" in caplog.text
