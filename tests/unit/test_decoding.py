"""Translation models step by step: incremental decoding equals the full forward through any exchange of rows; beam
search; what the cache saves; dropout that is retained."""

from __future__ import annotations

import random

import pytest
import torch

pytest.importorskip("fairseq", reason="these are architectures of fairseq; install it with scripts/setup.sh")
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig
from fairseq.sequence_generator import SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from omegaconf import OmegaConf
from small_models import ARCHITECTURES, EOS, LEARNED, TIED, VARIANTS, batch_of, dictionary
from tupe_reference import visible_dropout

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.modules.decoder_layer import DecoderCache, beam_of, distinct_rows, next_power_of_two

SOURCES = [[4, 5, 6, 7, 8, 9, EOS], [10, 4, EOS], [7, 7, 12, 5, EOS]]
PREVIOUS = [[EOS, 6, 9, 4], [EOS, 5, 5, 8], [EOS, 7, 3, 11]]
RATES = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
NAMES = ["tupe_transformer", "duo_transformer"]
each_model = pytest.mark.parametrize("name", NAMES)
each_variant = pytest.mark.parametrize(
    ("name", "options"),
    [case for case in VARIANTS.values() if case[0] in NAMES],
    ids=[v for v in VARIANTS if "former: " in v],
)
DUO = ARCHITECTURES["duo_transformer"]


def model_of(name, **options):
    return ARCHITECTURES[name].randomised(**options)


class Decoding:
    """Rows of (sentence, prefix) that are decoded incrementally, with the logits of the full forward beside it."""

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

    def step(self, words):
        """Logits and attention of the new tokens, incremental and in full; then every prefix gets its words."""
        previous = torch.tensor([prefix for _, prefix in self.rows])
        length = self.done if self.state else 0
        new, extra = self.model.decoder(previous, self.encoder_out, self.state)
        full, full_extra = self.model(self.tokens[[number for number, _ in self.rows]], None, previous)
        self.done = previous.shape[1]
        for (_, prefix), more in zip(self.rows, words):
            prefix.extend(more)
        return (new, extra["attn"][0]), (full[:, length:], full_extra["attn"][0][:, length:])

    def assert_equal(self, choice, tolerance=1e-12):
        """One step, and one word more for every row, or two."""
        amount = choice.choice([1, 1, 1, 2])
        words = [[choice.randrange(3, 15) for _ in range(amount)] for _ in self.rows]
        for one, other in zip(*self.step(words)):
            assert one.shape == other.shape
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)

    def assert_equal_through_exchanges(self, choice, steps, tolerance=1e-12):
        """Rows change places within sentences and between them, are left out and doubled; twice in a row at times."""
        for _ in range(steps):
            self.assert_equal(choice, tolerance)
            for _ in range(choice.choice([0, 1, 1, 2])):
                number = len(self.rows)
                kind = choice.choice(["shuffle", "double", "fewer", "any"])
                if kind == "shuffle":
                    self.reorder(choice.sample(range(number), number))
                elif kind == "double" and number < 8:
                    self.reorder([at for at in range(number) for _ in range(2)])
                elif kind == "fewer" and number > 2:
                    self.reorder(sorted(choice.sample(range(number), number - 1)))
                elif kind == "any":
                    self.reorder([choice.randrange(number) for _ in range(number)])


@each_variant
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@torch.no_grad()
def test_incremental_equals_full(name, options, left):
    Decoding(model_of(name, **options), left).assert_equal_through_exchanges(random.Random(1 + left), 8)


@each_model
@torch.no_grad()
def test_incremental_equals_full_in_single_precision(name):
    """With initial values: random ones of size 1 would make logits of size 50. Rounding alone makes 1e-6 of these."""
    Decoding(ARCHITECTURES[name].build().eval()).assert_equal_through_exchanges(random.Random(2), 8, 4e-6)


@each_model
@pytest.mark.parametrize("seed", range(2))
@torch.no_grad()
def test_incremental_equals_full_beyond_every_capacity(name, seed):
    """Caches begin with 32 columns, and the positions of our small models end at 48, which is no power of two."""
    decoding = Decoding(model_of(name, **({"rel_pos": True} if name == "tupe_transformer" else LEARNED)))
    while len(decoding.rows[0][1]) < 48:
        decoding.assert_equal_through_exchanges(random.Random(seed + len(decoding.rows[0][1])), 1)


