"""ELECTRA: losses, gradients and metrics against the equations, token by token; what its two networks share, and what
fine-tuning leaves behind."""

from __future__ import annotations

import argparse
import logging
import math

import pytest
import torch

pytest.importorskip("fairseq", reason="these are architectures of fairseq; install it with scripts/setup.sh")
from fairseq import options as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from small_models import ARCHITECTURES, BOS, EOS, PAD, preset, task_of
from tupe_reference import encode, gelu, linear, lm_logits, normed

from embinit_fairseq.criterions.electra import ElectraCriterion, ElectraCriterionConfig, uniform_noise
from embinit_fairseq.errors import OptionError
from embinit_fairseq.hooks.slots import find_slots

ELECTRA, TUPE = ARCHITECTURES["electra"], ARCHITECTURES["tupe"]
SIZES = {"encoder_layers": 1, "generator_layers": 2, "max_positions": 12}
SIZES |= {"dropout": 0.0, "attention_dropout": 0.0, "pooler_dropout": 0.0}
MASK_PROB, MASK = 0.25, 14
#: three sentences of different lengths; in the second `<s>` itself is masked
SENTENCES = [[BOS, 4, 5, 6, 7, 8, EOS], [BOS, 9, 10, EOS], [BOS, 11, 12, 13, 4, EOS]]
MASKED = [[2, 5], [0, 2], [4]]
UNTIED = {"position_encoding": "untied"}


def task_for(masking=True, **options):
    """15 symbols, <mask> is the last; what the criterion looks at in a task."""
    given = {"mask_prob": MASK_PROB, "leave_unmasked_prob": 0.0, "random_token_prob": 0.0, **options}
    return task_of(10 + (not masking), masking=masking, **given)


def model_for(task=None, **options):
    """A tiny model in double precision, all of whose parameters differ; positions are untied unless given."""
    return ELECTRA.randomised(task or task_for(), **{**SIZES, **UNTIED, **options}).train()


def criterion_for(task=None, rtd_weight=50.0, seed=1):
    return ElectraCriterion(ElectraCriterionConfig(rtd_weight=rtd_weight, seed=seed), task or task_for())


def batch_of(sentences, masked, ids=None, width=0):
    """A batch as masked_lm makes it: sentences are lists of ids, `masked` the chosen columns of each."""
    width = max(width, *map(len, sentences))
    src_tokens = torch.full((len(sentences), width), PAD)
    target = torch.full((len(sentences), width), PAD)
    for row, (sentence, columns) in enumerate(zip(sentences, masked)):
        src_tokens[row, : len(sentence)] = torch.tensor(sentence)
        for column in columns:
            target[row, column] = sentence[column]
            src_tokens[row, column] = MASK
    return {
        "id": torch.tensor(ids or list(range(len(sentences)))),
        "net_input": {"src_tokens": src_tokens, "src_lengths": torch.tensor([len(s) for s in sentences])},
        "target": target,
        "nsentences": len(sentences),
        "ntokens": sum(map(len, sentences)),
    }


# ---- Losses and gradients --------------------------------------------------------------------------------------------


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
    loss, _, _ = criterion_for()(model_for().to(torch.bfloat16), batch_of(SENTENCES, MASKED))
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


def test_wrong_options_and_partners_are_refused():
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(OptionError, match=r"--rtd-weight .*: must be a number that is not negative"):
            criterion_for(rtd_weight=weight)
    assert criterion_for(rtd_weight=0.0).rtd_weight == 0
    with pytest.raises(OptionError, match="--task masked_lm"):
        criterion_for(task_for(mask_prob=None))
    with pytest.raises(OptionError, match="--arch electra_base"):
        criterion_for()(TUPE.build(task_for()), batch_of(SENTENCES, MASKED))
    command = "data --task sentence_prediction --num-classes 2 --criterion electra --arch electra_tiny".split()
    parsed = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), command)
    with pytest.raises(ValueError, match=r"--criterion electra does not go with --task sentence_prediction.*masked_lm"):
        convert_namespace_to_omegaconf(parsed)


