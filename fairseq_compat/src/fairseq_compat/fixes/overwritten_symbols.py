"""--srcdict drops #fairseq:overwrite (CamemBERT): Duplicate word found.

Symptom: ``fairseq-preprocess --srcdict`` (or ``--tgtdict``) with a ``dict.txt`` such as CamemBERT's, whose lines
    ``<s> 0 #fairseq:overwrite`` repeat the special symbols, writes a copy without ``#fairseq:overwrite``. Every command
    that opens the data ends with ``RuntimeError: Duplicate word found``.
Where: fairseq/data/dictionary.py:272 (``Dictionary._save``).
Remedy: a symbol that has a row already is written with the mark.
Can go: with a fairseq that writes the mark.
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r'print\("\{\} \{\}"\.format\(k, v\), file=f\)'


def marked(rows, earlier_symbols):
    """Yield symbol and count of each row; the count of a repeated symbol, or of `earlier_symbols`, has the mark."""
    symbols = set(earlier_symbols)
    for symbol, count in rows:
        yield symbol, f"{count} #fairseq:overwrite" if symbol in symbols else count
        symbols.add(symbol)


def patch(module):
    @wrap(module.Dictionary)
    def _save(original, self, f, kv_iterator):
        return original(self, f, marked(kv_iterator, self.symbols[: self.nspecial]))
