"""Change the vocabulary of trained fairseq models: expand, trim and transfer share `core.resized`."""
