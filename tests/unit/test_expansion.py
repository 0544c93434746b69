"""scripts/expansion: new words, text in which they are whole, losses per word, a shift of all logits."""

import argparse
import math
from collections import Counter
from pathlib import Path

import pytest
import shift
import torch
from expand_checkpoints import TEXT, dictionary, make
from expansion.word_loss import WordLossCriterion, words_of
from expansion.words import choose, segment_line, segmenter
from fairseq import checkpoint_utils, metrics
from fairseq.data import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import CheckpointError, DataError

PIECES = {"ab": ["ab"], "abcd": ["ab@@", "cd"], "dab": ["d@@", "ab"], "aba": ["ab@@", "a"], "dd": ["d@@", "d"]}


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("codes") / "bpe.codes"
    file.write_text("#version: 0.2\na b\na b</w>\nc d</w>\n")
    return file


def test_the_most_frequent_words_of_the_training_text_that_are_split() -> None:
    """Of equal ones in alphabetical order, whatever the validation text has; a piece of a word is no new symbol."""
    train = Counter({"ab": 90, "abcd": 50, "aba": 70, "dab": 50, "dd": 80})
    found = choose(train, Counter({"ab": 1, "abcd": 2, "aba": 3, "dab": 4}), PIECES.__getitem__, 3, train)
    words = [(word.text, word.subwords, word.train, word.valid) for word in found]
    assert words == [("dd", ["d@@", "d"], 80, 0), ("aba", ["ab@@", "a"], 70, 3), ("abcd", ["ab@@", "cd"], 50, 2)]
    pieces = {"house": ["ho@@", "use"], "reuse": ["re@@", "use"], "use": ["u@@", "se"], "x@@": ["x@@@", "@"]}
    counts = Counter(dict.fromkeys(pieces, 5))
    assert [word.text for word in choose(counts, counts, pieces.__getitem__, 9, counts)] == ["house", "reuse"]
    # of another domain: the old model's text lacks ``re@@``, and has another word as a piece
    assert [word.text for word in choose(counts, counts, pieces.__getitem__, 9, {"house", "use"})] == ["house"]
    pieces["old"] = ["house", "x"]
    assert choose(counts, counts, pieces.__getitem__, 9, {"old", "use"}) == []
    assert choose(Counter({"house": 5}), counts, pieces.__getitem__, 9, {"old", "house"}) == []


texts = st.lists(st.sampled_from([*PIECES, "<unk>", "é", "cab"]), max_size=12)


@settings(max_examples=30)
@given(texts, st.sets(st.sampled_from(["abcd", "aba", "dab"])))
def test_segmented_text_is_the_same_text(codes: Path, words: list[str], whole: set[str]) -> None:
    line = segment_line(" ".join(words), segmenter(codes, whole)).split()
    pieces = {"<unk>": ["<unk>"], "é": ["é"], "cab": ["c@@", "ab"], **PIECES, **{word: [word] for word in whole}}
    assert line == [piece for word in words for piece in pieces[word]]
    assert list(words_of(line, [1.0] * len(line))) == [(word, float(len(pieces[word]))) for word in words]


DICTIONARY = Dictionary()
for symbol in ("th@@", "e", "cat", "the", "s@@"):
    DICTIONARY.add_symbol(symbol)


