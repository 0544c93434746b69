"""fairseq checkpoints as a source of vectors. Oracles: fairseq's own Dictionary, the state dict that was saved."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from expand_checkpoints import make
from fairseq_compat.fixes import unreadable_checkpoints
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import CheckpointError, DimensionError, OptionError, VectorFileError
from embinit_fairseq.vectors.fairseq_checkpoint import FairseqCheckpoint, read_rows
from embinit_fairseq.vectors.open import open_vectors
from embinit_fairseq.vectors.table import Wanted

SYMBOLS = ["the", "haus@@", "über", "a"]
ENCODER, DECODER = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def table(rows: int, seed: int = 0, dim: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32))


def dictionary(directory: Path, symbols: list[str] = SYMBOLS, name: str = "dict.txt") -> None:
    (directory / name).write_text("".join(f"{symbol} 7\n" for symbol in symbols), encoding="utf-8")


def save(directory: Path, state: dict, task: object = None, zipped: bool = True, **others: object) -> str:
    """A checkpoint with the plain data that fairseq puts beside the model."""
    cfg = {"task": task if task is not None else {"_name": "translation"}, "model": Namespace(arch="transformer")}
    extra = {"best": np.float64(1.5), "metrics": {"bleu": np.array([1, 2])}, "epoch": np.int64(3)}
    file = directory / "checkpoint.pt"
    content = {"args": None, "cfg": cfg, "model": state, "extra_state": extra, **others}
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return str(file)


def test_rows_and_specials(tmp_path):
    dictionary(tmp_path, [*SYMBOLS, "madeupword0000"])
    matrix = table(9)
    read = FairseqCheckpoint(save(tmp_path, {ENCODER: matrix, "x": torch.ones(2)}), dim=3).read()
    assert read.words == SYMBOLS
    np.testing.assert_array_equal(read.matrix, matrix[4:8])
    roles = ["bos", "pad", "eos", "unk"]
    assert list(read.specials) == roles
    for row, role in enumerate(roles):
        np.testing.assert_array_equal(read.specials[role], matrix[row])
    assert (read.origin.rows, read.origin.dim) == (9, 3)
    assert read.matrix.flags.c_contiguous


def test_only_wanted_rows(tmp_path):
    dictionary(tmp_path)
    matrix = table(8).half()
    source = FairseqCheckpoint(save(tmp_path, {ENCODER: matrix}))
    read = source.read(Wanted(frozenset({"a", "<s>", "nothing"}), frozenset({"the"})))
    assert read.words == ["the", "a"]
    np.testing.assert_array_equal(read.matrix, matrix[[4, 7]].float())
    with pytest.raises(OptionError, match="--embed-init-oov"):
        source.compose(["ab"])


def test_each_side_has_its_language(tmp_path):
    dictionary(tmp_path, name="dict.de.txt")
    dictionary(tmp_path, ["house"], name="dict.en.txt")
    task = {"_name": "translation", "source_lang": "de", "target_lang": "en", "data": "data-bin/x"}
    path = save(tmp_path, {ENCODER: table(8), DECODER: table(5, 1)}, task)
    for side in (None, "encoder"):
        assert FairseqCheckpoint(path, side=side).read().words == SYMBOLS
    read = FairseqCheckpoint(path, side="decoder").read()
    assert read.words == ["house"]
    np.testing.assert_array_equal(read.matrix, table(5, 1)[4:])
    (tmp_path / "dict.en.txt").unlink()
    with pytest.raises(CheckpointError, match=r"dict\.en\.txt and dict\.txt.*data-bin/x"):
        FairseqCheckpoint(path, side="decoder")
    with pytest.raises(OptionError, match=r"t\.pt: .* table of encoder, encoder_p, decoder, decoder_p can be taken"):
        FairseqCheckpoint(path, side="left")


def test_without_languages_the_size_decides(tmp_path):
    dictionary(tmp_path, name="dict.de.txt")
    dictionary(tmp_path, ["house"], name="dict.en.txt")
    path = save(tmp_path, {ENCODER: table(8), DECODER: table(5)}, {"_name": "translation", "source_lang": None})
    assert FairseqCheckpoint(path, side="encoder").read().words == SYMBOLS
    assert FairseqCheckpoint(path, side="decoder").read().words == ["house"]
    dictionary(tmp_path, ["katze"], name="dict.fr.txt")
    with pytest.raises(CheckpointError, match=r"more than one fits.*dict\.txt"):
        FairseqCheckpoint(path, side="decoder")
    dictionary(tmp_path, ["house"], name="dict.fr.txt")  # joined dictionaries are equal
    assert FairseqCheckpoint(path, side="decoder").read().words == ["house"]
    (tmp_path / "dict.de.txt").write_text("nonsense")
    with pytest.raises(CheckpointError, match="none fits"):
        FairseqCheckpoint(path, side="encoder")


@pytest.mark.parametrize("side", [None, "encoder", "decoder"])
@pytest.mark.parametrize(
    "name", [ENCODER, DECODER, *(f"{s}.sentence_encoder.embed_tokens.weight" for s in ("encoder", "decoder"))]
)
def test_a_model_with_one_table_has_it_on_both_sides(tmp_path, name, side):
    dictionary(tmp_path)
    assert FairseqCheckpoint(save(tmp_path, {name: table(8)}), side=side).table == name


@pytest.mark.parametrize("side", ["encoder", "encoder_p", "decoder", "decoder_p"])
def test_a_second_stream_has_the_table_of_the_first_where_there_is_one(tmp_path, side):
    dictionary(tmp_path)
    path = save(tmp_path, {ENCODER: table(8), DECODER: table(8, 1)})
    assert FairseqCheckpoint(path, side=side).table == (DECODER if side.startswith("decoder") else ENCODER)


@pytest.mark.parametrize("side", ["encoder", "encoder_p", "decoder", "decoder_p"])
def test_both_tables_of_duo_are_found(tmp_path, side):
    duo = make(tmp_path, "duo_untied")
    for name in ("dict.de.txt", "dict.en.txt"):
        shutil.copy(tmp_path / "data" / name, tmp_path)
    read = FairseqCheckpoint(duo.save(), side=side).read(["w1", "w4"])
    table_of_slot, words, _ = duo.model.embedding_slots()[side]
    expected = table_of_slot.weight.detach()[[words.index(word) for word in read.words]]
    assert set(read.words) == {"w1", "w4"}
    np.testing.assert_array_equal(read.matrix, expected)


@pytest.mark.parametrize("old", [False, True])
def test_the_mask_of_masked_lm(tmp_path, old):
    dictionary(tmp_path)
    matrix = table(9)
    state = {"encoder.sentence_encoder.embed_tokens.weight": matrix}
    task = {"_name": "masked_lm"}
    path = save(tmp_path, state, {}, args=Namespace(task="masked_lm")) if old else save(tmp_path, state, task)
    read = FairseqCheckpoint(path).read()
    np.testing.assert_array_equal(read.specials["mask"], matrix[8])
    assert read.words == SYMBOLS
    dictionary(tmp_path, [*SYMBOLS, "<mask>"])  # already in the dictionary: nothing is appended
    read = FairseqCheckpoint(path).read()
    np.testing.assert_array_equal(read.specials["mask"], matrix[8])
    assert read.words == SYMBOLS


@pytest.mark.parametrize(
    ("rows", "task", "fits"),
    [
        (8, "translation", True),
        (9, "translation", False),
        (7, "translation", False),
        (10, "masked_lm", False),
        (7, "masked_lm", False),
        (8, "masked_lm", True),
        (11, "translation_multi_simple_epoch", True),
        (7, "translation_multi_simple_epoch", False),
    ],
)
def test_table_and_dictionary_must_fit(tmp_path, rows, task, fits):
    dictionary(tmp_path)
    source = FairseqCheckpoint(save(tmp_path, {ENCODER: table(rows)}, Namespace(task=task)))
    if fits:
        assert source.read().words == SYMBOLS
    else:
        with pytest.raises(CheckpointError, match=rf"{rows} rows.*describes 8.*{task}"):
            source.read()


SYMBOL = st.text(st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]), min_size=1, max_size=4)


@FUZZ
@given(
    st.lists(st.tuples(SYMBOL | st.sampled_from(["<s>", "a", "b", "<mask>"]), st.booleans()), min_size=1, max_size=8)
)
def test_dictionaries_are_read_as_fairseq_does(tmp_path, lines):
    fairseq = pytest.importorskip("fairseq.data")
    file = tmp_path / "dict.txt"
    text = "".join(f"{symbol} 3{' #fairseq:overwrite' if overwrite else ''}\n" for symbol, overwrite in lines)
    file.write_text(text, encoding="utf-8", newline="")
    try:
        reference = fairseq.Dictionary.load(str(file))
    except RuntimeError:  # a duplicate
        with pytest.raises(CheckpointError, match="twice"):
            read_rows(file)
        return
    rows = read_rows(file)
    assert rows.size == len(reference)
    names = {symbol for symbol, _ in lines} - {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}
    assert rows.words == {symbol: reference.indices[symbol] for symbol in names}
    expected = {"bos": reference.bos(), "pad": reference.pad(), "eos": reference.eos(), "unk": reference.unk()}
    if "<mask>" in reference:
        expected["mask"] = reference.index("<mask>")
    assert rows.specials == expected


@pytest.mark.parametrize(
    "content", ["", "word\n", "the 1\n\na 1\n", "the x\n", "the 1\nthe 2\n", "the 1 #fairseq:over\n"]
)
def test_malformed_dictionaries(tmp_path, content):
    path = save(tmp_path, {ENCODER: table(5)})
    (tmp_path / "dict.txt").write_text(content)
    with pytest.raises(CheckpointError, match=r"dict\.txt"):
        FairseqCheckpoint(path).read()
    (tmp_path / "dict.txt").write_bytes(b"\xff 1\n")
    with pytest.raises(CheckpointError, match="not UTF-8"):
        FairseqCheckpoint(path).read()


class Malicious:
    """Its pickle makes a directory when it is executed."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_a_malicious_checkpoint_is_refused(tmp_path):
    dictionary(tmp_path)
    trace = tmp_path / "executed"
    path = save(tmp_path, {ENCODER: table(8)}, task=Malicious(trace))
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt.*not executed"):
        FairseqCheckpoint(path)
    assert not trace.exists()


