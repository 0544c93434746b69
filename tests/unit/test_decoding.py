"""Translation models step by step: incremental decoding equals the full forward through any exchange of rows; beam
search; savings of the cache; retained dropout."""

import random

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf
from small_models import ARCHITECTURES, EOS, LEARNED, RATES, SOURCES, TIED, VARIANTS, batch_of, dictionary
from tupe_reference import visible_dropout

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.modules.decoder_layer import DecoderCache

NAMES = ["tupe_transformer", "duo_transformer"]
each_model = pytest.mark.parametrize("name", NAMES)
CASES = {variant: case for variant, case in VARIANTS.items() if case[0] in NAMES}
DUO = ARCHITECTURES["duo_transformer"]


def model_of(name, **options):
    return ARCHITECTURES[name].randomised(**options)


class Decoding:
    """Rows of (sentence, prefix) that are decoded incrementally, compared with the full forward."""

    def __init__(self, model, left=False):
        self.model, self.tokens = model, batch_of(SOURCES, left)
        self.rows = [(number, [EOS]) for number in range(len(SOURCES))]
        self.encoder_out, self.state = model.encoder(self.tokens), {}

    @property
    def cache(self):
        return next(value for value in self.state.values() if isinstance(value, DecoderCache))

    def reorder(self, order):
        """As beam search does it: encoder output and state."""
        order = torch.tensor(order)
        self.encoder_out = self.model.encoder.reorder_encoder_out(self.encoder_out, order)
        self.model.decoder.reorder_incremental_state_scripting(self.state, order)
        self.rows = [(self.rows[at][0], list(self.rows[at][1])) for at in order.tolist()]

    def assert_equal(self, choice):
        """Logits and attention of the new tokens, incremental and in full; then one word more for each row, or two."""
        previous = torch.tensor([prefix for _, prefix in self.rows])
        before = self.cache.length if self.state else 0
        found, extra = self.model.decoder(previous, self.encoder_out, self.state)
        full, full_extra = self.model(self.tokens[[number for number, _ in self.rows]], None, previous)
        for one, other in ((found, full), (extra["attn"][0], full_extra["attn"][0])):
            torch.testing.assert_close(one, other[:, before:], rtol=1e-12, atol=1e-12)
        amount = choice.choice([1, 1, 1, 2])
        for _, prefix in self.rows:
            prefix.extend(choice.randrange(3, 15) for _ in range(amount))

    def assert_equal_through_exchanges(self, choice, steps):
        """Rows change places within sentences and between them, are left out and doubled; twice in a row at times."""
        for _ in range(steps):
            self.assert_equal(choice)
            for _ in range(choice.choice([0, 1, 1, 2])):
                rows = range(len(self.rows))
                shuffled, fewer = choice.sample(rows, len(rows)), sorted(choice.sample(rows, max(2, len(rows) - 1)))
                doubled = sorted([*rows, *rows]) if len(rows) < 8 else shuffled
                self.reorder(choice.choice([shuffled, fewer, doubled, [choice.choice(rows) for _ in rows]]))


@pytest.mark.parametrize("variant", CASES)
@torch.no_grad()
def test_incremental_equals_full(variant):
    """Sources of every second variant are padded on the left."""
    (name, options), left = CASES[variant], list(CASES).index(variant) % 2 == 1
    Decoding(model_of(name, **options), left).assert_equal_through_exchanges(random.Random(1), 6)


@pytest.mark.parametrize(
    ("name", "options"),
    [(NAMES[0], options) for options in ({"rel_pos": True}, {"positions": "rope"}, {"positions": "alibi"})]
    + [(NAMES[1], LEARNED)],
    ids=str,
)
@torch.no_grad()
def test_incremental_equals_full_beyond_every_capacity(name, options):
    """Caches begin with 32 columns, and the positions of our small models end at 48, which is no power of two."""
    decoding = Decoding(model_of(name, **options))
    decoding.rows = [(number, [EOS, 4, 5 + number, 6]) for number in range(3)]  # a prefix may come at once
    while len(decoding.rows[0][1]) < 48:
        decoding.assert_equal_through_exchanges(random.Random(len(decoding.rows[0][1])), 1)
    seen = decoding.cache.length
    with pytest.raises(DataError, match=f"given {seen} tokens after {seen}: prev_output_tokens must be the whole"):
        decoding.model.decoder(torch.full((len(decoding.rows), seen), EOS), decoding.encoder_out, decoding.state)


