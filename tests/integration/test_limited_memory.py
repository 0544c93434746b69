"""Files of a few megabytes that unpack to gigabytes, under a limit of memory: one line with file and remedy for each.

They are sparse, or packed from blocks that repeat, which takes a second.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.end_to_end

MB = 1 << 20
#: more than what the imports take, which differs: a torch for GPUs maps many gigabytes
ALLOWED = 1000 * MB
LIMITED = f"""
import importlib.util, resource, runpy, sys
module, *imports = sys.argv.pop(1).split(",")
for name in imports:
    __import__(name)
mapped = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (mapped + {ALLOWED}, resource.RLIM_INFINITY))
sys.argv[0] = importlib.util.find_spec(module).origin
runpy.run_module(module, run_name="__main__")
"""
EMBINIT = "embinit_fairseq.cli.main"
ROWS = "".join(f"w{number} 1 2 3 4 5 6 7 8\n" for number in range(1000)).encode()


def line(path: Path) -> None:
    """4 GB without a line break behind good rows."""
    path.write_bytes(gzip.compress(ROWS) + 256 * gzip.compress(b"x" * 16 * MB))


def pickled(path: Path) -> None:
    """A pickle of 700 MB, which torch would hold twice."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("archive/data.pkl", "w", force_zip64=True) as member:
            member.write(b"\x80\x02}")
            for _ in range(700):
                member.write(bytes(MB))
        archive.writestr("archive/version", "3\n")


def sparse(path: Path) -> None:
    """8 GB of nothing behind a few good bytes."""
    path.parent.mkdir()
    path.write_bytes(b"{")
    os.truncate(path, 8 << 30)


def refused(command: list[str], imports: str, bomb: Path, output: Path) -> None:
    """The command ends by itself, names the file and a remedy in one line, and leaves nothing."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, f"{command[0]},{imports}", *command[1:]],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    errors = [each for each in done.stderr.splitlines() if "error" in each]
    assert done.returncode in (1, 2), done.stderr[-2000:]
    assert len(errors) == 1, done.stderr[-2000:]
    assert str(bomb) in errors[0]
    assert any(remedy in errors[0] for remedy in ("again", "Save the file", "anew")), errors
    assert "memory ran out" not in errors[0]
    assert "Traceback" not in done.stderr
    assert not list(output.rglob("*"))


def test_vectors(tmp_path):
    bomb, output = tmp_path / "vectors", tmp_path / "output"
    line(bomb)
    refused([EMBINIT, "stats", "--vectors", str(bomb)], "numpy", bomb, output)


def test_runs(tmp_path):
    bomb, output = tmp_path / "run" / "train.log", tmp_path / "output"
    sparse(bomb)
    refused([EMBINIT, "compare", str(tmp_path / "run"), "--output", str(output)], "numpy", bomb, output)


def test_a_checkpoint(tmp_path):
    bomb, output, words = tmp_path / "c.pt", tmp_path / "output", tmp_path / "words.txt"
    pickled(bomb)
    (tmp_path / "dict.txt").write_text("a 1\n")
    words.write_text("new\n")
    inputs = ["--checkpoint", str(bomb), "--dict", str(tmp_path / "dict.txt"), "--words", str(words)]
    refused([EMBINIT, "expand-vocab", *inputs, "--output", str(output)], "fairseq", bomb, output)
