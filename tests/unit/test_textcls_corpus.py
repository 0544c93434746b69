"""scripts/textcls: reading TSV files, the two protocols, drawing validation texts."""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from textcls import binarise, corpus, from_textgcn

HEADING = "split\tlabel\ttext\n"
LINES = ["train\ta\tone two", "train\tb\tthree", "test\ta\tfour"]


def tsv(folder: Path, lines: list[str], heading: str = HEADING) -> Path:
    path = folder / "data.tsv"
    path.write_text(heading + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_examples_keep_their_order_and_columns_may_stand_anywhere(tmp_path):
    path = tsv(
        tmp_path, ["1\tone  two\ttrain\ta", "2\tthree\ttrain\tb", "3\tfour\ttest\ta"], "id\ttext\tsplit\tlabel\n"
    )
    found = [(each.line, each.split, each.label, each.text) for each in corpus.read_examples(path)]
    assert found == [(2, "train", "a", "one  two"), (3, "train", "b", "three"), (4, "test", "a", "four")]


def test_compressed_files_and_windows_lines_are_read(tmp_path):
    plain = tsv(tmp_path, LINES)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n")))
    assert corpus.read_examples(packed) == corpus.read_examples(plain)


@pytest.mark.parametrize(
    ("lines", "heading", "message"),
    [
        (LINES, "split\ttext\n", "line 1: no column label .found: split, text"),
        (LINES, "split\tlabel\ttext\ttext\n", "line 1: 2 columns text; rename"),
        (LINES, "split\tlabel\ttext\tid\tlabel\n", "line 1: 2 columns label; rename"),
        ([*LINES, "train\ta"], HEADING, "line 5: 2 fields, but 3 columns"),
        ([*LINES, "train\ta\t "], HEADING, "line 5: the text is empty"),
        ([*LINES, "train\t\tword"], HEADING, "line 5: the label '' must be one word"),
        ([*LINES, "train\ttwo words\tword"], HEADING, "line 5: the label 'two words' must be one word"),
        ([*LINES, "dev\ta\tword"], HEADING, "line 5: the split 'dev' must be train or test"),
        ([*LINES, "test\tc\tword"], HEADING, "line 5: the label c is in no training text"),
        ([*LINES, "train\t<pad>\tword"], HEADING, "line 5: the label <pad> is a symbol of fairseq's own"),
        ([*LINES, "train\t<unk>\tword"], HEADING, "line 5: the label <unk> is a symbol of fairseq's own"),
        ([*LINES, 'train\t"a"\tword'], HEADING, 'line 5: the label "a" beside a; quotation marks'),
        ([LINES[0], *LINES[::2]], HEADING, "all texts have the label a"),
        (LINES[:2], HEADING, "no line with the split test"),
        (LINES[1:], HEADING, "fewer than two lines with the split train"),
        ([], HEADING, "fewer than two lines with the split train"),
    ],
)
def test_malformed_files_are_refused_with_their_line(tmp_path, lines, heading, message):
    path = tsv(tmp_path, lines, heading)
    with pytest.raises(corpus.FileError, match=f"{path}.*{message}"):
        corpus.read_examples(path)


def test_files_that_are_not_text_are_refused(tmp_path):
    (tmp_path / "latin").write_bytes(HEADING.encode() + b"train\ta\tna\xefve\n")
    packed = gzip.compress(HEADING.encode() + b"".join(b"train\ta\t%d\n" % number for number in range(1000)))
    (tmp_path / "cut").write_bytes(packed[:-20])
    (tmp_path / "damaged").write_bytes(packed[:100] + bytes(50) + packed[150:])
    for name, where in (("latin", "line 2"), ("cut", r"after line \d+"), ("damaged", r"after line \d+")):
        with pytest.raises(corpus.FileError, match=f"{name}, {where}: .*UTF-8 text, plain or gzip"):
            corpus.read_examples(tmp_path / name)
    with pytest.raises(corpus.FileError, match="missing: no such file"):
        corpus.read_examples(tmp_path / "missing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ((HEADING + "train\ta\tword\n" * 999).replace("\n", "\r"), "a carriage return inside the line"),
        ("word " * 9999 + "\n", "no column split, label, text"),
    ],
)
def test_a_file_that_is_one_line_is_not_printed(tmp_path, text, message):
    (tmp_path / "data.tsv").write_bytes(text.encode())
    with pytest.raises(corpus.FileError, match=f"line 1: {message}") as raised:
        corpus.read_examples(tmp_path / "data.tsv")
    assert len(str(raised.value)) < 400


def test_quotation_marks_in_all_labels_are_characters_like_others(tmp_path):
    lines = [re.sub("\t(.)\t", r'\t"\1"\t', line) for line in LINES]
    assert {example.label for example in corpus.read_examples(tsv(tmp_path, lines))} == {'"a"', '"b"'}


