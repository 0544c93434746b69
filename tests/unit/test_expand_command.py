"""`embinit expand-vocab`: what it prints, `--verify`, and what it refuses in one line, with nothing written."""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
from pathlib import Path

import expand_checkpoints
import numpy as np
import pytest
import torch
from expand_checkpoints import LM, TEXT, WORDS, argv, as_fairseq, dictionary, divergence, logits, lowered, make, text_of
from fairseq.data import Dictionary

from embinit_fairseq.analysis import divergences
from embinit_fairseq.cli import expand_verify
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import CheckpointError, DataError, EmbinitError
from embinit_fairseq.expand import evaluation, expansion, output
from embinit_fairseq.init.report import symbols_digest

TABLE, TIED, OTHER = "decoder.embed_tokens.weight", "decoder.output_projection.weight", "decoder.layers.0.fc1.weight"


@pytest.fixture
def no_picture(monkeypatch):
    """Drawing takes longer than everything else."""
    monkeypatch.setattr(divergences, "draw_divergences", lambda *arguments: Path(arguments[-1]).touch())


@pytest.fixture
def no_output(refused):
    """The one line of a call that writes nothing."""

    def call(checkpoint, *more, **options):
        said = refused(*argv(checkpoint, *more, **options))
        assert not checkpoint.output.exists()
        return said

    return call


def verified(checkpoint, *more, code=0, **options) -> dict:
    """What --verify finds."""
    assert main(argv(checkpoint, "--verify", text_of(checkpoint), *more, **options)) == code
    return json.loads((checkpoint.output / "expansion.json").read_text())["verify"]


def test_for_people(tmp_path, shown, monkeypatch):
    checkpoint, more = make(tmp_path, "roberta", fillers=1), [f"n{i}" for i in range(10)]
    parts = ["3: x, y, z", "15 -> 17 (1 filler became words)", "avg, over 14 rows", "<mask> to row 16"]
    parts += ["<= 0.1942 nats", "embed_tokens.weight = encoder.lm_head.weight", "the optimiser's state"]
    zeros = ["--method", "zeros", "--force"]
    for flags, words, expected in (([], "xyz", parts), (zeros, more, ["no bound with zeros", "n7 and 2 more"])):
        text = shown(*argv(checkpoint, *flags, words=words))
        assert all(part in text for part in expected), text
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="strict"))
    assert main(argv(checkpoint, "--force", words=("lothló", "𝔵"))) == 0
    assert r"lothló, \U0001d535" in sys.stdout.buffer.getvalue().decode("latin-1")


def test_a_fine_tuned_model_has_inputs_only(tmp_path, shown, no_output):
    """The head of a language model is still there and grows, but what the model says is a class."""
    checkpoint = make(tmp_path, "roberta_fine_tuned")
    assert "words are inputs only" in no_output(checkpoint, "--verify", text_of(checkpoint))
    text = shown(*argv(checkpoint))
    assert all(part in text for part in ("the words are inputs only", "encoder.lm_head.bias"))
    files = ["dict.txt", "expansion.json", "input0", "label", "model.pt"]
    assert sorted(path.name for path in checkpoint.output.iterdir()) == files
    assert (checkpoint.output / "label/dict.txt").read_text() == "a 1\nb 1\nc 1\n"


