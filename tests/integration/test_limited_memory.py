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
#: a limit above what the imports take, which differs: a torch for GPUs maps many gigabytes
LIMITED = f"""
import resource, runpy, sys
__import__(sys.argv.pop(1))
mapped = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (mapped + {1000 * MB}, resource.RLIM_INFINITY))
runpy.run_module("embinit_fairseq.cli.main", run_name="__main__")
"""
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
    """8 GB of nothing behind a good byte."""
    path.parent.mkdir()
    path.write_bytes(b"{")
    os.truncate(path, 8 << 30)


EXPAND = "expand-vocab --checkpoint c.pt --dict dict.txt --words words.txt --output output"


@pytest.mark.parametrize(
    ("make", "name", "imports", "command"),
    [
        (line, "vectors", "numpy", "stats --vectors vectors"),
        (sparse, "run/train.log", "numpy", "compare run --output output"),
        (pickled, "c.pt", "fairseq", EXPAND),
    ],
)
def test_a_bomb_is_refused(tmp_path, make, name, imports, command):
    make(tmp_path / name)
    (tmp_path / "dict.txt").write_text("a 1\n")
    (tmp_path / "words.txt").write_text("new\n")
    arguments = [sys.executable, "-c", LIMITED, imports, *command.split()]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=900, cwd=tmp_path)
    errors = [each for each in done.stderr.splitlines() if "error" in each]
    assert (done.returncode in (1, 2), len(errors)) == (True, 1), done.stderr[-2000:]
    assert name in errors[0]
    assert any(remedy in errors[0] for remedy in ("again", "Save the file", "anew")), errors
    assert "memory ran out" not in errors[0]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "output").exists()
