"""--bpe subword_nmt makes unknown subwords; now it reads CODES.vocabulary and glossary.txt next to CODES.

Symptom: with codes of two languages and a dictionary of one, or with a dictionary that has lost subwords,
    ``fairseq-interactive --bpe subword_nmt`` and ``from_pretrained`` make subwords that the dictionary lacks, which
    become ``<unk>``; and they split the words that the text had whole (``apply-bpe --glossaries``).
Where: fairseq/data/encoders/subword_nmt_bpe.py:36 (``None`` in the place of the vocabulary, no glossary).
Remedy: a file ``CODES.vocabulary`` next to ``--bpe-codes CODES``, a subword and its count per line, is the vocabulary;
    a regular expression in ``glossary.txt`` there, ``^(?:...)$``, is the glossary. embinit_fairseq writes both.
Can go: with a fairseq that has an option for it.
"""

from __future__ import annotations

import os
import re

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
        words = os.path.join(os.path.dirname(cfg.bpe_codes), "glossary.txt")
        if os.path.isfile(words):
            with open(words, encoding="utf-8-sig") as text:
                expression = text.read().strip()
            if not (expression.startswith("^(?:") and expression.endswith(")$")):
                raise ValueError(
                    f"{words}: is next to --bpe-codes, but is not a regular expression ^(?:word|word)$; move it, or "
                    "copy the codes to another folder"
                )
            self.bpe.glossaries = [expression]
            self.bpe.glossaries_regex = re.compile(f"^({expression})$")
