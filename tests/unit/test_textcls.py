"""scripts/textcls: reading TSV files, the protocols, validation texts, bags of words, grids, scores, tables."""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import shlex
import statistics
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from textcls import binarise, corpus, from_textgcn, grid, scores, table

from embinit_fairseq.errors import DataError, OptionError

HEADING = "split\tlabel\ttext\n"
LINES = ["train\ta\tone two", "train\tb\tthree", "test\ta\tfour"]


def tsv(folder: Path, lines: list[str], heading: str = HEADING) -> Path:
    path = folder / "data.tsv"
    path.write_text(heading + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_examples_keep_their_order_and_columns_may_stand_anywhere(tmp_path):
    lines = ["1\tone  two\ttrain\ta", "2\tthree\ttrain\tb", "3\tfour\ttest\ta"]
    path, packed = tsv(tmp_path, lines, "id\ttext\tsplit\tlabel\n"), tmp_path / "packed"
    found = [(each.line, each.split, each.label, each.text) for each in corpus.read_examples(path)]
    assert found == [(2, "train", "a", "one  two"), (3, "train", "b", "three"), (4, "test", "a", "four")]
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n")))
    assert corpus.read_examples(packed) == corpus.read_examples(path)


@pytest.mark.parametrize(
    ("lines", "heading", "message"),
    [
        (LINES, "split\ttext\n", "line 1: .*label"),
        (LINES, "split\tlabel\ttext\ttext\n", "line 1: .*text; rename"),
        (LINES, HEADING.replace("\n", "\r"), "line 1: .*tr "),
        ([*LINES, "train\ta"], HEADING, "line 5: 2 fields, .*3 columns"),
        ([*LINES, "train\ta\t "], HEADING, "line 5: .*empty; remove"),
        ([*LINES, "train\ttwo words\tword"], HEADING, "line 5: .*'two words'.* write _"),
        ([*LINES, "dev\ta\tword"], HEADING, "line 5: .*'dev' must be train or test"),
        ([*LINES, "test\tc\tword"], HEADING, "line 5: .* c is in no training text; remove"),
        ([*LINES, "train\t<pad>\tword"], HEADING, "line 5: .*<pad>.*another name"),
        ([*LINES, 'train\t"a"\tword'], HEADING, 'line 5: .*"a" beside a; .*remove'),
        ([LINES[0], *LINES[::2]], HEADING, "all texts have the label a"),
        (LINES[:2], HEADING, "no line with the split test"),
        (LINES[1:], HEADING, "fewer than two lines with the split train"),
    ],
)
def test_malformed_files_are_refused_with_their_line(tmp_path, lines, heading, message):
    path = tsv(tmp_path, lines, heading)
    with pytest.raises(DataError, match=f"{path}.*{message}") as raised:
        corpus.read_examples(path)
    assert len(str(raised.value)) < len(str(path)) + 300


def test_files_that_are_not_text_are_refused(tmp_path):
    packed = gzip.compress(HEADING.encode() + b"".join(b"train\ta\t%d\n" % number for number in range(1000)))
    damaged = packed[:100] + bytes(50) + packed[150:]
    for content in (HEADING.encode() + b"train\ta\tna\xefve\n", packed[:-20], damaged):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(DataError, match=r"file, .*line \d+: .*UTF-8 text, plain or gzip"):
            corpus.read_examples(tmp_path / "file")


@pytest.mark.data
@pytest.mark.parametrize(("name", "sizes"), [("mr", (7108, 3554, 2)), ("r8", (5485, 2189, 8))])
def test_texts_that_text_gcn_has_cleaned_are_clean(data_dir, name, sizes):
    """18,336 texts that went through the authors' clean_str, in which brackets had got a backslash."""
    examples = corpus.read_examples(data_dir / "textcls" / f"{name}.tsv.gz")
    splits = Counter(example.split for example in examples)
    assert (splits["train"], splits["test"], len({example.label for example in examples})) == sizes
    for example in examples:
        assert corpus.clean_str(example.text) == " ".join(example.text.replace("\\", "").split())


def test_text_gcns_files_become_a_tsv_file_and_must_fit(tmp_path):
    listing, texts = tmp_path / "mr.txt", tmp_path / "texts.txt"
    listing.write_text("0\ttrain\t1\n1\t20news-bydate-test\talt atheism\n")
    texts.write_bytes(b"a na\xefve\tfilm\nsecond \n")
    assert from_textgcn.rows(listing, texts) == ["train\t1\ta naïve film", "test\talt_atheism\tsecond"]
    with pytest.raises(SystemExit, match=r"nowhere: .*--repository"):
        from_textgcn.rows(listing, tmp_path / "nowhere")
    texts.write_text("only one\n")
    with pytest.raises(SystemExit, match=r"2 lines.* 1: "):
        from_textgcn.rows(listing, texts)
    listing.write_text("0\tvalid\t1\n")
    with pytest.raises(SystemExit, match=r"mr\.txt, line 1: "):
        from_textgcn.rows(listing, texts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's GREAT, isn't it?", "it 's great , is n't it ?"),
        ("They've (or they'll) say we're 'done'!", "they 've ( or they 'll ) say we 're 'done' !"),
        ("co-operate: 3.5% of naïve", "co operate 3 5 of na ve"),
        ("I'd; `quote`", "i 'd `quote`"),
        (" -- ", ""),
    ],
)
def test_clean_str_of_kim(text, expected):
    assert corpus.clean_str(text) == expected


