"""Hugging Face directories: weights, vocabularies, specials, segmentation. Oracles: the libraries that write them."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from source_files import BERT, BERT_EMBEDDING, MB, TEXT, bert, numbers, refused, save_weights, sparse

from embinit_fairseq.errors import OptionError, VectorFileError
from embinit_fairseq.vectors.huggingface import HuggingFaceDirectory
from embinit_fairseq.vectors.table import Wanted

safetensors_torch = pytest.importorskip("safetensors.torch")
tokenizers = pytest.importorskip("tokenizers")


def table(rows: int, seed: int = 0) -> np.ndarray:
    return numbers(rows, 4, seed)


def opened(folder: Path) -> HuggingFaceDirectory:
    return HuggingFaceDirectory(str(folder))


def rows_of(read) -> dict[str, tuple]:
    return dict(zip(read.words, map(tuple, read.matrix)))


def write_json(folder: Path, **files: object) -> None:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


# ---- weights


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_every_float_type_becomes_float32(tmp_path, name, dtype):
    bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    tensor = torch.from_numpy(table(len(BERT))).to(dtype)
    save = torch.save if name.endswith("bin") else safetensors_torch.save_file
    save({BERT_EMBEDDING: tensor, "x": torch.ones(2)}, tmp_path / name)
    read = opened(tmp_path).read(Wanted(frozenset({"##able", "the", "[CLS]"}), frozenset({"house"})))
    assert read.words == ["the", "house", "##able"]
    np.testing.assert_array_equal(read.matrix, tensor[[6, 7, 10]].float().numpy())


NAMES = [f"{model}embeddings.word_embeddings.weight" for model in ("", "roberta.", "distilbert.", "electra.")]
NAMES += "shared.weight model.shared.weight encoder.embed_tokens.weight wte.weight transformer.wte.weight".split()
NAMES += "model.embed_tokens.weight transformer.word_embeddings.weight gpt_neox.embed_in.weight".split()
NAMES += "transformer.word_embedding.weight transformer.embeddings.weight".split()


@pytest.mark.parametrize("name", NAMES)
def test_known_embedding_names(tmp_path, name):
    matrix = bert(tmp_path)
    save_weights(tmp_path, name, matrix, **{"lm_head.weight": table(13), "decoder." + name: table(13)}, bias=matrix[0])
    source = opened(tmp_path)
    assert source.tensor == name
    np.testing.assert_array_equal(source.read(Wanted.words(["the"])).matrix, matrix[[6]])
    save_weights(tmp_path, "decoder." + name, matrix)
    assert opened(tmp_path).tensor == "decoder." + name


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(VectorFileError, match=r"model\.safetensors.*pytorch_model\.bin"):
        opened(tmp_path)
    save_weights(tmp_path, "shared.weight", table(3))
    with pytest.raises(VectorFileError, match=r"tokenizer\.json, vocab\.txt.*save_pretrained"):
        opened(tmp_path).read()
    write_json(tmp_path, vocab={"<pad>": 0, "▁the": 1, "s": 2, "</s>": 3})
    with pytest.raises(VectorFileError, match=r"vocab\.json.*save_pretrained"):
        opened(tmp_path).read()
    save_weights(tmp_path, "shared.weight", table(4))
    assert opened(tmp_path).read().origin.markers == "sentencepiece"
    with pytest.raises(OptionError, match=r"tokenizer\.json"):  # pieces without a tokenizer cannot compose
        opened(tmp_path).compose(["thes"])
    name = "embeddings.word_embeddings.weight"
    for names, message in (
        (["mystery.weight"], r"mystery\.weight 9x4;.*\.npz"),
        ([f"a.{name}", f"b.{name}"], r"a\.em.*, b"),
    ):
        save_weights(tmp_path, names[0], table(9), **dict.fromkeys(names[1:], table(9)), vector=table(9)[0])
        with pytest.raises(VectorFileError, match=message):
            opened(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(VectorFileError, match="git lfs pull"):
        opened(tmp_path)


@pytest.mark.parametrize("stem", ["model", "pytorch_model"])
def test_shards(tmp_path, stem):
    ending, save = ("safetensors", safetensors_torch.save_file) if stem == "model" else ("bin", torch.save)
    first, second = (f"{stem}-0000{number}-of-00002.{ending}" for number in (1, 2))
    matrix = bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    save({"encoder.weight": torch.ones(5, 4)}, tmp_path / first)
    save({BERT_EMBEDDING: torch.from_numpy(matrix)}, tmp_path / second)
    shutil.copy(tmp_path / second, tmp_path.parent / f"{tmp_path.name}.{ending}")
    outside = f"../{tmp_path.name}.{ending}"
    for weight_map, message in (
        ({"encoder.weight": first, BERT_EMBEDDING: second}, ""),
        ({BERT_EMBEDDING: first}, f"{BERT_EMBEDDING}.*again"),
        ({BERT_EMBEDDING: "none"}, "none.*again"),
        *(
            (wrong, "json.*again")
            for wrong in ({BERT_EMBEDDING: f"../{Path(outside).name}"}, {BERT_EMBEDDING: 3}, {}, [])
        ),
        ({"encoder.weight": first}, r"encoder\.weight 5x4"),  # of all shards
    ):
        write_json(tmp_path, **{f"{stem}.{ending}.index": {"metadata": {}, "weight_map": weight_map}})
        with pytest.raises(VectorFileError, match=message) if message else contextlib.nullcontext():
            np.testing.assert_array_equal(opened(tmp_path).read(Wanted.words(["!"])).matrix, matrix[[11]])


def safetensors(folder: Path, entry: object) -> Path:
    """`entry` as the only tensor, and its 32 bytes."""
    head = json.dumps({"__metadata__": {"a": "b"}, "shared.weight": entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(32))
    return folder


def entry(shape: object = (4, 2), dtype: str = "F32", offsets: object = (0, 32)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_headers_of_safetensors(tmp_path):
    path = tmp_path / "model.safetensors"
    wrong = [entry(offsets=offsets) for offsets in ([0, 31], [1, 33], [-4, 28], [32, 0], [0], ["0", 32], None)]
    wrong += [*map(entry, ([4, -2], [8], [4, 2.0], [4, True])), *(entry(dtype=kind) for kind in ("I32", [], "F16"))]
    wrong += [entry([4, 1 << 61], offsets=[0, 1 << 65]), entry([4, 0], offsets=[0, 0]), [], None]
    assert opened(safetensors(tmp_path, entry())).dim == 2
    for each in wrong:
        refused(lambda each=each: opened(safetensors(tmp_path, each)), path)
    for length in (0, 1, 1 << 25, 1 << 40, 2**64 - 1):
        sparse(path, struct.pack("<Q", length) + b"{", 1 << 33)
        refused(lambda: opened(tmp_path), path, most=80 * MB)


# ---- vocabularies


def test_bert_rows_and_specials(tmp_path):
    matrix = bert(tmp_path, vocabulary=[*BERT, "the"])
    read = opened(tmp_path).read()
    assert rows_of(read) == {word: tuple(matrix[row]) for row, word in enumerate(BERT) if row not in (0, 2, 3, 4, 5)}
    roles = {"pad": "[PAD]", "unk": "[UNK]", "bos": "[CLS]", "eos": "[SEP]", "mask": "[MASK]"}
    assert {role: tuple(row) for role, row in read.specials.items()} == {
        role: tuple(matrix[BERT.index(token)]) for role, token in roles.items()
    }
    assert (read.origin.rows, read.origin.markers, read.origin.duplicates) == (len(BERT) + 1, "wordpiece", 1)
    matrix[3, 2] = np.nan
    bert(tmp_path, matrix[:13])
    with pytest.raises(VectorFileError, match=r"'bos'.*NaN"):
        opened(tmp_path).read(Wanted.words(["the"]))
    (tmp_path / "special_tokens_map.json").write_text('{"unk_token": {"content": "[UNK]"}, "cls_token": 3}')
    assert set(opened(tmp_path).read(Wanted.words(["the"])).specials) == {"unk"}  # what is declared counts
    bert(tmp_path, matrix=table(len(BERT) - 1))
    with pytest.raises(VectorFileError, match=r"vocab.txt:13: .* rows \(12\).*save_pretrained"):
        opened(tmp_path).read()


def sentencepiece_model(file: Path, **options):
    import sentencepiece

    options |= {"vocab_size": 45, "hard_vocab_limit": False, "minloglevel": 2}
    with open(file, "wb") as stream:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT), model_writer=stream, **options)
    processor = sentencepiece.SentencePieceProcessor()
    processor.load(str(file))
    return processor


def test_t5_with_padded_rows_and_extra_ids(tmp_path):
    trained = sentencepiece_model(tmp_path / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    size = trained.get_piece_size()
    matrix = table(size + 20)
    save_weights(tmp_path, "shared.weight", matrix)
    decoder = {str(size + 2): {"content": "<extra_id_1>"}, "x": {"content": "no"}, "3": {"content": "taken"}, "9": []}
    special = {"eos_token": {"content": "</s>"}, "unk_token": "<unk>", "pad_token": "<pad>"}
    added = {"<extra_id_0>": size + 1}
    configured = {"added_tokens_decoder": decoder}
    write_json(tmp_path, special_tokens_map=special, added_tokens=added, tokenizer_config=configured)
    read = (source := opened(tmp_path)).read()
    assert read.origin.markers == "sentencepiece"
    expected = {trained.id_to_piece(row): tuple(matrix[row]) for row in range(3, size)}
    expected |= {"<extra_id_0>": tuple(matrix[size + 1]), "<extra_id_1>": tuple(matrix[size + 2])}
    assert rows_of(read) == expected
    specials = {role: tuple(row) for role, row in read.specials.items()}
    assert specials == {role: tuple(matrix[row]) for row, role in enumerate(("pad", "eos", "unk"))}
    composed = source.compose(["Häuserhund", "🦑x", "\udc80"])
    for word in ("Häuserhund", "🦑x"):
        known = [row for row in trained.encode(word) if row != 2]
        np.testing.assert_allclose(composed[word], matrix[known].mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize("model_type", ["xlm-roberta", "mbart"])
def test_rows_of_models_that_were_fairseqs(tmp_path, model_type):
    trained = sentencepiece_model(tmp_path / "sentencepiece.bpe.model")
    size = trained.get_piece_size()
    matrix = table(size + 2)
    save_weights(tmp_path, "roberta.embeddings.word_embeddings.weight", matrix)
    with pytest.raises(VectorFileError, match=r"tokenizer\.json"):
        opened(tmp_path).read()
    write_json(tmp_path, config={"model_type": model_type})
    read = opened(tmp_path).read()
    # transformers: <s> 0, <pad> 1, </s> 2, <unk> 3, piece n of the model (from 3 on) in row n + 1, <mask> last
    assert rows_of(read) == {trained.id_to_piece(piece): tuple(matrix[piece + 1]) for piece in range(3, size)}
    assert tuple(read.specials["pad"]) == tuple(matrix[1])
    assert tuple(read.specials.get("mask", ())) == (tuple(matrix[size + 1]) if model_type == "xlm-roberta" else ())


def test_unigram_tokenizer_json(tmp_path):
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁the", -1.0), ("▁", -2.0), ("house", -3.0), ("s", -4.0)]
    trained = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trained.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra_id_0>"])
    trained.enable_padding(length=32, pad_id=0, pad_token="<pad>")  # must not leak into the mean
    trained.enable_truncation(1)
    trained.save(str(tmp_path / "tokenizer.json"))
    matrix = table(10)
    save_weights(tmp_path, "shared.weight", matrix)
    read = (source := opened(tmp_path)).read()
    assert rows_of(read) == dict(zip(["▁the", "▁", "house", "s", "<extra_id_0>"], map(tuple, matrix[3:8])))
    assert set(read.specials) == {"pad", "eos", "unk"}
    for word, rows in (("houses", [4, 5, 6]), ("thes", [3, 6]), ("xyz", [4])):  # of the last one only "▁" is known
        np.testing.assert_allclose(source.compose([word])[word], matrix[rows].mean(axis=0), rtol=1e-6)


def test_wordpiece_cuts_as_the_library_does(tmp_path):
    matrix = bert(tmp_path)
    reference, source = tokenizers.BertWordPieceTokenizer(str(tmp_path / "vocab.txt"), lowercase=True), opened(tmp_path)
    for word in ("unbelievable", "UNBELIEVABLE!", "houses", "Ünbelievable", "the house", "qqq", "housex", "", "s"):
        rows = [row for row in reference.encode(word, add_special_tokens=False).ids if row != BERT.index("[UNK]")]
        expected = {word: pytest.approx(matrix[rows].mean(axis=0), rel=1e-6)} if rows else {}
        assert source.compose([word]) == expected
    bert(tmp_path, vocabulary=[*BERT, "Haus"])  # a cased vocabulary
    assert opened(tmp_path).compose(["The", "Hauss"]).keys() == {"Hauss"}
    write_json(tmp_path, tokenizer_config={"do_lower_case": True})
    assert opened(tmp_path).compose(["The"]).keys() == {"The"}


# ---- damaged, and bombs

TOKENIZER = '{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": %s}}}'


def test_gpt2_pieces_are_text_and_words_are_cut_as_after_a_blank(tmp_path, monkeypatch):
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXT, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    trained.save_model(str(tmp_path))
    write_json(tmp_path, special_tokens_map=dict.fromkeys(("bos_token", "eos_token"), "<|endoftext|>"))
    matrix = table(trained.get_vocab_size())
    save_weights(tmp_path, "wte.weight", matrix)
    read = (slow := opened(tmp_path)).read()
    assert (read.origin.markers, set(read.specials)) == ("bytelevel", {"bos", "eos"})
    assert {"Ġthe", "Ġhouse"} <= set(read.words)
    assert any("ä" in word for word in read.words)
    rows = {tuple(row): number for number, row in enumerate(matrix)}
    for word, row in zip(read.words, read.matrix):
        assert trained.decode([rows[tuple(row)]]) == word.replace("Ġ", " ") != "<|endoftext|>"
    composed = [slow.compose(["Häuserhund", "\udc80"])]
    trained.save(str(tmp_path / "tokenizer.json"))
    composed += [opened(tmp_path).compose(["Häuserhund", "\udc80"])]
    for each in composed:
        assert set(each) == {"Häuserhund"}
        expected = matrix[trained.encode(" Häuserhund").ids].mean(axis=0)
        np.testing.assert_allclose(each["Häuserhund"], expected, rtol=1e-6)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(VectorFileError, match="pip install tokenizers"):
        opened(tmp_path).compose(["x"])


BESIDE = "config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"


NESTED = TOKENIZER % ("[" * 100_000)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, "") for name in (*BESIDE, "tokenizer.json", "vocab.json", "spiece.model", "vocab.txt", "merges.txt")),
        *((name, NESTED) for name in (*BESIDE, "tokenizer.json", "model.safetensors.index.json")),
        ("tokenizer.json", TOKENIZER % "1e999"),
        ("vocab.txt", "token\n" * 100_000),
    ],
)
def test_files_without_end(tmp_path, name, content):
    """Large ones are sparse: a tokenizer belongs to a matrix, whose rows say how much there can be."""
    path = safetensors(tmp_path, entry())
    if name == "merges.txt" or name in BESIDE:
        (path / "vocab.json").write_text('{"a": 0, "\\u0120b": 1}')
    sparse(path / name, content.encode(), len(content) or 1 << 33)
    if "index" in name:
        (path / "model.safetensors").unlink()
    refused(lambda: (opened(path).read(), opened(path).compose(["ab"])), path / name, most=64 * MB)
