"""scripts/glue/tasks.py: the layouts of GLUE's files, what is refused, what is known about a task."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from glue.tasks import TASKS, FileError, constant, extract, facts, read_examples

#: task -> file as it is downloaded (two examples), sentences and labels of the two
FILES = {
    "CoLA": ("gj04\t1\t\tA b.\nbc73\t0\t*\tC d.\n", [["A b."], ["C d."]], ["1", "0"]),
    "SST-2": ("sentence\tlabel\na b \t0\nc\t1\n", [["a b"], ["c"]], ["0", "1"]),
    "MRPC": (
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t12\t13\tHe said " a .\tB .\r\n0\t14\t15\tC .\tD .\r\n',
        [['He said " a .', "B ."], ["C .", "D ."]],
        ["1", "0"],
    ),
    "STS-B": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tg\tf\t2012\t1\tnone\tnone\tA.\tB.\t3.800\n1\tg\tf\t2012\t1\tnone\tnone\tC.\tD.\t5.0\n",
        [["A.", "B."], ["C.", "D."]],
        ["0.76", "1"],
    ),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "1\t2\t3\tA?\tB?\t0\n9\t9\tbroken\n9\t8\t7\tE?\tF?\tG?\n4\t5\t6\tC?\tD?\t1\n",
        [["A?", "B?"], ["C?", "D?"]],
        ["0", "1"],
    ),
    "MNLI": (
        "index\tpromptID\tpairID\tgenre\ts1bp\ts2bp\ts1p\ts2p\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\t1\t1n\tg\t-\t-\t-\t-\tA.\tB.\tneutral\tneutral\n1\t1\t1n\tg\t-\t-\t-\t-\tE.\tF.\tneutral\t-\n"
        "2\t1\t1n\tg\t-\t-\t-\t-\tC.\tD.\tneutral\tcontradiction\n",
        [["A.", "B."], ["C.", "D."]],
        ["neutral", "contradiction"],
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel\n0\tA?\tB.\tentailment\n1\tC?\tD.\tnot_entailment\n",
        [["A?", "B."], ["C?", "D."]],
        ["entailment", "not_entailment"],
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel\n0\tA\x85 \u2028b.\tB.\tnot_entailment\n1\tC.\tD\re.\tentailment\n",
        [["A b.", "B."], ["C.", "D e."]],
        ["not_entailment", "entailment"],
    ),
}


@pytest.mark.parametrize("name", list(TASKS))
def test_columns_of_every_task(name, tmp_path):
    text, sentences, labels = FILES[name]
    (tmp_path / "train.tsv").write_bytes(text.encode())
    outputs = [tmp_path / f"column{at}" for at in range(len(sentences[0]) + 1)]
    extract(TASKS[name], tmp_path / "train.tsv", outputs)
    columns = [path.read_bytes().decode().split("\n")[:-1] for path in outputs]
    assert [list(pair) for pair in zip(*columns[:-1])] == sentences
    assert columns[-1] == labels


def test_compressed_files_are_found_and_dropped_lines_counted(tmp_path, capsys):
    for name in ("QQP", "MNLI"):
        (tmp_path / f"{name}.tsv.gz").write_bytes(gzip.compress(FILES[name][0].encode()))
        assert [pair for pair, _ in read_examples(TASKS[name], tmp_path / f"{name}.tsv")] == FILES[name][1]
    report = capsys.readouterr().err
    assert "QQP.tsv: 2 lines without a usable label left out" in report
    assert "MNLI.tsv: 1 lines without a usable label left out" in report


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("RTE", b"index\tsentence1\tlabel\n", "no column sentence2 .found: index, sentence1, label"),
        ("RTE", FILES["RTE"][0].encode() + b"2\tA.\tB.\tmaybe\n", "line 4: the label 'maybe'; expected 4 fields"),
        ("SST-2", b"sentence\tlabel\nfine\t1\nno label\n", "line 3: 1 fields; expected 2"),
        ("STS-B", FILES["STS-B"][0].replace("5.0", "nan").encode(), "line 3: the label 'nan'; .*label a number"),
        ("CoLA", b"", "empty: get the file again"),
        ("SST-2", b"sentence\tlabel\n", "empty: get the file again"),
        ("CoLA", b"a\t1\t\tfine\nb\t1\t\t\xff\n", "after line 2: damaged"),
        ("CoLA", None, r"neither .*train.tsv nor train.tsv.gz: set DATA"),
    ],
)
def test_bad_files_are_named(name, content, message, tmp_path):
    path = tmp_path / "train.tsv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileError, match=message):
        list(read_examples(TASKS[name], path))


def test_a_damaged_archive(tmp_path):
    (tmp_path / "train.tsv.gz").write_bytes(gzip.compress(FILES["CoLA"][0].encode() * 1000)[:-20])
    with pytest.raises(FileError, match=r"damaged .*get the file again"):
        list(read_examples(TASKS["CoLA"], tmp_path / "train.tsv"))


def test_facts_for_the_shell():
    mnli = facts("MNLI")
    assert (mnli["classes"], mnli["inputs"], mnli["epochs"]) == (3, 2, 5)
    assert mnli["dev"] == "valid:dev_matched valid1:dev_mismatched"
    assert (facts("STS-B")["classes"], facts("STS-B")["labels"]) == (1, "")
    assert {name: facts(name)["metric"] for name in TASKS if facts(name)["metric"] != "accuracy"} == {
        "CoLA": "mcc",
        "STS-B": "pearson",
    }
    assert [name for name in TASKS if facts(name)["epochs"] == 5] == ["QQP", "MNLI", "QNLI"]


def test_what_a_constant_answer_scores(tmp_path):
    labels = tmp_path / "valid.label"
    labels.write_text("1\n0\n1\n1\n")
    assert constant(TASKS["MRPC"], labels) == {"accuracy": 75.0, "f1": pytest.approx(100 * 2 * 0.75 / 1.75)}
    assert constant(TASKS["CoLA"], labels) == {"mcc": 0.0, "accuracy": 75.0}


@pytest.mark.data
@pytest.mark.parametrize(("name", "examples"), [("CoLA", 1043), ("MRPC", 408), ("RTE", 277), ("SST-2", 872)])
def test_the_real_files(name, examples, data_dir):
    found = list(read_examples(TASKS[name], data_dir / "glue" / name / "dev.tsv"))
    assert len(found) == examples
    assert {label for _, label in found} == set(TASKS[name].labels)
