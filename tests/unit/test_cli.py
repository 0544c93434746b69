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
STATS, ANALOGY = ("stats", "--vectors", "v.txt"), ("analogy", "--vectors", "v.txt", "--questions", "questions.txt")
FILES = {
    "v.txt": "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in WORDS.items()),
    "dict.txt": "king 6\nQueen 3\nxyzzy 1\n",
    "questions.txt": ": royal\nMan woman king queen\nman king woman queen\nman king pear plum\n",
    "w.txt": "king 1 2\nxyzzy 3 5\n's 2 2\n",  # two of the words, a third, and one that Moses would escape
    "escaped.txt": "king 6\nQueen 3\nxyzzy 1\n&apos;s 1\nnone 1\n",
    "text": "man man man woman woman king king queen queen apple nothing",
    "none": "alpha beta",
}


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """The current folder holds FILES."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")


def test_stats(printed, shown):
    assert printed(*STATS, "--dict", "dict.txt", "--match", "exact")["rows_by_rule"] == {"exact": 1}
    record = printed(*STATS, "--dict", "dict.txt", "--dim", "4")
    found = np.array([WORDS["king"], WORDS["queen"]], dtype=float)
    assert record.items() >= {"rows": 7, "dim": 4, "found": 2, "missing": [["xyzzy", 1]]}.items()
    numbers = {"coverage_types": 2 / 3, "coverage_tokens": 9 / 10, "min": 0, "max": 1}
    numbers |= {"mean": found.mean(), "std": found.std(ddof=1)}
    assert {key: record[key] for key in numbers} == pytest.approx(numbers)
    text = shown(*STATS, "--dict", "dict.txt")
    for expected in ("N = 7 rows x D = 4", "66.7% of types, 90.0% of tokens", "pretrained_xavier", "xyzzy (1)"):
        assert expected in text
    assert "N = 5 rows" in shown(*STATS)


def test_numbers_that_are_none(printed, shown, tmp_path):
    """Of constant vectors, and of those with one dimension: no NaN in JSON, dashes in the table."""
    (tmp_path / "v.txt").write_text("a 1 1\nb 1 1\n")
    assert printed(*STATS)["tables"]["pretrained_xavier"]["std"] is None
    (tmp_path / "v.txt").write_text("the 0.3\na -2\n")
    assert "absorption" in shown(*STATS)


def test_stats_of_several_files(printed, shown):
    source = ("stats", "--vectors", "concat:v.txt,w.txt", "--dict", "escaped.txt")
    record = printed(*source, "--dim", "6")
    assert record.items() >= {"dim": 6, "rows": 9, "found": 4, "found_in_all": 1, "missing": [["none", 1]]}.items()
    assert record["coverage_tokens"] == pytest.approx(11 / 12)
    rules = [(2, {"exact": 1, "casefold": 1}), (3, {"exact": 2, "entities": 1})]
    assert [(file["found"], file["rows_by_rule"]) for file in record["sources"]] == rules
    given = np.array([*WORDS["king"], *WORDS["queen"], 1, 2, 3, 5, 2, 2], dtype=float)
    assert record["std"] == pytest.approx(given.std(ddof=1))
    text = shown(*source)
    assert "found          4 words (exact 2, entities 1, casefold 1)\n" in text
    assert "in all files   1 word\n" in text
    assert "  w.txt (glove, 3 rows x 2): 3 words, 60.0% of types, 66.7% of tokens\n" in text
    assert text.index("\npretrained ") < text.index("(scaled, all rows)"), "words that have a vector come first"


def test_analogy(printed, shown, refused):
    (result,) = printed(*ANALOGY)["results"]
    assert (result["applicable"], result["questions"], result["accuracy"]) == (2, 3, 1.0)
    assert [part["name"] for part in result["runs"][0]] == ["royal", "total"]
    assert printed(*ANALOGY, "--case")["results"][0]["applicable"] == 1
    sizes = [printed(*ANALOGY, "--vocabulary", "text", *more)["rows"] for more in ([], ["--top", "4"])]
    assert sizes == [5, 4]
    assert "none of the 2 words" in refused(*ANALOGY, "--vocabulary", "none")
    (result,) = printed(*ANALOGY, "--transform", "xavier", "scaled", "positions")["results"]
    assert (result["transforms"], len(result["runs"])) == (["xavier", "scaled", "positions"], 3)
    table4 = (*ANALOGY, "--table4", "--repeats", "2")
    results = printed(*table4, "--seed", "5")["results"]
    assert [row["published_percent"] for row in results[:7]] == [87.3] * 5 + [12.9, 11.1]
    assert [len(row["runs"]) for row in results[:7]] == [1, 1, 2, 1, 1, 2, 2]
    assert results[2]["seeds"] == [5, 6]
    text = shown(*table4)
    assert "Kim (%)" in text
    assert "GloVe & Xavier-Std. & Pos. Enc." in text


DICTIONARY = "--vectors dict.txt: one whole number a word: looks like a fairseq dictionary"
CONCAT = ("stats", "--vectors", "concat:v.txt,w.txt")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("stats", "--vectors", "absent.vec"), ["absent.vec", "--vectors"]),
        ((*STATS, "--dict", "absent.dict"), ["absent.dict", "--dict"]),
        ((*STATS, "--dim", "300"), ["v.txt", "have 4 dimensions", "Leave out --dim 300"]),
        ((*STATS, "--dim", "wide"), ["--dim", "--help"]),
        ((*STATS, "--format", "vec"), ["--format", "glove"]),
        ((*CONCAT, "--dict", "dict.txt", "--dim", "4"), ["--vectors concat:v.txt,w.txt: ", "Leave out --dim 4"]),
        (CONCAT, ["add --dict"]),
        (("stats", "--vectors", "concat:x"), ["--vectors concat:x: expected at least two"]),
        (("stats", "--vectors", "concat:dict.txt,w.txt", "--dict", "dict.txt"), ["--vectors dict.txt: one whole"]),
        (("stats", "--vectors", "dict.txt"), [DICTIONARY, "give it as --dict, and word vectors as --vectors"]),
        (("analogy", "--vectors", "dict.txt", *ANALOGY[3:]), [DICTIONARY]),
        ((*ANALOGY[:3], "--questions", "absent.txt"), ["absent.txt", "check the path"]),
        ((*ANALOGY, "--transform", "rotated"), ["--transform", "scaled_positions"]),
        ((*ANALOGY, "--table4", "--transform", "scaled"), ["not allowed with"]),
        ((*ANALOGY, "--xavier-rows", "0"), ["--xavier-rows"]),
        ((*ANALOGY, "--top", "0"), ["--top"]),
        ((*ANALOGY, "--table4", "--repeats", "0"), ["--repeats"]),
        ((*ANALOGY, "--block-size", "0"), ["block"]),
        # an unknown option points to the help that has the known ones
        (("doctor", "--forse"), ["embinit doctor: error: unrecognized arguments: --forse (see embinit doctor --help)"]),
        (("plot", "curves", "r", "--output", "c.png", "--forse"), ["plot curves: error: ", "plot curves --help)"]),
        (("--forse", "doctor"), ["embinit: error: unrecognized arguments: --forse (see embinit --help)"]),
    ],
)
def test_errors_are_one_line_with_a_remedy(refused, arguments, expected):
    line = refused(*arguments)
    assert "error: " in line
    assert "--embed-init" not in line
    assert all(part in line for part in expected), line


@pytest.fixture
def handler():
    """SIGTERM is as in a new process, which a suite that runs behind another program may not have."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def reading(monkeypatch):
    """In the place of `stats.read_vectors` another function."""
    return lambda function: monkeypatch.setattr(stats, "read_vectors", lambda *_, **__: function())


