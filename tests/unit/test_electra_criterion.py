"""ELECTRA's losses and gradients against the equations; what is counted, and how it is averaged."""

from __future__ import annotations

import math

import pytest
import torch
from electra_models import BOS, EOS, MASKED, PAD, SENTENCES, batch_of, criterion_for, model_for, task_for
from fairseq.logging import metrics
from tupe_reference import encode, gelu, linear, lm_logits, normed

from embinit_fairseq.criterions.electra import uniform_noise
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


def logged(criterion, model, batches, together):
    """What fairseq would log: every batch by itself, or all of them as the parts of one update."""
    logs = [criterion(model, batch)[2] for batch in batches]
    with metrics.aggregate(new_root=True) as meters:
        for group in [logs] if together else [[log] for log in logs]:
            criterion.reduce_metrics(group)
    return meters.get_smoothed_values()


def mixed_model_and_batches():
    """Half of the tokens are c, which the generator likes; the discriminator's threshold is its median."""
    model = model_for().eval()
    sentences = [[BOS, *[6 if (row + at) % 2 else 4 + (row * at) % 10 for at in range(9)], EOS] for row in range(8)]
    masked = [[], *[list(range(row, 11, 2)) for row in (0, 1, 0, 1, 0, 1, 0)]]
    batches = [batch_of(sentences[:2], masked[:2], ids=[0, 1]), batch_of(sentences[2:], masked[2:], [2, 3, 4, 5, 6, 7])]
    with torch.no_grad():
        model.generator.lm_head.bias[6] += 3
        features, _ = model.encoder(torch.tensor(sentences))
        model.encoder.rtd_head.out_proj.bias -= model.encoder.rtd_head(features).median()
    return model, batches


@torch.no_grad()
def counted(model, batch):
    """Sums of losses and counts, token by token."""
    count = dict.fromkeys(("tokens", "masked", "guessed", "replaced", "flagged", "hits", "kept"), 0)
    count |= {"mlm": 0.0, "rtd": 0.0}
    for row, number in enumerate(batch["id"].tolist()):
        tokens, target = batch["net_input"]["src_tokens"][row : row + 1], batch["target"][row : row + 1]
        noise = uniform_noise(1, 0, [number], target.shape[1])
        logits, corrupted, detected = model(tokens, masked_tokens=target.ne(PAD), noise=noise)
        wanted = target[target.ne(PAD)]
        count["mlm"] -= float(logits.log_softmax(-1)[range(len(wanted)), wanted].sum())
        count["guessed"] += sum(int(x.argmax()) == int(y) for x, y in zip(logits, wanted))
        count["masked"] += len(wanted)
        for token, original, seen, logit in zip(tokens[0], target[0], corrupted[0], detected[0]):
            replaced, flagged = bool(original != PAD and seen != original), bool(logit.sigmoid() > 0.5)
            count["rtd"] -= math.log(float(logit.sigmoid() if replaced else 1 - logit.sigmoid()))
            assert original != PAD or seen == token
            for name, value in (("tokens", 1), ("replaced", replaced), ("flagged", flagged)):
                count[name] += value
            count["hits"] += flagged and replaced
            count["kept"] += not flagged and not replaced
    return count


@pytest.mark.parametrize("together", [False, True])
def test_metrics_are_of_all_tokens_not_averages_of_batches(together):
    model, batches = mixed_model_and_batches()
    values = logged(criterion_for(), model, batches, together)
    one, other = (counted(model, batch) for batch in batches)
    n = {key: one[key] + other[key] for key in one}
    assert 0 < n["hits"] < min(n["replaced"], n["flagged"])
    assert 0 < n["guessed"] < n["masked"]
    mlm, rtd = n["mlm"] / n["masked"] / math.log(2), n["rtd"] / n["tokens"] / math.log(2)
    assert values["mlm_loss"] == pytest.approx(mlm, abs=6e-4)
    assert values["rtd_loss"] == pytest.approx(rtd, abs=6e-5)
    assert values["loss"] == pytest.approx(mlm + 50 * rtd, abs=6e-4)
    assert values["ppl"] == pytest.approx(2**mlm, abs=6e-3)
    rates = {
        "mlm_accuracy": n["guessed"] / n["masked"],
        "replaced": n["replaced"] / n["tokens"],
        "rtd_precision": n["hits"] / n["flagged"],
        "rtd_recall": n["hits"] / n["replaced"],
        "rtd_original": n["kept"] / (n["tokens"] - n["replaced"]),
    }
    for name, rate in rates.items():
        assert values[name] == pytest.approx(100 * rate, abs=0.06), name


def test_metrics_of_nothing_are_no_error():
    with metrics.aggregate(new_root=True) as meters:
        criterion_for().reduce_metrics([])  # fairseq: a worker that ran out of memory
    assert meters.get_smoothed_values()["loss"] == 0


def test_half_precision_losses_are_single():
    model = model_for().to(torch.bfloat16)
    loss, _, _ = criterion_for()(model, batch_of(SENTENCES, MASKED))
    assert loss.dtype == torch.float32


def test_wrong_partners_are_refused():
    with pytest.raises(OptionError, match="--task masked_lm"):
        criterion_for(task_for(mask_prob=None))
    task = task_for()
    sizes = {"encoder_layers": 1, "encoder_embed_dim": 8, "encoder_ffn_embed_dim": 8, "encoder_attention_heads": 2}
    tupe = TupeModel.build_model(TupeConfig(**sizes), task)
    with pytest.raises(OptionError, match="--arch electra_base"):
        criterion_for(task)(tupe, batch_of(SENTENCES, MASKED))


def test_berts_way_of_masking_is_pointed_out(caplog):
    criterion_for()
    assert not caplog.records
    criterion_for(task_for(leave_unmasked_prob=0.1, random_token_prob=0.1))
    assert "--leave-unmasked-prob 0" in caplog.text
    assert "--random-token-prob 0" in caplog.text
