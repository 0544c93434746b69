"""scripts/wikibooks: reading documents, cutting them into shards, finding duplicates, against loops over the text."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from wikibooks import duplicates, inputs, split

from embinit_fairseq import files

words = st.text(alphabet="ab é", min_size=0, max_size=6)
texts = st.lists(words, max_size=30).map(lambda lines: "\n".join(lines).encode())


def naive_documents(text: bytes) -> list[list[bytes]]:
    found: list[list[bytes]] = [[]]
    for line in text.split(b"\n"):
        if line.strip():
            found[-1].append(line.strip())
        elif found[-1]:
            found.append([])
    return [document for document in found if document]


def read(text: bytes, offset: int = 0) -> list[list[bytes]]:
    return [lines for lines, _, _ in inputs.documents(io.BytesIO(text), offset)]


@given(texts)
def test_blank_lines_separate_documents(text: bytes) -> None:
    assert read(text) == naive_documents(text)
    assert read(text.replace(b"\n", b"\r\n")) == naive_documents(text)


@given(texts)
def test_reading_goes_on_behind_any_document(text: bytes) -> None:
    whole = list(inputs.documents(io.BytesIO(text)))
    for index, (_, _, offset) in enumerate(whole):
        assert read(text, offset) == [lines for lines, _, _ in whole[index + 1 :]]


def test_long_documents_are_cut_at_lines_and_long_lines_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_CHARS", 10)
    monkeypatch.setattr(inputs, "_MAX_LINE_BYTES", 40)
    text = "aaaa\nbbbb\ncccc\n\n" + "x" * 11 + "\n" + "y" * 95 + "\néééééééééé\n"
    found = list(inputs.documents(io.BytesIO(text.encode())))
    assert [lines for lines, _, _ in found] == [[b"aaaa", b"bbbb"], [b"cccc"], ["éééééééééé".encode()]]
    assert sum(too_long for _, too_long, _ in found) == 2
    assert found[-1][2] == len(text.encode())


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_packing_is_recognised_by_content(pack, tmp_path: Path) -> None:
    path = tmp_path / "text.zip"  # the name says nothing
    path.write_bytes(pack(b"one\n\ntwo\n"))
    with inputs.open_input(path) as stream:
        assert [lines for lines, _, _ in inputs.documents(stream)] == [[b"one"], [b"two"]]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_damaged_and_missing_files_are_named(pack, tmp_path: Path) -> None:
    path = tmp_path / "text"
    packed = pack(bytes(np.random.default_rng(1).integers(0, 255, 5000, dtype=np.uint8)))
    for damaged in (packed[: len(packed) // 2], packed[:100] + b"\x00" * 200 + packed[300:]):
        path.write_bytes(damaged)
        with pytest.raises(SystemExit, match="text: damaged or incomplete"), inputs.open_input(path) as stream:
            list(inputs.documents(stream))
    with pytest.raises(SystemExit, match="nowhere: cannot be read"), inputs.open_input(tmp_path / "nowhere"):
        pass
    path.write_bytes(b"text\n")
    with pytest.raises(OSError, match="disk"), inputs.open_input(path):  # not the input's fault
        raise OSError(28, "no space left on disk")


def corpus(tmp_path: Path) -> list[Path]:
    """Two files, 60 documents of 1 to 250 lines with numbered words."""
    generator, paths = np.random.default_rng(2), [tmp_path / "first", tmp_path / "second"]
    for path in paths:
        lengths = generator.choice([1, 2, 5, 250], size=30, p=[0.4, 0.3, 0.2, 0.1])
        documents = ["\n".join(f"{path.name} {d} {line}" for line in range(n)) for d, n in enumerate(lengths)]
        path.write_text("\n\n".join(documents) + "\n")
    return paths


def shards_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("size", [1, 500, 3000, 10**9])
def test_shards_hold_all_documents_in_order(size: int, tmp_path: Path) -> None:
    paths = corpus(tmp_path)
    split.split(paths, tmp_path / "raw", size)
    records = split.read_records(tmp_path / "raw")
    found = [
        document
        for shard in range(len(records))
        for document in duplicates.read_documents(split.text_of(tmp_path / "raw", shard))
    ]
    assert found == [document for path in paths for document in naive_documents(path.read_bytes())]
    passages = [-(-len(document) // split.PASSAGE_LINES) for document in found]
    assert records[-1]["next"]["passage"] == sum(passages)
    assert sum(record["lines"] for record in records) == sum(map(len, found))
    assert (len(records) == 1) == (size == 10**9)


def test_a_stopped_split_goes_on_where_it_was(tmp_path: Path) -> None:
    paths = corpus(tmp_path)
    split.split(paths, tmp_path / "whole", 700)
    whole = shards_of(tmp_path / "whole")
    for kept in range(len(whole) // 2):
        folder = tmp_path / f"stopped{kept}"
        folder.mkdir()
        for name in list(whole)[: 2 * kept]:
            (folder / name).write_bytes(whole[name])
        # killed between a shard and its record, and in the middle of the next shard
        split.text_of(folder, kept).write_bytes(b"anything")
        if 2 * kept + 2 < len(whole):
            files._temporary(split.text_of(folder, kept + 1)).write_bytes(b"half")
        split.split(paths, folder, 700)
        assert shards_of(folder) == whole


def test_no_input_for_validation_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("one\n\ntwo\n")
    arguments = ["--input", str(tmp_path / "text"), "--output", str(tmp_path / "raw")]
    monkeypatch.setattr(sys, "argv", ["split", *arguments, "--valid-every", "3"])
    with pytest.raises(SystemExit, match=r"only 2 passages.*--valid-every than 3"):
        split.main()
    monkeypatch.setattr(sys, "argv", ["split", *arguments, "--valid-every", "2"])
    split.main()
    assert (tmp_path / "raw" / "complete").is_file()


same = st.sampled_from([b"a b", b"A  B", b"ab", b"a\tb", "é".encode(), b"c"])
lines = same | st.integers(0, 300).map(lambda number: b"%d" % number)
corpora = st.lists(st.lists(st.lists(lines, min_size=1, max_size=9), max_size=9), min_size=1, max_size=4)


def naive_duplicates(shards: list[list[list[bytes]]], unit: str) -> list[set[int]]:
    seen, repeated = set(), []
    for shard in shards:
        keys = [[b" ".join(line.lower().split()) for line in document] for document in shard]
        units = [key for document in keys for key in document] if unit == "lines" else [tuple(key) for key in keys]
        repeated.append({number for number, key in enumerate(units) if key in seen or key in units[:number]})
        seen.update(units)
    return repeated


@settings(max_examples=60, deadline=None)
@given(corpora, st.sampled_from(["lines", "documents"]), st.integers(1, 5))
def test_duplicates_equal_a_loop_over_the_corpus(tmp_path_factory, shards, unit: str, buckets: int) -> None:
    folder = tmp_path_factory.mktemp("duplicates")
    (folder / "digests").mkdir()
    (folder / "found").mkdir()
    for number, shard in enumerate(shards):
        np.save(folder / "digests" / f"{number:05}.npy", duplicates.digests(iter(shard), unit))
    for bucket in range(buckets):
        duplicates._write_bucket(bucket, buckets, folder / "digests", folder / "found")
    found = [duplicates.repeated_units(folder / "found", number) for number in range(len(shards))]
    assert found == naive_duplicates(shards, unit)
