"""Vocabulary surgery on trained fairseq models: expand, trim and transfer share `core.resized`."""
