"""docs/scaling.md on Ray: corpora have the bytes of the pool, and a worker without the package ends the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from corpora import assert_same, prepare, write_text
from programs import VENV
from slurm import free_port

pytest.importorskip("ray", reason="no Ray: pip install 'embinit-fairseq[ray]'")
pytestmark = pytest.mark.end_to_end
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def test_corpora_by_ray_are_those_of_the_pool_also_after_a_worker_without_the_package(tmp_path: Path) -> None:
    text, output = write_text(tmp_path / "text"), tmp_path / "ray"
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    bare = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    port = free_port()
    head = [*RAY, "start", "--head", f"--port={port}", "--num-cpus=1", "--include-dashboard=false", "--block"]
    with subprocess.Popen(head, env=bare, stdout=subprocess.PIPE, text=True) as cluster:
        try:
            assert any("Ray runtime started" in line for line in cluster.stdout)
            failed = prepare(text, output, environment, EXECUTOR="ray", EXECUTOR_OPTIONS=f"address=127.0.0.1:{port}")
        finally:
            cluster.terminate()
    assert failed.returncode != 0
    assert "EXECUTOR=ray: shards: ModuleNotFoundError" in failed.stderr.splitlines()[-1]
    by_ray = prepare(text, output, environment, EXECUTOR="ray", JOBS=2)
    assert by_ray.returncode == 0, by_ray.stderr
    assert prepare(text, tmp_path / "pool", VENV=VENV, JOBS=1).returncode == 0
    assert_same(output, tmp_path / "pool")
