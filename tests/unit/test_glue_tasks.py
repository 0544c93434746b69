"""The Python of scripts/glue: the layouts of GLUE's files."""

import gzip

import pytest
from glue_tasks import TASKS, constant, extract, read_examples

import embinit_fairseq  # noqa: F401
from embinit_fairseq.errors import DataError

#: task -> headings of the file as it is downloaded, a line (A, B: its texts, L: its label), labels of two lines
FILES = {
    "CoLA": ("", "gj04 L * A", "1 0"),
    "SST-2": ("sentence label", "A L", "0 1"),
    "MRPC": ("\ufeffQuality #1~ID #2~ID #1~String #2~String", "L 12 13 A B", "1 0"),
    "STS-B": ("index year old_index source1 sentence1 sentence2 score", "0 2012 1 none A B L", "3.800 5.0"),
    "QQP": ("id qid1 qid2 question1 question2 is_duplicate", "1 2 3 A B L", "0 1"),
    "MNLI": ("index genre s1p sentence1 sentence2 label1 gold_label", "0 g - A B neutral L", "neutral contradiction"),
    "QNLI": ("index question sentence label", "0 A B L", "entailment not_entailment"),
    "RTE": ("index sentence1 sentence2 label", "0 A B L", "not_entailment entailment"),
}
#: what is without a usable label, and only counted
LEFT_OUT = {"QQP": "9\t9\tbroken\n9\t8\t7\tE?\tF?\tG?\n", "MNLI": "0\tg\t-\tA\tB\tneutral\t-\n"}
TEXTS = {"A": ["A\x85 \u2028b. ", "C.\rd."], "B": ['He said " e .', "F."]}


def tsv(name):
    heading, line, labels = FILES[name]
    rows = [[name.replace("~", " ") for name in heading.split()]] if heading else []
    for at, label in enumerate(labels.split()):
        known = {"L": label, "A": TEXTS["A"][at], "B": TEXTS["B"][at]}
        rows.append([known.get(cell, cell) for cell in line.split()])
    return "".join("\t".join(row) + ("\r\n" if name == "MRPC" else "\n") for row in rows)


@pytest.mark.parametrize("name", TASKS)
def test_columns_of_every_task(name, tmp_path, capsys):
    text, expected = tsv(name) + LEFT_OUT.get(name, ""), [["A b.", "C. d."], TEXTS["B"]][: 1 + ("B" in FILES[name][1])]
    for file in ("train", "dev", "dev_matched", "dev_mismatched"):
        (tmp_path / f"{file}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    extract(TASKS[name], tmp_path, tmp_path)
    for split in ("train", "valid", *(["valid1"] if name == "MNLI" else [])):
        for at, column in enumerate(expected):
            assert (tmp_path / f"{split}.input{at}").read_bytes().decode().split("\n") == [*column, ""]
        labels = "0.76 1" if name == "STS-B" else FILES[name][2]
        assert (tmp_path / f"{split}.label").read_text().split() == labels.split()
    if name != "STS-B":
        assert set(labels.split()) <= set((tmp_path / "label.dict").read_text().split()[::2]) == set(TASKS[name].labels)
    left_out = LEFT_OUT.get(name, "").count("\n")
    assert (f"train.tsv: {left_out} lines" in capsys.readouterr().err) == bool(left_out)


def test_a_constant_answer_is_one_answer_for_both_sets_of_mnli():
    """The most frequent label of the matched set, which is another one than that of the mismatched set."""
    matched, mismatched = ["neutral"] * 3 + ["entailment"] * 2, ["entailment"] * 3 + ["neutral"]
    assert constant(TASKS["MNLI"], matched, mismatched) == {"accuracy": 60.0, "mismatched": 25.0}
    assert constant(TASKS["MRPC"], ["0", "0", "0", "1"]) == {"accuracy": 75.0, "f1": 40.0}
    assert constant(TASKS["STS-B"], ["0.2", "1"]) == {"pearson": 0.0, "spearman": 0.0}


def test_bad_files_are_named(tmp_path):
    for name, content, named in (
        ("RTE", b"index\tsentence1\tlabel\n", "no column sentence2"),
        ("RTE", tsv("RTE").encode() + b"2\tA.\tB.\tmaybe\n", "line 4: the label 'maybe'"),
        ("SST-2", b"sentence\tlabel\nfine\t1\nno label\n", "line 3: 1 fields; expected 2"),
        ("STS-B", tsv("STS-B").replace("5.0", "nan").encode(), "line 3: the label 'nan'"),
        ("SST-2", b"sentence\tlabel\n", "get the file again"),
        ("CoLA", b"a\t1\t\tfine\nb\t1\t\t\xff\n", "near line 2: damaged"),
    ):
        (tmp_path / "train.tsv").write_bytes(content)
        with pytest.raises(DataError, match=rf"train\.tsv.*{named}"):
            list(read_examples(TASKS[name], tmp_path / "train.tsv"))