@each_model
@torch.no_grad()
def test_beams_whose_rows_change(name, monkeypatch):
    """Within a sentence nothing is copied; and keys and values of the encoder are computed once a sentence."""
    model, calls, choice = model_of(name), [], random.Random(0)
    for layer in model.decoder.layers:
        original = layer.encoder_attn.memory
        monkeypatch.setattr(layer.encoder_attn, "memory", lambda x, f=original: calls.append(x.shape[-3]) or f(x))
    decoding, beam = Decoding(model), 2 if name == "duo_transformer" else 1
    decoding.reorder([0, 0, 1, 1, 2, 2])
    decoding.assert_equal(choice)
    encoder_out, memory = decoding.encoder_out, decoding.cache.memory
    decoding.reorder([1, 0, 2, 2, 5, 4])
    assert decoding.encoder_out is encoder_out
    assert decoding.cache.memory is memory
    decoding.reorder([4, 5, 0, 1, 0, 0])  # sentences 2, 0, 0
    decoding.assert_equal(choice)
    assert calls == [3, 3, *[6] * 4]  # 6: of the full forward
    assert decoding.cache.beam == beam
    decoding.reorder([1, 2, 2, 3, 4, 5])  # sentence 2 once, then 0: neighbours differ
    decoding.assert_equal(choice)
    assert decoding.cache.beam == 1


@pytest.mark.parametrize(("name", "way"), [(NAMES[0], "alone"), (NAMES[1], "prepared"), (NAMES[1], "ensemble")])
@torch.no_grad()
def test_scores_of_beam_search_are_those_of_the_full_forward(name, way):
    """Of an ensemble they are the mean of the probabilities of two models, each with its own state."""
    model, *others = models = [ARCHITECTURES[name].build(**TIED).eval() for _ in range(2)]
    if way == "prepared":
        model.make_generation_fast_()
    elif way == "ensemble":
        models = others = [model, DUO.build(duo_fusion="off", duo_streams=1).eval()]
    models = models if way == "ensemble" else [model]
    generator = SequenceGenerator(models, dictionary(), beam_size=4, max_len_b=12)
    inputs = {"src_tokens": batch_of(SOURCES), "src_lengths": torch.tensor([len(source) for source in SOURCES])}
    for source, sentence in zip(SOURCES, generator.generate(models, {"net_input": inputs})):
        for hypothesis in sentence:
            target = hypothesis["tokens"]
            previous = torch.cat([target.new_tensor([EOS]), target[:-1]])[None]
            chances = [other(batch_of([source]), None, previous)[0][0].softmax(-1) for other in others]
            expected = torch.stack(chances).mean(0)[range(len(target)), target].log()
            torch.testing.assert_close(hypothesis["positional_scores"], expected, rtol=0, atol=1e-5)


def logits_of(model):
    return model(batch_of(SOURCES), None, batch_of([[EOS, 6, 9, 4], [EOS, 5, 5, 8], [EOS, 7, 3, 11]]))[0]


@each_model
@torch.no_grad()
def test_what_is_retained_is_what_training_drops(name, monkeypatch):
    """And nothing without the option; in the full forward as step by step."""
    visible_dropout(monkeypatch)
    model = model_of(name, **RATES, attention_kernel="eager").train()
    dropped, whole = logits_of(model), logits_of(model.eval())
    assert not torch.allclose(dropped, whole)
    for options, expected in (({}, whole), ({"retain_dropout": True}, dropped)):
        model.make_generation_fast_(**options)
        model.eval()  # as the search does
        torch.testing.assert_close(logits_of(model), expected, rtol=1e-12, atol=1e-12)
        Decoding(model).assert_equal_through_exchanges(random.Random(1), 4)


def test_only_modules_that_are_named_drop_in_generation():
    """From the command line, and as fairseq's own call."""
    named = {f"decoder.layers.{n}.encoder_attn" for n in (0, 1)}
    named |= {f"{side}.embedding.dropout" for side in ("encoder", "decoder")}
    for retain, modules, expected in ((True, "DuoEmbedding , DuoCrossAttention,", named), (False, None, set())):
        given = {"retain_dropout": retain, "retain_dropout_modules": modules}
        cfg = OmegaConf.structured(FairseqConfig(generation=GenerationConfig(**given)))
        for call, argument in (("prepare_for_inference_", [cfg]), ("make_generation_fast_", [])):
            model = model_of("duo_transformer", **RATES)
            getattr(model, call)(*argument, **({} if argument else given))
            assert {name for name, module in model.named_modules() if module.training} == expected
    with pytest.raises(OptionError, match=r"--retain-dropout-modules X: .*there are DuoCrossAttention, DuoDecoder"):
        model.make_generation_fast_(retain_dropout=True, retain_dropout_modules="X")
