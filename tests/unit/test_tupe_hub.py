"""A trained model in Python: gradients only where they are wanted, heads of numbers, inputs that cannot be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from tupe_models import SMALL, configuration, save_checkpoint, small, task_with
from tupe_reference import randomise

from embinit_fairseq.architectures.hub import TupeHub
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.models.tupe import TupeModel

TOKENS = torch.tensor([[0, 5, 6, 2], [0, 7, 2, 1]])


def hub_with(masking=True, **heads):
    """A hub around a tiny model with dropout; heads: name -> number of columns."""
    model = small("tupe_tiny", "--dropout 0.5", masking=masking)
    for name, columns in heads.items():
        model.register_classification_head(name, num_classes=columns)
    return TupeHub(SimpleNamespace(tokenizer=None, bpe=None), task_with(12), randomise(model))


def test_no_graph_is_built_outside_of_training():
    hub = hub_with(h=3)
    assert not hub.training
    assert not hub.model.training
    results = [hub.extract_features(TOKENS), hub.predict("h", TOKENS), hub.predict("h", TOKENS, return_logits=True)]
    results += hub.extract_features(TOKENS, return_all_hiddens=True)
    assert not any(result.requires_grad for result in results)
    assert torch.equal(results[0], hub.extract_features(TOKENS)), "no dropout"


def test_training_through_the_hub_is_possible():
    hub = hub_with(h=3).train()
    hub.predict("h", TOKENS)[:, 1].sum().backward()
    heads = hub.model.classification_heads["h"]
    for part in (heads.dense, hub.model.encoder.sentence_encoder.layers[0].fc1):
        assert part.weight.grad.abs().sum() > 0
    assert not torch.equal(hub.extract_features(TOKENS), hub.extract_features(TOKENS)), "dropout"
    with torch.no_grad():
        assert not hub.predict("h", TOKENS).requires_grad
    assert not hub.eval().predict("h", TOKENS).requires_grad


def test_a_regression_gives_its_number():
    """log_softmax of one column would be 0 for every sentence."""
    hub = hub_with(score=1, label=3)
    head = hub.model.classification_heads["score"]
    numbers = hub.predict("score", TOKENS)
    x = hub.extract_features(TOKENS)[:, 0]
    expected = torch.tanh(x @ head.dense.weight.T + head.dense.bias) @ head.out_proj.weight.T + head.out_proj.bias
    torch.testing.assert_close(numbers, expected)
    assert numbers.shape == (2, 1)
    assert numbers[0] != numbers[1]
    assert torch.equal(numbers, hub.predict("score", TOKENS, return_logits=True))
    torch.testing.assert_close(hub.predict("label", TOKENS).exp().sum(1), torch.ones(2, dtype=torch.float64))


def test_an_unknown_head_is_answered_with_those_there_are():
    hub = hub_with(sentiment=2, topic=3)
    for call in (lambda: hub.predict("mood", TOKENS), lambda: hub.model(TOKENS, classification_head_name="mood")):
        with pytest.raises(OptionError, match="no classification head 'mood'; there are: sentiment, topic"):
            call()
    with pytest.raises(OptionError, match=r"no classification head 'mood'; it has none \(fine-tune it"):
        hub_with().predict("mood", TOKENS)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([], dtype=torch.long), r"the shape \(0,\), but must be one sentence"),
        (torch.zeros(0, 4, dtype=torch.long), r"the shape \(0, 4\), but must be"),
        (torch.zeros(2, 0, dtype=torch.long), r"the shape \(2, 0\), but must be"),
        (torch.tensor(5), r"the shape \(\), but must be"),
        (TOKENS[None], r"the shape \(1, 2, 4\), but must be"),
        (TOKENS.float(), "tokens are torch.float32, but must be whole numbers"),
        (TOKENS.bool(), "tokens are torch.bool, but must be whole numbers"),
        (TOKENS + 6, "tokens from 6 to 13, the dictionary has 0 to 11: encode the text with the dict.txt"),
        (TOKENS - 1, "tokens from -1 to 6, the dictionary has 0 to 11"),
        (torch.zeros(11, dtype=torch.long), "an input has 11 tokens, the model has 10 positions: shorten it"),
    ],
)
def test_inputs_that_cannot_be(tokens, message):
    hub = hub_with(h=2)
    for call in (hub.extract_features, lambda x: hub.predict("h", x)):
        with pytest.raises(DataError, match=message):
            call(tokens)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_every_kind_of_whole_number_will_do(dtype):
    hub = hub_with()
    assert torch.equal(hub.extract_features(TOKENS.to(dtype)), hub.extract_features(TOKENS))
    assert torch.equal(hub.extract_features(TOKENS[0].to(dtype)), hub.extract_features(TOKENS[:1]))


def test_text_that_cannot_be():
    hub = hub_with()
    with pytest.raises(DataError, match="needs a sentence, or two of a pair"):
        hub.encode()
    for topk in (0, 13):
        with pytest.raises(DataError, match=rf"topk={topk}: the dictionary has 12 symbols"):
            hub.fill_mask("w1 <mask>", topk=topk)
    assert len(hub.fill_mask("w1 <mask>", topk=12)) == 12
    with pytest.raises(DataError, match="an input has 12 tokens, the model has 10 positions"):
        hub.fill_mask("<mask> " + "w1 " * 9)


def test_a_fine_tuned_model_fills_no_masks():
    with pytest.raises(OptionError, match=r"no language-model head.*the checkpoint of the pre-training"):
        hub_with(masking=False).fill_mask("w1 <mask>")


def saved(folder):
    (folder / "dict.txt").write_text("".join(f"w{number} 1\n" for number in range(7)))
    cfg = configuration("tupe_tiny", *SMALL, "--max-positions", "10")
    weights = small("tupe_tiny").state_dict()
    return save_checkpoint(
        folder / "model.pt", {**vars(cfg), "_name": "tupe"}, weights, _name="masked_lm", data=".", tokens_per_sample=10
    )


def test_options_of_the_checkpoint_are_not_overridden_silently(tmp_path):
    """Four heads of width 2 fit into the weights of two heads of width 4."""
    saved(tmp_path)
    hub = TupeModel.from_pretrained(str(tmp_path), attention_kernel="eager", dropout=0.3)
    assert hub.model.encoder.sentence_encoder.cfg.attention_kernel == "eager"
    for override in ({"encoder_attention_heads": 4}, {"activation_fn": "relu"}, {"encoder_embed_dim": 24}):
        name, value = next(iter(override.items()))
        with pytest.raises(OptionError, match=rf"^{name}={value!r} \(from_pretrained, --model-overrides\): the checkp"):
            TupeModel.from_pretrained(str(tmp_path), **override)
        with pytest.raises(OptionError, match=rf"^{name}={value!r} \("):  # as fairseq-generate and -validate load
            checkpoint_utils.load_model_ensemble_and_task(
                [str(tmp_path / "model.pt")], {"data": str(tmp_path), **override}
            )
