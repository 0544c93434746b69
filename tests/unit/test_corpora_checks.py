"""What the reading of raw text refuses, and what it says of doubtful text (`corpora.checks`, `corpora.other_forms`)."""

from __future__ import annotations

import contextlib
import importlib
import re
import subprocess
import unicodedata

import pytest
from test_corpora import write

from embinit_fairseq.corpora.checks import attention, check_raw_text, check_together
from embinit_fairseq.corpora.other_forms import other_form
from embinit_fairseq.corpora.raw_texts import LABEL, Columns, RawText, find_raw_texts
from embinit_fairseq.corpora.reading import read_column, read_text
from embinit_fairseq.corpora.subwords import learn_model
from embinit_fairseq.errors import DataError
from embinit_fairseq.vocab.preparation_options import parse_steps
from embinit_fairseq.vocab.preparation_steps import Preparation

UNREADABLE = [
    ("a.txt", "A dog.\nruns\n".encode("utf-16"), "UTF-16.* iconv -f utf-16 -t utf-8"),
    ("a.txt", "A dog.\nruns\n".encode("utf-16-le"), "iconv -f utf-16le"),
    ("a.txt", "A dog.\nruns\n".encode("utf-16-be"), "iconv -f utf-16be"),
    ("a.txt", "A dog.\n".encode("utf-32"), "iconv -f utf-32"),
    ("a.txt", "ä\n".encode() + b"\x92b\n", "line 2: not UTF-8.*these lines alone"),
    ("a.txt", b"\x92b\n" + "ä\n".encode(), "line 1: not UTF-8.*these lines alone"),
    ("a.txt", b"a\n\xff\xfeb\n", "line 2: not UTF-8 .*iconv -f cp1252"),
    ("a.txt", b"\x1f\x8b\x08\0\n", "get the file again"),
    ("a.txt", b"\x08\0\xff\n", "a binary file"),
    ("a.csv", b"PK\x03\x04\0\n", "an archive or a spreadsheet.* save the table as .csv"),
    ("a.txt", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 12\n", "git lfs pull"),
    ("a.jsonl", b"PAR1\x15\0\n", "Parquet.*read_parquet"),
    ("a.jsonl", b'[{"t": "a"}]', "a.jsonl:1: found a list in JSON.*json.dumps.* > NEW.jsonl"),
    ("a.json", b'[\n  {"t": "a"}\n]', "a.json:1: found a list in JSON.*a.json'"),
    ("a.json", b'{"data": [{"t": "a"}]}', "a.json:1: found a list in JSON"),
    ("a.jsonl", b'{"u": {"t": "a", " x": 1}}\n', r"no column t; its columns are u.t, u. x: name one"),
    ("a.csv", b"u, t\nx,b\n", "no column t; its columns are u, ' t': .*if this line is text, write the names above"),
    ("a.txt", b"a\rb\rc", "tr '.r' '.n'"),
    ("a.csv", b"t,l\rb,1\r", "tr '.r' '.n'"),
    ("a.tsv", b"t;l\nb;1\n", "a.tsv:1: found semicolons.*rename"),
    ("a.tsv", b'u\tt\nx\t"b\nc"\n', "a.tsv:3: 1 field, but 2 columns.*save the table as .csv"),
    ("a.tsv", b"t,l\nb,1\n", "a.tsv:1: found commas.*rename"),
    ("a.csv", b"\nt,l\nb,1\n", "a.csv:1: an empty line"),
    ("a.tsv", b"t\tt\nb\t1\n", "a.tsv:1, .* 2 columns have the name t"),
    ("a.csv", b'u,t\n"x\ny",b\n1\n', "a.csv:4: 1 field, .* in line 1; correct"),
    ("a.csv", b'u,t\nx,b\nx,"b\n\n', "a.csv:3: not a row"),
    ("a.jsonl", b'{"t": "a"}\n{"t": 3}\n', "a.jsonl:2: t must be text, found 3"),
    ("a.jsonl", b'{"t": true}\n', "t must be text, found true"),
    ("a.jsonl", b'{"t": "a \\ud83d b"}\n', "a.jsonl:1: t has half a character .*ud83d"),
    ("a.jsonl", b'{"t": "a", "t": "b"}\n', "a.jsonl:1: 2 columns have the name t"),
    ("a.jsonl", b'{"t": "a"}\n\n', "a.jsonl:2: expected an object of JSON, found ''"),
    ("a.jsonl", b'["t"]\n', "a.jsonl:1: expected an object"),
    ("a.jsonl", b'{"u": "a"}\n', "a.jsonl:1: no column t; its columns are u"),
]


@pytest.mark.parametrize(("name", "content", "message"), UNREADABLE)
def test_text_that_cannot_be_read(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_text(path) if name.endswith("txt") else read_column(path, "t", is_label=False))


def test_texts_have_the_number_of_their_first_line(tmp_path):
    """Of rows in which a field has ends of lines, too; a CR outside quotation marks is part of the text."""
    path = tmp_path / "a.csv"
    path.write_bytes(b'l,t\r\n1,"a\nb"\r\n2,c\rd\r\n3,""\r\n')
    assert list(read_column(path, "t", is_label=False)) == [(2, "a\nb"), (4, "c\vd"), (5, "")]
    path.write_bytes(b'l;"t"\n1;"a,\nb"\n2;c,d\n')
    assert list(read_column(path, "t", is_label=False)) == [(2, "a,\nb"), (4, "c,d")]
    path = write(tmp_path / "a.jsonl", ['{"t": 1}', '{"t": 1.5}', '{"t": "x"}'])
    assert list(read_column(path, "t", is_label=True)) == [(1, "1"), (2, "1.5"), (3, "x")]
    for value in ("true", "null", "NaN"):
        with pytest.raises(DataError, match=r"a\.jsonl:1"):
            list(read_column(write(path, [f'{{"t": {value}}}']), "t", is_label=True))
    path = write(tmp_path / "a.json", ['{"translation": {"de": "x", "en": {"us": "y", "": 1}}}'])
    for field, text in (("translation.de", "x"), ("translation.en.us", "y")):
        assert list(read_column(path, field, is_label=False)) == [(1, text)]
    with pytest.raises(DataError, match="predict"):
        list(read_column(write(tmp_path / "a.tsv", ["t"]), "l", is_label=True))


@pytest.mark.parametrize("module", ["gzip", "bz2", "lzma"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_compressed_text_is_recognised_by_its_content(module, suffix, tmp_path):
    path = tmp_path / f"train.de{suffix}"
    path.write_bytes(importlib.import_module(module).compress("ä\nb\n".encode()))
    (raw_text,) = find_raw_texts([str(path)], Columns())
    assert (raw_text.split, list(raw_text.lines())) == ("train", ["ä", "b"])
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(DataError, match="get the file again"):
        check_raw_text(raw_text)


FORMS = {
    "TMX": (["<tmx>", "<tu>", *['<tuv xml:lang="de"><seg>a</seg></tuv>'] * 9], "iterparse"),
    "SGML": (["<doc>", *['<seg id="1">a b</seg>'] * 3, "</doc>"], "re.findall"),
    "XML": (['<?xml version="1.0"?>', *["<unit><source>a</source></unit>"] * 9], "its text"),
    "JSON": (['{"t": "a"}'] * 2, "FILE.jsonl"),
    "lines of JSON": (["[", "  {", '    "t": "a"', "  }", "]"], "FILE.jsonl"),
    "subtitles": (["1", "00:01:02,345 --> 00:01:03,000", "a b", ""] * 4, "awk"),
    "captions": (["WEBVTT", "", "01:02.345 --> 01:03.000 align:start", "a b", ""], "awk"),
    "XML with text": (['<?xml version="1.0"?>', *["<Sync time='1'/>", "a b", "c d"] * 9], "as a table"),
    "CHAT": (["@UTF8", "@Begin", "*A:\ta b", "\tc", "%eng:\td"], "awk"),
    "TextGrid": (['File type = "ooTextFile"', "xmin = 0", "    intervals [1]:", '        text = "a b"'], "sed -nE"),
    "CTM": (["r1 1 0.10 0.25 a 0.9", "r1 A 0.40 0.1 b"], "awk"),
    "STM": (["r1 1 sp1 0.10 2.25 <o,f0> a b"] * 9, "sed -E"),
    "Kaldi": (["84-121123-0000 a b", "spk1-utt0002 c"], "sed -E"),
    "FASTA": ([">s1 a b", "ACGT", "ACNNacgt", ">s2", "MKV*"], "awk -v K=6"),
    "FASTQ": (["@r1/1", "ACGTN", "+", "II5#", "@r2", "ACG", "+r2", "III"], "as FASTA"),
    "CoNLL-U": (["# sent_id = 1", "# text = a", "1\ta\ta\tX\t_\t_\t0\troot\t_\t_", ""], "sed -n"),
    "CoNLL": (["-DOCSTART- -X- O", "", "a NN B-PER", "b VB O", ""], "awk"),
    "tags": (["a\tI-PER", "b\tO", ""], "awk"),
    "fastText": (["__label__1 a b"] * 2, "NEW.tsv"),
    "trees": (["(3 (2 a) (4 (3 b) (2 c)))"] * 2, "their words"),
    "fast_align": (["a ||| b"] * 2, "train.en"),
    "columns": (["a b\tc"] * 2, ".tsv"),
}


@pytest.mark.parametrize("form", FORMS)
def test_another_form_than_a_text_per_line_is_refused(form, tmp_path):
    """Marks, times and tags would be words. In a table they are text, and so they are in some lines of a text."""
    lines, remedy = FORMS[form]
    path = write(tmp_path / "train.txt", lines)
    with pytest.raises(DataError, match=f"train.txt: found .*, expected a text per line; .*{re.escape(remedy)}"):
        check_raw_text(RawText(path, "train", ""))
    mixed = write(tmp_path / "some.train.txt", [lines[0], *["a text"] * 200])
    assert check_raw_text(RawText(mixed, "train", "")).lines == 201


SUBTITLES = {
    "srt": "1\n00:00:01,000 --> 00:00:02,000\n<i>Chào\nanh</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n\n"
    "3\n00:00:05,000 --> 00:00:06,000\n{\\an8}7:30 -> 8\n42\n",
    "vtt": "WEBVTT\n\nNOTE a\n\n00:01.000 --> 00:02.000 align:start\n<i>Chào\nanh</i>\n\n00:03.000 --> 00:04.000\n\n"
    "\nlast\n00:05.000 --> 00:06.000\n7:30 -> 8\n42\n",
}


@pytest.mark.parametrize("form", SUBTITLES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1258"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_command_for_subtitles_keeps_one_line_per_subtitle(form, encoding, end, tmp_path):
    """A subtitle of two lines in one language may have one in the other: line n must belong to line n."""
    path = tmp_path / "train.srt"
    path.write_bytes(SUBTITLES[form].replace("\n", end).encode(encoding))
    command = other_form(list(filter(None, SUBTITLES[form].split("\n"))))[1].split(": ", 1)[1]
    subprocess.run(["bash", "-c", command.replace("FILE", "train.srt").replace("NEW", "new")], cwd=tmp_path, check=True)
    assert (tmp_path / "new").read_bytes().decode(encoding) == "Chào anh\n\n7:30 -> 8 42\n"


TEXTS = {
    "CHAT": (
        "@UTF8\n@Begin\n*A:\ta b . \x150_1500\x15\n%eng:\tx\n*B:\tc\n\td \x157_8\x15\r\n%eng:\ty\n@End\n",
        "a b .\nc d\n",
    ),
    "TextGrid": ('xmin = 0\n        text = "a ""b""" \n        text = "c"\r\n', 'a ""b""\nc\n'),
    "CTM": ("r1 1 0.1 0.2 a 0.9\nr1 1 0.3 0.2 b 0.9\nr2 1 0.1 0.2 c 0.9\n", "a b \nc \n"),
    "STM": (";; x\nr1 1 s 0.1 0.2 <o,f0> a b\nr1 1 s 0.3 0.4 c\n", "a b\nc\n"),
    "Kaldi": ("u-0001 a b\nu-0002  c\n", "a b\nc\n"),
    "FASTA": (">s1 x\nACgtA\r\nCC\n\n>s2\nACGTAC\n>s3\nAC\n", "ACGTAC CGTACC \nACGTAC \n\n"),
    "FASTQ": ("@r1\nACG\n+\n@II\n@r2\nTT\n+\n>I\n", ">r1\nACG\n>r2\nTT\n"),
}


@pytest.mark.parametrize("form", TEXTS)
def test_the_commands_for_transcripts_and_sequences_write_a_text_per_line(form, tmp_path):
    content, expected = TEXTS[form]
    (tmp_path / "old").write_text(content, newline="")
    command = re.search(r": ((?:awk|sed) .*)", other_form(FORMS[form][0])[1])[1]
    subprocess.run(["bash", "-c", command.replace("FILE", "old").replace("NEW", "new")], cwd=tmp_path, check=True)
    assert (tmp_path / "new").read_text() == expected


def test_lines_that_break_words_and_ligatures_are_counted(tmp_path):
    lines = ["Bundesver-", "the of\ufb01ce \u2010", "Haft\xac", "1990-", "- a -", "a", "of\ufb00"]
    raw_text = RawText(write(tmp_path / "train.txt", lines), "train", "")
    for step, ligatures in (("moses", [2, 7]), ("sentencepiece", [])):
        odd = check_raw_text(raw_text, (step,)).odd
        assert (odd["broken"][1], odd["ligatures"][1]) == ([1, 3], ligatures)
    (line,) = [one for one in attention([check_raw_text(raw_text)]) if "ligatures" in one]
    command = re.search("sed '.*' FILE", line)[0].replace("FILE", str(raw_text.path))
    assert subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout.split()[2] == "office"


@pytest.mark.parametrize(
    "lines",
    [
        ["@ann hello there", "@bob yes", "@ann no"],
        ["2020-01-02 a b"] * 3,
        [">a b c", "d e"],
        ["PROJ-1034 fix a b", "PROJ-1035 add c"],
    ],
)
def test_replies_dates_quotes_and_numbers_of_issues_are_text(lines):
    assert other_form(lines) is None


@pytest.mark.parametrize(
    "line", ["<2de> a b", "<en> <de> a", "(a) b", '"a", b', "{{a}} b", "[[a]]", "# a", "a | b", "a\t", "1. a", "[a] b"]
)
def test_text_with_marks_is_text(line, tmp_path):
    checked = check_raw_text(RawText(write(tmp_path / "train.txt", [line] * 9), "train", ""))
    assert (checked.lines, checked.odd["markup"][0]) == (9, 0)


def test_odd_characters_are_counted(tmp_path):
    lines = ["e\u0301", "a\u00ad\u200b", "\0\ufeff", "\u00c3\u00a4", "ä \u06cc\u200c\u0634 \U0001f468\u200d\U0001f467"]
    (raw_text,) = find_raw_texts([str(write(tmp_path / "train.txt", lines))], Columns())
    odd = {name: numbers for name, (_, numbers) in check_raw_text(raw_text).odd.items() if numbers}
    assert odd == {"decomposed": [1], "hidden": [2, 3], "empty": [3], "garbled": [4]}
    lines = [
        "\u200fa",
        "\u202ba\u202c",
        "\u3164",
        "a<br />b",
        "<p>a",
        "<a href='x'>",
        "{\\an8\\pos(4,5)}a",
        "1 < 2 > 0",
        "&nbsp;",
    ]
    lines += ["&#x27;", "AT&T; a", "我" * 15, "我" * 14 + " 我", "ฉันกินข้าวที่บ้านของเรา", "བོད་ཀྱི་སྐད་ཡིག་སློབ", "😂" * 15]
    checked = check_raw_text(RawText(write(tmp_path / "more.train.txt", lines), "train", ""), ["moses"])
    counted = {name: numbers for name, (_, numbers) in checked.odd.items() if numbers}
    expected = {"hidden": [1, 2, 3], "markup": [4, 5, 6, 7], "escaped": [9, 10], "unspaced": [12, 14, 15], "empty": [3]}
    expected["marks"] = [14]
    assert counted == expected
    rows = ['"a ""b"""', '"a" b "c"', '"']
    for suffix, numbers in (("tsv", [2]), ("csv", []), ("txt", [])):
        path = write(tmp_path / f"train.{suffix}", ["t", *(rows if suffix != "csv" else ['"""a"""'])])
        (raw_text,) = find_raw_texts([str(path)], Columns(text_columns=() if suffix == "txt" else ["t"]))
        assert check_raw_text(raw_text).odd["quoted"] == (len(numbers), numbers)


@pytest.mark.parametrize(
    "word",
    "a\u0320b می\u200cروم ที่ ດີ່ မြန်မာ တော် ខ្មែរ ශ්\u200dරී हिन्दी தமிழ் শব্দ السَّلَامُ שָׁלוֹם naïve 葛\U000e0100 1\ufe0f\u20e3 "
    "❤\ufe0f \U0001f926\u200d♂\ufe0f \U0001f468\u200d\U0001f467 \U0001f44d\U0001f3fd \u200d".split(),
)
def test_words_that_moses_splits_and_spacy_keeps_are_counted(word, tmp_path):
    """Emojis are signs for spaCy, too."""
    raw_text = RawText(write(tmp_path / "train.txt", [word]), "train", "")
    moses, spacy = (Preparation(parse_steps(step))(word) for step in ("moses", "spacy"))
    is_helped = len(moses) > 1 and len(spacy) == 1
    assert check_raw_text(raw_text, ["moses"]).odd["marks"] == ((1, [1]) if is_helped else (0, []))
    assert check_raw_text(raw_text, ["bpe"]).odd["marks"] == (0, [])


def test_accents_that_are_split_off_until_they_are_composed_are_one_kind_only(tmp_path):
    """Vietnamese as macOS writes it: composing mends it, and no other steps are needed."""
    raw_text = RawText(write(tmp_path / "train.txt", [unicodedata.normalize("NFD", "hôm nay ở chợ")]), "train", "")
    odd = check_raw_text(raw_text, ["moses"]).odd
    assert (odd["decomposed"], odd["marks"]) == ((1, [1]), (0, []))


def test_half_spaces_that_sentencepiece_makes_spaces_are_counted(tmp_path):
    lines = ["می\u200cروم", "می روم", "ශ්\u200dරී a\u0320"]
    raw_text = RawText(write(tmp_path / "train.txt", lines), "train", "")
    learn_model(lines * 9, 40, "unigram", tmp_path / "model")
    prepare = Preparation([{"step": "sentencepiece"}], {"model": (tmp_path / "model").read_bytes()})
    changed = [at for at, line in enumerate(lines, 1) if prepare.text(prepare(line)) != line]
    assert check_raw_text(raw_text, ["sentencepiece"]).odd["marks"] == (1, [1])
    assert changed == [1]


LABELS = {
    "empty": (["x", " ", "y", ""], "a.tsv .l.: found no label in lines 3, 5;"),
    "special": (["x", "<pad>"], "a.tsv:3: the label '<pad>'.*another name"),
    "numbers": (["1", "01"], "a.tsv:3: the label '01' is the class '1'"),
    "width": (["1", "\uff11"], "is the class '1'"),
    "fraction": (["1", "1.0"], "is the class '1'"),
    "accent": (["\u00e9", "e\u0301"], "is the class"),
    "hidden": (["x", "x\u200b"], "is the class 'x'"),
    "no break": (["a b", "a\u00a0b"], "a.tsv:3: the label 'a.xa0b' is the class 'a b'"),
    "joined": (["a b", "a_b"], "a.tsv:3: the label 'a_b' is the class 'a b'"),
    "one": (["a b", "a  b"], "one class, a_b"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_that_are_no_classes(case, tmp_path):
    labels, message = LABELS[case]
    path = write(tmp_path / "a.tsv", ["t\tl", *(f"text\t{label}" for label in labels)])
    checked = check_raw_text(RawText(path, "train", LABEL, "l"))
    with pytest.raises(DataError, match=message):
        check_together([checked], is_segmented_later=False, is_regression=False)


def test_classes_that_differ_only_in_case_are_named(tmp_path):
    path = write(tmp_path / "a.tsv", ["t\tl", "a\tgood", "b\tbad", "c\tGood", "d\t1e5", "e\t1E5"])
    (line,) = attention([check_raw_text(RawText(path, "train", LABEL, "l"))])
    assert re.search("good .line 2., Good .line 4.", line)


@pytest.mark.parametrize(
    "text", ["Straße", "Über", "Öl", "é", "да", "αβ", "سلام", "שלום", "你好", "नमस्ते", "ไทย", "“a”"]
)
def test_utf8_that_was_read_in_another_encoding_is_counted(text, tmp_path):
    lines = [text.encode().decode("latin-1").replace("\x85", ".")]
    with contextlib.suppress(UnicodeDecodeError):  # five bytes have no letter in cp1252
        lines.append(text.encode().decode("cp1252"))
    right = [text, "„Spaß“, „Ö“ – «CAFÉ», à… “É” Ñ” déjà “là” ä“"]
    checked = check_raw_text(RawText(write(tmp_path / "a.txt", [*lines, *right]), "train", ""))
    assert checked.odd["garbled"] == (len(lines), [*range(1, len(lines) + 1)])


def test_many_unknown_symbols_are_named(tmp_path, shown):
    files = [write(tmp_path / "train.txt", ["a b"] * 9), write(tmp_path / "valid.txt", ["a x"])]
    out = shown("prepare", *files, "--steps", "none", "--jobs", "1", "--output", tmp_path / "out")
    assert re.search("attention +valid: 50% are <unk>.*bpe", out)
    assert "train: " not in out
