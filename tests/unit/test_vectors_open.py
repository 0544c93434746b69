"""What a user may write where vectors are meant, and what is recognised there: FILE, `concat:A,B`, `avg:A,B`."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_files import numbers, write

from embinit_fairseq import bounded
from embinit_fairseq.errors import DimensionError, OptionError, VectorFileError
from embinit_fairseq.vectors import binary, compressed, torch_file
from embinit_fairseq.vectors.open import FORMATS, open_sources, open_vectors, parse_source, recognise
from embinit_fairseq.vectors.table import WIDEST
from embinit_fairseq.vectors.writers import write_npz, write_text


@pytest.mark.parametrize(
    ("head", "format"),
    [
        (b"a 0.1 0.2\n", "glove"),
        (b"2 3\na 1 2 3\nb 1 2 3\n", "word2vec"),
        (b"2 3\nnew york 1 2 3\nb 1 2 3\n", "word2vec"),
        (b"1 3\na " + np.float32([0.1, 0.2, 0.3]).tobytes() + b"\n", "word2vec_bin"),
        (np.int32(793712314).astype("<i4").tobytes() + bytes(60), "fasttext_bin"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02", "fairseq"),
    ],
)
def test_formats_are_recognised_by_their_heads(tmp_path, head, format):
    assert recognise(write(tmp_path / "v.any", head)) == format
    assert recognise(write(tmp_path / "v.gz", gzip.compress(head))) == format


def test_what_is_missing_or_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # it cannot be read twice, and would silently lose its beginning
    with pytest.raises(VectorFileError, match=r"pipe.*--embed-init-path"):
        open_vectors(str(tmp_path / "pipe"))
    path = write(tmp_path / "glove.6B.300d.txt", "a 1 2\n")
    with pytest.raises(VectorFileError, match=r"did you mean glove.6B.300d.txt.*--embed-init-path"):
        open_vectors(str(tmp_path / "glove.6b.300d.txt"))
    with pytest.raises(VectorFileError, match=r"folder .*nowhere does not exist"):
        open_vectors(str(tmp_path / "nowhere" / "v.txt"))
    with pytest.raises(OptionError, match=f"--embed-init-format glvoe.*{', '.join(FORMATS)}"):
        open_vectors(path, format="glvoe")


def test_the_limits_are_those_of_the_docs():
    """Tests make them small; docs/vectors.md says what they are."""
    assert (bounded.LONGEST_LINE, bounded.MOST_BLANK_LINES, WIDEST) == (1 << 20, 1_000_000, 65_536)
    assert (bounded.LARGEST_JSON, torch_file.LARGEST_PICKLE, compressed.UNPACKING) == (1 << 25, 1 << 25, 1 << 28)
    assert (compressed.LARGEST_CONTENTS, binary.LONGEST_WORD) == (1 << 24, 1 << 16)


# ---- several files


@pytest.mark.parametrize(
    ("text", "how", "unit", "files"),
    [
        ("v.txt", None, False, [("v.txt", None)]),
        ("a,b.txt", None, False, [("a,b.txt", None)]),  # one file: a comma is a comma
        ("concat:a,b", "concat", False, [("a", None), ("b", None)]),
        ("avg:a,b,c", "avg", False, [("a", None), ("b", None), ("c", None)]),
        ("avg-l2:a,b", "avg", True, [("a", None), ("b", None)]),
        ("concat-l2:x.zip:m.txt,b", "concat", True, [("x.zip:m.txt", None), ("b", None)]),
        ("concat:a,,1.txt,b,,,c", "concat", False, [("a,1.txt", None), ("b,", None), ("c", None)]),
        ("concat:glove=a,npz=b", "concat", False, [("a", "glove"), ("b", "npz")]),
        ("concat:x=a,b", "concat", False, [("x=a", None), ("b", None)]),
        ("./concat:a,b", None, False, [("./concat:a,b", None)]),
        ("concat:~/a,npz=~/b", "concat", False, [("/home/me/a", None), ("/home/me/b", "npz")]),
        ("~/a", None, False, [("/home/me/a", None)]),
    ],
)
def test_what_a_source_may_be(monkeypatch, text, how, unit, files):
    monkeypatch.setenv("HOME", "/home/me")
    spec = parse_source(text)
    assert (spec.how, spec.unit, list(spec.files), spec.paths) == (how, unit, files, [path for path, _ in files])
    assert spec.method == (how and text.split(":")[0])
    formats = [format or "glove" for _, format in files]  # a format for all is for the files that name none
    assert [format for _, format in parse_source(text, "glove").files] == formats


#: one that begins with a comma is written `./,`
NAMES = st.text("ab,=/.:", min_size=1, max_size=6).filter(lambda name: name[0] != ",")


@given(st.lists(NAMES, min_size=2, max_size=4), st.sampled_from(["concat", "avg-l2"]))
@settings(max_examples=40)
def test_names_with_commas_are_written_with_two(names, method):
    text = f"{method}:{','.join(name.replace(',', ',,') for name in names)}"
    spec = parse_source(text)
    assert spec.paths == names
    assert parse_source(spec.named(lambda path: path)) == spec


@pytest.mark.parametrize("text", ["concat:a", "concat:", "avg:a,", "concat-l2:,a", "avg:a,,b"])
def test_one_file_is_not_several(text):
    with pytest.raises(OptionError, match=f"--embed-init-path {text}: .*at least two"):
        parse_source(text)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """a.npz: 3 dimensions; b.txt: 2; c.npz: 3."""
    folder = tmp_path_factory.mktemp("files")
    write_npz(folder / "a.npz", ["w"], numbers(1, 3))
    write_text(folder / "b.txt", ["w"], numbers(1, 2))
    write_npz(folder / "c.npz", ["w"], numbers(1, 3))
    return {name: str(folder / file) for name, file in (("a", "a.npz"), ("b", "b.txt"), ("c", "c.npz"))}


def test_formats_of_their_own(files, tmp_path):
    path = write(tmp_path / "1", "2 2\nw1 3\n")  # words 2 and w1, or a header of two rows
    assert open_sources(parse_source(f"concat:glove={path},{files['b']}"))[0].dim == 1
    with pytest.raises(VectorFileError, match="1:1: "):
        open_sources(parse_source(f"concat:word2vec={path},{files['b']}"))
    with pytest.raises(VectorFileError, match=r"b\.txt"):
        open_sources(parse_source(f"concat:{files['a']},npz={files['b']}"))


@pytest.mark.parametrize(
    ("how", "names", "dim", "error", "parts"),
    [
        ("concat", "ab", 300, DimensionError, ("has 3 dim", "has 2 dim", "together 5", "--encoder-embed-dim 5")),
        ("avg", "ac", 300, DimensionError, ("has 3 dim", "expected 300", "--encoder-embed-dim 3")),
        *(("avg", "ab", dim, OptionError, ("has 3 dim", "has 2 dim", "concat:")) for dim in (None, 2, 3, 5)),
        ("concat", "ab", 5, None, ()),
        ("concat", "ac", 6, None, ()),
        ("avg", "ac", 3, None, ()),
    ],
)
def test_dimensions_of_several_files(files, how, names, dim, error, parts):
    spec = parse_source(f"{how}:{','.join(files[name] for name in names)}")
    if error is None:
        for given in (dim, None):
            assert [reader.path for reader in open_sources(spec, given)] == spec.paths
        return
    with pytest.raises(error) as caught:
        open_sources(spec, dim)
    for part in (*spec.paths, *parts):
        assert part in str(caught.value)
    if how == "avg" and error is DimensionError:
        assert "together" not in str(caught.value)
