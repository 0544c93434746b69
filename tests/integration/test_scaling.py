"""docs/scaling.md in small: two processes on a CPU, started by fairseq, by torchrun and by (an imitation of) SLURM,
train like one process that takes two batches for an update."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

VENV = Path(sys.prefix)  # several processes: really started, not imitated
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
UPDATES = 4

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]

WMT14 = ["--arch", "transformer_wmt_en_de", "--updates", UPDATES, "--warmup", 2, "--lr", 0.01, "--save-every", 4]
WMT14 += ["--dropout", 0, "--max-tokens", 200, "--update-tokens", 400]
WIKIBOOKS = ["--arch", "tupe_tiny", "--updates", UPDATES, "--warmup", 1, "--lr", 0.01, "--save-every", 4]
WIKIBOOKS += ["--dropout", 0, "--batch", 8, "--device-batch", 4, "--tokens", 32]
MODEL = ["--encoder-layers", 1, "--encoder-embed-dim", 8, "--encoder-ffn-embed-dim", 8, "--encoder-attention-heads", 2]
DECODER = [option.replace("encoder", "decoder") if isinstance(option, str) else option for option in MODEL]
MODELS = {"wmt14_en_de": [*WMT14, "--", *MODEL, *DECODER], "wikibooks": [*WIKIBOOKS, "--", *MODEL]}

#: what srun does, as far as fairseq can tell: a copy of the program for each task, with its number
SRUN = """\
#!/usr/bin/env bash
export SLURM_STEP_NODELIST=localhost SLURM_NNODES=1 SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=2 SLURM_NODEID=0
SLURM_PROCID=1 SLURM_LOCALID=1 "$@" &
SLURM_PROCID=0 SLURM_LOCALID=0 "$@"
wait
"""
SCONTROL = '#!/usr/bin/env bash\n[[ "$1 $2" == "show hostnames" ]] && echo "$3"\n'


@pytest.fixture(scope="module")
def data(toy_translation: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What prepare.sh would have made, as far as train.sh looks at it."""
    folder, text = tmp_path_factory.mktemp("scaling"), toy_translation.parent
    preprocess = [sys.executable, "-m", "fairseq_cli.preprocess"]
    made = {name: folder / name for name in MODELS}
    joined = ["-s", "en", "-t", "de", "--joined-dictionary", f"--destdir={made['wmt14_en_de'] / 'bin'}"]
    joined += [f"--{split}pref={text / split}" for split in ("train", "valid")]
    subprocess.run([*preprocess, *joined], check=True, capture_output=True)
    (made["wmt14_en_de"] / "settings").write_text("pair=en-de\nsource=en\ntarget=de\n")
    single = ["--only-source", f"--destdir={made['wikibooks'] / 'bin'}"]
    single += [f"--{split}pref={text / split}.de" for split in ("train", "valid")]
    subprocess.run([*preprocess, *single], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def environment(**variables: str) -> dict[str, str]:
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_"))}
    return {**outer, "VENV": str(VENV), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}


def train(name: str, data: Path, run: Path, own=(), fairseqs=(), **variables: str) -> subprocess.CompletedProcess:
    """train.sh with further options of its own, and of fairseq-train behind `--`."""
    split = MODELS[name].index("--")
    arguments = [*MODELS[name][:split], *own, *MODELS[name][split:], *fairseqs]
    command = ["bash", SCRIPTS / name / "train.sh", "--data", data, "--output", run, *arguments]
    return subprocess.run(list(map(str, command)), env=environment(**variables), capture_output=True, text=True)


def losses(run: Path, done: subprocess.CompletedProcess, update_freq: int, devices: int) -> list[float]:
    """Of the one validation, which one process alone prints."""
    log = (run / "train.log").read_text() if (run / "train.log").is_file() else ""
    assert done.returncode == 0, done.stdout + done.stderr + log
    assert f"--update-freq {update_freq} " in json.loads((run / "training.json").read_text())["command"]
    assert f"training on {devices} devices" in log
    found = [json.loads(line.partition("| valid | ")[2]) for line in log.splitlines() if "| valid | " in line]
    assert [int(record["valid_num_updates"]) for record in found] == [UPDATES]
    return [float(record["valid_loss"]) for record in found]


@pytest.fixture(scope="module")
def alone(data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    runs = {name: tmp_path_factory.mktemp(name) for name in MODELS}
    return {name: losses(run, train(name, data[name], run), update_freq=2, devices=1) for name, run in runs.items()}


LAUNCHES = {
    "fairseq": ("", ["--distributed-world-size", 2]),
    "torchrun": ("torchrun --standalone --nproc-per-node 2 --no-python", []),
    "slurm": ("srun", ["--distributed-world-size", 2, "--distributed-port", 29617]),
}


# each way with one of the two scripts, which share what they do about it
@pytest.mark.parametrize(("name", "launch"), list(zip(itertools.cycle(MODELS), LAUNCHES)))
def test_two_processes_train_like_one(name, launch, data, alone, programs, tmp_path):
    words, options = LAUNCHES[launch]
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = train(name, data[name], tmp_path, ["--devices", 2], options, LAUNCH=words, PATH=path)
    assert losses(tmp_path, done, update_freq=1, devices=2) == pytest.approx(alone[name], abs=2e-3)


def test_a_second_machine_trains_along_and_leaves_the_records_to_the_first(data, alone, tmp_path):
    """As on two machines without SLURM: train.sh on each, the second with --worker."""
    torchrun = "torchrun --nnodes 2 --nproc-per-node 1 --master-addr localhost --master-port 29618 --no-python"
    other, records = tmp_path / "other", {}

    def second() -> None:
        launch = f"{torchrun} --node-rank 1"
        records["done"] = train("wikibooks", data["wikibooks"], other, ["--devices", 2, "--worker"], LAUNCH=launch)

    thread = threading.Thread(target=second)
    thread.start()
    first = train("wikibooks", data["wikibooks"], tmp_path, ["--devices", 2], LAUNCH=f"{torchrun} --node-rank 0")
    thread.join()
    assert losses(tmp_path, first, update_freq=1, devices=2) == pytest.approx(alone["wikibooks"], abs=2e-3)
    assert records["done"].returncode == 0, records["done"].stderr
    assert not (other / "training.json").exists()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("options", "expected"),
    [(["--worker"], "--worker needs LAUNCH"), (["--devices", 0], "--devices 0: must be a whole number from 1")],
)
def test_mistakes(name, options, expected, data, tmp_path):
    done = train(name, data[name], tmp_path, options)
    assert (done.returncode, expected in done.stderr) == (1, True), done.stderr
