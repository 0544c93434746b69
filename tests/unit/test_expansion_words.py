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

#: "ab" at the start or in the middle of a word, "ab" as a word or at its end, "cd" at the end
CODES = "#version: 0.2\na b\na b</w>\nc d</w>\n"
PIECES = {"ab": ["ab"], "abcd": ["ab@@", "cd"], "dab": ["d@@", "ab"], "aba": ["ab@@", "a"], "dd": ["d@@", "d"]}
SYMBOLS = ["th@@", "e", "cat", "the", "s@@"]


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("codes") / "bpe.codes"
    file.write_text(CODES)
    return file


def test_words_are_cut_by_the_codes_but_not_the_unknown_one(codes: Path) -> None:
    cut = Cutter(codes)
    assert {word: cut(word) for word in PIECES} == PIECES
    assert cut("<unk>") == ["<unk>"]
    assert Cutter(codes, ["abcd"])("abcd") == ["abcd"]


def test_the_most_frequent_words_that_are_split_and_that_the_validation_text_has() -> None:
    train = Counter({"ab": 90, "abcd": 50, "aba": 70, "dab": 50, "dd": 80, "never": 60})
    valid = Counter({"ab": 1, "abcd": 2, "aba": 3, "dab": 4})
    found = choose(train, valid, lambda word: PIECES.get(word, [f"{word[0]}@@", word[1:]]), 2)
    # dd and never are not in the validation text, ab is not split; abcd and dab: alphabetical order
    assert [(word.text, word.pieces, word.train, word.valid) for word in found] == [
        ("aba", ["ab@@", "a"], 70, 3),
        ("abcd", ["ab@@", "cd"], 50, 2),
    ]


def test_a_word_that_is_a_piece_of_another_is_no_new_symbol() -> None:
    pieces = {"house": ["ho@@", "use"], "reuse": ["re@@", "use"], "use": ["u@@", "se"], "x@@": ["x@@@", "@"]}
    counts = Counter(dict.fromkeys(pieces, 5))
    assert [word.text for word in choose(counts, counts, pieces.__getitem__, 9)] == ["house", "reuse"]


texts = st.lists(st.sampled_from([*PIECES, "<unk>", "é", "cab"]), max_size=12)


@given(texts, st.sets(st.sampled_from(["abcd", "aba", "dab"])))
def test_segmented_text_is_the_same_text(codes: Path, words: list[str], whole: set[str]) -> None:
    line = cut_line(" ".join(words), Cutter(codes, whole))
    assert f"{line} ".replace("@@ ", "").split() == words
    assert [piece for piece in line.split() if piece in whole] == [word for word in words if word in whole]


def test_pieces_are_put_together_and_their_losses_added() -> None:
    symbols = ["th@@", "e", "cat", "s@@", "s@@", "e", "@-@", "</s>"]
    losses = [1.0, 0.5, 2.0, 0.25, 0.25, 0.5, 3.0, 4.0]
    expected = [("the", 1.5), ("cat", 2.0), ("sse", 1.0), ("@-@", 3.0), ("</s>", 4.0)]
    assert list(words_of(symbols, losses)) == expected
    assert list(words_of([], [])) == []


class Model(torch.nn.Module):
    """Says the same at each place, whatever is read: log-probabilities of all symbols."""

    def __init__(self, scores: torch.Tensor):
        super().__init__()
        self.scores = scores

    def forward(self, src_tokens):
        return (self.scores.expand(*src_tokens.shape, -1),)

    def get_normalized_probs(self, net_output, log_probs):
        return torch.log_softmax(net_output[0], dim=-1)

    def get_targets(self, sample, net_output):
        return sample["target"]


@pytest.fixture
def dictionary() -> Dictionary:
    dictionary = Dictionary()
    for symbol in SYMBOLS:
        dictionary.add_symbol(symbol)
    return dictionary


@pytest.fixture
def model(dictionary: Dictionary) -> Model:
    generator = torch.Generator().manual_seed(1)
    return Model(torch.randn(len(dictionary), generator=generator, dtype=torch.float64))


def criterion_of(dictionary: Dictionary, new_words: Path | None) -> WordLossCriterion:
    task = argparse.Namespace(target_dictionary=dictionary, source_dictionary=dictionary)
    return WordLossCriterion(task, sentence_avg=False, new_words=str(new_words) if new_words else None)


def sample_of(dictionary: Dictionary, sentences: list[str]) -> dict:
    ids = [[*map(dictionary.index, sentence.split()), dictionary.eos()] for sentence in sentences]
    longest = max(map(len, ids))
    target = torch.tensor([row + [dictionary.pad()] * (longest - len(row)) for row in ids])
    return {"target": target, "net_input": {"src_tokens": target}, "ntokens": sum(map(len, ids))}


def validated(criterion: WordLossCriterion, model: Model, batches: list[dict]) -> dict[str, float]:
    with metrics.aggregate() as found:
        criterion.reduce_metrics([criterion(model, batch)[2] for batch in batches])
        return found.get_smoothed_values()


