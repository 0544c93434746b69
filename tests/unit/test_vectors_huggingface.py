"""Hugging Face directories: weights, vocabularies, specials, segmentation. Oracles: the libraries that write them."""

import contextlib
import json
import logging
import struct
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from source_files import BERT, BERT_EMBEDDING, TEXT, bert, numbers, one_line, refused, save_weights, write
from tokenizer_folders import FAIRSEQ, FAMILIES, bytelevel, end_of_word, wordpiece, write_json

from embinit_fairseq.errors import VectorFileError
from embinit_fairseq.init.alignment import Matching, read_sources
from embinit_fairseq.vectors.huggingface import HuggingFaceDirectory
from embinit_fairseq.vectors.open import parse_source
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vocab.dictionary import Vocabulary
from embinit_fairseq.vocab.subword_styles import ignores_spaces, text_of

safetensors_torch = pytest.importorskip("safetensors.torch")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")


def table(rows: int, seed: int = 0) -> np.ndarray:
    return numbers(rows, 4, seed)


def opened(folder: Path, side: str | None = None) -> HuggingFaceDirectory:
    return HuggingFaceDirectory(str(folder), side=side)


def rows_of(read) -> dict[str, tuple]:
    return dict(zip(read.words, map(tuple, read.matrix)))


def named(tokens: list[str], matrix: np.ndarray) -> dict[str, tuple]:
    return dict(zip(tokens, map(tuple, matrix)))


# ---- weights


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_every_float_type_becomes_float32(tmp_path, name, dtype):
    bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    tensor = torch.from_numpy(table(len(BERT))).to(dtype)
    save = torch.save if name.endswith("bin") else safetensors_torch.save_file
    save({BERT_EMBEDDING: tensor, "x": torch.ones(2)}, tmp_path / name)
    read = opened(tmp_path).read(Wanted.words(["##able", "the", "[CLS]"]))
    assert read.words == ["the", "##able"]
    np.testing.assert_array_equal(read.matrix, tensor[[6, 10]].float().numpy())


@pytest.mark.parametrize(
    "name",
    """roberta.embeddings.word_embeddings.weight model.shared.weight encoder.embed_tokens.weight transformer.wte.weight
    gpt_neox.embed_in.weight transformer.word_embedding.weight transformer.embeddings.weight embeddings embedding.weight
    model.embeddings.tok_embeddings.weight text_model.embeddings.token_embedding.weight tokens_embed.weight""".split(),
)
def test_names_of_input_embeddings(tmp_path, name):
    """Not those of output layers, of the decoder, and of models of pictures."""
    others = ["lm_head.weight", "decoder." + name, "qformer.embeddings.word_embeddings.weight"]  # of InstructBLIP
    save_weights(tmp_path, name, table(13), **dict.fromkeys(others, table(13)), bias=table(13)[0])
    assert opened(tmp_path).embedding.tensor == name
    save_weights(tmp_path, "decoder." + name, table(13))
    assert opened(tmp_path).embedding.tensor == "decoder." + name


def test_one_matrix_for_both_sides_before_one_for_each(tmp_path):
    bert(tmp_path)
    sides = {f"model.{side}.embed_tokens.weight": table(13, seed) for seed, side in enumerate(("encoder", "decoder"))}
    save_weights(
        tmp_path, "model.shared.weight", table(13), **sides, **{"model.layers.9.embed_tokens.weight": table(13)}
    )
    for side in (None, "decoder"):
        assert (opened(tmp_path, side).embedding.tensor, opened(tmp_path, side).embedding.side) == (
            "model.shared.weight",
            "",
        )
    save_weights(tmp_path, "lm_head.weight", table(13), **sides)
    for side, own in ((None, "encoder"), ("encoder", "encoder"), ("decoder", "decoder"), ("decoder_p", "decoder")):
        read = opened(tmp_path, side).read(Wanted.words(["the"]))
        assert read.origin.side == own
        np.testing.assert_array_equal(read.matrix, sides[f"model.{own}.embed_tokens.weight"][[6]])


def test_an_unknown_name_is_found_by_the_size_of_the_vocabulary(tmp_path):
    matrices = {"transformer.w.weight": table(13), "transformer.pos.weight": table(7)}  # as CTRL calls them
    save_weights(tmp_path, "lm_head.weight", table(13), **matrices)
    for config in ({"vocab_size": 13}, {"text_config": {"vocab_size": 13}}):
        write_json(tmp_path, config=config)
        assert opened(tmp_path).embedding.tensor == "transformer.w.weight"


LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


@pytest.mark.parametrize(
    ("weights", "config", "message"),
    [
        (None, {}, r"model\.safetensors.*pytorch_model\.bin.*save_pretrained"),
        (["shared.weight"], {}, r"tokenizer.*save_pretrained"),
        (["mystery.weight"], {}, r"mystery\.weight 9x4;.*\.npz"),
        (["a.embeddings.weight", "b.embeddings.weight"], {}, "a.*, b.*npz"),
        (["v.weight", "w.weight"], {"vocab_size": 9}, r"[vw]\.weight 9x4, .*\.npz"),
        (LFS_POINTER, {}, "git lfs pull"),
        (["embeddings"], {"model_type": "model2vec", "vocabulary_quantization": 2}, r"vocabulary_quantization.*\.npz"),
    ],
)
def test_what_is_missing_or_not_clear_is_named(tmp_path, weights, config, message):
    write_json(tmp_path, config=config)
    if isinstance(weights, str):
        write(tmp_path / "model.safetensors", weights)
    elif weights:
        save_weights(tmp_path, weights[0], table(9), **dict.fromkeys(weights[1:], table(9)), vector=table(9)[0])
    with pytest.raises(VectorFileError, match=message):
        opened(tmp_path).read()


@pytest.mark.parametrize("stem", ["model", "pytorch_model"])
def test_shards(tmp_path, stem):
    """Only the one with the embedding is needed."""
    ending, save = ("safetensors", safetensors_torch.save_file) if stem == "model" else ("bin", torch.save)
    first, second = (f"{stem}-0000{number}-of-00002.{ending}" for number in (1, 2))
    matrix = bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    save({"encoder.weight": torch.ones(5, 4)}, tmp_path / first)
    save({BERT_EMBEDDING: torch.from_numpy(matrix)}, tmp_path / second)
    for weight_map, message in (
        ({"encoder.weight": "none", BERT_EMBEDDING: second}, ""),
        ({BERT_EMBEDDING: first}, f"{BERT_EMBEDDING}.*again"),
        ({BERT_EMBEDDING: "none"}, "none.*again"),
        ({}, "json.*again"),
        ({"encoder.weight": first}, r"encoder\.weight 5x4"),  # of all shards
    ):
        write_json(tmp_path, **{f"{stem}.{ending}.index": {"metadata": {}, "weight_map": weight_map}})
        with pytest.raises(VectorFileError, match=message) if message else contextlib.nullcontext():
            np.testing.assert_array_equal(opened(tmp_path).read(Wanted.words(["!"])).matrix, matrix[[11]])


@pytest.mark.parametrize(
    "entry",
    [
        {"data_offsets": [0, 31]},
        {"data_offsets": [-4, 28]},
        {"data_offsets": None},
        {"dtype": "F16"},
        {"shape": [4, 2.0]},
    ],
)
def test_a_header_of_safetensors_must_fit_the_file(tmp_path, entry):
    entry = {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32], **entry}
    head = json.dumps({"__metadata__": {"a": "b"}, "shared.weight": entry}).encode()
    path = write(tmp_path / "model.safetensors", struct.pack("<Q", len(head)) + head + bytes(32))
    refused(lambda: opened(tmp_path), path)


@pytest.mark.parametrize("name", "config tokenizer_config special_tokens_map tokenizer model.safetensors.index".split())
@pytest.mark.parametrize("content", ["", "[]"])
def test_damaged_json(tmp_path, name, content):
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1})).save(str(tmp_path / "tokenizer.json"))
    if "index" not in name:
        save_weights(tmp_path, "shared.weight", table(2))
    path = write(tmp_path / f"{name}.json", content)
    refused(lambda: opened(tmp_path).read(), path)


# ---- vocabularies


def spelled_in_bytes(word: str) -> str:
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return split.pre_tokenize_str(word.replace("Ġ", " "))[0][0]


