"""Damaged Hugging Face directories: a correct table or one of the promised errors, never anything else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hf_models import BERT_EMBEDDING, bert, save_weights, table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import OptionError, VectorFileError
from embinit_fairseq.vectors.huggingface import HuggingFaceDirectory

pytest.importorskip("safetensors.numpy")
tokenizers = pytest.importorskip("tokenizers")


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
