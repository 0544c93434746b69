"""scripts/multi30k/equal_ffn.py: how wide a `transformer` must be to have the parameters of a `duo_transformer`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("fairseq", reason="it builds models; install fairseq with scripts/setup.sh")
from test_duo_parameters import count

from embinit_fairseq.errors import OptionError

REPOSITORY = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("equal_ffn", REPOSITORY / "scripts" / "multi30k" / "equal_ffn.py")
equal_ffn = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(equal_ffn)

LAYERS, D, FFN, WORDS = 2, 12, 10, 60
PAPER = {"streams": 2, "shared": True, "fusion": True}


@pytest.fixture
def command(tmp_path):
    for language in ("de", "en"):
        (tmp_path / f"dict.{language}.txt").write_text("".join(f"w{number} 1\n" for number in range(WORDS - 4)))
    sizes = {"layers": LAYERS, "embed-dim": D, "ffn-embed-dim": FFN, "attention-heads": 3}
    flags = [f"--{side}-{name} {value}" for side in ("encoder", "decoder") for name, value in sizes.items()]
    plugin = f"--user-dir {REPOSITORY / 'embinit_fairseq'} --task translation -s de -t en --cpu"
    return f"fairseq-train {tmp_path} {plugin} --arch transformer {' '.join(flags)}".split()


@pytest.mark.parametrize(
    ("ties", "tables", "duo", "told"),
    [
        ("", "three", "--duo-share-weights off", {**PAPER, "shared": False}),
        ("--share-decoder-input-output-embed", "two", "--duo-share-weights pair --duo-norm encoder", PAPER),
        ("--share-all-embeddings", "one", "--encoder-dim-p 5", {**PAPER, "dims": [D, 5]}),
    ],
)
def test_the_two_models_have_as_many_parameters(command, ties, tables, duo, told):
    """By the formula of test_duo_parameters, to half of what a wider layer adds."""
    width = equal_ffn.equal_width([*command, *ties.split()], duo.split())
    expected = count(LAYERS, D, FFN, WORDS, tables=tables, **told)
    found = count(LAYERS, D, width, WORDS, tables=tables, streams=1)
    assert width > FFN
    assert abs(found - expected) <= LAYERS * (2 * D + 1)  # half of it for encoder and decoder


def test_a_duo_that_no_transformer_is_small_enough_for(command, tmp_path):
    for language in ("de", "en"):
        (tmp_path / f"dict.{language}.txt").write_text("".join(f"w{number} 1\n" for number in range(2000)))
    small = "--encoder-dim-s 1 --encoder-dim-p 1 --decoder-dim-s 1 --decoder-dim-p 1".split()
    with pytest.raises(OptionError, match="--duo --encoder-dim-s 1"):
        equal_ffn.equal_width([*command, "--share-decoder-input-output-embed"], small)
