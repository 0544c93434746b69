"""ELECTRA: losses, gradients and metrics against the equations, token by token; its two networks; fine-tuning."""

from __future__ import annotations

import logging
import math
from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
import small_models
import torch
from fairseq.logging import metrics
from small_models import ARCHITECTURES, BOS, EOS, PAD, task_of
from tupe_reference import below, encode, gelu, linear, lm_logits, normed

from embinit_fairseq.criterions.electra_losses import ElectraCriterion, ElectraCriterionConfig, uniform_noise
from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules.heads import draw_tokens

ELECTRA, TUPE = ARCHITECTURES["electra"], ARCHITECTURES["tupe"]
SIZES = {"encoder_layers": 1, "max_positions": 12, "dropout": 0.0, "attention_dropout": 0.0, "pooler_dropout": 0.0}
MASK_PROB, MASK = 0.25, 14
#: three sentences of different lengths; in the second `<s>` itself is masked
SENTENCES = [[BOS, 4, 5, 6, 7, 8, EOS], [BOS, 9, 10, EOS], [BOS, 11, 12, 13, 4, EOS]]
MASKED = [[2, 5], [0, 2], [4]]
COUNTS = ("masked", "guessed", "replaced", "flagged", "hits")


def task_for(**options):
    """15 symbols, <mask> is the last; what the criterion looks at in a task."""
    given = {"mask_prob": MASK_PROB, "leave_unmasked_prob": 0.0, "random_token_prob": 0.0, **options}
    return task_of(10, masking=True, **given)


def model_for(**options):
    """In double precision, all parameters differ; positions are untied unless given."""
    given = {**SIZES, "generator_layers": 2, "position_encoding": "untied", **options}
    return ELECTRA.randomised(task_for(), **given).train()


def criterion_for(task=None, seed=1, **options):
    return ElectraCriterion(ElectraCriterionConfig(seed=seed, **options), task or task_for())


def batch_of(sentences, masked, ids=(0, 1, 2), width=0):
    """A batch as masked_lm makes it; masked: the chosen columns of each sentence."""
    src_tokens = small_models.batch_of(sentences, width=width)
    target = torch.full_like(src_tokens, PAD)
    for row, columns in enumerate(masked):
        target[row, columns] = src_tokens[row, columns]
        src_tokens[row, columns] = MASK
    return {
        "id": torch.tensor(ids[: len(sentences)]),
        "net_input": {"src_tokens": src_tokens, "src_lengths": torch.tensor([len(s) for s in sentences])},
        "target": target,
        "nsentences": len(sentences),
        "ntokens": sum(map(len, sentences)),
    }


# ---- Losses and gradients --------------------------------------------------------------------------------------------


def generator_logits(w, tokens, columns, options):
    """Logits (len(columns), V) of one sentence."""
    own, shared = below(w, "generator.sentence_encoder."), below(w, "encoder.sentence_encoder.")
    x = shared["embed_tokens.weight"][tokens]
    kind = options["position_encoding"]
    if kind.startswith("added"):
        x = x + shared["positions.embed_positions.weight"][: len(tokens)]
        kind = kind.removeprefix("added").removeprefix("_") or "none"
    if options.get("embedding_normalize"):
        x = normed(shared, "emb_layer_norm", x)
    own = {key: value for key, value in own.items() if not key.startswith("emb_layer_norm")}
    own["embed_tokens.weight"] = linear(own, "embed_proj", x)  # a table of this sentence's vectors
    reset = "official" if kind == "untied" else None
    flags = {"relative": options.get("rel_pos", False), "rotary": options.get("rotary", False)}
    features = encode(own, torch.arange(len(tokens)), 3, kind, **flags, reset=reset)[-1]
    return lm_logits(below(w, "generator.lm_head."), features[columns], shared["embed_tokens.weight"])


def drawn_by_hand(logits, u):
    """The first token at which the sum of probabilities exceeds u; <pad> has none."""
    weights = [0.0 if token == PAD else math.exp(x) for token, x in enumerate(logits.tolist())]
    return next(token for token, total in enumerate(accumulate(weights)) if total > u * sum(weights))


