"""The tupe_* and bert_* architectures: initial values, presets, options, weights that do not fit, the hub."""

import contextlib
import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import ListDataset
from fairseq.tasks import sentence_prediction
from small_models import ARCHITECTURES, task_of
from tupe_reference import assert_are_best, below, class_logits, lm_logits, randomise

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.models._hub import TupeHub

TUPE, ELECTRA = ARCHITECTURES["tupe"], ARCHITECTURES["electra"]
TOKENS = torch.tensor([[0, 5, 6, 2], [0, 7, 2, 1]])
ADDED, RELATIVE = ({"position_encoding": kind} for kind in ("added", "relative"))
REL = {"rel_pos": True}
ROTARY = {"position_encoding": "rope"}, {"rotary": True}


@pytest.mark.parametrize("options", TUPE.variants.values(), ids=TUPE.variants)
def test_initial_values(options):
    """N(0, 0.02) for every matrix, zero for the row of <pad> and for biases, 1 and 0 for layer norms."""
    model = TUPE.build(task_of(195, masking=True), **options, encoder_embed_dim=64, encoder_ffn_embed_dim=128)
    for name, parameter in model.named_parameters():
        values = parameter.detach().double()
        if "layer_norm" in name or name.endswith("bias"):
            assert bool((values == float(name.endswith("layer_norm.weight"))).all()), name
            continue
        if name.endswith("embed_tokens.weight"):
            assert not values[1].any()
            values = torch.cat([values[:1], values[2:]])
        z, count = values.flatten() / 0.02, values.numel()
        for power, moment, variance in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):  # of a normal distribution
            assert abs(float((z**power).mean()) - moment) < 5 * math.sqrt(variance / count), name
        assert bool((values.abs().amax(-1) > 0).all()), f"{name}: no row is zero"
    model.register_classification_head("h", num_classes=40)
    for layer in (model.classification_heads["h"].dense, model.classification_heads["h"].out_proj):
        bound = 1 / math.sqrt(layer.in_features)  # as PyTorch starts linear layers
        assert 0.95 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert float(layer.bias.detach().abs().max()) > 0


def test_every_option_arrives_where_it_acts():
    rates = {"dropout": 0.11, "attention_dropout": 0.12, "activation_dropout": 0.13, "pooler_dropout": 0.14}
    options = {"activation_fn": "relu", "rel_pos_bins": 8, "max_rel_pos": 20, "pooler_activation_fn": "relu"}
    model = TUPE.build(**rates, **options, **REL, attention_kernel="sdpa", checkpoint_activations=True)
    encoder = model.encoder.sentence_encoder
    layer, positions = encoder.layers[0], encoder.positions.relative
    rates = [encoder.dropout.p, layer.dropout.p, layer.self_attn.dropout, layer.activation_dropout.p]
    assert rates == [0.11, 0.11, 0.12, 0.13]
    assert (encoder.cfg.attention_kernel, encoder.cfg.checkpoint_activations) == ("sdpa", True)
    assert (positions.num_buckets, positions.max_distance) == (8, 20)
    model.register_classification_head("h", num_classes=2, inner_dim=5)
    classifier, relu = model.classification_heads["h"], torch.nn.functional.relu
    assert (classifier.dropout.p, classifier.dense.weight.shape) == (0.14, (5, 8))
    assert layer.activation is model.encoder.lm_head.activation is classifier.activation is relu


def test_probabilities_are_in_single_precision_and_other_arguments_are_ignored():
    model = TUPE.build().eval()
    half = model(TOKENS, src_lengths=torch.tensor([4]), prev_output_tokens=None)[0].half()
    for log, softmax in ((False, torch.softmax), (True, torch.log_softmax)):
        torch.testing.assert_close(model.get_normalized_probs((half, {}), log), softmax(half.float(), -1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**ADDED, **REL}, "--rel-pos has no effect here: it belongs to the tupe_"),
        ({"position_encoding": "rope", "rotary": True}, "--rotary has no effect here: it belongs to the tupe_"),
        *(({**kind, "encoder_attention_heads": 8}, "heads of dimension 1 .* must be even") for kind in ROTARY),
        ({**REL, "rel_pos_bins": 7}, "--rel-pos-bins 7 .* must be an even number"),
        ({**RELATIVE, "rel_pos_bins": 64, "max_rel_pos": 16}, "the distance more than 16"),
        ({"tupe_reset": "paper"}, "--tupe-reset paper has no effect here: .* is for tupe_. --rel-pos"),
        ({"rel_pos_bins": 16}, "--rel-pos-bins 16 has no effect here: it needs relative positions"),
        ({**REL, "rel_pos_bins": 16, "max_rel_pos": 64, "tupe_reset": "paper"}, None),
    ],
    ids=str,
)
def test_options_of_positions_that_have_no_effect_or_cannot_be(options, message):
    with pytest.raises(OptionError, match=message) if message else contextlib.nullcontext():
        TUPE.build(**options).check_training(None, None)


