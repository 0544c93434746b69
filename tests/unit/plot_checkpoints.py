"""Small checkpoints for the tests of `embinit plot`: random parameters of the real modules, and the options beside."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from embinit_fairseq.cli.main import main
from embinit_fairseq.modules.encoder_layer import LayerConfig
from embinit_fairseq.modules.position_encoding import AddedPositions, RelativePositions, untied_positions
from embinit_fairseq.modules.sentence_encoder import EncoderConfig, SentenceEncoder

C, HEADS, LONGEST = 8, 2, 12
WORDS = ["the", "cat", "sat", "on", "a", "mat"]
#: options of tupe_* that fairseq-train writes, as far as pictures read them
OPTIONS = {
    "_name": "tupe_tiny",
    "position_encoding": "untied",
    "tupe_tie_cls": False,
    "tupe_reset": "official",
    "max_rel_pos": 6,
    "encoder_attention_heads": HEADS,
    "encoder_normalize_before": False,
    "max_positions": LONGEST,
}


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """In double precision, every parameter N(0, 1): gains and biases too, which start as ones and zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module.eval()


def untied(reset: str | None = "official", num_buckets: int = 0, seed: int = 0, **options) -> nn.Module:
    """Positions of TUPE-A or TUPE-R."""
    module = untied_positions(C, HEADS, LONGEST, reset=reset, num_buckets=num_buckets, max_distance=6, **options)
    return randomised(module, seed)


def relative() -> nn.Module:
    """Positions of BERT-R."""
    return randomised(RelativePositions(HEADS, 8, 6))


def checkpoint(prefix: str, module: nn.Module, **options) -> dict:
    """What fairseq-train would write, as far as it is read here."""
    state = {f"{prefix}{name}": value for name, value in module.state_dict().items()}
    return {"args": None, "cfg": {"_name": None, "model": {**OPTIONS, **options}}, "model": state}


def tupe(module: nn.Module, **options) -> dict:
    """A checkpoint of tupe_* or bert_r_* with these positions."""
    return checkpoint("encoder.sentence_encoder.positions.", module, **options)


def bert_a(embedding_normalize: bool = True, normalize_before: bool = False) -> tuple[dict, SentenceEncoder]:
    """A checkpoint of bert_a_* and its encoder; the dictionary holds WORDS, and <mask> has a row."""
    layer = LayerConfig(embed_dim=C, ffn_embed_dim=C, num_heads=HEADS, normalize_before=normalize_before)
    table = nn.Embedding(4 + len(WORDS) + 1, C, 1)
    encoder = SentenceEncoder(EncoderConfig(layer, 2, embedding_normalize), table, AddedPositions(C, LONGEST), bos=0)
    options = {"_name": "bert_a_tiny", "position_encoding": "added", "encoder_normalize_before": normalize_before}
    return checkpoint("encoder.sentence_encoder.", randomised(encoder), **options), encoder


def write_dictionary(folder: Path, words: list[str] = WORDS) -> str:
    """dict.txt of WORDS."""
    (folder / "dict.txt").write_text("".join(f"{word} 5\n" for word in words))
    return str(folder / "dict.txt")


def failure(capsys, *argv: str) -> str:
    """The one line of an `embinit plot` that fails."""
    assert main(["plot", *argv]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1), captured.err
    return captured.err
