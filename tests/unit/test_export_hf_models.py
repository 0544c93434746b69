"""The modelling code that `embinit export-hf` writes computes what the trained model does, and what the paper says."""

from __future__ import annotations

import functools

import pytest
import torch
import tupe_reference
from hf_exports import CLASSES, GENERATOR, MLM, VARIANTS, exported, exported_code, trained
from torch.nn import functional as F

pytest.importorskip("transformers")
IDS = torch.tensor([[0, 5, 6, 14, 7, 8, 4, 2], [0, 9, 2, 1, 1, 1, 1, 1], [0, 3, 12, 4, 10, 2, 1, 1]])
REAL = IDS != 1
HEAD = "sentence_classification_head"


def close(ours, expected, tolerance=1e-12):
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Trained models in double precision, each built once; a test may read them only."""
    return functools.cache(lambda *given, **more: trained(tmp_path_factory.mktemp("c"), *given, fillers=2, **more))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_equals_fairseq_and_the_equations(make, variant):
    """Logits, hidden states and gradients of a padded batch; the plain statement sees a sentence at a time."""
    *options, equations = VARIANTS[variant]
    found = make(*options)
    found.model.eval().zero_grad()
    logits, extra = found.model(IDS, return_all_hiddens=True)
    labels = torch.where(REAL & (IDS != 0), IDS, -100)
    loss = F.cross_entropy(logits[labels != -100], labels[labels != -100])
    loss.backward()
    theirs = dict(found.model.encoder.sentence_encoder.named_parameters())
    for kernel in ("sdpa", "eager"):
        model = exported(found, kernel)
        output = model(IDS, attention_mask=REAL, labels=labels, output_hidden_states=True)
        close(output.logits[REAL], logits[REAL])
        assert len(output.hidden_states) == len(extra["inner_states"]) == 3
        for one, other in zip(output.hidden_states, extra["inner_states"]):
            close(one[REAL], other[REAL])
        close(output.loss.double(), loss, 1e-6)  # in single precision, as transformers does
        output.loss.backward()
        for name, parameter in model.tupe.named_parameters():
            expected = theirs[name].grad
            assert (parameter.grad - expected).abs().max() <= 1e-6 * (1 + expected.abs().max()), name
    w, features = dict(model.tupe.state_dict()), model.tupe(IDS, attention_mask=REAL.long()).last_hidden_state
    for row, length in enumerate(REAL.sum(1).tolist()):
        close(features[row, :length], tupe_reference.encode(w, IDS[row, :length], 2, **equations)[-1], 1e-10)


def test_masks_embeddings_attentions_and_more_words(make):
    """No mask means padding symbols; attentions are probabilities; after `resize_token_embeddings` old logits stay."""
    model = exported(make())
    logits = model(IDS).logits[REAL]
    close(model(IDS, attention_mask=REAL.long()).logits[REAL], logits)
    close(model(inputs_embeds=model.get_input_embeddings()(IDS), attention_mask=REAL).logits[REAL], logits)
    output = model(IDS, output_attentions=True)
    close(output.logits[REAL], logits)
    for weights in output.attentions:
        close((weights * REAL[:, None, None]).sum(-1), torch.ones(3, 2, 8, dtype=torch.float64))
    model.resize_token_embeddings(20)
    close(model(IDS).logits[REAL][:, : logits.shape[-1]], logits)
    assert model.lm_head.decoder.weight is model.tupe.embed_tokens.weight


def test_dropout_acts_where_it_does_in_fairseq(make, monkeypatch):
    """In the place of dropout a factor that tells its rate: hidden, attention, activation."""
    tupe_reference.visible_dropout(monkeypatch)
    rates = "--dropout 0.2 --attention-dropout 0.3 --activation-dropout 0.4"
    found = make("tupe_tiny", f"--rel-pos --attention-kernel eager {rates}")
    model = exported(found, "eager").train()
    close(model(IDS).logits[REAL], found.model.train()(IDS)[0][REAL])


def test_classes_and_regression(make):
    found = make("tupe_tiny", "--pooler-activation-fn relu", task=f"{CLASSES} --num-classes 3")
    model, labels = exported(found), torch.tensor([2, 0, 1])
    expected, _ = found.model(IDS, classification_head_name=HEAD)
    output = model(IDS, attention_mask=REAL, labels=labels)
    close(output.logits, expected)
    close(output.loss.double(), F.cross_entropy(expected, labels), 1e-6)
    assert (model.config.id2label, model.config.label2id) == ({0: "a", 1: "b", 2: "c"}, {"a": 0, "b": 1, "c": 2})
    model.config.problem_type = "multi_label_classification"
    several = torch.tensor([[1.0, 0, 1]] * 3, dtype=torch.float64)
    loss, _ = model(IDS, labels=several, return_dict=False)
    close(loss.double(), F.binary_cross_entropy_with_logits(expected, several), 1e-6)
    found = make("tupe_tiny", "", task=f"{CLASSES} --num-classes 1 --regression-target --best-checkpoint-metric loss")
    model, numbers = exported(found), torch.tensor([0.5, -1.0, 2.0])
    expected, _ = found.model(IDS, classification_head_name=HEAD)
    output = model(IDS, labels=numbers)
    close(output.logits, expected)
    close(output.loss.double(), ((expected[:, 0] - numbers) ** 2).mean(), 1e-6)
    assert (model.config.problem_type, model.config.num_labels) == ("regression", 1)


def test_a_discriminator_is_a_backbone_and_is_fine_tuned(make):
    found = make("electra_tupe_tiny", "", task=f"{MLM} {GENERATOR}")
    assert (found.auto_class, found.left_out) == ("AutoModel", ["generator", "replaced-token head"])
    close(exported(found)(IDS).last_hidden_state[REAL], found.model(IDS, features_only=True)[0][REAL])
    found = make("electra_tiny", "", task=f"{CLASSES} --num-classes 3 {GENERATOR}")
    close(exported(found)(IDS).logits, found.model(IDS, classification_head_name=HEAD)[0])


def test_inputs_and_configurations_that_cannot_be(make):
    model = exported(make())
    for ids, mask, expected in (
        (IDS.flip(1), None, "padding_side='right'"),
        (torch.zeros(1, 13, dtype=torch.long), None, "an input has 13 tokens, the model has 12 positions"),
        (IDS, torch.ones(3, 1, 8, 8), r"give \(batch, length\)"),
    ):
        with pytest.raises(ValueError, match=expected):
            model(ids, attention_mask=mask)
    configurations, models = exported_code()
    for wrong in ({"position_encoding": "rotary"}, {"reset": "none"}, {"tie_word_embeddings": False}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            models.TupeModel(configurations.TupeConfig(**wrong))


def test_gradient_checkpointing_changes_no_gradient_and_one_graph_for_the_compiler(make):
    model = exported(make("tupe_tiny", "--rel-pos --dropout 0 --attention-dropout 0"))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        for ids in (IDS, IDS[:, :2]):  # padded or not
            close(compiled(ids, attention_mask=ids != 1).logits[ids != 1], model(ids).logits[ids != 1])
    parameters, gradients = list(model.train().parameters()), []
    for _ in range(2):
        gradients.append(torch.autograd.grad(model(IDS, labels=IDS).loss, parameters))
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for one, other in zip(*gradients):
        close(one, other, 1e-9)