@each_model
@torch.no_grad()
def test_a_prefix_may_come_at_once(name):
    decoding = Decoding(model_of(name))
    decoding.rows = [(number, [EOS, 4, 5 + number, 6]) for number in range(3)]
    decoding.assert_equal_through_exchanges(random.Random(3), 3)


@each_model
def test_a_step_without_a_new_token_is_refused(name):
    model, state = model_of(name), {}
    encoder_out = model.encoder(batch_of(SOURCES))
    model.decoder(torch.full((3, 2), EOS), encoder_out, state)
    with pytest.raises(DataError, match="given 2 tokens after 2: prev_output_tokens must be the whole prefix"):
        model.decoder(torch.full((3, 2), EOS), encoder_out, state)


# ---- What the cache saves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@torch.no_grad()
def test_beams_that_share_their_memory(seed):
    """As beam search has them: rows of a sentence are neighbours and stay so, until any exchange is allowed."""
    choice, beam, sentences = random.Random(seed), 4, 3
    decoding = Decoding(DUO.randomised(**TIED), left=bool(seed % 2))
    decoding.reorder([at for at in range(3) for _ in range(beam)])
    for step in range(6):
        decoding.assert_equal(choice)
        assert decoding.cache.beam == beam
        assert len(decoding.cache.memory[0][0]) == 2 * sentences
        kept = sorted(choice.sample(range(sentences), max(1, sentences - step % 3 // 2)))
        decoding.reorder([beam * sentence + choice.randrange(beam) for sentence in kept for _ in range(beam)])
        sentences = len(kept)
    decoding.reorder([0, *range(len(decoding.rows))])  # one more of the first sentence: no longer beam by beam
    decoding.assert_equal(choice)
    assert decoding.cache.beam == 1
    decoding.assert_equal_through_exchanges(choice, 4)


@each_model
@torch.no_grad()
def test_beams_of_sentences_that_come_back_in_another_order(name):
    decoding, choice = Decoding(model_of(name)), random.Random(0)
    decoding.reorder([0, 0, 1, 1, 2, 2])
    decoding.assert_equal(choice)
    decoding.reorder([4, 5, 0, 1, 0, 0])  # sentences 2, 0, 0
    decoding.assert_equal(choice)
    assert decoding.cache.beam == (2 if name == "duo_transformer" else 1)
    decoding.reorder([1, 2, 2, 3, 4, 5])  # sentence 2 once, then 0: neighbours differ
    decoding.assert_equal(choice)
    assert decoding.cache.beam == 1


@each_model
@torch.no_grad()
def test_exchanges_within_a_sentence_copy_neither_encoder_output_nor_memory(name):
    decoding = Decoding(model_of(name))
    decoding.reorder([0, 0, 1, 1, 2, 2])
    decoding.step([[5]] * 6)
    encoder_out, memory = decoding.encoder_out, decoding.cache.memory
    decoding.reorder([1, 0, 2, 2, 5, 4])
    assert decoding.encoder_out is encoder_out
    assert decoding.cache.memory is memory
    decoding.reorder([2, 3])
    assert decoding.encoder_out["encoder_out"][0].shape[1] == 2
    assert len(decoding.cache.memory[0][0]) == 2  # two rows; or one sentence, two streams


@each_model
@torch.no_grad()
def test_keys_and_values_of_the_encoder_are_computed_once_and_once_a_sentence(name, monkeypatch):
    model, calls = model_of(name), []
    decoding = Decoding(model)
    for layer in model.decoder.layers:
        original = layer.encoder_attn.memory
        monkeypatch.setattr(layer.encoder_attn, "memory", lambda x, f=original: calls.append(x.shape[-3]) or f(x))
    decoding.reorder([0, 1, 0, 1, 2, 2])
    for length in (1, 2):
        model.decoder(torch.full((6, length), EOS), decoding.encoder_out, decoding.state)
    assert calls == [3, 3]


@torch.no_grad()
def test_positions_are_computed_for_powers_of_two_only(monkeypatch):
    model, lengths, state = model_of("tupe_transformer"), [], {}
    original = model.decoder.positions.bias
    monkeypatch.setattr(model.decoder.positions, "bias", lambda length: lengths.append(length) or original(length))
    encoder_out = model.encoder(batch_of(SOURCES))
    for length in range(1, 41):
        model.decoder(torch.full((3, length), EOS), encoder_out, state)
    assert lengths == [32, 48]


@each_model
def test_encoder_states_go_with_their_rows(name):
    model, order = model_of(name), torch.tensor([2, 0, 0])
    encoder_out = model.encoder(batch_of(SOURCES), None, return_all_hiddens=True)
    reordered = model.encoder.reorder_encoder_out(encoder_out, order)
    for before, after in zip(encoder_out["encoder_states"], reordered["encoder_states"]):
        assert torch.equal(after, before[:, order])
    assert torch.equal(reordered["src_lengths"][0], encoder_out["src_lengths"][0][order])


def test_beams_and_distinct_rows_by_hand():
    for place, distinct, beam in (
        *(([0, 0, 1, 1, 2, 2], 3, 2), ([0, 1, 0, 1, 2, 2], 3, 1), ([1, 1, 0, 0], 2, 1)),
        *(([0, 0, 1], 2, 1), ([0, 0, 0], 1, 3)),
    ):
        assert beam_of(torch.tensor(place), distinct) == beam
    sentences = torch.tensor([7, 3, 7, 7, 5])
    rows, place = distinct_rows(sentences)
    assert torch.equal(sentences[rows][place], sentences)
    assert len(rows) == 3
    assert [next_power_of_two(n) for n in (1, 32, 33, 64, 65)] == [32, 32, 64, 64, 128]


@torch.no_grad()
def test_buffers_are_used_again():
    """Three layers, exchanged rows: four buffers in all, whatever the number of steps."""
    sentence, seen = torch.zeros(4, dtype=torch.long), set()
    cache = DecoderCache(sentence, [(torch.zeros(4, 1, 1, 2),) * 2 for _ in range(3)])
    for step in range(20):
        cache.reorder(torch.tensor([1, 0, 3, 2]))
        for layer in range(3):
            new = torch.full((4, 1, 1, 2), float(step))
            k, v = cache.extend(layer, new, new + 100)
            assert k[:, 0, :, 0].tolist() == [list(map(float, range(step + 1)))] * 4
            assert torch.equal(v, k + 100)
            seen.add(k.data_ptr())
        cache.advance(1)
    assert len(seen) == 4


# ---- fairseq's beam search ------------------------------------------------------------------------------------------


def searched(model, sources=SOURCES, left=False, beam=5):
    models = model if isinstance(model, list) else [model]
    generator = SequenceGenerator(models, dictionary(), beam_size=beam, max_len_b=12)
    inputs = {"src_tokens": batch_of(sources, left), "src_lengths": torch.tensor([len(source) for source in sources])}
    return generator.generate(models, {"net_input": inputs})


def tokens_of(found):
    return [[hypothesis["tokens"].tolist() for hypothesis in sentence] for sentence in found]


@pytest.mark.parametrize("options", [{}, TIED], ids=["", "tied"])
@each_model
@torch.no_grad()
def test_beam_search_of_a_sentence_does_not_see_its_batch(name, options):
    """Six random sentences together, padded on either side, and one by one."""
    model, choice = model_of(name, **options), random.Random(1)
    sources = [[choice.randrange(3, 15) for _ in range(choice.randrange(0, 9))] + [EOS] for _ in range(6)]
    right, left = (searched(model, sources, side, 4) for side in (False, True))
    alone = [searched(model, [source], beam=4)[0] for source in sources]
    assert tokens_of(right) == tokens_of(left) == tokens_of(alone)
    for one, other in zip(right, alone):
        for hypothesis, same in zip(one, other):
            expected = same["positional_scores"]
            torch.testing.assert_close(hypothesis["positional_scores"], expected, rtol=0, atol=1e-5)


def ways_to_the_output(model, monkeypatch, way):
    """The logits of fusion with tied tables are computed in one of three ways, whatever the full forward does."""
    if way == "prepared":
        model.make_generation_fast_()
    else:
        monkeypatch.setattr("embinit_fairseq.architectures.duo._STEPS", 0 if way == "factored" else 1000)


@pytest.mark.parametrize(
    ("name", "way"), [(NAMES[0], "fused"), *((NAMES[1], w) for w in ("factored", "fused", "prepared"))]
)
@torch.no_grad()
def test_scores_of_beam_search_are_those_of_the_full_forward(name, way, monkeypatch):
    model, other = (ARCHITECTURES[name].build(**TIED).eval() for _ in range(2))
    ways_to_the_output(model, monkeypatch, way)
    scorer = SequenceScorer(dictionary())
    for source, sentence in zip(SOURCES, searched(model, beam=3)):
        for hypothesis in sentence:
            target = hypothesis["tokens"]
            previous = torch.cat([target.new_tensor([EOS]), target[:-1]])
            inputs = {"src_tokens": batch_of([source]), "src_lengths": None, "prev_output_tokens": previous[None]}
            sample = {"net_input": inputs, "target": target[None], "ntokens": len(target)}
            scores = scorer.generate([other], sample)[0][0]["positional_scores"]
            torch.testing.assert_close(scores, hypothesis["positional_scores"], rtol=0, atol=1e-5)


@torch.no_grad()
def test_an_ensemble_of_two_models_with_different_switches():
    """Each keeps a state of its own; fairseq's scores of an ensemble are the mean of the probabilities."""
    ensemble = [DUO.build(**TIED).eval(), DUO.build(duo_fusion="off", duo_streams=1).eval()]
    for source, sentence in zip(SOURCES, searched(ensemble, beam=4)):
        target = sentence[0]["tokens"]
        previous = torch.cat([target.new_tensor([EOS]), target[:-1]])[None]
        probabilities = sum(model(batch_of([source]), None, previous)[0].softmax(-1) for model in ensemble) / 2
        expected = probabilities[0, range(len(target)), target].log()
        torch.testing.assert_close(sentence[0]["positional_scores"], expected, rtol=0, atol=1e-5)


# ---- fairseq-generate --retain-dropout ------------------------------------------------------------------------------


def logits_of(model):
    return model(batch_of(SOURCES), None, batch_of(PREVIOUS))[0]


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


LAYERS = {f"encoder.layers.{n}.{dropout}" for n in (0, 1) for dropout in ("dropout", "activation_dropout")}
CROSS = {f"decoder.layers.{n}.encoder_attn" for n in (0, 1)}
SELF = {f"encoder.layers.{n}.self_attn" for n in (0, 1)}


@pytest.mark.parametrize(
    ("name", "modules", "retained"),
    [
        ("duo_transformer", "DuoEncoderLayer,DuoCrossAttention", LAYERS | CROSS),
        ("duo_transformer", ["DuoEncoderLayer", "DuoCrossAttention"], LAYERS | CROSS),
        ("tupe_transformer", "SelfAttention , CrossAttention,", SELF | CROSS),  # not DecoderSelfAttention
    ],
)
def test_only_the_modules_that_are_named(name, modules, retained):
    model = model_of(name, **RATES)
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=modules)
    assert {name for name, module in model.named_modules() if module.training} == retained


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retain_dropout": True, "retain_dropout_modules": ""}, " names none; there are DuoCrossAttention, "),
        ({"retain_dropout": True, "retain_dropout_modules": []}, " names none; there are DuoCrossAttention, "),
        (
            {"retain_dropout": True, "retain_dropout_modules": ["X"]},
            " X: .*there are DuoCrossAttention, DuoDecoderLayer, DuoEmb",
        ),
        (
            {"retain_dropout_modules": ["DuoEmbedding"]},
            " means nothing without --retain-dropout: give both, or neither",
        ),
    ],
)
def test_nothing_to_be_retained(options, message):
    with pytest.raises(OptionError, match=f"--retain-dropout-modules{message}"):
        DUO.build(**RATES).make_generation_fast_(**options)


