"""scripts/multi30k: the lists of trainings, a transformer of Duo's size, the table of loss against scale."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

pytest.importorskip("fairseq", reason="it builds models; install fairseq with scripts/setup.sh")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "multi30k"))

import experiments
import scale_figure
from duo_reference import count

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.runs.command import parse_command
from embinit_fairseq.runs.grid import read_lines

LAYERS, D, FFN, WORDS = 2, 12, 10, 60
SMALL = [
    *(f"--{side}-{name}={size}" for side in ("encoder", "decoder") for name, size in (("layers", 1), ("embed-dim", 6))),
    *("--encoder-attention-heads=2", "--decoder-attention-heads=2"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data" / "bin").mkdir(parents=True)
    for language in ("de", "en"):
        (tmp_path / f"data/bin/dict.{language}.txt").write_text("".join(f"w{n} 1\n" for n in range(WORDS - 4)))
    (tmp_path / "data/bin/train.de-en.en.bin").touch()
    return tmp_path / "data"


def listed(capsys: pytest.CaptureFixture[str], grid: str, data: Path, *options: str) -> dict[str, list[str]]:
    """Name -> words of its line. Read as `embinit grid` does, which refuses names that are not unique."""
    vectors = [
        "--vectors",
        *(f"{name}={name}.txt" for name in ("de", "en", "de2", "en2", "de_a", "de_b", "en_a", "en_b")),
    ]
    experiments.main([grid, "--data", str(data), "--output", "my runs", *vectors, "--device", "cpu", *options])
    return {line.name: shlex.split(line.command) for line in read_lines(capsys.readouterr().out)}


@pytest.mark.parametrize(("grid", "trainings"), [("scale", 78), ("table1", 18), ("duo", 36), ("ladder", 6)])
def test_every_line_is_a_training_in_a_folder_of_its_name(capsys, data, grid, trainings) -> None:
    lines = listed(capsys, grid, data, "--precision", "bf16", "--", *SMALL)
    assert len(lines) == trainings
    for name, words in lines.items():
        assert words[:3] == ["embinit", "run", f"my runs/{name}"]
        assert ("fairseq-generate" in words) == ("score" in words) == (grid != "scale")
        until = words.index("&&") if "&&" in words else None
        options = parse_command(words[:until]).options
        assert {"--cpu", "--amp"} <= set(options)
        assert int(options["--max-epoch"][0]) > 0
        assert name.endswith(f".seed{options['--seed'][0]}")
        assert all(width.isdigit() for flag in experiments.FFN for width in options[flag])


def test_all_scales_have_six_epochs_and_the_ends_and_the_middle_twelve(capsys, data) -> None:
    found: dict[str, dict[str, set[str]]] = {}
    for words in listed(capsys, "scale", data).values():
        options = parse_command(words).options
        epochs = found.setdefault(options["--max-epoch"][0], {})
        epochs.setdefault(options["--embed-init-std"][0], set()).add(options["--seed"][0])
    assert found["12"] == {factor: {"1", "2", "3"} for factor in ("0.125x", "1x", "8x")}
    assert found["6"] == {factor: {"1"} for factor in ("0.25x", "0.5x", "2x", "4x")}


def test_what_a_list_cannot_be_made_of_is_named(tmp_path, data, capsys) -> None:
    with pytest.raises(OptionError, match=r"--data .*prepare\.sh"):
        experiments.main(["ladder", "--data", str(tmp_path), "--output", "o"])
    with pytest.raises(SystemExit):
        experiments.main(["duo", "--data", str(data), "--output", "o", "--vectors", "de=a"])
    assert "--vectors: give de=PATH and en=PATH" in capsys.readouterr().err


# ---- as many parameters as Duo --------------------------------------------------------------------------------------

PAPER = {"streams": 2, "shared": True, "fusion": True}


@pytest.fixture
def command(data: Path) -> list[str]:
    sizes = {"layers": LAYERS, "embed-dim": D, "ffn-embed-dim": FFN, "attention-heads": 3}
    flags = [f"--{side}-{name} {value}" for side in ("encoder", "decoder") for name, value in sizes.items()]
    plugin = f"--user-dir {experiments.PLUGIN} --task translation -s de -t en --cpu"
    return [
        *f"fairseq-train DATA {plugin} --arch transformer {' '.join(flags)}".replace("DATA", str(data / "bin")).split()
    ]


@pytest.mark.parametrize(
    ("ties", "tables", "duo", "told"),
    [
        ("", "three", "--duo-share-weights off", {**PAPER, "shared": False}),
        ("--share-decoder-input-output-embed", "two", "--duo-share-weights pair --duo-norm encoder", PAPER),
        ("--share-all-embeddings", "one", "--encoder-dim-p 5", {**PAPER, "dims": [D, 5]}),
    ],
)
def test_the_two_models_have_as_many_parameters(command, ties, tables, duo, told) -> None:
    """By the formula of test_duo_parameters, to half of what a wider layer adds."""
    width = experiments.equal_width((*command, *ties.split()), tuple(duo.split()))
    expected = count(LAYERS, D, FFN, WORDS, tables=tables, **told)
    found = count(LAYERS, D, width, WORDS, tables=tables, streams=1)
    assert width > FFN
    assert abs(found - expected) <= LAYERS * (2 * D + 1)  # half of it for encoder and decoder


def test_a_duo_that_no_transformer_is_small_enough_for(command, data) -> None:
    for language in ("de", "en"):
        (data / f"bin/dict.{language}.txt").write_text("".join(f"w{number} 1\n" for number in range(2000)))
    small = tuple("--encoder-dim-s 1 --encoder-dim-p 1 --decoder-dim-s 1 --decoder-dim-p 1".split())
    with pytest.raises(OptionError, match="--encoder-dim-s 1"):
        experiments.equal_width((*command, "--share-decoder-input-output-embed"), small)


# ---- loss against scale ---------------------------------------------------------------------------------------------


def write(folder: Path, init: str, factor: str, place: str, seed: int, losses: list[float], ratio: float) -> None:
    slot = {"absorption_ratio": None if place != "added" else ratio / 2, "matched_absorption_ratio": None}
    if place == "added" and init == "pretrained_xavier":
        slot["matched_absorption_ratio"] = ratio
    record = {
        "labels": {"init": init, "sigma": factor, "positions": place, "seed": str(seed)},
        "epochs": {str(epoch): {"valid_loss": loss} for epoch, loss in enumerate(losses, 1)},
        "init": {"slots": {"encoder": slot}},
    }
    run = folder / f"{init}.{factor}.{place}.{seed}"
    run.mkdir()
    (run / "result.json").write_text(json.dumps(record))


def test_trainings_of_six_and_of_twelve_epochs_are_compared_at_the_sixth(tmp_path, capsys) -> None:
    six = [4.0, 3.9, 3.8, 3.7, 3.6]
    write(tmp_path, "pretrained_xavier", "0.125x", "added", 1, [*six, 3.5, *(1.0,) * 6], 0.05)
    write(tmp_path, "pretrained_xavier", "2x", "added", 1, [*six, 3.25], 0.8)
    for seed, last in ((1, 2.5), (2, 2.7)):
        write(tmp_path, "pretrained_xavier", "8x", "added", seed, [*six, last, *(1.0,) * 6], 3.2)
    write(tmp_path, "pretrained_xavier", "8x", "absent", 1, [3.0, *six], 3.2)  # its best epoch is the first
    write(tmp_path, "pretrained_xavier", "8x", "untied", 1, six, 3.2)  # not long enough
    assert scale_figure.main([str(tmp_path), "--output", str(tmp_path / "a.png")]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert rows[0][2:] == ["pretrained_xavier, added", "pretrained_xavier, absent"]
    assert rows[2:] == [
        ["0.125", "0.05", "3.500", "-"],
        ["2", "0.80", "3.250", "-"],
        ["8", "3.20", "2.600 ± 0.141 (2)", "3.000"],
    ]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_long_enough(tmp_path: Path) -> None:
    write(tmp_path, "xavier", "1x", "added", 1, [4.0], 0.4)
    with pytest.raises(DataError, match="--epochs"):
        scale_figure.read(tmp_path, 6)
