"""embinit compare: rows, means, paired tests and differences, warnings, errors."""

from __future__ import annotations

import csv
import itertools
import json
import re
import statistics
import sys

import numpy as np
import pytest
from run_folders import BLEU, json_messages, write_log, write_run, write_texts
from sacrebleu.metrics import BLEU as Bleu
from sacrebleu.metrics import CHRF, TER
from sacrebleu.significance import PairedTest
from scipy import stats

from embinit_fairseq.cli.main import main
from embinit_fairseq.runs import metrics, paired

REFERENCE = [f"the {a} sees the {b} in the {c}" for a in ("dog", "cat") for b in ("tree", "house") for c in "xyz"]
WORSE = [line.replace("sees the", "see").replace("tree", "house") for line in REFERENCE]
BETTER = [line.replace("cat", "dog") for line in REFERENCE]
#: worse by so little that p depends on the trials
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
        ({"metric": "valid_accuracy", "higher_is_better": True}, 2, ""),
        ({"metric": "valid_accuracy"}, 2, "the lowest accuracy counts as the best"),
        ({"data": {**DATA, "all": "e", "test.bin": "u"}}, 2, ""),
        ({"data": {**DATA, "all": "e", "dict.txt": "w"}}, 2, ""),
        ({"data": {**DATA, "all": "e"}, **OTHER}, 1, ""),  # the same test set and dictionaries
        ({"scores": score(20.0, BLEU.replace("13a", "intl"))}, 1, "BLEU of different signatures"),
        ({"command": f"{COMMAND} cross_entropy --seed 2 --max-epoch 3"}, 1, "different seeds"),
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


def test_all_options_that_differ_are_named(tmp_path, compare, shown) -> None:
    """The name of a row has one of them, or a label alone."""
    for name, options in {"a": "--dropout 0.1 --lr 1", "b": "--dropout 0.2 --lr 2 --fp16"}.items():
        command = f"fairseq-train data {options} --seed 1"
        write_run(tmp_path / "init" / name, {"init": name, "seed": "1"}, [1.0], command=command)
        write_run(tmp_path / "same" / name, {"init": "x", "seed": "1"}, [1.0], command=command)
    line = "* options that differ between runs: `--dropout` (0.1, 0.2), `--fp16` (not given, given), `--lr` (1, 2)\n"
    for folder, names in (("init", ["a", "b"]), ("same", ["--dropout 0.1", "--dropout 0.2"])):
        assert [row["name"] for row in compare(tmp_path / folder)[0]["rows"]] == names
        assert line in shown("compare", tmp_path / folder)


def test_runs_on_other_training_data_or_vectors_are_other_rows(tmp_path, compare, shown) -> None:
    """Also with equal options, and only if their content differs: a folder may have moved."""
    test = {"test.bin": "t", "dict.txt": "v"}
    for name, data, train, vectors in (
        ("a", "full", "1", "x"),
        ("b", "moved", "1", "x"),
        ("c", "half", "2", "x"),
        ("d", "full", "1", "y"),
    ):
        command = f"fairseq-train {data} --embed-init-path encoder=a.vec --seed {ord(name)}"
        inputs = {"data": {"all": name, "train.bin": train, **test}, "vector_files": {"a.vec": vectors}}
        write_run(tmp_path / name, {"init": "x", "seed": str(ord(name))}, [ord(name) - 96.0], command=command, **inputs)
    (table,) = compare(tmp_path)
    assert sorted(row["summary"]["val. loss (bits)"]["mean"] for row in table["rows"]) == [1.5, 3.0, 4.0]
    assert all(
        part in shown("compare", tmp_path) for part in ("* hash of training data: ", "(half)", "hash of vectors")
    )
    (table,) = compare(tmp_path, "--by", "init")
    assert "different options are averaged (hash of training data, hash of vectors)" in " ".join(table["warnings"])
    (tmp_path / "a/result.json").unlink()
    (tmp_path / "d/result.json").unlink()
    (table,) = compare(tmp_path)  # each seed has its own training data, as if it was split at random
    assert [row["summary"]["val. loss (bits)"]["mean"] for row in table["rows"]] == [2.5]
    assert not table["warnings"]
    assert "(half)" in shown("compare", tmp_path)


