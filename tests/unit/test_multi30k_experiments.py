"""scripts/multi30k: the lists of trainings, a transformer of Duo's size, the table of loss against scale."""

from __future__ import annotations

import json
import shlex
import sys
from collections import defaultdict
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


def write_dictionaries(data: Path, words: int) -> None:
    for language in ("de", "en"):
        (data / f"bin/dict.{language}.txt").write_text("".join(f"w{n} 1\n" for n in range(words - 4)))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data" / "bin").mkdir(parents=True)
    write_dictionaries(tmp_path / "data", WORDS)
    (tmp_path / "data/bin/train.de-en.en.bin").touch()
    return tmp_path / "data"


@pytest.mark.parametrize(("grid", "trainings"), [("scale", 78), ("table1", 18), ("duo", 36), ("ladder", 6)])
def test_every_line_is_a_training_in_a_folder_of_its_name(capsys, data, grid: str, trainings: int) -> None:
    vectors = ["--vectors", *(f"{name}={name}.txt" for name in "de en de2 en2 de_a de_b en_a en_b".split())]
    how = ["--device", "cpu", "--precision", "bf16", "--", *SMALL]
    experiments.main([grid, "--data", str(data), "--output", "my runs", *vectors, *how])
    # read as `embinit grid` does, which refuses names that are not unique
    lines = {line.name: shlex.split(line.command) for line in read_lines(capsys.readouterr().out)}
    assert len(lines) == trainings
    seeds = defaultdict(set)
    for name, words in lines.items():
        assert words[:3] == ["embinit", "run", f"my runs/{name}"]
        assert ("fairseq-generate" in words) == ("score" in words) == (grid != "scale")
        options = parse_command(words[: words.index("&&") if "&&" in words else None]).options
        assert {"--cpu", "--amp"} <= set(options)
        assert name.endswith(f".seed{options['--seed'][0]}")
        assert all(width.isdigit() for flag in experiments.FFN for width in options[flag])
        seeds[options["--max-epoch"][0], options.get("--embed-init-std", [""])[0]].add(options["--seed"][0])
    if grid == "scale":  # the ends and the middle have more epochs and more seeds
        long = {("12", factor): {"1", "2", "3"} for factor in ("0.125x", "1x", "8x")}
        assert seeds == {**long, **{("6", factor): {"1"} for factor in ("0.25x", "0.5x", "2x", "4x")}}


def test_what_a_list_cannot_be_made_of_is_named(tmp_path, data, capsys) -> None:
    with pytest.raises(OptionError, match=r"--data .*prepare\.sh"):
        experiments.main(["ladder", "--data", str(tmp_path), "--output", "o"])
    with pytest.raises(SystemExit):
        experiments.main(["duo", "--data", str(data), "--output", "o", "--vectors", "de=a"])
    assert "--vectors: give de=PATH and en=PATH" in capsys.readouterr().err


PAPER = {"streams": 2, "shared": True, "fusion": True}


@pytest.mark.parametrize(
    ("ties", "tables", "duo", "told"),
    [
        ("", "three", "--duo-share-weights off", {**PAPER, "shared": False}),
        ("--share-decoder-input-output-embed", "two", "--duo-share-weights pair --duo-norm encoder", PAPER),
        ("--share-all-embeddings", "one", "--encoder-dim-p 5", {**PAPER, "dims": [D, 5]}),
    ],
)
def test_the_two_models_have_as_many_parameters(data, ties, tables, duo, told) -> None:
    """By the formula of test_duo_parameters, to half of what a wider layer adds."""
    sizes = {"layers": LAYERS, "embed-dim": D, "ffn-embed-dim": FFN, "attention-heads": 3}
    flags = " ".join(f"--{side}-{name} {value}" for side in ("encoder", "decoder") for name, value in sizes.items())
    plugin = f"--user-dir {experiments.PLUGIN} --task translation -s de -t en --cpu"
    command = f"fairseq-train {data}/bin {plugin} --arch transformer {flags} {ties}".split()
    width = experiments.equal_width(tuple(command), tuple(duo.split()))
    expected = count(LAYERS, D, FFN, WORDS, tables=tables, **told)
    assert width > FFN
    assert abs(count(LAYERS, D, width, WORDS, tables=tables, streams=1) - expected) <= LAYERS * (2 * D + 1)
    if tables == "two":  # of an embedding of one number a word no transformer is small enough
        write_dictionaries(data, 2000)
        small = tuple("--encoder-dim-s 1 --encoder-dim-p 1 --decoder-dim-s 1 --decoder-dim-p 1".split())
        with pytest.raises(OptionError, match="--encoder-dim-s 1"):
            experiments.equal_width((*command, "--no-progress-bar"), small)


def write(folder: Path, factor: str, place: str, seed: int, losses: list[float], ratio: float) -> None:
    added = place == "added"
    slot = {"absorption_ratio": ratio / 2 if added else None, "matched_absorption_ratio": ratio if added else None}
    record = {
        "labels": {"init": "pretrained_xavier", "sigma": factor, "positions": place, "seed": str(seed)},
        "epochs": {str(epoch): {"valid_loss": loss} for epoch, loss in enumerate(losses, 1)},
        "init": {"slots": {"encoder": slot}},
    }
    (folder / f"{factor}.{place}.{seed}").mkdir()
    (folder / f"{factor}.{place}.{seed}" / "result.json").write_text(json.dumps(record))


def test_trainings_of_six_and_of_twelve_epochs_are_compared_at_the_sixth(tmp_path: Path, capsys) -> None:
    six = [4.0, 3.9, 3.8, 3.7, 3.6]
    write(tmp_path, "8x", "untied", 1, six, 3.2)  # not long enough
    with pytest.raises(DataError, match="--epochs"):
        scale_figure.read(tmp_path, 6)
    write(tmp_path, "0.125x", "added", 1, [*six, 3.5, *(1.0,) * 6], 0.05)
    write(tmp_path, "2x", "added", 1, [*six, 3.25], 0.8)
    for seed, last in ((1, 2.5), (2, 2.7)):
        write(tmp_path, "8x", "added", seed, [*six, last, *(1.0,) * 6], 3.2)
    write(tmp_path, "8x", "absent", 1, [3.0, *six], 3.2)  # its best epoch is the first
    assert scale_figure.main([str(tmp_path), "--output", str(tmp_path / "a.png")]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert rows[0][2:] == ["pretrained_xavier, added", "pretrained_xavier, absent"]
    assert rows[2:] == [
        ["0.125", "0.05", "3.500", "-"],
        ["2", "0.80", "3.250", "-"],
        ["8", "3.20", "2.600 ± 0.141 (2)", "3.000"],
    ]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
