"""scripts/textcls on a few hundred made-up texts: data, trainings and tests, what is kept and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from recipes import TRAINS, refused, stamps, succeed

from embinit_fairseq.vocab.preparation_record import read_preparation

pytest.importorskip("sklearn")

WORDS = ["good", "fine", "lovely", "bad", "dull", "awful", "film", "story", "the", "a", "is", "was", "rather", "it"]
RUN = "v5+v8.softmax.1"

VARIABLES = {"MIN_COUNT": 1, "STOP_WORDS": "none", "SEEDS": 1, "JOBS": 1}
OPTIONS = "--epochs 3 -- --lr 2e-2 --batch-size 32".split()

pytestmark = TRAINS


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """(variables and arguments of run.sh) that has ended well: a couple and a bag of words, one seed."""
    folder, generator = tmp_path_factory.mktemp("text classes"), np.random.default_rng(3)
    lines = ["split\tlabel\ttext"]
    for number in range(320):  # the label is whether the judgement is a good one
        judgement, length = generator.integers(6), generator.integers(1, 12)
        words = [WORDS[at] for at in generator.integers(6, len(WORDS), size=length)]
        words.insert(generator.integers(length + 1), WORDS[judgement])
        label = "positive" if judgement < 3 else "negative"
        lines.append(f"{'test' if number % 4 == 3 else 'train'}\t{label}\t{' '.join(words).capitalize()}!")
    (folder / "toy.tsv").write_text("\n".join(lines) + "\n")
    for dim in (5, 8):
        rows = generator.normal(0, 0.4, (len(WORDS), dim))
        rows[:3, 0], rows[3:6, 0] = 1, -1
        lines = [f"{word} {' '.join(f'{value:.4f}' for value in row)}" for word, row in zip(WORDS, rows)]
        (folder / f"v{dim}.txt").write_text("\n".join(lines) + "\n")
    arguments = ["--vectors", f"v5={folder}/v5.txt", f"v8={folder}/v8.txt", "--models", "v5+v8", "tfidf_lr", "mlp"]
    variables = {**VARIABLES, "DATA": folder / "toy.tsv", "OUTPUT": folder / "out", "KEEP": "1"}
    succeed("textcls/run.sh", *arguments, *OPTIONS, **variables)
    return variables, [*arguments, *OPTIONS]


def result(grid, run=RUN):
    return json.loads((grid[0]["OUTPUT"] / "runs/textgcn" / run / "result.json").read_text())


def test_models_are_trained_and_tested(grid):
    """The accuracy is that of the kept checkpoint, text by text from Python; its validation loss is the lowest."""
    from embinit_fairseq.models.duo_classifier import DuoClassifier

    run, data = grid[0]["OUTPUT"] / "runs/textgcn" / RUN, grid[0]["OUTPUT"] / "data/textgcn/seeds/1"
    found, lines = result(grid), {}
    assert found["parameters"]["trained"] == 13 + 13 * 600 + 600 * 2
    assert [found["init"]["slots"][slot]["dim"] for slot in ("encoder", "encoder_p")] == [5, 8]
    labels = {"task": "toy", "protocol": "textgcn", "model": "v5+v8", "attention": "softmax", "seed": "1"}
    assert labels.items() <= found["labels"].items()
    hub = DuoClassifier.from_pretrained(
        str(run / "checkpoints"), "checkpoint_best.pt", str(data / "bin"), preparation="none"
    )
    for name, size in (("train", 216), ("valid", 24), ("test", 80)):
        columns = ((data / "text" / f"{name}.{column}").read_text().split("\n")[:-1] for column in ("input0", "label"))
        lines[name] = list(zip(*columns))
        assert len(lines[name]) == size
    right = [max(p := hub.predict(text), key=p.get) == label for text, label in lines["test"]]
    assert found["scores"]["test_accuracy"] == round(100 * np.mean(right), 2)
    assert found["scores"]["test_macro_f1"] == pytest.approx(np.mean(list(found["classes"]["f1"].values())), abs=0.01)
    for name in (RUN, "tfidf_lr.1", "mlp.1"):
        classes, scores = result(grid, name)["classes"], result(grid, name)["scores"]
        counts, truth = np.array(classes["confusion"]), [label for _, label in lines["test"]]
        assert dict(zip(classes["f1"], counts.sum(axis=1))) == {label: truth.count(label) for label in set(truth)}
        assert np.trace(counts) == pytest.approx(scores["test_accuracy"] * 0.8, abs=0.01)
        assert (run.parent / name / "confusion.png").is_file()
    for dim, matrix in ((5, hub.model.embed_tokens), (8, hub.model.embed_tokens_p)):  # frozen: as in the files
        rows = np.loadtxt(grid[0]["DATA"].with_name(f"v{dim}.txt"), np.float32, usecols=range(1, dim + 1))
        ids = [hub.task.source_dictionary.index(word) for word in WORDS]
        np.testing.assert_array_equal(matrix.weight.detach().numpy()[ids], rows)
    loss = -np.mean([np.log2(hub.predict(text)[label]) for text, label in lines["valid"]])
    assert found["best"]["valid_loss"] == pytest.approx(loss, abs=0.001)
    assert found["best"]["valid_loss"] == min(epoch["valid_loss"] for epoch in found["epochs"].values())
    assert f"| {found['scores']['test_accuracy']:.2f} |" in (grid[0]["OUTPUT"] / "results.md").read_text()


def test_the_same_call_repeats_only_what_was_stopped(grid):
    variables, arguments = grid
    out, before = variables["OUTPUT"], result(grid)
    times = stamps(path for path in out.rglob("result.json") if path.parent.name != RUN)
    (out / "runs/textgcn" / RUN / "result.json").unlink()
    (out / f"logs/textgcn/{RUN}.done").unlink()
    log = out / "runs/textgcn" / RUN / "train.log"
    log.write_text(log.read_text()[: log.read_text().index('{"epoch": 3')])  # as if it had been killed there
    said = succeed("textcls/run.sh", *arguments, **{**variables, "KEEP": ""})
    assert (said.count("done before"), f"{RUN}: done\n" in said, stamps(times)) == (2, True, times)
    assert all(result(grid)[key] == before[key] for key in ("scores", "best", "init"))
    assert log.read_text().count('"valid_loss"') == 3  # it has begun again
    assert not (out / "runs/textgcn" / RUN / "checkpoints/checkpoint_best.pt").exists()
    assert "min_count=1" in refused("textcls/run.sh", *arguments, **{**variables, "MIN_COUNT": "2"})


def test_data_that_cannot_be_used_are_refused_and_leave_nothing(grid, tmp_path):
    good, broken, out = grid[0]["DATA"], tmp_path / "broken.tsv", tmp_path / "out"
    broken.write_text(good.read_text() + "train\tpositive\n")
    for variables, said in (({"DATA": broken}, f"{broken}, line 322: "), ({"PROTOCOL": "other"}, "other")):
        assert said in refused("textcls/prepare.sh", **{**VARIABLES, "DATA": good, "OUTPUT": out, **variables})
        assert not (out / "corpus").exists()
    succeed("textcls/prepare.sh", **VARIABLES | {"DATA": good, "OUTPUT": out, "PROTOCOL": "inductive", "SEEDS": "2 3"})
    drawn = [(out / f"seeds/{seed}/text/valid.input0").read_text() for seed in (2, 3)]
    assert drawn[0] != drawn[1]
    recorded = read_preparation(out / "seeds/3/bin/input0/dict.txt")
    assert recorded.lines["equal"] == recorded.lines["tried"] == 20
