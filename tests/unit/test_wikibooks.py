"""Compare the steps of scripts/wikibooks with loops over the text: layouts, shards, cleaning, duplicates, words."""

import bz2
import gzip
import io
import itertools
import json
import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sacremoses")
pytest.importorskip("spacy")
from shards import counts
from shards.engines import Engine
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe
from wikibooks import clean_shards, duplicates, encode_shards, inputs, near, split, synthetic

from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import read_json, write_json
from embinit_fairseq.vocab.cleaning import replace_patterns, restore
from embinit_fairseq.vocab.preparation_steps import Preparation

ADDRESSES = {
    "at http://www.x.org/a?b=c#d, or": "at <url>, or",
    "HTTPS://X.ORG.": "<url>.",
    "(ftp://localhost/pub), www.example.com/a.pdf!": "(<url>), <url>!",
    "on amazon.com and bbc.co.uk": "on <url> and bbc.co.uk",  # known endings only, as in the authors' code
    "see en.wikipedia.org/wiki/X.": "see <url>.",
    "joe.smith+x@mail.example.co.uk; joe@example.com": "<email>; <email>",
    "archive.old.zip, read_me.TXT": "<file>, <file>",
    "the end.The U.S. pays 1.5 e.g. for Node.js, a.py": "the end.The U.S. pays 1.5 e.g. for Node.js, a.py",
    "<URL> and <unk>, a < b > c, http": "<url> and <unk>, a < b > c, http",
}
LINES = {
    "Mr. Smith's “well-known” plan… failed! DID It?": 'mr. smith \'s " well-known " plan ... failed !|did it ?',
    "The <unk> won , <UNK> lost .": "the <unk> won , <unk> lost .",
    "`` No , '' he said -- and left .": '" no , " he said -- and left .',
    "tab\there \u200bsoft\u00adhyphen\ue000\x07": "tab here softhyphen",
    "<s>a</s> &amp;": "< s > a < / s > & amp ;",  # fairseq's own symbols cannot come from the text
    "A" * 201 + " end": "<unk> end",
    "我喜欢，" * 60: " ".join("我喜欢，" * 60),  # no noise, but a text without spaces
}


@pytest.fixture(scope="module")
def cleaner() -> Preparation:
    return clean_shards.cleaner()


def test_a_line_becomes_tokenised_sentences(cleaner: Preparation) -> None:
    """First its addresses and files become symbols."""
    for text, expected in ADDRESSES.items():
        assert "".join(map(restore, replace_patterns(text))) == expected
    for text, expected in LINES.items():
        assert "|".join(" ".join(sentence) for sentence in cleaner.sentences(text)) == expected


def test_documents_that_are_too_short_or_too_long_are_left_out(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(clean_shards, "MAX_CHARS", 50)
    writer = clean_shards.ShardWriter(tmp_path)
    for length in (3, 4, 10, 11):  # five characters a word
        writer.add("train", [["word"] * length])
    writer.add("valid", [["other", "<url>"] * 2, ["<unk>"]])
    writer.close()
    assert [len(line.split()) for line in (tmp_path / "train.txt").read_text().splitlines()] == [4, 0, 10, 0]
    assert (tmp_path / "valid.txt").read_text() == "other <url> other <url>\n<unk>\n\n"
    assert (tmp_path / "words.txt").read_text() == "word 14\n"  # neither symbols nor words of the validation text
    assert [writer.stats[name] for name in ("documents_out_of_length", "<url>", "<unk>")] == [2, 2, 1]


lengths = st.integers(0, 3) | st.integers(0, 299)
sentences = st.builds(lambda length, end: ["w"] * length + [end], lengths, st.sampled_from("w.!"))


@settings(max_examples=40)
@given(st.lists(sentences, max_size=12))
def test_joining_keeps_words_and_leaves_no_short_sentence_that_could_be_joined(parts: list[list[str]]) -> None:
    joined = encode_shards.join_short(parts)
    assert [word for part in joined for word in part] == [word for part in parts for word in part]
    assert all(len(part) <= encode_shards.LONGEST or part in parts for part in joined)
    for first, second in zip(joined, joined[1:]):
        assert min(len(first), len(second)) >= encode_shards.SHORT or len(first) + len(second) > encode_shards.LONGEST


def test_a_short_sentence_joins_the_neighbour_of_the_shorter_whole() -> None:
    """The next one if both are equal; a full stop between the two counts as five words."""
    for text, expected in {
        "a a a a a a a a|b b|c c c c c c": "a a a a a a a a|b b c c c c c c",
        "a a a a a a|b b|c c c c c c c c": "a a a a a a b b|c c c c c c c c",
        "a a a a a a|b b|c c c c c c": "a a a a a a|b b c c c c c c",
        "a a a a a a|b .|c c c c c c": "a a a a a a b .|c c c c c c",
        "a a a a a .|b b|c c c c c c c c": "a a a a a .|b b c c c c c c c c",
    }.items():
        assert encode_shards.join_short([part.split() for part in text.split("|")]) == [
            p.split() for p in expected.split("|")
        ]


def test_long_documents_are_divided_at_lines_and_long_lines_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MAX_CHARS", 10)
    monkeypatch.setattr(split, "_MAX_LINE_BYTES", 40)
    monkeypatch.setattr(inputs, "MAX_JSON_BYTES", 40)
    text = "aaaa\nbbbb\ncccc\n\n" + "x" * 11 + "\n" + "y" * 95 + "\néééééééééé\n"
    records = "".join(json.dumps({"text": text}) + "\n" for text in ("aaaa\nbbbb\ncccc", "x" * 95, "\u00e9"))
    for content, last, left_out in ((text, "é" * 10, 2), (records, "é", 1)):
        found = list(split.documents(io.BytesIO(content.encode())))
        assert [lines for lines, _ in found] == [[b"aaaa", b"bbbb"], [b"cccc"], [last.encode()]]
        assert sum(too_long for _, too_long in found) == left_out


def zstd(content: bytes) -> bytes:
    return pytest.importorskip("zstandard").compress(content)


def parquet(content: bytes, column: str = "text") -> bytes:
    pyarrow, stream = pytest.importorskip("pyarrow"), io.BytesIO()
    table = pyarrow.table({column: content.decode("latin-1").strip().split("\n\n")})
    pytest.importorskip("pyarrow.parquet").write_table(table, stream)
    return stream.getvalue()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd, parquet])
