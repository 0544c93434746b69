"""scripts/multi30k/experiments.py: many trainings in one call, with an end by the clock; a grid on a tiny corpus."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
from test_multi30k_scripts import SCRIPTS, VENV, bash, corpus  # noqa: F401

sys.path.insert(0, str(SCRIPTS))

import experiments

SMALL = """--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16
    --encoder-attention-heads 2 --decoder-attention-heads 2 --encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16
    --max-update 9""".split()


def grid(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: dict[str, str], **options: object) -> list[str]:
    """`side_by_side` with the shell commands of `lines` in place of trainings; {log}: a file for all of them."""
    log = folder / "order"
    monkeypatch.setattr(experiments, "commands", lambda each, args: [lines[each.name].format(log=log)])
    trainings = [experiments.Training(name, {}, ()) for name in lines]
    args = Namespace(**{"output": folder, "jobs": 3, "minutes": 1.0, **options})
    return experiments.side_by_side([*trainings, trainings[0]], args)


def test_side_by_side_but_not_twice_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = "echo {name} >>{{log}}; sleep 0.6; echo {name} >>{{log}}"
    lines = {"a": write.format(name="a"), "b": write.format(name="b"), "c": "echo broken; exit 3"}
    assert grid(tmp_path, monkeypatch, lines) == ["c"]
    order = (tmp_path / "order").read_text().split()
    assert sorted(order) == ["a", "a", "a", "a", "b", "b"]
    assert sorted(order[:2]) == ["a", "b"]  # together
    assert order[-2:] == ["a", "a"]  # the second a has waited for the end of the first
    assert "broken" in (tmp_path / "c" / "commands.log").read_text()


def test_the_clock_ends_what_runs_and_starts_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = {name: "trap 'echo {log} ended >>{log}; exit' TERM; sleep 30 & wait" for name in "ab"}
    start = time.monotonic()
    assert grid(tmp_path, monkeypatch, lines, jobs=1, minutes=1.5 / 60) == []
    assert time.monotonic() - start < 15
    assert (tmp_path / "order").read_text().count("ended") == 1
    assert "2 trainings are not finished: the same call goes on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("device", "precision", "options"),
    [("cpu", "fp32", ["--cpu"]), ("cpu", "bf16", ["--cpu", "--amp"]), ("gpu", "fp32", []), ("gpu", "bf16", ["--bf16"])],
)
def test_device_and_precision(device: str, precision: str, options: list[str]) -> None:
    words = ["scale", "--data", "d", "--vectors", "de=a", "en=b", "--output", "o"]
    args = experiments.parse([*words, "--device", device, "--precision", precision, "--", "--log-interval", "5"])
    each = next(experiments.scale(args.vectors))
    [line] = experiments.commands(each, args)
    words = line.split()
    assert words[-len(options) - 2 :] == [*options, "--log-interval", "5"]
    assert {"--cpu", "--amp", "--bf16"}.intersection(words) == set(options)


@pytest.mark.end_to_end
@pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest")
def test_a_grid_is_ended_by_the_clock_and_finished_by_the_same_call(corpus: Path, tmp_path: Path) -> None:  # noqa: F811
    bash(SCRIPTS / "prepare.sh", "--output", tmp_path / "data", DATA=str(corpus))
    vectors = []
    for lang in ("de", "en"):
        words = [line.split()[0] for line in (tmp_path / "data" / "bin" / f"dict.{lang}.txt").read_text().splitlines()]
        vectors.append(tmp_path / f"{lang}.txt")
        vectors[-1].write_text("".join(f"{word} {' '.join(['0.1', '-0.2'] * 8)}\n" for word in words))

    def call(*options: str) -> str:
        command = [sys.executable, SCRIPTS / "experiments.py", "table1", "--data", tmp_path / "data", "--vectors"]
        command += [f"de={vectors[0]}", f"en={vectors[1]}", "--output", tmp_path / "runs", "--device", "cpu"]
        command += ["--jobs", "2", "--worker", "3/9", *options, "--", *SMALL]
        return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout

    assert "2 trainings are not finished" in call("--minutes", "0.02")
    assert call().count("done") == 2
    for name, strategy in (("pretrained.seed1", "pretrained"), ("shuffled_xavier.seed2", "shuffled")):
        result = json.loads((tmp_path / "runs" / name / "result.json").read_text())
        assert f"--embed-init {strategy} " in result["command"]
        assert result["best"]["valid_loss"] > 0
        assert result["scores"]["bleu"]["score"] >= 0
    assert call() == ""