def test_berts_way_of_masking_is_pointed_out(caplog):
    criterion_for()
    assert "--leave-unmasked-prob" not in caplog.text
    criterion_for(task_for(leave_unmasked_prob=0.1, random_token_prob=0.1))
    assert "--leave-unmasked-prob 0" in caplog.text
    assert "--random-token-prob 0" in caplog.text


# ---- What is logged --------------------------------------------------------------------------------------------------


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


# ---- The two networks ------------------------------------------------------------------------------------------------

ENCODINGS = [
    {"position_encoding": "added"},
    {"position_encoding": "added", "embedding_normalize": True},
    {"position_encoding": "relative"},
    {"position_encoding": "four_terms"},
    UNTIED,
    {**UNTIED, "rel_pos": True},
]


@pytest.mark.parametrize("options", ENCODINGS, ids=str)
def test_generator_and_discriminator_share_their_embeddings(options):
    model = model_for(**options)
    discriminator, generator = model.encoder.sentence_encoder, model.generator.sentence_encoder
    table = discriminator.embed_tokens.weight
    assert generator.embed_tokens.weight is table
    assert model.generator.lm_head.weight is table
    added = options["position_encoding"] == "added"
    assert (generator.positions is discriminator.positions) == added
    assert generator.emb_layer_norm is discriminator.emb_layer_norm
    assert (generator.emb_layer_norm is not None) == options.get("embedding_normalize", False)
    sharing = [table, *(discriminator.positions.parameters() if added else ())]
    sharing += discriminator.emb_layer_norm.parameters() if generator.emb_layer_norm is not None else ()
    parts = [sum(p.numel() for p in part.parameters()) for part in (model.encoder, model.generator)]
    assert sum(p.numel() for p in model.parameters()) == sum(parts) - sum(p.numel() for p in sharing)


def test_options_of_positions_reach_both_networks():
    model = model_for(tupe_tie_cls=True, rel_pos=True)
    for part in (model.encoder, model.generator):
        assert not part.sentence_encoder.positions.untie_cls
    model = model_for(tupe_reset="paper", rel_pos=True)
    for part in (model.encoder, model.generator):
        assert part.sentence_encoder.positions.reset == "paper"
    with pytest.raises(OptionError, match="--rel-pos belongs to"):
        model_for(position_encoding="added", rel_pos=True)


def tupe_with(network, **options):
    """A TUPE with the weights of the discriminator or of a generator of its size; it has oracles of its own."""
    sizes = {key: value for key, value in SIZES.items() if not key.startswith("generator")}
    tupe = TUPE.build(task_for(), **{**sizes, **options}).double().eval()
    weights = {key: value for key, value in network.state_dict().items() if not key.startswith("rtd_head")}
    missing, unexpected = tupe.encoder.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all(key.startswith("lm_head.") for key in missing)
    return tupe


@pytest.mark.parametrize("options", ENCODINGS, ids=str)
def test_the_discriminator_is_the_encoder_of_tupe(options):
    model, tokens = model_for(**options).eval(), torch.tensor([[BOS, 4, 5, EOS], [BOS, 6, EOS, PAD]])
    expected = tupe_with(model.encoder, **options)(tokens, features_only=True)[0]
    assert torch.equal(model(tokens, features_only=True)[0], expected)