def test_verify_measures_every_token(tmp_path, figures):
    """Against one forward pass a sentence, and both distributions; also that batches of a length change nothing."""
    checkpoint = make(tmp_path, "lm_tied")
    found = verified(checkpoint, "--method", "zeros")
    (model, _), symbols, kls = as_fairseq(checkpoint), checkpoint.task.target_dictionary, []
    lines = [line.split() for line in TEXT.splitlines() if line]
    for words in [line[at : at + 15] for line in lines for at in range(0, len(line), 15)]:  # 16 positions with </s>
        ids = [symbols.eos(), *(symbols.index(word) for word in words)]
        kls.append(divergence(logits(checkpoint.model, ids, ids), logits(model, ids, ids)).numpy())
    kls = np.concatenate(kls)
    assert found["tokens"] == len(kls) == 31
    zeros, avg = (found["methods"][method] for method in ("zeros", "avg"))
    assert (zeros["mean"], zeros["max"]) == pytest.approx((kls.mean(), kls.max()), rel=1e-5)
    assert [zeros[f"q{q}"] for q in (50, 90, 99)] == pytest.approx(np.quantile(kls, (0.5, 0.9, 0.99)), rel=1e-5)
    assert zeros["new_words_probability"] == pytest.approx((1 - np.exp(-kls)).mean(), rel=1e-5)
    assert found["unknown_words"] == pytest.approx(1 / 26)
    assert list(found["methods"]) == ["zeros", *(name for name in expand_verify.COMPARED if name != "zeros")]
    assert avg["max"] <= avg["bound"] == pytest.approx(np.log(1 + 3 / 13))
    assert (found["old_logits_changed_by"], found["pairs_too_long"]) == (pytest.approx(0, abs=1e-6), 0)
    files = json.loads((checkpoint.output / "expansion.json").read_text())["files"]
    assert {path.name for path in checkpoint.output.iterdir()} == set(files) - {"verify.png"}
    written = json.loads((checkpoint.output / "verify.json").read_text())["histograms"]
    edges, most = written["zeros"]["edges"], max(method["max"] for method in found["methods"].values())
    assert (len(edges), edges[0], edges[-1]) == (41, 0, pytest.approx(most))
    assert {(sum(each["counts"]), tuple(each["edges"])) for each in written.values()} == {(31, tuple(edges))}
    assert [axes.get_title().split(":")[0] for axes in figures[0].axes] == list(written)
    for axes, (method, shown) in zip(figures[0].axes, written.items()):
        data, bound = axes.patches[0].get_data(), found["methods"][method]["bound"]
        assert (data.edges[1:].tolist(), data.values.tolist()) == (edges[1:], shown["counts"])
        assert [line.get_xdata()[0] for line in axes.get_lines()] == ([] if bound is None else [bound])
    # one axis, logarithmic: the bound does not squeeze what was measured
    assert {(axes.get_xscale(), axes.get_xlim()) for axes in figures[0].axes} == {
        ("log", figures[0].axes[0].get_xlim())
    }
    assert avg["bound"] < figures[0].axes[0].get_xlim()[1]
    # --noise-scale is of the method that was asked for
    other = verified(checkpoint, "--method", "gaussian", "--noise-scale", "4", "--force")["methods"]["normal"]
    assert found["methods"]["normal"]["mean"] == other["mean"] > 0


@pytest.mark.usefixtures("no_picture")
def test_verify_of_a_biased_head(tmp_path):
    """All biases are -20: the stored mean keeps the bound in low precision, and zeros put everything on new words."""
    checkpoint = make(tmp_path, "roberta", tweak=lowered)
    checkpoint.state["model"] = {key: value.bfloat16() for key, value in checkpoint.state["model"].items()}
    checkpoint.save()
    found = verified(checkpoint, "--reset-optimizer")
    assert found["tokens"] == 1 + 1 + 1 + 2 + 1  # every seventh word of 4, 3, 2, 14 and 3
    assert found["methods"]["zeros"]["new_words_probability"] > 0.999
    assert found["methods"]["avg"]["max"] < 0.25


@pytest.mark.usefixtures("no_picture")
def test_verify_says_when_something_is_wrong(tmp_path, capsys, monkeypatch):
    """The rows are averaged and the bias of a tied head left at zero, as by libraries; or an old row has changed."""
    rows, write = expansion.new_rows, output.write_checkpoint

    def without_bias(*arguments):
        found = rows(*arguments)
        return {name: [0 * row if row.ndim == 1 else row for row in copies] for name, copies in found.items()}

    def damaged(content, path):
        content["model"][TABLE][5] += 1
        write(content, path)

    monkeypatch.setattr(output, "write_checkpoint", damaged)
    found = verified(make(tmp_path / "row", "lm_tied"), code=1)
    assert (found["holds"], found["old_logits_changed_by"] > 0.01) == (False, True)
    monkeypatch.setattr(output, "write_checkpoint", write)
    monkeypatch.setattr(expansion, "new_rows", without_bias)
    avg = verified(make(tmp_path / "bias", "roberta", tweak=lowered), code=1)["methods"]["avg"]
    assert (avg["holds"], avg["max"] > 10) == (False, True)
    assert "THE BOUND DOES NOT HOLD" in capsys.readouterr().out


def test_every_place_is_masked_once_in_seven_sentences():
    symbols = Dictionary()
    mask = symbols.add_symbol("<mask>")
    rows = evaluation._masked([np.full(14, symbols.unk())] * 7, symbols, None)
    chosen = np.array([chosen for _, _, chosen in rows])
    assert (chosen.sum(axis=0).tolist(), chosen.sum(axis=1).tolist()) == ([0, *[1] * 14, 0], [2] * 7)
    assert np.array_equal(np.array([inputs["src_tokens"] for inputs, _, _ in rows]) == mask, chosen)