@given(st.text())
def test_cleaning_twice_changes_nothing(text):
    assert corpus.clean_str(corpus.clean_str(text)) == corpus.clean_str(text)


def test_protocols_differ_in_where_words_are_counted(tmp_path):
    texts = [("train", "the cat The dog"), ("train", "cat bird"), ("test", "bird dog fish the")]
    examples = [corpus.Example(at, split, "a", text) for at, (split, text) in enumerate(texts, start=2)]
    stopping = frozenset({"the"})
    # train and test: cat 2, dog 2, bird 2, fish 1
    assert corpus.process(examples, "textgcn", 2, stopping, True) == ["cat dog", "cat bird", "bird dog"]
    # nothing is removed by its count: the dictionary of the training texts decides
    assert corpus.process(examples, "inductive", 2, stopping, True) == ["cat dog", "cat bird", "bird dog fish"]
    assert corpus.process(examples, "inductive", 1, frozenset(), False)[0] == "the cat The dog"
    (tmp_path / "train.input0").write_text("a a b\nb a c\n")
    (tmp_path / "test.input0").write_text("d c c\n")
    for protocol, expected in (("textgcn", "abcd"), ("inductive", "ab")):
        binarise.make_dictionary(tmp_path, protocol, min_count=2, path=tmp_path / "dict.txt")
        words = {line.split()[0] for line in (tmp_path / "dict.txt").read_text().splitlines()}
        assert {word for word in words if not word.startswith("madeupword")} == set(expected)


def test_texts_without_words_are_refused():
    def check(text, clean=True, min_count=1):
        args = argparse.Namespace(
            data="data.tsv", protocol="inductive", min_count=min_count, no_clean=not clean, stop_words="none"
        )
        examples = [corpus.Example(2, "train", "a", text), corpus.Example(3, "test", "a", text)]
        corpus.check_texts(args, examples, corpus.process(examples, "inductive", min_count, frozenset(), clean))

    check("слово и слово", clean=False)
    check("one two two", min_count=2)
    for options, remedy in (
        ({"text": "слово и слово"}, "--no-clean"),
        ({"text": "one"}, "longer texts"),
        ({"text": "one two", "min_count": 3}, "a lower --min-count than 3"),
    ):
        with pytest.raises(DataError, match=f"data.tsv: .*{remedy}"):
            check(**options)


def test_stop_words(tmp_path):
    pytest.importorskip("spacy")
    assert {"the", "n't"} < corpus.stop_words("spacy")
    (tmp_path / "list").write_text("der die\ndas\n")
    assert corpus.stop_words(str(tmp_path / "list")) == {"der", "die", "das"}
    with pytest.raises(OptionError, match=r"--stop-words elsewhere: .*none"):
        corpus.stop_words("elsewhere")


