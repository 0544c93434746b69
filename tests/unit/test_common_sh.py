"""scripts/common.sh, function by function."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def common(commands: str, *arguments: object) -> subprocess.CompletedProcess:
    """Run commands with the functions of common.sh."""
    program = f'source "{REPO}/scripts/common.sh"\n{commands}'
    command = ["bash", "-c", program, "test", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)  # what waits for itself waits for ever


def start(commands: str, *arguments: object) -> subprocess.Popen:
    """The same in the background, in a process group of its own."""
    program = f'source "{REPO}/scripts/common.sh"\n{commands}'
    command = ["bash", "-c", program, "test", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True)


READ = """
data="" batch_size=64 seeds=() vectors=() keep_all="" extra=()
read_options "data batch-size seeds... vectors... keep-all? --" "$@"
printf '%s|' "$data" "$batch_size" "${seeds[*]-}" "${vectors[*]-}" "$keep_all" "${extra[*]-}"
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["", "64", "", "", "", ""]),
        (["--data", "a folder", "--batch-size", "8"], ["a folder", "8", "", "", "", ""]),
        (["--data", "old", "--data", "new"], ["new", "64", "", "", "", ""]),
        (["--seeds", "1", "2", "--data", "d"], ["d", "64", "1 2", "", "", ""]),
        (
            ["--vectors", "encoder=a", "--seeds", "1", "--vectors", "decoder=b"],
            ["", "64", "1", "encoder=a decoder=b", "", ""],
        ),
        (["--keep-all", "--data", "d"], ["d", "64", "", "", "1", ""]),
        (["--seeds", "1", "--keep-all"], ["", "64", "1", "", "1", ""]),
        (["--seeds", "1", "--", "--data", "x"], ["", "64", "1", "", "", "--data x"]),
        (["--"], ["", "64", "", "", "", ""]),
    ],
)
def test_options_become_variables(arguments: list[str], expected: list[str]) -> None:
    result = common(READ, *arguments)
    assert result.stdout.split("|")[:-1] == expected, result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--colour", "red"], "--colour: no such option"),
        (["--dat", "x"], "--dat: no such option"),
        (["--batch_size", "8"], "--batch_size: no such option"),
        (["data", "x"], "data: no such option"),
        (["--data batch-size", "x"], "--data batch-size: no such option"),
        (["--extra", "x"], "--extra: no such option"),
        (["--seeds..."], "--seeds...: no such option"),
        (["--keep-all?"], "--keep-all?: no such option"),
        (["--keep-all", "x"], "x: no such option"),
        (["--data", ""], "--data needs a value"),
        (["--data"], "--data needs a value"),
        (["--data", "--seeds", "1"], "--data needs a value"),
        (["--data", "--", "x"], "--data needs a value"),
        (["--seeds"], "--seeds needs a value"),
        (["--seeds", "--data", "x"], "--seeds needs a value"),
    ],
)
def test_wrong_options_are_named(arguments: list[str], message: str) -> None:
    result = common(READ, *arguments)
    assert result.returncode == 1
    assert result.stderr == f"test: error: {message}; see test --help\n"


def test_a_script_that_passes_nothing_on_refuses_two_dashes() -> None:
    assert "--: no such option" in common('read_options "data" "$@"', "--", "x").stderr


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ([], None),
        (["0", "8", "12345678901"], None),
        (["1", "01"], "01"),  # the seed of another folder
        (["99999999999999999999"], "99999999999999999999"),
        (["1", "-1"], "-1"),
        (["1", "2.0"], "2.0"),
        (["1e3"], "1e3"),
        ([" 1"], " 1"),
    ],
)
def test_whole_numbers(values: list[str], wrong: str | None) -> None:
    result = common('all_seeds=("$@")\nwhole_numbers 0 all-seeds', *values)
    message = f"test: error: --all-seeds {wrong}: must be a whole number from 0\n"
    assert result.stderr == ("" if wrong is None else message)
    assert result.returncode == int(wrong is not None)