def test_the_allow_list_is_left_as_it_was(tmp_path):
    dictionary(tmp_path)
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()  # others may have allowed the same types
    try:
        torch.serialization.add_safe_globals([Namespace])
        FairseqCheckpoint(save(tmp_path, {ENCODER: table(8)})).read()
        assert torch.serialization.get_safe_globals() == [Namespace]
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


@pytest.mark.parametrize(
    "content", [[1], {"state": 1}, {"model": [1]}, {"model": {}}, {"model": {"w": torch.ones(3, 3)}}]
)
def test_what_is_no_checkpoint(tmp_path, content):
    dictionary(tmp_path)
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: (not a fairseq checkpoint|no embedding table)"):
        FairseqCheckpoint(str(tmp_path / "checkpoint.pt"))


def test_other_errors(tmp_path):
    dictionary(tmp_path)
    with pytest.raises(VectorFileError, match="no such file"):
        FairseqCheckpoint(str(tmp_path / "missing.pt"))
    matrix = table(8)
    matrix[5, 1] = np.nan
    path = save(tmp_path, {ENCODER: matrix})
    with pytest.raises(DimensionError, match="--encoder-embed-dim"):
        FairseqCheckpoint(path, dim=4)
    with pytest.raises(VectorFileError, match=r"'haus@@'.*NaN"):
        FairseqCheckpoint(path).read()
    assert FairseqCheckpoint(path).read(Wanted.words(["a"])).words == ["a"]


