"""Name the tool of a file that holds no vectors in a format of `open.FORMATS`, and the line that converts it.

A file is recognised by its first bytes, a folder by a file in it. Nothing of it is executed here; the lines are for
the user, who knows whether the file can be trusted.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embinit_fairseq.vectors.conversion import PAIR, literal, npz_line, with_paths

_GENSIM = (
    'convert it: python -c "from gensim.utils import SaveLoad; m = SaveLoad.load({path!r}); '
    "getattr(m, 'wv', m).save_word2vec_format({vec!r})\""
)
_TRUSTED = "it can execute code when it is opened; if you trust it and"
_PICKLED = f"{_TRUSTED} it has words and vectors, "
#: the word of each row first
_WORD_FIRST = "d = [sorted(r.values(), key=lambda v: not isinstance(v, str)) for r in d]"
_ROWS = "[r[0] for r in d]", "[numpy.hstack(r[1:]) for r in d]"
_TABLE = "if its columns are the word and the numbers, "
_INDEX = "its index has the words, "
_FRAME = "d.index", "d.values"
_READ_WORDS = "w = [word for word in open('WORDS', encoding='utf-8').read().split('\\n') if word]"
_UNPACK = "unpack it and give the file of vectors in it"
_FOLDER = "give the folder of the Hugging Face model that it was made from"

#: first bytes of a file -> its tool, remedy
_FILES: tuple[tuple[bytes, str, str], ...] = (
    (rb"\x80[\x02-\x05](?s:.){0,200}gensim\.", "a file of gensim (`save`)", _GENSIM),
    (
        rb"\x80[\x02-\x05](?s:.)*?joblib\.numpy_pickle|x[\x01\x5e\x9c\xda](?s:.){0,9}[\0-\x08\x80-\xbf]",
        "a file of joblib (pickled Python objects)",
        _PICKLED + npz_line("d = joblib.load({path!r}); " + PAIR, "w", "m", "joblib"),
    ),
    (
        rb"\x80[\x02-\x05](?s:.){0,200}pandas\.",
        "a table of pandas (to_pickle)",
        f"{_TRUSTED} {_INDEX}" + npz_line("d = pandas.read_pickle({path!r})", *_FRAME, package="pandas"),
    ),
    (
        rb"\x80[\x02-\x05]|\((dp|lp)\d+\n|ccopy_reg\n|cgensim",
        "a pickle of Python objects",
        _PICKLED + npz_line("d = pickle.load(open({path!r}, 'rb'), encoding='bytes'); " + PAIR, "w", "m", "pickle"),
    ),
    (
        rb"\x89HDF\r\n",
        "an HDF5 file",
        f"if pandas wrote it and {_INDEX}" + npz_line("d = pandas.read_hdf({path!r})", *_FRAME, package="pandas"),
    ),
    *(
        (
            magic,
            f"{name} table",
            _TABLE
            + npz_line(
                "d = t.read_table({path!r}).to_pylist(); " + _WORD_FIRST, *_ROWS, package=f"pyarrow.{module} as t"
            ),
        )
        for magic, name, module in ((rb"PAR1", "a Parquet", "parquet"), (rb"ARROW1|FEA1", "an Arrow", "feather"))
    ),
    (
        rb"SQLite format 3",
        "a database (Magnitude's vectors are one)",
        "give the .txt or .bin file that it was made from",
    ),
    (rb"GGUF|GGML|ggml|lmgg", "a model of llama.cpp", _FOLDER),
    (rb"\x08[\x03-\x14][\x12B\x3a].(?s:.){0,80}(pytorch|onnx|tf2onnx)", "an ONNX model", _FOLDER),
    (rb"FiFu", "vectors of finalfusion", "convert it: finalfusion convert -t word2vec {path} {vec}"),
    (rb"(?s:.){7}\0\{\"|(?s:.){7}\0\{\s*\"", "weights of a model (safetensors)", ""),
    (rb"\n.{1,3}\n.{1,3}(<unk>|<pad>|<s>)", "a sentencepiece model, which has subwords and no vectors", "give vectors"),
    (rb"7z\xbc\xaf|Rar!|\x04\x22\x4d\x18|\x1f\x9d|LZIP", "an archive that is not read", _UNPACK),
    (
        rb"\s*[{\[](?=[^\n]*\"[^\n]*:\s*[\[{])[^\n]*\n\s*[{\[]",
        "JSON, one object per line",
        "if each has the word and the vector, "
        + npz_line("d = map(json.loads, open({path!r})); " + _WORD_FIRST, *_ROWS, package="json"),
    ),
    (
        rb"\s*\{\s*\"[^\"\n]*\"\s*:",
        "JSON",
        "if it has words and vectors, " + npz_line("d = json.load(open({path!r})); " + PAIR, "w", "m", "json"),
    ),
    (rb"\s*\[\s*[\[{\"][^ ]", "JSON", "write words and matrix to an .npz file"),
    (
        rb"[^\n]+[\t ]\[ *-?\d[-+.e\d ]*\n[-+.e\d ]*[\n\]]",
        "vectors in brackets over several lines, as NumPy prints them",
        npz_line(
            "d = re.findall(r'([^\\t\\n]+)[\\t ]\\[([^\\]]*)\\]', open({path!r}, encoding='utf-8').read())",
            "[r[0] for r in d]",
            "[numpy.array(r[1].split(), 'f4') for r in d]",
            "re",
        ),
    ),
    (
        rb"\d+ \d+ \d+ \d+ \d+ \d+ \S+ \S+\n",
        "vectors of floret, whose rows belong to parts of hashes instead of words",
        "train it with -mode fasttext, or give other vectors",
    ),
    (
        rb"(?:[^\n]*\n){0,40}?[STHDP]-\d+\t",
        "a log of fairseq-generate",
        "give vectors, or the checkpoint with its dict.txt next to it",
    ),
)
_COMPILED = tuple((re.compile(pattern), description, remedy) for pattern, description, remedy in _FILES)

#: a file in a folder -> the folder's tool, remedy
_SPACY = "k = [*v.vectors.keys()]", "[v.strings[i] for i in k]", "[v.vectors[i] for i in k]"
_FOLDERS: tuple[tuple[str, str, str], ...] = (
    (
        "adapter_config.json",
        "an adapter (PEFT), which has no embedding matrix",
        "give the folder of its base_model_name_or_path, or merge them: merge_and_unload().save_pretrained()",
    ),
    ("*.vectors.npy", "a folder of gensim's files", "name the file that `save` wrote, such as {path}/NAME.model"),
    ("checkpoint*.pt", "a folder of fairseq checkpoints", "name one of them, such as {path}/checkpoint_best.pt"),
    (
        "vocab/key2row",
        "a model of spaCy",
        npz_line("v = spacy.load({path!r}).vocab; " + _SPACY[0], *_SPACY[1:], package="spacy"),
    ),
    (
        "freqs.json",
        "vectors of sense2vec",
        npz_line("d = [*sense2vec.Sense2Vec().from_disk({path!r}).items()]", *_ROWS, package="sense2vec"),
    ),
    (
        "key2row",
        "vectors of spaCy",
        npz_line("v = spacy.vocab.Vocab().from_disk({path!r}); " + _SPACY[0], *_SPACY[1:], package="spacy.vocab"),
    ),
    ("shared_vocabulary.*", "a model of CTranslate2", "give the checkpoint or the folder that it was made from"),
    (
        "wordembedding_config.json",
        "words and vectors of sentence-transformers",
        npz_line(
            "p = {path!r}; w = json.load(open(p + '/whitespacetokenizer_config.json'))['vocab']; f = p + "
            "'/model.safetensors'; d = safetensors.torch.load_file(f) if os.path.exists(f) else torch.load(p + "
            "'/pytorch_model.bin', weights_only=True)",
            "w",
            "d['emb_layer.weight']",
            package="json, os, safetensors.torch, torch",
        ),
    ),
    ("saved_model.pb", "a model of TensorFlow", "write words and matrix to an .npz file"),
)


def file_of_other_tool(path: str, head: bytes) -> str | None:
    """Return the tool that wrote a file, and the remedy; None if it may be vectors.

    head: its first bytes, unpacked.
    """
    if head.startswith(b"\x93NUMPY"):
        return pickled_arrays(path) if re.match(rb".{10,12}\{'descr': '\|O'", head, re.DOTALL) else _array_alone(path)
    for pattern, description, remedy in _COMPILED:
        if pattern.match(head):
            return f"{description}; {with_paths(remedy, path) if remedy else _folder_of(path)}"
    if _is_binary_glove(head):
        return "numbers without words, as GloVe's vectors.bin has; give vectors.txt (glove -binary 2 writes both)"
    return None


def folder_of_other_tool(path: str) -> str | None:
    """Return the tool that wrote a folder, unless it is a Hugging Face model, and the remedy; None if it may be one."""
    for name, description, remedy in _FOLDERS:
        if next(Path(path).glob(name), None):
            return f"{description}; {with_paths(remedy, path)}"
    return None


def _folder_of(path: str) -> str:
    """Return the remedy for the weights of a model without its words."""
    folder = os.path.dirname(path) or "."
    if os.path.isfile(os.path.join(folder, "config.json")):
        return f"give the folder, where its tokenizer is: {folder}"
    return "give the folder of the model, with its tokenizer"


def pickled_arrays(path: str, names: Sequence[str] = ()) -> str:
    """Describe a file of NumPy with Python objects, with the remedy. names: arrays of an .npz file."""
    code = "d = numpy.load({path!r}, allow_pickle=True, encoding='bytes')"
    if names:
        code += f"; d = [d[n][()] for n in {literal([*names])}]; d = d[0] if len(d) == 1 else d"
    else:
        code += "[()]"
    line = npz_line(f"{code}; {PAIR}", "w", "m")
    return f"Python objects that NumPy has pickled; {_PICKLED}{with_paths(line, path, '.words.npz')}"


def _array_alone(path: str) -> str:
    """Describe a .npy file; gensim puts one next to a file of its own."""
    main = re.sub(r"(\.wv)?(\.vectors\w*|\.syn0\w*)?\.npy$", "", path)
    if main != path and os.path.isfile(main):
        return f"the array of gensim's {main}; {with_paths(_GENSIM, main)}"
    folder = os.path.dirname(path) or "."
    if os.path.isfile(os.path.join(folder, "key2row")):
        return f"the array of spaCy's vectors in {folder}; give the folder"
    line = npz_line(_READ_WORDS, "w", "numpy.load({path!r})")
    return f"a NumPy array without words; with a file of one word per row, {with_paths(line, path)}"


def _is_binary_glove(head: bytes) -> bool:
    """Return True for nothing but float64 numbers of the size of weights; other bytes are hardly ever such numbers."""
    numbers = [number for (number,) in struct.iter_unpack("<d", head[: min(len(head), 4096) // 8 * 8])]
    return len(numbers) > 1 and all(1e-9 < abs(number) < 1e3 for number in numbers)


def arrays_of_other_tool(path: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Describe an .npz file without `words` and `matrix`, with the remedy."""
    description = f"no arrays `words` and `matrix`, it holds {', '.join(arrays) or 'nothing'}"
    matrices = [name for name, array in arrays.items() if array.ndim == 2 and array.dtype.kind == "f"]
    matrix = max(matrices, key=lambda name: arrays[name].size, default="MATRIX")
    words = next((name for name, array in arrays.items() if array.ndim == 1 and array.dtype.kind in "US"), "WORDS")
    load, words = "a = numpy.load({path!r})", f"a[{literal(words)}]"
    if marian := next((name for name in matrices if re.fullmatch(r"(encoder_|decoder_)?Wemb(_all|_dec)?", name)), None):
        description = f"a model of Marian or Nematus ({description}), whose words are in its vocabulary (.yml, .json)"
        load, matrix, words = f"{load}; v = yaml.safe_load(open('VOCABULARY'))", marian, "sorted(v, key=v.get)"
    line = npz_line(load, words, f"a[{literal(matrix)}]", package="yaml" if marian else "")
    return f"{description}; {with_paths(line, path, '.words.npz')}"


