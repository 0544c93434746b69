"""The whole encoder and its heads against a plain statement, with gradients and dropout; packing, kernels, memory."""

import pytest
import torch
import tupe_reference as tupe
from small_models import batch_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from tupe_reference import assert_same_values_and_gradients, encode, randomise, visible_dropout

from embinit_fairseq.errors import DataError
from embinit_fairseq.modules.encoder_layer import WORTHWHILE, LayerConfig, packing_of
from embinit_fairseq.modules.heads import ClassificationHead, MaskedLMHead
from embinit_fairseq.modules.position_encoding import POSITION_ENCODINGS, PositionEncoding, PositionSizes
from embinit_fairseq.modules.sentence_encoder import EncoderConfig, SentenceEncoder

C, HEADS, FFN, SYMBOLS = 8, 2, 5, 11
BOS, PAD, MASK = 0, 1, 10
SENTENCES = [[BOS, 4, 5, 6, 7, 2], [BOS, 8, 2], [BOS]]
#: how the reference says it
ENCODINGS = {
    "narrow": {"kind": "none"},  # ELECTRA's generator: embeddings of another dimension than the layers
    "bert_nope": {"kind": "none"},
    "bert_a": {"kind": "added"},
    "bert_r": {"kind": "added_relative", "relative": True},
    "bert_ad": {"kind": "four_terms"},
    "tupe_a": {"kind": "untied", "reset": "official"},
    "tupe_r": {"kind": "untied", "reset": "official", "relative": True},
    "tupe_r_paper": {"kind": "untied", "reset": "paper", "relative": True},
    "tupe_a_tie_cls": {"kind": "untied"},
    "tupe_a_rope": {"kind": "untied", "reset": "official", "rotary": True},
    "tupe_r_rope_tie_cls": {"kind": "untied", "relative": True, "rotary": True},
}
#: and encodings without a line above
ENCODINGS |= {
    known.family: {"kind": kind, "relative": known.relative == "always"}
    for kind, known in POSITION_ENCODINGS.items()
    if kind not in {reference["kind"] for reference in ENCODINGS.values()}
}
each_encoding = pytest.mark.parametrize("name", ENCODINGS)
each_order = pytest.mark.parametrize("pre_ln", [False, True], ids=["post-LN, packed", "pre-LN, padded"])


def pack(is_packed, monkeypatch):
    """Whether linear maps get the tokens alone, or padding as well."""
    monkeypatch.setattr("embinit_fairseq.modules.encoder_layer.WORTHWHILE", 0 if is_packed else 2)


def encoder(name="tupe_r", num_layers=2, pre_ln=False, **options):
    """Double precision, every parameter different from every other; in evaluation mode."""
    said = ENCODINGS[name]
    options_of_positions = {"reset": said.get("reset"), "rotary": said.get("rotary", False)}
    sizes = PositionSizes(C, HEADS, 9, 32 * said.get("relative", False), **options_of_positions)
    positions = PositionEncoding() if name == "narrow" else POSITION_ENCODINGS[said["kind"]].build(sizes)
    layer_options = {key: options.pop(key) for key in list(options) if key.endswith(("dropout", "activation"))}
    layer = LayerConfig(C, FFN, HEADS, num_terms=positions.num_terms, normalize_before=pre_ln, **layer_options)
    torch.manual_seed(0)
    embed_tokens = nn.Embedding(SYMBOLS, C + 2 if name == "narrow" else C, PAD)
    return randomise(SentenceEncoder(EncoderConfig(layer, num_layers, **options), embed_tokens, positions, BOS)).eval()


def unpadded(features, sentences=SENTENCES):
    """Features (batch, length, C) of real tokens only, one sentence after the other."""
    return torch.cat([row[: len(sentence)] for row, sentence in zip(features, sentences)])


def found(module, sentences=SENTENCES):
    return unpadded(module(batch_of(sentences))[0], sentences)


def plain(module, name, sentences=SENTENCES, state=-1, **options):
    """The same from the plain statement, which never sees padding."""
    w = dict(module.named_parameters())
    return torch.cat([encode(w, torch.tensor(s), HEADS, **{**ENCODINGS[name], **options})[state] for s in sentences])


def close(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)


@each_encoding
@each_order
def test_features_hidden_states_and_gradients_equal_the_equations_whatever_the_padding(monkeypatch, name, pre_ln):
    """Hidden states are the embeddings and the output of every layer; the last one is the features."""
    pack(not pre_ln, monkeypatch)
    module, tokens = encoder(name, pre_ln=pre_ln, embedding_normalize=pre_ln), batch_of(SENTENCES, width=8)
    features, hiddens = module(tokens, return_all_hiddens=True)
    assert_same_values_and_gradients(module, unpadded(features), plain(module, name, pre_ln=pre_ln))
    assert len(hiddens) == 3
    assert hiddens[-1] is features
    assert not hiddens[0][tokens == PAD].any(), "embeddings of padding are zero"
    for state, hidden in enumerate(hiddens):
        assert hidden.shape == (3, 8, C)
        close(unpadded(hidden), plain(module, name, state=state, pre_ln=pre_ln))