def test_runs_with_other_options_are_other_rows(tmp_path, compare, shown, figures, capsys) -> None:
    """In tables and curves; --by averages them, and says so."""
    for name, options in {"a": "", "b": "--lr 0.1", "c": "--lr 0.1", "d": "--lr 0.1 --fp16"}.items():
        seed = 1 + (name == "c")
        command = f"fairseq-train data --arch lstm --criterion cross_entropy --seed {seed} {options}"
        write_run(tmp_path / "runs" / name, {"arch": "lstm", "seed": str(seed)}, [ord(name) - 96.0], command=command)
    names = {
        "--fp16 not given, --lr not given": 1.0,
        "--fp16 not given, --lr 0.1": 2.5,
        "--fp16 given, --lr 0.1": 4.0,
    }
    (table,) = compare(tmp_path / "runs")
    assert {row["name"]: row["summary"]["val. loss (bits)"]["mean"] for row in table["rows"]} == names
    plot = ["plot", "curves", tmp_path / "runs", "--output", tmp_path / "a.png"]
    said = shown(*plot)
    for name, mean in names.items():
        assert re.search(rf"{name} \(\d runs?\): best mean valid_loss {mean:.3f} ", said)
    assert len(figures[0].axes[0].get_legend().get_texts()) == 3
    capsys.readouterr()
    assert main([*map(str, plot), "--by", "arch"]) == 0
    said = capsys.readouterr()
    assert "lstm (4 runs)" in said.out
    assert "runs with different options are averaged (--fp16, --lr)" in said.err
    assert "3 runs with seed 1" in said.err


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


def exact_p(system: list[str], baseline: list[str], references: list[list[str]], metric) -> float:
    """The share of all exchanges of pairs that differ whose difference is at least that of the systems."""
    places = [at for at, pair in enumerate(zip(system, baseline)) if pair[0] != pair[1]]

    def difference(exchanged: tuple) -> float:
        one, other = system[:], baseline[:]
        for at in (at for at, is_exchanged in zip(places, exchanged) if is_exchanged):
            one[at], other[at] = other[at], one[at]
        return abs(metric.corpus_score(one, references).score - metric.corpus_score(other, references).score)

    exchanges = list(itertools.product((False, True), repeat=len(places)))
    return float(np.mean([difference(exchange) >= difference(exchanges[0]) - 1e-9 for exchange in exchanges]))


@pytest.mark.parametrize("metric", [Bleu(lowercase=True), CHRF(), TER()], ids=["bleu", "chrf", "ter"])
@pytest.mark.parametrize("differing", [0, 1, 4])
def test_p_is_the_share_of_all_exchanges(metric, differing) -> None:
    """One sentence that differs proves nothing: p is 1, where sacrebleu's strict inequality says 0.0001."""
    systems = [NEARLY[:differing] + REFERENCE[differing:], BETTER[:differing] + REFERENCE[differing:]]
    for references in ([REFERENCE], [REFERENCE, WORSE]):
        (found,) = paired.randomisation_tests(systems[0], references, systems[1:], {"x": metric}, trials=1000)
        expected = exact_p(systems[1], systems[0], references, metric)
        assert found["x"]["p"] == pytest.approx(expected, abs=4 * 0.5 / 1000**0.5)  # four standard errors
        assert f"nrefs:{len(references)}|ar:1000|seed:12345" in found["x"]["signature"]


def test_p_is_that_of_sacrebleu_if_no_two_exchanges_are_equally_far() -> None:
    systems = [[f"{line} {at * at}" for at, line in enumerate(lines)] for lines in (NEARLY, WORSE)]
    (test,) = paired.randomisation_tests(systems[0], [REFERENCE], systems[1:], {"x": CHRF()}, trials=500)
    named = [("a", systems[0]), ("b", systems[1])]
    _, found = PairedTest(named, {"x": CHRF()}, [REFERENCE], test_type="ar", n_samples=500)()
    result = found["chrF2"][1]
    assert (test["x"]["p"], test["x"]["system"]) == pytest.approx((result.p_value, result.score))


