"""Hugging Face directories: weights, vocabularies, specials, segmentation. Oracles: the libraries that write them."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from source_files import BERT, BERT_EMBEDDING, MB, TEXT, Malicious, bert, numbers, refused, save_weights, sparse, use

from embinit_fairseq.errors import OptionError, VectorFileError
from embinit_fairseq.vectors.hf_vocab import decode_bytelevel
from embinit_fairseq.vectors.huggingface import HuggingFaceDirectory
from embinit_fairseq.vectors.table import Wanted

safetensors_numpy = pytest.importorskip("safetensors.numpy")
safetensors_torch = pytest.importorskip("safetensors.torch")
tokenizers = pytest.importorskip("tokenizers")


def table(rows: int, seed: int = 0) -> np.ndarray:
    return numbers(rows, 4, seed)


def opened(folder: Path) -> HuggingFaceDirectory:
    return HuggingFaceDirectory(str(folder))


def rows_of(read) -> dict[str, tuple]:
    return dict(zip(read.words, map(tuple, read.matrix)))


# ---- weights


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy"])
def test_every_float_type_becomes_float32(tmp_path, kind, dtype):
    bert(tmp_path)
    tensor = torch.from_numpy(table(len(BERT))).to(dtype)
    state = {BERT_EMBEDDING: tensor, "x": torch.ones(2)}
    if kind == "safetensors":
        safetensors_torch.save_file(state, tmp_path / "model.safetensors")
    else:
        (tmp_path / "model.safetensors").unlink()
        torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=kind == "zip")
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
    decoys = {"lm_head.weight": table(13, seed=4), "decoder." + name: table(13, seed=5)}
    save_weights(tmp_path, name, matrix, **decoys, bias=matrix[0])
    source = opened(tmp_path)
    assert source.tensor == name
    np.testing.assert_array_equal(source.read(Wanted.words(["the"])).matrix, matrix[[6]])
    save_weights(tmp_path, "decoder." + name, matrix)
    assert opened(tmp_path).tensor == "decoder." + name


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(VectorFileError, match=r"model\.safetensors.*pytorch_model\.bin"):
        opened(tmp_path)
    save_weights(tmp_path, "shared.weight", table(4))
    with pytest.raises(VectorFileError, match=r"tokenizer\.json, vocab\.txt.*save_pretrained"):
        opened(tmp_path).read()
    save_weights(tmp_path, "mystery.weight", table(9), small=table(2), vector=table(9)[0])
    with pytest.raises(VectorFileError, match=r"mystery\.weight 9x4, small 2x4;.*\.npz"):
        opened(tmp_path)
    name = "embeddings.word_embeddings.weight"
    save_weights(tmp_path, "a." + name, table(13), **{"b." + name: table(13)})
    with pytest.raises(VectorFileError, match=r"a\.embed.*, b\.embed.*\.npz"):
        opened(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(VectorFileError, match="git lfs pull"):
        opened(tmp_path)


def save_torch(state: dict, file: Path) -> None:
    torch.save({name: torch.from_numpy(value) for name, value in state.items()}, file)


SHARDS = [(safetensors_numpy.save_file, "model", "safetensors"), (save_torch, "pytorch_model", "bin")]


@pytest.mark.parametrize(("save", "stem", "ending"), SHARDS)
def test_shards(tmp_path, save, stem, ending):
    first, second = (f"{stem}-0000{number}-of-00002.{ending}" for number in (1, 2))
    matrix = bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()

    def refused_by(name, weight_map, again=r".*again"):
        (tmp_path / f"{stem}.{ending}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        with pytest.raises(VectorFileError, match=name + again):
            opened(tmp_path)

    both = {"encoder.weight": first, BERT_EMBEDDING: second}
    save({"encoder.weight": table(5)}, tmp_path / first)
    refused_by(second, both)
    save({"encoder.weight": table(5)}, tmp_path / second)
    refused_by(BERT_EMBEDDING, both)
    save({BERT_EMBEDDING: matrix}, tmp_path / second)
    np.testing.assert_array_equal(opened(tmp_path).read(Wanted.words(["!"])).matrix, matrix[[11]])
    outside = shutil.copy(tmp_path / second, tmp_path.parent / f"{tmp_path.name}.{ending}")
    for wrong in ({BERT_EMBEDDING: f"../{Path(outside).name}"}, {BERT_EMBEDDING: 3}, {}, []):
        refused_by(rf"{stem}.{ending}.index.json", wrong)
    refused_by(r"encoder\.weight 5x4", {"encoder.weight": first}, "")  # of all shards


def test_pickles_that_are_no_state_dict(tmp_path):
    bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    file, trace = tmp_path / "pytorch_model.bin", tmp_path / "executed"
    for content in ([1, 2], {"a": 1}, torch.ones(3, 4), {"state": {"x": torch.ones(2, 2)}}, {"x": torch.ones(2)}):
        torch.save(content, file)
        with pytest.raises(VectorFileError, match=r"pytorch_model.bin.*save_pretrained"):
            opened(tmp_path)
    torch.save({BERT_EMBEDDING: Malicious(trace)}, file)
    with pytest.raises(VectorFileError, match=r"pytorch_model.bin.*not executed"):
        opened(tmp_path)
    file.write_bytes(pickle.dumps(Malicious(trace)))
    with pytest.raises(VectorFileError, match=r"pytorch_model.bin"):
        opened(tmp_path)
    assert not trace.exists()


def safetensors(folder: Path, entry: object, **files: str) -> Path:
    """`entry` as the only tensor, and its 32 bytes; files by their names, with `__` for the point."""
    folder.mkdir(exist_ok=True)
    head = json.dumps({"__metadata__": {"a": "b"}, "shared.weight": entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(32))
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def entry(shape: object = (4, 2), dtype: str = "F32", offsets: object = (0, 32)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


OFFSETS = [0, 31], [1, 33], [-4, 28], [32, 0], [0], ["0", 32], None
SHAPES = [4, -2], [8], [4, 2.0], [4, True]
TYPES = "I32", [], "F16"
WRONG = [*(entry(offsets=offsets) for offsets in OFFSETS), *map(entry, SHAPES), *(entry(dtype=kind) for kind in TYPES)]
WRONG += [entry([4, 1 << 61], offsets=[0, 1 << 65]), entry([4, 0], offsets=[0, 0]), [], None]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_headers_of_safetensors(tmp_path, wrong):
    assert opened(safetensors(tmp_path, entry())).dim == 2
    refused(lambda: opened(safetensors(tmp_path, wrong)), tmp_path / "model.safetensors")


@pytest.mark.parametrize("length", [0, 1, 1 << 25, 1 << 40, 2**64 - 1])
def test_absurd_heads_of_safetensors(tmp_path, length):
    sparse(tmp_path / "model.safetensors", struct.pack("<Q", length) + b"{", 1 << 33)
    refused(lambda: opened(tmp_path), tmp_path / "model.safetensors", most=80 * MB)


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


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """folder, matrix, tokenizer."""
    folder, trained = tmp_path_factory.mktemp("gpt2"), tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXT, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    trained.save_model(str(folder))
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    matrix = table(trained.get_vocab_size())
    save_weights(folder, "transformer.wte.weight", matrix)
    return folder, matrix, trained


def test_gpt2_vocabulary_is_decoded_to_text(gpt2):
    folder, matrix, trained = gpt2
    read = opened(folder).read()
    assert read.origin.markers == "bytelevel"
    rows = {tuple(row): number for number, row in enumerate(matrix)}
    assert {"Ġthe", "Ġhouse"} <= set(read.words)
    assert any("ä" in word for word in read.words)
    for word, row in zip(read.words, read.matrix):
        assert trained.decode([rows[tuple(row)]]) == word.replace("Ġ", " ")
    assert set(read.specials) == {"bos", "eos"}
    assert "<|endoftext|>" not in read.words


def test_gpt2_words_are_cut_as_after_a_blank(gpt2, tmp_path, monkeypatch):
    folder, matrix, trained = gpt2
    expected = matrix[trained.encode(" Häuserhund").ids].mean(axis=0)
    save_weights(tmp_path, "wte.weight", matrix)
    trained.save(str(tmp_path / "tokenizer.json"))
    for source in (opened(folder), opened(tmp_path)):
        composed = source.compose(["Häuserhund", "\udc80"])
        assert set(composed) == {"Häuserhund"}
        np.testing.assert_allclose(composed["Häuserhund"], expected, rtol=1e-6)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    source = opened(folder)
    assert source.read().words
    with pytest.raises(VectorFileError, match="pip install tokenizers"):
        source.compose(["x"])


@example("Ġgantija")
@given(st.text(max_size=8))
@settings(max_examples=40, deadline=None)
def test_bytelevel_decoding_inverts_the_alphabet(text):
    pre = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    token = "".join(piece for piece, _ in pre.pre_tokenize_str(text))
    if text.startswith("Ġ"):
        assert decode_bytelevel(token) is None
    else:
        assert decode_bytelevel(token) == ("Ġ" + text[1:] if text.startswith(" ") else text)
    assert (decode_bytelevel("Ã"), decode_bytelevel("Ã¤"), decode_bytelevel("▁a")) == (None, "ä", "▁a")


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
    for name, content in {
        "special_tokens_map": {"eos_token": {"content": "</s>"}, "unk_token": "<unk>", "pad_token": "<pad>"},
        "added_tokens": {"<extra_id_0>": size + 1},
        "tokenizer_config": {"added_tokens_decoder": decoder},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    source = opened(tmp_path)
    read = source.read()
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
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
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
    source = opened(tmp_path)
    read = source.read()
    assert (read.words, read.origin.markers) == (["▁the", "▁", "house", "s", "<extra_id_0>"], "sentencepiece")
    np.testing.assert_array_equal(read.matrix, matrix[3:8])
    assert set(read.specials) == {"pad", "eos", "unk"}
    for word, rows in (("houses", [4, 5, 6]), ("thes", [3, 6]), ("xyz", [4])):  # of the last one only "▁" is known
        np.testing.assert_allclose(source.compose([word])[word], matrix[rows].mean(axis=0), rtol=1e-6)


A = {"vocab": {"a": 0}}


@pytest.mark.parametrize(
    ("model", "others", "markers"),
    [
        ({"type": "WordLevel", "vocab": {"a": 0, "▁b": 1}}, {}, "none"),
        ({"type": "BPE", "vocab": {"a": 0, "▁b": 1}}, {}, "sentencepiece"),
        ({"type": "BPE", "vocab": {"a": 0, "b": 1}}, {}, "auto"),
        ({"type": "BPE", **A}, {"decoder": {"x": [{"type": "Metaspace"}]}}, "sentencepiece"),
        ({"type": "BPE", **A}, {"pre_tokenizer": {"type": "ByteLevel"}}, "bytelevel"),
        ({"type": "WordPiece", **A}, {}, "wordpiece"),
        ({"type": "WordPiece", **A, "continuing_subword_prefix": "@"}, {}, "auto"),
    ],
)
def test_how_a_tokenizer_spells_pieces(tmp_path, model, others, markers):
    save_weights(tmp_path, "shared.weight", table(4))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, **others}))
    assert opened(tmp_path).read().origin.markers == markers
    (tmp_path / "tokenizer.json").unlink()  # pieces without a tokenizer cannot compose
    (tmp_path / "vocab.json").write_text('{"<pad>": 0, "▁the": 1, "s": 2, "</s>": 3}')
    assert opened(tmp_path).read().origin.markers == "sentencepiece"
    with pytest.raises(OptionError, match=r"tokenizer\.json"):
        opened(tmp_path).compose(["thes"])
    save_weights(tmp_path, "shared.weight", table(3))
    with pytest.raises(VectorFileError, match=r"vocab\.json.*save_pretrained"):
        opened(tmp_path).read()


def test_wordpiece_cuts_as_the_library_does(tmp_path):
    matrix = bert(tmp_path)
    reference, source = tokenizers.BertWordPieceTokenizer(str(tmp_path / "vocab.txt"), lowercase=True), opened(tmp_path)
    for word in ("unbelievable", "UNBELIEVABLE!", "houses", "Ünbelievable", "the house", "qqq", "housex", "", "s"):
        rows = [row for row in reference.encode(word, add_special_tokens=False).ids if row != BERT.index("[UNK]")]
        composed = source.compose([word])
        assert set(composed) == ({word} if rows else set())
        if rows:
            np.testing.assert_allclose(composed[word], matrix[rows].mean(axis=0), rtol=1e-6)
    bert(tmp_path, vocabulary=[*BERT, "Haus"])  # a cased vocabulary
    assert opened(tmp_path).compose(["The", "Hauss"]).keys() == {"Hauss"}
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert opened(tmp_path).compose(["The"]).keys() == {"The"}


# ---- damaged, and bombs

TOKENIZER = '{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": %s}}}'
ENTRIES = st.recursive(
    st.none() | st.integers(-2, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["vocab", "type", "id", "content", "a"]), inner, max_size=4)
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["model", "added_tokens", "decoder"]), ENTRIES), st.data())
def test_strange_tokenizers_are_read_or_refused(tmp_path, content, data):
    save_weights(tmp_path, "shared.weight", table(5))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    use(str(tmp_path), None)
    vocabulary = {"<unk>": 0, "▁house": 1, "s": 2}
    trained = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    trained.add_special_tokens(["<unk>", "<mask>"])
    text = trained.to_str()
    at = data.draw(st.integers(0, len(text)))
    (tmp_path / "tokenizer.json").write_text(text[:at] + data.draw(st.text(max_size=4)) + text[at + 3 :])
    use(str(tmp_path), None)


@pytest.mark.parametrize(
    ("number", "reason"),
    [("7" * 100_000, "a number with thousands"), ("[" * 100_000, "nested too deeply"), ("1e999", "has the row inf")],
)
def test_numbers_and_nesting_without_end(tmp_path, number, reason):
    path = safetensors(tmp_path, entry(), tokenizer__json=TOKENIZER % number)
    assert reason in refused(opened(path).read, path / "tokenizer.json")
    if reason != "has the row inf":
        (path / "tokenizer.json").write_text(TOKENIZER % 1)
        for name in ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
            (path / name).write_text(TOKENIZER % number)
            assert reason in refused(opened(path).read, path / name)
            (path / name).unlink()
    (path / "model.safetensors").rename(path / "model.safetensors.index.json").write_text(TOKENIZER % number)
    refused(lambda: opened(path), path / "model.safetensors.index.json")


ALONE = [(name, {}) for name in ("tokenizer.json", "vocab.json", "spiece.model", "vocab.txt")]
BESIDE = [("config.json", {"vocab__txt": "a\nb\n"}), ("merges.txt", {"vocab__json": '{"a": 0, "\\u0120b": 1}'})]


@pytest.mark.parametrize(("name", "beside"), [*ALONE, *BESIDE])
def test_files_that_are_larger_than_they_may_be(tmp_path, name, beside):
    """Sparse ones: a tokenizer belongs to a matrix, whose rows say how much there can be."""
    path = safetensors(tmp_path, entry(), **beside)
    sparse(path / name, b"", 1 << 33)
    refused(lambda: (opened(path).read(), opened(path).compose(["ab"])), path / name, most=64 * MB)
    path = safetensors(tmp_path / "lines", entry(), vocab__txt="token\n" * 100_000)
    assert ":5: more lines than" in refused(opened(path).read, path / "vocab.txt")
