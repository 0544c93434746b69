"""The models that scripts/wikibooks/run.sh compares by default are the six of Ke et al. 2021."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("fairseq")

from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY

from embinit_fairseq.models.tupe import TupeModel

RUN = Path(__file__).resolve().parents[2] / "scripts" / "wikibooks" / "run.sh"
SMALL = (
    "--encoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-attention-heads 2 --max-positions 16"
)
#: name -> (how positions enter, with relative ones, [CLS] like any position)
EXPECTED = {
    "bert_a": ("added", False, False),
    "bert_r": ("relative", False, False),
    "bert_ad": ("four_terms", False, False),
    "tupe_a_tie_cls": ("untied", False, True),
    "tupe_a": ("untied", False, False),
    "tupe_r": ("untied", True, False),
}


def default_models(size: str) -> dict[str, list[str]]:
    """Name -> architecture and options, as run.sh writes them down."""
    found = re.findall(r'^  "(\w+)=(\w+\$size\b[^"]*)"\)?$', RUN.read_text(), re.MULTILINE)
    return {name: words.replace("$size", size).split() for name, words in found}


def test_the_default_models_are_those_of_the_paper() -> None:
    models = default_models("tiny")
    assert list(models) == list(EXPECTED)
    task = SimpleNamespace(source_dictionary=Dictionary(), cfg=SimpleNamespace(_name="masked_lm", mask_prob=0.15))
    for name, (arch, *flags) in models.items():
        words = ["data", "--task", "masked_lm", "--arch", arch, *flags, *SMALL.split()]
        args = options.parse_args_and_arch(options.get_training_parser("masked_lm"), words)
        cfg = convert_namespace_to_omegaconf(args).model
        assert (str(cfg.position_encoding), cfg.rel_pos, cfg.tupe_tie_cls) == EXPECTED[name]
        assert cfg.embedding_normalize
        assert TupeModel.build_model(cfg, task).max_positions() == 16


@pytest.mark.parametrize("size", ["base", "large"])
def test_they_exist_in_all_sizes(size: str) -> None:
    assert {arch for arch, *_ in default_models(size).values()} <= set(ARCH_MODEL_REGISTRY)