def test_paired_tests_seed_by_seed(tmp_path, compare, shown) -> None:
    capitals = [line.capitalize() for line in BETTER]  # case:lc in the signature: the same score
    of_seed = {("none", "1"): NEARLY, ("none", "2"): REFERENCE, ("xavier", "1"): capitals, ("xavier", "3"): BETTER}
    for (name, seed), lines in of_seed.items():
        scores = {**score(1.0), "chrf": {"score": 2.0, "signature": "case:lc"}}
        run = write_run(tmp_path / f"{name}{seed}", {"init": name, "seed": seed}, [1.0], scores=scores)
        write_texts(run, lines, REFERENCE)
    (table,) = compare(tmp_path)
    (test,) = table["tests"]  # of the seeds 1, 2 and 3 both rows have only the first
    assert (table["baseline"], test["row"], test["seed"]) == ("none", "xavier", "1")

    for name, metric in (("bleu", Bleu(lowercase=True)), ("chrf", CHRF(lowercase=True))):
        system, baseline = (metric.corpus_score(lines, [REFERENCE]).score for lines in (capitals, NEARLY))
        found = [test[name][key] for key in ("system", "baseline", "difference")]
        assert found == pytest.approx([system, baseline, system - baseline])
        (expected,) = paired.randomisation_tests(NEARLY, [REFERENCE], [capitals], {name: metric})
        assert test[name]["p"] == expected[name]["p"]
        assert test[name].items() >= {"trials": 10_000, "seed": 12345}.items()
    assert table["rows"][0]["summary"]["BLEU"] == {"mean": 1.0, "sd": 0.0}  # as recorded
    options = ["--baseline", "xavier"]
    ((test,),) = (table["tests"] for table in compare(tmp_path, *options))
    assert (test["row"], test["bleu"]["difference"] < 0) == ("none", True)
    figures = [f"{test[name]['difference']:+.1f} | {test[name]['p']:.4f}" for name in ("bleu", "chrf")]
    assert f"| none | 1 | {' | '.join(figures)} |" in shown("compare", tmp_path, *options)
    again = write_run(tmp_path / "again", {"init": "xavier", "seed": "1"}, [1.0], scores=score(1.0))
    write_texts(again, BETTER, REFERENCE)
    (table,) = compare(tmp_path)
    assert table["tests"] == [], "which of the two runs of seed 1?"


def test_differences_over_shared_seeds_with_their_interval(tmp_path, compare, shown, monkeypatch) -> None:
    """SciPy's paired t-test has the same interval; seeds of one row only do not count."""
    losses = {"none": {"1": 4.0, "2": 3.5, "3": 3.75, "4": 9.0}, "xavier": {"1": 3.0, "2": 3.0, "3": 2.5, "7": 9.0}}
    for name, of_seed in losses.items():
        for seed, loss in of_seed.items():
            scores = score(10 * loss) if seed != "3" else {}
            write_run(tmp_path / name / seed, {"init": name, "seed": seed}, [loss + 1, loss], scores=scores)
        write_run(tmp_path / name / "unknown", {"init": name}, [9.0])
    write_run(tmp_path / "single", {"init": "zeros", "seed": "1"}, [1.0])
    (table,) = compare(tmp_path, "--baseline", "xavier")
    (row,) = table["differences"]  # zeros has one seed
    pairs = [[of_seed[seed] for seed in "123"] for of_seed in losses.values()]
    low, high = stats.ttest_rel(*pairs).confidence_interval(0.95)
    expected = {"seeds": 3, "mean": np.mean(np.subtract(*pairs)), "low": low, "high": high}
    assert (row["row"], row["columns"]["val. loss (bits)"]) == ("none", pytest.approx(expected))
    assert row["columns"]["BLEU"]["seeds"] == 2
    assert "at epoch" not in row["columns"]
    text = shown("compare", tmp_path, "--baseline", "xavier")
    assert "| difference to xavier (95 % interval) | seeds | val. loss (bits) |" in text
    assert f"| none | 3 | {expected['mean']:+.3f} ({low:+.3f} to {high:+.3f}) | " in text
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    (table,) = compare(tmp_path)
    assert table["differences"] == []
    assert any("pip install scipy" in note for note in table["notes"])


