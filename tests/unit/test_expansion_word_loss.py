"""scripts/expansion: losses per word, and the curves and tables made of them."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import pytest
import torch
from fairseq import metrics
from fairseq.data import Dictionary

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from expansion import curve, table
from expansion.word_loss import WordLossCriterion, words_of

SYMBOLS = ["th@@", "e", "cat", "the", "s@@"]


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


@pytest.fixture
def model(dictionary: Dictionary) -> Model:
    generator = torch.Generator().manual_seed(1)
    return Model(torch.randn(len(dictionary), generator=generator, dtype=torch.float64))


def test_nats_per_word_of_both_segmentations(dictionary: Dictionary, model: Model, tmp_path: Path) -> None:
    """By hand: the sum over all pieces and sentence ends, divided by words and sentence ends."""
    (tmp_path / "new.txt").write_text("the\tth@@ e\nsthe\ts@@ the\n")
    criterion = criterion_of(dictionary, tmp_path / "new.txt").eval()
    nll = {s: -float(torch.log_softmax(model.scores, 0)[dictionary.index(s)]) for s in [*SYMBOLS, "</s>"]}

    old = [sample_of(dictionary, ["th@@ e cat", "cat"]), sample_of(dictionary, ["cat th@@ e cat s@@ e"])]
    found = validated(criterion, model, old)
    new = 2 * (nll["th@@"] + nll["e"])
    other = 4 * nll["cat"] + nll["s@@"] + nll["e"] + 3 * nll["</s>"]
    assert (found["words"], found["new"]) == (10, 2)
    assert found["word_nll"] == pytest.approx((new + other) / 10, abs=1e-6)
    assert found["new_nll"] == pytest.approx(new / 2, abs=1e-6)
    assert found["other_nll"] == pytest.approx(other / 8, abs=1e-6)
    assert found["word_ppl"] == pytest.approx(math.exp((new + other) / 10), rel=1e-5)
    # the sum is the one that fairseq reports per piece, in bits
    assert found["loss"] == pytest.approx((new + other) / 13 / math.log(2), abs=1e-3)

    whole = [sample_of(dictionary, ["the cat", "cat"]), sample_of(dictionary, ["cat the cat s@@ e"])]
    found = validated(criterion, model, whole)
    assert (found["words"], found["new"]) == (10, 2)
    assert found["new_nll"] == pytest.approx(nll["the"], abs=1e-6)
    assert found["other_nll"] == pytest.approx(other / 8, abs=1e-6)
    assert found["word_nll"] == pytest.approx((2 * nll["the"] + other) / 10, abs=1e-6)


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
        torch.testing.assert_close(logged["loss"], expected.detach())


def test_without_new_words_all_are_others(dictionary: Dictionary, model: Model) -> None:
    found = validated(criterion_of(dictionary, None).eval(), model, [sample_of(dictionary, ["the cat"])])
    assert "new_nll" not in found
    assert found["other_nll"] == found["word_nll"]


TIME = "2024-01-01 10:00:00 | INFO |"


def validation(updates: int | None, word: float, new: float = 9.0, words: int = 10) -> str:
    record = {"epoch": 1, "valid_loss": "1", "valid_word_nll": f"{word}", "valid_words": f"{words}"}
    record |= {"valid_new_nll": f"{new}", "valid_new": "2", "valid_other_nll": f"{word / 2}"}
    record |= {} if updates is None else {"valid_num_updates": f"{updates}"}
    return f"{TIME} valid | {json.dumps(record)}\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "start.log").write_text(f"noise\n{validation(None, 6.0)}")
    points = [validation(20, 5.0), validation(40, 3.0), validation(40, 4.0), validation(60, 3.5)]
    (tmp_path / "train.log").write_text("noise\n".join(points))
    return tmp_path


def test_a_curve_begins_before_the_first_update(run: Path) -> None:
    points = curve.curve_of(run, every=20, updates=60)
    assert {place: point["word_nll"] for place, point in points.items()} == {0: 6.0, 20: 5.0, 40: 4.0, 60: 3.5}
    assert points[20] == {
        "words": 10,
        "new": 2,
        **{"word_nll": 5.0, "new_nll": 9.0, "other_nll": 2.5},
        **{"word_ppl": math.exp(5), "new_ppl": math.exp(9), "other_ppl": math.exp(2.5)},
    }
    assert list(curve.curve_of(run, every=20, updates=40)) == [0, 20, 40]


def test_a_curve_with_a_hole_or_other_words_is_refused(run: Path) -> None:
    with pytest.raises(SystemExit, match="no validation at update 10"):
        curve.curve_of(run, every=10, updates=60)
    with (run / "train.log").open("a") as log:
        log.write(validation(80, 3.0, words=11))
    with pytest.raises(SystemExit, match="count different words"):
        curve.curve_of(run, every=20, updates=80)
    (run / "start.log").write_text("killed\n")
    with pytest.raises(SystemExit, match=r"start\.log has no validation"):
        curve.curve_of(run, every=20, updates=60)


def test_the_divergence_is_that_of_the_method(tmp_path: Path) -> None:
    assert curve.divergence(tmp_path) is None
    names = ("mean", "q50", "q99", "max", "bound", "new_words_probability")
    methods = {"avg": dict.fromkeys(names, 1.0), "zeros": {**dict.fromkeys(names, 2.0), "bound": None}}
    record = {"method": "zeros", "n": 50, "k": 3, "verify": {"methods": methods}}
    (tmp_path / "expansion.json").write_text(json.dumps(record))
    assert curve.divergence(tmp_path) == {**methods["zeros"], "n": 50, "k": 3}


def write_run(folder: Path, method: str, seed: int, nll: dict[int, float]) -> None:
    folder.mkdir(parents=True)
    (folder / "training.json").write_text("{}")
    points = {str(place): curve.point_of(json.loads(validation(place, n).split(" | ")[3])) for place, n in nll.items()}
    kl = {"mean": 0.5, "q99": 0.75, "max": 1.0, "bound": None, "new_words_probability": 0.25}
    result = {
        "labels": {"method": method, "seed": str(seed)},
        "command": f"fairseq-train data --seed {seed}",
        "scores": {"curve": points, "kl": None if method == "none" else kl},
        "data": {"all": "abc"},
        "hardware": {"cpu": "a CPU", "cores": 2, "threads": 1, "gpus": []},
        "versions": {"torch": "2"},
        "time": {"wall_s": 60.0},
    }
    (folder / "result.json").write_text(json.dumps(result))


def test_tables_and_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    write_run(runs / "zeros.1", "zeros", 1, {0: 3.0, 20: 2.5, 40: 2.0})
    write_run(runs / "zeros.2", "zeros", 2, {0: 3.0, 20: 2.5, 40: 1.0})
    write_run(runs / "none.1", "none", 1, {0: 1.0, 20: 1.0, 40: 1.0, 60: 0.5})
    (runs / "avg.1").mkdir()
    (runs / "avg.1" / "training.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["table", "--runs", str(runs), "--output", str(tmp_path / "out")])
    table.main()
    text = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert "| method | runs | 0 updates | 20 updates | 40 updates |" in lines
    assert lines[4:6] == [
        "| none | 1 | 2.7 | 2.7 | 2.7 |",
        "| zeros | 2 | 20.1 ± 0.0 | 12.2 ± 0.0 | 5.1 ± 3.3 |",  # e^3, e^2.5, mean of e^2 and e
    ]
    assert "| zeros | 2 | 0.5000 ± 0.0000 | 0.7500 ± 0.0000 | 1.0000 ± 0.0000 | - | 0.25000 ± 0.00000 |" in lines
    assert not any(line.startswith("| none |") and "0.5" in line for line in lines)
    assert "* words and sentence ends, new words among them: `10, 2`" in lines
    assert "Not finished yet: avg.1." in lines
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert record["zeros"]["curves"]["zeros.2"]["40"]["word_nll"] == 1.0
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