CLEANED = "after cleaning, without stop words and rare words"


@pytest.mark.parametrize(
    ("train", "test", "options", "message"),
    [
        ("слово и слово", "слово", {}, f"all texts are empty {CLEANED}; .*--no-clean"),
        ("one", "two", {}, f"no text has more than one word {CLEANED}; give longer texts"),
        ("слово", "two words", {}, f"all training texts are empty {CLEANED}"),
        (
            "one two",
            "one two",
            {"protocol": "inductive", "min_count": 3},
            "no word occurs 3 times",
        ),
        ("one two", "three four", {"min_count": 2}, "all texts are empty .* a lower --min-count than 2"),
        (
            "the the",
            "the the",
            {"no_clean": True, "stop_words": "list"},
            "all texts are empty without .* none",
        ),
        ("слово и слово", "слово", {"no_clean": True}, None),
        ("one two", "", {}, None),
        ("one two two", "one", {"protocol": "inductive", "min_count": 2}, None),
    ],
)
def test_texts_without_words_are_refused(train, test, options, message):
    options = {"protocol": "textgcn", "min_count": 1, "no_clean": False, "stop_words": "none", **options}
    args = argparse.Namespace(data="data.tsv", **options)
    examples = [corpus.Example(2, "train", "a", train), corpus.Example(3, "test", "a", test)]
    stopping = frozenset({"the"} if args.stop_words == "list" else ())
    texts = corpus.process(examples, args.protocol, args.min_count, stopping, not args.no_clean)
    if message is None:
        corpus.check_texts(args, examples, texts)
        return
    with pytest.raises(corpus.FileError, match=f"data.tsv: {message}") as raised:
        corpus.check_texts(args, examples, texts)
    assert ("--no-clean" in str(raised.value)) == (not args.no_clean)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's GREAT, isn't it?", "it 's great , is n't it ?"),
        ("They've (or they'll) say we're 'done'!", "they 've ( or they 'll ) say we 're 'done' !"),
        ("co-operate: 3.5% of naïve", "co operate 3 5 of na ve"),
        ("a  \t b", "a b"),
        ("I'd; `quote`", "i 'd `quote`"),
        (" -- ", ""),
    ],
)
def test_clean_str_of_kim(text, expected):
    assert corpus.clean_str(text) == expected


@given(st.text())
def test_cleaning_twice_changes_nothing(text):
    once = corpus.clean_str(text)
    assert corpus.clean_str(once) == once


@pytest.mark.data
@pytest.mark.parametrize(("name", "sizes"), [("mr", (7108, 3554, 2)), ("r8", (5485, 2189, 8))])
def test_texts_that_text_gcn_has_cleaned_are_clean(data_dir, name, sizes):
    """18,336 texts that went through the authors' clean_str, in which brackets had got a backslash."""
    examples = corpus.read_examples(data_dir / "textcls" / f"{name}.tsv.gz")
    splits = Counter(example.split for example in examples)
    assert (splits["train"], splits["test"], len({example.label for example in examples})) == sizes
    for example in examples:
        assert corpus.clean_str(example.text) == " ".join(example.text.replace("\\", "").split())


def processed(protocol, texts, min_count=2, stopping=frozenset(), clean=True):
    examples = [corpus.Example(at, split, "a", text) for at, (split, text) in enumerate(texts, start=2)]
    return corpus.process(examples, protocol, min_count, stopping, clean)


def test_protocols_differ_in_where_words_are_counted():
    texts = [("train", "the cat The dog"), ("train", "cat bird"), ("test", "bird dog fish the")]
    stopping = frozenset({"the"})
    # train and test: cat 2, dog 2, bird 2, fish 1
    assert processed("textgcn", texts, stopping=stopping) == ["cat dog", "cat bird", "bird dog"]
    # nothing is removed by its count: the dictionary of the training texts decides
    assert processed("inductive", texts, stopping=stopping) == ["cat dog", "cat bird", "bird dog fish"]


def test_finished_tokens_are_left_as_they_are():
    assert processed("textgcn", [("train", "Ein Häuschen , A.B.")], min_count=1, clean=False) == ["Ein Häuschen , A.B."]


@pytest.mark.parametrize(("protocol", "expected"), [("textgcn", "abcd"), ("inductive", "ab")])
def test_the_dictionary_of_a_protocol(tmp_path, protocol, expected):
    (tmp_path / "train.input0").write_text("a a b\nb a c\n")
    (tmp_path / "test.input0").write_text("d c c\n")
    binarise.make_dictionary(tmp_path, protocol, min_count=2, path=tmp_path / "dict.txt")
    words = {line.split()[0] for line in (tmp_path / "dict.txt").read_text().splitlines()}
    assert {word for word in words if not word.startswith("madeupword")} == set(expected)