#: a line of MUSE's folder, where its class is
_MUSE = npz_line(
    "import src.dictionary as m; torch.serialization.add_safe_globals([m.Dictionary]); d = torch.load({path!r}, "
    "weights_only=True)",
    "[d['dico'].id2word[i] for i in range(len(d['dico'].id2word))]",
    "d['vectors']",
    "torch",
)


def refused_of_other_tool(path: str, message: str) -> str:
    """Return the message about a file of torch.save with objects that are not read, or the remedy for MUSE's."""
    if "src.dictionary.Dictionary" not in message:
        return message
    return f"{path}: vectors of MUSE (--export pth); use --export txt, or in MUSE's folder {with_paths(_MUSE, path)}"


#: reads NumPy's arrays, too, which torch.load refuses
_LOAD = "from embinit_fairseq.checkpoint_file import load_safely; d = load_safely({path!r})"


def words_with_matrix(path: str, content: Any) -> str | None:
    """Return the remedy for a file of torch.save with words and a matrix of as many rows, None for other files."""
    parts = list(_parts(content))
    matrices = {_shape(value)[0]: place for place, value in reversed(parts) if len(_shape(value)) == 2}
    for words, count in filter(None, (_words_in(*part) for part in parts)):
        if matrix := matrices.get(count):
            line = npz_line(_LOAD, words, f"torch.as_tensor({matrix}).detach().float().numpy()", "torch")
            return f"words and a matrix; {with_paths(line, path)}"
    return None