def test_a_reader_that_goes_away_is_no_traceback(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        assert main(STATS) == 141
        monkeypatch.undo()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("handler")
def test_a_signal_that_a_library_makes_another_error_of(capsys, reading):
    def stop():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise ValueError("of what it was doing") from None

    reading(stop)
    assert main(STATS) == 143
    assert capsys.readouterr().err == "embinit stats: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("kept", [signal.SIG_IGN, lambda *_: None], ids=["nohup", "a program's own"])
def test_signals_that_somebody_takes_care_of_are_left_alone(reading, kept):
    signal.signal(signal.SIGTERM, kept)
    found = []
    reading(lambda: found.append(signal.getsignal(signal.SIGTERM)))
    with contextlib.suppress(Exception):
        main(STATS)
    assert found == [kept]


def test_in_another_thread_there_are_no_signals():
    codes = []
    thread = threading.Thread(target=lambda: codes.append(main(STATS)))
    thread.start()
    thread.join()
    assert codes == [0]


def test_memory_that_runs_out_is_one_line(refused, reading):
    for error, said in (
        (MemoryError, "memory ran out"),
        (RecursionError, "nested too deeply"),
        (ZeroDivisionError, ""),
    ):

        def fail(error=error):
            raise error("maximum depth")

        reading(fail)
        if said:
            assert said in refused(*STATS)
        else:
            with pytest.raises(error):  # ours, not the user's
                main(STATS)


def test_a_step_of_a_stock_architecture_and_registration(capsys):
    code = main(["doctor", "--json", "--arch", "lstm"])
    record = json.loads(capsys.readouterr().out)
    found = {finding["check"]: finding for finding in record["findings"]}
    assert found["step lstm"]["status"] == "ok"
    assert found["step lstm"]["data"]["loss"] > 0
    registered = found["registration"]["data"]
    assert {"xavier", "pretrained", "shuffled"} <= set(registered["embed_init"])
    assert "embinit_classifier" in registered["architectures"]
    assert "transformer" not in doctor.own_architectures()
    assert code == (0 if record["ok"] else 1)


def test_electra_is_tried_with_both_of_its_losses_and_steps_that_fail_are_broken(monkeypatch):
    """A discriminator that knows nothing loses log 2 a token, 50 times that with its weight; the generator log 20."""
    (finding,) = doctor.steps(["electra_tiny"])
    assert (finding.status, finding.detail.split(",")[0]) == ("ok", "masked_lm")
    assert 25 < finding.data["loss"] < 55
    monkeypatch.setattr("embinit_fairseq.bench.steps.math", SimpleNamespace(isfinite=lambda value: False))
    for arch, part in (("no_such_arch", "no_such_arch"), ("lstm", "ArithmeticError")):
        (finding,) = doctor.steps([arch])
        assert (finding.status, part in finding.detail) == ("broken", True)


def test_a_broken_finding_gives_exit_code_1_and_its_remedy(capsys, monkeypatch):
    broken = doctor.Finding("import fairseq", "broken", "ValueError: mutable default", "run the setup")
    monkeypatch.setattr(doctor, "fairseq_import", lambda: broken)
    assert main(["doctor", "--no-steps"]) == 1
    out = capsys.readouterr().out
    assert ("-> run the setup" in out, "1 broken" in out) == (True, True)
    assert "registration" not in out  # rests on the import
    ok, absent = doctor.Finding("torch", "ok", "2.0"), doctor.Finding("x", "warning", "absent", "install it")
    for findings, end in (([ok], "everything works"), ([ok, absent], "0 broken, 1 warning")):
        assert doctor.render(findings).endswith(end)
    assert doctor.render([absent, absent]).endswith("0 broken, 2 warnings")


def test_missing_packages_and_fixes_that_are_needed_and_not_active(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", {"no-such-package": "", "no-such-extra": "no pictures", "numpy": ""})
    found = {finding.check: finding.status for finding in doctor.versions()}
    assert found.items() >= {"no-such-package": "broken", "no-such-extra": "warning", "numpy": "ok"}.items()
    module = ModuleType("fairseq_compat")
    monkeypatch.setitem(sys.modules, "fairseq_compat", module)
    for needed, active, expected in ((True, False, "broken"), (True, True, "ok"), (False, False, "ok")):
        fix = SimpleNamespace(fix="numpy_aliases", reason="loaded before the hook", needed=needed, active=active)
        module.status = lambda fix=fix: [fix]
        (finding,) = doctor.compatibility()
        assert (finding.status, bool(finding.hint)) == (expected, expected == "broken")
    monkeypatch.setitem(sys.modules, "fairseq_compat", None)
    (finding,) = doctor.compatibility()
    assert (finding.status, "setup.sh" in finding.hint) == ("warning", True)
