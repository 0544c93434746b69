"""Vocabulary surgery on trained fairseq models: expand, trim and transfer stand on `core.resize`."""