def test_translations_without_runs(tmp_path, printed, shown, refused, monkeypatch) -> None:
    """Plain text and output of fairseq-generate, against several references."""
    monkeypatch.chdir(tmp_path)
    for name, lines in (("a", NEARLY), ("b", BETTER), ("ref", REFERENCE), ("ref2", WORSE)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    log = [f"H-{at}\t-1\t{line.replace('house', 'hou@@ se')}" for at, line in enumerate(BETTER)]
    (tmp_path / "log").write_text("\n".join(reversed(log)) + "\n")
    record = printed("compare", "a", "x=b", "log", "--ref", "ref", "ref2", "--detokenize", "bpe")
    assert [system["name"] for system in record["systems"]] == ["a", "x", "log"]
    first, second = record["tests"]
    assert (first["row"], second["row"], first["bleu"]) == ("x", "log", second["bleu"])
    metric = Bleu()
    assert first["bleu"]["system"] == pytest.approx(metric.corpus_score(BETTER, [REFERENCE, WORSE]).score)
    (expected,) = paired.randomisation_tests(NEARLY, [REFERENCE, WORSE], [BETTER], {"bleu": metric})
    assert first["bleu"]["p"] == expected["bleu"]["p"]
    text = shown("compare", "a", "b", "--ref", "ref", "--metrics", "ter", "--baseline", "b")
    assert all(part in text for part in ("| against b | TER difference | TER p |", "ar:10000|seed:12345", "| a | "))
    for arguments, said in (
        ("a b", "--ref FILE"),
        ("a --ref ref", "two outputs or more"),
        ("a b --ref ref --baseline c", "'a', 'b'"),
        ("a b --ref ref --by seed", "--by"),
        ("a b --detokenize bpe", "--ref"),
    ):
        assert said in refused("compare", *arguments.split())


def test_the_direction_of_best(tmp_path, compare, refused, capsys) -> None:
    """Where the name says it, a training that keeps the worst checkpoint is named; names of users say nothing."""
    for metric, higher, is_wrong in (
        *(("valid_bleu", False, True), ("valid_loss", True, True), ("valid_macro_f1", False, True)),
        *(("valid_ter", True, True), ("valid_wer", True, True), ("valid_accuracy", True, False)),
        *(("valid_ppl", False, False), ("valid_upscale", True, False), ("valid_upscale", False, False)),
    ):
        assert bool(metrics.wrong_direction(metric, higher)) == is_wrong, metric
    epochs = {str(at): {"valid_bleu": x, "valid_upscale": x, "valid_num_updates": at} for at, x in enumerate((3, 2, 4))}
    write_run(tmp_path / "a", NONE1, [1.0], metric="valid_bleu", epochs=epochs)
    (table,) = compare(tmp_path)
    assert table["rows"][0]["runs"][0]["best"]["valid_bleu"] == 2  # as checkpoint_best.pt
    assert any("--maximize-best-checkpoint-metric" in text for text in table["warnings"])
    assert any("upscale does not say" in text for text in compare(tmp_path, "--metric", "valid_upscale")[0]["warnings"])
    assert main(["plot", "curves", str(tmp_path), "--output", str(tmp_path / "x.png")]) == 0
    assert "--maximize-best-checkpoint-metric" in capsys.readouterr().err


def test_squared_errors_have_no_unit(tmp_path, compare, printed, monkeypatch) -> None:
    run = write_run(tmp_path / "a", NONE1, [0.5, 0.25], command="fairseq-train data --regression-target --seed 1")
    assert compare(run)[0]["rows"][0]["summary"]["best val. loss"] == {"mean": 0.25, "sd": None}
    drawn = []
    monkeypatch.setattr("embinit_fairseq.figures.save", lambda figure, _path: drawn.append(figure.axes[0].get_ylabel()))
    printed("plot", "curves", run, "--output", tmp_path / "a.png")
    assert drawn == ["val. loss"]


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
        assert table["tests"] == []
        assert any("score again" in note and str(runs / "none") in note for note in table["notes"])
    two_runs(WORSE, WORSE)
    (table,) = compare(runs)
    assert table["tests"][0]["bleu"]["p"] == 1
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
