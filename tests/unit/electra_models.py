"""Tiny ELECTRA models and batches for tests."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from tupe_reference import randomise

from embinit_fairseq.criterions.electra import ElectraCriterion, ElectraCriterionConfig
from embinit_fairseq.models.electra import ElectraConfig, ElectraModel

PAD, BOS, EOS = 1, 0, 2
SIZES = {
    "encoder_layers": 1,
    "encoder_embed_dim": 8,
    "encoder_ffn_embed_dim": 6,
    "encoder_attention_heads": 2,
    "generator_layers": 2,
    "generator_embed_dim": 6,
    "generator_ffn_embed_dim": 4,
    "generator_attention_heads": 3,
    "max_positions": 12,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "pooler_dropout": 0.0,
}


def dictionary():
    """Four specials, a to j, <mask>: 15 symbols."""
    symbols = Dictionary()
    for word in [*"abcdefghij", "<mask>"]:
        symbols.add_symbol(word)
    return symbols


def task_for(masking=True, **options):
    """What the model and the criterion look at in a task."""
    symbols = dictionary()
    cfg = SimpleNamespace(**{"mask_prob": 0.25, "leave_unmasked_prob": 0.0, "random_token_prob": 0.0, **options})
    task = SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols, cfg=cfg)
    if masking:
        task.mask_idx = symbols.index("<mask>")
    return task


def model_for(task=None, **options):
    """A tiny model in double precision, all of whose parameters differ."""
    cfg = ElectraConfig(**{**SIZES, **options})
    return randomise(ElectraModel.build_model(cfg, task or task_for()))


def criterion_for(task=None, rtd_weight=50.0, seed=1):
    return ElectraCriterion(ElectraCriterionConfig(rtd_weight=rtd_weight, seed=seed), task or task_for())


def batch_of(sentences, masked, ids=None, width=0):
    """A batch as masked_lm makes it: sentences are lists of ids, `masked` the chosen columns of each."""
    width = max(width, *map(len, sentences))
    src_tokens = torch.full((len(sentences), width), PAD)
    target = torch.full((len(sentences), width), PAD)
    for row, (sentence, columns) in enumerate(zip(sentences, masked)):
        src_tokens[row, : len(sentence)] = torch.tensor(sentence)
        for column in columns:
            target[row, column] = sentence[column]
            src_tokens[row, column] = dictionary().index("<mask>")
    return {
        "id": torch.tensor(ids or list(range(len(sentences)))),
        "net_input": {"src_tokens": src_tokens, "src_lengths": torch.tensor([len(s) for s in sentences])},
        "target": target,
        "nsentences": len(sentences),
        "ntokens": sum(map(len, sentences)),
    }


#: three sentences of different lengths; in the second `<s>` itself is masked
SENTENCES = [[BOS, 4, 5, 6, 7, 8, EOS], [BOS, 9, 10, EOS], [BOS, 11, 12, 13, 4, EOS]]
MASKED = [[2, 5], [0, 2], [4]]
