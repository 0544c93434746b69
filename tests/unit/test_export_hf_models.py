"""The modelling code that `embinit export-hf` writes computes what the trained model does, and what the paper says."""

from __future__ import annotations

import pytest
import torch
import tupe_reference
from hf_exports import CLASSES, GENERATOR, MLM, VARIANTS, exported, exported_code, trained

pytest.importorskip("transformers")
PAD = 1
IDS = torch.tensor([[0, 5, 6, 14, 7, 8, 4, 2], [0, 9, 2, 1, 1, 1, 1, 1], [0, 3, 12, 4, 10, 2, 1, 1]])
REAL = IDS != PAD


def close(ours, expected, tolerance=1e-12):
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Trained models in double precision, each built once; a test may read them only."""
    made = {}

    def call(*arguments, **options):
        key = str((arguments, options))
        if key not in made:
            made[key] = trained(tmp_path_factory.mktemp("c"), *arguments, fillers=2, **options)
        made[key].model.eval().zero_grad()
        return made[key]

    return call


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_equals_fairseq_and_the_equations(make, variant):
    """Logits, hidden states and gradients of a padded batch; the plain statement sees a sentence at a time."""
    *options, equations = VARIANTS[variant]
    found = make(*options)
    logits, extra = found.model(IDS, return_all_hiddens=True)
    labels = torch.where(REAL & (IDS != 0), IDS, -100)
    loss = torch.nn.functional.cross_entropy(logits[labels != -100], labels[labels != -100])
    loss.backward()
    theirs = dict(found.model.encoder.sentence_encoder.named_parameters())
    for kernel in ("sdpa", "eager"):
        model = exported(found, kernel)
        output = model(IDS, attention_mask=REAL.long(), output_hidden_states=True)
        close(output.logits[REAL], logits[REAL])
        assert len(output.hidden_states) == len(extra["inner_states"]) == 3
        for one, other in zip(output.hidden_states, extra["inner_states"]):
            close(one[REAL], other[REAL])
        output = model(IDS, attention_mask=REAL, labels=labels)
        close(output.loss.double(), loss, 1e-6)  # in single precision, as transformers does
        output.loss.backward()
        for name, parameter in model.tupe.named_parameters():
            expected = theirs[name].grad
            assert expected is not None, name
            assert (parameter.grad - expected).abs().max() <= 1e-6 * (1 + expected.abs().max()), name
    w, features = dict(model.tupe.state_dict()), model.tupe(IDS, attention_mask=REAL.long()).last_hidden_state
    for row, length in enumerate(REAL.sum(1).tolist()):
        expected = tupe_reference.encode(w, IDS[row, :length], 2, **equations)[-1]
        close(features[row, :length], expected, 1e-10)


def test_no_mask_means_padding_symbols(make):
    model = exported(make())
    close(model(IDS).logits[REAL], model(IDS, attention_mask=REAL.long()).logits[REAL])
    unpadded = IDS[:1]
    close(model(unpadded).logits, model(IDS).logits[:1])
    embedded = model.get_input_embeddings()(IDS)
    close(model(inputs_embeds=embedded, attention_mask=REAL).logits, model(IDS).logits)


def test_attentions_are_the_probabilities(make):
    """Of the first layer, entry by entry from the equation; and asking for them changes nothing else."""
    model = exported(make())
    output = model(IDS, output_attentions=True)
    close(output.logits[REAL], model(IDS).logits[REAL])
    assert [tuple(weights.shape) for weights in output.attentions] == [(3, 2, 8, 8)] * 2
    layer, x = model.tupe.layers[0].self_attn, model.tupe.embed_tokens(IDS)
    positions = {name.removeprefix("positions."): value for name, value in model.tupe.state_dict().items()}
    bias = tupe_reference.untied_bias(positions, 2, 8, "official", relative=True)
    for row, length in enumerate(REAL.sum(1).tolist()):
        q, k, _ = layer.qkv_proj(x[row]).chunk(3, dim=-1)
        for head in range(2):
            part = slice(4 * head, 4 * head + 4)
            scores = q[:length, part] @ k[:length, part].T / 8**0.5 + bias[head, :length, :length]
            close(output.attentions[0][row, head, :length, :length], scores.softmax(-1))
            assert (output.attentions[0][row, head, :, length:] == 0).all()


def test_dropout_acts_where_it_does_in_fairseq(make, monkeypatch):
    """In the place of dropout a factor that tells its rate: hidden, attention, activation."""
    tupe_reference.visible_dropout(monkeypatch)
    rates = "--dropout 0.2 --attention-dropout 0.3 --activation-dropout 0.4"
    found = make("tupe_tiny", f"--rel-pos --attention-kernel eager {rates}")
    model = exported(found, "eager").train()
    found.model.train()
    close(model(IDS).logits[REAL], found.model(IDS)[0][REAL])


def test_classes(make):
    found = make("tupe_tiny", "--pooler-activation-fn relu", task=f"{CLASSES} --num-classes 3")
    model = exported(found)
    expected, _ = found.model(IDS, classification_head_name="sentence_classification_head")
    close(model(IDS, attention_mask=REAL).logits, expected)
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert model.config.label2id == {"a": 0, "b": 1, "c": 2}
    loss = model(IDS, labels=torch.tensor([2, 0, 1])).loss
    close(loss.double(), torch.nn.functional.cross_entropy(expected, torch.tensor([2, 0, 1])), 1e-6)
    model.config.problem_type = "multi_label_classification"
    several = torch.tensor([[1.0, 0, 1]] * 3, dtype=torch.float64)
    loss, logits = model(IDS, labels=several, return_dict=False)
    p = expected.sigmoid()
    close(loss.double(), -(several * p.log() + (1 - several) * (1 - p).log()).mean(), 1e-6)
    close(logits, expected)


def test_regression(make):
    found = make("tupe_tiny", "", task=f"{CLASSES} --num-classes 1 --regression-target --best-checkpoint-metric loss")
    model = exported(found)
    expected, _ = found.model(IDS, classification_head_name="sentence_classification_head")
    numbers = torch.tensor([0.5, -1.0, 2.0])
    output = model(IDS, labels=numbers)
    close(output.logits, expected)
    close(output.loss.double(), ((expected[:, 0] - numbers) ** 2).mean(), 1e-6)
    assert (model.config.problem_type, model.config.num_labels) == ("regression", 1)


def test_a_discriminator_is_a_backbone_and_is_fine_tuned(make):
    for arch in ("electra_tiny", "electra_tupe_tiny"):
        found = make(arch, "", task=f"{MLM} {GENERATOR}")
        assert (found.auto_class, found.left_out) == ("AutoModel", ["generator", "replaced-token head"])
        features, _ = found.model(IDS, features_only=True)
        close(exported(found)(IDS).last_hidden_state[REAL], features[REAL])
    found = make("electra_tiny", "", task=f"{CLASSES} --num-classes 3 {GENERATOR}")
    expected, _ = found.model(IDS, classification_head_name="sentence_classification_head")
    close(exported(found)(IDS).logits, expected)


def test_inputs_that_cannot_be(make):
    model = exported(make())
    with pytest.raises(ValueError, match="padding_side='right'"):
        model(IDS.flip(1))
    with pytest.raises(ValueError, match="an input has 13 tokens, the model has 12 positions: shorten it"):
        model(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(ValueError, match=r"give \(batch, length\)"):
        model(IDS, attention_mask=torch.ones(3, 1, 8, 8))
    with pytest.raises(ValueError, match="and not both"):
        model(IDS, inputs_embeds=torch.zeros(3, 8, 8))


def test_relative_positions_have_no_longest_input(make):
    found = make("bert_r_tiny", "")
    ids = torch.arange(30).remainder(10).add(3).view(1, 30)
    close(exported(found)(ids).logits, found.model(ids)[0])


def test_configurations_that_cannot_be():
    configurations, models = exported_code()
    for wrong in ({"position_encoding": "rotary"}, {"reset": "none"}, {"tie_word_embeddings": False}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            models.TupeModel(configurations.TupeConfig(**wrong))


def test_more_words(make):
    """`resize_token_embeddings`: the head follows, old logits stay."""
    model = exported(make())
    before = model(IDS).logits
    model.resize_token_embeddings(20)
    after = model(IDS).logits
    assert after.shape[-1] == model.config.vocab_size == 20
    close(after[REAL][:, : before.shape[-1]], before[REAL])
    assert model.lm_head.decoder.weight is model.tupe.embed_tokens.weight


def test_gradient_checkpointing_changes_no_gradient(make):
    model = exported(make("tupe_tiny", "--rel-pos --dropout 0 --attention-dropout 0")).train()
    gradients = []
    for enabled in (False, True):
        if enabled:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.zero_grad()
        model(IDS, labels=IDS).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for one, other in zip(*gradients):
        close(one, other, 1e-9)


def test_one_graph_for_the_compiler(make):
    """No break: `torch.compile(model, fullgraph=True)`; padded or not."""
    model = exported(make())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        for ids in (IDS, IDS[:, :2]):
            close(compiled(ids, attention_mask=ids != PAD).logits[ids != PAD], model(ids).logits[ids != PAD])