@given(size=st.integers(2, 500), seed=st.integers(0, 2**32))
def test_a_tenth_is_drawn_for_validation(size, seed):
    drawn = binarise.draw_validation(size, seed)
    assert len(drawn) == max(1, round(size / 10))
    assert drawn <= set(range(size))


def test_seeds_draw_different_texts_and_every_text_is_drawn_as_often():
    draws = [frozenset(binarise.draw_validation(20, seed)) for seed in range(400)]
    counts = Counter(number for drawn in draws for number in drawn)
    assert len(set(draws)) > 100
    assert all(15 < counts[number] < 75 for number in range(20))  # 40 expected, standard deviation 6


def test_texts_and_labels_stay_side_by_side(tmp_path):
    examples = [corpus.Example(at, "train" if at < 42 else "test", f"l{at % 3}", f"w{at}") for at in range(2, 52)]
    facts = corpus.write_corpus(examples, [example.text for example in examples[:-1]] + [""], tmp_path)
    assert facts == json.loads((tmp_path / "facts.json").read_text())
    assert (facts["train"], facts["test"], facts["labels"], facts["empty"]) == (40, 10, 3, 1)
    binarise.write_texts(tmp_path, 1, tmp_path / "text")
    seen = []
    for name in binarise.SETS:
        columns = [(tmp_path / "text" / f"{name}.{column}").read_text().split("\n")[:-1] for column in binarise.COLUMNS]
        assert len(columns[0]) == len(columns[1]) == {"train": 36, "valid": 4, "test": 10}[name]
        assert all(not text or int(text[1:]) % 3 == int(label[1:]) for text, label in zip(*columns))
        seen += columns[0]
    assert sorted(seen) == sorted([example.text for example in examples[:-1]] + [""])


@pytest.fixture
def baselines():
    pytest.importorskip("sklearn")
    from textcls import baselines

    return baselines


def test_weights_are_tf_idf_of_the_training_texts(baselines, tmp_path):
    texts = {"train": ["a b a", "b c", "c c d"], "valid": ["a d"], "test": ["d unknown", ""]}
    labels = {"train": "xyy", "valid": "x", "test": "yx"}
    for name in texts:
        (tmp_path / f"{name}.input0").write_text("".join(f"{text}\n" for text in texts[name]))
        (tmp_path / f"{name}.label").write_text("".join(f"{label}\n" for label in labels[name]))
    (tmp_path / "dict.txt").write_text("a 3\nb 3\nc 3\nd 3\nmadeupword0000 0\n")  # a filler of fairseq's: no feature
    (tmp_path / "labels.txt").write_text("y 1\nx 1\n")
    sets = baselines.read_sets(tmp_path, tmp_path / "dict.txt", tmp_path / "labels.txt")
    documents = [sum(word in text.split() for text in texts["train"]) for word in "abcd"]
    for name in texts:
        for row, text in enumerate(texts[name]):
            counts = [text.split().count(word) for word in "abcd"]
            weights = [tf * (math.log((1 + 3) / (1 + df)) + 1) for tf, df in zip(counts, documents)]
            length = math.sqrt(sum(weight**2 for weight in weights)) or 1.0
            found = sets.features[name][row].toarray()[0]
            np.testing.assert_allclose(found, [weight / length for weight in weights], rtol=1e-6)
    assert [sets.labels[name].tolist() for name in texts] == [[1, 0, 0], [1], [0, 1]]


def test_mlp_has_a_layer_of_hidden_units_half_of_which_are_dropped(baselines):
    features = baselines.csr_matrix(np.array([[0.5, 0, 2], [0, 0, 0], [0, 1, 0]], dtype=np.float32))
    model = baselines.WideMLP(3, 1024).eval()
    torch.nn.init.eye_(model.last.weight)
    hidden = (torch.from_numpy(features.toarray()) @ model.first.weight + model.bias).relu()
    torch.testing.assert_close(model(*baselines.bag(features)), hidden + model.last.bias)
    torch.manual_seed(0)
    dropped = (model.train()(*baselines.bag(features)) - model.last.bias)[hidden > 0] / hidden[hidden > 0]
    assert abs((dropped > 1).double().mean() - 0.5) < 0.1
    torch.testing.assert_close(dropped[dropped > 1], torch.full_like(dropped[dropped > 1], 2.0), rtol=0.01, atol=0.01)