def test_a_number_is_given_once() -> None:
    result = common('seeds=("$@")\nwhole_numbers 0 seeds', "1", "2", "1")
    assert (result.returncode, result.stderr) == (1, "test: error: --seeds 1: given twice\n")


def test_a_whole_number_has_a_smallest_value_and_may_be_left_out() -> None:
    assert common('jobs=""\nwhole_numbers 2 jobs').returncode == 0
    assert common("jobs=2\nwhole_numbers 2 jobs").returncode == 0
    assert "--jobs 1: must be a whole number from 2" in common("jobs=1\nwhole_numbers 2 jobs").stderr


@pytest.mark.parametrize(
    ("value", "right"),
    [(".5", True), ("1e-4", True), ("1.", True), ("2E+0", True), ("0", False), ("2.1", False), ("-1", False)]
    + [(text, False) for text in ("", "x", "1x", ".", "e3", "0x1", "nan", "inf", "1 ", "1,5")],
)
def test_numbers(value: str, right: bool) -> None:
    result = common("number --rate \"$1\" 'n > 0 && n <= 2' 'above 0, at most 2'", value)
    assert result.stderr == ("" if right else f"test: error: --rate {value}: must be a number above 0, at most 2\n")


def test_an_output_folder_is_made_or_refused(tmp_path: Path) -> None:
    assert common('output_folder --output "$1"', tmp_path / "a b" / "c").returncode == 0
    assert (tmp_path / "a b" / "c").is_dir()
    (tmp_path / "file").touch()
    for output, reason in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "below", "Not a directory")):
        result = common('output_folder --output "$1"', output)
        assert result.stderr == f"test: error: --output {output}: cannot be made ({reason}); choose another folder\n"


@pytest.mark.parametrize("words", ["0 runs", "1 run", "2 runs"])
def test_counted(words: str) -> None:
    assert common('counted "$1" run', words.split()[0]).stdout == words + "\n"


