"""The `embinit` command: what it prints, its exit codes, its errors of one line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from embinit_fairseq.cli import doctor, stats
from embinit_fairseq.cli.main import main

WORDS = {
    "man": [0, 0, 1, 0],
    "woman": [0, 1, 1, 0],
    "king": [1, 0, 1, 0],
    "queen": [1, 1, 1, 0],
    "apple": [0, 0, -3, 1],
}


@pytest.fixture
def files(tmp_path):
    vectors, dictionary, questions = (tmp_path / name for name in ("v.txt", "dict.txt", "questions.txt"))
    vectors.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in WORDS.items()), encoding="utf-8")
    dictionary.write_text("king 6\nQueen 3\nxyzzy 1\n", encoding="utf-8")
    questions.write_text(": royal\nMan woman king queen\nman king woman queen\nman king pear plum\n", encoding="utf-8")
    return {"vectors": str(vectors), "dict": str(dictionary), "questions": str(questions)}


def run_json(capsys, *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def failure(capsys, *argv: str) -> str:
    """The one line of an error."""
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


def test_stats_json(capsys, files):
    argv = ["stats", "--vectors", files["vectors"], "--dict", files["dict"], "--match", "exact"]
    assert run_json(capsys, *argv)["rows_by_rule"] == {"exact": 1}
    record = run_json(capsys, "stats", "--vectors", files["vectors"], "--dict", files["dict"], "--dim", "4")
    found = np.array([WORDS["king"], WORDS["queen"]], dtype=float)
    assert {key: record[key] for key in ("rows", "dim", "found")} == {"rows": 7, "dim": 4, "found": 2}
    assert record["coverage_types"] == pytest.approx(2 / 3)
    assert record["coverage_tokens"] == pytest.approx(9 / 10)
    assert [record[key] for key in ("min", "max", "mean")] == pytest.approx([0, 1, found.mean()])
    assert record["std"] == pytest.approx(found.std(ddof=1))
    assert record["missing"] == [["xyzzy", 1]]


def test_a_reader_that_goes_away_is_no_traceback(files, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        assert main(["stats", "--vectors", files["vectors"]]) == 141
        monkeypatch.undo()
    assert capsys.readouterr().err == ""


def test_stats_for_people(capsys, files):
    assert main(["stats", "--vectors", files["vectors"], "--dict", files["dict"]]) == 0
    text = capsys.readouterr().out
    for expected in ("N = 7 rows x D = 4", "66.7% of types, 90.0% of tokens", "pretrained_xavier", "xyzzy (1)"):
        assert expected in text
    assert main(["stats", "--vectors", files["vectors"]]) == 0
    assert "N = 5 rows" in capsys.readouterr().out


def test_numbers_that_are_none(capsys, tmp_path):
    """Of constant vectors, and of those with one dimension: no NaN in JSON, dashes in the table."""
    (tmp_path / "v.txt").write_text("a 1 1\nb 1 1\n")
    assert main(["stats", "--vectors", str(tmp_path / "v.txt"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert record["tables"]["pretrained_xavier"]["std"] is None
    (tmp_path / "v.txt").write_text("the 0.3\na -2\n")
    assert main(["stats", "--vectors", str(tmp_path / "v.txt")]) == 0
    assert "absorption" in capsys.readouterr().out


@pytest.fixture
def second(tmp_path):
    """Two of the words, a third, and one that Moses would escape."""
    path = tmp_path / "w.txt"
    path.write_text("king 1 2\nxyzzy 3 5\n's 2 2\n")
    return str(path)


def test_stats_of_several_files(capsys, files, second, tmp_path):
    dictionary = tmp_path / "escaped.txt"
    dictionary.write_text("king 6\nQueen 3\nxyzzy 1\n&apos;s 1\nnone 1\n")
    source = ["--vectors", f"concat:{files['vectors']},{second}", "--dict", str(dictionary)]
    record = run_json(capsys, "stats", *source, "--dim", "6")
    assert (record["dim"], record["rows"], record["found"], record["found_in_all"]) == (6, 9, 4, 1)
    assert record["coverage_tokens"] == pytest.approx(11 / 12)
    assert [(file["found"], file["rows_by_rule"]) for file in record["sources"]] == [
        (2, {"exact": 1, "casefold": 1}),
        (3, {"exact": 2, "entities": 1}),
    ]
    given = np.array([*WORDS["king"], *WORDS["queen"], 1, 2, 3, 5, 2, 2], dtype=float)
    assert record["std"] == pytest.approx(given.std(ddof=1))
    assert record["missing"] == [["none", 1]]
    assert main(["stats", *source]) == 0
    text = capsys.readouterr().out
    assert "found          4 words (exact 2, entities 1, casefold 1)\n" in text
    assert "in all files   1 word\n" in text
    assert f"  {second} (glove, 3 rows x 2): 3 words, 60.0% of types, 66.7% of tokens\n" in text
    # words that have a vector come before the matrix as a whole
    lines = [line.split("  ")[0].strip() or line.strip().split("  ")[0] for line in text.splitlines()]
    assert lines.index("(scaled, all rows)") > lines.index("pretrained")


def test_errors_of_several_files_name_our_flags(capsys, files, second):
    both = f"{files['vectors']},{second}"
    line = failure(capsys, "stats", "--vectors", f"concat:{both}", "--dict", files["dict"], "--dim", "4")
    assert f"--vectors concat:{both}: " in line
    assert "Leave out --dim 4" in line
    assert "add --dict" in failure(capsys, "stats", "--vectors", f"concat:{both}")
    assert "--vectors concat:x: expected at least two" in failure(capsys, "stats", "--vectors", "concat:x")
    line = failure(capsys, "stats", "--vectors", f"concat:{files['dict']},{second}", "--dict", files["dict"])
    assert f"--vectors {files['dict']}: one whole number a word" in line


def test_analogy_json(capsys, files, tmp_path):
    (tmp_path / "text").write_text("man man man woman woman king king queen queen apple nothing")
    (tmp_path / "none").write_text("alpha beta")
    argv = ["analogy", "--vectors", files["vectors"], "--questions", files["questions"]]
    (result,) = run_json(capsys, *argv)["results"]
    assert (result["applicable"], result["questions"], result["accuracy"]) == (2, 3, 1.0)
    assert [part["name"] for part in result["runs"][0]] == ["royal", "total"]
    assert run_json(capsys, *argv, "--case")["results"][0]["applicable"] == 1
    argv += ["--vocabulary", str(tmp_path / "text")]
    assert [run_json(capsys, *argv, *more)["rows"] for more in ([], ["--top", "4"])] == [5, 4]
    assert "none of the 2 words" in failure(capsys, *argv[:-1], str(tmp_path / "none"))
    result = run_json(capsys, *argv[:-2], "--transform", "xavier", "scaled", "positions")["results"][0]
    assert (result["transforms"], len(result["runs"])) == (["xavier", "scaled", "positions"], 3)


def test_table4_has_the_papers_rows_and_numbers(capsys, files):
    argv = ["analogy", "--vectors", files["vectors"], "--questions", files["questions"], "--table4", "--repeats", "2"]
    results = run_json(capsys, *argv, "--seed", "5")["results"]
    assert [row["published_percent"] for row in results[:7]] == [87.3] * 5 + [12.9, 11.1]
    assert [len(row["runs"]) for row in results[:7]] == [1, 1, 2, 1, 1, 2, 2]
    assert results[2]["seeds"] == [5, 6]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "Kim (%)" in text
    assert "GloVe & Xavier-Std. & Pos. Enc." in text


def test_a_dictionary_taken_for_vectors(capsys, tmp_path):
    words, questions = tmp_path / "dict.txt", tmp_path / "questions.txt"
    words.write_text("the 3\na 2\n")
    questions.write_text(": all\nthe a the a\n")
    for argv in (["stats"], ["stats", "--dict", str(words)], ["analogy", "--questions", str(questions)]):
        line = failure(capsys, *argv, "--vectors", str(words))
        assert f"--vectors {words}: one whole number a word: looks like a fairseq dictionary; " in line
        assert line.endswith("give it as --dict, and word vectors as --vectors\n") == (argv[0] == "stats")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"vectors": "absent.vec"}, ["absent.vec", "--vectors"]),
        ({"dict": "absent.dict"}, ["absent.dict", "--dict"]),
        ({"dim": "300"}, ["v.txt", "have 4 dimensions", "Leave out --dim 300"]),
        ({"dim": "wide"}, ["--dim", "--help"]),
        ({"format": "vec"}, ["--format", "glove"]),
        ({"nonsense": "1"}, ["--nonsense"]),
    ],
)
def test_stats_errors_are_one_line_with_a_remedy(capsys, files, change, expected):
    options = {"vectors": files["vectors"], "dict": files["dict"], **change}
    line = failure(capsys, "stats", *[part for name, value in options.items() for part in (f"--{name}", value)])
    assert "error: " in line
    assert "--embed-init" not in line
    for part in expected:
        assert part in line


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (["--questions", "absent.txt"], ["absent.txt", "check the path"]),
        (["--transform", "rotated"], ["--transform", "scaled_positions"]),
        (["--table4", "--transform", "scaled"], ["not allowed with"]),
        (["--xavier-rows", "0"], ["--xavier-rows"]),
        (["--top", "0"], ["--top"]),
        (["--table4", "--repeats", "0"], ["--repeats"]),
        (["--block-size", "0"], ["block"]),
    ],
)
def test_analogy_errors(capsys, files, extra, expected):
    argv = ["analogy", "--vectors", files["vectors"], "--questions", files["questions"], *extra]
    line = failure(capsys, *argv)
    for part in expected:
        assert part in line


@pytest.mark.parametrize(
    ("argv", "whose"),
    [
        (["export-hf", "--checkpoint", "c.pt", "--output", "o", "--forse"], "embinit export-hf"),
        (["doctor", "--forse"], "embinit doctor"),
        (["plot", "curves", "run", "--output", "c.png", "--forse"], "embinit plot curves"),
        (["--forse", "doctor"], "embinit"),
    ],
)
def test_an_unknown_option_points_to_the_help_that_has_the_known_ones(capsys, argv, whose):
    assert failure(capsys, *argv) == f"{whose}: error: unrecognized arguments: --forse (see {whose} --help)\n"


@pytest.fixture
def handler():
    """SIGTERM is as in a new process, which a suite that runs behind another program may not have."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("handler")