def check_rows(folder: Path, truth, is_bytes: bool) -> None:
    """Every token, special and composed word of the folder has the row that `truth`, its tokenizer, gives it."""
    numbers_of = {token: truth.convert_tokens_to_ids(token) for token in truth.get_vocab()}
    matrix = table(max(numbers_of.values()) + 4)
    save_weights(folder, "shared.weight", matrix)
    read = (source := opened(folder)).read()
    specials = {tuple(row): role for role, row in read.specials.items()}
    for row, role in specials.items():
        names = {"bos": ("bos", "cls"), "eos": ("eos", "sep")}.get(role, (role,))
        own = [getattr(truth, f"{name}_token_id", None) for name in names]
        assert row in [tuple(matrix[number]) for number in own if number is not None]
    ends = {tuple(row) for role, row in read.specials.items() if role in ("bos", "eos")}
    assert len(specials) == len(ends) + len(read.specials.keys() - {"bos", "eos"})  # GPT-2 declares one token for all
    words = rows_of(read)
    for word, row in words.items():
        assert row == tuple(matrix[numbers_of[spelled_in_bytes(word) if is_bytes else word]]), word
    present = {*specials, *words.values()}
    missing = {token for token, number in numbers_of.items() if tuple(matrix[number]) not in present}
    decode = tokenizers.decoders.ByteLevel().decode
    assert all(is_bytes and "\ufffd" in decode([token]) for token in missing)  # parts of characters
    start = truth("old", add_special_tokens=False).input_ids
    check_spellings(source, truth, start, matrix)
    for word in ("house", "Hund", "big"):
        text = truth(f"old {word}", add_special_tokens=False).input_ids  # a word is composed as it is cut after a space
        assert text[: len(start)] == start
        rows = [number for number in text[len(start) :] if number != truth.unk_token_id]
        composed = source.compose([word, "", "\udc80"])
        assert set(composed) == ({word} if rows else set())
        if rows:
            np.testing.assert_allclose(composed[word], matrix[rows].mean(axis=0), rtol=1e-5)


WIDE = {ord("a") + at: ord("ａ") + at for at in range(26)}


def check_spellings(source: HuggingFaceDirectory, truth, start: list[int], matrix: np.ndarray) -> None:
    """A word takes the row of its only token in the folder's tokenizer, however it is spelled; else none is changed."""
    words = sorted({word for line in TEXT for word in line.split() if not ignores_spaces(word)})
    odd = [odd for w in words for odd in (w, w.upper(), w.translate(WIDE), f"{w[0]}\u0301{w[1:]}", w.replace("ü", "u"))]
    symbols = [*dict.fromkeys(odd), "…"]
    spec, words = parse_source(source.path), Vocabulary(symbols, np.ones(len(symbols)))
    reading = read_sources([source], spec, words, Matching(rules=("exact", "marker", "normalised")))
    rows = dict(zip(reading.source.rows.tolist(), map(tuple, reading.source.vectors)))
    for row, word in enumerate(symbols):
        text = truth(f"old {word}", add_special_tokens=False).input_ids
        tokens = text[len(start) :] if text[: len(start)] == start else []
        if len(tokens) == 1 and tokens[0] != truth.unk_token_id:
            assert rows[row] == tuple(matrix[tokens[0]]), word
            rows.pop(row)
    rules = reading.parts[0].alignment.rule
    assert {symbols[row] for row in rows if "normalised" in rules[row]} <= {"…"}


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_those_that_the_models_own_tokenizer_gives(tmp_path, name):
    """From the files that it is published with, and from those with the ones that save_pretrained() writes."""
    family = FAMILIES[name]
    for package in family.needs:
        pytest.importorskip(package)
    files = family.make(tmp_path / "files")
    truth = getattr(transformers, family.tokenizer).from_pretrained(str(files))
    is_bytes = family.markers == "bytelevel" or name == "clip"
    check_rows(files, truth, is_bytes)
    assert opened(files).read().origin.markers == family.markers
    truth.save_pretrained(str(files))
    check_rows(files, truth, is_bytes)


def test_the_directory_numbers_its_added_tokens(tmp_path):
    """Pegasus as transformers 4 saves it, of which transformers 5 exchanges the two masks."""
    pytest.importorskip("google.protobuf")
    FAMILIES["pegasus"].make(tmp_path)
    more = ["<mask_1>", *(f"<unk_{number}>" for number in range(2, 103))]
    names = ["<pad>", "</s>", "<mask_1>", "<mask_2>", *more[1:], "<unk>"]
    stored = {row: {"content": name, "special": True} for row, name in enumerate(names)}
    settings = {"tokenizer_class": "PegasusTokenizer", "mask_token": "<mask_2>", "additional_special_tokens": more}
    write_json(tmp_path, tokenizer_config={**settings, "added_tokens_decoder": stored})
    save_weights(tmp_path, "shared.weight", matrix := table(200))
    read = opened(tmp_path).read()
    assert (tuple(read.specials["mask"]), rows_of(read)["<mask_1>"]) == (tuple(matrix[3]), tuple(matrix[2]))


