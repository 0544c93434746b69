"""``--bpe subword_nmt`` cannot have the vocabulary that ``subword-nmt apply-bpe --vocabulary`` has.

Symptom: with codes of two languages and a dictionary of one, or with a dictionary that has lost subwords,
    ``fairseq-interactive --bpe subword_nmt`` and ``from_pretrained`` make subwords that the dictionary lacks, which
    become ``<unk>``.
Where: fairseq/data/encoders/subword_nmt_bpe.py:36 (``None`` in the place of the vocabulary).
Remedy: a file ``CODES.vocabulary`` next to ``--bpe-codes CODES``, a subword and its count per line, is the vocabulary.
Can go: with a fairseq that has an option for it.
"""

from __future__ import annotations

import os

from fairseq_compat.patches import wrap

BROKEN = r"bpe_args\.separator,\s+None,"


def patch(module):
    @wrap(module.SubwordNMTBPE)
    def __init__(original, self, cfg):
        original(self, cfg)
        path = f"{cfg.bpe_codes}.vocabulary"
        if os.path.isfile(path):
            with open(path, encoding="utf-8-sig", newline="\n") as lines:
                pairs = [line.strip("\r\n ").rpartition(" ") for line in lines]
            for number, (subword, _, count) in enumerate(pairs, 1):
                if not subword or not count.isdecimal():
                    raise ValueError(f"{path}:{number}: expected a subword, a space and its count")
            self.bpe.vocab = {subword for subword, _, _ in pairs}