def test_nats_per_word_of_both_segmentations(dictionary: Dictionary, model: Model, tmp_path: Path) -> None:
    """By hand: the sum over all pieces and sentence ends, divided by words and sentence ends."""
    (tmp_path / "new.txt").write_text("the\tth@@ e\nsthe\ts@@ the\n")
    criterion = criterion_of(dictionary, tmp_path / "new.txt").eval()
    nll = {s: -float(torch.log_softmax(model.scores, 0)[dictionary.index(s)]) for s in [*SYMBOLS, "</s>"]}
    other = 4 * nll["cat"] + nll["s@@"] + nll["e"] + 3 * nll["</s>"]
    for the, spelled in ((nll["th@@"] + nll["e"], "th@@ e"), (nll["the"], "the")):
        batches = [[f"{spelled} cat", "cat"], [f"cat {spelled} cat s@@ e"]]
        found = validated(criterion, model, [sample_of(dictionary, batch) for batch in batches])
        assert (found["words"], found["new"]) == (10, 2)
        assert found["word_nll"] == pytest.approx((2 * the + other) / 10, abs=1e-6)
        assert found["new_nll"] == pytest.approx(the, abs=1e-6)
        assert found["other_nll"] == pytest.approx(other / 8, abs=1e-6)
        assert found["word_ppl"] == pytest.approx(math.exp((2 * the + other) / 10), rel=1e-5)
        # the sum is the one that fairseq reports per piece, in bits
        pieces = 9 + 2 * len(spelled.split())
        assert found["loss"] == pytest.approx((2 * the + other) / pieces / math.log(2), abs=1e-3)


def test_training_is_that_of_cross_entropy(dictionary: Dictionary, model: Model) -> None:
    batch = sample_of(dictionary, ["th@@ e cat", "cat"])
    scores = model.scores.requires_grad_()
    expected = -torch.log_softmax(scores, 0)[batch["target"][batch["target"] != dictionary.pad()]].sum()
    for criterion in (criterion_of(dictionary, None).train(), criterion_of(dictionary, None).eval()):
        loss, sample_size, logged = criterion(model, batch)
        assert sample_size == 6
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(
            *(torch.autograd.grad(value, scores, retain_graph=True) for value in (loss, expected))
        )
        assert ("word_sum" in logged) == (not criterion.training)


def validation(updates: int | None, word: float, words: int = 10) -> str:
    record = {"epoch": 1, "valid_loss": "1", "valid_word_nll": f"{word}", "valid_words": f"{words}"}
    record |= {"valid_new_nll": "9.0", "valid_new": "2", "valid_other_nll": f"{word / 2}"}
    record |= {} if updates is None else {"valid_num_updates": f"{updates}"}
    return f"2024-01-01 10:00:00 | INFO | valid | {json.dumps(record)}\n"


def write_run(folder: Path, method: str, seed: int, nll: dict[int, float], finished: bool = True) -> None:
    folder.mkdir(parents=True)
    record = {
        "labels": {"method": method, "seed": str(seed)},
        "command": f"fairseq-train data --seed {seed}",
        "metric": "valid_loss",
        "data": {"all": "abc"},
    }
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
    runs = tmp_path / "runs"
    write_run(runs / "zeros.1", "zeros", 1, {0: 3.0, 20: 2.5, 40: 2.0})
    write_run(runs / "zeros.2", "zeros", 2, {0: 3.0, 20: 2.5, 40: 1.0})
    write_run(runs / "none.1", "none", 1, {0: 1.0, 20: 1.0, 40: 1.0, 60: 0.5})
    write_run(runs / "avg.1", "avg", 1, {0: 1.0}, finished=False)
    monkeypatch.setattr(sys, "argv", ["table", str(runs), "--output", str(tmp_path / "out")])
    table.main()
    lines = (tmp_path / "out" / "results.md").read_text(encoding="utf-8").splitlines()
    assert "| method | runs | 0 updates | 20 updates | 40 updates |" in lines
    assert lines[4:6] == [
        "| none | 1 | 2.7 | 2.7 | 2.7 |",
        "| zeros | 2 | 20.1 ± 0.0 | 12.2 ± 0.0 | 5.1 ± 3.3 |",  # e^3, e^2.5, mean of e^2 and e
    ]
    assert "| zeros | 2 | 0.5000 ± 0.0000 | 0.7500 ± 0.0000 | 1.0000 ± 0.0000 | - | 0.25000 ± 0.00000 |" in lines
    assert "* words and sentence ends, new words among them: `10, 2`" in lines
    assert "Not finished yet: avg.1." in lines
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert record["zeros"]["curves"]["zeros.2"]["40"]["word_nll"] == 1.0
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_curve_without_a_beginning_or_of_other_words_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "avg", 1, {0: 3.0, 20: 2.0})
    with (tmp_path / "a" / "train.log").open("a") as log:
        log.write(validation(20, 2.5))  # of repeated ones, after a restart, the last counts
    assert [point["word_nll"] for point in table.read_curve(tmp_path / "a").values()] == [3.0, 2.5]
    with (tmp_path / "a" / "train.log").open("a") as log:
        log.write(validation(40, 3.0, words=11))
    with pytest.raises(DataError, match=r"different words.*remove"):
        table.read_curve(tmp_path / "a")
    (tmp_path / "a" / "start.log").write_text("killed\n")
    with pytest.raises(DataError, match=r"start\.log.*adapt\.sh again"):
        table.read_curve(tmp_path / "a")