def test_stop_words(tmp_path):
    pytest.importorskip("spacy")
    assert {"the", "n't"} < corpus.stop_words("spacy")
    assert corpus.stop_words("none") == frozenset()
    (tmp_path / "list").write_text("der die\ndas\n")
    assert corpus.stop_words(str(tmp_path / "list")) == {"der", "die", "das"}
    with pytest.raises(corpus.FileError, match="--stop-words elsewhere: no such file"):
        corpus.stop_words("elsewhere")


@given(size=st.integers(2, 500), seed=st.integers(0, 2**32))
def test_a_tenth_is_drawn_for_validation(size, seed):
    drawn = binarise.draw_validation(size, seed)
    assert len(drawn) == max(1, round(size / 10))
    assert drawn <= set(range(size))
    assert drawn == binarise.draw_validation(size, seed)


def test_seeds_draw_different_texts_and_every_text_is_drawn_as_often():
    draws = [binarise.draw_validation(20, seed) for seed in range(400)]
    counts = Counter(number for drawn in draws for number in drawn)
    assert len({frozenset(drawn) for drawn in draws}) > 100
    assert set(counts) == set(range(20))
    assert all(15 < count < 75 for count in counts.values())  # 40 expected, standard deviation 6


def test_texts_and_labels_stay_side_by_side(tmp_path):
    folder = tmp_path / "corpus"
    examples = [corpus.Example(at, "train" if at < 42 else "test", f"l{at % 3}", f"w{at}") for at in range(2, 52)]
    facts = corpus.write_corpus(examples, [example.text for example in examples[:-1]] + [""], folder)
    assert facts == json.loads((folder / "facts.json").read_text())
    assert (facts["train"], facts["test"], facts["labels"], facts["empty"]) == (40, 10, 3, 1)
    binarise.write_texts(folder, 1, tmp_path / "text")
    seen = []
    for name in binarise.SETS:
        columns = [(tmp_path / "text" / f"{name}.{column}").read_text().split("\n")[:-1] for column in binarise.COLUMNS]
        assert len(columns[0]) == len(columns[1]) == {"train": 36, "valid": 4, "test": 10}[name]
        assert all(not text or int(text[1:]) % 3 == int(label[1:]) for text, label in zip(*columns))
        seen += columns[0]
    assert sorted(seen) == sorted([example.text for example in examples[:-1]] + [""])


def small_corpus(folder):
    examples = [corpus.Example(at, "train" if at < 9 else "test", f"l{at % 2}", f"w{at % 3}") for at in range(2, 12)]
    corpus.write_corpus(examples, [example.text for example in examples], folder / "corpus")
    binarise.make_dictionary(folder / "corpus", "textgcn", 1, folder / "dict.txt")
    return folder / "corpus", 1, folder / "dict.txt", folder / "seeds"


def test_a_seed_that_fails_leaves_nothing(tmp_path):
    corpus_folder, seed, words, output = small_corpus(tmp_path)
    (corpus_folder / "test.label").unlink()
    with pytest.raises(OSError, match=r"test\.label"):
        binarise.make_seed(corpus_folder, seed, words, output)
    assert not any(output.glob("*"))


@pytest.fixture
def repository(tmp_path):
    data = tmp_path / "data"
    (data / "corpus").mkdir(parents=True)
    (data / "mr.txt").write_text("0\ttrain\t1\n1\t20news-bydate-test\talt atheism\n")
    (data / "corpus" / "mr.txt").write_bytes(b"a na\xefve\tfilm\nsecond \n")
    return tmp_path


def convert(monkeypatch, repository, *arguments):
    words = ["from_textgcn", "--repository", str(repository), "--dataset", "mr", "--output", str(repository / "mr.tsv")]
    monkeypatch.setattr(sys, "argv", [*words, *arguments])
    from_textgcn.main()


def test_text_gcns_files_become_a_tsv_file(repository, monkeypatch):
    convert(monkeypatch, repository)
    text = (repository / "mr.tsv").read_text(encoding="utf-8")
    assert text == "split\tlabel\ttext\ntrain\t1\ta naïve film\ntest\talt_atheism\tsecond\n"


def test_text_gcns_files_must_fit(repository, monkeypatch):
    with pytest.raises(SystemExit, match=r"mr\.clean\.txt: no such file"):
        convert(monkeypatch, repository, "--text", "clean")
    (repository / "data" / "corpus" / "mr.txt").write_text("only one\n")
    with pytest.raises(SystemExit, match=r"2 lines.*1: they belong line to line"):
        convert(monkeypatch, repository)
    (repository / "data" / "mr.txt").write_text("0\tvalid\t1\n")
    with pytest.raises(SystemExit, match=r"mr\.txt, line 1: expected document, split"):
        convert(monkeypatch, repository)
    assert not (repository / "mr.tsv").exists()