@pytest.mark.parametrize("named", [None, "DuoCrossAttention"])
def test_the_command_line_reaches_the_model(named):
    """What `prepare_for_inference_` reads of fairseq's configuration."""
    for retain in (True, False):
        given = GenerationConfig(retain_dropout=retain, retain_dropout_modules=named)
        cfg, model = OmegaConf.structured(FairseqConfig(generation=given)), DUO.randomised(**RATES)
        if named and not retain:
            with pytest.raises(OptionError, match="--retain-dropout-modules means nothing without --retain-dropout"):
                model.prepare_for_inference_(cfg)
            continue
        model.prepare_for_inference_(cfg)
        classes = {type(module).__name__ for module in model.modules() if module.training}
        assert classes == ({named} if named else classes if retain else set())
        assert bool(classes) == retain


@each_model
def test_searches_differ_by_the_seed_alone(name):
    model = model_of(name, **{**RATES, "dropout": 0.5})
    model.make_generation_fast_(retain_dropout=True)

    def search(seed):
        torch.manual_seed(seed)
        return tokens_of(searched(model, beam=2))

    assert search(1) == search(1)
    assert len({str(search(seed)) for seed in range(3)}) > 1


def test_flex_cannot_drop():
    model = model_of("tupe_transformer", **RATES, attention_kernel="flex")
    model.make_generation_fast_(retain_dropout=True)
    with (
        pytest.raises(OptionError, match=r"choose auto .*--model-overrides .*'attention_kernel': 'auto'"),
        torch.no_grad(),
    ):
        logits_of(model)