def test_what_a_training_could_not_do_is_refused_before_it():
    """Blocks longer than the model, which fairseq would drop."""
    for architecture in (TUPE, ELECTRA):
        architecture.build(task_of(masking=True, tokens_per_sample=10))
        with pytest.raises(OptionError, match=r"--tokens-per-sample 11 is more than --max-positions 10.*dropped"):
            architecture.build(task_of(masking=True, tokens_per_sample=11))


def trained_state(**options):
    return {name: value + 1 for name, value in TUPE.build(**options).state_dict().items()}


NORM, PRE_LN = {"embedding_normalize": True}, {"encoder_normalize_before": True}


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        ({}, {"max_positions": 9}, r"is \[11, 8\] in the checkpoint, \[10, 8\] in .*--max-positions"),
        (REL, {}, r"is \[33, 2\] in the checkpoint, missing in the model .*give --rel-pos"),
        ({}, REL, r"is missing in the checkpoint, \[33, 2\] in the model .*give --rel-pos"),
        (REL, {**REL, "tupe_reset": "paper"}, r"\[33, 2\] .* \[32, 2\] in the model .*--tupe-reset"),
        ({}, NORM, "emb_layer_norm.weight is missing .*--embedding-normalize"),
        (PRE_LN, {}, "sentence_encoder.layer_norm.weight .*--encoder-normalize-before"),
        ({"encoder_layers": 3}, {}, r"layers.2.* \(12 such differences\): give --arch, the num"),
        (ADDED, {}, "give --position-encoding"),
    ],
    ids=str,
)
def test_weights_of_a_model_with_other_options_are_refused_with_the_flag_to_give(theirs, ours, message):
    with pytest.raises(OptionError, match=message):
        TUPE.build(**ours).load_state_dict(trained_state(**theirs))


def test_weights_for_another_dictionary_and_of_a_generator_with_other_heads_are_refused():
    with pytest.raises(
        OptionError, match=r"embed_tokens.weight is \[16, 8\] in the checkpoint, \[17, 8\] .*give the dict.txt of"
    ):
        TUPE.build(task_of(12, masking=True)).load_state_dict(trained_state())
    options = {"position_encoding": "untied", **REL}
    with pytest.raises(OptionError, match=r"\[33, 3\] in the checkpoint, \[33, 2\] .*--generator-attention-heads"):
        ELECTRA.build(**options, generator_attention_heads=2).load_state_dict(ELECTRA.build(**options).state_dict())
    # fine-tuning with another family: no option of TUPE makes a generator
    with pytest.raises(OptionError, match=r"generator\..* missing in the model .*give --arch of a .*electra_\*"):
        TUPE.build(task_of(12), **REL).load_state_dict(ELECTRA.build(**options).state_dict())


def hub_with(masking=True, **heads):
    """A hub around a tiny model with dropout; heads: name -> number of columns."""
    task = task_of(7, masking=True)
    model = TUPE.build(task if masking else task_of(8), dropout=0.5)
    for name, columns in heads.items():
        model.register_classification_head(name, num_classes=columns)
    return TupeHub(SimpleNamespace(tokenizer=None, bpe=None), task, [randomise(model)])


