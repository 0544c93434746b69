"""embinit compare: rows, means, paired bootstrap, warnings, errors."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
from run_folders import BLEU, configuration, json_messages, write_log, write_run, write_texts
from sacrebleu.metrics import BLEU as Bleu
from sacrebleu.metrics import CHRF

from embinit_fairseq.cli.main import main

REFERENCE = [f"the {a} sees the {b} in the {c}" for a in ("dog", "cat") for b in ("tree", "house") for c in "xyz"]
WORSE = [line.replace("sees the", "see").replace("tree", "house") for line in REFERENCE]
BETTER = [line.replace("cat", "dog") for line in REFERENCE]
NOTHING = ["nothing that matches"] * len(REFERENCE)


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
    report = {"slots": {"encoder": slot}}
    write_run(tmp_path / "n", {"init": "none", "seed": "1"}, [5.0, 4.0, 4.0], init=report)
    (table,) = compare(tmp_path)
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
    titles = ["absorption ratio of matched rows, encoder", "absorption ratio, encoder"]
    assert [none[title]["mean"] for title in titles] == list(slot.values())
    out = shown("compare", tmp_path)
    assert "| none | 1 | 4.000 | " in out
    assert " | ".join(titles) in out


def test_a_higher_metric_metrics_of_ones_own_choice_and_the_training_loss(tmp_path, compare, shown) -> None:
    logged = {1: (1.0, 60.0, 3.0), 2: (2.0, 70.0, 1.5), 3: (4.0, 65.0, 0.5)}
    names = ("valid_loss", "valid_accuracy", "train_loss")
    epochs = {str(e): {**dict(zip(names, values)), "train_num_updates": 10 * e} for e, values in logged.items()}
    changes = {"metric": "valid_accuracy", "higher_is_better": True, "epochs": epochs, "best": {}}
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [1.0], **changes)
    ((row,),) = (table["rows"] for table in compare(tmp_path))
    means = {title: found["mean"] for title, found in row["summary"].items()}
    assert row["runs"][0]["best"]["epoch"] == means["at epoch"] == 2
    assert (means["best val. accuracy"], means["train. loss (bits)"]) == (70.0, 1.5)
    (table,) = compare(tmp_path, "--metric", "valid_loss")
    assert table["rows"][0]["runs"][0]["best"]["epoch"] == 1
    assert not table["higher_is_better"]
    assert table["rows"][0]["training"] == {"1": 3.0, "2": 1.5, "3": 0.5}
    assert "| train. loss (bits) |" in shown("compare", tmp_path)


def test_rows_are_made_by_the_labels_that_are_named(tmp_path, compare) -> None:
    for init in ("none", "xavier"):
        for layers in "12":
            write_run(tmp_path / f"{init}{layers}", {"init": init, "layers": layers, "seed": "1"}, [float(layers)])
    names = [row["name"] for row in compare(tmp_path)[0]["rows"]]
    assert names == ["none, layers 1", "none, layers 2", "xavier, layers 1", "xavier, layers 2"]
    (table,) = compare(tmp_path, "--by", "layers")
    assert [(row["name"], len(row["runs"])) for row in table["rows"]] == [("layers 1", 2), ("layers 2", 2)]


def test_unfinished_runs_are_counted_and_named(tmp_path, printed, shown, refused) -> None:
    half = write_run(tmp_path / "b", {"init": "none", "seed": "2"}, [], finished=False)
    assert "not finished yet" in refused("compare", half)
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [1.0])
    record = printed("compare", tmp_path)
    assert record["unfinished"] == [str(half)]
    assert len(record["tables"][0]["rows"][0]["runs"]) == 1
    assert f"1 run not finished: {half}." in shown("compare", tmp_path)
    line = '{"epoch": 1, "valid_loss": "0.5", "valid_num_updates": "10"}'
    (half / "train.log").write_text(f"2024-01-01 10:00:00 | INFO | valid | {line}\n")
    record = printed("compare", tmp_path, "--unfinished")
    assert record["unfinished"] == []
    assert record["tables"][0]["rows"][0]["summary"]["val. loss (bits)"]["mean"] == 0.75


DATA = {"all": "d", "test.bin": "t", "dict.txt": "v"}
COMMAND = "fairseq-train data --lr 1e-3 --criterion cross_entropy --seed"
OTHER_ROW = {"labels": {"init": "xavier", "seed": "1"}}


@pytest.mark.parametrize(
    ("second", "tables", "warning"),
    [
        ({"data": {"all": "e"}}, 2, ""),
        ({"metric": "valid_accuracy"}, 2, ""),
        ({"data": {**DATA, "all": "e", "test.bin": "u"}}, 2, ""),
        ({"data": {**DATA, "all": "e", "dict.txt": "w"}}, 2, ""),
        # the same test set and dictionaries
        ({"data": {**DATA, "all": "e"}, **OTHER_ROW}, 1, "training or validation data differ with seed 1"),
        ({"scores": score(20.0, BLEU.replace("13a", "intl"))}, 1, "BLEU of different signatures"),
        ({"command": f"{COMMAND} 2".replace("1e-3", "2e-3")}, 1, "different options"),
        ({"command": f"{COMMAND} 2 --max-epoch 3"}, 1, "different options"),
        ({"command": f"{COMMAND} 2".replace("cross_entropy", "other")}, 1, "losses of different --criterion"),
        ({"labels": {"init": "none", "seed": "1"}}, 1, "2 runs with seed 1"),
        ({"epochs": {"1": {"valid_loss": 1.0, "valid_num_updates": 1.0}}}, 1, "runs of different length"),
        ({"command": f"{COMMAND} 2 --save-dir x --num-workers 2 --log-interval 3".replace(" data", " other")}, 1, ""),
    ],
)
def test_what_stands_in_one_table_and_what_is_said_of_it(tmp_path, compare, shown, second, tables, warning) -> None:
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [1.0, 2.0], scores=score(20.0), data=DATA)
    second = {"labels": {"init": "none", "seed": "2"}, "scores": score(20.0), "data": DATA, **second}
    write_run(tmp_path / "b", second.pop("labels"), [1.0, 2.0], **second)
    found = compare(tmp_path)
    assert len({table["title"] for table in found}) == len(found) == tables
    assert ("do not compare figures across them" in shown("compare", tmp_path)) == (tables == 2)
    text = " ".join(found[0]["warnings"])
    assert warning in text
    assert bool(text) == bool(warning), text
    assert not warning or str(tmp_path / "b") in text


def test_runs_that_patience_has_stopped_may_differ_in_length(tmp_path, compare) -> None:
    for seed, losses in (("1", [1.0, 2.0]), ("2", [1.0])):
        write_run(tmp_path / seed, {"init": "none", "seed": seed}, losses, command=f"{COMMAND} {seed} --patience 3")
    assert compare(tmp_path)[0]["warnings"] == []


def logged(path: Path, seed: int = 1, symbols: int = 64, valid: int = 50, train: int = 2000, data: str = "bin") -> Path:
    """A log that says which data it was trained on."""
    head = configuration().replace("'seed': 3", f"'seed': {seed}").replace("task='", f"data='{data}', task='")
    messages = [
        ("fairseq.tasks.translation", f"[de] dictionary: {symbols} types"),
        ("fairseq.data.data_utils", f"loaded {valid} examples from: {data}/valid.de-en.de"),
        ("fairseq.data.data_utils", f"loaded {train:,} examples from: {data}/train.de-en.de"),
    ]
    return write_log(path, [*messages, *json_messages()], head)


@pytest.mark.parametrize(
    ("changes", "tables", "said"),
    [
        ({}, 1, []),
        ({"symbols": 65}, 2, []),
        ({"valid": 51}, 2, []),
        ({"train": 2001}, 1, ["training data differ", "2,001 sentences"]),
        ({"data": "other/bin"}, 1, ["folders of data differ", "other/bin"]),
    ],
)
def test_logs_of_trainings_on_different_data(tmp_path, compare, changes, tables, said) -> None:
    found = compare(logged(tmp_path / "a.log"), logged(tmp_path / "b.log", seed=2, **changes))
    text = " ".join(found[0]["warnings"])
    assert len({table["title"] for table in found}) == len(found) == tables
    assert all(each in text for each in said), text
    assert bool(said) == bool(text)
    if tables == 2:
        assert any(str(size) in found[0]["title"] + found[1]["title"] for size in changes.values())


def test_a_run_that_tells_nothing_of_its_data_stands_with_the_only_others(tmp_path, compare) -> None:
    unknown = write_log(tmp_path / "u.log", json_messages())
    a, b = logged(tmp_path / "a.log"), logged(tmp_path / "b.log", symbols=65)
    assert len(compare(f"x={a}", f"u={unknown}")) == 1
    found = compare(f"x={a}", f"y={b}", f"u={unknown}", f"v={unknown}")
    assert [len(table["rows"]) for table in found] == [1, 1, 1], "it may be of either"


@pytest.fixture
def two_runs(tmp_path):
    """The folder of two runs with translations, and with the BLEU that these have unless another is recorded."""

    def make(first: list[str], second: list[str], keep: bool = True, recorded=None, signature: str | None = BLEU):
        for name, lines in (("none", first), ("xavier", second)):
            value = bleu(lines) if name == "xavier" or recorded is None else recorded
            changes = {"scores": score(value, signature)}
            run = write_run(tmp_path / "runs" / name, {"init": name, "seed": "1"}, [1.0], **changes)
            write_texts(run, lines, REFERENCE if keep else None)
        return tmp_path / "runs"

    return make


def expected_p(system: list[str], baseline: list[str], metric, samples: int, seed: int) -> float:
    """Koehn 2004 in plain words: the share of resampled test sets whose difference, moved to mean 0, is as large."""
    everything = range(len(REFERENCE))
    chosen = np.random.default_rng(seed).choice(len(REFERENCE), size=(samples, len(REFERENCE)), replace=True)

    def difference(sample) -> float:
        reference = [[REFERENCE[i] for i in sample]]
        found = [metric.corpus_score([lines[i] for i in sample], reference).score for lines in (system, baseline)]
        return abs(found[0] - found[1])

    differences = np.array([difference(sample) for sample in chosen])
    larger = np.abs(differences - differences.mean()) >= difference(everything)
    return (1 + int(larger.sum())) / (1 + samples)


def test_paired_bootstrap_seed_by_seed(tmp_path, compare, shown) -> None:
    capitals = [line.capitalize() for line in BETTER]  # case:lc in the signature: the same score
    of_seed = {("none", "1"): WORSE, ("none", "2"): REFERENCE, ("xavier", "1"): capitals, ("xavier", "3"): BETTER}
    for (name, seed), lines in of_seed.items():
        run = write_run(tmp_path / f"{name}{seed}", {"init": name, "seed": seed}, [1.0], scores=score(1.0))
        write_texts(run, lines, REFERENCE)
    (table,) = compare(tmp_path, "--samples", "60", "--seed", "7")
    (test,) = table["bootstrap"]  # of the seeds 1, 2 and 3 both rows have only the first
    assert (table["baseline"], test["row"], test["seed"]) == ("none", "xavier", "1")
    for name, metric in (("bleu", Bleu(lowercase=True)), ("chrf", CHRF(lowercase=True))):
        system, baseline = (metric.corpus_score(lines, [REFERENCE]).score for lines in (capitals, WORSE))
        found = [test[name][key] for key in ("system", "baseline", "difference", "p")]
        expected = [system, baseline, system - baseline, expected_p(capitals, WORSE, metric, 60, 7)]
        assert found == pytest.approx(expected)
    assert "bs:60|seed:7" in test["bleu"]["signature"].replace("|rs:", "|seed:")
    # chrF was not recorded and is counted now, also for the runs without a partner
    assert table["rows"][0]["summary"]["chrF"]["sd"] > 0
    assert table["rows"][0]["summary"]["BLEU"] == {"mean": 1.0, "sd": 0.0}  # as recorded
    options = ["--baseline", "xavier", "--samples", "20"]
    ((test,),) = (table["bootstrap"] for table in compare(tmp_path, *options))
    assert (test["row"], test["bleu"]["difference"] < 0) == ("none", True)
    figures = [f"{test[name]['difference']:+.1f} | {test[name]['p']:.3f}" for name in ("bleu", "chrf")]
    assert f"| none | 1 | {' | '.join(figures)} |" in shown("compare", tmp_path, *options)


PATTERN = ["a b c d e f"] * (len(REFERENCE) // 2)


@pytest.mark.parametrize(
    ("first", "second", "least", "most"),
    [
        (WORSE, WORSE, 1, 1),
        # the same sentences are wrong, but in another order: the whole is equal, the samples are not
        ([*PATTERN, *REFERENCE[len(PATTERN) :]], [*REFERENCE[: len(PATTERN)], *PATTERN], 0.1, 0.9),
        (NOTHING, REFERENCE, 1 / 21, 1 / 21),  # the smallest there is
    ],
)
def test_p_of_equal_scores(two_runs, compare, first, second, least, most) -> None:
    runs = two_runs(first, [line.upper() for line in second])  # case:lc
    (test,) = compare(runs, "--samples", "20")[0]["bootstrap"]
    assert least - 1e-9 <= test["bleu"]["p"] <= most + 1e-9
    assert (abs(test["bleu"]["difference"]) < 1e-9) == (most > 1 / 21)


RIGHT = bleu(WORSE)
OLD = BLEU.replace("version:2.6.0", "version:1.5.0")


@pytest.mark.parametrize(
    ("recorded", "signature", "warned"),
    [
        (90.0, BLEU, True),
        (90.0, BLEU.replace("eff:no", "eff:yes"), False),  # counted in another way
        (90.0, None, False),
        (RIGHT + 0.04, OLD, False),  # other versions agree but for roundings
        (RIGHT + 0.06, OLD, True),
    ],
)
def test_a_recorded_score_that_the_translations_do_not_have(two_runs, compare, recorded, signature, warned) -> None:
    runs = two_runs(WORSE, REFERENCE, recorded=recorded, signature=signature)
    text = " ".join(compare(runs, "--samples", "20")[0]["warnings"])
    assert ("the recorded BLEU is not that of the translations" in text) == warned
    assert (f"none: {recorded:.1f} recorded, {RIGHT:.1f} counted" in text) == warned
    assert "xavier: " not in text


def test_a_reference_can_be_named(tmp_path, two_runs, compare, refused) -> None:
    runs, reference = two_runs(WORSE, BETTER, keep=False, recorded=RIGHT + 0.01), tmp_path / "reference"
    named = ("--reference", reference)
    (table,) = compare(runs)
    assert table["bootstrap"] == []
    assert any("--reference" in note and str(runs / "none") in note for note in table["notes"])
    reference.write_text("\n".join(REFERENCE) + "\n")
    assert compare(runs, *named, "--samples", "10")[0]["bootstrap"][0]["bleu"]["difference"] > 0
    reference.write_text("\n".join(reversed(REFERENCE)) + "\n")
    message = refused("compare", runs, *named)
    assert f"--reference {reference}: gives " in message
    assert f"its record has {RIGHT:.1f}" in message
    reference.write_bytes(b"\xff\x00")
    assert f"{reference}:1: not UTF-8 text" in refused("compare", runs, *named)
    write_run(tmp_path / "b", {"init": "none"}, [1.0])
    assert "no run here has translations" in refused("compare", tmp_path / "b", *named)


def test_texts_that_do_not_fit_are_refused(two_runs, refused) -> None:
    runs = two_runs(WORSE, BETTER, signature=BLEU.replace("13a", "martian"))
    message = refused("compare", runs)
    assert "runs/none: its BLEU has the signature" in message
    assert "tok:martian" in message
    (runs / "xavier" / "test.reference.text").write_text("\n".join(reversed(REFERENCE)) + "\n")
    assert f"--reference {runs / 'none/result.json'}: not used" in refused(
        "compare", runs, "--reference", runs / "none/result.json"
    )
    for run in runs.iterdir():
        (run / "result.json").write_text((run / "result.json").read_text().replace("martian", "13a"))
    assert "scored with different references" in refused("compare", runs)
    (runs / "xavier" / "test.hypothesis.text").write_text("one line\n")
    message = refused("compare", runs)
    assert f"{runs / 'xavier' / 'test.hypothesis.text'} has 1 line, but the reference" in message
    assert "12; translate the test set again" in message


def test_files_are_written_and_tables_need_no_pictures(tmp_path, capsys, printed, monkeypatch) -> None:
    """Labels do not break the table, and dollars are no mathematics."""
    for seed, name in enumerate(("a|b", "first\n| second | $x_{$")):
        write_texts(write_run(tmp_path / "runs" / str(seed), {"init": name, "seed": "1"}, [2.0]), WORSE, REFERENCE)
    out, call = tmp_path / "new" / "folder", ("compare", tmp_path / "runs", "--samples", "5", "--output")
    record = printed(*call, out)
    assert sorted(path.name for path in out.iterdir()) == ["curves.png", "results.json", "results.md"]
    assert json.loads((out / "results.json").read_text()) == record
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    lines = (out / "results.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith(("| a\\|b | 1 | ", "| first \\| second \\| $x_{$ | 1 | "))]
    assert len(rows) >= 2
    assert len({row.replace("\\|", "").count("|") for row in rows[:2]}) == 1
    assert any(line.startswith("| against a\\|b | seed |") for line in lines)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*map(str, (*call, out))]) == 0
    assert "pip install matplotlib" in capsys.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == ["results.json", "results.md"]  # no picture of other runs
    files = [str(out / "results.md"), str(out / "results.json")]
    assert json.loads((out / "results.json").read_text())["files"] == files


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--by", "colour"], ["--by colour", "init, seed"]),
        (["--metric", "valid_bleu"], ["--metric valid_bleu", "valid_loss"]),
        (["--baseline", "glove"], ["--baseline glove", "none, xavier"]),
        (["--samples", "0"], ["--samples 0", "at least 1"]),
        (["--samples", "99999999999"], ["--samples 99999999999", "at most 100,000"]),
        (["--seed", "0"], ["--seed 0", "at least 1"]),
        (["--reference", "nowhere"], ["--reference nowhere", "no such file"]),
        (["--x", "seconds"], ["--x seconds", "/none"]),
    ],
)
def test_wrong_options(tmp_path, refused, arguments, messages) -> None:
    for name in ("none", "xavier"):
        write_run(tmp_path / name, {"init": name, "seed": "1"}, [1.0])
    error = refused("compare", tmp_path, *arguments)
    assert all(message in error for message in messages), error


@pytest.mark.parametrize(("unit", "title"), [("cpu_s", "processor seconds"), ("wall_s", "seconds")])
def test_curves_over_seconds_are_at_the_mean_time(tmp_path, compare, unit, title) -> None:
    """The unit that all runs know."""
    for seed, seconds, known in (("1", [1.0, 2.0, 3.0], "cpu_s"), ("2", [3.0, 6.0, 9.0], unit)):
        times = {str(10 * at): {"wall_s": 2 * s, "cpu_s": None, known: s} for at, s in enumerate(seconds, 1)}
        write_run(tmp_path / seed, {"init": "none", "seed": seed}, [3.0, 2.0, 2.5], times=times)
    (table,) = compare(tmp_path, "--x", "seconds")
    expected = ["2.0", "4.0", "6.0"] if unit == "cpu_s" else ["2.5", "5.0", "7.5"]
    assert (table["place"], table["rows"][0]["mean"]) == (title, dict(zip(expected, (3.0, 2.0, 2.5))))


def test_the_axis_can_be_chosen(tmp_path, compare) -> None:
    run, log = write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [3.0, 2.0]), logged(tmp_path / "a.log")
    for source, x, places in (
        (run, "epochs", ["1", "2"]),
        (run, "updates", ["10", "20"]),
        (log, "seconds", ["5.0", "7.0", "9.0"]),  # those between its lines
    ):
        (table,) = compare(source, "--x", x)
        assert table["place"].rstrip("s") == x.rstrip("s")
        assert list(table["rows"][0]["mean"]) == places