def test_each_side_has_its_own_vocabulary(tmp_path):
    """fairseq's translation models in transformers (FSMT); the languages may be in config.json alone."""
    pytest.importorskip("sacremoses")
    FAMILIES["fsmt"].make(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    write_json(tmp_path, config={"model_type": "fsmt", "langs": ["en", "de"]})
    sides = {"encoder": "vocab-src.json", "decoder": "vocab-tgt.json"}
    matrices = {side: table(200, seed) for seed, side in enumerate(sides)}
    save_weights(tmp_path, "x", table(3), **{f"model.{side}.embed_tokens.weight": matrices[side] for side in sides})
    for side, file in sides.items():
        rows, source = json.loads((tmp_path / file).read_text()), opened(tmp_path, side)
        assert rows_of(source.read()) == {token: tuple(matrices[side][row]) for token, row in rows.items() if row > 3}
        np.testing.assert_allclose(source.compose(["house"])["house"], matrices[side][rows["house</w>"]], rtol=1e-6)


def test_a_part_of_a_character_has_a_row_for_who_asks(tmp_path):
    bytelevel(tmp_path, ["<|endoftext|>"])
    save_weights(tmp_path, "wte.weight", matrix := table(400))
    row = json.loads((tmp_path / "vocab.json").read_text())["Ã"]  # the byte 0xC3, with which ä and ü begin
    part = text_of("Ã")
    assert rows_of(opened(tmp_path).read(Wanted.words([part]))) == {part: tuple(matrix[row])}
    assert all(word.encode() for word in opened(tmp_path).read().words)


def test_the_first_module_of_sentence_transformers(tmp_path):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0, "house": 1}, unk_token="the"))
    save_weights(tmp_path / "0_StaticEmbedding", "embedding.weight", table(2))
    tokenizer.save(str(tmp_path / "0_StaticEmbedding" / "tokenizer.json"))
    assert rows_of(opened(tmp_path).read()) == named(["the", "house"], table(2))


def test_tokens_without_a_row_are_left_out_and_named(tmp_path, caplog):
    """`[PAD]` is added to the tokenizers of many GPT-2 and LLaMA models whose matrix is not resized."""
    bytelevel(tmp_path, ["<|endoftext|>"])
    write_json(tmp_path, config={"model_type": "gpt2"})
    size = len(json.loads((tmp_path / "vocab.json").read_text()))
    write_json(tmp_path, added_tokens={"[PAD]": size, "<new>": size + 1})
    save_weights(tmp_path, "wte.weight", matrix := table(size + 1))
    with caplog.at_level(logging.WARNING):
        rows = rows_of(read := opened(tmp_path).read())
    assert (len(caplog.messages), read.added, "<new>" in rows) == (1, {"[PAD]"}, False)
    assert "<new>" in caplog.text
    assert rows["[PAD]"] == tuple(matrix[size])
    for wrong in (size - 1, 30_000):  # the last token of the model itself has no row; far more rows than tokens
        save_weights(tmp_path, "wte.weight", table(wrong))
        with pytest.raises(VectorFileError, match=rf"{size} rows.* {wrong};.*save_pretrained"):
            opened(tmp_path).read()