def by_hand(w, batch, options):
    """Sums of both losses and counts: sentence by sentence, token by token, without padding."""
    n = Counter(mlm=torch.zeros(()).double(), rtd=torch.zeros(()).double())
    for row, number in enumerate(batch["id"].tolist()):
        tokens = batch["net_input"]["src_tokens"][row]
        tokens, target = tokens[tokens != PAD], batch["target"][row]
        columns = [column for column in range(len(tokens)) if target[column] != PAD]
        noise = uniform_noise(1, 0, [number], len(tokens))[0].tolist()
        corrupted, labels = tokens.clone(), [0] * len(tokens)
        logits = generator_logits(w, tokens, columns, options) if columns else []
        for column, scores in zip(columns, logits):
            wanted = int(target[column])
            n["mlm"] = n["mlm"] - (scores[wanted] - scores.exp().sum().log())
            corrupted[column] = drawn_by_hand(scores.detach(), noise[column])
            labels[column] = int(corrupted[column] != wanted)
            n["masked"], n["guessed"] = n["masked"] + 1, n["guessed"] + (int(scores.argmax()) == wanted)
        flags = {"relative": options.get("rel_pos", False), "rotary": options.get("rotary", False)}
        kind = options["position_encoding"]
        encoder, reset = below(w, "encoder.sentence_encoder."), "official" if kind == "untied" else None
        features = encode(encoder, corrupted, 2, kind, **flags, reset=reset)[-1]
        head = below(w, "encoder.rtd_head.")
        for feature, label in zip(features, labels):
            probability = 1 / (1 + (-linear(head, "out_proj", gelu(linear(head, "dense", feature)))[0]).exp())
            n["rtd"] = n["rtd"] - (label * probability.log() + (1 - label) * (1 - probability).log())
            flagged = int(probability > 0.5)
            n.update({"replaced": label, "flagged": flagged, "hits": flagged * label})
    return n


VARIANTS = [{"position_encoding": "added", "embedding_normalize": True}, {"position_encoding": "added_relative"}]
VARIANTS += [{"position_encoding": "untied", "rel_pos": True}, {"position_encoding": "untied", "rotary": True}]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_loss_and_all_gradients_equal_the_equations(options):
    """Sums over sentences, whatever the padding: so any cut into batches, and any number of workers, is the same."""
    model, criterion = model_for(**options), criterion_for()
    batch = batch_of(SENTENCES, MASKED, ids=[5, 6, 7], width=9)
    with torch.no_grad():  # about half of the tokens are taken for replaced ones
        tokens = batch["net_input"]["src_tokens"]
        features, _ = model.encoder(tokens, True, masked_tokens=batch["target"].ne(PAD))
        model.encoder.rtd_head.out_proj.bias -= model.encoder.rtd_head(features)[tokens.ne(PAD)].median()
    loss, size, log = criterion(model, batch)
    n = by_hand(dict(model.named_parameters(remove_duplicate=False)), batch, options)
    assert (size, log["ntokens"], log["nsentences"], log["weighted_tokens"]) == (17, 17, 3, 50 * 17)
    assert [int(log[key]) for key in COUNTS] == [n[key] for key in COUNTS]
    assert 0 < n["flagged"] < 17
    assert n["replaced"] > 0
    for name in ("mlm", "rtd"):
        torch.testing.assert_close(log[f"{name}_loss"], n[name].detach(), rtol=1e-11, atol=0)
    expected = n["mlm"] / MASK_PROB + 50 * n["rtd"]  # Clark et al. 2020, section 2: lambda = 50
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=0)
    parameters = dict(model.named_parameters())
    ours, theirs = (torch.autograd.grad(each / 17, list(parameters.values())) for each in (loss, expected))
    for name, one, other in zip(parameters, ours, theirs):
        assert (one - other).abs().max() <= 1e-10 * (1 + other.abs().max()), name
    assert criterion(model.to(torch.bfloat16), batch)[0].dtype == torch.float32


def test_a_batch_without_masked_tokens_still_has_every_gradient():
    """Otherwise the workers of a distributed training would wait for each other for ever."""
    model = model_for(rel_pos=True)
    loss, _, log = criterion_for()(model, batch_of([[BOS, 4, EOS]], [[]]))
    loss.backward()
    assert (log["masked"], log["mlm_loss"], log["replaced"]) == (0, 0, 0)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_draws_change_with_the_update_in_training_only():
    model, batch = model_for(), batch_of([[BOS, *range(4, 14), EOS]], [[*range(1, 11)]])

    def loss(training, update, seed=1):
        model.train(training).set_num_updates(update)
        return float(criterion_for(seed=seed)(model, batch)[2]["rtd_loss"])

    assert loss(True, 3) == loss(True, 3) not in (loss(True, 4), loss(True, 3, seed=2))
    assert loss(False, 3) == loss(False, 4)


def test_wrong_options_and_partners_are_refused(caplog):
    for weight in (-1.0, math.nan):
        with pytest.raises(OptionError, match=f"--rtd-weight {weight}: "):
            criterion_for(rtd_weight=weight)
    with pytest.raises(OptionError, match="--task masked_lm"):
        criterion_for(task_for(mask_prob=None))
    with pytest.raises(OptionError, match="--arch electra_base"):
        criterion_for(rtd_weight=0.0)(TUPE.build(task_for()), batch_of(SENTENCES, MASKED))
    assert "-prob 0" not in caplog.text
    criterion_for(task_for(leave_unmasked_prob=0.1, random_token_prob=0.1))  # BERT's way of masking is pointed out
    assert all(f"--{flag}-prob 0" in caplog.text for flag in ("leave-unmasked", "random-token"))


# ---- What is logged --------------------------------------------------------------------------------------------------


