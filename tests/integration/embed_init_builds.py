"""Small models of stock architectures, built as fairseq-train builds them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import embinit_fairseq

D = 8
SMALL = "--encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-layers 1 --encoder-attention-heads 2".split()
SMALL_DECODER = "--decoder-embed-dim 8 --decoder-ffn-embed-dim 8 --decoder-layers 1 --decoder-attention-heads 2".split()
TRANSFORMER = ["--task", "translation", "--arch", "transformer_iwslt_de_en", *SMALL, *SMALL_DECODER]
ARCHITECTURES = {
    "transformer": (TRANSFORMER, {"encoder": "encoder", "decoder": "decoder"}),
    "lstm": (
        "--task translation --arch lstm --encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-hidden-size 8 "
        "--decoder-hidden-size 8 --decoder-out-embed-dim 8".split(),
        {"encoder": "encoder", "decoder": "decoder"},
    ),
    "roberta": (
        ["--task", "masked_lm", "--arch", "roberta_base", *SMALL, "--tokens-per-sample", "16"],
        {"encoder": "encoder.sentence_encoder"},
    ),
    "transformer_lm": (
        "--task language_modeling --arch transformer_lm --decoder-embed-dim 8 --decoder-input-dim 8 "
        "--decoder-output-dim 8 --decoder-ffn-embed-dim 8 --decoder-layers 1 --decoder-attention-heads 2 "
        "--tokens-per-sample 16".split(),
        {"decoder": "decoder"},
    ),
    "transformer_lm_gpt": (
        "--task language_modeling --arch transformer_lm_gpt --decoder-embed-dim 8 --decoder-ffn-embed-dim 8 "
        "--decoder-layers 1 --decoder-attention-heads 2 --tokens-per-sample 16".split(),
        {"decoder": "decoder"},
    ),
    "lstm_lm": (
        "--task language_modeling --arch lstm_lm --decoder-embed-dim 8 --decoder-hidden-size 8 "
        "--decoder-out-embed-dim 8 --tokens-per-sample 16".split(),
        {"decoder": "decoder"},
    ),
}


def build(data, arguments, *flags, seed=1):
    """Model, task and configuration as fairseq-train builds them."""
    user_dir = os.path.dirname(embinit_fairseq.__file__)
    common = [str(data), "--user-dir", user_dir, "--max-tokens", "100", "--seed", str(seed), "--no-save"]
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, [*common, *arguments, *flags]))
    np.random.seed(seed)
    utils.set_torch_seed(seed)
    task = tasks.setup_task(cfg.task)
    return task.build_model(cfg.model), task, cfg


def read_text(path):
    lines = [line.split(" ") for line in Path(path).read_text().splitlines()]
    return {word: np.array(list(map(np.float32, vector))) for word, *vector in lines}
