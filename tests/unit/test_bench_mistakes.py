"""`embinit bench`: errors of one line, with a remedy, whatever goes wrong in the process that measures."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("fairseq", reason="bench measures steps of fairseq; install it with scripts/setup.sh")

from bench_requests import LM, measured, request, small

from embinit_fairseq.bench import process as bench_process
from embinit_fairseq.cli import bench
from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import EmbinitError, OptionError


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--max-tokens", "100"], ["--max-tokens", "--batch and --length"]),
        (["--fp16"], ["--fp16", "--precision fp16"]),
        (["--padding", "1"], ["--padding 1.0", "0 to 0.9"]),
        (["--length", "3"], ["--length 3", "at least 4"]),
        (["--vocabulary", "9"], ["--vocabulary 9", "at least 16"]),
        (["--steps", "0"], ["--steps", "whole number from 1"]),
        (["--warmup", "-1"], ["--warmup", "--help"]),
        (["--updates", "3"], ["--updates and --tokens-per-update"]),
        (["--gpus", "3"], ["--gpus", "add --updates"]),
        (["--updates", "3", "--tokens-per-update", "3", "--scaling", "2"], ["--scaling 2.0"]),
        (["--updates", "3", "--tokens-per-update", "3", "--assume-tflops", "0"], ["--assume-tflops 0"]),
        (["--updates", "3", "--tokens-per-update", "3", "--assume-tflops", "inf"], ["--assume-tflops inf", "finite"]),
        (["--updates", "3", "--tokens-per-update", "1" + 400 * "0"], ["--tokens-per-update", "18 digits"]),
        (["--updates", "3", "--tokens-per-update", "3", "--decode"], ["--decode"]),
        (["--turns", "3"], ["--turns", "--compare"]),
        (["--compare", "tupe_tiny"], ["--compare", "twice"]),
        (["--compare", "'tupe"], ["--compare", "quotation"]),
        (["--decode", "--train"], ["not allowed with"]),
        (["--precision", "fp8"], ["--precision", "bf16"]),
    ],
)
def test_errors_before_anything_is_measured(capfd, argv, expected):
    assert main(["bench", "--arch", "tupe_tiny", *argv]) == 2
    captured = capfd.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1), captured.err
    for part in expected:
        assert part in captured.err


@pytest.mark.parametrize(
    ("arch", "options", "changed", "expected"),
    [
        ("tupe_tini", [], {}, ["--arch tupe_tini", "tupe_tiny"]),
        ("tupe_tiny", ["--rel-poss"], {}, ["--rel-poss", "--rel-pos"]),
        ("roberta", ["--zzz"], {}, ["--zzz", "--compare 'NAME --option'"]),
        ("tupe_tiny", ["--encoder-layers=many"], {}, ["--encoder-layers", "many"]),
        ("tupe_tiny", ["--encoder-attention-heads=7"], {}, ["--encoder-attention-heads 7"]),
        ("tupe_tiny", [], {"decode": True}, ["--decode", "does not translate"]),
        ("transformer", [], {"decode": True, "precision": "bf16"}, ["--decode --precision bf16", "fp16"]),
        ("tupe_tiny", [], {"precision": "fp16"}, ["--precision fp16", "bf16"]),
        ("transformer_lm", [], {"batch": 10**7, "length": 10**4}, ["--batch 10000000", "--length 10000", "GiB"]),
    ],
)
def test_errors_of_the_measuring_process(arch, options, changed, expected):
    with pytest.raises(EmbinitError) as error:
        measured(arch, *options, **changed)
    for part in expected:
        assert part in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(OptionError, match=r"--device cuda.*--device cpu"):
        measured("tupe_tiny", device="cuda")


def test_what_fairseq_refuses_is_one_line(capfd):
    assert main(["bench", "--arch", "roberta", "--encoder-attention-heads", "7", "--device", "cpu"]) == 2
    captured = capfd.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1), captured.err
    assert "roberta: fairseq refuses it (AssertionError: embed_dim must be divisible by num_heads)" in captured.err


def test_a_process_that_the_system_kills_is_an_error_with_a_remedy():
    def kill() -> None:
        for child in multiprocessing.active_children():
            child.kill()

    with pytest.raises(EmbinitError, match="killed, as systems do when memory runs out: take a smaller --batch"):
        bench_process.measured(request("tupe_tiny", *small("tupe_tiny"), steps=1000), kill)


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_sizes_that_memory_has_no_room_for():
    """The logits of 24,576 tokens and 32,768 symbols are 3 GiB; the process may have 4.5 in all."""
    code = "import sys; from embinit_fairseq.cli.main import main; sys.exit(main())"
    command = [
        sys.executable,
        "-c",
        code,
        "bench",
        "--arch",
        "transformer_lm",
        *LM,
        "--batch",
        "24",
        "--length",
        "1024",
    ]
    limited = ["bash", "-c", 'ulimit -v 4700000; exec "$@"', "-", *command, "--device", "cpu"]
    done = subprocess.run(limited, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "does not fit into the memory" in done.stderr
    assert "take a smaller --batch or --length, or --precision bf16" in done.stderr


def test_an_interruption_leaves_no_process(monkeypatch, capsys):
    class Interrupting(contextlib.nullcontext):
        def __init__(self, *arguments, **options):
            super().__init__(self)

        def set_postfix_str(self, text):
            pass

        def update(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(bench, "tqdm", Interrupting)
    sizes = ["--length", "8", "--batch", "2", "--vocabulary", "32", "--steps", "1000"]
    assert main(["bench", "--arch", "tupe_tiny", *sizes, "--device", "cpu"]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert multiprocessing.active_children() == []


def test_other_commands_refuse_what_they_do_not_know(capsys):
    assert main(["stats", "--vectors", "x", "--rel-pos"]) == 2
    assert "unrecognized arguments: --rel-pos" in capsys.readouterr().err
