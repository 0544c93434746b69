"""embinit compare: rows, means, paired bootstrap, warnings, errors."""

from __future__ import annotations

import json
import statistics
import sys

import numpy as np
import pytest
from run_folders import BLEU, write_run, write_texts
from sacrebleu.metrics import BLEU as Bleu
from sacrebleu.metrics import CHRF

from embinit_fairseq.cli.main import main

REFERENCE = [
    f"the {a} sees the {b} in the {c}" for a in ("dog", "cat", "man") for b in ("tree", "house") for c in "xyz"
]
WORSE = [line.replace("sees the", "see").replace("tree", "house") for line in REFERENCE]
BETTER = [line.replace("cat", "dog") for line in REFERENCE]


def score(value: float, signature: str = BLEU) -> dict:
    return {"bleu": {"score": value, "signature": signature}}


@pytest.fixture
def compare(capsys):
    """A call of `embinit compare --json`: its record."""

    def call(*arguments: object) -> dict:
        assert main(["compare", *map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def refused(capsys):
    """A call that is refused: its message of one line."""

    def call(*arguments: object, command: tuple[str, ...] = ("compare",)) -> str:
        assert main([*command, *map(str, arguments)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1, captured.err
        return captured.err

    return call


def cells(text: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return {line[0]: line[1:] for line in lines}


def test_mean_and_sigma_over_seeds(tmp_path, compare, capsys) -> None:
    losses = {1: [3.0, 2.0, 2.5], 2: [3.5, 3.0, 2.25], 10: [4.0, 2.75, 2.75]}
    for seed, values in losses.items():
        write_run(
            tmp_path / f"x{seed}", {"init": "xavier", "arch": "t", "seed": str(seed)}, values, scores=score(30.0 + seed)
        )
    write_run(tmp_path / "n", {"init": "none", "arch": "t", "seed": "1"}, [5.0, 4.0, 4.0])
    (table,) = compare(tmp_path)["tables"]
    assert [row["name"] for row in table["rows"]] == ["none", "xavier"]
    none, xavier = (row["summary"] for row in table["rows"])
    best = [2.0, 2.25, 2.75]
    expected = {"mean": statistics.fmean(best), "sd": statistics.stdev(best)}
    assert xavier["val. loss (bits)"] == pytest.approx(expected)
    assert xavier["at epoch"]["mean"] == pytest.approx((2 + 3 + 3) / 3)  # of equal ones the last
    assert xavier["BLEU"]["mean"] == pytest.approx(30 + 13 / 3)
    assert none["val. loss (bits)"] == {"mean": 4.0, "sd": None}
    assert [run["seed"] for run in table["rows"][1]["runs"]] == ["1", "2", "10"]
    assert table["rows"][1]["mean"] == pytest.approx({"1": 3.5, "2": (2 + 3 + 2.75) / 3, "3": 2.5})
    assert any("different seeds" in text for text in table["warnings"])
    assert main(["compare", str(tmp_path)]) == 0
    row = cells(capsys.readouterr().out)["none"]
    assert row[:2] == ["1", "4.000 ± -"]


def test_a_higher_metric_and_metrics_of_ones_own_choice(tmp_path, compare) -> None:
    epochs = {
        str(epoch): {"valid_loss": loss, "valid_accuracy": accuracy}
        for epoch, loss, accuracy in ((1, 1.0, 60.0), (2, 2.0, 70.0))
    }
    changes = {"metric": "valid_accuracy", "higher_is_better": True, "epochs": epochs, "best": {}}
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [1.0, 2.0], **changes)
    (table,) = compare(tmp_path)["tables"]
    assert table["rows"][0]["runs"][0]["best"]["epoch"] == 2
    assert table["rows"][0]["summary"]["best val. accuracy"]["mean"] == 70.0
    (table,) = compare(tmp_path, "--metric", "valid_loss")["tables"]
    assert table["rows"][0]["runs"][0]["best"]["epoch"] == 1
    assert not table["higher_is_better"]


def test_rows_are_made_by_the_labels_that_are_named(tmp_path, compare) -> None:
    for init in ("none", "xavier"):
        for layers in "12":
            write_run(tmp_path / f"{init}{layers}", {"init": init, "layers": layers, "seed": "1"}, [float(layers)])
    (table,) = compare(tmp_path)["tables"]
    assert [row["name"] for row in table["rows"]] == [
        "none, layers 1",
        "none, layers 2",
        "xavier, layers 1",
        "xavier, layers 2",
    ]
    (table,) = compare(tmp_path, "--by", "layers")["tables"]
    assert [(row["name"], len(row["runs"])) for row in table["rows"]] == [("layers 1", 2), ("layers 2", 2)]


@pytest.mark.parametrize(
    ("changes", "tables"),
    [
        ({"data": {"all": "e" * 64}}, 2),
        ({"metric": "valid_accuracy"}, 2),
        # the same test set and dictionaries: only training or validation data differ
        ({"data": {"all": "e" * 64, "test.bin": "t", "dict.txt": "v"}}, 1),
        ({"data": {"all": "e" * 64, "test.bin": "u", "dict.txt": "v"}}, 2),
    ],
)
def test_what_cannot_be_compared_is_not_in_one_table(tmp_path, compare, capsys, changes, tables) -> None:
    common = {"data": {"all": "d" * 64, "test.bin": "t", "dict.txt": "v"}}
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [1.0], **common)
    write_run(tmp_path / "b", {"init": "xavier", "seed": "1"}, [2.0], **{**common, **changes})
    found = compare(tmp_path)["tables"]
    assert len(found) == tables
    if tables == 1:
        assert any("training or validation data differ with seed 1" in text for text in found[0]["warnings"])
        return
    assert len({table["title"] for table in found}) == 2
    assert main(["compare", str(tmp_path)]) == 0
    assert "**2 tables: task, data or metric differ; do not compare figures across them.**" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("second", "warning"),
    [
        ({"scores": score(20.0, BLEU.replace("13a", "intl"))}, "BLEU of different signatures cannot be compared"),
        (
            {"command": "fairseq-train data --lr 2e-3 --criterion cross_entropy --seed 2"},
            "different options are averaged",
        ),
        ({"command": "fairseq-train data --lr 1e-3 --criterion other --seed 2"}, "losses of different --criterion"),
        ({"labels": {"init": "none", "seed": "1"}}, "2 runs with seed 1"),
        ({"epochs": {"1": {"valid_loss": 1.0, "valid_num_updates": 1.0}}}, "runs of different length"),
        ({"command": "fairseq-train other/data --seed 2 --lr 1e-3 --criterion cross_entropy --save-dir x"}, ""),
    ],
)
def test_warnings_within_a_row(tmp_path, compare, second, warning) -> None:
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [1.0, 2.0], scores=score(20.0))
    second = {"labels": {"init": "none", "seed": "2"}, "scores": score(20.0), **second}
    write_run(tmp_path / "b", second.pop("labels"), [1.0, 2.0], **second)
    (table,) = compare(tmp_path)["tables"]
    text = " ".join(table["warnings"])
    assert warning in text
    assert bool(text) == bool(warning), text
    if warning:
        assert str(tmp_path / "b") in text


def test_unfinished_runs_are_counted_and_named(tmp_path, compare, capsys) -> None:
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [1.0])
    half = write_run(tmp_path / "b", {"init": "none", "seed": "2"}, [], finished=False)
    record = compare(tmp_path)
    assert record["unfinished"] == [str(half)]
    assert len(record["tables"][0]["rows"][0]["runs"]) == 1
    assert main(["compare", str(tmp_path)]) == 0
    assert f"1 run not finished: {half}." in capsys.readouterr().out
    line = '{"epoch": 1, "valid_loss": "0.5", "valid_num_updates": "10"}'
    (half / "train.log").write_text(f"2024-01-01 10:00:00 | INFO | valid | {line}\n")
    record = compare(tmp_path, "--unfinished")
    assert record["unfinished"] == []
    assert record["tables"][0]["rows"][0]["summary"]["val. loss (bits)"]["mean"] == 0.75