def test_the_hub_builds_graphs_and_drops_in_training_only():
    hub = hub_with(h=3)
    results = [hub.extract_features(TOKENS), *hub.extract_features(TOKENS, return_all_hiddens=True)]
    assert not any(result.requires_grad for result in [*results, hub.predict("h", TOKENS)])
    assert torch.equal(results[0], hub.extract_features(TOKENS)), "no dropout"
    hub.train().predict("h", TOKENS)[:, 1].sum().backward()
    assert hub.model.encoder.sentence_encoder.layers[0].fc1.weight.grad.abs().sum() > 0
    assert not torch.equal(hub.extract_features(TOKENS), hub.extract_features(TOKENS)), "dropout"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 5, 2, 2, 6, 7, 2]),
        ({"init_token": 0, "separator_token": 2}, [0, 5, 2, 2, 6, 7, 2]),
        ({"init_token": 0, "separator_token": None}, [0, 5, 2, 6, 7, 2]),
        ({"init_token": None, "separator_token": None}, [5, 2, 6, 7, 2]),
    ],
    ids=str,
)
def test_a_pair_has_the_symbols_of_the_training(options, expected):
    """fairseq's sentence_prediction puts --init-token before the first and --separator-token before the second text."""
    task = task_of(7, **options)
    hub = TupeHub(SimpleNamespace(tokenizer=None, bpe=None), task, [TUPE.build(task)])
    assert hub.encode("w1", "w2 w3").tolist() == expected
    task.args, task.cfg = task.cfg, None  # as sentence_ranking has them
    assert hub.encode("w1", "w2 w3").tolist() == expected


@pytest.mark.parametrize("length", [4, 5, 7])
def test_a_long_text_is_shortened_as_in_the_training(length):
    """--shorten-method truncate: the ids are those of fairseq's data (with fairseq_compat's end of a text)."""
    task = task_of(7, init_token=0, separator_token=2, shorten_method="truncate")
    task.max_positions = lambda: length
    hub = TupeHub(SimpleNamespace(tokenizer=None, bpe=None), task, [TUPE.build(task)])
    whole = ListDataset([torch.tensor([0, 5, 2, 2, 6, 7, 2])], [7])
    (expected,) = sentence_prediction.maybe_shorten_dataset(whole, "test", "", "truncate", length, 1)
    assert hub.encode("w1", "w2 w3").tolist() == expected.tolist()
    task.cfg.shorten_method = "none"
    assert len(hub.encode("w1", "w2 w3")) == 7


def test_predictions_of_classes_and_of_a_regression():
    """log_softmax of one column would be 0 for every sentence."""
    hub = hub_with(score=1, label=3)
    for name, head in hub.model.classification_heads.items():
        expected = torch.stack([class_logits(head.state_dict(), x) for x in hub.extract_features(TOKENS)])
        torch.testing.assert_close(hub.predict(name, TOKENS, return_logits=True), expected)
        expected = expected if name == "score" else expected.log_softmax(-1)
        torch.testing.assert_close(hub.predict(name, TOKENS), expected)


@torch.no_grad()
def test_fillings_are_the_most_probable_symbols_at_the_mask():
    hub = hub_with()
    weights, tokens = hub.model.state_dict(), torch.tensor([0, 5, 11, 6, 2])
    table = weights["encoder.sentence_encoder.embed_tokens.weight"]
    logits = lm_logits(below(weights, "encoder.lm_head."), hub.extract_features(tokens)[0, 2], table)
    assert_are_best(hub.train().fill_mask("w1 <mask> w2", topk=4), "w1 {} w2", logits, hub.task.source_dictionary)
    with pytest.raises(DataError, match="needs one <mask>"):
        hub.fill_mask("<mask> w1 <mask>")


def test_tokens_that_cannot_be_an_input():
    hub = hub_with(h=2)
    assert torch.equal(hub.extract_features(TOKENS[0].int()), hub.extract_features(TOKENS[:1]))
    for tokens, error, message in (
        (TOKENS + 5, DataError, "tokens from 5 to 12, the dictionary has 0 to 11: encode the text with the dict.txt"),
        (TOKENS - 1, DataError, "tokens from -1 to 6, the dictionary has 0 to 11"),
        (torch.zeros(11, dtype=torch.long), OptionError, "an input has 11 tokens, the model has 10 positions: shorten"),
    ):
        for call in (hub.extract_features, lambda x: hub.predict("h", x)):
            with pytest.raises(error, match=message):
                call(tokens)