@pytest.fixture
def topics(baselines):
    """300 texts of 60 words; the first 30 words are more frequent in one class, the others in the other."""
    from scipy.sparse import csr_matrix

    generator = np.random.default_rng(1)
    labels = generator.integers(2, size=300)
    share = np.where((np.arange(60) < 30) == labels[:, None], 0.2, 0.05)
    features = (generator.random((300, 60)) < share).astype(np.float32)
    parts = {"train": slice(150), "valid": slice(150, 200), "test": slice(200, 300)}
    return baselines.Sets(
        {name: csr_matrix(features[part]) for name, part in parts.items()},
        {name: labels[part] for name, part in parts.items()},
        2,
    )


def test_both_learn_what_words_tell_and_seeds_decide(baselines, topics):
    assert baselines.tfidf_lr(topics).test_accuracy > 85
    one, again, other = (baselines.mlp(topics, seed, 8, 5) for seed in (1, 1, 2))
    assert one.test_accuracy > 85
    assert one.parameters == 60 * 1024 + 1024 + 1024 * 2 + 2
    assert one == again
    assert one.valid_loss != other.valid_loss


def test_training_stops_after_the_patience_and_keeps_the_best_epoch(baselines, topics, monkeypatch):
    losses, seen = iter([0.9, 0.5, 0.7, 0.6, 0.5, 0.4]), []

    def evaluate(model, features, labels):
        if len(labels) == 50 and len(seen) < 5:
            seen.append(model.last.bias.detach().clone())
            return next(losses), 50.0
        return 0.0, 100.0 * float(torch.equal(model.last.bias, seen[1]))

    monkeypatch.setattr(baselines, "evaluate", evaluate)
    outcome = baselines.mlp(topics, seed=1, epochs=50, patience=3)
    assert len(seen) == 5  # 0.5 of the fifth epoch is not lower
    assert (outcome.epoch, outcome.valid_loss) == (2, 0.5)
    assert outcome.test_accuracy == 100.0  # the weights of the second epoch are back


@pytest.fixture
def arguments(tmp_path):
    """A function that makes the lines of a grid: two files of vectors, a folder that looks prepared."""
    for name, dim in (("a", 6), ("b", 25)):
        (tmp_path / f"{name}.txt").write_text(f"one{' 0.5' * dim}\ntwo{' 0.5' * dim}\n")
    for seed in (1, 3):
        (tmp_path / f"my data/seeds/{seed}/bin").mkdir(parents=True)
    (tmp_path / "my data/seeds/dict.txt").write_text("one 2\ntwo 1\n")

    def make(*models, vectors=("a", "b"), extra=(), **options):
        values = {"data": tmp_path / "my data", "runs": tmp_path / "runs", "attentions": ["softmax"], "seeds": None}
        values |= {"models": models, "epochs": 200, "patience": 10}
        texts = [text if "=" in text else f"{text}={tmp_path}/{text}.txt" for text in vectors]
        return list(grid.lines(argparse.Namespace(**{**values, "vectors": texts, **options}), extra))

    return make