def test_a_checkpoint_that_was_cut_short_is_not_only_to_be_downloaded(tmp_path):
    """Before it is known to be a checkpoint, and when --embed-init-format says so."""
    path = Path(save(tmp_path, {ENCODER: table(8)}))
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(VectorFileError, match=r"damaged or incomplete .*Copy or download it again"):
        open_vectors(path)
    with pytest.raises(CheckpointError, match=r"cut short or damaged .*an earlier checkpoint of the same folder"):
        open_vectors(path, format="fairseq")


def test_an_archive_that_says_it_is_on_several_disks(tmp_path):
    dictionary(tmp_path)
    path = Path(save(tmp_path, {ENCODER: table(8)}))
    content = path.read_bytes()
    at = content.rindex(b"PK\x06\x07") + 16  # zip64's locator of the directory: the number of disks
    path.write_bytes(content[:at] + b"\x02" + content[at + 1 :])
    with pytest.raises(CheckpointError, match="damaged"):
        FairseqCheckpoint(path)
    with pytest.raises(Exception) as raised:
        torch.load(path, weights_only=True)
    assert "damaged" in unreadable_checkpoints.fault(str(path), raised.value)


@FUZZ
@given(data=st.data())
def test_damaged_checkpoints(tmp_path, data):
    dictionary(tmp_path)
    path = save(tmp_path, {ENCODER: table(8)}, {"_name": "masked_lm"}, zipped=data.draw(st.booleans()))
    content = Path(path).read_bytes()
    place = data.draw(st.integers(0, 300) | st.integers(0, 10**6)) % len(content)
    new = data.draw(st.binary(max_size=8))
    cut = data.draw(st.booleans())
    Path(path).write_bytes(content[:place] if cut else content[:place] + new + content[place + len(new) :])
    try:
        read = FairseqCheckpoint(path).read()
    except (CheckpointError, VectorFileError):
        return
    assert read.matrix.shape == (len(read.words), 3)
    assert np.isfinite(read.matrix).all()
