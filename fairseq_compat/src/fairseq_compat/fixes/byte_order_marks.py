"""A byte-order mark is part of the first word: the most frequent symbol of dict.txt becomes <unk>.

Symptom: editors of Windows write the mark. With it the first symbol of ``dict.txt``, which is the most frequent word,
    becomes ``<unk>`` everywhere; the first label of a classifier is another class; the first word of an alignment
    dictionary (``--replace-unk``) is not found. Codes of subword-nmt seem to have no ``#version: 0.2``, so that all
    words are split by the rules of 0.1.
Where: fairseq/data/dictionary.py:236, fairseq/utils.py:170, fairseq/tasks/sentence_prediction.py:229,
    fairseq/tasks/audio_finetuning.py:140, fairseq/data/multilingual/multilingual_data_manager.py:300,
    subword_nmt/apply_bpe.py:36. The fix ``line_ends`` removes marks, too.
Remedy: text in UTF-8 is read as ``utf-8-sig``.
Can go: with a fairseq and a subword-nmt that do so.
"""

from __future__ import annotations

import builtins
import codecs
import io
import locale

from fairseq_compat.patches import wrap

BROKEN = r"\bopen\(|codes\.readline\(\)"


def unmarked(encoding: str | None) -> str:
    """Return the encoding of a text (None: the system's) that drops the mark, for UTF-8."""
    encoding = encoding or locale.getpreferredencoding(False)
    return "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding


def open_unmarked(file, mode="r", *args, encoding=None, **options):
    """Open a file like ``open``; text that is read has no mark."""
    encoding = unmarked(encoding) if mode == "r" else encoding
    return builtins.open(file, mode, *args, encoding=encoding, **options)  # type: ignore[call-overload]


def patch(module):
    module.open = open_unmarked


def patch_codes(module) -> None:
    @wrap(module.BPE)
    def __init__(original, self, codes, *args, **options):
        codes.seek(0)
        original(self, io.StringIO(codes.read().removeprefix("\ufeff")), *args, **options)


PATCHES = {"subword_nmt.apply_bpe": patch_codes}
