"""embinit compare: rows, means, paired bootstrap, warnings, errors."""

from __future__ import annotations

import csv
import json
import statistics
import sys

import numpy as np
import pytest
from run_folders import BLEU, json_messages, write_log, write_run, write_texts
from sacrebleu.metrics import BLEU as Bleu
from sacrebleu.metrics import CHRF

from embinit_fairseq.cli.main import main
from embinit_fairseq.runs import metrics

REFERENCE = [f"the {a} sees the {b} in the {c}" for a in ("dog", "cat") for b in ("tree", "house") for c in "xyz"]
WORSE = [line.replace("sees the", "see").replace("tree", "house") for line in REFERENCE]
BETTER = [line.replace("cat", "dog") for line in REFERENCE]
#: worse by so little that the p of the bootstrap depends on its samples
NEARLY = [line.replace("dog", "cat").replace("tree in the x", "house in the x") for line in REFERENCE]
NONE1 = {"init": "none", "seed": "1"}


def bleu(lines: list[str]) -> float:
    return Bleu(lowercase=True).corpus_score(lines, [REFERENCE]).score


def score(value: float, signature: str | None = BLEU) -> dict:
    return {"bleu": {"score": value, "signature": signature}}


@pytest.fixture
def compare(printed):
    """Tables of a call of `embinit compare`."""
    return lambda *arguments: printed("compare", *arguments)["tables"]


def test_mean_and_sigma_over_seeds(tmp_path, compare, shown) -> None:
    losses = {"1": [3.0, 2.0, 2.5], "2": [3.5, 3.0, 2.25], "10": [4.0, 2.75, 2.75]}
    for seed, values in losses.items():
        write_run(tmp_path / seed, {"init": "xavier", "seed": seed}, values, scores=score(30.0 + int(seed)))
    slot = {"matched_absorption_ratio": 9.25, "absorption_ratio": 4.0}  # reports of earlier versions: the second only
    write_run(tmp_path / "n", NONE1, [5.0, 4.0, 4.0], init={"slots": {"encoder": slot}})
    (table,) = compare(tmp_path)
    assert [row["name"] for row in table["rows"]] == ["none", "xavier"]
    none, xavier = (row["summary"] for row in table["rows"])
    assert xavier["val. loss (bits)"] == pytest.approx({"mean": 7 / 3, "sd": statistics.stdev([2.0, 2.25, 2.75])})
    assert xavier["at epoch"]["mean"] == pytest.approx((2 + 3 + 3) / 3)  # of equal ones the last
    assert xavier["BLEU"]["mean"] == pytest.approx(30 + 13 / 3)
    assert none["val. loss (bits)"] == {"mean": 4.0, "sd": None}
    assert [run["seed"] for run in table["rows"][1]["runs"]] == ["1", "2", "10"]
    assert table["rows"][1]["mean"] == pytest.approx({"1": 3.5, "2": (2 + 3 + 2.75) / 3, "3": 2.5})
    assert any("different seeds" in text for text in table["warnings"])
    titles = ["absorption ratio of matched rows, encoder", "absorption ratio, encoder"]
    assert [none[title]["mean"] for title in titles] == list(slot.values())
    out = shown("compare", tmp_path)
    common = "* parameters: `1,000`", "* hardware: `a CPU, 2 cores, 1 thread a run`", "* seeds: `1`; `10`; `2`"
    assert all(part in out for part in ("| none | 1 | 4.000 | ", " | ".join(titles), *common))


def test_a_row_is_named_by_the_labels_that_distinguish_it(tmp_path, compare) -> None:
    for arch, init in (("a", "none"), ("a", "xavier"), ("b", "xavier")):
        write_run(tmp_path / f"{arch}.{init}", {"arch": arch, "init": init, "size": "small", "seed": "1"}, [1.0])
    assert [row["name"] for row in compare(tmp_path)[0]["rows"]] == ["a, none", "a, xavier", "b, xavier"]


def test_unfinished_runs_are_counted_and_named(tmp_path, printed, shown, refused) -> None:
    half = write_run(tmp_path / "b", {"init": "none", "seed": "2"}, [], finished=False)
    assert "--unfinished" in refused("compare", half)
    write_run(tmp_path / "a", NONE1, [1.0])
    assert printed("compare", tmp_path)["unfinished"] == [str(half)]
    assert f"1 run not finished: {half}." in shown("compare", tmp_path)
    write_log(half / "train.log", json_messages())
    (table,) = printed("compare", tmp_path, "--unfinished")["tables"]
    assert table["rows"][0]["summary"]["val. loss (bits)"]["mean"] == (1.0 + 4.0) / 2