def test_metrics_are_of_all_tokens_not_averages_of_batches():
    first = {"sample_size": 20, "masked": 5, "guessed": 2, "replaced": 13, "flagged": 14, "hits": 9}
    second = {"sample_size": 9, "masked": 0, "guessed": 0, "replaced": 0, "flagged": 1, "hits": 0}
    logs = [{**first, "mlm_loss": 9.0, "rtd_loss": 7.0}, {**second, "mlm_loss": 0.0, "rtd_loss": 6.0}]
    with metrics.aggregate(new_root=True) as meters:
        for log in logs:
            ElectraCriterion.reduce_metrics([{**log, "weighted_tokens": 50 * log["sample_size"]}])
    values, mlm, rtd = meters.get_smoothed_values(), 9 / 5 / math.log(2), 13 / 29 / math.log(2)
    losses = {"mlm_loss": mlm, "rtd_loss": rtd, "loss": mlm + 50 * rtd}
    assert {name: values[name] for name in losses} == pytest.approx(losses, abs=6e-4)
    assert values["ppl"] == pytest.approx(2**mlm, abs=6e-3)
    rates = {"mlm_accuracy": 2 / 5, "replaced": 13 / 29, "rtd_precision": 9 / 15, "rtd_recall": 9 / 13}
    rates["rtd_original"] = (29 - 13 - 15 + 9) / 16
    assert {name: values[name] for name in rates} == pytest.approx({n: 100 * rates[n] for n in rates}, abs=0.06)
    with metrics.aggregate(new_root=True) as meters:
        ElectraCriterion.reduce_metrics([])  # fairseq: a worker that ran out of memory
    assert meters.get_smoothed_values()["loss"] == 0


# ---- The two networks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "prefixes", "parts"),
    [
        (TUPE, ("encoder.lm_head.",), "language-model head"),
        (ELECTRA, ("generator.", "encoder.rtd_head."), "generator, replaced-token head"),
    ],
)
def test_fine_tuning_leaves_parts_of_the_pre_training_out(architecture, prefixes, parts, caplog):
    caplog.set_level(logging.INFO)
    state, model = architecture.randomised().state_dict(), architecture.build(task_of(12))
    model.load_state_dict(dict(state))
    left = [key for key in state if key.startswith(prefixes)]
    assert f"{len(left)} tensors of the pre-training are left out: {parts}" in caplog.text
    own = model.double().state_dict()
    assert set(state) - set(own) == set(left)
    model.load_state_dict(own)  # a fine-tuned checkpoint
    assert caplog.text.count("left out") == 1
    with pytest.raises(OptionError, match=f"has no {parts}, which fine-tuning leaves out: continue pre-training"):
        architecture.build().load_state_dict(own)
    with pytest.raises(OptionError, match=rf"has no {parts.partition(',')[0]}, .*--task masked_lm"):
        model(torch.tensor([[BOS, 4, EOS]]))


# ---- Draws and their noise -------------------------------------------------------------------------------------------

LAST = 1 - 2**-24  # the largest single-precision number under 1
NEVER = 1


def test_evenly_spaced_noise_gives_every_token_its_share():
    size, logits = 100_000, torch.tensor([0.3, 5.0, -1.0, 1.2, 0.0, -2.5], requires_grad=True)
    drawn = draw_tokens(logits.expand(size, -1), (torch.arange(size).double() + 0.5) / size, NEVER)
    weights = np.exp(logits.detach().double().numpy()) * (np.arange(6) != NEVER)
    np.testing.assert_allclose(np.bincount(drawn, minlength=6) / size, weights / weights.sum(), atol=1.1 / size)
    assert not drawn.requires_grad


def test_a_certain_padding_is_not_drawn_either():
    logits = torch.zeros(5, 4).index_fill(1, torch.tensor([NEVER]), 1e4)
    assert draw_tokens(logits, torch.tensor([0.0, 0.2, 0.4, 0.8, LAST]), NEVER).tolist() == [0, 0, 2, 3, 3]
    half = torch.zeros(4, 3001, dtype=torch.float16)  # a sum of 3,000 equal shares would stop growing half way
    assert draw_tokens(half, torch.tensor([0.1, 0.5, 0.9, LAST]), NEVER).tolist() == [301, 1501, 2701, 3000]


def test_noise_depends_on_seed_update_and_sentence_and_on_nothing_else():
    torch.manual_seed(7)
    np.random.seed(7)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    noise = uniform_noise(1, 2, [3, 4], 5)
    assert (noise.shape, noise.dtype) == ((2, 5), torch.float32)
    assert torch.equal(noise[1:], uniform_noise(1, 2, [4], 9)[:, :5])  # neighbours and padding change nothing
    others = [uniform_noise(2, 2, [3], 5), uniform_noise(1, 3, [3], 5), uniform_noise(1, 2, [5], 5), noise[1:]]
    assert all(not torch.isclose(noise[0], other).any() for other in others)
    assert uniform_noise(-1, 0, [0], 1).shape == (1, 1)
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
