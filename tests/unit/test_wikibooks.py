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

few = settings(max_examples=40, deadline=None)

ADDRESSES = {
    "at http://www.x.org/a?b=c#d, or": "at <url>, or",
    "HTTPS://X.ORG.": "<url>.",
    "(ftp://localhost/pub)": "(<url>)",
    "www.example.com/a.pdf!": "<url>!",
    "on amazon.com and bbc.co.uk": "on <url> and bbc.co.uk",  # known endings only, as in the authors' code
    "see en.wikipedia.org/wiki/X.": "see <url>.",
    "joe.smith+x@mail.example.co.uk; joe@example.com": "<email>; <email>",
    "the file read_me.TXT is": "the file <file> is",
    "archive.old.zip, song.mp3": "<file>, <file>",
    "the end.The U.S. pays 1.5 e.g. for Node.js, a.py": "the end.The U.S. pays 1.5 e.g. for Node.js, a.py",
    "<URL> and <unk>": "<url> and <unk>",
    "a < b > c, http": "a < b > c, http",
}
LINES = {
    "Mr. Smith's “well-known” plan… failed! DID It?": 'mr. smith \'s " well-known " plan ... failed !|did it ?',
    "Mail joe@x.org (or see www.x.org).": "mail <email> ( or see <url> ) .",
    "The <unk> won , <UNK> lost .": "the <unk> won , <unk> lost .",
    "`` No , '' he said -- and left .": '" no , " he said -- and left .',
    "tab\there \u200bsoft\u00adhyphen\ue000\x07": "tab here softhyphen",
    "* * * ! ?": "",
    "<s>a</s> &amp;": "< s > a < / s > & amp ;",  # fairseq's own symbols cannot come from the text
    "A" * 201 + " end": "<unk> end",
}


@pytest.fixture(scope="module")
def cleaner() -> cleaning.Cleaner:
    return cleaning.Cleaner()


def test_a_line_becomes_tokenised_sentences(cleaner: cleaning.Cleaner) -> None:
    """First its addresses and files become symbols."""
    for text, expected in ADDRESSES.items():
        assert "".join(map(cleaning.restore_symbols, cleaning.replace_patterns(text))) == expected
    for text, expected in LINES.items():
        assert "|".join(" ".join(sentence) for sentence in cleaner(text)) == expected


