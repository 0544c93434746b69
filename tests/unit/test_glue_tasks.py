"""The Python of scripts/glue: the layouts of GLUE's files, a checkpoint's model built again, the table of many runs."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

import embinit_fairseq  # noqa: F401
from embinit_fairseq.errors import CheckpointError, DataError, OptionError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "glue"))

import mismatched
import model_options
import table
from tasks import TASKS, constant, extract, finetuning_options, names, read_examples, task_options

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
    for file in ("train", "dev", "dev_matched", "dev_mismatched"):
        (tmp_path / f"{file}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    extract(TASKS[name], tmp_path, tmp_path)
    for split in ("train", *(split for split, _ in TASKS[name].dev)):
        columns = [
            (tmp_path / f"{split}.input{at}").read_bytes().decode().split("\n")[:-1] for at in range(len(sentences[0]))
        ]
        assert [list(pair) for pair in zip(*columns)] == sentences
        assert (tmp_path / f"{split}.label").read_text().splitlines() == labels
    classes = (tmp_path / "label.dict").read_text().split()[::2] if TASKS[name].labels else []
    assert tuple(classes) == TASKS[name].labels


def test_lines_without_a_usable_label_are_counted(tmp_path, capsys):
    for name, number in (("QQP", 2), ("MNLI", 1)):
        (tmp_path / f"{name}.tsv").write_text(FILES[name][0])
        list(read_examples(TASKS[name], tmp_path / f"{name}.tsv"))
        assert f"{name}.tsv: {number} lines" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("RTE", b"index\tsentence1\tlabel\n", "no column sentence2"),
        ("RTE", FILES["RTE"][0].encode() + b"2\tA.\tB.\tmaybe\n", "line 4: the label 'maybe'"),
        ("SST-2", b"sentence\tlabel\nfine\t1\nno label\n", "line 3: 1 fields; expected 2"),
        ("STS-B", FILES["STS-B"][0].replace("5.0", "nan").encode(), "line 3: the label 'nan'"),
        ("SST-2", b"sentence\tlabel\n", "get the file again"),
        ("CoLA", b"a\t1\t\tfine\nb\t1\t\t\xff\n", "after line 2: damaged"),
        ("CoLA", None, "set DATA"),
    ],
)
def test_bad_files_are_named(name, content, named, tmp_path):
    path = tmp_path / "train.tsv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"train\.tsv.*{named}"):
        list(read_examples(TASKS[name], path))


def test_a_damaged_archive(tmp_path):
    (tmp_path / "train.tsv.gz").write_bytes(gzip.compress(FILES["CoLA"][0].encode() * 1000)[:-20])
    with pytest.raises(DataError, match="get the file again"):
        list(read_examples(TASKS["CoLA"], tmp_path / "train.tsv"))


def test_options_and_constant_answers(tmp_path):
    assert task_options(TASKS["MNLI"]) == "--num-classes 3 --valid-subset valid,valid1"
    metrics = "--regression-target --glue-metrics pearson spearman --best-checkpoint-metric pearson"
    assert finetuning_options(TASKS["STS-B"]) == f"{metrics} --maximize-best-checkpoint-metric --max-epoch 10"
    assert [name for name, task in TASKS.items() if task.epochs == 5] == ["QQP", "MNLI", "QNLI"]
    assert [name for name, task in TASKS.items() if task.metrics[0] == "mcc"] == ["CoLA"]
    assert constant(TASKS["MRPC"], list("1011")) == {"accuracy": 75.0, "f1": pytest.approx(100 * 2 * 0.75 / 1.75)}
    assert constant(TASKS["CoLA"], list("1011")) == {"mcc": 0.0, "accuracy": 75.0}
    with pytest.raises(OptionError, match="set DATA"):
        names(tmp_path)
    for name in ("RTE", "CoLA"):
        (tmp_path / name).mkdir()
    assert names(tmp_path) == ["CoLA", "RTE"]


@pytest.mark.data
@pytest.mark.parametrize(("name", "examples"), [("CoLA", 1043), ("MRPC", 408), ("RTE", 277), ("SST-2", 872)])
def test_the_real_files(name, examples, data_dir):
    found = list(read_examples(TASKS[name], data_dir / "glue" / name / "dev.tsv"))
    assert len(found) == examples
    assert {label for _, label in found} == set(TASKS[name].labels)


# ---- the model of a checkpoint ---------------------------------------------------------------------------------------

COMMON = ["data", "--task", "sentence_prediction", "--num-classes", "2", "--criterion", "sentence_prediction_metrics"]
MODELS = {
    "roberta": ["--encoder-layers", "2", "--layernorm-embedding", "--dropout", "0.25", "--max-positions", "17"],
    "tupe_tiny": ["--rel-pos", "--embedding-normalize", "--tupe-reset", "paper", "--dropout", "0.0"],
    "embinit_classifier": ["--pooling", "cls", "--encoder-embed-dim", "30", "--encoder-attention-heads", "3"],
}


def saved_model(words):
    """The model's options as fairseq's trainer saves them: plain data, or the flat namespace of an old architecture."""
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), [*COMMON, *words]))
    return OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)["model"]


def as_dict(model):
    values = model if isinstance(model, dict) else vars(model)
    return {key: value for key, value in values.items() if key not in ("warmup_updates", "lr")}


@pytest.mark.parametrize("arch", list(MODELS))
def test_the_same_options_come_back(arch, tmp_path, capsys, monkeypatch):
    first, path = saved_model(["--arch", arch, *MODELS[arch]]), tmp_path / "checkpoint.pt"
    torch.save({"cfg": {"model": first}, "model": {}, "optimizer_history": [{"num_updates": 321}]}, path)
    monkeypatch.setattr(sys, "argv", ["model_options", str(path)])
    model_options.main()
    updates, *words = capsys.readouterr().out.splitlines()
    assert (updates, words[:2]) == ("321", ["--arch", arch])
    assert as_dict(saved_model(words)) == as_dict(first)
    assert as_dict(saved_model(["--arch", arch])) != as_dict(first)  # the options were not lost on both ways


def test_models_that_cannot_classify_and_other_dictionaries_are_refused(tmp_path):
    for arch in ("tupe_tiny", "bert_r_tiny", "electra_tupe_base", "roberta_base", "bart_base"):
        model_options.check_architecture(arch, None)
    with pytest.raises(CheckpointError, match=r"c\.pt.*--arch transformer.*give a checkpoint"):
        model_options.check_architecture("transformer", Path("c.pt"))
    dictionary = tmp_path / "dict.txt"
    dictionary.write_text("a 1\nb 1\n")  # and <s>, <pad>, </s>, <unk>, <mask>
    state = {"model": {"encoder.sentence_encoder.embed_tokens.weight": torch.zeros(7, 2)}}
    model_options.check_dictionary(state, tmp_path / "c.pt", dictionary)
    dictionary.write_text("a 1\n")
    with pytest.raises(CheckpointError, match=r"dict\.txt has 6 symbols.*c\.pt 7: .*prepare\.sh"):
        model_options.check_dictionary(state, tmp_path / "c.pt", dictionary)


def test_what_cannot_be_written_as_words_is_an_error(tmp_path):
    for values, named in (
        ({"encoder_layers": 2.5}, "--encoder-layers=2.5"),
        ({"encoder_layers_to_keep": [0]}, "to_keep"),
    ):
        with pytest.raises(CheckpointError, match=named):
            model_options.architecture_options("roberta", values)
    with pytest.raises(CheckpointError, match="--arch"):
        model_options.model_configuration({"model": {}}, tmp_path / "c.pt")


# ---- many runs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def add_run(tmp_path):
    """Adds a finished run to tmp_path/runs. epochs: the metrics of each epoch, of which the first one decides."""

    def add(task, model, lr, seed, epochs, **scores):
        folder, metric = tmp_path / "runs" / f"{task}.{model}.{lr}.{seed}", next(iter(epochs[0]))
        folder.mkdir(parents=True)
        labels = {"task": task, "model": model, "seed": str(seed), "updates": "12000"}
        result = {
            "labels": {**labels, "constant": json.dumps(dict.fromkeys(epochs[0], 50.0))},
            "command": f"fairseq-train data --lr {lr}",
            "epochs": {str(at): {f"valid_{k}": v for k, v in epoch.items()} for at, epoch in enumerate(epochs, 1)},
            "best": {"epoch": 1 + max(range(len(epochs)), key=lambda at: (epochs[at][metric], at))},
            "parameters": {"all": 1234},
            "data": {"all": f"hash of {task}"},
            "scores": scores,
            "time": {"wall_s": 60.0 * seed},
        }
        (folder / "result.json").write_text(json.dumps(result))

    return add


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A function that makes the tables: (rows of the first one by model, rows of the second one, the text)."""

    def make():
        monkeypatch.setattr(sys, "argv", ["table", str(tmp_path / "runs"), f"--output={tmp_path / 'out'}"])
        (tmp_path / "out").mkdir()
        table.main()
        text = (tmp_path / "out" / "results.md").read_text()
        first, second = (
            [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if line.startswith("|")]
            for part in text.split("## All learning rates")
        )
        return {row[0]: row[1:] for row in first}, second[2:], text

    return make


