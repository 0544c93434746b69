"""`embinit expand-vocab`: what it prints, `--verify`, and what it refuses in one line, with nothing written."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from expand_checkpoints import (
    FAMILIES,
    TEXT,
    WORDS,
    argv,
    as_fairseq,
    dictionary,
    logits,
    lowered,
    make,
    text_of,
)
from fairseq.data import Dictionary

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.cli import expand_verify
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import CheckpointError, DataError, EmbinitError, OptionError
from embinit_fairseq.expand import evaluation, expansion
from embinit_fairseq.plots import histograms, style

TABLE, TIED = "decoder.embed_tokens.weight", "decoder.output_projection.weight"


@pytest.fixture
def no_picture(monkeypatch):
    """Drawing takes longer than everything else."""
    monkeypatch.setattr(histograms, "draw_divergences", lambda *arguments: Path(arguments[-1]).touch())


def refused(capsys, checkpoint, *more, **options) -> str:
    """The one line of a call that writes nothing."""
    assert main(argv(checkpoint, *more, **options)) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1), captured.err
    assert captured.err.startswith("embinit expand-vocab: error: ")
    assert not checkpoint.output.exists()
    return captured.err


def test_for_people(tmp_path, capsys):
    checkpoint = make(tmp_path, "roberta", fillers=1)
    assert main(argv(checkpoint)) == 0
    text = capsys.readouterr().out
    for part in (
        *("3: x, y, z", "15 -> 17 (1 filler became words)", "avg, over 14 rows", "<mask> to row 16"),
        *("<= 0.1942 nats for every prefix", "embed_tokens.weight = encoder.lm_head.weight", "dict.txt"),
        "the optimiser's state",
    ):
        assert part in text
    assert main(argv(checkpoint, "--method", "zeros", "--force", words=[f"n{i}" for i in range(10)])) == 0
    text = capsys.readouterr().out
    assert "no bound with zeros" in text
    assert "n7 and 2 more" in text


@pytest.mark.parametrize("family", ["classifier", "roberta_fine_tuned"])
def test_a_fine_tuned_model_has_inputs_only(tmp_path, capsys, family):
    """The head of a language model may still be there and grows, but what the model says is a class."""
    checkpoint = make(tmp_path, family)
    assert "--verify: the new words are inputs only" in refused(capsys, checkpoint, "--verify", text_of(checkpoint))
    assert main(argv(checkpoint)) == 0
    text = capsys.readouterr().out
    assert "the words are inputs only" in text
    assert ("encoder.lm_head.bias" in text) == (family == "roberta_fine_tuned")
    files = ["dict.txt", "expansion.json", "input0", "label", "model.pt"]
    assert sorted(path.name for path in checkpoint.output.iterdir()) == files
    assert (checkpoint.output / "label/dict.txt").read_text() == "a 1\nb 1\nc 1\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_words_that_the_terminal_cannot_show(tmp_path, monkeypatch, encoding):
    checkpoint, words, shown = make(tmp_path, "lm_tied"), ("lothló", "ромашка", "𝔵"), []
    for flags in ((), ("--json", "--force")):
        output = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
        monkeypatch.setattr(sys, "stdout", output)
        assert main(argv(checkpoint, *flags, words=words)) == 0
        shown.append(output.buffer.getvalue().decode(encoding))
    assert r"\u0440\u043e\u043c\u0430\u0448\u043a\u0430, \U0001d535" in shown[0]
    assert ("lothló" in shown[0]) == (encoding == "latin-1")
    assert [word["word"] for word in json.loads(shown[1])["words"]] == list(words)


# --- --verify


def test_verify_measures_every_token(tmp_path, capsys):
    """Against one forward pass a sentence, and both distributions; also that batches of a length change nothing."""
    checkpoint = make(tmp_path, "lm_tied")
    assert main(argv(checkpoint, "--json", "--method", "zeros", "--verify", text_of(checkpoint))) == 0
    record = json.loads(capsys.readouterr().out)
    found, (model, _) = record["verify"], as_fairseq(checkpoint)
    dictionary, kls = checkpoint.task.target_dictionary, []
    lines = [line.split() for line in TEXT.splitlines() if line]
    pieces = [line[at : at + 15] for line in lines for at in range(0, len(line), 15)]  # 16 positions, one is </s>
    for words in pieces:
        ids = [dictionary.eos(), *(dictionary.index(word) for word in words)]
        p = logits(checkpoint.model, ids, ids).double().log_softmax(-1)
        q = logits(model, ids, ids).double().log_softmax(-1)[:, :13]
        kls.append((p.exp() * (p - q)).sum(-1).numpy())
    kls = np.concatenate(kls)
    assert found["tokens"] == len(kls) == 31
    zeros = found["methods"]["zeros"]
    assert (zeros["mean"], zeros["max"]) == pytest.approx((kls.mean(), kls.max()), rel=1e-5)
    assert [zeros[f"q{q}"] for q in (50, 90, 99)] == pytest.approx(np.quantile(kls, (0.5, 0.9, 0.99)), rel=1e-5)
    assert zeros["new_words_probability"] == pytest.approx((1 - np.exp(-kls)).mean(), rel=1e-5)
    assert found["unknown_words"] == pytest.approx(1 / 26)
    assert "attention" not in expand_verify.render({**found, "unknown_words": 0.5})
    assert "SOURCE TARGET" in expand_verify.render({**found, "unknown_words": 0.51})
    assert list(found["methods"]) == ["zeros", "avg", "gaussian", "normal"]
    assert found["methods"]["avg"]["max"] <= found["methods"]["avg"]["bound"] == pytest.approx(np.log(1 + 3 / 13))
    assert (found["old_logits_changed_by"], found["pairs_too_long"]) == (0, 0)
    files = {path.name for path in checkpoint.output.iterdir()}
    assert files == {"model.pt", "dict.txt", "expansion.json", "verify.json", "verify.png"} == set(record["files"])
    assert json.loads((checkpoint.output / "expansion.json").read_text()) == record
    written = json.loads((checkpoint.output / "verify.json").read_text())
    assert sum(written["histograms"]["avg"]["counts"]) == 31
    edges = written["histograms"]["zeros"]["edges"]
    assert (len(edges), edges[0], edges[-1]) == (41, 0, pytest.approx(kls.max(), rel=1e-5))
    assert (checkpoint.output / "verify.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize("precision", [torch.float32, torch.float16, torch.bfloat16])
def test_verify_of_a_biased_head(tmp_path, capsys, precision):
    """All biases are -20: the stored mean keeps the bound in every precision, and zeros put everything on new words."""
    checkpoint = make(tmp_path, "roberta", tweak=lowered)
    checkpoint.state["model"] = {key: value.to(precision) for key, value in checkpoint.state["model"].items()}
    checkpoint.save()
    assert main(argv(checkpoint, "--verify", text_of(checkpoint), "--reset-optimizer")) == 0
    assert "THE BOUND DOES NOT HOLD" not in capsys.readouterr().out
    found = json.loads((checkpoint.output / "verify.json").read_text())
    assert found["tokens"] == 1 + 1 + 1 + 2 + 1  # every seventh word of 4, 3, 2, 14 and 3
    assert found["methods"]["zeros"]["new_words_probability"] > 0.999
    assert found["methods"]["avg"]["max"] < 0.25


@pytest.mark.usefixtures("no_picture")
def test_verify_says_when_the_bound_is_broken(tmp_path, capsys, monkeypatch):
    """As libraries do it that average the rows and leave the bias of a tied head at zero."""
    inner = expansion.new_rows

    def without_bias(recipe, tables):
        rows = inner(recipe, tables)
        return {name: [0 * row if row.ndim == 1 else row for row in copies] for name, copies in rows.items()}

    monkeypatch.setattr(expansion, "new_rows", without_bias)
    checkpoint = make(tmp_path, "roberta", tweak=lowered)
    assert main(argv(checkpoint, "--verify", text_of(checkpoint))) == 1
    assert "THE BOUND DOES NOT HOLD" in capsys.readouterr().out
    found = json.loads((checkpoint.output / "verify.json").read_text())
    assert found["methods"]["avg"]["holds"] is False
    assert found["methods"]["avg"]["max"] > 10


@pytest.mark.usefixtures("no_picture")
def test_verify_says_when_the_model_changed_elsewhere(tmp_path, capsys, monkeypatch):
    """In the row of an old word; the new ones keep their bound."""
    inner = expansion.write_checkpoint

    def damaged(content, path):
        content["model"][TABLE][5] += 1
        inner(content, path)

    monkeypatch.setattr(expansion, "write_checkpoint", damaged)
    checkpoint = make(tmp_path, "lm_tied")
    assert main(argv(checkpoint, "--json", "--verify", text_of(checkpoint))) == 1
    found = json.loads(capsys.readouterr().out)["verify"]
    assert found["old_logits_changed_by"] > 0.01
    assert found["holds"] is False


@pytest.mark.usefixtures("no_picture")
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
    rows = evaluation._masked([np.full(14, dictionary.unk())] * 7, dictionary, None)
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


@pytest.mark.usefixtures("no_picture")
def test_verify_of_translation(tmp_path, capsys):
    checkpoint = make(tmp_path, "transformer_shared", fillers=1)
    source, target = text_of(checkpoint, TEXT, "text.de"), text_of(checkpoint, "w1\nw2 w3\n\nw1\nw0 w8\n", "text.en")
    for files, part in (
        ((source,), "takes two files, SOURCE TARGET, not 1"),
        ((source, text_of(checkpoint, "w1\n", "short.en")), "has 5 lines, "),
        ((source, text_of(checkpoint, "\n" * 5, "empty.en")), "no words in it"),
        ((source, str(tmp_path / "nowhere")), "no such file"),
    ):
        assert part in refused(capsys, checkpoint, "--verify", *files)
    subword = argv(checkpoint, "--method", "subword", "--verify", source, target, words=("x\tw1 w2",))
    assert main(subword) == 0
    found = json.loads((checkpoint.output / "verify.json").read_text())
    assert found["tokens"] == 2 + 3 + 2 + 3
    methods = found["methods"]
    assert methods["avg"]["max"] <= methods["avg"]["bound"]
    assert list(methods) == ["subword", "avg", "gaussian", "zeros", "normal"]
    assert methods["subword"]["holds"] is True


def test_pairs_that_are_too_long_are_left_out():
    class Sides:
        def max_positions(self):
            return 4, 3

    dictionary, ids = Dictionary(), [np.full(length, 5) for length in range(5)]
    columns = [[ids[3], ids[4], ids[3], ids[0]], [ids[2], ids[1], ids[3], ids[1]]]
    rows, too_long = evaluation._pairs(Sides(), columns, ("a", "b"), (dictionary, dictionary))
    (inputs, _, _) = rows[0]
    assert (len(rows), too_long) == (1, 2)
    assert inputs == {"src_tokens": [5, 5, 5, 2], "src_lengths": [4], "prev_output_tokens": [2, 5, 5]}


def test_batches_have_so_many_logits(monkeypatch):
    monkeypatch.setattr(evaluation, "_LOGITS", 3 * 10 * 2 + 5)
    rows = [({"src_tokens": [4] * length}, {"src_tokens": "decoder"}, None) for length in (3, 3, 3, 3, 3, 9)]
    shapes = [tuple(batch.inputs["src_tokens"].shape) for batch in evaluation._batches(rows, 10)]
    assert shapes == [(2, 3), (2, 3), (1, 3), (1, 9)]


def test_verify_of_a_model_that_is_used_otherwise(tmp_path, capsys, monkeypatch):
    flags = "--task translation_lev --noise full_mask --criterion nat_loss --arch nonautoregressive_transformer"
    monkeypatch.setitem(FAMILIES, "nat_shared", f"{FAMILIES['transformer_shared']} {flags}")
    checkpoint = make(tmp_path, "nat_shared")
    source, target = text_of(checkpoint, TEXT, "text.de"), text_of(checkpoint, TEXT, "text.en")
    assert main(argv(checkpoint, "--verify", source, target)) == 2
    captured = capsys.readouterr()
    assert "--verify: NATransformerModel computes no distribution" in captured.err
    assert "'tgt_tokens'), so there is nothing to measure; leave it out" in captured.err
    assert not checkpoint.output.exists()
    assert main(argv(checkpoint)) == 0


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_verify_of_a_model_that_is_broken_elsewhere(tmp_path, capsys, number):
    checkpoint = make(tmp_path, "lm_tied", tweak=lambda model: model.decoder.layers[0].fc2.bias.fill_(number))
    error = refused(capsys, checkpoint, "--verify", text_of(checkpoint))
    assert f"--verify: what {checkpoint.path} computes is NaN or infinite; name an earlier" in error


# --- what is refused


def test_errors_are_one_line_and_nothing_is_left(tmp_path, capsys):
    """Pipes can be read once, and then have no SHA-256; nobody writes to this one."""
    checkpoint = make(tmp_path, "lm_tied")
    os.mkfifo(tmp_path / "pipe")
    before = sorted([*(path.name for path in tmp_path.iterdir()), "new.txt"])
    for words, part in (
        (("x", "w1"), "new.txt:2: "),
        ((), "one new word a line"),
        (("x", "<mask>", "w3"), "new.txt:3"),
    ):
        assert part in refused(capsys, checkpoint, words=words)
    for flag in ("--checkpoint", "--dict", "--words", "--bpe-codes", "--sentencepiece-model", "--verify"):
        error = refused(capsys, checkpoint, flag, str(tmp_path / "pipe"))
        assert f"{flag} {tmp_path}/pipe: a pipe or device, not a file" in error
    assert f"--verify {tmp_path}: a folder; name a file" in refused(capsys, checkpoint, "--verify", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"noise_scale": 0.1}, "--noise-scale 0.1"),
        ({"user_dir": "/nowhere"}, "--user-dir /nowhere: no plugin of fairseq"),
        ({"method": "subword"}, "needs the pieces of 'x'"),
    ],
)
def test_options_that_cannot_be_used(tmp_path, options, expected):
    checkpoint = make(tmp_path, "lm_tied")
    with pytest.raises(EmbinitError, match=expected):
        checkpoint.expand(**options)
    assert not checkpoint.output.exists()


def test_a_dictionary_that_does_not_fit(tmp_path):
    for family, tables in (("roberta", "a table of 14 rows"), ("transformer", "the encoder of .* a table of 15 rows")):
        checkpoint = make(tmp_path / family, family)
        other = tmp_path / family / "other.txt"
        other.write_text(dictionary([*WORDS, "a", "b", "c", "d", "e"]))
        with pytest.raises(DataError, match=rf"--dict .*other\.txt: .* symbols \(4 specials, 14 lines.*{tables}"):
            checkpoint.expand(dictionary=str(other))
        assert not checkpoint.output.exists()
        assert sorted(path.name for path in checkpoint.folder.iterdir()) == ["c.pt", "data", "new.txt", "other.txt"]


@pytest.mark.parametrize(
    ("family", "flags", "expected"),
    [
        (
            "lm",
            "--adaptive-softmax-cutoff 5,8 --adaptive-softmax-factor 1 --adaptive-input --adaptive-input-cutoff 5,8 "
            "--adaptive-input-factor 1",
            r"\(--adaptive-softmax-cutoff, --adaptive-input\)",
        ),
        ("lm", "--adaptive-softmax-cutoff 5,8 --adaptive-softmax-factor 1", "--adaptive-softmax-cutoff"),
        ("lm", "--output-dictionary-size 10", r"only the first 10 of 13 symbols \(--output-dictionary-size"),
        ("fconv", "", "weight normalisation"),
    ],
)
def test_models_that_cannot_be_expanded(tmp_path, monkeypatch, family, flags, expected):
    fconv = "--task language_modeling --tokens-per-sample 16 --arch fconv_lm --decoder-embed-dim 8 "
    monkeypatch.setitem(FAMILIES, "fconv", f"{fconv} --decoder-layers [(8,3)] --decoder-attention False")
    with pytest.raises(CheckpointError, match=rf"c\.pt: .*{expected}"):
        make(tmp_path, family, flags=flags).expand()


def test_checkpoints_that_are_none(tmp_path):
    checkpoint = make(tmp_path, "lm_tied")
    whole, tied = (tmp_path / "c.pt").read_bytes(), "decoder.output_projection.weight"
    weights, cfg = checkpoint.state["model"], checkpoint.state["cfg"]
    mistakes = {
        "safely": whole[: len(whole) // 2],
        "no 'model' in it": {"cfg": {}, "epoch": 3},
        "no 'cfg'": {"model": weights, "cfg": None},
        "fully_sharded": {**checkpoint.state, "fsdp_metadata": {}},
        "no table with a row for every symbol": {
            **checkpoint.state,
            "model": {"layer.weight": weights["decoder.layers.0.fc1.weight"]},
        },
        "differ in the file": {**checkpoint.state, "model": {**weights, tied: weights[tied] + 1}},
        "cannot be loaded": {
            **checkpoint.state,
            "model": {key: value for key, value in weights.items() if not key.endswith("fc1.weight")},
        },
        "a model of --arch of_nobody, which neither fairseq nor this plugin has; .*--user-dir": {
            **checkpoint.state,
            "cfg": {**cfg, "model": {**cfg["model"], "_name": "of_nobody", "arch": "of_nobody"}},
        },
        "its 'cfg' is of type int": {**checkpoint.state, "cfg": 5},
        "its 'extra_state' is of type int, .* name another checkpoint": {**checkpoint.state, "extra_state": 7},
        "its 'optimizer_history' is of type dict": {**checkpoint.state, "optimizer_history": {"a": 1}},
        "cannot be set up": {**checkpoint.state, "cfg": {**cfg, "task": {**cfg["task"], "_name": "of_a_plugin"}}},
    }
    for expected, content in mistakes.items():
        if isinstance(content, bytes):
            (tmp_path / "c.pt").write_bytes(content)
        else:
            torch.save(content, checkpoint.path)
        with pytest.raises(CheckpointError, match=expected):
            checkpoint.expand()
        assert not checkpoint.output.exists()
    (tmp_path / "c.pt").unlink()
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        checkpoint.expand()


def test_tables_that_are_not_finite(tmp_path):
    """Also in the row of <pad>, which `all` averages; the message is not that the two names of the table differ."""
    for family, number, row in (("lm_tied", math.nan, 6), ("lm_tied", math.inf, 12), ("transformer", math.nan, 1)):
        checkpoint = make(tmp_path, family)
        checkpoint.state["model"]["decoder.embed_tokens.weight"][row, 0] = number
        checkpoint.save()
        with pytest.raises(
            CheckpointError, match=r"c\.pt: decoder\.embed_tokens\.weight holds NaN or infinity; name an"
        ):
            checkpoint.expand(average_over="words")
        assert not checkpoint.output.exists()


def test_averages_that_are_not_of_the_model(tmp_path):
    checkpoint, key, tied = make(tmp_path, "lm_tied"), "decoder.embed_tokens.weight", "decoder.output_projection.weight"
    weights = checkpoint.state["model"]
    other = "decoder.layers.0.fc1.weight"
    nan = weights[key].clone()
    nan[3, 3] = math.nan
    mistakes = {
        rf"\(extra_state, ema\) has {key} of shape \(3, 3\), but the model of \(13, 8\); .*another": {
            key: torch.ones(3, 3)
        },
        rf"has {other} of shape \(2,\), but": {**weights, other: torch.ones(2)},
        rf"has {key} of shape None": {key: [1.0]},
        f"ema {key} holds NaN or infinity": {key: nan},
        f"ema {key} and {tied} are one table in the model, but differ": {**weights, tied: weights[key] + 1},
    }
    for expected, average in mistakes.items():
        checkpoint.state["extra_state"]["ema"] = average
        checkpoint.save()
        with pytest.raises(CheckpointError, match=rf"c\.pt: .*{expected}"):
            checkpoint.expand()
        assert not checkpoint.output.exists()


def test_noise_that_half_precision_cannot_hold(tmp_path):
    checkpoint = make(tmp_path, "lm_tied", tweak=lambda model: [parameter.mul_(20) for parameter in model.parameters()])
    checkpoint.state["model"] = {key: value.half() for key, value in checkpoint.state["model"].items()}
    checkpoint.save()
    with pytest.raises(
        OptionError, match=r"--noise-scale: a new row of .* is too large for torch\.float16; choose a sm"
    ):
        checkpoint.expand("gaussian", noise_scale=9e9, reset_optimizer=True)
    assert not checkpoint.output.exists()
    checkpoint.expand("gaussian", noise_scale=1.0, reset_optimizer=True)


def test_dictionaries_as_fairseq_reads_them(tmp_path):
    checkpoint = make(tmp_path, "lm_tied")
    path, text = Path(checkpoint.dictionary), dictionary()
    path.write_text(text.replace("w3 7\n", "w3 7\n\n"))
    with pytest.raises(
        DataError, match=r"dict\.txt:5: an empty line, which fairseq refuses in a dictionary; remove it"
    ):
        checkpoint.expand()
    path.write_bytes(text.replace("\n", "\r").encode())
    checkpoint.expand()
    assert (checkpoint.output / "dict.txt").read_bytes() == f"{text}x 1\ny 1\nz 1\n".encode()


@pytest.mark.parametrize(
    ("entry", "words"),
    [({5: torch.ones(2)}, "5"), ({"w": torch.ones(2, dtype=torch.complex64)}, "complex64")],
    ids=["a number as a name", "complex"],
)
def test_weights_that_nothing_can_compute_with(tmp_path, entry, words):
    torch.save({"model": {"v": torch.ones(2), **entry}}, tmp_path / "c.pt")
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(tmp_path / "c.pt")
    assert words in str(error.value)
    assert "another checkpoint" in str(error.value)
