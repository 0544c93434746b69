"""`embinit expand-vocab`: what it prints, `--verify`, errors of one line, and what a killed run leaves."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from expand_checkpoints import TEXT, argv, logits, make, text_of
from fairseq import checkpoint_utils
from fairseq.data import Dictionary

from embinit_fairseq.cli import expand_verify
from embinit_fairseq.cli.main import main
from embinit_fairseq.expand import evaluation as expand_run
from embinit_fairseq.expand import expansion
from embinit_fairseq.expand import expansion as expand_output
from embinit_fairseq.plots import histograms, style


def lowered(model):
    for name, parameter in model.named_parameters():
        if name.endswith("lm_head.bias"):
            parameter.fill_(-20.0)


def test_for_people(tmp_path, capsys):
    checkpoint = make(tmp_path, "roberta", fillers=1)
    assert main(argv(checkpoint)) == 0
    text = capsys.readouterr().out
    for part in (
        "new words      3: x, y, z",
        "15 -> 17 (1 filler became words)",
        "avg, over 14 rows",
        "<mask> to row 16",
    ):
        assert part in text
    for part in ("<= 0.1942 nats for every prefix", "embed_tokens.weight = encoder.lm_head.weight", "dict.txt"):
        assert part in text
    assert "the optimiser's state" in text
    assert main(argv(checkpoint, "--method", "zeros", "--force", words=[f"n{i}" for i in range(10)])) == 0
    text = capsys.readouterr().out
    assert "no bound with zeros (avg has one); --verify TEXT measures it" in text
    assert "n7 and 2 more" in text


def test_inputs_only(tmp_path, capsys):
    checkpoint = make(tmp_path, "classifier")
    assert main(argv(checkpoint)) == 0
    assert "the words are inputs only" in capsys.readouterr().out
    assert sorted(path.name for path in checkpoint.output.iterdir()) == [
        "dict.txt",
        "expansion.json",
        "input0",
        "label",
        "model.pt",
    ]
    assert main(argv(checkpoint, "--force", "--verify", text_of(checkpoint))) == 2
    assert "--verify: the new words are inputs only" in capsys.readouterr().err


def test_verify_measures_every_token(tmp_path, capsys):
    """Against one forward pass a sentence, and both distributions; also that batches of a length change nothing."""
    checkpoint = make(tmp_path, "lm_tied")
    assert main(argv(checkpoint, "--json", "--method", "zeros", "--verify", text_of(checkpoint))) == 0
    record = json.loads(capsys.readouterr().out)
    found = record["verify"]
    path = str(checkpoint.output / "model.pt")
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides={"data": str(checkpoint.output)})
    dictionary, kls = checkpoint.task.target_dictionary, []
    lines = [line.split() for line in TEXT.splitlines() if line]
    pieces = [line[at : at + 15] for line in lines for at in range(0, len(line), 15)]  # 16 positions, one is </s>
    for words in pieces:
        ids = [dictionary.eos(), *(dictionary.index(word) for word in words)]
        p = logits(checkpoint.model, ids, ids).double().log_softmax(-1)
        q = logits(models[0].eval(), ids, ids).double().log_softmax(-1)[:, :13]
        kls.append((p.exp() * (p - q)).sum(-1).numpy())
    kls = np.concatenate(kls)
    assert found["tokens"] == len(kls) == 31
    zeros = found["methods"]["zeros"]
    assert (zeros["mean"], zeros["max"]) == pytest.approx((kls.mean(), kls.max()), rel=1e-5)
    assert found["unknown_words"] == pytest.approx(1 / 26)
    assert "attention" not in expand_verify.render(found)
    assert "SOURCE TARGET" in expand_verify.render({**found, "unknown_words": 0.8})
    assert list(found["methods"]) == ["zeros", "avg", "gaussian", "normal"]
    assert found["methods"]["avg"]["max"] <= found["methods"]["avg"]["bound"] == pytest.approx(np.log(1 + 3 / 13))
    assert found["old_logits_changed_by"] == 0
    files = {path.name for path in checkpoint.output.iterdir()}
    assert files == {"model.pt", "dict.txt", "expansion.json", "verify.json", "verify.png"} == set(record["files"])
    assert json.loads((checkpoint.output / "expansion.json").read_text()) == record
    written = json.loads((checkpoint.output / "verify.json").read_text())
    assert sum(written["histograms"]["avg"]["counts"]) == 31
    assert (checkpoint.output / "verify.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("precision", [torch.float32, torch.float16, torch.bfloat16])
def test_verify_of_a_biased_head(tmp_path, capsys, precision):
    """All biases are -20: the stored mean keeps the bound in every precision, and zeros put everything on new words."""
    checkpoint = make(tmp_path, "roberta", tweak=lowered)
    checkpoint.state["model"] = {key: value.to(precision) for key, value in checkpoint.state["model"].items()}
    checkpoint.save()
    assert main(argv(checkpoint, "--verify", text_of(checkpoint), "--reset-optimizer")) == 0
    text = capsys.readouterr().out
    assert "THE BOUND DOES NOT HOLD" not in text
    found = json.loads((checkpoint.output / "verify.json").read_text())
    assert found["tokens"] == 1 + 1 + 1 + 2 + 1  # every seventh word of 4, 3, 2, 14 and 3
    assert found["methods"]["zeros"]["new_words_probability"] > 0.999
    assert found["methods"]["avg"]["max"] < 0.25


def test_verify_says_when_the_bound_is_broken(tmp_path, capsys, monkeypatch):
    """As libraries do it that average the rows and leave the bias of a tied head at zero."""
    inner = expansion.new_rows

    def without_bias(recipe, tables):
        rows = inner(recipe, tables)
        return {name: [0 * row if row.ndim == 1 else row for row in copies] for name, copies in rows.items()}

    monkeypatch.setattr(expansion, "new_rows", without_bias)
    checkpoint = make(tmp_path, "roberta", tweak=lowered)
    assert main(argv(checkpoint, "--verify", text_of(checkpoint))) == 1
    text = capsys.readouterr().out
    assert "THE BOUND DOES NOT HOLD" in text
    found = json.loads((checkpoint.output / "verify.json").read_text())
    assert found["methods"]["avg"]["holds"] is False
    assert found["methods"]["avg"]["max"] > 10


def test_verify_says_when_the_model_changed_elsewhere(tmp_path, capsys, monkeypatch):
    """In the row of an old word; the new ones keep their bound."""
    inner = expand_output.write_checkpoint

    def damaged(content, path):
        content["model"]["decoder.embed_tokens.weight"][5] += 1
        inner(content, path)

    monkeypatch.setattr(expand_output, "write_checkpoint", damaged)
    checkpoint = make(tmp_path, "lm_tied")
    assert main(argv(checkpoint, "--json", "--verify", text_of(checkpoint))) == 1
    found = json.loads(capsys.readouterr().out)["verify"]
    assert found["old_logits_changed_by"] > 0.01
    assert found["holds"] is False


def test_methods_are_compared_at_their_own_scale(tmp_path, capsys):
    """--noise-scale is of the method that was asked for."""
    checkpoint, means = make(tmp_path, "lm_tied"), []
    for flags in ((), ("--method", "gaussian", "--noise-scale", "4", "--force")):
        assert main(argv(checkpoint, "--json", "--verify", text_of(checkpoint), *flags)) == 0
        means.append(json.loads(capsys.readouterr().out)["verify"]["methods"]["normal"]["mean"])
    assert means[0] == means[1] > 0


def test_every_place_is_masked_once_in_seven_sentences():
    dictionary = Dictionary()
    mask = dictionary.add_symbol("<mask>")
    rows = expand_run._masked([np.full(14, dictionary.unk())] * 7, dictionary, None)
    chosen = np.array([chosen for _, _, chosen in rows])
    tokens = np.array([inputs["src_tokens"] for inputs, _, _ in rows])
    assert chosen.sum(axis=0).tolist() == [0, *[1] * 14, 0]
    assert chosen.sum(axis=1).tolist() == [2] * 7
    assert np.array_equal(tokens == mask, chosen)


def test_each_panel_shows_the_counts_of_its_method(monkeypatch):
    figures = []
    monkeypatch.setattr(style, "save", lambda figure, path: figures.append(figure))
    methods = {"avg": {"mean": 0.1, "bound": 0.2}, "zeros": {"mean": 3.0, "bound": None}}
    counts = {"avg": {"edges": [0.0, 0.1, 0.2], "counts": [1, 2]}, "zeros": {"edges": [2.0, 4.0], "counts": [3]}}
    histograms.draw_divergences("run/c.pt", 3, methods, counts, "a.png")
    for axes, (method, title) in zip(figures[0].axes, {"avg": "avg: mean 0.1", "zeros": "zeros: mean 3"}.items()):
        (steps,) = axes.patches
        assert axes.get_title() == title
        assert steps.get_data().values.tolist() == counts[method]["counts"]
        assert steps.get_data().edges.tolist() == counts[method]["edges"]
        assert [line.get_xdata()[0] for line in axes.get_lines()] == [0.2] * (method == "avg")


def test_verify_of_translation(tmp_path, capsys):
    checkpoint = make(tmp_path, "transformer_shared", fillers=1)
    source, target = text_of(checkpoint, TEXT, "text.de"), text_of(checkpoint, "w1\nw2 w3\n\nw1\nw0 w8\n", "text.en")
    assert main(argv(checkpoint, "--verify", source, target)) == 0
    found = json.loads((checkpoint.output / "verify.json").read_text())
    assert found["tokens"] == 2 + 3 + 2 + 3
    assert found["methods"]["avg"]["max"] <= found["methods"]["avg"]["bound"]
    subword = argv(checkpoint, "--method", "subword", "--force", "--verify", source, target, words=("x\tw1 w2",))
    assert main(subword) == 0
    methods = json.loads((checkpoint.output / "verify.json").read_text())["methods"]
    assert list(methods) == ["subword", "avg", "gaussian", "zeros", "normal"]
    assert methods["subword"]["holds"] is True
    capsys.readouterr()
    short = text_of(checkpoint, "w1\n", "short.en")
    for files, expected in (
        ((source,), "takes two files, SOURCE TARGET, not 1"),
        ((source, short), "has 5 lines, "),
        ((source, text_of(checkpoint, "\n" * 5, "empty.en")), "no words in it"),
        ((source, str(tmp_path / "nowhere")), "no such file"),
    ):
        assert main(argv(checkpoint, "--force", "--verify", *files)) == 2
        captured = capsys.readouterr()
        assert expected in captured.err
        assert captured.err.count("\n") == 1
    assert json.loads((checkpoint.output / "expansion.json").read_text())["method"] == "subword"  # the earlier one


def test_errors_are_one_line_and_nothing_is_left(tmp_path, capsys):
    checkpoint = make(tmp_path, "lm_tied")
    before = sorted(path.name for path in tmp_path.iterdir())
    for words, expected in (
        (("x", "w1"), "new.txt:2: the dictionary has 'w1' already"),
        ((), "no word in it; write one new word a line"),
    ):
        assert main(argv(checkpoint, words=words)) == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)
        assert captured.err.startswith("embinit expand-vocab: error: ")
        assert expected in captured.err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "new.txt"])


def test_help_names_the_options(capsys):
    assert main(["expand-vocab", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in ("checkpoint", "dict", "words", "method", "output", "side", "seed", "noise-scale", "average-over"):
        assert f"--{flag}" in text
    for flag in ("bpe-codes", "sentencepiece-model", "verify", "reset-optimizer", "user-dir", "force", "json"):
        assert f"--{flag}" in text
