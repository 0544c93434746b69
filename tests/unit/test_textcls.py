"""scripts/textcls: reading TSV files, the protocols, bags of words, grids, scores."""

import argparse
import gzip
import math
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from textcls import binarise, list_trainings, protocols, scores

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.vocab.preparation_steps import Preparation

HEADING = "split\tlabel\ttext\n"
LINES = ["train\ta\tone two", "train\tb\tthree", "test\ta\tfour"]


def tsv(folder: Path, lines: list[str], heading: str = HEADING) -> Path:
    path = folder / "data.tsv"
    path.write_text(heading + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_columns_may_have_any_order_and_a_file_may_be_compressed(tmp_path):
    lines = ["1\tone  two\ttrain\ta", "2\tthree\ttrain\tb", "3\tfour\ttest\ta"]
    path, packed = tsv(tmp_path, lines, "id\ttext\tsplit\tlabel\n"), tmp_path / "packed"
    assert protocols.read_examples(path) == [("train", "a", "one  two"), ("train", "b", "three"), ("test", "a", "four")]
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n")))
    assert protocols.read_examples(packed) == protocols.read_examples(path)


@pytest.mark.parametrize(
    ("lines", "heading", "message"),
    [
        ([*LINES, "train\ta"], HEADING, "line 5: 2 fields, .*3 columns"),
        ([*LINES, "train\ttwo words\tword"], HEADING, "line 5: .*'two words'.* write _"),
        ([*LINES, "dev\ta\tword"], HEADING, "line 5: .*'dev' must be train or test"),
        (LINES, "split\ttext\n", "line 1: .*label"),
        ([*LINES, "test\tc\tword"], HEADING, "labels of the test lines; c is missing"),
        (LINES[:2], HEADING, "expected test lines"),
        ([LINES[0], *LINES[::2]], HEADING, "at least two labels .found: 1"),
    ],
)
def test_malformed_files_are_refused(tmp_path, lines, heading, message):
    with pytest.raises(DataError, match=f"data.tsv.*{message}"):
        protocols.read_examples(tsv(tmp_path, lines, heading))


def test_clean_str_of_kim():
    for text, expected in {
        "They've (we'll) say we're 'GREAT', isn't it?": "they 've ( we 'll ) say we 're 'great' , is n't it ?",
        "co-operate: 3.5% of naïve": "co operate 3 5 of na ve",
        "I'd; it's `quote`!": "i 'd it 's `quote` !",
    }.items():
        assert " ".join(Preparation([{"step": "kim"}])(text)) == expected


def test_protocols_differ_in_where_words_are_counted(tmp_path):
    texts = [("train", "the cat The dog"), ("train", "cat bird"), ("test", "bird dog fish the")]
    examples = [protocols.Example(split, "a", text) for split, text in texts]
    stopping = frozenset({"the"})
    # train and test: cat 2, dog 2, bird 2, fish 1
    assert protocols.process(examples, "textgcn", 2, stopping, True) == ["cat dog", "cat bird", "bird dog"]
    # nothing is removed by its count: the dictionary of the training texts decides
    assert protocols.process(examples, "inductive", 2, stopping, True) == ["cat dog", "cat bird", "bird dog fish"]
    assert protocols.process(examples, "inductive", 1, frozenset(), False)[0] == "the cat The dog"
    for protocol, rarest, words, clean in (
        ("textgcn", 2, stopping, True),
        ("inductive", 2, stopping, True),
        ("inductive", 1, frozenset(), False),
    ):
        texts = protocols.process(examples, protocol, rarest, words, clean)
        symbols = {"symbols": {word for text in texts for word in text.split()}}
        prepare = Preparation(protocols.steps_of(protocol, words, clean), symbols)
        assert [" ".join(prepare(example.text)) for example in examples] == texts
    (tmp_path / "train.input0").write_text("a a b\nb a c\n")
    (tmp_path / "test.input0").write_text("d c c\n")
    for protocol, expected in (("textgcn", "abcd"), ("inductive", "ab")):
        binarise.make_dictionary(tmp_path, protocol, min_count=2, path=tmp_path / "dict.txt")
        words = {line.split()[0] for line in (tmp_path / "dict.txt").read_text().splitlines()}
        assert {word for word in words if not word.startswith("madeupword")} == set(expected)


def test_a_grid_has_every_couple_of_vectors_at_every_seed(tmp_path):
    """Vectors may be several files, whose dimensions are those of the model."""
    for name, dim in (("a", 6), ("b", 25), ("c", 6)):
        (tmp_path / f"{name}.txt").write_text(f"one{' 0.5' * dim}\ntwo{' 0.5' * dim}\n")
    for seed in (1, 3):
        (tmp_path / f"my data/seeds/{seed}/bin").mkdir(parents=True)
    fixed = {"data": tmp_path / "my data", "runs": tmp_path / "runs", "epochs": 200, "patience": 10}
    fixed |= {"attentions": ["softmax", "linear"], "extra": ["--lr", "0.5"]}
    vectors = [f"a={tmp_path}/a.txt", f"b={tmp_path}/b.txt"]

    def lines(models: str, *more: str, seeds: list[int] | None = None) -> dict[str, list[str]]:
        found = list_trainings.lines(
            argparse.Namespace(**fixed, models=models.split(), vectors=[*vectors, *more], seeds=seeds)
        )
        return {name: shlex.split(words) for name, words in (line.split(": ", 1) for line in found)}

    found = lines("couples transformer:b transformer mlp")
    models = [f"{couple}.{kind}" for couple in ("a+a", "a+b", "b+b") for kind in ("softmax", "linear")]
    models += ["transformer=b", "transformer", "mlp"]
    assert list(found) == [f"{model}.{seed}" for seed in (1, 3) for model in models]
    assert found["a+b.linear.3"][:3] == [f"DATA={tmp_path}/my data", "SEED=3", f"RUN={tmp_path}/runs/a+b.linear.3"]
    assert f"--embed-init-path encoder={tmp_path}/b.txt" in " ".join(found["transformer=b.1"])
    assert "--embed-init" not in found["transformer.1"]
    found = lines("ab+mean", f"ab=concat:b,{tmp_path}/a.txt", f"mean=avg:a,{tmp_path}/c.txt", seeds=[1])
    paths = f"encoder=concat:{tmp_path}/b.txt,{tmp_path}/a.txt encoder_p=avg:{tmp_path}/a.txt,{tmp_path}/c.txt"
    words = f"--encoder-dim-s 31 --encoder-dim-p 6 --embed-init pretrained --embed-init-path {paths} --max-epoch 200"
    assert f"--duo-attention linear {words} --patience 10 --lr 0.5" in " ".join(found["ab+mean.linear.1"])
    for models, more, seed, named in (
        ("mlp", "mean=avg:a,b", 1, r"--vectors mean=avg:a,b.*one dimension"),
        ("mlp", "a.txt", 1, "--vectors a.txt: give NAME=FILE"),
        ("mlp", "a=a", 1, "a=a: a has two values"),
        ("a+d", "c=a", 1, r"--models a\+d: .*\(a, b, c\)"),
        ("mlp", "c=a", 2, "no seed 2.* SEEDS"),
    ):
        with pytest.raises(OptionError, match=named):
            lines(models, more, seeds=[seed])


def test_f1_of_every_class_its_mean_and_the_figure_of_confused_classes(tmp_path, figures):
    """By counting; the last class neither occurs nor is predicted. The mean is not that of rounded values."""
    truth, taken, labels = [0, 0, 0, 0, 1, 1, 2], [0, 0, 1, 2, 1, 2, 1], list("abcd")
    counts = np.zeros((4, 4), dtype=int)
    for pair in zip(truth, taken):
        counts[pair] += 1
    (found, macro_f1), expected = scores.of_classes(counts, labels), {}
    for number, label in enumerate(labels):
        hits, named = sum(a == b == number for a, b in zip(truth, taken)), truth.count(number) + taken.count(number)
        expected[label] = 200 * hits / named if named else 0.0
    assert found == {"f1": {label: round(f1, 2) for label, f1 in expected.items()}, "confusion": counts.tolist()}
    assert macro_f1 == round(sum(expected.values()) / 4, 2)
    thirds = np.array([[1, 0, 0], [0, 1, 1], [1, 0, 0]])  # 66.666..., 66.666..., 0
    assert scores.of_classes(thirds, list("abc"))[1] == 44.44
    scores.show(tmp_path, {"test_accuracy": 300 / 7, "test_macro_f1": macro_f1}, found)
    (image,) = figures[0].axes[0].images  # shares of the true class
    assert image.get_array()[:3].tolist() == [[0.5, 0.25, 0.25, 0], [0, 0.5, 0.5, 0], [0, 1, 0, 0]]


def test_baselines_see_tf_idf_of_the_training_texts_and_know_a_class_by_its_word(tmp_path, monkeypatch):
    """TF times 1 + ln((1 + texts) / (1 + texts with the word)), each row of length 1 (as scikit-learn defines it)."""
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(Path(scores.__file__).parent)
    from textcls import baselines

    texts = {"train": ["x a a", "a", "b x", "b", "c b"], "valid": ["a", "b"], "test": ["b c unheard", "a a"]}
    (tmp_path / "words.txt").write_text("a 3\nb 3\nc 1\nx 2\n")
    (tmp_path / "labels.txt").write_text("yes 3\nno 2\n")
    for name, lines in texts.items():
        (tmp_path / f"{name}.input0").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / f"{name}.label").write_text("".join("yes\n" if "b" in line else "no\n" for line in lines))
    sets = baselines.read_sets(tmp_path, tmp_path / "words.txt", tmp_path / "labels.txt")
    weights = [1 + math.log(6 / (1 + sum(word in line.split() for line in texts["train"]))) for word in "abcx"]
    for name, lines in texts.items():
        rows = np.array([[line.split().count(word) for word in "abcx"] for line in lines]) * weights
        expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        np.testing.assert_allclose(sets.features[name].toarray(), expected, rtol=1e-6)
        assert sets.labels[name].tolist() == [int("b" not in line) for line in lines]
    found = baselines.tfidf_lr(sets)
    assert (found.test.tolist(), found.valid_accuracy, found.parameters) == ([0, 1], 100.0, 5)
    model = baselines.WideMLP(4, 2).eval()
    hidden = torch.relu(torch.tensor(sets.features["train"].toarray()) @ model.first.weight + model.bias)
    torch.testing.assert_close(model(sets.features["train"]), model.last(hidden), rtol=1e-4, atol=1e-5)
