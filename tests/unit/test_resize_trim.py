"""`embinit trim-vocab`: the old model given the words that stay (back from an expansion: test_resize_expand.py)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from expand_checkpoints import WORDS, logits, make

from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.resize.core import load_result
from embinit_fairseq.resize.trim import TrimRequest, kept_rows, trimming
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary, special_rows


def request(checkpoint: str = "", dictionary: str = "", output: str | Path = "", **options) -> TrimRequest:
    return TrimRequest(checkpoint=checkpoint, dictionary=dictionary, output=str(output), **options)


def kept(vocabulary: Vocabulary, **options) -> list[int]:
    return kept_rows(vocabulary, len(vocabulary), request(**options))[0].tolist()


@pytest.mark.parametrize("family", ["lm", "roberta", "lstm"])
def test_the_new_distribution_is_the_old_one_given_the_words_that_stay(family: str, tmp_path: Path, capsys) -> None:
    """In float64, for every prefix; the command measures the same."""
    old, text = make(tmp_path, family), tmp_path / "text"
    text.write_text("w0 w1 w5 w1\nw8 unknown w5\n")
    translates = family == "lstm"
    side = ["--side", "decoder"] if translates else []
    words = ["--checkpoint", old.path, "--dict", old.dictionary, "--keep-text", text, "--output", old.output]
    assert main(["trim-vocab", *map(str, words), *side, "--verify", *[str(text)] * (1 + translates)]) == 0
    said = capsys.readouterr().out
    assert "differs from -log P_old(kept)" in said
    assert "--keep-text keeps" in said  # "unknown" is a word that is not there
    options = {"keep_text": (str(text),), "side": "decoder" if translates else None}
    with trimming(request(old.path, old.dictionary, tmp_path / "again", **options)) as (old_model, change, folder, _):
        rows, (new, _) = torch.from_numpy(change.old_row), load_result(old_model, change, folder)
    tokens = torch.randint(4, len(rows), (3, 5), generator=torch.Generator().manual_seed(2))
    inputs = {"src_tokens": tokens}
    if translates:
        inputs |= {"src_lengths": torch.full((3,), 5), "prev_output_tokens": tokens}
    mapped = {**inputs, "prev_output_tokens" if translates else "src_tokens": rows[tokens]}
    before = old_model.model.double()(**mapped)[0].log_softmax(-1)
    after = new.double()(**inputs)[0].log_softmax(-1)
    mass = before[..., rows].logsumexp(-1, keepdim=True)
    torch.testing.assert_close(after, before[..., rows] - mass, rtol=0, atol=1e-12)
    kl = (after.exp() * (after - before[..., rows])).sum(-1, keepdim=True)
    torch.testing.assert_close(kl, -mass, rtol=0, atol=1e-12)
    assert (kl > 1e-3).all()


def test_verify_measures_every_token_of_what_was_written(tmp_path: Path, monkeypatch) -> None:
    """By one forward pass a sentence of both models; a checkpoint with another row is no success."""
    old, text, call = make(tmp_path, "lm_tied", fillers=2), tmp_path / "text", ["trim-vocab", "--keep-text"]
    text.write_text("w0 w1 w5 w1\nw8 w5\n")
    call += [str(text), "--checkpoint", old.path, "--dict", old.dictionary, "--output", str(old.output), "--verify"]
    assert main([*call, str(text)]) == 0
    record = json.loads((old.output / "trim.json").read_text())
    assert (record["words_removed"], record["fillers_removed"]) == (5, 2)
    kept, mass = [0, 1, 2, 3, *(4 + WORDS.index(word) for word in ("w0", "w1", "w5", "w8"))], []
    for line in text.read_text().splitlines():
        ids = [2, *(4 + WORDS.index(word) for word in line.split())]
        mass += logits(old.model, ids, ids).double().softmax(-1)[:, kept].sum(-1).tolist()
    found, kl = record["verify"], -np.log(mass)
    assert found["tokens"] == len(kl) == 8
    assert (found["mean"], found["max"]) == pytest.approx((kl.mean(), kl.max()), rel=1e-6)
    assert found["certificate_mean"] == pytest.approx(kl.mean(), rel=1e-6)
    assert found["removed_words_probability"] == pytest.approx(1 - np.mean(mass), rel=1e-6)
    save = torch.save

    def damaged(content: dict, file) -> None:
        content["model"]["decoder.embed_tokens.weight"][5] += 1
        save(content, file)

    monkeypatch.setattr(torch, "save", damaged)
    assert "last_optimizer_state" in load_checkpoint(old.output / "model.pt")
    assert main([*call, str(text), "--force", "--reset-optimizer"]) == 1
    assert "last_optimizer_state" not in load_checkpoint(old.output / "model.pt")


def test_what_stays(tmp_path: Path) -> None:
    """Words of texts, of a list, with a count, and what any of them keeps; specials always, fillers never. A `<mask>`
    of dict.txt is in no text. Of two rows of a symbol the last counts: it is never removed alone."""
    names = [*SPECIAL_SYMBOLS, "<mask>", "a", "new york", "b", "new", "a", "madeupword0000"]
    words = Vocabulary(names, [9] * 4 + [1, 9, 1, 9, 1, 1, 9], special_rows(names))
    (tmp_path / "text").write_text("a missing a a", encoding="utf-8-sig")
    text = (str(tmp_path / "text"),)
    always = [0, 1, 2, 3, 4]
    assert kept(words, keep_text=text) == kept(words, keep_text=text, min_count=10) == [*always, 5, 9]
    assert kept_rows(words, 11, request(keep_text=text))[1] == {text[0]: 0.75}
    assert kept_rows(words, 13, request(keep_text=text))[0].tolist() == [*always, 5, 9, 11, 12]  # appended by a task
    assert kept(words, min_count=9) == [*always, 5, 7, 9]
    for listed in ("new york\n", "new york 1\n", "new york\tnew@@ york\nmadeupword0000 0\nmadeupword0009 0\n"):
        (tmp_path / "list").write_text(listed)
        assert kept(words, keep=(str(tmp_path / "list"),)) == [*always, 6]  # neither `new` nor `york`
    lists = tuple(str(tmp_path / name) for name in ("list", "second"))
    (tmp_path / "second").write_text("b\n")
    assert kept(words, keep=lists[:1], keep_text=text) == [*always, 5, 6, 9]
    assert kept(words, keep=lists) == [*always, 6, 7]
    # `</s>` that a line overwrites, as in CamemBERT's dictionary: the text has that row
    names = [*SPECIAL_SYMBOLS, "</s>", "a", "b"]
    overwritten = Vocabulary(names, [1] * 7, special_rows(names))
    assert kept(overwritten, keep_text=text) == [0, 1, 2, 3, 4, 5]
    # and what is written
    old = make(tmp_path, "roberta", fillers=3)
    (tmp_path / "list").write_text("w8\nw7 12\n")
    with trimming(request(old.path, old.dictionary, old.output, keep=lists[:1])) as (*_, record):
        assert (record["rows_after"], record["words_removed"], record["fillers_removed"]) == (4 + 2 + 1, 7, 3)
    assert (old.output / "dict.txt").read_text() == "w7 7\nw8 7\n"
    name = "encoder.sentence_encoder.embed_tokens.weight"
    before, after = (load_checkpoint(path)["model"][name] for path in (old.path, old.output / "model.pt"))
    assert torch.equal(after, before[[0, 1, 2, 3, 11, 12, -1]])


def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    old, words = make(tmp_path, "lm_tied"), tmp_path / "words"
    for options, error, remedy in (
        ({}, OptionError, "--keep-text"),
        ({"min_count": 99}, OptionError, "--min-count"),
        ({"min_count": 0}, OptionError, "fewer"),
        ({"keep": "no one\nhere\n"}, DataError, "1: 'no one'.*one word per line"),
        ({"keep": "\n"}, DataError, "--keep"),
        ({"keep": "<s>\n"}, DataError, "--keep .*words"),
        ({"keep_text": "other words\n"}, DataError, "--keep-text"),
        ({"keep_text": "w0 w@@ ords of another text\n"}, DataError, "--keep-text .*17%"),
        ({"keep_text": "<unk>\n"}, DataError, "--keep-text .*words: only special"),
    ):
        for name in {"keep", "keep_text"} & set(options):
            words.write_text(options[name])
            options = {name: (str(words),)}
        with pytest.raises(error, match=remedy), trimming(request(old.path, old.dictionary, old.output, **options)):
            pass
        assert not old.output.exists()
