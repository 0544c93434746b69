"""fairseq checkpoints as a source of vectors, and what is said of files that torch's safe loader refuses.

Oracles: fairseq's own Dictionary, the state dict that was saved.
"""

import collections
import json
import re
import sys
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import omegaconf
import pytest
import torch
from source_files import Malicious, numbers, save_checkpoint, write_dictionary

import embinit_fairseq as ei
from embinit_fairseq.checkpoint_file import options_of
from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import CheckpointError, CoverageError, OptionError, VectorFileError
from embinit_fairseq.vectors.fairseq_checkpoint import FairseqCheckpoint
from embinit_fairseq.vectors.open import open_vectors
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vocab.dictionary import symbols_digest

SYMBOLS = ["the", "haus@@", "über", "a"]
ENCODER, DECODER = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
DIGESTED = {"ab": "ab", "ba": "ba", "a mask": ["a", "<mask>"]}
SIDES = ["encoder", "encoder_p", "decoder", "decoder_p"]


def table(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(numbers(rows, seed=seed))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_rows_and_specials(tmp_path, dtype):
    write_dictionary(tmp_path, [*SYMBOLS, "madeupword0000"])
    matrix = table(9).to(dtype)
    source = FairseqCheckpoint(save_checkpoint(tmp_path, {ENCODER: matrix, "x": torch.ones(2)}), dim=3)
    read, matrix = source.read(), matrix.float().numpy()
    assert (read.words, list(read.specials)) == (SYMBOLS, ["bos", "pad", "eos", "unk"])
    np.testing.assert_array_equal([*read.specials.values(), *read.matrix], matrix[:8])
    read = source.read(Wanted.words(["a", "<s>", "nothing", "the"]))
    assert read.words == ["the", "a"]
    np.testing.assert_array_equal(read.matrix, matrix[[4, 7]])


def test_ids_of_subwords_are_no_numbers_of_a_text(tmp_path):
    """RoBERTa's: the row of id 10 is not that of the number 10, but that of the same id."""
    write_dictionary(tmp_path, map(str, range(5, 17)))
    path = save_checkpoint(tmp_path, {ENCODER: table(16)})
    with pytest.raises(CoverageError, match=r"ids of subwords.*write the subword .*encoder\.json"):
        ei.embedding_matrix(["the", "of", "and", "10", "7"], path, "pretrained")
    ids = [str(number) for number in range(16, 4, -1)]
    matrix, report = ei.embedding_matrix(ids, path, "pretrained")
    np.testing.assert_array_equal(matrix, table(16)[4:].flip(0))
    assert report["missing"] == []


def test_each_side_has_its_dictionary(tmp_path):
    """That of its language; where there are no languages the size decides."""
    state = {ENCODER: table(8), DECODER: table(5, 1)}
    with_languages = {"_name": "translation", "source_lang": "de", "target_lang": "en", "data": "data-bin/x"}
    without = {"_name": "translation", "source_lang": None}

    def read(side, task):
        return FairseqCheckpoint(save_checkpoint(tmp_path, state, task), side=side).read()

    def dictionaries(**files):
        for name, words in files.items():
            write_dictionary(tmp_path, words, f"dict.{name}.txt")

    dictionaries(de=SYMBOLS, en=["house"], fr=["house"])  # joined dictionaries are equal
    for task in (with_languages, without):
        assert read(None, task).words == read("encoder", task).words == SYMBOLS
        assert read("decoder", task).words == ["house"]
    dictionaries(fr=["katze"], de=["none"] * 2)
    for side, task, message in (
        ("left", with_languages, r"t\.pt: .*encoder, encoder_p, decoder, decoder_p, .*'left'"),
        ("decoder", without, r"more than one fits.*dict\.txt"),
        ("encoder", without, r"none fits.*dict\.txt"),
        ("decoder", {**with_languages, "target_lang": "it"}, r"dict\.it\.txt and dict\.txt.*data-bin/x"),
    ):
        with pytest.raises((OptionError, CheckpointError), match=message):
            read(side, task)


def test_what_has_no_embedding_matrix_is_refused(tmp_path):
    matrices = {"w": torch.ones(3, 3), "x": torch.ones(4, 3), "v": torch.ones(3)}
    for state, message in (([1], "fairseq-train"), (matrices, r"matrices: x, w; .*\.npz")):
        with pytest.raises(CheckpointError, match=message):
            FairseqCheckpoint(save_checkpoint(tmp_path, state))


def test_neighbours_of_a_side(tmp_path, capsys):
    """Of a model with two matrices it is said which one was read, and how to get the other."""
    write_dictionary(tmp_path, ["haus", "rot"], "dict.de.txt")
    write_dictionary(tmp_path, ["house", "red"], "dict.en.txt")
    task = {"_name": "translation", "source_lang": "de", "target_lang": "en"}
    path = save_checkpoint(tmp_path, {ENCODER: table(6), DECODER: table(6, 1)}, task)
    for word, side, code, said in (
        ("haus", [], 0, "encoder.*--side decoder"),
        ("haus", ["--side", "encoder"], 0, "^$"),
        ("house", [], 2, "'house' .*encoder .*--side decoder"),
        ("haus", ["--side", "decoder"], 2, "'haus' .*decoder .*--side encoder"),
    ):
        assert main(["neighbors", word, "--vectors", path, *side]) == code
        error = capsys.readouterr().err
        assert re.search(said, error.strip())
        assert error.count("\n") == bool(error)


@pytest.mark.parametrize("side", [None, *SIDES])
def test_a_model_with_fewer_tables_has_them_on_both_sides(tmp_path, side):
    write_dictionary(tmp_path, SYMBOLS)
    names = [f"{half}.{inner}embed_tokens.weight" for half in SIDES[::2] for inner in ("", "sentence_encoder.")]
    for name in (*names[:2], names[3], DECODER, "embed_tokens.weight", "encoder.embedding.embed_tokens.weight"):
        assert FairseqCheckpoint(save_checkpoint(tmp_path, {name: table(8)}), side=side).table == name
    path = save_checkpoint(tmp_path, {ENCODER: table(8), DECODER: table(8, 1)})
    expected = DECODER if side and side.startswith("decoder") else ENCODER
    assert FairseqCheckpoint(path, side=side).table == expected


@pytest.mark.parametrize(
    ("task", "fitting"),
    [("translation", {8}), ("masked_lm", {8, 9}), ("translation_multi_simple_epoch", {8, 9, 11}), ("", {8})],
)
def test_table_and_dictionary_must_fit(tmp_path, task, fitting):
    for rows in (7, 8, 9, 11):
        write_dictionary(tmp_path, SYMBOLS)
        matrix = table(rows)
        source = FairseqCheckpoint(save_checkpoint(tmp_path, {ENCODER: matrix}, Namespace(task=task)))
        if rows in fitting:
            assert source.read().words == SYMBOLS
        else:
            with pytest.raises(CheckpointError, match=rf"{rows} rows.*describes 8.*{task or 'unknown'}.*put the dict"):
                source.read()
        if rows == 9 and task == "masked_lm":
            np.testing.assert_array_equal(source.read().specials["mask"], matrix[8])
            write_dictionary(tmp_path, [*SYMBOLS, "<mask>"])  # then nothing is appended
            np.testing.assert_array_equal(source.read().specials["mask"], matrix[8])


@pytest.mark.parametrize(
    ("task", "options", "appended", "refused"),
    [
        ("translation_from_pretrained_bart", {"langs": "en_XX,de_DE"}, 3, (1, 2, 4, 5)),
        ("multilingual_denoising", {"langs": "en_XX,de_DE", "add_lang_token": True}, 3, (2, 4)),
        ("multilingual_denoising", {"langs": "en_XX,de_DE", "add_lang_token": False}, 1, (2, 3)),
        ("multilingual_language_modeling", {"langs": "en,de", "add_bos_token": True}, 2, (1, 3)),
        ("online_backtranslation", {"mono_langs": "en,de"}, 3, (2, 4)),
        *(
            (task, {"lang_pairs": pairs, "encoder_langtok": source, "decoder_langtok": False}, tags, (tags + 1,))
            for task in ("multilingual_translation", "semisupervised_translation")
            for pairs in ("de-en,fr-en", ["de-en", "fr-en"])
            for source, tags in (("src", 3), (None, 0))
        ),
        ("translation_multi_simple_epoch", {"langs": ["en", "de"]}, 2, (3, 4, 6)),
        ("translation_multi_simple_epoch", {"langs": "en,de", "lang_tok_style": "mbart"}, 3, (4, 5)),
        ("translation_multi_simple_epoch", {"langs": "en,de", "add_data_source_prefix_tags": True}, 5, (6, 7)),
    ],
)
def test_a_lost_line_of_the_dictionary_is_not_taken_for_a_tag(tmp_path, task, options, appended, refused):
    """fairseq's tasks append these symbols after the lines of the dictionary."""
    write_dictionary(tmp_path, SYMBOLS)

    def source(rows: int) -> FairseqCheckpoint:
        matrix = table(4 + len(SYMBOLS) + rows)
        return FairseqCheckpoint(save_checkpoint(tmp_path, {ENCODER: matrix}, Namespace(task=task, **options)))

    assert source(appended).read().words == SYMBOLS
    for rows in refused:
        with pytest.raises(CheckpointError, match=f"{task}.*put the dictionary"):
            source(rows).read()
    if "prefix" not in str(options) and "simple" in task:  # NLLB's fairseq has three tags more
        assert source(appended + 3).read().words == SYMBOLS
    write_dictionary(tmp_path, [*SYMBOLS, "<mask>", "[en_XX]"])
    if task.endswith("bart"):  # these are not appended
        assert source(appended).read().words == [*SYMBOLS, "[en_XX]"]


# ---- files that torch refuses


@pytest.mark.parametrize("legacy", [False, True])
def test_another_dictionary_of_the_same_size_is_refused_where_the_checkpoint_knows(tmp_path, legacy):
    """The training's record of `--embed-init`: of each side, of a shared matrix, with an appended `<mask>`."""
    digest = {name: symbols_digest(["<s>", "<pad>", "</s>", "<unk>", *words]) for name, words in DIGESTED.items()}
    for slots, side, good in (
        ({"encoder": "ab", "decoder": "ba"}, "encoder", "ab"),
        ({"encoder": "ab", "decoder": "ba"}, "decoder", "ba"),
        ({"encoder": "ba"}, "decoder", "ba"),
        ({"encoder": "a mask"}, None, "a"),
        ({}, "encoder", "ab"),
    ):
        record = json.dumps({"slots": {slot: {"dictionary": digest[name]} for slot, name in slots.items()}})
        matrix, task = table(6), {"_name": "masked_lm"}
        state = {"model": {ENCODER: matrix, DECODER: matrix}}
        if legacy:
            state["args"] = Namespace(task="masked_lm", arch="x", embed_init_record=record)
        else:
            state["cfg"] = {"task": task, "embed_init_options": {"embed_init_record": record}}
        torch.save(state, tmp_path / "c.pt")
        for name in ("ab", "ba", "a", "b"):
            write_dictionary(tmp_path, list(name))
            fits = name == good or not slots
            with nullcontext() if fits else pytest.raises(CheckpointError, match=r"put the dict\.txt of its training"):
                read = FairseqCheckpoint(str(tmp_path / "c.pt"), side=side).read()
                np.testing.assert_array_equal(read.matrix, matrix[4 : 4 + len(name)])
        (tmp_path / "dict.txt").unlink()
        write_dictionary(tmp_path, list("ab"), "dict.de.txt")
        write_dictionary(tmp_path, list("ba"), "dict.en.txt")
        with nullcontext() if len(good) == 2 and slots else pytest.raises(CheckpointError, match="which dictionary"):
            assert FairseqCheckpoint(str(tmp_path / "c.pt"), side=side).read().words == list(good)
        for name in ("de", "en"):
            (tmp_path / f"dict.{name}.txt").unlink()


def saved(path: Path, zipped: bool, **more) -> Path:
    torch.save({"model": {"w": torch.arange(400.0)}, **more}, path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.mark.parametrize("zipped", [True, False])
def test_remedies_for_what_torch_refuses(tmp_path, zipped):
    """An earlier checkpoint where it is cut short; where an object is not on the list another copy would not help."""
    content = saved(path := tmp_path / "c.pt", zipped).read_bytes()
    damaged = [content[: int(share * len(content))] for share in (0, 0.02, 0.9)]
    for broken in [*damaged, content.replace(b"\x80\x02}", b"\x80\x02\xff", 1)]:
        path.write_bytes(broken)
        with pytest.raises(CheckpointError, match=rf"^{path}: not a fairseq .* damaged; give another file, .*earlier"):
            load_checkpoint(path)
    path.write_text("house 0.1 0.2\n")
    with pytest.raises(CheckpointError, match=r"another kind of file.*check the path"):
        load_checkpoint(path)
    path.write_bytes(content[: len(content) // 2])  # before it is known to be a checkpoint it may be any archive
    with pytest.raises(VectorFileError if zipped else CheckpointError, match=r"damaged.*download it again"):
        open_vectors(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_objects_are_not_executed_whatever_others_allow(tmp_path, zipped):
    before = {*torch.serialization.get_safe_globals()}
    for value, named in (
        (Malicious(tmp_path / "executed"), "mkdir"),
        (collections.ChainMap(), "collections.ChainMap"),
        (Malicious((2,), "f8", b"A" * 16, call=np.ndarray), "ndarray"),
    ):
        with torch.serialization.safe_globals([np.ndarray]):  # a notebook has not allowed it to the files that we read
            with pytest.raises(CheckpointError, match=rf"c\.pt.*{named}.*not executed; README.md of fairseq_compat"):
                load_checkpoint(saved(tmp_path / "c.pt", zipped, extra_state=value))
            assert np.ndarray in torch.serialization.get_safe_globals()
    assert {*torch.serialization.get_safe_globals()} == before
    muse = type("Dictionary", (), {"__module__": "src.dictionary"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "src", SimpleNamespace())
        patch.setitem(sys.modules, "src.dictionary", SimpleNamespace(Dictionary=muse))
        saved(tmp_path / "c.pt", zipped, dico=muse())
    with pytest.raises(CheckpointError, match=r"MUSE.*--export txt.*add_safe_globals"):
        open_vectors(tmp_path / "c.pt", "fairseq")
    assert not (tmp_path / "executed").exists()


def test_the_options_of_a_training_of_2020_and_of_earlier_ones(tmp_path):
    """`cfg` was one of omegaconf between fairseq 0.10 and 2021; `args` say the names of their parts."""
    config = omegaconf.OmegaConf.create({"task": {"_name": "translation", "data": "bin"}, "model": None})
    loaded = load_checkpoint(saved(tmp_path / "c.pt", True, cfg=config))
    assert options_of(loaded, "task") == {"_name": "translation", "data": "bin"}
    args = Namespace(arch="transformer", task="translation", data="bin")
    assert options_of({"args": args}, "model")["_name"] == "transformer"
    assert options_of({"args": args, "cfg": None}, "task") == {**vars(args), "_name": "translation"}
    assert options_of({"args": Namespace(arch="lstm")}, "task") == {"arch": "lstm"}  # before there were tasks
    assert options_of({}, "task") == {}