def test_lines_of_a_grid_are_commands_seed_by_seed(arguments, tmp_path):
    lines = arguments(
        "couples", "transformer:b", "transformer", "mlp", attentions=["softmax", "linear"], extra=["--lr", "0.5"]
    )
    found = dict(line.split(": ", 1) for line in lines)
    models = [f"{couple}.{kind}" for couple in ("a+a", "a+b", "b+b") for kind in ("softmax", "linear")]
    models += ["transformer=b", "transformer", "mlp"]
    assert list(found) == [f"{model}.{seed}" for seed in (1, 3) for model in models]
    words = shlex.split(found["a+b.linear.3"])
    data, run = f"{tmp_path}/my data", f"{tmp_path}/runs/a+b.linear.3"
    assert words[:4] == [f"DATA={data}", "SEED=3", f"RUN={run}", "LABELS=model=a+b attention=linear"]
    text = " ".join(words)
    assert "--arch duo_classifier --duo-attention linear --encoder-dim-s 6 --encoder-dim-p 25 --embed-init" in text
    assert f"--embed-init-path encoder={tmp_path}/a.txt encoder_p={tmp_path}/b.txt --max-epoch 200" in text
    assert words[-2:] == ["--lr", "0.5"]
    assert (
        f"--encoder-attention-heads 5 --embed-init pretrained --embed-init-path encoder={tmp_path}/b.txt"
        in (found["transformer=b.1"])
    )
    assert "--embed-init" not in found["transformer.1"]


@pytest.mark.parametrize("name", ["a", "svm", "a+b+c", "transformer:", "transformer:d", "a+d", "mlp:a", "a+", ":a"])
def test_unknown_models_are_named(arguments, name):
    with pytest.raises(OptionError, match=re.escape(f"--models {name}: ")):
        arguments(name)


def test_what_no_grid_can_be_made_of_is_refused(arguments, tmp_path):
    (tmp_path / "dict.txt").write_text("one 2\ntwo 1\n")
    (tmp_path / "cut.txt").write_text("two 1 2 3\n" * 20 + "one 4 5")  # its head is whole
    for vectors, message in (
        ([], "--models couples: .*--vectors NAME=FILE"),
        (["n=missing"], "--vectors n=missing: .*missing"),
        (["dict"], "--vectors dict=.*give vectors"),
        (["cut"], r"--vectors cut=.*cut\.txt"),
        (["a b=x"], "--vectors a b=x: give NAME=FILE"),
        (["a", "a"], "--vectors a=.*twice"),
    ):
        with pytest.raises(OptionError, match=message):
            arguments("couples", vectors=vectors)
    with pytest.raises(OptionError, match=r"--seeds 2: .*SEEDS=2"):
        arguments("mlp", seeds=[1, 2])
    with pytest.raises(OptionError, match=f"--data {tmp_path}: .*prepare.sh"):
        arguments("mlp", data=tmp_path)


def test_vectors_that_have_changed_since_a_run_are_refused(arguments, tmp_path):
    (tmp_path / "runs/a+a.1").mkdir(parents=True)
    file, record = tmp_path / "a.txt", tmp_path / "runs/a+a.1/training.json"
    record.write_text(json.dumps({"labels": {}, "vector_files": {str(file): grid.sha256(file)}}))
    assert len(arguments("transformer:a")) == 2
    file.write_text("one 1 2\ntwo 1 3\n")
    with pytest.raises(OptionError, match=rf"--vectors a={file}: .*a\+a\.1 .*remove"):
        arguments("transformer:a")


def test_scores_are_those_of_the_last_test(tmp_path):
    lines = [f'x | INFO | test | {{"test_loss": "0.9", "test_accuracy": "{value}"}}\n' for value in (50, 60)]
    (tmp_path / "log").write_text(lines[0] + "other\n" + lines[1])
    assert scores.test_scores(tmp_path / "log") == {"test_loss": 0.9, "test_accuracy": 60.0}
    (tmp_path / "log").write_text("Traceback\n")
    with pytest.raises(DataError, match=r"log: .*train\.sh"):
        scores.test_scores(tmp_path / "log")


