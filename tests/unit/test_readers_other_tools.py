"""Files and folders of other tools are named, with a line that converts them."""

import csv
import gzip
import json
import pickle
import re
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from source_files import fasttext, numbers, one_line, write
from test_readers import LINES, packed

from embinit_fairseq.errors import EmbinitError, VectorFileError
from embinit_fairseq.vectors.open import open_vectors


def _gensim(path: Path, words: list[str], matrix: np.ndarray) -> None:
    models = pytest.importorskip("gensim.models")
    vectors = models.KeyedVectors(matrix.shape[1])
    vectors.add_vectors(words, matrix)
    vectors.save(str(path), sep_limit=0)


def _parquet(path: Path, words: list[str], matrix: np.ndarray) -> None:
    """The words are the last column, as pandas writes an index."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = [*matrix[:, :2].T, list(matrix[:, 2:])]
    parquet.write_table(pyarrow.table([*columns, words], names=list("abcw")), path)


def _csv(path: Path, words: list[str], matrix: np.ndarray, separator: str, point: str, with_names: bool) -> None:
    """Write words that are separators in quotes, as spreadsheets do; pandas names columns by their numbers."""
    rows = [[word, *(str(number).replace(".", point) for number in row)] for word, row in zip(words, matrix)]
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([["word", *range(4)]] * with_names + rows)


def _pandas(path: Path, words: list[str], matrix: np.ndarray) -> None:
    pytest.importorskip("pandas").DataFrame(matrix, index=words).to_pickle(path, compression=None)


def _joblib(path: Path, words: list[str], matrix: np.ndarray, compress: int) -> None:
    pytest.importorskip("joblib").dump({"vectors": matrix, "words": words}, path, compress)


def _python_2(words: list[str], matrix: np.ndarray) -> bytes:
    """Return the pickle of a dictionary of strings that are bytes, and of lists."""
    short = [b"U" + bytes([len(word.encode())]) + word.encode() for word in words]
    lists = [b"](" + b"".join(b"G" + struct.pack(">d", number) for number in row) + b"e" for row in matrix]
    return b"\x80\x02}(" + b"".join(map(bytes.__add__, short, lists)) + b"u."


def _python_2_npy(path: Path, words: list[str], matrix: np.ndarray) -> None:
    np.save(path, {})
    content = _python_2(words, matrix)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR(K\x01)cnumpy\ndtype\n(U\x02O8K\x00K"
    )
    array += b"\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb\x89]" + content[2:-1] + b"atb."
    path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n\x80\x02" + array)


def _printed(matrix: np.ndarray) -> list[str]:
    """Return vectors as NumPy prints them, in two lines."""
    with np.printoptions(linewidth=30, precision=9, floatmode="unique"):
        return [str(row) for row in matrix]


def _rows(words: list[str], first: int = 0) -> dict[str, int]:
    """Word -> row, in another order than the rows."""
    return {word: first + words.index(word) for word in sorted(words)}


OTHERS: dict[str, Callable[[Path, list[str], np.ndarray], object]] = {
    "v.kv": _gensim,
    "v.kv.vectors.npy": lambda path, words, matrix: _gensim(path.with_name("v.kv"), words, matrix),
    "pickle": lambda path, words, matrix: path.write_bytes(pickle.dumps(dict(zip(words, matrix)))),
    "pickle 0": lambda path, words, matrix: path.write_bytes(pickle.dumps(dict(zip(words, matrix.tolist())), 0)),
    **{
        f"csv {ord(separator)} {with_names}": partial(_csv, separator=separator, point=point, with_names=with_names)
        for separator, point in ((",", "."), (";", ","), ("\t", ","), (" ", ","))
        for with_names in (False, True)
    },
    "json": lambda path, words, matrix: path.write_text(json.dumps(dict(zip(words, matrix.tolist())), indent=1)),
    "jsonl": lambda path, words, matrix: path.write_text(
        "".join(json.dumps({"v": row.tolist(), "w": word}) + "\n" for word, row in zip(words, matrix))
    ),
    "pickle of a pair": lambda path, words, matrix: path.write_bytes(pickle.dumps((tuple(words), matrix), 2)),
    "pickle of Python 2": lambda path, words, matrix: path.write_bytes(_python_2(words, matrix)),
    "Python 2.npy": _python_2_npy,
    "pickle of rows": lambda path, words, matrix: path.write_bytes(
        pickle.dumps((np.vstack([matrix[:1], matrix]), _rows(words, 1)))
    ),
    "pickle of words of rows": lambda path, words, matrix: path.write_bytes(
        pickle.dumps({"m": matrix, "w": {row: word for word, row in _rows(words).items()}})
    ),
    "json of two": lambda path, words, matrix: path.write_text(json.dumps({"w": words, "m": matrix.tolist()})),
    "printed": lambda path, words, matrix: path.write_text(
        "".join(f"{row}\t{word}\t{vector}\n" for row, (word, vector) in enumerate(zip(words, _printed(matrix))))
    ),
    "pandas": _pandas,
    "joblib": partial(_joblib, compress=0),
    "compressed joblib": partial(_joblib, compress=3),
    "object.npz": lambda path, words, matrix: np.savez(path, words=np.array(words, object), vectors=matrix, n=matrix),
    "rows.npz": lambda path, words, matrix: np.savez(path, m=matrix, v=_rows(words)),
    "dict.npy": lambda path, words, matrix: np.save(path, dict(zip(words, matrix))),
    "words, matrix": lambda path, words, matrix: torch.save({"w": words, "m": torch.from_numpy(matrix)}, path),
    "matrix, word2id": lambda path, words, matrix: torch.save((torch.from_numpy(matrix), _rows(words)), path),
    "id2word, matrix": lambda path, words, matrix: torch.save(
        {"w": {row: words[row] for row in (2, 0, 3, 1)}, "m": torch.from_numpy(matrix), "lang": "en"}, path
    ),
    "of NumPy": lambda path, words, matrix: torch.save(dict(zip(words, matrix)), path),
    "Stanza": lambda path, words, matrix: torch.save(
        {"vocab": {"lang": "en", "_unit2id": _rows(words)}, "emb": torch.from_numpy(matrix)}, path
    ),
    "XLM": lambda path, words, matrix: torch.save(
        {"model": {"a": torch.ones(2, 4), "b": torch.from_numpy(matrix)}, "dico": dict(enumerate(words))}, path
    ),
    "tensor": lambda path, words, matrix: torch.save(torch.from_numpy(matrix), path),
    "npy": lambda path, words, matrix: np.save(path.open("wb"), matrix),
    "v.npz": lambda path, words, matrix: np.savez(path, keys=np.array(words), b=matrix[0], embeddings=matrix),
    "model.npz": lambda path, words, matrix: np.savez(path, Wemb=matrix, Wemb_dec=matrix[:1]),
    "{P} N.npz": lambda path, words, matrix: np.savez(path, **{"P": words, "{N}": matrix}),
    "torchtext": lambda path, words, matrix: torch.save((words, {}, torch.from_numpy(matrix), 3), path),
    "torch": lambda path, words, matrix: torch.save(dict(zip(words, torch.from_numpy(matrix))), path),
    "parquet": _parquet,
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_line_that_converts_a_file_of_another_tool_does(tmp_path, monkeypatch, name):
    words, matrix = ["the", "über", ",", '"'], numbers(4, 4)
    OTHERS[name](tmp_path / name, words, matrix)
    monkeypatch.chdir(tmp_path)
    Path("WORDS").write_text("\n".join(words) + "\n", encoding="utf-8")
    Path("VOCABULARY").write_text(json.dumps({word: row for row, word in enumerate(words)}))
    with pytest.raises(EmbinitError, match="convert it: python -c") as error:
        open_vectors(str(tmp_path / name))
    one_line(error, tmp_path)
    code = re.search('python -c "(.*)"', str(error.value))[1]
    exec(code, {})
    table = open_vectors(re.findall("'([^']*[.](?:npz|vec))'", code)[-1]).read()
    assert table.words == words
    np.testing.assert_array_equal(table.matrix, matrix)


def test_weights_are_named_with_their_folder(tmp_path):
    folder = tmp_path / "P {N}"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(VectorFileError, match=re.escape(f": {folder}") + "$"):
        open_vectors(write(folder / "v.any", b"\x14" + bytes(7) + b'{"w":{"dtype":"F32"}}'))


def test_folders_of_other_tools(tmp_path):
    for name, said in (
        ("checkpoint_best.pt", "a/checkpoint_best.pt"),
        ("vocab/key2row", r"spacy.load\("),
        ("v.model.vectors.npy", "gensim.*such as .*a/NAME.model"),
        ("key2row", r"Vocab\(\).from_disk\("),
        ("shared_vocabulary.json", "CTranslate2.*give"),
        ("0_WordEmbeddings/model.safetensors", "wordembedding_config"),
        ("adapter_config.json", "PEFT.*give the folder of its base_model"),
        ("snapshots/0123abcd/model.safetensors", "give .*a/snapshots/0123abcd$"),
        ("checkpoint-500/pytorch_model.bin", "give .*a/checkpoint-500$"),
    ):
        file = tmp_path / name.replace("/", "_") / "a" / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"")
        if "0_" in name:
            (file.parent / "wordembedding_config.json").write_text("{}")
            said = "0_WordEmbeddings' .*convert|convert.*whitespacetokenizer"
        with pytest.raises(VectorFileError, match=said):
            open_vectors(file.parents[name.count("/")])


def test_a_folder_names_its_file_of_vectors(tmp_path):
    """As gensim's downloader and Hugging Face's hub make them; a file of torch.save may be anything."""
    for files, said in (
        (
            {"glove/__init__.py": b"import os\n", "glove/glove.gz": gzip.compress(LINES)},
            "give a file .*glove/glove.gz$",
        ),
        ({"README.md": bytes(9), "model.bin": fasttext(["x"], numbers(4))}, "give a file .*/model.bin$"),
        ({"adapter.bin": packed(lambda stream: torch.save({"w": torch.ones(9)}, stream))}, "save_pretrained"),
        ({"vocab.txt": b"the\nof\n"}, "save_pretrained"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        with pytest.raises(VectorFileError, match=said) as error:
            open_vectors(folder)
        one_line(error, folder)
