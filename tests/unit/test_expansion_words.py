"""scripts/expansion: which words become new, text in which they are whole, losses per word, and the tables of them."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from fairseq import metrics
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from expansion import table
from expansion.word_loss import WordLossCriterion, words_of
from expansion.words import Cutter, choose, cut_line

from embinit_fairseq.errors import DataError

PIECES = {"ab": ["ab"], "abcd": ["ab@@", "cd"], "dab": ["d@@", "ab"], "aba": ["ab@@", "a"], "dd": ["d@@", "d"]}


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("codes") / "bpe.codes"
    file.write_text("#version: 0.2\na b\na b</w>\nc d</w>\n")
    return file


def test_the_most_frequent_words_that_are_split_and_that_the_validation_text_has() -> None:
    train = Counter({"ab": 90, "abcd": 50, "aba": 70, "dab": 50, "dd": 80, "never": 60})
    valid = Counter({"ab": 1, "abcd": 2, "aba": 3, "dab": 4})
    found = choose(train, valid, lambda word: PIECES.get(word, [f"{word[0]}@@", word[1:]]), 2)
    # dd and never are not in the validation text, ab is not split; abcd and dab: alphabetical order
    words = [(word.text, word.pieces, word.train, word.valid) for word in found]
    assert words == [("aba", ["ab@@", "a"], 70, 3), ("abcd", ["ab@@", "cd"], 50, 2)]
    # a word that is a piece of another is no new symbol
    pieces = {"house": ["ho@@", "use"], "reuse": ["re@@", "use"], "use": ["u@@", "se"], "x@@": ["x@@@", "@"]}
    counts = Counter(dict.fromkeys(pieces, 5))
    assert [word.text for word in choose(counts, counts, pieces.__getitem__, 9)] == ["house", "reuse"]


texts = st.lists(st.sampled_from([*PIECES, "<unk>", "é", "cab"]), max_size=12)


@given(texts, st.sets(st.sampled_from(["abcd", "aba", "dab"])))
def test_segmented_text_is_the_same_text(codes: Path, words: list[str], whole: set[str]) -> None:
    line = cut_line(" ".join(words), Cutter(codes, whole)).split()
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


def criterion_of(new_words: Path | None) -> WordLossCriterion:
    task = argparse.Namespace(target_dictionary=DICTIONARY, source_dictionary=DICTIONARY)
    return WordLossCriterion(task, sentence_avg=False, new_words=str(new_words) if new_words else None)


def sample_of(sentences: list[str]) -> dict:
    ids = [torch.tensor([*map(DICTIONARY.index, sentence.split()), DICTIONARY.eos()]) for sentence in sentences]
    target = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=DICTIONARY.pad())
    return {"target": target, "net_input": {"src_tokens": target}, "ntokens": sum(map(len, ids))}


def test_nats_per_word_of_both_segmentations(tmp_path: Path) -> None:
    """By hand: the sum over all pieces and sentence ends, divided by words and sentence ends."""
    (tmp_path / "new.txt").write_text("the\tth@@ e\nsthe\ts@@ the\n")
    criterion = criterion_of(tmp_path / "new.txt").eval()
    nll = dict(zip(DICTIONARY.symbols, (-torch.log_softmax(Model().scores, 0)).tolist()))
    other = 4 * nll["cat"] + nll["s@@"] + nll["e"] + 3 * nll["</s>"]
    for the, spelled in ((nll["th@@"] + nll["e"], "th@@ e"), (nll["the"], "the")):
        batches = [sample_of([f"{spelled} cat", "cat"]), sample_of([f"cat {spelled} cat s@@ e"])]
        with metrics.aggregate() as meters:
            criterion.reduce_metrics([criterion(Model(), batch)[2] for batch in batches])
            found = meters.get_smoothed_values()
        assert (found["words"], found["new"]) == (10, 2)
        assert found["word_nll"] == pytest.approx((2 * the + other) / 10, abs=1e-6)
        assert found["new_nll"] == pytest.approx(the, abs=1e-6)
        assert found["other_nll"] == pytest.approx(other / 8, abs=1e-6)
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
        torch.testing.assert_close(loss, expected)
        gradients = (torch.autograd.grad(value, model.scores, retain_graph=True) for value in (loss, expected))
        torch.testing.assert_close(*gradients)


def validation(updates: int | None, word: float, words: int = 10) -> str:
    record = {"loss": 1, "word_nll": word, "words": words, "new_nll": 9.0, "new": 2, "other_nll": word / 2}
    record |= {} if updates is None else {"num_updates": updates}
    shown = json.dumps({"epoch": 1, **{f"valid_{name}": f"{value}" for name, value in record.items()}})
    return f"2024-01-01 10:00:00 | INFO | valid | {shown}\n"


def write_run(folder: Path, method: str, seed: int, nll: dict[int, float], finished: bool = True) -> None:
    folder.mkdir(parents=True)
    record = {"labels": {"method": method, "seed": str(seed)}, "command": f"fairseq-train data --seed {seed}"}
    record |= {"metric": "valid_loss", "data": {"all": "abc"}}
    (folder / "training.json").write_text(json.dumps(record))
    (folder / "start.log").write_text("noise\n" + validation(None, nll[0]))
    (folder / "train.log").write_text("noise\n".join(validation(place, n) for place, n in nll.items() if place))
    if finished:
        (folder / "result.json").write_text(json.dumps(record))
    values = {"mean": 0.5, "q50": 0.5, "q99": 0.75, "max": 1.0, "bound": None, "new_words_probability": 0.25}
    verified = {"method": method, "n": 50, "k": 3, "verify": {"methods": {method: values, "other": {}}}}
    if method != "none":
        (folder / "expansion.json").write_text(json.dumps(verified))


def test_tables_and_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, output = tmp_path / "runs", tmp_path / "out"
    write_run(runs / "zeros.1", "zeros", 1, {0: 3.0, 20: 2.5, 40: 2.0})
    write_run(runs / "zeros.2", "zeros", 2, {0: 3.0, 20: 2.5, 40: 1.0})
    write_run(runs / "none.1", "none", 1, {0: 1.0, 20: 1.0, 40: 1.0, 60: 0.5})
    write_run(runs / "avg.1", "avg", 1, {0: 1.0}, finished=False)
    monkeypatch.setattr(sys, "argv", ["table", str(runs), "--output", str(output)])
    table.main()
    lines = (output / "results.md").read_text(encoding="utf-8").splitlines()
    for line in (
        "| method | runs | 0 updates | 20 updates | 40 updates |",
        "| none | 1 | 2.7 | 2.7 | 2.7 |",
        "| zeros | 2 | 20.1 ± 0.0 | 12.2 ± 0.0 | 5.1 ± 3.3 |",  # e^3, e^2.5, mean of e^2 and e
        "| zeros | 2 | 0.5000 ± 0.0000 | 0.7500 ± 0.0000 | 1.0000 ± 0.0000 | - | 0.25000 ± 0.00000 |",
        "* words and sentence ends, new words among them: `10, 2`",
        "Not finished yet: avg.1.",
    ):
        assert line in lines
    record = json.loads((output / "results.json").read_text())
    assert record["zeros"]["curves"]["zeros.2"]["40"]["word_nll"] == 1.0


def test_a_curve_without_a_beginning_or_of_other_words_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "avg", 1, {0: 3.0, 20: 2.0})
    with (tmp_path / "a" / "train.log").open("a") as log:
        log.write(validation(20, 2.5))  # of repeated ones, after a restart, the last counts
        log.flush()
        assert [point["word_nll"] for point in table.read_curve(tmp_path / "a").values()] == [3.0, 2.5]
        log.write(validation(40, 3.0, words=11))
    with pytest.raises(DataError, match=r"different words.*remove"):
        table.read_curve(tmp_path / "a")
    (tmp_path / "a" / "start.log").write_text("killed\n")
    with pytest.raises(DataError, match=r"start\.log.*adapt\.sh again"):
        table.read_curve(tmp_path / "a")
