"""scripts/wikibooks: what becomes of a line of text and of a document, against loops over the text; shards, duplicates,
counts of words, and what a stopped call leaves behind."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sacremoses")
pytest.importorskip("spacy")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe
from wikibooks import cleaning, duplicates, encode, split, words

from embinit_fairseq import files

# ---- lines and documents --------------------------------------------------------------------------------------------


def shown(text: str) -> str:
    return "".join(cleaning.restore_symbols(character) for character in text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at http://www.x.org/a?b=c#d, or", "at <url>, or"),
        ("HTTPS://X.ORG.", "<url>."),
        ("(ftp://localhost/pub)", "(<url>)"),
        ("www.example.com/a.pdf!", "<url>!"),
        ("on amazon.com and bbc.co.uk", "on <url> and bbc.co.uk"),  # known endings only, as in the authors' code
        ("see en.wikipedia.org/wiki/X.", "see <url>."),
        ("joe.smith+x@mail.example.co.uk;", "<email>;"),
        ("joe@example.com", "<email>"),
        ("the file read_me.TXT is", "the file <file> is"),
        ("archive.old.zip, song.mp3", "<file>, <file>"),
        ("the end.The U.S. pays 1.5 e.g. for Node.js", "the end.The U.S. pays 1.5 e.g. for Node.js"),
        ("a.py", "a.py"),  # a name has two letters at least
        ("<URL> and <unk>", "<url> and <unk>"),
        ("a < b > c, http", "a < b > c, http"),
    ],
)
def test_addresses_and_files_become_symbols(text: str, expected: str) -> None:
    assert shown(cleaning.replace_patterns(text)) == expected


@pytest.fixture(scope="module")
def cleaner() -> cleaning.Cleaner:
    return cleaning.Cleaner()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Mr. Smith's “well-known” plan… failed! DID It?",
            ['mr. smith \'s " well-known " plan ... failed !', "did it ?"],
        ),
        ("Mail joe@x.org (or see www.x.org).", ["mail <email> ( or see <url> ) ."]),
        ("The <unk> won , <UNK> lost .", ["the <unk> won , <unk> lost ."]),
        ("`` No , '' he said -- and left .", ['" no , " he said -- and left .']),
        ("tab\there \u200bsoft\u00adhyphen\ue000\x07", ["tab here softhyphen"]),
        ("* * * ! ?", []),
        ("<url>", ["<url>"]),
        ("<s>a</s> &amp;", ["< s > a < / s > & amp ;"]),  # fairseq's own symbols cannot come from the text
        ("A" * 201 + " end", ["<unk> end"]),
        ("", []),
    ],
)
def test_a_line_becomes_tokenised_sentences(cleaner: cleaning.Cleaner, line: str, expected: list[str]) -> None:
    assert [" ".join(sentence) for sentence in cleaner(line)] == expected


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60))
def test_tokens_are_lower_case_and_hold_no_blanks(cleaner: cleaning.Cleaner, line: str) -> None:
    for sentence in cleaner(line):
        assert sentence
        for token in sentence:
            assert token.split() == [token]
            assert token in (*cleaning.SYMBOLS, cleaning.UNKNOWN) or token not in ("<s>", "</s>", "<pad>", "<mask>")
            assert token == token.lower() or not token.isascii()  # a few letters change again when lowered twice


@pytest.mark.parametrize(
    "piece", ["a", "a.", "a@", "a-", "http://", "www.", "x.txt", "a.b@", ": ", "<", "\"'", "( ", "."]
)
def test_noise_takes_no_more_than_linear_time(cleaner: cleaning.Cleaner, piece: str) -> None:
    start = time.process_time()
    cleaner(piece * (100_000 // len(piece)))
    assert time.process_time() - start < 3  # quadratic in any of the steps: minutes


def test_passages_for_validation_are_cut_out_of_their_documents() -> None:
    lines = [(number, b"%d" % number) for number in range(450) if number != 120]
    # passages 7, 8, 9 and so on; every fifth is for validation, the first of them number 4
    found = list(cleaning.parts(lines, passage=7, valid_every=5))
    assert [split for split, _ in found] == ["train", "valid", "train"]
    assert [line for _, group in found for line in group] == [line for _, line in lines]
    assert found[1][1] == [b"%d" % number for number in range(200, 300)]


@pytest.mark.parametrize(("unit", "expected"), [("lines", [b"ac", b"", b"f"]), ("documents", [b"abc", b"de", b""])])
def test_duplicates_are_left_out(unit: str, expected: list[bytes]) -> None:
    documents = [[b"a", b"b", b"c"], [b"d", b"e"], [b"f"]]
    repeated = {1, 3, 4} if unit == "lines" else {2}
    found = list(cleaning.without_duplicates(iter(documents), repeated, unit))
    assert [size for size, _ in found] == [3, 2, 1]
    assert [b"".join(line for _, line in lines) for _, lines in found] == expected
    assert [number for number, _ in found[0][1]] == ([0, 2] if unit == "lines" else [0, 1, 2])


def test_documents_that_are_too_short_or_too_long_are_left_out(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(cleaning, "MAX_CHARS", 50)
    writer = cleaning.ShardWriter(tmp_path)
    for length in (3, 4, 10, 11):  # five characters a word
        writer.add("train", [["word"] * length])
    writer.add("valid", [["other", "<url>"] * 2, ["<unk>"]])
    writer.close()
    assert [len(line.split()) for line in (tmp_path / "train.txt").read_text().splitlines()] == [4, 0, 10, 0]
    assert (tmp_path / "valid.txt").read_text() == "other <url> other <url>\n<unk>\n\n"
    assert (tmp_path / "words.txt").read_text() == "word 14\n"  # neither symbols nor words of the validation text
    assert writer.stats["documents_out_of_length"] == 2
    assert (writer.stats["<url>"], writer.stats["<unk>"]) == (2, 1)


parts_of_documents = st.lists(
    st.integers(1, 300).flatmap(
        lambda n: st.sampled_from([["w"] * n, ["w"] * (n - 1) + ["."], ["w"] * min(n, 3), ["!"]])
    ),
    max_size=12,
)


@given(parts_of_documents)
def test_joining_keeps_words_and_leaves_no_short_sentence_that_could_be_joined(parts: list[list[str]]) -> None:
    joined = encode.join_short(parts)
    assert [word for part in joined for word in part] == [word for part in parts for word in part]
    assert all(len(part) <= encode.LONGEST or part in parts for part in joined)
    for first, second in zip(joined, joined[1:]):
        assert min(len(first), len(second)) >= encode.SHORT or len(first) + len(second) > encode.LONGEST


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b b b b b b", "a b b b b b b"),
        ("a a a a a a|no .|b b b b b", "a a a a a a no .|b b b b b"),  # behind a full stop: five words dearer
        ("a a a a a .|no|b b b b b b b", "a a a a a .|no b b b b b b b"),
        ("a a a a a a|no|b b b b b", "a a a a a a|no b b b b b"),
        ("a a a a a|no|b b b b b b", "a a a a a no|b b b b b b"),
        ("a a a a a|no|b b b b b", "a a a a a|no b b b b b"),  # both alike: the following one
        ("a|b|c", "a b c"),
    ],
)
def test_a_short_sentence_goes_to_the_shorter_neighbour(text: str, expected: str) -> None:
    joined = encode.join_short([part.split() for part in text.split("|")])
    assert "|".join(" ".join(part) for part in joined) == expected


# ---- shards and duplicates ------------------------------------------------------------------------------------------


line_texts = st.text(alphabet="ab é", min_size=0, max_size=6)
texts = st.lists(line_texts, max_size=30).map(lambda lines: "\n".join(lines).encode())


def naive_documents(text: bytes) -> list[list[bytes]]:
    found: list[list[bytes]] = [[]]
    for line in text.split(b"\n"):
        if line.strip():
            found[-1].append(line.strip())
        elif found[-1]:
            found.append([])
    return [document for document in found if document]


def read(text: bytes, offset: int = 0) -> list[list[bytes]]:
    return [lines for lines, _, _ in split.documents(io.BytesIO(text), offset)]


@given(texts)
def test_blank_lines_separate_documents(text: bytes) -> None:
    assert read(text) == naive_documents(text)
    assert read(text.replace(b"\n", b"\r\n")) == naive_documents(text)


@given(texts)
def test_reading_goes_on_behind_any_document(text: bytes) -> None:
    whole = list(split.documents(io.BytesIO(text)))
    for index, (_, _, offset) in enumerate(whole):
        assert read(text, offset) == [lines for lines, _, _ in whole[index + 1 :]]


def test_long_documents_are_cut_at_lines_and_long_lines_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MAX_CHARS", 10)
    monkeypatch.setattr(split, "_MAX_LINE_BYTES", 40)
    text = "aaaa\nbbbb\ncccc\n\n" + "x" * 11 + "\n" + "y" * 95 + "\néééééééééé\n"
    found = list(split.documents(io.BytesIO(text.encode())))
    assert [lines for lines, _, _ in found] == [[b"aaaa", b"bbbb"], [b"cccc"], ["éééééééééé".encode()]]
    assert sum(too_long for _, too_long, _ in found) == 2
    assert found[-1][2] == len(text.encode())


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_packing_is_recognised_by_content(pack, tmp_path: Path) -> None:
    path = tmp_path / "text.zip"  # the name says nothing
    path.write_bytes(pack(b"one\n\ntwo\n"))
    with split.open_input(path) as stream:
        assert [lines for lines, _, _ in split.documents(stream)] == [[b"one"], [b"two"]]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_damaged_and_missing_files_are_named(pack, tmp_path: Path) -> None:
    path = tmp_path / "text"
    packed = pack(bytes(np.random.default_rng(1).integers(0, 255, 5000, dtype=np.uint8)))
    for damaged in (packed[: len(packed) // 2], packed[:100] + b"\x00" * 200 + packed[300:]):
        path.write_bytes(damaged)
        with pytest.raises(SystemExit, match="text: damaged or incomplete"), split.open_input(path) as stream:
            list(split.documents(stream))
    with pytest.raises(SystemExit, match="nowhere: cannot be read"), split.open_input(tmp_path / "nowhere"):
        pass
    path.write_bytes(b"text\n")
    with pytest.raises(OSError, match="disk"), split.open_input(path):  # not the input's fault
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


same = st.sampled_from([b"a b", b"A  B", b"ab", b"a\tb", "é".encode(), b"c"])
raw_lines = same | st.integers(0, 300).map(lambda number: b"%d" % number)
corpora = st.lists(st.lists(st.lists(raw_lines, min_size=1, max_size=9), max_size=9), min_size=1, max_size=4)


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


# ---- words and pieces -----------------------------------------------------------------------------------------------

counters = st.lists(st.dictionaries(st.text("abé𝒳﷐z", min_size=1, max_size=3), st.integers(1, 9)), max_size=9)


@settings(max_examples=40, deadline=None)
@given(counters, st.integers(2, 4))
def test_merged_files_are_the_sum_of_all(tmp_path_factory, shards: list[dict[str, int]], at_once: int) -> None:
    folder = tmp_path_factory.mktemp("counts")
    for number, shard in enumerate(shards):
        words.write_counts(shard, folder / f"{number:05}.txt")
    expected: Counter[str] = Counter()
    for shard in shards:
        expected.update(shard)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "MERGED_AT_ONCE", at_once)
        histogram = words.merge_files(sorted(folder.glob("0*.txt")), folder / "all.txt")
    found = list(words.read_counts(folder / "all.txt"))
    assert found == sorted(expected.items())
    assert histogram == Counter(expected.values())


@given(st.dictionaries(st.text("abcd", min_size=1, max_size=3), st.integers(1, 4)), st.integers(0, 40))
def test_the_most_frequent_words_are_those_of_a_sorted_list(counts: dict[str, int], wanted: int) -> None:
    chosen = words.MostFrequent(Counter(counts.values()), wanted)
    found = {word for word in sorted(counts) if chosen.takes(counts[word])}
    assert found == set(sorted(counts, key=lambda word: (-counts[word], word))[:wanted])


def test_rare_words_are_unknown_and_bpe_learns_from_frequent_ones(tmp_path: Path, monkeypatch) -> None:
    counts = {f"w{number:03}": 1 + 1000 // (number + 1) for number in range(100)}
    (tmp_path / "clean" / "00000").mkdir(parents=True)
    words.write_counts(counts, tmp_path / "clean" / "00000" / "words.txt")
    monkeypatch.setattr(sys, "argv", ["words", "--work", str(tmp_path), "--frequent", "0.219", "--bpe-words", "5"])
    words.main()
    known = words.WordSet(tmp_path / "words" / "frequent.npy")
    assert {word for word in counts if word in known} == {f"w{number:03}" for number in range(21)}
    assert "other" not in known
    assert dict(words.read_counts(tmp_path / "words" / "bpe.txt")) == {f"w{n:03}": counts[f"w{n:03}"] for n in range(5)}
    stats = json.loads((tmp_path / "words" / "stats.json").read_text())
    assert stats == {"word_types": 100, "words": sum(counts.values()), "frequent_types": 21}


@pytest.fixture(scope="module")
def codes(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bpe") / "codes"
    with open(path, "w", encoding="utf-8") as file:
        learn_bpe(io.StringIO("lower lowest newer newest wide\n" * 5), file, 12)
    return path


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from("lower lowest newer slower wider x <url> <file> <email> <unk>".split()), min_size=1))
def test_pieces_are_those_of_subword_nmt_with_whole_symbols(codes: Path, sentence: list[str]) -> None:
    with open(codes, encoding="utf-8") as file:
        bpe = BPE(file, glossaries=["<url>", "<file>", "<email>", "<unk>"])
    encoder = encode.Encoder(codes, None)
    assert " ".join(map(encoder, sentence)) == bpe.segment(" ".join(sentence))


def test_the_memory_of_words_is_bounded(codes: Path, monkeypatch) -> None:
    monkeypatch.setattr(encode, "REMEMBERED", 20)
    encoder, fresh = encode.Encoder(codes, None), encode.Encoder(codes, None)
    for number in range(100):
        assert encoder(f"low{number}") == fresh(f"low{number}")
        assert len(encoder._known) <= 21
        assert len(encoder._bpe.cache) <= 21
    assert encoder("<url>") == "<url>"


def test_a_shard_is_encoded_document_by_document(codes: Path, tmp_path: Path) -> None:
    texts = {"train": "the lower\nwidest of lower lower wide\n\nrare <url>\n\n", "valid": "newest\n\n"}
    shard = tmp_path / "clean" / "00007"
    shard.mkdir(parents=True)
    for part, content in texts.items():
        (shard / f"{part}.txt").write_text(content)
    digests = np.array([words._digest(word) for word in ("lower", "wide", "newest")], dtype=np.uint64)
    np.save(tmp_path / "frequent.npy", np.sort(digests))
    encode.encode_shard(shard, tmp_path / "encoded", codes, tmp_path / "frequent.npy")
    output = tmp_path / "encoded" / "00007"
    encoder = encode.Encoder(codes, tmp_path / "frequent.npy")
    assert encoder("rare") == "<unk>"
    for part, content in texts.items():
        documents = [[line.split() for line in part.splitlines()] for part in content.split("\n\n") if part]
        lines = [
            [" ".join(map(encoder, sentence)) for sentence in encode.join_short(document)] for document in documents
        ]
        assert (output / f"{part}.txt").read_text() == "".join("\n".join(part) + "\n\n" for part in lines)
    tokens = (output / "train.txt").read_text().split()
    assert dict(words.read_counts(output / "symbols.txt")) == Counter(tokens)
    stats = json.loads((output / "stats.json").read_text())
    assert (stats["train_documents"], stats["train_sentences"], stats["train_tokens"]) == (2, 2, len(tokens))
    assert stats["train_unknown"] == 4


# ---- models ---------------------------------------------------------------------------------------------------------

#: name -> (how positions enter, with relative ones, [CLS] like any position), by Ke et al. 2021
MODELS = {
    "bert_a": ("added", False, False),
    "bert_r": ("relative", False, False),
    "bert_ad": ("four_terms", False, False),
    "tupe_a_tie_cls": ("untied", False, True),
    "tupe_a": ("untied", False, False),
    "tupe_r": ("untied", True, False),
}


def test_the_default_models_of_the_grid_are_those_of_the_paper() -> None:
    pytest.importorskip("fairseq")
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.models import ARCH_MODEL_REGISTRY

    import embinit_fairseq.models.tupe  # noqa: F401  (registers)

    text = (Path(split.__file__).parent / "run.sh").read_text()
    found = dict(re.findall(r'^  \[(\w+)\]="(--arch \w+\$SIZE\b[^"]*)"', text, re.MULTILINE))
    assert list(found) == list(MODELS)
    for name, flags in found.items():
        words = ["data", "--task", "masked_lm", *flags.replace("$SIZE", "tiny").split()]
        args = options.parse_args_and_arch(options.get_training_parser("masked_lm"), words)
        cfg = convert_namespace_to_omegaconf(args).model
        assert (str(cfg.position_encoding), cfg.rel_pos, cfg.tupe_tie_cls) == MODELS[name]
        assert {flags.split()[1].replace("$SIZE", size) for size in ("base", "large")} <= set(ARCH_MODEL_REGISTRY)
