"""`--verify`, and how it reads a text. Oracles: KL by its definition over both distributions, in double precision, one
forward pass per sentence; a damaged result is noticed."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from expand_checkpoints import (
    DECODER,
    ENCODER,
    FAMILIES,
    TEXT,
    argv,
    as_fairseq,
    divergence,
    logits,
    lowered,
    make,
    text_of,
)
from fairseq.data import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.analysis import divergences
from embinit_fairseq.cli.main import main
from embinit_fairseq.resize import evaluation, expand, verify_vocabulary

TABLE = "decoder.embed_tokens.weight"


@pytest.fixture
def no_picture(monkeypatch):
    """Drawing takes longer than everything else."""
    monkeypatch.setattr(divergences, "draw_divergences", lambda *arguments: Path(arguments[-1]).touch())


def verified(checkpoint, *more, code=0, **options) -> dict:
    """What --verify finds."""
    assert main(argv(checkpoint, "--verify", text_of(checkpoint), *more, **options)) == code
    return json.loads((checkpoint.output / "expansion.json").read_text())["verify"]


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
    assert avg["max"] <= avg["bound"] == pytest.approx(np.log(1 + 3 / 13))
    assert (found["old_logits_changed_by"], found["pairs_too_long"]) == (pytest.approx(0, abs=1e-6), 0)
    written = json.loads((checkpoint.output / "verify.json").read_text())["histograms"]
    assert [axes.get_title().split(":")[0] for axes in figures[0].axes] == list(written) == list(found["methods"])
    for axes, (method, shown) in zip(figures[0].axes, written.items()):
        data, bound = axes.patches[0].get_data(), found["methods"][method]["bound"]
        assert (data.edges[1:].tolist(), data.values.tolist()) == (shown["edges"][1:], shown["counts"])
        assert (sum(shown["counts"]), len(shown["edges"])) == (31, 41)
        assert [line.get_xdata()[0] for line in axes.get_lines()] == ([] if bound is None else [bound])
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
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.float16, 0.02), (torch.bfloat16, 0.2)])
def test_what_rounding_does_is_measured(tmp_path, dtype, error):
    """Logits of new words against the same means of old logits, stored rows read back; the limit grows by it."""
    checkpoint = make(tmp_path, "roberta", tweak=lowered)
    checkpoint.state["model"] = {key: value.to(dtype) for key, value in checkpoint.state["model"].items()}
    checkpoint.save()
    words = {"x": ["w1", "w2"], "y": ["w3", "w1", "w3"]}
    lines = [f"{word}\t{' '.join(subwords)}" for word, subwords in words.items()]
    options = argv(checkpoint, "--method", "subword", "--reset-optimizer", words=lines)
    assert main([*options, "--verify", text_of(checkpoint, "w0 w1 w2 w3\nw8 w8 w5\n")]) == 0
    found = json.loads((checkpoint.output / "expansion.json").read_text())
    (model, task), symbols = as_fairseq(checkpoint), checkpoint.task.source_dictionary
    rounding = 0.0
    for line in ("w0 w1 w2 w3", "w8 w8 w5"):
        for number in range(len(line.split())):
            ids = [0, *(symbols.index(word) for word in line.split()), 2]
            ids[1 + number] = symbols.index("<mask>")
            z = logits(model, ids, [task.source_dictionary.index(symbols[row]) for row in ids]).double()
            for word, subwords in words.items():
                index = task.source_dictionary.index
                difference = z[:, index(word)] - z[:, [index(subword) for subword in subwords]].mean(1)
                rounding = max(rounding, float(difference.abs().max()))
    numbers = found["verify"]["methods"]["subword"]
    assert 0 < numbers["rounding"] <= rounding * (1 + 1e-6) < error
    assert numbers["holds"] is True
    assert numbers["max"] <= verify_vocabulary.rounded_bound(found["bound"], numbers["rounding"])
    assert numbers["bound"] == found["bound"] == found["bounds"]["limit"] < found["bounds"]["separate"]


@pytest.mark.usefixtures("no_picture")
def test_verify_says_when_something_is_wrong(tmp_path, capsys, monkeypatch):
    """The rows are averaged and the bias of a tied head left at zero, as by libraries; or an old row has changed."""
    rows, save = expand.new_rows, torch.save

    def without_bias(*arguments):
        found = rows(*arguments)
        return {name: [0 * row if row.ndim == 1 else row for row in copies] for name, copies in found.items()}

    def damaged(content, file):
        content["model"][TABLE][5] += 1
        save(content, file)

    checkpoint, biased = make(tmp_path / "row", "lm_tied"), make(tmp_path / "bias", "roberta", tweak=lowered)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", damaged)
        found = verified(checkpoint, code=1)
    assert (found["holds"], found["old_logits_changed_by"] > 0.01) == (False, True)
    monkeypatch.setattr(expand, "new_rows", without_bias)
    avg = verified(biased, code=1)["methods"]["avg"]
    assert (avg["holds"], avg["max"] > 10) == (False, True)
    assert "THE BOUND DOES NOT HOLD" in capsys.readouterr().out


@pytest.mark.usefixtures("no_picture")
def test_verify_of_translation(tmp_path, refused):
    checkpoint = make(tmp_path, "transformer_shared", fillers=1)
    source = text_of(checkpoint)
    target = text_of(checkpoint, "w1\nw2 w3\n\nw1\nw0 w8\n", "target")
    assert "two files, SOURCE TARGET, not 1" in refused(*argv(checkpoint, "--verify", source))
    for text, part in (("w1\n", "has 5 lines, "), ("\n" * 5, "no words in it")):
        assert part in refused(*argv(checkpoint, "--verify", source, text_of(checkpoint, text, "other")))
    assert main(argv(checkpoint, "--method", "subword", "--verify", source, target, words=("x\tw1 w2",))) == 0
    found = json.loads((checkpoint.output / "verify.json").read_text())
    assert found["tokens"] == 2 + 3 + 2 + 3
    assert list(found["methods"]) == ["subword", *verify_vocabulary.COMPARED]
    assert found["methods"]["avg"]["max"] <= found["methods"]["avg"]["bound"]
    assert found["methods"]["subword"]["holds"] is True


def test_pairs_that_are_too_long_are_left_out_and_batches_are_limited(monkeypatch):
    symbols, ids = Dictionary(), [np.full(length, 5) for length in range(5)]
    columns = [[ids[3], ids[4], ids[3], ids[0]], [ids[2], ids[1], ids[3], ids[1]]]
    rows, too_long = evaluation.pairs((4, 3), columns, ("a", "b"), (symbols, symbols))
    assert (len(rows), too_long) == (1, 2)
    assert rows[0][0] == {"src_tokens": [5, 5, 5, 2], "src_lengths": [4], "prev_output_tokens": [2, 5, 5]}
    monkeypatch.setattr(evaluation, "_LOGITS", 3 * 10 * 2 + 5)
    rows = [({"src_tokens": [4] * length}, [True] * length) for length in (3, 3, 3, 3, 3, 9)]
    shapes = [tuple(batch.inputs["src_tokens"].shape) for batch in evaluation.batched(rows, 10)]
    assert shapes == [(2, 3), (2, 3), (1, 3), (1, 9)]


def test_every_place_is_masked_once_in_seven_sentences():
    symbols = Dictionary()
    mask = symbols.add_symbol("<mask>")
    rows = evaluation.masked([np.full(14, symbols.unk())] * 7, symbols)
    chosen = np.array([chosen for _, chosen in rows])
    assert (chosen.sum(axis=0).tolist(), chosen.sum(axis=1).tolist()) == ([0, *[1] * 14, 0], [2] * 7)
    assert np.array_equal(np.array([inputs["src_tokens"] for inputs, _ in rows]) == mask, chosen)


def test_models_and_checkpoints_that_cannot_be_measured(tmp_path, refused, monkeypatch):
    """Inputs only; a model that edits a text; speech; weights with NaN."""
    edits = "--task translation_lev --noise full_mask --criterion nat_loss --arch nonautoregressive_transformer"
    shared = FAMILIES["transformer_shared"]
    sizes = f"{ENCODER} {DECODER}"
    monkeypatch.setitem(FAMILIES, "nat_shared", f"{shared} {edits}")
    speech = f"--task speech_to_text --arch s2t_transformer_xs --conv-channels 8 {sizes}"
    monkeypatch.setitem(FAMILIES, "speech", speech)
    (tmp_path / "speech/data").mkdir(parents=True)
    (tmp_path / "speech/data/config.yaml").write_text("vocab_filename: dict.txt\n")
    for family, files, said in (
        ("roberta_fine_tuned", 1, "words are inputs only"),
        ("nat_shared", 2, "--verify: NATransformerModel.*leave it out"),
        ("speech", 2, "--verify: the source of S2TTransformerModel"),
        ("lm_tied", 1, "logit of .* is NaN or infinite; name an earlier"),
    ):
        tweak = (lambda model: model.decoder.layers[0].fc2.bias.fill_(math.nan)) if family == "lm_tied" else None
        checkpoint = make(tmp_path / family, family, tweak=tweak)
        texts = [text_of(checkpoint, name=f"text{number}") for number in range(files)]
        assert re.search(said, refused(*argv(checkpoint, "--verify", *texts)))
        assert not checkpoint.output.exists()


# --- the numbers

LOGITS = st.lists(st.floats(-80, 80), min_size=1, max_size=6)


@given(old=LOGITS, new=LOGITS)
@settings(max_examples=50)
def test_the_identity_is_the_divergence(old, new):
    old, new = np.array(old), np.array(new)
    log_p = old - np.logaddexp.reduce(old)
    log_q = old - np.logaddexp.reduce(np.concatenate([old, new]))
    expected = float((np.exp(log_p) * (log_p - log_q)).sum())
    found = float(verify_vocabulary.divergence(torch.from_numpy(old)[None], torch.from_numpy(new)[None]))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_small_divergences_are_exact_and_rounding_moves_the_bound_a_little():
    """log(1 + 1 / 250,000), where 1 + x would lose half of the digits in single precision."""
    old, new = torch.full((1, 250_000), -20.0), torch.full((1, 1), -20.0)
    assert float(verify_vocabulary.divergence(old, new)) == pytest.approx(math.log1p(1 / 250_000), rel=1e-12)
    bound = math.log(1 + 10 / 32_000)
    assert verify_vocabulary.rounded_bound(bound, 0.0) == pytest.approx(bound, rel=2e-9)
    assert verify_vocabulary.rounded_bound(bound, 0.01) == pytest.approx(
        math.log1p(10 / 32_000 * math.exp(0.01)), rel=1e-8
    )
    kl = np.array([0.0, 0.1, 0.19, 0.2])
    assert [verify_vocabulary.summary(kl, 0.15, allowed).get("holds") for allowed in (0.16, 0.2, None)] == [
        False,
        True,
        None,
    ]
    (found,) = verify_vocabulary.histograms({"a": np.zeros(5)}).values()
    assert (sum(found["counts"]), len(found["edges"])) == (5, 41)
    assert np.diff(found["edges"]).min() > 0