def test_a_signal_that_a_library_makes_another_error_of(capsys, files, monkeypatch):
    def stop(*args, **keywords):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise ValueError("of what it was doing") from None

    monkeypatch.setattr(stats, "read_vectors", stop)
    assert main(["stats", "--vectors", files["vectors"]]) == 143
    assert capsys.readouterr().err == "embinit stats: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("kept", [signal.SIG_IGN, lambda *_: None], ids=["nohup", "a program's own"])
def test_signals_that_somebody_takes_care_of_are_left_alone(capsys, files, monkeypatch, kept):
    signal.signal(signal.SIGTERM, kept)
    found = []
    monkeypatch.setattr(stats, "read_vectors", lambda *args, **keywords: found.append(signal.getsignal(signal.SIGTERM)))
    with contextlib.suppress(Exception):
        main(["stats", "--vectors", files["vectors"]])
    assert found == [kept]


def test_in_another_thread_there_are_no_signals(files):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(main(["stats", "--vectors", files["vectors"]])))
    thread.start()
    thread.join()
    assert codes == [0]


@pytest.mark.parametrize(
    ("error", "said"), [(MemoryError(), "memory ran out"), (RecursionError("maximum depth"), "nested too deeply")]
)
def test_memory_that_runs_out_is_one_line(capsys, files, monkeypatch, error, said):
    def fail(*args, **keywords):
        raise error

    monkeypatch.setattr(stats, "read_vectors", fail)
    assert said in failure(capsys, "stats", "--vectors", files["vectors"])
    monkeypatch.undo()
    monkeypatch.setattr(stats, "read_vectors", lambda *args, **keywords: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # ours, not the user's
        main(["stats", "--vectors", files["vectors"]])


# ---- the doctor: what works is ok, what is broken is named with a remedy and gives exit code 1


def test_steps_of_stock_architectures_and_registration(capsys):
    code = main(["doctor", "--json", "--arch", "transformer", "lstm"])
    record = json.loads(capsys.readouterr().out)
    found = {finding["check"]: finding for finding in record["findings"]}
    for arch in ("transformer", "lstm"):
        assert found[f"step {arch}"]["status"] == "ok", found[f"step {arch}"]
        assert found[f"step {arch}"]["data"]["loss"] > 0
    assert {"xavier", "pretrained", "shuffled"} <= set(found["registration"]["data"]["embed_init"])
    assert "embinit_classifier" in found["registration"]["data"]["architectures"]
    assert "transformer" not in doctor.own_architectures()
    assert code == (0 if record["ok"] else 1)


def test_electra_is_tried_with_both_of_its_losses():
    """A discriminator that knows nothing loses log 2 a token, 50 times that with its weight; the generator log 20."""
    (finding,) = doctor.steps(["electra_tiny"])
    assert (finding.status, finding.detail.split(",")[0]) == ("ok", "masked_lm")
    assert 25 < finding.data["loss"] < 55


def test_steps_that_fail_are_broken_not_a_traceback(monkeypatch):
    (finding,) = doctor.steps(["no_such_arch"])
    assert (finding.status, "no_such_arch" in finding.detail) == ("broken", True)
    monkeypatch.setattr("embinit_fairseq.bench.steps.math", SimpleNamespace(isfinite=lambda value: False))
    (finding,) = doctor.steps(["lstm"])
    assert (finding.status, "ArithmeticError" in finding.detail) == ("broken", True)


def test_a_broken_finding_gives_exit_code_1_and_its_remedy(capsys, monkeypatch):
    broken = doctor.Finding("import fairseq", "broken", "ValueError: mutable default", "run the setup")
    monkeypatch.setattr(doctor, "fairseq_import", lambda: broken)
    assert main(["doctor", "--no-steps"]) == 1
    shown = capsys.readouterr().out
    assert "-> run the setup" in shown
    assert "1 broken" in shown
    assert "registration" not in shown  # rests on the import
    ok, absent = doctor.Finding("torch", "ok", "2.0"), doctor.Finding("x", "warning", "absent", "install it")
    assert doctor.render([ok]).endswith("everything works")
    assert doctor.render([ok, absent]).endswith("0 broken, 1 warning")
    assert doctor.render([absent, absent]).endswith("0 broken, 2 warnings")


def test_missing_packages(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", {"no-such-package": "", "no-such-extra": "no pictures", "numpy": ""})
    found = {finding.check: finding.status for finding in doctor.versions()}
    assert (found["no-such-package"], found["no-such-extra"], found["numpy"]) == ("broken", "warning", "ok")


def test_a_fix_that_is_needed_and_not_active_is_broken(monkeypatch):
    module = ModuleType("fairseq_compat")
    monkeypatch.setitem(sys.modules, "fairseq_compat", module)
    for needed, active, expected in ((True, False, "broken"), (True, True, "ok"), (False, False, "ok")):
        fix = SimpleNamespace(fix="numpy_aliases", reason="loaded before the hook", needed=needed, active=active)
        module.status = lambda fix=fix: [fix]
        (finding,) = doctor.compatibility()
        assert finding.status == expected
        assert bool(finding.hint) == (expected == "broken")
    monkeypatch.setitem(sys.modules, "fairseq_compat", None)
    (finding,) = doctor.compatibility()
    assert (finding.status, "setup.sh" in finding.hint) == ("warning", True)