@pytest.mark.parametrize("name", ["narrow", "bert_a", "bert_r", "bert_ad", "tupe_r", "tupe_a_rope"])
def test_the_fused_kernel_agrees(monkeypatch, name):
    """Where positions act in each place, with and without a bias."""
    pack(name != "bert_ad", monkeypatch)
    module = encoder(name, attention_kernel="sdpa", embedding_normalize=True, activation="relu")
    assert_same_values_and_gradients(module, found(module), plain(module, name, act=torch.relu))
    with torch.no_grad():
        close(found(module), plain(module, name, act=torch.relu))


@pytest.mark.parametrize(
    ("name", "pre_ln"), [("narrow", False), ("bert_a", True), ("bert_ad", False), ("tupe_r", True)]
)
def test_dropout_acts_where_it_should(monkeypatch, name, pre_ln):
    """Embeddings (after their layer norm), attention output, FFN output: 0.1; probabilities 0.2; inside the FFN 0.3."""
    rates = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    module = encoder(name, 2, pre_ln, embedding_normalize=True, **rates).train()
    visible_dropout(monkeypatch)
    factors = {"hidden": 1.1, "attention": 1.2, "activation": 1.3}
    close(found(module), plain(module, name, pre_ln=pre_ln, factors=factors))
    close(found(module.eval()), plain(module, name, pre_ln=pre_ln))


def test_linear_maps_take_the_tokens_alone_where_it_saves_something(monkeypatch):
    """Of 4 sentences with 2, 2, 2 and 8 tokens: 14 tokens, not 32; but only with a sixteenth of padding or more."""
    module, products = encoder("tupe_a", 2, attention_kernel="eager").requires_grad_(False), []
    for worthwhile in (WORTHWHILE, 2):
        monkeypatch.setattr("embinit_fairseq.modules.encoder_layer.WORTHWHILE", worthwhile)
        with FlopCounterMode(display=False) as counted:
            module(batch_of([[BOS, 2]] * 3 + [[BOS, 4, 5, 6, 7, 8, 9, 2]]))
        products.append(counted.get_total_flops())
    assert products[1] - products[0] == 2 * 2 * (32 - 14) * (4 * C * C + 2 * C * FFN)
    monkeypatch.undo()
    assert packing_of(torch.arange(64).view(8, 8) > 60, 3) is None
    assert packing_of(torch.arange(64).view(8, 8) > 59, 4).places.tolist() == list(range(60))


@pytest.mark.parametrize(("name", "dropout"), [("bert_ad", 0.0), ("tupe_r", 0.4)])
def test_checkpointed_activations_are_computed_again_in_training_and_change_nothing(name, dropout):
    results, calls = [], []
    for checkpointed in (False, True):
        module = encoder(name, dropout=dropout, attention_dropout=dropout, checkpoint_activations=checkpointed).train()
        module.layers[0].fc1.register_forward_hook(lambda *_, mode=checkpointed: calls.append(mode))
        torch.manual_seed(7)
        (found(module) ** 2).sum().backward()
        results.append([parameter.grad for parameter in module.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*results))
    found(module.eval()).sum().backward()
    assert calls == [False, True, True, True]


@each_encoding
def test_first_tokens_that_cannot_be_are_refused(name):
    """Padding in front always; another token than `<s>` where positions treat the first column apart, if not masked."""
    module, special = encoder(name), "reset" in ENCODINGS[name]
    with pytest.raises(DataError, match="begins with padding"):
        module(torch.tensor([[BOS, 4, 5, 2], [PAD, BOS, 4, 2]]))
    tokens = torch.tensor([[MASK, 4, 5, 2], [7, 4, 5, 2], [BOS, 4, MASK, 2]])
    masked = torch.tensor([[True, False, False, False], [True, False, True, False], [False, False, True, False]])
    close(module(tokens, masked)[0].flatten(0, 1), plain(module, name, tokens.tolist()))
    assert module.positions.untie_cls == special
    for unexplained in (None, masked & (torch.arange(4) > 0), masked & (tokens[:, :1] == MASK)):
        if special:
            with pytest.raises(DataError, match=r"does not begin with <s>.*--init-token 0.*--tupe-tie-cls"):
                module(tokens, unexplained)
        else:
            module(tokens, unexplained)


FEATURES = torch.randn(2, 4, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_lm_head_equals_the_equation_and_projects_selected_positions_only():
    embed_tokens = nn.Embedding(SYMBOLS, C, PAD)
    head = randomise(MaskedLMHead(embed_tokens, "gelu", C))
    assert head.weight is embed_tokens.weight
    w = dict(head.named_parameters())
    assert_same_values_and_gradients(head, head(FEATURES), tupe.lm_logits(w, FEATURES, head.weight))
    masked = torch.tensor([[True, False, False, True], [False, False, True, False]])
    selected = tupe.lm_logits(w, FEATURES[masked], head.weight)
    assert_same_values_and_gradients(head, head(FEATURES, masked), selected)


def test_classification_head_equals_the_equation(monkeypatch):
    """Dropout between tanh and the last matrix, none before the first."""
    visible_dropout(monkeypatch)
    head = randomise(ClassificationHead(C, 4, 3, "tanh", 0.25))
    for training, factor in ((True, 1.25), (False, 1.0)):
        expected = torch.stack([tupe.class_logits(dict(head.named_parameters()), x, factor) for x in FEATURES])
        assert_same_values_and_gradients(head, head.train(training)(FEATURES), expected)
