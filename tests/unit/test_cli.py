"""Test the `embinit` command: output, exit codes, errors of one line."""

import argparse
import io
import json
import logging
import os
import re
import sys
import time
from types import SimpleNamespace
from unittest import mock

import pytest

from embinit_fairseq.cli import doctor, progress, stats
from embinit_fairseq.cli.main import COMMANDS, build_parser, main
from embinit_fairseq.cli.print_records import print_json
from embinit_fairseq.errors import listed

ROWS = {"man": "0 0 1 0", "woman": "0 1 1 0", "king": "1 0 1 0", "queen": "1 1 1 0", "apple": "0 0 -3 1"}
STATS, ANALOGY = ("stats", "--vectors", "v.txt"), ("analogy", "--vectors", "v.txt", "--questions", "questions.txt")
FILES = {
    "v.txt": "".join(f"{word} {row}\n" for word, row in ROWS.items()),
    "dict.txt": "king 6\nQueen 3\nxyzzy 1\n",
    "questions.txt": ": royal\nMan woman king queen\nman king woman queen\nman king pear plum\n",
    "w.txt": "king 1 2\nxyzzy 3 5\n's 2 2\n",  # two of the words, a third, and one that Moses would escape
    "escaped.txt": "king 6\nQueen 3\nxyzzy 1\n&apos;s 1\nnone 1\n",
    "text": "man man man woman woman king king queen queen apple nothing",
    "none": "alpha beta",
    "odd.txt": "foo 3 \nbar -1\nbaz 2 #fairseq:overwrite\n",  # a dictionary, too
}


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """The current folder holds FILES."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")


def test_stats_print_coverage_and_sigma(printed, shown, tmp_path):
    assert printed(*STATS, "--dict", "dict.txt", "--match", "exact")["rows_by_rule"] == {"exact": 1}
    record = printed(*STATS, "--dict", "dict.txt", "--dim", "4")
    assert record.items() >= {"rows": 7, "dim": 4, "found": 2, "missing": [["xyzzy", 1]]}.items()
    text = shown(*STATS, "--dict", "dict.txt")
    for expected in ("N = 7 rows x D = 4", "66.7% of types, 90.0% of tokens", "pretrained_xavier", "xyzzy (1)"):
        assert expected in text
    assert "N = 5 rows" in shown(*STATS)
    several = ("stats", "--vectors", "concat:v.txt,w.txt", "--dict", "dict.txt")
    record = printed(*several)
    assert record.items() >= {"dim": 6, "source_rows": 8, "found_in_all": 1, "format": "concat"}.items()
    assert [file["found"] for file in record["sources"]] == [2, 2]
    assert all(part in shown(*several) for part in ("in all files   1 word", "w.txt (glove, 3 rows x 2): 2 words"))
    (tmp_path / "v.txt").write_text("a 1 1\nb 1 1\n")
    assert printed(*STATS)["tables"]["pretrained_xavier"]["std"] is None


def test_analogies_by_question_file_vocabulary_and_transform(printed, refused):
    (result,) = printed(*ANALOGY)["results"]
    assert (result["applicable"], result["questions"], result["accuracy"]) == (2, 3, 1.0)
    assert [part["name"] for part in result["runs"][0]] == ["royal", "total"]
    assert printed(*ANALOGY, "--case")["results"][0]["applicable"] == 1
    assert printed(*ANALOGY, "--vocabulary", "text", "--top", "4")["rows"] == 4
    assert "none of the 2 words" in refused(*ANALOGY, "--vocabulary", "none")
    (result,) = printed(*ANALOGY, "--transform", "xavier", "scaled", "positions")["results"]
    assert (result["transforms"], len(result["runs"])) == (["xavier", "scaled", "positions"], 3)


def test_analogies_as_kims_table_4_has_them(printed, shown):
    table4 = (*ANALOGY, "--table4", "--repeats", "2")
    results = printed(*table4, "--seed", "5")["results"]
    assert [row["published_percent"] for row in results[:7]] == [87.3] * 5 + [12.9, 11.1]
    assert [len(row["runs"]) for row in results[:7]] == [1, 1, 2, 1, 1, 2, 2]
    assert results[2]["seeds"] == [5, 6]
    assert "GloVe & Xavier-Std. & Pos. Enc." in shown(*table4)


def test_errors_are_one_line_with_a_remedy(refused):
    for arguments, *expected in (
        ("stats --vectors absent.vec", "absent.vec", "--vectors"),
        ("stats --vectors v.txt --dict absent.dict", "absent.dict", "--dict"),
        ("stats --vectors v.txt --dim 300", "v.txt", "have 4 dimensions", "leave out --dim 300"),
        ("stats --vectors concat:v.txt,w.txt --dict dict.txt --dim 4", "concat:v.txt,w.txt: ", "leave out --dim 4"),
        ("stats --vectors concat:v.txt,w.txt", "add --dict"),
        ("stats --vectors odd.txt", "odd.txt", "give word vectors"),
        ("analogy --vectors v.txt --questions absent.txt", "absent.txt", "check the path"),
        ("analogy --vectors v.txt --questions questions.txt --top 0", "--top 0: give an integer of 1 or more"),
        ("plot histogram --output a.png --bins 10001", "--bins 10001: give an integer from 2 to 10,000"),
        ("plot histogram --output a.png --bins two", "--bins two: give an integer"),
        ("trim-vocab --min-count -1", "--min-count -1: "),
        # an unknown option points to the help that has the known ones
        ("plot curves r --output c.png --forse", "unrecognized arguments: --forse", "(see embinit plot --help)"),
        ("neighbors x --vectors v.txt -k 3", "embinit neighbors: error: ", "(see embinit neighbors --help)"),
        ("run r fairseq-train bin --arch lstm", "follows after --: embinit run DIR -- fairseq-train"),
        ("run r python -m fairseq_cli.train bin", "follows after --: embinit run DIR -- fairseq-train"),
        ("stat --vectors v.txt", "invalid choice: 'stat'", "embinit --help"),
    ):
        line = refused(*arguments.split())
        assert "error: " in line
        assert "--embed-init" not in line
        assert all(part in line for part in expected), line


def test_the_command_alone_prints_its_help(shown):
    assert shown() == shown("--help")


def test_json_is_standard_and_ascii_if_the_output_is_not_unicode(monkeypatch):
    for encoding, expected in (("ascii", b'{"a": ["\\u00e4", null]}'), ("utf-8", '{"a": ["ä", null]}'.encode())):
        monkeypatch.setattr("sys.stdout", out := io.TextIOWrapper(io.BytesIO(), encoding))
        print_json({"a": ("ä", float("nan"))})
        out.flush()
        assert out.buffer.getvalue().strip() == expected


@pytest.fixture
def reading(monkeypatch):
    """Replace `stats.read_vectors` by another function."""
    return lambda function: monkeypatch.setattr(stats, "read_vectors", lambda *_, **__: function())


def test_output_that_is_closed_is_no_traceback(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        assert main(STATS) == 141
        monkeypatch.undo()
    assert capsys.readouterr().err == ""


def test_memory_that_runs_out_is_one_line(refused, reading):
    for error, said in (
        (MemoryError("Unable to allocate 4 GiB\nfor an array"), "memory ran out (Unable to allocate 4 GiB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "memory ran out (DefaultCPUAllocator"),
        (RecursionError("maximum depth"), "nested too deeply"),
    ):
        reading(mock.Mock(side_effect=error))
        assert said in refused(*STATS)
    reading(mock.Mock(side_effect=RuntimeError("shape mismatch")))  # ours, not the user's
    with pytest.raises(RuntimeError):
        main(STATS)


def test_doctor_trains_a_step_of_an_architecture_and_lists_what_is_registered(capsys, tmp_path, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint_last.pt").write_bytes(b"of a training in the folder of the call")
    code = main(["doctor", "--json", "--arch", "lstm", "no_such_arch"])
    record = json.loads(capsys.readouterr().out)
    found = {finding["check"]: finding for finding in record["findings"]}
    assert (found["step lstm"]["status"], found["step lstm"]["data"]["loss"] > 0) == ("ok", True)
    assert (code, record["ok"], found["step no_such_arch"]["status"]) == (1, False, "broken")
    registered = found["registration"]["data"]
    assert {"xavier", "pretrained", "shuffled"} <= set(registered["embed_init"])
    assert "transformer" not in registered["architectures"]
    chosen = set(doctor.one_per_model(registered["architectures"]))
    assert chosen & {"tupe_tiny", "tupe_base"} == {"tupe_tiny"}


def test_doctor_names_missing_packages_and_fixes_that_are_not_active(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", {"no-such-package": "", "no-such-extra": "no figures", "numpy": ""})
    findings = list(doctor.versions())
    found = {finding.check: finding.status for finding in findings}
    assert found.items() >= {"no-such-package": "broken", "no-such-extra": "warning", "numpy": "ok"}.items()
    shown = doctor.render([*findings, doctor.Finding("step a", "ok", "loss"), doctor.Finding("step b", "ok", "loss")])
    assert re.search(r"^broken +no-such-package .*\n +-> .*setup.sh", shown, re.MULTILINE)
    assert re.search(r"^ok +training steps +a, b$", shown, re.MULTILINE)
    assert shown.endswith("1 broken, 1 warning")
    for version, status in (("3.9.18", "warning"), ("3.10.1", "ok"), ("3.14.8", "ok"), ("3.15.0", "warning")):
        monkeypatch.setattr(doctor.platform, "python_version_tuple", lambda v=version: tuple(v.split(".")))
        assert next(doctor.versions()).status == status
    fix = SimpleNamespace(fix="numpy_aliases", reason="loaded before the hook", needed=True, active=False)
    monkeypatch.setitem(sys.modules, "fairseq_compat", SimpleNamespace(status=lambda: [fix]))
    (finding,) = doctor.compatibility()
    assert (finding.status, bool(finding.hint)) == ("broken", True)


def leaves(parser):
    below = [action.choices.values() for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [leaf for child in below[0] for leaf in leaves(child)] if below else [parser]


def test_every_command_takes_quiet_and_verbose():
    found = leaves(build_parser(complete=True))
    assert len(found) > len(COMMANDS)
    for parser in found:
        assert {"-q", "--quiet", "-v", "--verbose"} <= parser._option_string_actions.keys(), parser.prog


@pytest.mark.parametrize("words", [(), ("-q",), ("-v",)])
def test_progress_without_a_terminal_is_lines(monkeypatch, capsys, words):
    monkeypatch.setattr(progress, "EVERY", 0.05)

    def run(args):
        logging.getLogger("some").info("on the way")
        logging.getLogger("some").warning("take care")
        for _ in progress.progress(range(4), "verify", "batch"):
            time.sleep(0.04)
        return 0

    monkeypatch.setattr(stats, "run", run)
    assert main([*STATS, *words]) == 0
    said = capsys.readouterr().err
    assert "\r" not in said
    assert any(line.startswith("verify: ") and "/4" in line for line in said.splitlines()) == ("-q" not in words)
    assert (("on the way" in said), said == "") == ("-v" in words, "-q" in words)


def test_completion_knows_options_and_choices(shown, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert "pip install shtab" in refused("completion", "bash")
    monkeypatch.undo()
    pytest.importorskip("shtab")
    script = shown("completion", "bash")
    for words in ("expand-vocab", "--method", "subword", "histogram"):
        assert words in script, words


def test_a_message_says_how_many_names_it_leaves_out():
    texts = [listed(range(count), 3) for count in (0, 1, 3, 4, 2003)]
    assert texts == ["", "0", "0, 1, 2", "0, 1, 2 and 1 more", "0, 1, 2 and 2,000 more"]
    assert listed([7, 8], 5, total=9) == "7, 8 and 7 more"