def result(folder, model, seed, test, valid, attention="", protocol="textgcn", dims=(50, 300)):
    names = model.split("+") if "+" in model else [model.partition(":")[2]]
    slots = {
        slot: {"dim": dim, "coverage_types": 0.25, "coverage_tokens": 0.5, "source": {"name": f"{name}.txt", "rows": 9}}
        for slot, dim, name in zip(("encoder", "encoder_p"), dims, names)
    }
    trained = model != "mlp"
    labels = {"task": "MR", "protocol": protocol, "model": model, "seed": str(seed), "clean": "kim"}
    record = {
        "labels": {**labels, **({"attention": attention} if attention else {})},
        "command": "fairseq-train bin --lr 1e-3 --arch x" if trained else "baselines.py data",
        "parameters": {"all": 10_000, "trained": 1234},
        "epochs": {"7": {"valid_accuracy": valid, "valid_num_updates": 7}} if trained else {},
        "best": {"epoch": 7, "valid_loss_nats": 0.5, **({} if trained else {"valid_accuracy": valid})},
        "init": {"slots": slots} if names[0] else None,
        "scores": {"test_accuracy": test},
        "time": {"wall_s": 8.0},
        "data": {"all": f"{seed}", "input0/test.bin": "0123456789abcdef0"},
    }
    path = folder / "runs" / protocol / f"{model}.{attention}.{seed}"
    path.mkdir(parents=True)
    (path / "training.json").write_text(json.dumps(record))
    if test is not None:
        (path / "result.json").write_text(json.dumps(record))


def test_table_of_models_and_of_couples(tmp_path, monkeypatch):
    for seed, accuracy in ((1, 80.0), (2, 81.0), (3, 85.0)):
        result(tmp_path, "g+h", seed, accuracy, 70.0, "softmax")
    result(tmp_path, "g+g", 1, 70.0, 77.5, "softmax", dims=(50, 50))
    result(tmp_path, "h+g", 1, 60.0, 76.0, "linear", dims=(300, 50))
    result(tmp_path, "mlp", 1, 76.0, 75.0)
    result(tmp_path, "transformer:h", 1, 65.0, 99.0, dims=(300,))
    result(tmp_path, "mlp", 1, 66.0, 70.0, protocol="inductive")
    result(tmp_path, "late", 1, None, 70.0, protocol="inductive")
    monkeypatch.setattr(sys, "argv", ["table", str(tmp_path / "runs"), f"--output={tmp_path}"])
    table.main()
    text, data = (tmp_path / "results.md").read_text(), json.loads((tmp_path / "results.json").read_text())
    parts = [part.splitlines() for part in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    inductive, models, softmax, linear, vectors = (
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in part] for part in parts
    )
    assert inductive[2][1:5] == ["1", "1,234", "66.00", "70.00"]
    duo = ["Duo (softmax), g + h", "Duo (softmax), g + g", "Duo (linear), h + g"]
    assert [row[0] for row in models[2:]] == ["TF-IDF, MLP with 1,024 hidden units", "transformer, h", *duo]
    cell = f"82.00 ± {statistics.stdev([80, 81, 85]):.2f}"
    assert models[4][1:] == ["3", "1,234", cell, "70.00 ± 0.00", "0.500 ± 0.000", "7.0 ± 0.0", "8 ± 0.0"]
    assert softmax[2:] == [["g", "70.00 (1)", cell], ["h", "-", "-"]]
    assert linear[2:] == [["g", "-", "60.00"], ["h", "-", "-"]]
    assert vectors[2:] == [["g", "g.txt", "9", "50", "25.0", "50.0"], ["h", "h.txt", "9", "300", "25.0", "50.0"]]
    assert "Not finished yet: inductive/late..1." in text
    assert "* trained by fairseq: `--lr 1e-3`\n" in text
    choice = data["MR, textgcn"]["couples"]  # by the seed that all have, not the mean of three
    assert choice["seeds"] == ["1"]
    chosen, best = (choice[how] for how in ("chosen by validation accuracy", "best on the test texts"))
    assert (chosen["model"], chosen["test accuracy (%)"]["mean"]) == (duo[1], 70.0)
    assert (best["model"], best["test accuracy (%)"]["mean"], best["val. accuracy (%)"]["mean"]) == (duo[0], 80.0, 70.0)
    assert text.index(f"{duo[1]}; val. accuracy (%) 77.50") < text.index(f"{duo[0]}; val. accuracy (%) 70.00")
    assert data["MR, inductive"]["couples"] is None
    path = tmp_path / "runs/inductive/mlp..1/result.json"
    path.write_text(path.read_text().replace('"model"', '"other"'))
    with pytest.raises(DataError, match=r"mlp\.\.1: .*LABELS=model="):
        table.read_results(tmp_path / "runs")