def expected_p(system: list[str], baseline: list[str], metric, samples: int, seed: int) -> float:
    """Koehn 2004 in plain words: the share of resampled test sets whose difference, moved to mean 0, is as large."""
    chosen = np.random.default_rng(seed).choice(len(REFERENCE), size=(samples, len(REFERENCE)), replace=True)

    def of(lines: list[str], sample) -> float:
        return metric.corpus_score([lines[i] for i in sample], [[REFERENCE[i] for i in sample]]).score

    everything = range(len(REFERENCE))
    difference = abs(of(system, everything) - of(baseline, everything))
    differences = np.array([abs(of(system, sample) - of(baseline, sample)) for sample in chosen])
    return (1 + int((np.abs(differences - differences.mean()) >= difference).sum())) / (1 + samples)


def test_paired_bootstrap_seed_by_seed(tmp_path, compare) -> None:
    capitals = [line.capitalize() for line in BETTER]  # case:lc in the signature: the same score
    for name, seed, lines in (
        ("none", 1, WORSE),
        ("none", 2, REFERENCE),
        ("xavier", 1, capitals),
        ("xavier", 3, BETTER),
    ):
        run = write_run(tmp_path / f"{name}{seed}", {"init": name, "seed": str(seed)}, [1.0], scores=score(1.0))
        write_texts(run, lines, REFERENCE)
    (table,) = compare(tmp_path, "--samples", "60", "--seed", "7")["tables"]
    (test,) = table["bootstrap"]  # of the seeds 1, 2 and 3 both rows have only the first
    assert (table["baseline"], test["row"], test["seed"]) == ("none", "xavier", "1")
    for name, metric in (("bleu", Bleu(lowercase=True)), ("chrf", CHRF(lowercase=True))):
        system, baseline = (metric.corpus_score(lines, [REFERENCE]).score for lines in (capitals, WORSE))
        found = test[name]
        assert (found["system"], found["baseline"]) == pytest.approx((system, baseline))
        assert found["difference"] == pytest.approx(system - baseline)
        assert found["p"] == pytest.approx(expected_p(capitals, WORSE, metric, 60, 7))
    assert "seed:7" in test["bleu"]["signature"]
    assert "bs:60" in test["bleu"]["signature"]
    # chrF was not recorded and is counted now, also for the runs without a partner
    assert table["rows"][0]["summary"]["chrF"]["sd"] > 0
    assert table["rows"][0]["summary"]["BLEU"] == {"mean": 1.0, "sd": 0.0}  # as recorded
    (table,) = compare(tmp_path, "--baseline", "xavier", "--samples", "20")["tables"]
    assert table["bootstrap"][0]["row"] == "none"
    assert table["bootstrap"][0]["bleu"]["difference"] < 0


