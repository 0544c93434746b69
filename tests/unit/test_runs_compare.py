"""embinit compare: rows, means, paired bootstrap, warnings, errors."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
from run_folders import BLEU, configuration, json_messages, write_log, write_run, write_texts
from run_folders import refused as refusal
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
    return lambda *arguments: refusal(capsys, "compare", *arguments)


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
    assert row[:2] == ["1", "4.000"]


def test_absorption_of_the_rows_that_have_a_vector_comes_first(tmp_path, compare, capsys) -> None:
    """A report of an earlier version has the figure of the whole matrix only; the two are never in one column."""
    slots = {
        "xavier": {"matched_absorption_ratio": None, "absorption_ratio": 0.5},
        "pretrained": {"matched_absorption_ratio": 9.25, "absorption_ratio": 4.0},
        "shuffled": {"absorption_ratio": 3.0},
    }
    for init, slot in slots.items():
        write_run(tmp_path / init, {"init": init, "seed": "1"}, [1.0], init={"slots": {"encoder": slot}})
    (table,) = compare(tmp_path)["tables"]
    matched, whole = "absorption ratio of matched rows, encoder", "absorption ratio, encoder"
    for row in table["rows"]:
        found = row["summary"].get(matched)
        assert (found and found["mean"]) == slots[row["name"]].get("matched_absorption_ratio")
        assert row["summary"][whole]["mean"] == slots[row["name"]]["absorption_ratio"]
    assert main(["compare", str(tmp_path)]) == 0
    header = capsys.readouterr().out.partition("| ---")[0]
    assert 0 < header.index(matched) < header.index(whole)


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
    names = [row["name"] for row in table["rows"]]
    assert names == ["none, layers 1", "none, layers 2", "xavier, layers 1", "xavier, layers 2"]
    (table,) = compare(tmp_path, "--by", "layers")["tables"]
    assert [(row["name"], len(row["runs"])) for row in table["rows"]] == [("layers 1", 2), ("layers 2", 2)]


DATA = {"all": "d", "test.bin": "t", "dict.txt": "v"}


@pytest.mark.parametrize(
    ("changes", "tables"),
    [
        ({"data": {"all": "e"}}, 2),
        ({"metric": "valid_accuracy"}, 2),
        ({"data": {**DATA, "all": "e"}}, 1),  # the same test set and dictionaries
        ({"data": {**DATA, "all": "e", "test.bin": "u"}}, 2),
        ({"data": {**DATA, "all": "e", "dict.txt": "w"}}, 2),
    ],
)
def test_what_cannot_be_compared_is_not_in_one_table(tmp_path, compare, capsys, changes, tables) -> None:
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [1.0], data=DATA)
    write_run(tmp_path / "b", {"init": "xavier", "seed": "1"}, [2.0], **{"data": DATA, **changes})
    found = compare(tmp_path)["tables"]
    assert len({table["title"] for table in found}) == len(found) == tables
    warned = any("training or validation data differ with seed 1" in text for text in found[0]["warnings"])
    assert warned == (tables == 1)
    assert main(["compare", str(tmp_path)]) == 0
    assert ("do not compare figures across them" in capsys.readouterr().out) == (tables == 2)


COMMAND = "fairseq-train data --lr 1e-3 --criterion cross_entropy --seed"


@pytest.mark.parametrize(
    ("second", "warning"),
    [
        ({"scores": score(20.0, BLEU.replace("13a", "intl"))}, "BLEU of different signatures"),
        ({"command": "fairseq-train data --lr 2e-3 --criterion cross_entropy --seed 2"}, "different options"),
        ({"command": "fairseq-train data --lr 1e-3 --criterion other --seed 2"}, "losses of different --criterion"),
        ({"labels": {"init": "none", "seed": "1"}}, "2 runs with seed 1"),
        ({"epochs": {"1": {"valid_loss": 1.0, "valid_num_updates": 1.0}}}, "runs of different length"),
        ({"command": f"{COMMAND} 2 --save-dir x --num-workers 2 --log-interval 3".replace(" data", " other")}, ""),
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
    assert not warning or str(tmp_path / "b") in text


def test_runs_that_patience_has_stopped_may_differ_in_length(tmp_path, compare) -> None:
    for seed, losses in (("1", [1.0, 2.0]), ("2", [1.0])):
        write_run(tmp_path / seed, {"init": "none", "seed": seed}, losses, command=f"{COMMAND} {seed} --patience 3")
    assert compare(tmp_path)["tables"][0]["warnings"] == []


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


# ---- translations: paired bootstrap, references, recorded scores -----------------------------------------------------


def expected_p(system: list[str], baseline: list[str], metric, samples: int, seed: int) -> float:
    """Koehn 2004 in plain words: the share of resampled test sets whose difference, moved to mean 0, is as large."""
    chosen = np.random.default_rng(seed).choice(len(REFERENCE), size=(samples, len(REFERENCE)), replace=True)

    def of(lines: list[str], sample) -> float:
        return metric.corpus_score([lines[i] for i in sample], [[REFERENCE[i] for i in sample]]).score

    everything = range(len(REFERENCE))
    difference = abs(of(system, everything) - of(baseline, everything))
    differences = np.array([abs(of(system, sample) - of(baseline, sample)) for sample in chosen])
    return (1 + int((np.abs(differences - differences.mean()) >= difference).sum())) / (1 + samples)


def test_paired_bootstrap_seed_by_seed(tmp_path, compare, capsys) -> None:
    capitals = [line.capitalize() for line in BETTER]  # case:lc in the signature: the same score
    of_seed = {("none", 1): WORSE, ("none", 2): REFERENCE, ("xavier", 1): capitals, ("xavier", 3): BETTER}
    for (name, seed), lines in of_seed.items():
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
    assert "bs:60|seed:7" in test["bleu"]["signature"].replace("|rs:", "|seed:")
    # chrF was not recorded and is counted now, also for the runs without a partner
    assert table["rows"][0]["summary"]["chrF"]["sd"] > 0
    assert table["rows"][0]["summary"]["BLEU"] == {"mean": 1.0, "sd": 0.0}  # as recorded
    (table,) = compare(tmp_path, "--baseline", "xavier", "--samples", "20")["tables"]
    (test,) = table["bootstrap"]
    assert (test["row"], test["bleu"]["difference"] < 0) == ("none", True)
    assert main(["compare", str(tmp_path), "--baseline", "xavier", "--samples", "20"]) == 0
    figures = [
        text for name in ("bleu", "chrf") for text in (f"{test[name]['difference']:+.1f}", f"{test[name]['p']:.3f}")
    ]
    assert cells(capsys.readouterr().out)["none"] == ["1", *figures]  # in the second table


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


TWELVE = [f"the {a} sees the {b} in the {c}" for a in ("dog", "cat") for b in ("tree", "house") for c in "xyz"]
WRONG = [line.replace("sees the", "see") for line in TWELVE]


@pytest.fixture
def two_runs(tmp_path):
    """Folders of two runs with translations and the BLEU that these have."""

    def make(first: list[str], second: list[str], keep: bool = True, **recorded: float) -> Path:
        for name, lines in (("none", first), ("xavier", second)):
            score = recorded.get(name, Bleu(lowercase=True).corpus_score(lines, [TWELVE]).score)
            scores = {"bleu": {"score": score, "signature": recorded.get("signature", BLEU)}}
            run = write_run(tmp_path / "runs" / name, {"init": name, "seed": "1"}, [1.0], scores=scores)
            write_texts(run, lines, TWELVE if keep else None)
        return tmp_path / "runs"

    return make


NOTHING = ["nothing that matches"] * len(TWELVE)
PATTERN = ["a b c d e f"] * (len(TWELVE) // 2)


@pytest.mark.parametrize(
    ("first", "second", "least", "most"),
    [
        (WRONG, WRONG, 1, 1),
        (NOTHING, NOTHING, 1, 1),
        ([""] * len(TWELVE), [""] * len(TWELVE), 1, 1),
        # the same sentences are wrong, but in another order: the whole is equal, the samples are not
        ([*PATTERN, *TWELVE[len(PATTERN) :]], [*TWELVE[: len(PATTERN)], *PATTERN], 0.1, 0.9),
        (NOTHING, TWELVE, 1 / 21, 1 / 21),  # the smallest there is
    ],
)
def test_p_of_equal_scores(two_runs, compare, first, second, least, most) -> None:
    runs = two_runs(first, [line.upper() for line in second])  # case:lc
    (test,) = compare(runs, "--samples", "20")["tables"][0]["bootstrap"]
    assert least - 1e-9 <= test["bleu"]["p"] <= most + 1e-9
    assert (abs(test["bleu"]["difference"]) < 1e-9) == (most > 1 / 21)


RIGHT = Bleu(lowercase=True).corpus_score(WRONG, [TWELVE]).score
OLD = BLEU.replace("version:2.6.0", "version:1.5.0")


@pytest.mark.parametrize(
    ("recorded", "signature", "warned"),
    [
        (90.0, BLEU, True),
        (90.0, BLEU.replace("eff:no", "eff:yes"), False),  # counted in another way
        (90.0, BLEU.replace("nrefs:1", "nrefs:2"), False),
        (90.0, None, False),
        (RIGHT + 0.04, OLD, False),  # other versions agree but for roundings
        (RIGHT + 0.06, OLD, True),
    ],
)
def test_a_recorded_score_that_the_translations_do_not_have(two_runs, compare, recorded, signature, warned) -> None:
    (table,) = compare(two_runs(WRONG, TWELVE, none=recorded, signature=signature), "--samples", "20")["tables"]
    text = " ".join(table["warnings"])
    assert ("the recorded BLEU is not that of the translations" in text) == warned
    assert (f"none: {recorded:.1f} recorded, {RIGHT:.1f} counted" in text) == warned
    assert "xavier: " not in text


# ---- what is written and refused -------------------------------------------------------------------------------------


def test_files_are_written_and_tables_need_no_pictures(tmp_path, compare, capsys, monkeypatch) -> None:
    """Labels do not break the table, and dollars are no mathematics."""
    for seed, name in enumerate(("a|b", "first\n| second | $x_{$")):
        write_texts(write_run(tmp_path / "runs" / str(seed), {"init": name, "seed": "1"}, [2.0]), WORSE, REFERENCE)
    out = tmp_path / "new" / "folder"
    record = compare(tmp_path / "runs", "--output", out, "--samples", "5")
    assert sorted(path.name for path in out.iterdir()) == ["curves.png", "results.json", "results.md"]
    assert json.loads((out / "results.json").read_text()) == record
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    lines = (out / "results.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith(("| a\\|b | 1 | ", "| first \\| second \\| $x_{$ | 1 | "))]
    assert len({row.replace("\\|", "").count("|") for row in rows[:2]}) == 1
    assert len(rows) >= 2
    assert any(line.startswith("| against a\\|b | seed |") for line in lines)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["compare", str(tmp_path / "runs"), "--output", str(out), "--samples", "5"]) == 0
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
        (["nowhere"], ["nowhere: no such folder or log"]),
        (["{}/empty"], ["empty", "no run in it"]),
    ],
)
def test_wrong_options(tmp_path, refused, arguments, messages) -> None:
    for name in ("none", "xavier"):
        write_run(tmp_path / name, {"init": name, "seed": "1"}, [1.0])
    (tmp_path / "empty").mkdir()
    error = refused(tmp_path, *(text.format(tmp_path) for text in arguments))
    assert all(message in error for message in messages), error


def test_nothing_finished(tmp_path, refused) -> None:
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [], finished=False)
    assert "not finished yet" in refused(tmp_path)


# ---- data of logs, training losses, seconds --------------------------------------------------------------------------


def logged(path: Path, seed: int = 1, symbols: int = 64, valid: int = 50, train: int = 2000, data: str = "bin") -> Path:
    """A log that says which data it was trained on."""
    head = configuration().replace("'seed': 3", f"'seed': {seed}").replace("task='", f"data='{data}', task='")
    messages = [
        ("fairseq.tasks.translation", f"[de] dictionary: {symbols} types"),
        ("fairseq.data.data_utils", f"loaded {valid} examples from: {data}/valid.de-en.de"),
        ("fairseq.data.data_utils", f"loaded {train:,} examples from: {data}/train.de-en.de"),
        *json_messages(),
    ]
    return write_log(path, messages, head)


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
    logs = [logged(tmp_path / "a.log"), logged(tmp_path / "b.log", seed=2, **changes)]
    found = compare(*logs)["tables"]
    assert len(found) == tables
    text = " ".join(found[0]["warnings"])
    assert all(each in text for each in said), text
    if tables == 2:
        assert len({table["title"] for table in found}) == 2
        assert any(str(size) in found[0]["title"] + found[1]["title"] for size in changes.values())
    assert bool(said) == bool(text)


def test_a_run_that_tells_nothing_of_its_data_stands_with_the_only_others(tmp_path, compare) -> None:
    unknown = write_log(tmp_path / "u.log", json_messages(), configuration())
    a = logged(tmp_path / "a.log")
    assert len(compare(f"x={a}", f"u={unknown}")["tables"]) == 1
    b = logged(tmp_path / "b.log", symbols=65)
    found = compare(f"x={a}", f"y={b}", f"u={unknown}", f"v={unknown}")["tables"]
    assert [len(table["rows"]) for table in found] == [1, 1, 1], "it may be of either"


def test_the_training_loss_of_the_best_epoch_stands_beside(tmp_path, compare, capsys) -> None:
    for seed, trained in ((1, [3.0, 1.0, 0.5]), (2, [3.0, 2.0, 0.5])):
        epochs = {
            str(e): {"valid_loss": v, "train_loss": t, "valid_num_updates": 10 * e, "train_num_updates": 10 * e}
            for e, v, t in zip((1, 2, 3), (4.0, 3.0, 3.5), trained)
        }
        write_run(tmp_path / str(seed), {"init": "none", "seed": str(seed)}, [1.0], epochs=epochs)
    (table,) = compare(tmp_path)["tables"]
    (row,) = table["rows"]
    assert row["summary"]["train. loss (bits)"] == pytest.approx({"mean": 1.5, "sd": statistics.stdev([1.0, 2.0])})
    assert row["training"] == {"1": 3.0, "2": 1.5, "3": 0.5}
    assert main(["compare", str(tmp_path)]) == 0
    assert "| train. loss (bits) |" in capsys.readouterr().out


def timed(folder: Path, seed: int, seconds: list[float], unit: str = "cpu_s", **changes) -> Path:
    times = {str(10 * at): {"wall_s": 2 * value, "cpu_s": None, unit: value} for at, value in enumerate(seconds, 1)}
    return write_run(folder, {"init": "none", "seed": str(seed)}, [3.0, 2.0, 2.5], times=times, **changes)


@pytest.mark.parametrize(("unit", "title"), [("cpu_s", "processor seconds"), ("wall_s", "seconds")])
def test_curves_over_seconds_are_at_the_mean_time(tmp_path, compare, unit, title) -> None:
    """The unit that all runs know."""
    timed(tmp_path / "1", 1, [1.0, 2.0, 3.0], "cpu_s")
    timed(tmp_path / "2", 2, [3.0, 6.0, 9.0], unit)
    (table,) = compare(tmp_path, "--x", "seconds")["tables"]
    expected = [2.0, 4.0, 6.0] if unit == "cpu_s" else [(2 + 3) / 2, (4 + 6) / 2, (6 + 9) / 2]
    assert table["place"] == title
    assert {float(place): value for place, value in table["rows"][0]["mean"].items()} == dict(
        zip(expected, (3.0, 2.0, 2.5))
    )


def test_the_axis_can_be_chosen(tmp_path, compare) -> None:
    write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [3.0, 2.0])
    for x, places in (("epochs", ["1", "2"]), ("updates", ["10", "20"])):
        (table,) = compare(tmp_path / "a", "--x", x)["tables"]
        assert (table["place"], list(table["rows"][0]["mean"])) == (x.removesuffix("s"), places)
    (table,) = compare(logged(tmp_path / "a.log"), "--x", "seconds")["tables"]  # those between its lines
    assert (table["place"], list(table["rows"][0]["mean"])) == ("seconds", ["5.0", "7.0", "9.0"])


def test_references_and_tokenisers_that_are_of_no_use(two_runs, tmp_path, refused) -> None:
    (tmp_path / "reference").write_bytes(b"\xff\x00")
    reference = ("--reference", tmp_path / "reference")
    runs = two_runs(WRONG, TWELVE, signature=BLEU.replace("13a", "martian"))
    message = refused(runs)
    assert "runs/none: its BLEU has the signature" in message
    assert "tok:martian" in message
    assert f"--reference {tmp_path / 'reference'}: not used" in refused(runs, *reference)
    for name in ("none", "xavier"):
        (runs / name / "test.reference.text").unlink()
    assert f"{tmp_path / 'reference'}:1: not UTF-8 text" in refused(runs, *reference)
    write_run(tmp_path / "b", {"init": "none"}, [1.0])
    assert "no run here has translations" in refused(tmp_path / "b", *reference)