def test_median_over_seeds_of_the_best_epochs_at_the_best_rate(add_run, tables):
    for seed, value in enumerate((10.0, 20.0, 90.0), 1):  # the mean of 2e-5 is higher, its median lower
        add_run("CoLA", "small", "2e-5", seed, [{"mcc": value, "accuracy": 70.0}, {"mcc": 5.0, "accuracy": 71.0}])
    for seed, value in enumerate((24.0, 22.0, 26.0), 1):
        add_run("CoLA", "small", "3e-5", seed, [{"mcc": 1.0, "accuracy": 70.0}, {"mcc": value, "accuracy": 71.0}])
    first, second, text = tables()
    assert first["model"] == ["CoLA (Matthews)", "mean"]
    assert first["small"] == ["24.0 (3e-5)", "24.0"]
    assert first["(constant answer)"] == ["50.0", "50.0"]
    assert second == [
        ["CoLA", "small", "2e-5", "3", "20.00", "10.00", "90.00", "5.00", "1", "2.0"],
        ["CoLA", "small", "3e-5", "3", "**24.00**", "22.00", "26.00", "24.00", "2", "2.0"],
    ]
    for note in ("`small: 12,000 updates`", "`small: 1,234`", "`CoLA: 2`", "`CoLA: hash of CoLA`"):
        assert note in text