def test_an_added_token_does_not_take_another_tokens_row(tmp_path):
    """tokenizers numbers added tokens from the count of the others, which is a taken number if there are gaps."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "the": 2, "house": 3}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[MASK]"])
    assert tokenizer.token_to_id("[MASK]") == 3
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    save_weights(tmp_path, "shared.weight", matrix := table(5))
    read = opened(tmp_path).read()
    assert (rows_of(read), read.specials.keys()) == (named(["the", "house"], matrix[2:]), {"unk"})


@pytest.mark.parametrize(
    ("tokenizer", "write", "config"),
    [
        ("ByT5Tokenizer", None, {"model_type": "t5"}),
        ("BertTokenizer", None, {"model_type": "bert"}),  # transformers 5 makes a small vocabulary up
        ("XLNetTokenizer", wordpiece, {"model_type": "xlnet"}),
        ("TikTokenTokenizer", None, {}),  # a class of the folder's own code
        (None, lambda folder: write_json(folder, vocab={"the": 0, "house": 1}), {}),
        (None, None, {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "model_type": "own"}),
    ],
)
def test_no_tokenizer_with_rows_for_words(tmp_path, tokenizer, write, config):
    save_weights(tmp_path, "shared.weight", table(400))
    write_json(tmp_path, config=config)
    (tmp_path / "own.py").write_text("raise SystemExit('remote code')")
    if write:
        write(tmp_path)
    if tokenizer:
        write_json(tmp_path, tokenizer_config={"tokenizer_class": tokenizer})
    with pytest.raises(VectorFileError, match="save") as error:
        opened(tmp_path).read()
    one_line(error, tmp_path)


@pytest.mark.parametrize("package", ["transformers", "google.protobuf", "tokenizers", "fugashi"])
def test_the_package_that_lacks_is_named(tmp_path, monkeypatch, package):
    """BERT's rules would segment Japanese words otherwise than the model was trained with."""
    bert(tmp_path)
    write_json(tmp_path, config={"model_type": "t5"})
    if package == "fugashi":
        write_json(
            tmp_path, tokenizer_config={"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}
        )
    else:
        (tmp_path / "vocab.txt").unlink()
        write(tmp_path / ("tokenizer.json" if package == "tokenizers" else "spiece.model"), b"\xff")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(VectorFileError, match=f"pip install .*{package.removeprefix('google.')}"):
        opened(tmp_path).read()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-8"])
def test_a_folder_with_nothing_but_weights_and_vocab_txt_is_berts(tmp_path, encoding):
    matrix = bert(tmp_path, vocabulary=[*BERT, "the"])
    write(tmp_path / "vocab.txt", "\n".join([*BERT, "the"]).encode(encoding))
    read = opened(tmp_path).read()
    roles = {"pad": "[PAD]", "unk": "[UNK]", "bos": "[CLS]", "eos": "[SEP]", "mask": "[MASK]"}
    rows = named(BERT, matrix) | {"the": tuple(matrix[13])}  # of repeated lines the last counts, as for the model
    assert {role: tuple(row) for role, row in read.specials.items()} == {role: rows.pop(roles[role]) for role in roles}
    assert rows_of(read) == rows
    assert (read.origin.rows, read.origin.markers) == (len(BERT) + 1, "wordpiece")
    assert opened(tmp_path).compose(["houses", "qqq"]).keys() == {"houses"}  # [UNK] says nothing of a word
    matrix[3, 2] = np.nan
    bert(tmp_path, matrix[:13])
    with pytest.raises(VectorFileError, match=r"'bos'.*NaN"):
        opened(tmp_path).read(Wanted.words(["the"]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(bytelevel, specials=["<|endoftext|>"]), {"Ġthe", "für", "ĠHäuser"}),
        (partial(end_of_word, specials=FAIRSEQ), {"the</w>", "house</w>", "ü"}),
    ],
)
def test_vocab_json_and_merges_txt_alone_say_whose_they_are(tmp_path, make, words):
    make(tmp_path)
    save_weights(tmp_path, "shared.weight", table(400))
    assert words <= set(opened(tmp_path).read().words)


def test_unigram_tokenizer_json(tmp_path):
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁the", -1.0), ("▁", -2.0), ("house", -3.0), ("s", -4.0)]
    trained = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trained.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra_id_0>"])
    trained.enable_padding(length=32, pad_id=0, pad_token="<pad>")  # must not leak into the mean
    trained.enable_truncation(1)
    trained.save(str(tmp_path / "tokenizer.json"))
    save_weights(tmp_path, "shared.weight", matrix := table(10))
    read = (source := opened(tmp_path)).read()
    assert rows_of(read) == named(["▁the", "▁", "house", "s", "<extra_id_0>"], matrix[3:])
    assert set(read.specials) == {"pad", "eos", "unk"}
    for word, rows in (("houses", [4, 5, 6]), ("thes", [3, 6])):
        np.testing.assert_allclose(source.compose([word])[word], matrix[rows].mean(axis=0), rtol=1e-6)
    assert source.compose(["xyz"]) == {}  # only the marker "▁" is known, which is not a part of the word