def test_a_reference_can_be_named(tmp_path, compare) -> None:
    for name, lines in (("none", WORSE), ("xavier", BETTER)):
        write_texts(write_run(tmp_path / name, {"init": name, "seed": "1"}, [1.0]), lines, None)
    (table,) = compare(tmp_path)["tables"]
    assert table["bootstrap"] == []
    assert any("--reference" in note and str(tmp_path / "none") in note for note in table["notes"])
    reference = tmp_path / "reference"
    reference.write_text("\n".join(REFERENCE) + "\n")
    (table,) = compare(tmp_path, "--reference", reference, "--samples", "10")["tables"]
    assert table["bootstrap"][0]["bleu"]["difference"] > 0
    assert table["rows"][1]["summary"]["BLEU"]["mean"] == pytest.approx(Bleu().corpus_score(BETTER, [REFERENCE]).score)


def test_a_reference_of_another_test_set_is_refused(tmp_path, compare, refused) -> None:
    metric = Bleu(lowercase=True)
    right = metric.corpus_score(BETTER, [REFERENCE]).score
    for name, recorded in (("none", right), ("xavier", right + 0.01)):
        run = write_run(tmp_path / name, {"init": name, "seed": "1"}, [1.0], scores=score(recorded))
        write_texts(run, BETTER, None)
    reference = tmp_path / "reference"
    reference.write_text("\n".join(REFERENCE) + "\n")
    (table,) = compare(tmp_path, "--reference", reference, "--samples", "10")["tables"]
    assert table["bootstrap"]
    reference.write_text("\n".join(reversed(REFERENCE)) + "\n")
    message = refused(tmp_path, "--reference", reference)
    assert f"--reference {reference}: gives " in message
    assert f"its record has {right:.1f}" in message


def test_texts_that_do_not_fit_are_refused(tmp_path, refused) -> None:
    for name, lines in (("none", WORSE), ("xavier", BETTER)):
        write_texts(write_run(tmp_path / name, {"init": name, "seed": "1"}, [1.0]), lines, REFERENCE)
    (tmp_path / "xavier" / "test.reference.text").write_text("\n".join(reversed(REFERENCE)) + "\n")
    assert "scored with different references" in refused(tmp_path)
    (tmp_path / "xavier" / "test.hypothesis.text").write_text("one line\n")
    message = refused(tmp_path)
    assert f"{tmp_path / 'xavier' / 'test.hypothesis.text'} has 1 line" in message
    assert "18" in message
    assert "translate the test set again" in message