def test_packing_is_recognised_by_content_and_damage_is_named(pack, tmp_path: Path) -> None:
    path = tmp_path / "text.zip"  # the name says nothing
    path.write_bytes(pack(b"one\n\ntwo\n") if pack is parquet else pack(b"one\n\n") + pack(b"two\n"))
    with split.open_input(path) as stream:
        assert [lines for lines, _ in split.documents(stream)] == [[b"one"], [b"two"]]
    damaged = pack(bytes(np.random.default_rng(1).integers(0, 255, 5000, dtype=np.uint8)))[:2500]
    if pack is not bytes:
        path.write_bytes(damaged)
        with pytest.raises(SystemExit, match=r"text\.zip: damaged or incomplete"), split.open_input(path) as stream:
            list(split.documents(stream))
    with pytest.raises(OSError, match="disk"), split.open_input(path):  # not the input's fault
        raise OSError(28, "no space left on disk")
    if pack is parquet:
        path.write_bytes(parquet(b"A text.", "content"))
        with (
            pytest.raises(SystemExit, match="columns content; expected a column text"),
            split.open_input(path) as stream,
        ):
            list(split.documents(stream))


def run_steps(work: Path, *steps) -> None:
    Engine("pool", 1, work / "logs", 1, {}).run(steps)


def raw_shards(work: Path, number: int) -> list[Path]:
    """The places of the texts of raw shards, with their records."""
    texts = [work / "raw" / "00000" / f"{shard}.txt" for shard in range(number)]
    texts[0].parent.mkdir(parents=True)
    write_json(texts[0].parent / "shards.json", [{"text": text.name, "bytes": 1, "passages": 1} for text in texts])
    return texts