def test_second_metrics_equal_rates_and_what_is_missing(add_run, tables, tmp_path):
    add_run("MRPC", "a", "5e-5", 1, [{"accuracy": 70.0, "f1": 80.0}, {"accuracy": 69.0, "f1": 85.0}])
    add_run("MRPC", "a", "2e-5", 1, [{"accuracy": 70.0, "f1": 81.0}])
    add_run("STS-B", "a", "2e-5", 1, [{"pearson": 30.0, "spearman": 50.0}, {"pearson": 40.0, "spearman": 45.0}])
    add_run("MNLI", "a", "2e-5", 1, [{"accuracy": 50.0}], mismatched={"accuracy": 42.0})
    add_run("MNLI", "b", "2e-5", 1, [{"accuracy": 10.0}], mismatched={"accuracy": 11.0})
    (tmp_path / "runs/RTE.b").mkdir()
    (tmp_path / "runs/RTE.b/training.json").write_text('{"labels": {}}')
    first, _, text = tables()
    titles = ["MRPC (accuracy / F1)", "STS-B (Pearson / Spearman)", "MNLI (accuracy / mismatched)", "mean"]
    assert first["model"] == titles
    assert first["a"] == ["70.0 / 81.0 (2e-5)", "40.0 / 45.0 (2e-5)", "50.0 / 42.0 (2e-5)", "53.3"]
    assert first["b"] == ["-", "-", "10.0 / 11.0 (2e-5)", "-"]
    assert "RTE.b." in text[text.index("Not finished") :]


def test_the_matched_set_decides_and_the_highest_mismatched_is_kept_beside_it(tmp_path):
    values = [99.0, 48.0, 58.0, 59.5, 62.0, 62.0]
    records = [json.dumps({"epoch": max(at, 1), "valid1_accuracy": str(v)}) for at, v in enumerate(values)]
    (tmp_path / "train.log").write_text("".join(f"2025-01-01 00:00:00 | INFO | valid1 | {r}\n" for r in records))
    (tmp_path / "result.json").write_text('{"labels": {}, "best": {"epoch": 3}, "scores": {"test_accuracy": 1.0}}')
    mismatched.add_scores(tmp_path)
    # of equal ones the last, as fairseq has it; of an epoch that was repeated the later
    expected = {"accuracy": 59.5, "highest": 62.0, "epoch": 5}
    assert json.loads((tmp_path / "result.json").read_text())["scores"] == {
        "test_accuracy": 1.0,
        "mismatched": expected,
    }
    (tmp_path / "result.json").write_text('{"labels": {}, "best": {"epoch": 6}, "scores": {}}')
    with pytest.raises(DataError, match=r"train\.log.*epoch 6.*--valid-subset valid,valid1"):
        mismatched.add_scores(tmp_path)
