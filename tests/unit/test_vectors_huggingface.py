"""The weights of Hugging Face directories. Oracles: the libraries that write them."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hf_models import BERT, BERT_EMBEDDING, bert, save_weights, table

from embinit_fairseq.errors import DimensionError, VectorFileError
from embinit_fairseq.vectors.huggingface import HuggingFaceDirectory
from embinit_fairseq.vectors.table import Wanted

safetensors_numpy = pytest.importorskip("safetensors.numpy")
safetensors_torch = pytest.importorskip("safetensors.torch")


def test_only_wanted_rows_in_the_source_order(tmp_path):
    matrix = bert(tmp_path)
    read = HuggingFaceDirectory(str(tmp_path)).read(Wanted(frozenset({"##able", "the", "[CLS]"}), frozenset({"house"})))
    assert read.words == ["the", "house", "##able"]
    np.testing.assert_array_equal(read.matrix, matrix[[6, 7, 10]])


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