def test_a_generator_alone_is_the_model_of_tupe():
    """A generator as large as the discriminator is a TUPE with its language-model head."""
    same = {"layers": 1, "embed_dim": 8, "ffn_embed_dim": 6, "attention_heads": 2}
    model = model_for(**{f"generator_{key}": value for key, value in same.items()}, rel_pos=True).eval()
    tokens, masked = torch.tensor([[BOS, 14, 5, EOS]]), torch.tensor([[False, True, False, False]])
    tupe = tupe_with(model.generator, rel_pos=True)
    assert torch.equal(model(tokens, masked_tokens=masked)[0], tupe(tokens, masked_tokens=masked)[0])
    (logits, extra), features = model(tokens, return_all_hiddens=True), model.generator(tokens, features_only=True)[0]
    assert logits.shape == (1, 4, 15)
    assert len(extra["inner_states"]) == 2
    assert torch.equal(extra["inner_states"][-1], features)


def test_embed_init_sees_one_embedding_matrix():
    model = model_for()
    slots = find_slots(model, task_for())
    assert list(slots) == ["encoder"]
    with torch.no_grad():
        slots["encoder"].embedding.weight.fill_(0.5)
    assert (model.generator.lm_head.weight == 0.5).all()


def test_fine_tuning_leaves_the_generator_behind(caplog):
    state, model = model_for().state_dict(), model_for(task_for(masking=False))
    with caplog.at_level(logging.INFO):
        model.load_state_dict(dict(state))
    left = sum(key.startswith(("generator.", "encoder.rtd_head.")) for key in state)
    assert f"{left} tensors of the pre-training are left out: generator, replaced-token head" in caplog.text
    own = model.state_dict()
    assert not [key for key in own if key.startswith("generator") or "rtd_head" in key]
    assert all(torch.equal(value, state[key]) for key, value in own.items())
    caplog.clear()
    model.load_state_dict(own)  # a fine-tuned checkpoint
    assert "left out" not in caplog.text
    with pytest.raises(OptionError, match="has no generator, replaced-token head, which fine-tuning leaves behind"):
        model_for().load_state_dict(own)
    batch = batch_of([[BOS, 4, EOS]], [[1]])
    for call in (lambda: model(batch["net_input"]["src_tokens"]), lambda: criterion_for()(model, batch)):
        with pytest.raises(OptionError, match=r"no generator.*--task masked_lm"):
            call()


def test_the_kernel_is_said_once_for_both_networks(caplog):
    model, batch = model_for(), batch_of([[BOS, 4, EOS]], [[1]])
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            criterion_for()(model.train(), batch)
            with torch.no_grad():
                criterion_for()(model.eval(), batch)
    said = [r.getMessage().split(" (")[0] for r in caplog.records if "attention in" in r.getMessage()]
    assert said == ["attention in training on cpu: eager", "attention in evaluation on cpu: sdpa"]


def test_training_with_another_criterion_is_said_once(caplog):
    model, tokens = model_for(), torch.tensor([[BOS, 4, EOS]])
    model.eval()(tokens)
    assert "--criterion electra" not in caplog.text
    for _ in range(2):
        model.train()(tokens)
    assert caplog.text.count("only the generator is trained: pre-training needs --criterion electra") == 1


def test_presets_are_those_of_the_papers():
    """Clark et al. 2020, Table 6, and section 3.2 for the generator; Ke et al. 2021, appendix C: TUPE-R."""
    for arch in ("electra_base", "electra_tupe_base"):
        cfg = preset(arch)
        assert (cfg.encoder_layers, cfg.encoder_embed_dim) == (12, 768)
        assert (cfg.encoder_ffn_embed_dim, cfg.encoder_attention_heads) == (3072, 12)
        assert (cfg.generator_layers, cfg.generator_embed_dim) == (12, 256)
        assert (cfg.generator_ffn_embed_dim, cfg.generator_attention_heads) == (1024, 4)
    assert (preset("electra_base").position_encoding, preset("electra_base").rel_pos) == ("added", False)
    assert (preset("electra_tupe_base").position_encoding, preset("electra_tupe_base").rel_pos) == ("untied", True)
    given = preset("electra_base", position_encoding="untied", generator_layers=3)
    assert (given.position_encoding, given.generator_layers) == ("untied", 3)