def state_of_other_tool(path: str, content: Any) -> str:
    """Describe a file of torch.save that is not a fairseq checkpoint, with the remedy."""
    if remedy := words_with_matrix(path, content):
        return remedy
    shapes = {len(_shape(value)) for value in content.values()} if isinstance(content, Mapping) else set()
    if shapes == {1}:
        line = npz_line(_LOAD, "list(d)", "[v.tolist() for v in d.values()]", "torch")
        return f"a dictionary of words and vectors; {with_paths(line, path)}"
    if 2 in shapes:
        return f"weights of a model (a state dict) without its words; {_folder_of(path)}"
    if len(_shape(content)) == 2:
        line = npz_line(f"{_LOAD}; {_READ_WORDS}", "w", "torch.as_tensor(d).detach().float().numpy()", "torch")
        return f"a matrix without words; with a file of one word per row, {with_paths(line, path)}"
    return "not a fairseq checkpoint (no 'model' in it); name a checkpoint*.pt that fairseq-train wrote"


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _parts(content: Any, place: str = "d", depth: int = 2) -> Iterator[tuple[str, Any]]:
    """Yield (code, value) for the items of a container, and of containers in it (Stanza's `vocab`)."""
    is_mapping = isinstance(content, Mapping)
    if depth and (is_mapping or isinstance(content, (tuple, list))) and not _words_in(place, content):
        for name, value in content.items() if is_mapping else enumerate(content):
            inner = f"{place}[{literal(name)}]"
            yield inner, value
            yield from _parts(value, inner, depth - 1)


def _words_in(place: str, value: Any) -> tuple[str, int] | None:
    """Return the code for the words of a value, and their number: a list, word -> row, or row -> word; else None."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(word, str) for word in value):
        return place, len(value)
    if not isinstance(value, Mapping) or not value:
        return None
    kinds = {(type(key), type(row)) for key, row in value.items()}
    if kinds == {(str, int)}:
        return f"sorted({place}, key={place}.get)", len(value)
    return (f"[{place}[i] for i in sorted({place})]", len(value)) if kinds == {(int, str)} else None
