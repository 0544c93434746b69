"""`embinit trim-vocab`: the old model given the words that stay, to the bit, and back from an expansion."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from expand_checkpoints import FAMILIES, NEW, TEXT, TWO_TABLES, USER_DIR, WORDS, logits, make

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import DataError, EmbinitError, OptionError
from embinit_fairseq.resize.core import load_result
from embinit_fairseq.resize.trim import TrimRequest, kept_rows, trimming
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary


def trim(checkpoint: str, dictionary: str, output: Path, **options) -> dict:
    with trimming(TrimRequest(checkpoint, dictionary, str(output), **options)) as (*_, record):
        return record


def assert_same(one, other, path: str = "") -> None:
    """Nested containers with the same keys and the same bits."""
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, path
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for number, pair in enumerate(zip(one, other)):
            assert_same(*pair, f"{path}.{number}")
    else:
        assert one == other, path


@pytest.mark.parametrize("family", FAMILIES)
def test_after_an_expansion_it_gives_back_the_old_checkpoint(family: str, tmp_path: Path) -> None:
    """Rows, moments, averages, options and dictionary."""
    old = make(tmp_path, family)
    old.state["extra_state"]["ema"] = {name: value + 1 for name, value in old.state["model"].items()}
    old.save()
    old.expand()
    name = Path(old.dictionary).name
    record = trim(
        str(old.output / "model.pt"),
        str(old.output / name),
        tmp_path / "back",
        keep=old.dictionary,
        side="decoder" if family in TWO_TABLES else None,
        user_dir=USER_DIR,
    )
    assert record["words_removed"] == len(NEW)
    assert (tmp_path / "back" / name).read_text() == Path(old.dictionary).read_text()
    before, back = load_checkpoint(old.path), load_checkpoint(tmp_path / "back" / "model.pt")
    for part in ("model", "last_optimizer_state", "extra_state"):
        assert_same(before[part], back[part], part)


@pytest.mark.parametrize("family", ["lm", "lm_tied", "roberta", "transformer", "duo"])
def test_the_new_distribution_is_the_old_one_given_the_words_that_stay(family: str, tmp_path: Path, capsys) -> None:
    """In float64, for every prefix; the command measures the same."""
    old = make(tmp_path, family)
    (tmp_path / "text").write_text("w0 w1 w5 w1\nw8 unknown w5\n")
    texts = ["--verify", *[str(tmp_path / "text")] * (2 if family in ("transformer", "duo") else 1)]
    side = ["--side", "decoder"] if family in ("transformer", "duo") else []
    words = ["--checkpoint", old.path, "--dict", old.dictionary, "--keep-text", str(tmp_path / "text")]
    assert main(["trim-vocab", *words, "--output", str(old.output), *side, *texts]) == 0
    said = capsys.readouterr().out
    assert "differs from -log P_old(kept)" in said
    assert "--keep-text keeps" in said  # "unknown" is a word that is not there
    request = TrimRequest(
        old.path, old.dictionary, str(tmp_path / "again"), (str(tmp_path / "text"),), side=(side or [0, None])[1]
    )
    with trimming(request) as (source, change, folder, _):
        kept, (new, _) = torch.from_numpy(change.source), load_result(source, change, folder)
    torch.manual_seed(2)
    tokens = torch.randint(4, len(kept), (3, 5))
    inputs = {"src_tokens": tokens}
    if side:
        inputs |= {"src_lengths": torch.full((3,), 5), "prev_output_tokens": tokens}
    mapped = {**inputs, "prev_output_tokens" if side else "src_tokens": kept[tokens]}
    before = source.model.double()(**mapped)[0].log_softmax(-1)
    after = new.double()(**inputs)[0].log_softmax(-1)
    mass = before[..., kept].logsumexp(-1, keepdim=True)
    torch.testing.assert_close(after, before[..., kept] - mass, rtol=0, atol=1e-12)
    kl = (after.exp() * (after - before[..., kept])).sum(-1, keepdim=True)
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
    """Words of texts, of a list, with a count, and what any of them keeps; specials always, fillers never."""
    old = make(tmp_path, "roberta", fillers=3)
    lines = [f"{word} {number}" for number, word in enumerate(WORDS)]
    (tmp_path / "data" / "dict.txt").write_text("\n".join([*lines, *(f"madeupword000{n} 0" for n in range(3))]) + "\n")
    (tmp_path / "text").write_text(TEXT.split("\n")[0])
    (tmp_path / "list").write_text("w8\nw7 12\nmadeupword0000 0\nmadeupword0009 0\n")
    (tmp_path / "out").mkdir()
    wanted = {
        "text": ({"keep_text": (str(tmp_path / "text"),)}, ["w0", "w1", "w2", "w3"]),
        "list": ({"keep": str(tmp_path / "list")}, ["w7", "w8"]),
        "count": ({"min_count": 6}, ["w6", "w7", "w8"]),
        "all": ({"keep_text": (str(tmp_path / "text"),), "min_count": 8}, ["w0", "w1", "w2", "w3", "w8"]),
    }
    for name, (options, words) in wanted.items():
        record = trim(old.path, str(tmp_path / "data" / "dict.txt"), tmp_path / "out" / name, **options)
        assert [line.split()[0] for line in (tmp_path / "out" / name / "dict.txt").read_text().splitlines()] == words
        assert record["rows_after"] == 4 + len(words) + 1  # <mask> behind them
        assert record["fillers_removed"] == 3
        table = load_checkpoint(tmp_path / "out" / name / "model.pt")["model"][
            "encoder.sentence_encoder.embed_tokens.weight"
        ]
        rows = [0, 1, 2, 3, *(4 + WORDS.index(word) for word in words), -1]
        before = old.state["model"]["encoder.sentence_encoder.embed_tokens.weight"]
        assert torch.equal(table, before[rows])
    words = Vocabulary([*SPECIAL_SYMBOLS, "<mask>", "a", "b"], [9] * 6 + [1], dict(enumerate(SPECIAL_SYMBOLS.values())))
    (tmp_path / "text").write_text("a")
    kept, known = kept_rows(words, len(words), TrimRequest("", "", "", keep_text=(str(tmp_path / "text"),)))
    assert known == {str(tmp_path / "text"): 1.0}
    assert kept.tolist() == [0, 1, 2, 3, 4, 5]  # a <mask> of dict.txt is in no text, either


def test_symbols_that_stand_twice_or_have_blanks(tmp_path: Path) -> None:
    """Of two rows the last one counts: it is never removed alone. `new york` is neither `new` nor `york`."""
    names = [*SPECIAL_SYMBOLS, "a", "new york", "b", "new", "a"]
    words = Vocabulary(names, [9] * 4 + [9, 1, 9, 1, 1], dict(enumerate(SPECIAL_SYMBOLS.values())))
    assert kept_rows(words, len(words), TrimRequest("", "", "", min_count=9))[0].tolist() == [0, 1, 2, 3, 4, 6, 8]
    for text in ("new york\n", "new york 1\n", "new york\tnew@@ york\n"):
        (tmp_path / "list").write_text(text)
        assert kept_rows(words, len(words), TrimRequest("", "", "", keep=str(tmp_path / "list")))[0].tolist() == [
            0,
            1,
            2,
            3,
            5,
        ]
    (tmp_path / "text").write_text("a b", encoding="utf-8-sig")
    kept, _ = kept_rows(words, len(words), TrimRequest("", "", "", keep_text=(str(tmp_path / "text"),)))
    assert kept.tolist() == [0, 1, 2, 3, 4, 6, 8]


@pytest.fixture(scope="module")
def lm_tied(tmp_path_factory):
    return make(tmp_path_factory.mktemp("lm"), "lm_tied")


@pytest.mark.parametrize(
    ("options", "error", "remedy"),
    [
        ({}, OptionError, "--keep-text"),
        ({"min_count": 99}, OptionError, "--min-count"),
        ({"min_count": 0}, OptionError, "fewer"),
        ({"keep": "no one\nhere\n"}, DataError, "1: 'no one'.*one word per line"),
        ({"keep": "\n"}, DataError, "--keep"),
        ({"keep": "<s>\n"}, DataError, "--keep .*words"),
        ({"keep_text": "other words\n"}, DataError, "--keep-text"),
        ({"keep_text": "w0 w@@ ords of another text\n"}, DataError, "--keep-text .*17%"),
        ({"keep_text": "<unk>\n"}, DataError, "--keep-text .*words: only special"),
        ({"min_count": 1, "side": "decoder"}, EmbinitError, "--side"),
    ],
)
def test_bad_input_writes_nothing(options: dict, error: type[Exception], remedy: str, lm_tied, tmp_path: Path) -> None:
    for name in ("keep", "keep_text"):
        if name in options:
            (tmp_path / "words").write_text(options[name])
            options = {**options, name: (str(tmp_path / "words"),) if name == "keep_text" else str(tmp_path / "words")}
    with pytest.raises(error, match=remedy):
        trim(lm_tied.path, lm_tied.dictionary, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