TEXTS = ["A title\nIt's 5 < 6.", "", "Ünïcode “quotes”.\n\nA second paragraph.", "x"]
DOCUMENTS = [[b"A title", b"It's 5 < 6."], ["Ünïcode “quotes”.".encode(), b"A second paragraph."], [b"x"]]
RECORDS = [{"id": number, "text": text, "url": None} for number, text in enumerate(TEXTS)]
PARAGRAPHS = [text.replace("\n\n", "\n").replace("<", "&lt;").replace("Ü", "&Uuml;") for text in TEXTS]
LAYOUTS = {
    "text": "\n\n".join(PARAGRAPHS),
    "Windows": "\r\n\r\n".join(text.replace("\n", "\r\n") for text in PARAGRAPHS) + "\r\n",
    "JSON lines": "".join(json.dumps(record) + "\n" for record in RECORDS),
    "UTF-8 and null": "\n\n".join(json.dumps(record, ensure_ascii=False) for record in [*RECORDS, {"text": None}]),
    "an indented list": json.dumps(RECORDS, indent=1),
    "doc": "".join(f'<doc id="1" title="A title">\n{text}\n\n</doc>\n' for text in TEXTS).replace("ï", "&amp;iuml;"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_layouts_give_the_same_documents(layout: str) -> None:
    for byte_order_mark in ("", "\ufeff"):
        stream = io.BytesIO((byte_order_mark + LAYOUTS[layout]).encode())
        inputs.check_text(stream.getvalue())
        assert [lines for lines, _ in split.documents(stream)] == DOCUMENTS


ENTITIES = {
    "&nbsp;&#8217;&#x2019;&lt;&amp;&eacute &hellip;": "\xa0’’<&é …",
    "AT&amp;T, R&D, Q&A; x&y; &nosuch; &#99999999;": "AT&T, R&D, Q&A; x&y; &nosuch; &#99999999;",
    "&amp;nbsp;&amp;amp;lt;br&amp;gt; &amp;amp; &amp;copied": "\xa0<br> & &copied",
    "a&notes b&copy=1 &amp &#10;": "a&notes b&copy=1 &  ",
    "no entity": "no entity",
}


def test_entities_become_characters_once_and_twice_escaped() -> None:
    for text, expected in ENTITIES.items():
        assert inputs.unescape(text.encode()).decode() == expected
    assert inputs.unescape(b"\xff&lt;") == b"\xff<"  # what is no UTF-8 is counted later


#: content -> what is named, and the remedy
NO_TEXT = {
    b"PK\x03\x04\0": ("zip", "unzip"),
    b"ARROW1\0\0": ("Arrow", "Parquet"),
    b"name".ljust(257, b"\0") + b"ustar": ("tar", "tar -x"),
    b"\xef\xbb\xbf<?xml version='1.0'?>": ("XML", "wikiextractor"),
    b"<!DOCTYPE html>\n": ("HTML", "trafilatura"),
    "text".encode("utf-16"): ("UTF-16", "iconv"),
    "Größe\n".encode("latin-1") * 3: ("3 of the first 3", "iconv"),
    b"one\rtwo\r": ("CR", "tr "),
    b"\x7fELF\0": ("binary", "UTF-8"),
    b'{"content": "A text."}\n': ("content", "jq"),
    b'{"text": ["A text."]}\n': ("text", "jq"),
    b'[{"text": "A text."}, 7]': ("int", "jq"),
    b'{"text": "A text."}\n{"text": "cut\n': ("cut", "jq"),
    rb'"A \"text\".\nIt goes on."' + b'\n"A line."\n': ("1 of the first 2 lines have JSON", "jq"),
    b"A <b>word</b>.\n\nA word.\n": ("1 of the first 2 lines have tags (</b>)", "sed"),
    b"A [[word|form]] of {{x}}.\n": ("wiki markup ([[word|form]])", "wikiextractor"),
    b'id,text\n1,"One, two\nand three."\n2,Four.\n': ("CSV table of 2 columns (id, text)", "JSON lines"),
    b'label\ttext\n0\t"One\n1\tTwo.\n': ("TSV table of 2 columns (label, text)", "JSON lines"),
}


@pytest.mark.parametrize("content", NO_TEXT)
def test_what_is_no_text_is_named_with_the_remedy(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(SystemExit) as refused:
        split.check_input(path)
    for part in (f"{path}: ", *NO_TEXT[content]):
        assert part in str(refused.value)
    assert "\n" not in str(refused.value)


def test_prose_with_commas_is_no_table() -> None:
    for text in (
        "Yes, he said.\nNo, she said.\nWell, they said.\n",
        "In 1,000 years.\nNothing.\nAnd 2,000 more.\n",
        '"Well," he said.\n"No; never," she said.\n\n"So, so."\n',
        "a , b ; c\nd , e ; f\ng , h ; i\n",
        "one\ttwo\nthree\nfour\n",
        '{"id":1,"text":"A"}\n' * 9,
    ):
        inputs.check_text(text.encode())


def test_a_text_without_a_passage_for_validation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("One.\n\nTwo.\n")
    split.split([tmp_path / "text"], tmp_path / "raw/00000", 100)
    assert clean_shards.clean_tasks(tmp_path, "none", valid_every=2)
    with pytest.raises(OptionError, match=r"only 2 passages.*VALID_EVERY than 3"):
        clean_shards.clean_tasks(tmp_path, "none", valid_every=3)


def test_a_little_markup_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "input"
    path.write_text("I <3 x<y and [sic] <unk> <John> = = it = =\n" * 19 + "A line<br>\n")
    split.check_input(path)
    assert capsys.readouterr().err.startswith(f"warning: {path}: 1 of the first 20 lines have tags (<br>)")


same = st.sampled_from([b"a b", b"A  B", b"ab", b"a\tb", "é".encode(), b"c"])
raw_lines = same | st.integers(0, 300).map(lambda number: b"%d" % number)
corpora = st.lists(st.lists(st.lists(raw_lines, min_size=1, max_size=9), max_size=9), min_size=1, max_size=4)


@settings(max_examples=15)
@given(corpora, st.sampled_from(["lines", "documents"]))
def test_duplicates_equal_a_loop_over_the_corpus(tmp_path_factory, shards, unit: str) -> None:
    work, seen, expected = tmp_path_factory.mktemp("duplicates"), set(), []
    texts = raw_shards(work, len(shards))
    for text, shard in zip(texts, shards):
        text.write_bytes(b"".join(b"\n".join(document) + b"\n\n" for document in shard))
        keys = [[b" ".join(line.lower().split()) for line in document] for document in shard]
        units = [key for document in keys for key in document] if unit == "lines" else [tuple(key) for key in keys]
        expected.append([number for number, key in enumerate(units) if key in seen or key in units[:number]])
        seen.update(units)
    run_steps(work, *duplicates.steps(work, unit))
    assert [sorted(duplicates.repeated(work, shard)) for shard in range(len(shards))] == expected


def test_of_nearly_equal_documents_one_stays(tmp_path: Path) -> None:
    pytest.importorskip("datatrove")
    sentences = [" ".join(itertools.islice(synthetic.words(np.random.default_rng(seed)), 120)) for seed in range(4)]
    sentences.append(sentences[1].replace(" ", " other ", 1))
    texts = raw_shards(tmp_path, 2)
    texts[0].write_text("\n\n".join(sentences[:3]) + "\n\n")
    texts[1].write_text("\n\n".join(sentences[3:]) + "\n\n")
    run_steps(tmp_path, *near.steps(tmp_path))
    assert [near.near_duplicates(tmp_path, shard) for shard in range(2)] in ([{1}, set()], [set(), {1}])


def test_rare_words_are_unknown_and_bpe_learns_from_frequent_ones(tmp_path: Path) -> None:
    frequencies = {f"w{number:03}": 1 + 1000 // (number + 1) for number in range(100)}
    paths = [tmp_path / f"{shard}.txt" for shard in range(5)]
    for shard, path in enumerate(paths):
        part = {w: n // 5 + (shard < n % 5) for w, n in frequencies.items() if n >= 5 or shard < n}
        counts.write_counts(part, path)
    run_steps(tmp_path, counts.merge_step("words", lambda: paths, tmp_path / "merged"))
    merged = tmp_path / "all"
    counts.merge_files(sorted((tmp_path / "merged").iterdir()), merged)
    assert dict(counts.read_counts(merged)) == frequencies
    counts.choose(merged, tmp_path / "words", 0.219, 5)
    known = counts.WordSet(tmp_path / "words" / "frequent.npy")
    assert [word for word in [*frequencies, "other"] if word in known] == list(frequencies)[:21]
    learned = dict(counts.read_counts(tmp_path / "words" / "bpe.txt"))
    assert learned == {f"w{n:03}": frequencies[f"w{n:03}"] for n in range(5)}
    stats = {"word_types": 100, "words": sum(frequencies.values()), "frequent_types": 21}
    assert read_json(tmp_path / "words" / "stats.json") == stats
    chosen = counts.MostFrequent(Counter({3: 1, 2: 4}), 3)  # of words with the same count the first are taken
    assert [chosen.takes(count) for count in (2, 3, 2, 2, 2)] == [True, True, True, False, False]


def test_pieces_are_those_of_subword_nmt_with_whole_symbols_and_few_are_remembered(tmp_path: Path, monkeypatch) -> None:
    symbols, codes = ["<url>", "<file>", "<email>", "<unk>"], io.StringIO()
    learn_bpe(io.StringIO("lower lowest newer newest wide\n" * 5), codes, 12)
    (tmp_path / "codes").write_text(codes.getvalue())
    bpe = BPE(io.StringIO(codes.getvalue()), glossaries=symbols)
    monkeypatch.setattr(encode_shards, "REMEMBERED", 20)
    encoder = encode_shards.Encoder(tmp_path / "codes", None)
    for word in [*"lower lowest newer slower wider x".split(), *symbols, *(f"low{n}" for n in range(100)), *symbols]:
        assert encoder(word) == bpe.segment(word)
        assert len(encoder._remembered) <= 21
        assert len(encoder._bpe.cache) <= 21