DATA = {"all": "d", "test.bin": "t", "dict.txt": "v"}
COMMAND = "fairseq-train data --lr 1e-3 --criterion"
OTHER = {"labels": {"init": "x", "seed": "1"}}


@pytest.mark.parametrize(
    ("second", "tables", "warning"),
    [
        ({"metric": "valid_accuracy"}, 2, ""),
        ({"data": {**DATA, "all": "e", "test.bin": "u"}}, 2, ""),
        ({"data": {**DATA, "all": "e", "dict.txt": "w"}}, 2, ""),
        ({"data": {**DATA, "all": "e"}, **OTHER}, 1, ""),  # the same test set and dictionaries
        ({"scores": score(20.0, BLEU.replace("13a", "intl"))}, 1, "BLEU of different signatures"),
        ({"command": f"{COMMAND} cross_entropy --seed 2 --max-epoch 3"}, 1, "averaged (--max-epoch)"),
        ({"labels": NONE1}, 1, "2 runs with seed 1"),
        ({"command": f"{COMMAND} label_smoothed_cross_entropy --seed 1", **OTHER}, 1, "criteria"),
        ({"command": f"{COMMAND} fused_cross_entropy --seed 1 --save-dir x --num-workers 2", **OTHER}, 1, ""),
    ],
)
def test_what_is_in_one_table_and_what_warns(tmp_path, compare, shown, second, tables, warning) -> None:
    best = {**score(20.0), "checkpoint": "a/checkpoint_best.pt"}
    write_run(tmp_path / "a", NONE1, [1.0, 2.0], scores=best, data=DATA)
    second = {"labels": {"init": "none", "seed": "2"}, "scores": score(20.0), "data": DATA, **second}
    write_run(tmp_path / "b", second.pop("labels"), [1.0, 2.0], **second)
    found = compare(tmp_path)
    assert len({table["title"] for table in found}) == len(found) == tables
    assert ("data" in found[0]["title"]) == (tables == 2 and "metric" not in second)  # one data set has no name
    assert ("do not compare figures across them" in shown("compare", tmp_path)) == (tables == 2)
    text = " ".join(found[0]["warnings"])
    assert warning in text
    assert bool(text) == bool(warning), text


@pytest.fixture
def two_runs(tmp_path):
    """The folder of two runs with translations and their BLEU."""

    def make(first: list[str], second: list[str], keep: bool = True, signature: str | None = BLEU):
        for name, lines in (("none", first), ("xavier", second)):
            labels = {"init": name, "seed": "1"}
            run = write_run(tmp_path / "runs" / name, labels, [1.0], scores=score(bleu(lines), signature))
            write_texts(run, lines, REFERENCE if keep else None)
        return tmp_path / "runs"

    return make


def expected_p(system: list[str], baseline: list[str], metric, samples: int) -> float:
    """Koehn 2004 as sacrebleu counts: the share of resampled test sets whose absolute difference, moved to mean 0,
    exceeds that of the test set."""
    everything = range(len(REFERENCE))
    chosen = np.random.default_rng(12345).choice(len(REFERENCE), size=(samples, len(REFERENCE)), replace=True)

    def difference(sample) -> float:
        reference = [[REFERENCE[i] for i in sample]]
        found = [metric.corpus_score([lines[i] for i in sample], reference).score for lines in (system, baseline)]
        return abs(found[0] - found[1])

    differences = np.array([difference(sample) for sample in chosen])
    larger = differences - differences.mean() > difference(everything)
    return (1 + int(larger.sum())) / (1 + samples)