@pytest.mark.parametrize("piece", "a|a.|a@|a-|http://|www.|x.txt|a.b@|: |<|\"'|( |.".split("|"))
def test_noise_takes_no_more_than_linear_time(cleaner: cleaning.Cleaner, piece: str) -> None:
    start = time.process_time()
    cleaner(piece * (100_000 // len(piece)))
    assert time.process_time() - start < 3  # quadratic in any of the steps: minutes


def test_passages_for_validation_and_duplicates_are_cut_out_of_their_documents() -> None:
    lines = [(number, b"%d" % number) for number in range(450) if number != 120]
    # passages 7, 8, 9 and so on; every fifth is for validation, the first of them number 4
    found = list(cleaning.parts(lines, passage=7, valid_every=5))
    assert [split for split, _ in found] == ["train", "valid", "train"]
    assert [line for _, group in found for line in group] == [line for _, line in lines]
    assert found[1][1] == [b"%d" % number for number in range(200, 300)]
    documents = [[b"a", b"b", b"c"], [b"d", b"e"], [b"f"]]
    for unit, repeated, expected in (
        ("lines", {1, 3, 4}, [b"ac", b"", b"f"]),
        ("documents", {2}, [b"abc", b"de", b""]),
    ):
        left = list(cleaning.without_duplicates(iter(documents), repeated, unit))
        assert [size for size, _ in left] == [3, 2, 1]
        assert [b"".join(line for _, line in lines) for _, lines in left] == expected
        assert [number for number, _ in left[0][1]] == [0, 1, 2][:: 2 if unit == "lines" else 1]


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
    counts = (writer.stats[name] for name in ("documents_out_of_length", "<url>", "<unk>"))
    assert tuple(counts) == (2, 2, 1)


lengths = st.integers(0, 3) | st.integers(0, 299)
sentences = st.builds(lambda length, end: ["w"] * length + [end], lengths, st.sampled_from("w.!"))


@given(st.lists(sentences, max_size=12))
def test_joining_keeps_words_and_leaves_no_short_sentence_that_could_be_joined(parts: list[list[str]]) -> None:
    joined = encode.join_short(parts)
    assert [word for part in joined for word in part] == [word for part in parts for word in part]
    assert all(len(part) <= encode.LONGEST or part in parts for part in joined)
    for first, second in zip(joined, joined[1:]):
        assert min(len(first), len(second)) >= encode.SHORT or len(first) + len(second) > encode.LONGEST


def test_a_short_sentence_goes_to_the_shorter_neighbour() -> None:
    for text, expected in {
        "a|b b b b b b": "a b b b b b b",
        "a a a a a a|no .|b b b b b": "a a a a a a no .|b b b b b",  # behind a full stop: five words dearer
        "a a a a a .|no|b b b b b b b": "a a a a a .|no b b b b b b b",
        "a a a a a|no|b b b b b b": "a a a a a no|b b b b b b",
        "a a a a a|no|b b b b b": "a a a a a|no b b b b b",  # both alike: the following one
        "a|b|c": "a b c",
    }.items():
        joined = encode.join_short([part.split() for part in text.split("|")])
        assert "|".join(" ".join(part) for part in joined) == expected


def naive_documents(text: bytes) -> list[list[bytes]]:
    found: list[list[bytes]] = [[]]
    for line in text.split(b"\n"):
        if line.strip():
            found[-1].append(line.strip())
        elif found[-1]:
            found.append([])
    return [document for document in found if document]


@given(st.lists(st.text(alphabet="ab é", max_size=6), max_size=30).map(lambda lines: "\n".join(lines).encode()))
def test_blank_lines_separate_documents_and_reading_goes_on_behind_any(text: bytes) -> None:
    whole = list(split.documents(io.BytesIO(text)))
    expected = naive_documents(text)
    assert [lines for lines, _, _ in whole] == expected
    assert [lines for lines, _, _ in split.documents(io.BytesIO(text.replace(b"\n", b"\r\n")))] == expected
    for index, (_, _, offset) in enumerate(whole):
        assert [lines for lines, _, _ in split.documents(io.BytesIO(text), offset)] == expected[index + 1 :]


def test_long_documents_are_cut_at_lines_and_long_lines_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MAX_CHARS", 10)
    monkeypatch.setattr(split, "_MAX_LINE_BYTES", 40)
    text = "aaaa\nbbbb\ncccc\n\n" + "x" * 11 + "\n" + "y" * 95 + "\néééééééééé\n"
    found = list(split.documents(io.BytesIO(text.encode())))
    assert [lines for lines, _, _ in found] == [[b"aaaa", b"bbbb"], [b"cccc"], ["éééééééééé".encode()]]
    assert sum(too_long for _, too_long, _ in found) == 2
    assert found[-1][2] == len(text.encode())


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_packing_is_recognised_by_content_and_damage_is_named(pack, tmp_path: Path) -> None:
    path = tmp_path / "text.zip"  # the name says nothing
    path.write_bytes(pack(b"one\n\ntwo\n"))
    with split.open_input(path) as stream:
        assert [lines for lines, _, _ in split.documents(stream)] == [[b"one"], [b"two"]]
    packed = pack(bytes(np.random.default_rng(1).integers(0, 255, 5000, dtype=np.uint8)))
    damaged = [packed[: len(packed) // 2], packed[:100] + b"\x00" * 200 + packed[300:]]
    for content in damaged if pack is not bytes else ():
        path.write_bytes(content)
        with pytest.raises(SystemExit, match=r"text\.zip: damaged or incomplete"), split.open_input(path) as stream:
            list(split.documents(stream))
    with pytest.raises(SystemExit, match="nowhere: cannot be read"), split.open_input(tmp_path / "nowhere"):
        pass
    with pytest.raises(OSError, match="disk"), split.open_input(path):  # not the input's fault
        raise OSError(28, "no space left on disk")


def test_shards_hold_all_documents_in_order_and_a_stopped_split_goes_on(tmp_path: Path) -> None:
    generator, paths = np.random.default_rng(2), [tmp_path / "first", tmp_path / "second"]
    for path in paths:  # 30 documents of 1 to 250 lines
        lengths = generator.choice([1, 2, 5, 250], size=30, p=[0.4, 0.3, 0.2, 0.1])
        documents = ["\n".join(f"{path.name} {d} {line}" for line in range(n)) for d, n in enumerate(lengths)]
        path.write_text("\n\n".join(documents) + "\n")
    for size in (1, 700, 10**9):
        folder = tmp_path / str(size)
        split.split(paths, folder, size)
        records = split.read_records(folder)
        texts = [split.text_of(folder, shard) for shard in range(len(records))]
        found = [document for text in texts for document in duplicates.read_documents(text)]
        assert found == [document for path in paths for document in naive_documents(path.read_bytes())]
        assert records[-1]["next"]["passage"] == sum(-(-len(document) // split.PASSAGE_LINES) for document in found)
        assert sum(record["lines"] for record in records) == sum(map(len, found))
        assert (len(records) == 1) == (size == 10**9)
    whole = {path.name: path.read_bytes() for path in sorted((tmp_path / "700").iterdir())}
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
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


same = st.sampled_from([b"a b", b"A  B", b"ab", b"a\tb", "é".encode(), b"c"])
raw_lines = same | st.integers(0, 300).map(lambda number: b"%d" % number)
corpora = st.lists(st.lists(st.lists(raw_lines, min_size=1, max_size=9), max_size=9), min_size=1, max_size=4)


@few
@given(corpora, st.sampled_from(["lines", "documents"]), st.integers(1, 5))
def test_duplicates_equal_a_loop_over_the_corpus(tmp_path_factory, shards, unit: str, buckets: int) -> None:
    folder, seen, expected = tmp_path_factory.mktemp("duplicates"), set(), []
    for name in ("digests", "found"):
        (folder / name).mkdir()
    for number, shard in enumerate(shards):
        np.save(folder / "digests" / f"{number:05}.npy", duplicates.digests(iter(shard), unit))
        keys = [[b" ".join(line.lower().split()) for line in document] for document in shard]
        units = [key for document in keys for key in document] if unit == "lines" else [tuple(key) for key in keys]
        expected.append({number for number, key in enumerate(units) if key in seen or key in units[:number]})
        seen.update(units)
    for bucket in range(buckets):
        duplicates._write_bucket(bucket, buckets, folder / "digests", folder / "found")
    assert [duplicates.repeated_units(folder / "found", number) for number in range(len(shards))] == expected


counters = st.lists(st.dictionaries(st.text("abé𝒳﷐z", min_size=1, max_size=3), st.integers(1, 9)), max_size=9)


@few
@given(counters, st.integers(2, 4), st.integers(0, 40))
def test_counts_are_summed_and_the_most_frequent_found(tmp_path_factory, shards, at_once: int, wanted: int) -> None:
    folder = tmp_path_factory.mktemp("counts")
    expected: Counter[str] = Counter()
    for number, shard in enumerate(shards):
        words.write_counts(shard, folder / f"{number:05}.txt")
        expected.update(shard)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "MERGED_AT_ONCE", at_once)
        histogram = words.merge_files(sorted(folder.glob("0*.txt")), folder / "all.txt")
    assert list(words.read_counts(folder / "all.txt")) == sorted(expected.items())
    assert histogram == Counter(expected.values())
    chosen = words.MostFrequent(histogram, wanted)
    found = {word for word in sorted(expected) if chosen.takes(expected[word])}
    assert found == set(sorted(expected, key=lambda word: (-expected[word], word))[:wanted])


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


def test_pieces_are_those_of_subword_nmt_with_whole_symbols_and_few_are_remembered(codes: Path, monkeypatch) -> None:
    symbols = ["<url>", "<file>", "<email>", "<unk>"]
    with open(codes, encoding="utf-8") as file:
        bpe = BPE(file, glossaries=symbols)
    monkeypatch.setattr(encode, "REMEMBERED", 20)
    encoder = encode.Encoder(codes, None)
    for word in [*"lower lowest newer slower wider x".split(), *symbols, *(f"low{n}" for n in range(100)), *symbols]:
        assert encoder(word) == bpe.segment(word)
        assert len(encoder._known) <= 21
        assert len(encoder._bpe.cache) <= 21


def test_the_default_models_of_the_grid_are_those_of_the_paper() -> None:
    """How positions enter, whether with relative ones, [CLS] like any position: Ke et al. 2021."""
    pytest.importorskip("fairseq")
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.models import ARCH_MODEL_REGISTRY

    import embinit_fairseq.models.tupe  # noqa: F401  (registers)

    text = (Path(split.__file__).parent / "run.sh").read_text()
    found = {}
    for name, flags in re.findall(r'^  \[(\w+)\]="(--arch \w+\$SIZE\b[^"]*)"', text, re.MULTILINE):
        line = ["data", "--task", "masked_lm", *flags.replace("$SIZE", "tiny").split()]
        args = options.parse_args_and_arch(options.get_training_parser("masked_lm"), line)
        cfg = convert_namespace_to_omegaconf(args).model
        found[name] = (str(cfg.position_encoding), cfg.rel_pos, cfg.tupe_tie_cls)
        assert {flags.split()[1].replace("$SIZE", size) for size in ("base", "large")} <= set(ARCH_MODEL_REGISTRY)
    assert found == {
        "bert_a": ("added", False, False),
        "bert_r": ("relative", False, False),
        "bert_ad": ("four_terms", False, False),
        "tupe_a_tie_cls": ("untied", False, True),
        "tupe_a": ("untied", False, False),
        "tupe_r": ("untied", True, False),
    }
