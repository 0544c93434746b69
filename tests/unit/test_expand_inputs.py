"""`embinit expand-vocab` on files that are none, terminals that know few letters, models that say no word."""

from __future__ import annotations

import io
import json
import math
import os
import sys

import pytest
import torch
from expand_checkpoints import FAMILIES, TEXT, argv, make, text_of

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import CheckpointError


def test_pipes_are_refused(tmp_path, capsys):
    """They can be read once, and then have no SHA-256; nobody writes to this one."""
    checkpoint = make(tmp_path, "lm_tied")
    os.mkfifo(tmp_path / "pipe")
    for flag in ("--checkpoint", "--dict", "--words", "--bpe-codes", "--sentencepiece-model", "--verify"):
        assert main(argv(checkpoint, flag, str(tmp_path / "pipe"))) == 2
        captured = capsys.readouterr()
        assert f"error: {flag} {tmp_path}/pipe: a pipe or device, not a file; save what comes out" in captured.err
        assert captured.err.count("\n") == 1
    assert main(argv(checkpoint, "--verify", str(tmp_path))) == 2
    assert f"--verify {tmp_path}: a folder; name a file in it" in capsys.readouterr().err
    assert not checkpoint.output.exists()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_words_that_the_terminal_cannot_show(tmp_path, monkeypatch, encoding):
    checkpoint, words = make(tmp_path, "lm_tied"), ("lothló", "ромашка", "𝔵")
    shown = []
    for flags in ((), ("--json", "--force")):
        output = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
        monkeypatch.setattr(sys, "stdout", output)
        assert main(argv(checkpoint, *flags, words=words)) == 0
        shown.append(output.buffer.getvalue().decode(encoding))
    assert r"\u0440\u043e\u043c\u0430\u0448\u043a\u0430, \U0001d535" in shown[0]
    assert ("lothló" in shown[0]) == (encoding == "latin-1")
    assert [word["word"] for word in json.loads(shown[1])["words"]] == list(words)


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
    assert main(argv(checkpoint, "--verify", text_of(checkpoint))) == 2
    captured = capsys.readouterr()
    assert f"--verify: what {checkpoint.path} computes is NaN or infinite; name an earlier" in captured.err
    assert not checkpoint.output.exists()


def test_a_fine_tuned_model_has_inputs_only(tmp_path, capsys):
    """Its language-model head is still there and grows, but what it says is a class."""
    checkpoint = make(tmp_path, "roberta_fine_tuned")
    assert main(argv(checkpoint)) == 0
    text = capsys.readouterr().out
    assert "the words are inputs only: nothing that the model says changes" in text
    assert "encoder.lm_head.bias" in text
    assert main(argv(checkpoint, "--force", "--verify", text_of(checkpoint))) == 2
    assert "--verify: the new words are inputs only" in capsys.readouterr().err


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