def test_download_keeps_only_the_right_file(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "folder" / "target"
    source.write_text("data\n")
    digest = hashlib.sha256(b"data\n").hexdigest()
    command = 'download "$1" "$2" "$3"'
    wrong = common(command, source.as_uri(), "0" * 64, target)
    assert wrong.returncode != 0
    assert digest in wrong.stderr
    assert list(target.parent.iterdir()) == []
    assert common(command, source.as_uri(), digest, target).returncode == 0
    assert target.read_text() == "data\n"
    source.unlink()
    assert common(command, source.as_uri(), digest, target).returncode == 0  # there already: nothing is fetched
    missing = common(command, source.as_uri(), digest, tmp_path / "other")
    assert missing.returncode != 0
    assert "DATA" in missing.stderr
    assert not (tmp_path / "other.part").exists()


def test_a_failed_step_leaves_no_output_and_is_repeated(tmp_path: Path) -> None:
    script = 'make() { echo half >"$2"; [[ $1 == good ]]; echo whole >"$2"; }\nstep "a step" "$2" -- make "$1"'
    output = tmp_path / "output"
    assert common(script, "bad", output).returncode != 0
    assert not output.exists()
    assert common(script, "good", output).returncode == 0
    assert output.read_text() == "whole\n"
    assert common(script, "bad", output).returncode == 0


@pytest.mark.parametrize("inner", [False, True])
def test_a_failed_step_leaves_nothing_unfinished(tmp_path: Path, inner: bool) -> None:
    """Neither do the steps that it is a part of; what else a script does at its end it does."""
    make = 'half() { for each in "$@"; do echo half >"$each"; done; false; }\n'
    outer = 'outer() { echo half >"$1"; step "inner" "$2/x y" "$2/z" -- half; }\nouter_of() { outer "$2" "$1"; }\n'
    step = 'step "outer" "$1/a" -- outer_of "$1"' if inner else 'step "a step" "$1/x y" "$1/z" -- half'
    done = common(f"{make}{outer}trap 'echo the end of the script' EXIT\n{step}", tmp_path)
    assert (done.returncode, done.stdout) == (1, "the end of the script\n")
    assert list(tmp_path.iterdir()) == []
    good = 'whole() { echo whole >"$1"; }\ntrap "echo the end" EXIT\nstep "a step" "$1/a" -- whole\nfalse'
    done = common(good, tmp_path)
    assert (done.returncode, done.stdout) == (1, "the end\n")
    assert (tmp_path / "a").read_text() == "whole\n"


@pytest.mark.parametrize("kilobytes", ["0", "99", "5000"])
@pytest.mark.parametrize("how", ["false", "die 'the input is damaged'"])
def test_a_full_disk_is_named(tmp_path: Path, kilobytes: str, how: str) -> None:
    """In one line, whatever the program that failed takes for the cause."""
    df = f'df() {{ printf "Filesystem 1024-blocks Used Available\\ntmpfs 1000 1000 {kilobytes} 100%% /\\n"; }}\n'
    done = common(f'{df}make() {{ {how}; }}\nstep "a step" "$1/a" -- make', tmp_path)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    if kilobytes == "5000":
        assert errors == (["test: error: the input is damaged"] if how != "false" else [])
    else:
        assert len(errors) == 1
        assert f"no space left on the disk of {tmp_path}: free some space" in errors[0]
        assert "--output" in errors[0]


needs_flock = pytest.mark.skipif(shutil.which("flock") is None, reason="the program flock is missing (util-linux)")
SLOW = 'make() { echo "$1" >>"$3"; sleep 1; echo "$1" >"$3"; echo "$1 ran" >>"$2"; }\n'


@needs_flock
def test_two_scripts_in_one_folder_take_turns(tmp_path: Path) -> None:
    script = SLOW + 'step "a step" "$2/output" -- make "$1" "$2/log"'
    running = [start(script, name, tmp_path) for name in ("one", "other")]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    winner = (tmp_path / "output").read_text()
    assert (tmp_path / "log").read_text() == winner.strip() + " ran\n"
    assert sum("waiting for another script" in text and "done by another script" in text for text in said) == 1


@needs_flock
def test_a_step_in_a_step_and_one_after_a_killed_one_do_not_wait(tmp_path: Path) -> None:
    outer = 'inner() { echo whole >"$1"; }\nouter() { step "inner" "$1/a" -- inner; cp "$1/a" "$2"; }\n'
    assert common(outer + 'step "outer" "$1/b" -- outer "$1"; step "last" "$1/c" -- inner', tmp_path).returncode == 0
    assert [(tmp_path / name).read_text() for name in "abc"] == ["whole\n"] * 3
    killed = start(SLOW.replace("sleep 1", "sleep 60") + 'step "a step" "$2/d" -- make "$1" "$2/log"', "x", tmp_path)
    while not (tmp_path / "d.part").exists():
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    done = common('make() { echo whole >"$1"; }\nstep "a step" "$1/d" -- make', tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "d").read_text() == "whole\n"
    assert "waiting" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("programs", "given", "expected"),
    [
        (["embinit", "fairseq-train"], "", "active"),
        (["embinit", "fairseq-train"], "other", "other"),
        (["embinit"], "", ".venv"),
        ([], "", ".venv"),
    ],
)
def test_an_activated_environment_with_the_plugin_is_used(tmp_path: Path, programs, given, expected) -> None:
    (tmp_path / "active" / "bin").mkdir(parents=True)
    for name in programs:
        (tmp_path / "active" / "bin" / name).touch(mode=0o755)
    variables = {"VIRTUAL_ENV": str(tmp_path / "active"), "VENV": given, "PATH": os.environ["PATH"]}
    program = f'source "{REPO}/scripts/common.sh"; basename "$VENV"'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=variables)
    assert done.stdout.strip() == expected, done.stderr