def test_paired_bootstrap_seed_by_seed(tmp_path, compare, shown, monkeypatch) -> None:
    monkeypatch.setattr(metrics, "SAMPLES", 60)
    capitals = [line.capitalize() for line in BETTER]  # case:lc in the signature: the same score
    of_seed = {("none", "1"): NEARLY, ("none", "2"): REFERENCE, ("xavier", "1"): capitals, ("xavier", "3"): BETTER}
    for (name, seed), lines in of_seed.items():
        scores = {**score(1.0), "chrf": {"score": 2.0, "signature": "case:lc"}}
        run = write_run(tmp_path / f"{name}{seed}", {"init": name, "seed": seed}, [1.0], scores=scores)
        write_texts(run, lines, REFERENCE)
    (table,) = compare(tmp_path)
    (test,) = table["bootstrap"]  # of the seeds 1, 2 and 3 both rows have only the first
    assert (table["baseline"], test["row"], test["seed"]) == ("none", "xavier", "1")

    for name, metric in (("bleu", Bleu(lowercase=True)), ("chrf", CHRF(lowercase=True))):
        system, baseline = (metric.corpus_score(lines, [REFERENCE]).score for lines in (capitals, NEARLY))
        found = [test[name][key] for key in ("system", "baseline", "difference", "p")]
        expected = [system, baseline, system - baseline, expected_p(capitals, NEARLY, metric, 60)]
        assert found == pytest.approx(expected)
    assert table["rows"][0]["summary"]["BLEU"] == {"mean": 1.0, "sd": 0.0}  # as recorded
    options = ["--baseline", "xavier"]
    ((test,),) = (table["bootstrap"] for table in compare(tmp_path, *options))
    assert (test["row"], test["bleu"]["difference"] < 0) == ("none", True)
    figures = [f"{test[name]['difference']:+.1f} | {test[name]['p']:.3f}" for name in ("bleu", "chrf")]
    assert f"| none | 1 | {' | '.join(figures)} |" in shown("compare", tmp_path, *options)
    again = write_run(tmp_path / "again", {"init": "xavier", "seed": "1"}, [1.0], scores=score(1.0))
    write_texts(again, BETTER, REFERENCE)
    (table,) = compare(tmp_path)
    assert table["bootstrap"] == [], "which of the two runs of seed 1?"


def test_files_are_written_and_tables_need_no_pictures(tmp_path, capsys, printed, refused, monkeypatch) -> None:
    """Labels do not break the table, and dollars are no mathematics; files of others are left alone."""
    for seed, name in enumerate(("a|b", "first\n| second | $x_{$")):
        run = write_run(tmp_path / "runs" / str(seed), {"init": name, "seed": "1"}, [2.0], scores=score(50.0))
        write_texts(run, WORSE, REFERENCE)
    out, call = tmp_path / "new" / "folder", ("compare", tmp_path / "runs", "--output")
    record = printed(*call, out, "--csv", tmp_path / "table.csv")
    assert json.loads((out / "results.json").read_text()) == record
    cells = list(csv.DictReader((tmp_path / "table.csv").open(newline="")))
    rows = [row for table in record["tables"] for row in table["rows"]]
    expected = {(row["name"], column): each["mean"] for row in rows for column, each in row["summary"].items() if each}
    assert {(cell["row"], cell["column"]): float(cell["mean"]) for cell in cells} == expected
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    lines = (out / "results.md").read_text().splitlines()
    assert f"## {record['tables'][0]['title']}" in lines
    rows = [line for line in lines if line.startswith(("| a\\|b | 1 | ", "| first \\| second \\| $x_{$ | 1 | "))]
    assert len({row.replace("\\|", "").count("|") for row in rows[:2]}) == 1
    assert any(line.startswith("| against a\\|b | seed |") for line in lines)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*map(str, (*call, out))]) == 0
    assert "pip install matplotlib" in capsys.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == ["results.json", "results.md"]  # no picture of other runs
    (out / "results.md").unlink()
    (out / "results.json").write_text('{"tables": "by hand"}')
    message = refused(*call, out)
    assert all(part in message for part in (f"--output {out}: results.json", "choose another --output"))


def test_texts_without_a_reference_and_texts_that_do_not_fit(two_runs, compare, refused) -> None:
    for lacking in ({"keep": False}, {"signature": None}):
        runs = two_runs(WORSE, BETTER, **lacking)
        (table,) = compare(runs)
        assert table["bootstrap"] == []
        assert any("score again" in note and str(runs / "none") in note for note in table["notes"])
    two_runs(WORSE, WORSE)
    (table,) = compare(runs)
    assert table["bootstrap"][0]["bleu"]["p"] == 1
    two_runs(WORSE, BETTER)
    (runs / "xavier" / "test.reference.text").write_text("\n".join(reversed(REFERENCE)) + "\n")
    assert "have different references" in refused("compare", runs)
    (runs / "xavier" / "test.hypothesis.text").write_text("one line\n")
    assert f"{runs / 'xavier' / 'test.hypothesis.text'} has 1 line, but the reference" in refused("compare", runs)
    two_runs(WORSE, BETTER, signature=BLEU.replace("13a", "martian"))
    assert "tok:martian" in refused("compare", runs)


def test_wrong_options(tmp_path, refused) -> None:
    for name in ("none", "xavier"):
        write_run(tmp_path / name, {"init": name, "seed": "1"}, [1.0])
    for option, remedy in (
        ("--by colour", "init, seed"),
        ("--metric valid_bleu", "valid_loss"),
        ("--baseline glove", "'none', 'xavier'"),
        ("--x seconds", "/none"),
    ):
        error = refused("compare", tmp_path, *option.split())
        assert all(part in error for part in (option, remedy))