@pytest.mark.usefixtures("no_picture")
def test_verify_of_translation(tmp_path, no_output):
    checkpoint = make(tmp_path, "transformer_shared", fillers=1)
    source, short, empty = (
        text_of(checkpoint),
        text_of(checkpoint, "w1\n", "short"),
        text_of(checkpoint, "\n" * 5, "no"),
    )
    target = text_of(checkpoint, "w1\nw2 w3\n\nw1\nw0 w8\n", "target")
    for given, part in (
        ([], "two files, SOURCE TARGET, not 1"),
        ([short], "has 5 lines, "),
        ([empty], "no words in it"),
    ):
        assert part in no_output(checkpoint, "--verify", source, *given)
    assert main(argv(checkpoint, "--method", "subword", "--verify", source, target, words=("x\tw1 w2",))) == 0
    found = json.loads((checkpoint.output / "verify.json").read_text())
    assert found["tokens"] == 2 + 3 + 2 + 3
    assert list(found["methods"]) == ["subword", *expand_verify.COMPARED]
    assert found["methods"]["avg"]["max"] <= found["methods"]["avg"]["bound"]
    assert found["methods"]["subword"]["holds"] is True


def test_pairs_that_are_too_long_are_left_out():
    class Sides:
        def max_positions(self):
            return 4, 3

    symbols, ids = Dictionary(), [np.full(length, 5) for length in range(5)]
    columns = [[ids[3], ids[4], ids[3], ids[0]], [ids[2], ids[1], ids[3], ids[1]]]
    rows, too_long = evaluation._pairs(Sides(), columns, ("a", "b"), (symbols, symbols))
    assert (len(rows), too_long) == (1, 2)
    assert rows[0][0] == {"src_tokens": [5, 5, 5, 2], "src_lengths": [4], "prev_output_tokens": [2, 5, 5]}


def test_batches_have_so_many_logits(monkeypatch):
    monkeypatch.setattr(evaluation, "_LOGITS", 3 * 10 * 2 + 5)
    rows = [({"src_tokens": [4] * length}, {"src_tokens": "decoder"}, None) for length in (3, 3, 3, 3, 3, 9)]
    shapes = [tuple(batch.inputs["src_tokens"].shape) for batch in evaluation._batches(rows, 10)]
    assert shapes == [(2, 3), (2, 3), (1, 3), (1, 9)]


def test_errors_are_one_line_and_nothing_is_left(tmp_path, no_output):
    """Pipes can be read once, and then have no SHA-256; nobody writes to this one."""
    checkpoint = make(tmp_path, "lm_tied")
    os.mkfifo(tmp_path / "pipe")
    before = sorted([*(path.name for path in tmp_path.iterdir()), "new.txt"])
    assert "new.txt:2: " in no_output(checkpoint, words=("x", "w1"))
    for flag in ("--checkpoint", "--dict", "--words", "--bpe-codes", "--sentencepiece-model", "--verify"):
        error = no_output(checkpoint, flag, str(tmp_path / "pipe"))
        assert f"{flag} {tmp_path}/pipe: a pipe or device, not a file" in error
    assert "--user-dir /nowhere: no plugin of fairseq" in no_output(checkpoint, "--user-dir", "/nowhere")
    assert "needs the pieces of 'x'" in no_output(checkpoint, "--method", "subword")
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    checkpoint = make(tmp_path / "nan", "lm_tied", tweak=lambda model: model.decoder.layers[0].fc2.bias.fill_(math.nan))
    assert "computes is NaN or infinite; name an earlier" in no_output(checkpoint, "--verify", text_of(checkpoint))


def test_dictionaries_that_do_not_fit_or_are_none(tmp_path):
    for family, tables in (("transformer", "encoder of .* a table of 15 rows"), ("lm_tied", "a table of 13 rows")):
        checkpoint = make(tmp_path / family, family)
        path = checkpoint.folder / "other.txt"
        path.write_text(dictionary([*WORDS, "a", "b", "c", "d", "e"]))
        with pytest.raises(DataError, match=rf"--dict .*other\.txt: .* symbols \(4 specials, 14 lines.*{tables}"):
            checkpoint.expand(dictionary=str(path))
    path.write_text(dictionary(WORDS[::-1]))
    slots = {"decoder": {"rows": 13, "dictionary": symbols_digest(checkpoint.task.dictionary.symbols)}}
    checkpoint.state["cfg"]["embed_init_options"] = {"embed_init_record": json.dumps({"slots": slots})}
    checkpoint.save()
    with pytest.raises(DataError, match=r"--dict .*other\.txt: as many symbols .*\(decoder\).*of its training"):
        checkpoint.expand(dictionary=str(path))
    del checkpoint.state["cfg"]["embed_init_options"]
    checkpoint.save()
    path.write_text(dictionary().replace("w3 7\n", "w3 7\n\n"))
    with pytest.raises(DataError, match=r"other\.txt:5: an empty line"):
        checkpoint.expand(dictionary=str(path))
    path.write_bytes(dictionary().replace("\n", "\r").encode())
    checkpoint.expand(dictionary=str(path))
    assert (checkpoint.output / "dict.txt").read_bytes() == f"{dictionary()}x 1\ny 1\nz 1\n".encode()