def test_files_are_written_and_tables_need_no_pictures(tmp_path, compare, capsys, monkeypatch) -> None:
    write_run(tmp_path / "runs" / "a", {"init": "none", "seed": "1"}, [2.0, 1.0])
    out = tmp_path / "new" / "folder"
    record = compare(tmp_path / "runs", "--output", out)
    assert sorted(path.name for path in out.iterdir()) == ["curves.png", "results.json", "results.md"]
    assert json.loads((out / "results.json").read_text()) == record
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "| none | 1 |" in (out / "results.md").read_text()
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["compare", str(tmp_path / "runs"), "--output", str(out)]) == 0
    assert "pip install matplotlib" in capsys.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == ["results.json", "results.md"]  # no picture of other runs
    assert json.loads((out / "results.json").read_text())["files"] == [
        str(out / "results.md"),
        str(out / "results.json"),
    ]


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--by", "colour"], ["--by colour", "init, seed"]),
        (["--metric", "valid_bleu"], ["--metric valid_bleu", "valid_loss"]),
        (["--baseline", "glove"], ["--baseline glove", "none, xavier"]),
        (["--samples", "0"], ["--samples 0", "at least 1"]),
        (["--seed", "0"], ["--seed 0", "at least 1"]),
        (["--reference", "nowhere"], ["--reference nowhere", "no such file"]),
        (["nowhere"], ["nowhere: no such folder or log"]),
    ],
)
def test_wrong_options(tmp_path, refused, arguments, messages) -> None:
    for name in ("none", "xavier"):
        write_run(tmp_path / name, {"init": name, "seed": "1"}, [1.0])
    error = refused(tmp_path, *arguments)
    assert all(message in error for message in messages), error


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "not JSON"), ("[1]", "not the record of a run"), ('{"tokens_per_s": 3}', "not the record of a run")],
)
def test_broken_records_are_named(tmp_path, refused, content, reason) -> None:
    run = write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [1.0])
    (run / "result.json").write_text(content)
    message = refused(tmp_path)
    assert str(run / "result.json") in message
    assert reason in message
    assert "start the run again" in message


def test_nothing_finished_and_nothing_there(tmp_path, refused) -> None:
    (tmp_path / "empty").mkdir()
    assert "no run in it" in refused(tmp_path / "empty")
    write_run(tmp_path / "runs" / "a", {"init": "none", "seed": "1"}, [], finished=False)
    assert "not finished yet" in refused(tmp_path / "runs")


def test_a_seed_with_two_runs_is_not_tested(tmp_path, compare) -> None:
    """None of them is taken by accident; a warning says it."""
    for name, init in (("a", "none"), ("b", "xavier"), ("c", "xavier")):
        write_texts(write_run(tmp_path / name, {"init": init, "seed": "1"}, [1.0]), BETTER, REFERENCE)
    assert compare(tmp_path, "--samples", "5")["tables"][0]["bootstrap"] == []


def test_other_dictionaries_make_other_test_data(tmp_path, compare) -> None:
    for name, words in (("none", "v"), ("xavier", "w")):
        data = {"all": name, "test.bin": "t", "dict.txt": words}
        write_run(tmp_path / name, {"init": name, "seed": "1"}, [1.0], data=data)
    assert len(compare(tmp_path)["tables"]) == 2


def test_the_table_of_tests_has_the_difference_and_then_p(tmp_path, compare, capsys) -> None:
    for name, lines in (("none", WORSE), ("xavier", BETTER)):
        write_texts(write_run(tmp_path / name, {"init": name, "seed": "1"}, [1.0]), lines, REFERENCE)
    (test,) = compare(tmp_path, "--samples", "20")["tables"][0]["bootstrap"]
    assert main(["compare", str(tmp_path), "--samples", "20"]) == 0
    expected = ["1"]
    for score in (test["bleu"], test["chrf"]):
        expected += [f"{score['difference']:+.1f}", f"{score['p']:.3f}"]
    assert cells(capsys.readouterr().out)["xavier"] == expected  # in the second table


def test_runs_that_patience_has_stopped_may_differ_in_length(tmp_path, compare) -> None:
    command = "fairseq-train data --patience 3 --seed"
    for seed, losses in (("1", [1.0, 2.0]), ("2", [1.0])):
        write_run(tmp_path / seed, {"init": "none", "seed": seed}, losses, command=f"{command} {seed}")
    assert compare(tmp_path)["tables"][0]["warnings"] == []
