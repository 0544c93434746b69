"""What every command does that writes a folder or a file: complete or not there, and errors that say what is wrong.

A command joins by a function that is named in FOLDERS or FILES.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import expand_checkpoints
import hf_exports
import pytest
import torch
import tupe_code
from source_files import numbers, text
from test_io import content, largest_file
from test_tupe_checkpoints import SYMBOLS, Files

from embinit_fairseq.cli.main import main
from embinit_fairseq.interop import export
from embinit_fairseq.interop.tokenizers import Tokenizer


@dataclass
class Command:
    """first, second: arguments that write different things. inputs: the folder of what is read.
    name: of a file it writes inside --output; "" where --output is that file. force: has it --force?"""

    first: list[str]
    second: list[str]
    inputs: Path
    name: str = ""
    force: bool = True

    def run(self, output: Path, *more: str, second: bool = False) -> int:
        words = self.second if second else self.first
        return main(expand_checkpoints.replaced(words, "--output", output, *more))

    @property
    def replace(self) -> list[str]:
        return ["--force"] if self.force else []


def expand_vocab(folder: Path) -> Command:
    first = expand_checkpoints.argv(expand_checkpoints.make(folder, "lm_tied"))
    return Command(first, [*first, "--method", "zeros"], folder, "model.pt")


def trim_vocab(folder: Path) -> Command:
    old = expand_checkpoints.make(folder, "lm_tied")
    (folder / "kept").write_text("w1\nw2\n")
    first = ["trim-vocab", "--checkpoint", old.path, "--dict", old.dictionary, "--keep", str(folder / "kept")]
    return Command(first, [*first, "--reset-optimizer"], folder, "model.pt")


def transfer_vocab(folder: Path) -> Command:
    old = expand_checkpoints.make(folder, "lm_tied")
    (folder / "new").write_text("w1 2\nw2 1\nother 1\n")
    first = ["transfer-vocab", "--checkpoint", old.path, "--dict", old.dictionary, "--new-dict", str(folder / "new")]
    return Command([*first, "--method", "copy"], [*first, "--method", "avg"], folder, "model.pt")


def convert_tupe(folder: Path) -> Command:
    given, commands = Files(folder), []
    for name, dim in (("old.pt", 8), ("new.pt", 16)):
        os.rename(given.save(tupe_code.make_weights(SYMBOLS, dim=dim)), folder / name)
        commands.append(given.argv(str(folder / name)))
    return Command(*commands, folder, "model.pt")


def export_hf(folder: Path) -> Command:
    first = ["export-hf", "--checkpoint", hf_exports.checkpoint_of(folder).path]
    return Command(first, [*first, "--dtype", "bfloat16"], folder, "model.safetensors")


def prepare(folder: Path) -> Command:
    (folder / "train.txt").write_text("".join(f"w{number} w{number % 9}\n" for number in range(999)))
    first = ["prepare", str(folder / "train.txt"), "--steps", "none", "--jobs", "1", "--json"]
    return Command(first, [*first, "--min-count", "2"], folder, "bin/dict.txt")


def average(folder: Path) -> Command:
    state = {"args": None, "cfg": {}, "extra_state": {}, "optimizer_history": [{"num_updates": 1}]}
    for number in (1, 2, 3):
        torch.save({**state, "model": {"w": torch.full((9999,), float(number))}}, folder / f"{number}.pt")
    first, second = (["average", *(str(folder / f"{n}.pt") for n in pair)] for pair in ((1, 2), (1, 3)))
    return Command(first, second, folder)


def save_vectors(folder: Path) -> Command:
    for number in (1, 2):
        (folder / f"{number}.txt").write_bytes(text([f"w{row}" for row in range(999)], number * numbers(999)))
    first, second = (["save-vectors", "--vectors", str(folder / f"{number}.txt")] for number in (1, 2))
    return Command(first, second, folder)


def plot_histogram(folder: Path) -> Command:
    (folder / "v.txt").write_bytes(text([f"w{row}" for row in range(9)], numbers(9)))
    first = ["plot", "histogram", "--vectors", str(folder / "v.txt")]
    return Command(first, [*first, "--bins", "7"], folder, force=False)


MADE = (expand_vocab, trim_vocab, transfer_vocab, convert_tupe, export_hf, prepare)
FOLDERS = {make.__name__.replace("_", "-"): make for make in MADE}
FILES = {make.__name__.replace("_", "-"): make for make in (average, plot_histogram, save_vectors)}


@pytest.fixture(scope="module", params=[*FOLDERS, *FILES])
def made(request, tmp_path_factory) -> Command:
    return (FOLDERS | FILES)[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture
def command(made, monkeypatch) -> Command:
    """Nothing is opened by another process: that takes seconds, and is tested with export-hf."""
    monkeypatch.setattr(export, "verify", lambda *_: {"ids": {"": []}, "differences": {}, "batches": 0, "tokens": 0})
    monkeypatch.setattr(Tokenizer, "check", lambda *_: None)
    return made


@pytest.fixture
def folder_command(command) -> Command:
    return command if command.name else pytest.skip("writes a file")


def snapshot(path: Path):
    """Names and, of files, what stays if they are not touched: number, time and content."""
    paths = {str(each.relative_to(path)): each for each in path.rglob("*")}
    files = {name: (each.stat(), each) for name, each in paths.items() if each.is_file()}
    kept = {name: (stat.st_ino, stat.st_mtime_ns, each.read_bytes()) for name, (stat, each) in files.items()}
    return {**dict.fromkeys(paths), **kept}


def refused(capsys, code: int, *parts: str) -> None:
    """One line that has all `parts`."""
    captured = capsys.readouterr()
    said = [line for line in captured.err.splitlines() if " | INFO | " not in line]  # of fairseq
    assert (code, captured.out, len(said)) == (2, "", 1), captured.err
    assert all(part in said[0] for part in parts), said


def test_it_is_written_once_and_replaced_when_asked(command, tmp_path, capsys):
    """Not on a full disk, and with --force where a command has it."""
    output = tmp_path / "out" if command.name else tmp_path / ("out.txt" if command.force else "out.png")
    if command.name:
        output.mkdir()  # an empty folder will do
    before = snapshot(tmp_path)
    with largest_file(4096):
        code = command.run(output, second=True)
    refused(capsys, code, f"{output}", "File too large", "free some space")
    assert snapshot(tmp_path) == before
    assert command.run(output) == 0
    old = snapshot(tmp_path)
    capsys.readouterr()
    if command.force:
        refused(capsys, command.run(output, second=True), f"--output {output}", "--force")
        assert snapshot(tmp_path) == old
    assert command.run(output, *command.replace, second=True) == 0
    assert os.listdir(tmp_path) == [output.name]
    assert (output / command.name).read_bytes() != old[str((output / command.name).relative_to(tmp_path))][2]


def test_places_that_cannot_be_written_to(command, tmp_path, capsys, monkeypatch):
    """Of folders found before the work: nothing is read from the checkpoint."""
    (tmp_path / "file").write_text("precious")
    if command.name:
        monkeypatch.setattr("embinit_fairseq.checkpoint_file.load_safely", None)
        code = command.run(tmp_path / "file", "--force")
        refused(capsys, code, f"--output {tmp_path / 'file'}: ", "another --output")
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)  # who runs the tests may be root
            refused(capsys, command.run(tmp_path / "a" / "b"), f"{tmp_path} is read-only", "another --output")
    output = tmp_path / "file" / "below.png"
    refused(capsys, command.run(output, *command.replace), f"--output {output}")
    assert content(tmp_path) == {"file": "precious"}


def test_force_deletes_nothing_that_is_not_ours(folder_command, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    refused(capsys, folder_command.run(tmp_path, "--force"), "thesis.tex", "--force", "another --output")
    assert content(tmp_path) == {"thesis.tex": "years of work"}
    before = snapshot(folder_command.inputs)
    code = folder_command.run(folder_command.inputs, "--force")
    refused(capsys, code, str(folder_command.inputs), "input", "another --output")
    assert snapshot(folder_command.inputs) == before


def test_compare_makes_no_folder_before_it_has_something_to_write(tmp_path):
    assert main(["compare", str(tmp_path / "nowhere"), "--output", str(tmp_path / "a" / "b")]) == 2
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_stopped_by_a_signal_leaves_what_was_there(tmp_path, capsys, monkeypatch, number):
    """When everything is written, but not in its place."""
    command, output = average(tmp_path), tmp_path / "out.pt"
    assert command.run(output) == 0
    before = snapshot(tmp_path)
    monkeypatch.setattr(os, "replace", lambda *_: (os.kill(os.getpid(), number), time.sleep(60)))
    handler = signal.signal(number, signal.SIG_DFL)  # a suite under nohup ignores SIGHUP
    try:
        assert command.run(output, "--force", second=True) == 130
    finally:
        signal.signal(number, handler)
    assert capsys.readouterr().err.splitlines()[-1] == "embinit average: interrupted"
    assert snapshot(tmp_path) == before