def test_models_that_cannot_be_expanded(tmp_path, monkeypatch):
    for arch, expected in (
        ("transformer_lm --adaptive-softmax-cutoff 5,8 --adaptive-softmax-factor 1", "--adaptive-softmax-cutoff"),
        ("transformer_lm --output-dictionary-size 10", r"only the first 10 of 13 symbols \(--output-dictionary-size"),
        ("fconv_lm --decoder-layers [(8,3)] --decoder-attention False", "weight normalisation"),
    ):
        monkeypatch.setitem(expand_checkpoints.FAMILIES, "lm", f"{LM} {arch} --decoder-embed-dim 8")
        with pytest.raises(CheckpointError, match=rf"c\.pt: .*{expected}"):
            make(tmp_path, "lm").expand()


def test_verify_of_a_model_that_is_used_otherwise(tmp_path, no_output, monkeypatch):
    flags = "--task translation_lev --noise full_mask --criterion nat_loss --arch nonautoregressive_transformer"
    shared = expand_checkpoints.FAMILIES["transformer_shared"]
    monkeypatch.setitem(expand_checkpoints.FAMILIES, "nat_shared", f"{shared} {flags}")
    checkpoint = make(tmp_path, "nat_shared")
    said = no_output(checkpoint, "--verify", text_of(checkpoint, name="text.de"), text_of(checkpoint, name="text.en"))
    assert re.search("--verify: NATransformerModel.*leave it out", said)
    checkpoint.expand()


def mistakes(state: dict) -> dict:
    """What is said -> the checkpoint of which it is said."""
    weights, cfg, extra = state["model"], state["cfg"], state["extra_state"]
    renamed = {**cfg, "model": {**cfg["model"], "_name": "of_nobody"}}
    pad, last = weights[TABLE].clone(), weights[TABLE].clone()
    pad[1, 0], last[12, 0] = math.nan, math.inf
    changes = {
        "fully_sharded": {"fsdp_metadata": {}},
        "no table with a row for every symbol": {"model": {"layer.weight": weights[OTHER]}},
        rf"{TABLE} and {TIED} are one table .* differ in the file": {"model": {**weights, TIED: weights[TIED] + 1}},
        "cannot be loaded": {"model": {key: value for key, value in weights.items() if key != OTHER}},
        rf"{TABLE} holds NaN or infinity; name an": {"model": {**weights, TABLE: pad}},
        rf"{TABLE} holds NaN": {"model": {**weights, TABLE: last, TIED: last}},
        "--arch of_nobody, which neither .*--user-dir": {"cfg": renamed},
        "its 'optimizer_history' is of type dict": {"optimizer_history": {"a": 1}},
        "cannot be set up": {"cfg": {**cfg, "task": {**cfg["task"], "_name": "of_a_plugin"}}},
        "no 'cfg'": {"cfg": None},
        "no 'model' in it": {"model": {}},
    }
    averages = {
        rf"\(extra_state, ema\) has {TABLE} of shape \(3, 3\), but the model of \(13, 8\)": {TABLE: torch.ones(3, 3)},
        f"has {TABLE} of shape None": {TABLE: [1.0]},
        f"ema {TABLE} holds NaN or infinity": {TABLE: pad},
        f"ema {TABLE} and {TIED} are one table in the model, but differ": {**weights, TIED: weights[TABLE] + 1},
    }
    changes |= {said: {"extra_state": {**extra, "ema": ema}} for said, ema in averages.items()}
    return {said: {**state, **change} for said, change in changes.items()}


def test_checkpoints_that_are_none(tmp_path):
    checkpoint = make(tmp_path, "lm_tied")
    for expected, content in mistakes(checkpoint.state).items():
        torch.save(content, checkpoint.path)
        with pytest.raises(CheckpointError, match=rf"c\.pt\b.*{expected}"):
            checkpoint.expand()
    assert not checkpoint.output.exists()


def test_what_can_be_left_out_or_made_smaller(tmp_path):
    """An optimiser that is not understood, and noise that half precision cannot hold."""
    checkpoint = make(tmp_path, "lm_tied", tweak=lambda model: [parameter.mul_(20) for parameter in model.parameters()])
    checkpoint.state["model"] = {key: value.half() for key, value in checkpoint.state["model"].items()}
    checkpoint.state["last_optimizer_state"] = {"groups": {}}
    checkpoint.save()
    for scale, reset, expected in (
        (9e9, True, r"--noise-scale: a new row of .* is too large for torch\.float16; .*smaller"),
        (1.0, False, "--reset-optimizer"),
    ):
        with pytest.raises(EmbinitError, match=expected):
            checkpoint.expand("gaussian", noise_scale=scale, reset_optimizer=reset)
    assert checkpoint.expand("gaussian", noise_scale=1.0, reset_optimizer=True)["optimizer"] is False
    assert "last_optimizer_state" not in checkpoint.written()