class Model:
    """Says the same at each place, whatever is read: log-probabilities of all symbols."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.scores = torch.randn(len(DICTIONARY), generator=generator, dtype=torch.float64).requires_grad_()

    def __call__(self, src_tokens):
        return (self.scores.expand(*src_tokens.shape, -1),)

    def get_normalized_probs(self, net_output, log_probs):
        return torch.log_softmax(net_output[0], dim=-1)

    def get_targets(self, sample, net_output):
        return sample["target"]


def criterion_of(new_words: str | None) -> WordLossCriterion:
    task = argparse.Namespace(target_dictionary=DICTIONARY, source_dictionary=DICTIONARY)
    return WordLossCriterion(task, sentence_avg=False, new_words=new_words)


def sample_of(sentences: list[str]) -> dict:
    ids = [torch.tensor([*map(DICTIONARY.index, sentence.split()), DICTIONARY.eos()]) for sentence in sentences]
    target = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=DICTIONARY.pad())
    return {"target": target, "net_input": {"src_tokens": target}, "ntokens": sum(map(len, ids))}


def test_nats_per_word_of_both_segmentations(tmp_path: Path) -> None:
    """By hand: the sum over all pieces and sentence ends, divided by words and sentence ends."""
    (tmp_path / "new.txt").write_text("the\tth@@ e\nsthe\ts@@ the\n")
    criterion = criterion_of(str(tmp_path / "new.txt")).eval()
    nll = dict(zip(DICTIONARY.symbols, (-torch.log_softmax(Model().scores, 0)).tolist()))
    other = 4 * nll["cat"] + nll["s@@"] + nll["e"] + 3 * nll["</s>"]
    for the, spelled in ((nll["th@@"] + nll["e"], "th@@ e"), (nll["the"], "the")):
        batches = [sample_of([f"{spelled} cat", "cat"]), sample_of([f"cat {spelled} cat s@@ e"])]
        with metrics.aggregate() as meters:
            criterion.reduce_metrics([criterion(Model(), batch)[2] for batch in batches])
            found = meters.get_smoothed_values()
        numbers = {"word_nll": (2 * the + other) / 10, "new_nll": the, "other_nll": other / 8, "words": 10, "new": 2}
        assert {name: found[name] for name in numbers} == pytest.approx(numbers, abs=1e-6)
        assert found["word_ppl"] == pytest.approx(math.exp((2 * the + other) / 10), rel=1e-5)
        # the sum is the one that fairseq reports per piece, in bits
        pieces = 9 + 2 * len(spelled.split())
        assert found["loss"] == pytest.approx((2 * the + other) / pieces / math.log(2), abs=1e-3)


def test_training_is_that_of_cross_entropy() -> None:
    batch, model = sample_of(["th@@ e cat", "cat"]), Model()
    expected = -torch.log_softmax(model.scores, 0)[batch["target"][batch["target"] != DICTIONARY.pad()]].sum()
    for criterion in (criterion_of(None).train(), criterion_of(None).eval()):
        loss, sample_size, logged = criterion(model, batch)
        assert (sample_size, "word_sum" in logged) == (6, not criterion.training)
        gradients = (torch.autograd.grad(value, model.scores, retain_graph=True) for value in (loss, expected))
        torch.testing.assert_close(*gradients)


@pytest.fixture(scope="module")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path, str]:
    """The folders that train.sh, prepare.sh and shift.py make, as far as they are read; the line that it prints."""
    folder = tmp_path_factory.mktemp("shift")
    run, data, new = folder / "lm", folder / "data", folder / "new"
    for place in (run / "checkpoints", data / "bin", data / "text/old"):
        place.mkdir(parents=True)
    state = make(folder / "made", "lm_tied").state
    torch.save(state | {"last_optimizer_state": {"state": {}}}, run / "checkpoints/checkpoint_last.pt")
    (run / "architecture").write_text(f"--arch transformer_lm_gpt {shift.TIE} --decoder-layers 1\n")
    (data / "bin/dict.txt").write_text(dictionary())
    (data / "text/old/train").write_text(TEXT)
    return run, data, new, shift.shift(run, data, 6, new)


def read(run: Path, data: Path) -> tuple:
    """Model and dictionary."""
    path = str(run / "checkpoints/checkpoint_last.pt")
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides={"data": str(data / "bin")})
    return model.eval(), task.source_dictionary


@torch.no_grad()
def test_the_logits_are_lower_and_the_probabilities_the_same(shifted) -> None:
    run, data, folder, said = shifted
    assert torch.load(folder / "checkpoints/checkpoint_last.pt", weights_only=False)["last_optimizer_state"] is None
    (old, symbols), (new, _) = read(run, data), read(folder, data)
    ids = symbols.encode_line(TEXT.splitlines()[0], add_if_not_exist=False).long()[None]
    before, after = old(ids)[0].double(), new(ids)[0].double()
    torch.testing.assert_close(after.log_softmax(-1), before.log_softmax(-1), atol=1e-5, rtol=0)
    moved = after - before
    torch.testing.assert_close(moved, moved[..., :1].expand_as(moved), atol=1e-4, rtol=0)
    states = shift.hidden_states(old, symbols, TEXT.splitlines())
    assert (states @ shift.lowering(states, 6)).mean().item() == pytest.approx(-6)
    assert moved.mean().item() == pytest.approx(-6, abs=3)  # in the mean over other sentences, too
    assert (folder / "architecture").read_text().split() == "--arch transformer_lm_gpt --decoder-layers 1".split()
    assert new.decoder.output_projection.weight is not new.decoder.embed_tokens.weight
    torch.testing.assert_close(new.decoder.embed_tokens.weight, old.decoder.embed_tokens.weight, atol=0, rtol=0)
    for model, title in ((old, "log Z "), (new, ", now ")):
        log_z = (states @ model.decoder.output_projection.weight.double().T).logsumexp(1).mean()
        assert float(said.partition(title)[2].split()[0].rstrip(";")) == pytest.approx(float(log_z), abs=0.01)


def test_states_are_those_after_the_beginning_and_a_ridge_keeps_the_shift_small(shifted) -> None:
    model, symbols = read(*shifted[:2])
    line = TEXT.splitlines()[0]
    ids = [symbols.eos(), *symbols.encode_line(line, append_eos=False, add_if_not_exist=False).tolist()]
    expected = model.decoder.extract_features(torch.tensor([ids]), None)[0][0].double()
    torch.testing.assert_close(shift.hidden_states(model, symbols, [line]), expected)
    states = torch.randn(2, 16, generator=torch.Generator().manual_seed(1)).double()  # fewer than dimensions
    mean = states.mean(0)
    direction = torch.linalg.inv(states.T @ states / 2 + 0.1 * torch.eye(16)) @ mean
    torch.testing.assert_close(shift.lowering(states, 5.0), -5 * direction / (direction @ mean))


@pytest.mark.parametrize(
    ("lm", "data", "error", "named"),
    [
        ("lm", "other", DataError, "--data"),
        ("data", "data", DataError, "architecture is missing"),
        ("new", "data", CheckpointError, "output matrix of its own"),
    ],
)
def test_folders_of_other_programs_and_shifted_models_are_refused(shifted, tmp_path, lm, data, error, named) -> None:
    folder = shifted[0].parent
    with pytest.raises(error, match=named):
        shift.shift(folder / lm, folder / data, 1, tmp_path / "new")
    assert not (tmp_path / "new").exists()
