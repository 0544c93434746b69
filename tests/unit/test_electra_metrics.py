"""What `--criterion electra` logs: losses and rates of all tokens, counted one by one."""

from __future__ import annotations

import math

import pytest
import torch
from electra_models import BOS, EOS, PAD, batch_of, criterion_for, model_for
from fairseq.logging import metrics

from embinit_fairseq.criterions.electra import uniform_noise


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
